/* SPDX-License-Identifier: MIT */
/*
 * What an arena does with blocks: it serves requests with cached ones, takes back those that are freed, and lets
 * growth and trims claim them.
 *
 * A claimed block is busy: nobody else touches it until it is settled.  So a claim lasts while the driver is called
 * without the arena's lock.
 *
 * Locking: ARENA, but where a function says that it takes the lock.
 */
#ifndef XSEG_CORE_ARENA_BLOCKS_H
#define XSEG_CORE_ARENA_BLOCKS_H

#include "src/core/cache/arena.h"

/*
 * Serve a request from the free index.  Takes the lock.
 *
 * Returns: XSEG_OK, *out as it was for a miss, while the pool is paused, and where the arena is not that of
 *          the pool any more; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                             struct xseg_grant *out);

/* Serve a request of the default pool from an arena of a private pool, as xseg_arena_alloc() does: the block
 * is lent. */
xseg_status xseg_arena_lend(struct xseg_arena *arena, const struct xseg_need *need,
                            struct xseg_grant *out);

/*
 * Hand a cached block out, taking it out of the free index: its head becomes live, the rest stays cached if
 * the rules say so, and so does what lies before the alignment.  Two block records must be in stock.
 * A need that only wants memory ready is shown the block.
 */
struct xseg_grant xseg_arena_hand_out(struct xseg_arena *arena, struct xseg_block *block,
                                      const struct xseg_need *need);

/* The same at an address, which one cached block covers; what lies before it stays cached. */
struct xseg_grant xseg_arena_hand_out_at(struct xseg_arena *arena, struct xseg_extent *extent,
                                         uint64_t base, const struct xseg_need *need);

/* A live block is free at once: it becomes cached and merges with its neighbours. */
void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block);

/* A live block is free for the user, but pending: counts only. */
void xseg_arena_note_pending(struct xseg_arena *arena, struct xseg_block *block);

/* A block that was pending becomes cached and merges with its neighbours. */
void xseg_arena_take_back(struct xseg_arena *arena, struct xseg_block *block);

/* --- Claims, for growth and trims. --- */

/* Add an extent of one block, which is a hole or mapped, busy; a block record must be in stock. */
struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Take an extent out whose only block is busy. */
void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* The first cached block of 2 MiB or more that is not below (bytes, base), or NULL.  In an arena with
 * cells it is a node (cells.h), which is gone with the next claim. */
struct xseg_block *xseg_arena_cached_from(struct xseg_arena *arena, uint64_t bytes, uint64_t base);

/*
 * Take a cached block out of the free index, or a hole out of its tree: nobody else touches it until it is settled.  Two
 * records must be in stock.
 *
 * Returns: the busy block, which for a node is another record
 */
struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block);

/* Cut a busy block in two at `bytes`; returns the new block behind.  A record must be in stock. */
struct xseg_block *xseg_arena_cut(struct xseg_arena *arena, struct xseg_block *block,
                                  uint64_t bytes);

/* A busy block becomes cached or a hole, by `mapped`, and merges; returns what it has become, or NULL
 * for a cell without a node. */
struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block);

#endif
