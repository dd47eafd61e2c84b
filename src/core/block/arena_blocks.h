/* SPDX-License-Identifier: MIT */
/*
 * The blocks of an arena: cached ones serve requests, freed ones come back, and growth and trims claim blocks.
 *
 * A claimed block is busy: no other thread touches it until it is settled.  So a claim holds while the driver is
 * called without the arena's lock.
 *
 * Locking: ARENA, unless a function says that it takes the lock.
 */
#ifndef XSEG_CORE_ARENA_BLOCKS_H
#define XSEG_CORE_ARENA_BLOCKS_H

#include "src/core/block/arena.h"

/*
 * Serve a request from the free index.  Takes the lock.
 *
 * Returns: XSEG_OK, with *out unchanged for a miss and while the pool is paused; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             struct xseg_alloc_result *out);

/* Serve a request of the default pool from an arena of a private pool, as xseg_arena_alloc() does: the block
 * is lent. */
xseg_status xseg_arena_alloc_fallback(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out);

/*
 * Hand out a cached block, and take it out of the free index: its head becomes live, the rest stays cached if
 * the rules say so, and so does the part before an aligned address.  Two block records must be in stock.
 * For a need that only wants memory ready, the block stays cached.
 */
struct xseg_alloc_result xseg_arena_allocate_block(struct xseg_arena *arena,
                                                   struct xseg_block *block,
                                                   const struct xseg_alloc_params *params);

/* xseg_arena_allocate_block() at an address in the cached block that covers all of the request; the part before the
 * address stays cached. */
struct xseg_alloc_result xseg_arena_allocate_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params);

/* Set the requested size of the block that covers an address, if the block is cached. */
void xseg_arena_set_requested(struct xseg_extent *extent, uint64_t address, uint64_t requested);

/* Free a live block at once: it becomes cached and merges with its neighbours. */
void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block);

/* Count a live block that its user has freed as pending; the block itself does not change. */
void xseg_arena_mark_pending(struct xseg_arena *arena, struct xseg_block *block);

/* Free a block that was pending: it becomes cached and merges with its neighbours. */
void xseg_arena_free_pending(struct xseg_arena *arena, struct xseg_block *block);

/* --- Claims, for growth and trims. --- */

/* Add an extent of one busy block, which is not mapped if the extent is expandable.  A record must be in stock. */
struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Remove an extent whose only block is busy. */
void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* The first cached block of 2 MiB or more that is not below (bytes, position), or NULL. */
struct xseg_block *xseg_arena_cached_from(struct xseg_arena *arena, uint64_t bytes,
                                          uint64_t position);

/*
 * Take a cached block out of the free index, or a hole out of its tree: no other thread touches it until it is
 * settled.  Returns the busy block.
 */
struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block);

/* Cut a busy block in two at `bytes`; returns the new block behind.  A record must be in stock. */
struct xseg_block *xseg_arena_split_block(struct xseg_arena *arena, struct xseg_block *block,
                                          uint64_t bytes);

/* Make a busy block cached, or a hole if it is not mapped, and merge it; returns the merged block.
 * */
struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block);

/* Host bytes of an arena without its extents. */
uint64_t xseg_arena_host_bytes(const struct xseg_arena *arena);

#endif
