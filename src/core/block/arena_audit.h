/* SPDX-License-Identifier: MIT */
/* The audit of an arena: its invariants, and those of what it holds. */
#ifndef XSEG_CORE_ARENA_AUDIT_H
#define XSEG_CORE_ARENA_AUDIT_H

#include "src/core/block/arena.h"

/* The whole arena, with its extents; the lock must be held. */
bool xseg_arena_audit(const struct xseg_arena *arena, struct xseg_violation *violation);

#endif
