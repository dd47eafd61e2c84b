/* SPDX-License-Identifier: MIT */
/* The shortest paths of an allocation and a free in an arena without cells. */
#ifndef XSEG_CORE_ARENA_HIT_H
#define XSEG_CORE_ARENA_HIT_H

#include "src/core/arena/arena.h"

/* xseg_arena_alloc() for a plain request of a large arena, whose lock is held: the address, or 0 for a miss and
 * where the general path has to be taken. */
uint64_t xseg_arena_hit(struct xseg_arena *arena, const struct xseg_need *need);

/* xseg_arena_hit() for a configuration without max_split_size_mb, with expandable segments or without. */
uint64_t xseg_arena_hit_plain(struct xseg_arena *arena, uint64_t requested, bool expandable);

#endif
