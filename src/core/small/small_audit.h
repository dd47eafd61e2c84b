/* SPDX-License-Identifier: MIT */
/* The audit of a small arena: its invariants, and those of its cells. */
#ifndef XSEG_CORE_SMALL_AUDIT_H
#define XSEG_CORE_SMALL_AUDIT_H

#include "src/core/small/small.h"

bool xseg_small_audit(const struct xseg_arena *arena, struct xseg_violation *violation);

#endif
