/* SPDX-License-Identifier: MIT */
/*
 * The operations of an arena on its blocks: allocate, free, split, coalesce, claim, settle.
 *
 * Allocation and free.  A request takes the best fit from the free index (best_fit.h).  The head of
 * the block, or a range inside it if the alignment requires one, becomes allocated; the rest stays
 * cached.  A free caches the block, or first makes it pending if other streams use it (pending.h).
 * A cached block coalesces with adjacent cached blocks immediately.
 *
 * Claim and settle.  Growth, trim and pause take cached and unmapped blocks out of the free index
 * and the tree of unmapped blocks.  No other thread modifies, coalesces or allocates a claimed
 * block, so the claim remains valid while its owner calls the driver without the arena's lock.  To
 * settle a block makes it cached or unmapped, depending on `mapped`, and coalesces it.
 *
 * Records.  A split needs a block record, and allocating records may release the lock.  So callers
 * reserve records with xseg_arena_reserve_records() before they choose a block; the operations here
 * then cannot fail.
 *
 * Locking: the caller holds the arena's lock, unless a function locks it itself.
 */
#ifndef XSEG_CORE_ARENA_BLOCKS_H
#define XSEG_CORE_ARENA_BLOCKS_H

#include "src/core/block/arena.h"

/*
 * Serve a request from the free index.  Locks the arena.
 *
 * Returns: XSEG_OK, with *out unchanged for a miss and while the pool is paused;
 * XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             struct xseg_alloc_result *out);

/* Serve a request of the default pool from an arena of a private pool, as xseg_arena_alloc() does.
 * The block has XSEG_BLOCK_FALLBACK. */
xseg_status xseg_arena_alloc_fallback(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out);

/*
 * Allocate from a cached block, which leaves the free index.  The part before the aligned address
 * stays cached, and so does the rest if it is worth a split (best_fit.h).  Two block records must
 * be reserved.  If `keep` is set, the block stays cached.
 */
struct xseg_alloc_result xseg_arena_allocate_block(struct xseg_arena *arena,
                                                   struct xseg_block *block,
                                                   const struct xseg_alloc_params *params);

/* xseg_arena_allocate_block() at an address.  The cached block that covers the address must contain
 * all of the request; the part before the address stays cached. */
struct xseg_alloc_result xseg_arena_allocate_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params);

/* Set the requested size of the block that covers an address, if the block is cached. */
void xseg_arena_set_requested(struct xseg_extent *extent, uint64_t address, uint64_t requested);

/* Free an allocated block that no other stream uses: cache and coalesce it. */
void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block);

/* Count a freed block as pending; the block itself does not change. */
void xseg_arena_mark_pending(struct xseg_arena *arena, struct xseg_block *block);

/* Free a pending block whose streams have completed: cache and coalesce it. */
void xseg_arena_free_pending(struct xseg_arena *arena, struct xseg_block *block);

/* --- Claims, for growth and trim. --- */

/* Add an extent of one claimed block, which is not mapped if the extent is expandable.  A record
 * must be reserved. */
struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Remove an extent whose only block is claimed. */
void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Claim a cached or unmapped block; returns the block. */
struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block);

/* Split a block that is not indexed after `bytes`; returns the second block.  A record must be
 * reserved. */
struct xseg_block *xseg_arena_split_block(struct xseg_arena *arena, struct xseg_block *block,
                                          uint64_t bytes);

/* Settle a claimed block: cached if it is mapped, else unmapped.  Returns the coalesced block. */
struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block);

/* Host bytes of an arena without its extents. */
uint64_t xseg_arena_host_bytes(const struct xseg_arena *arena);

#endif
