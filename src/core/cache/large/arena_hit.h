/* SPDX-License-Identifier: MIT */
/* The shortest ways of an arena without cells. */
#ifndef XSEG_CORE_ARENA_HIT_H
#define XSEG_CORE_ARENA_HIT_H

#include "src/core/cache/arena.h"

/* xseg_arena_alloc() for a plain request of a large arena, whose lock is held: the address, or 0 for a miss and
 * for what has more to it. */
uint64_t xseg_arena_hit(struct xseg_arena *arena, const struct xseg_need *need);

/* The same for a configuration without max_split_size_mb, which has expandable segments or not. */
uint64_t xseg_arena_hit_plain(struct xseg_arena *arena, uint64_t requested, bool expandable);

/* Free the block that begins at an address, to which its slot leads, if it is live and that is all there is to do. */
bool xseg_arena_hit_free(struct xseg_arena *arena, xseg_slot *start, struct xseg_block *block,
                         uint64_t address);

/* xseg_large_take_back() where there are notes. */
bool xseg_arena_take_back_noting(struct xseg_arena *arena, xseg_slot *start,
                                 struct xseg_block *block, uint64_t address);

#endif
