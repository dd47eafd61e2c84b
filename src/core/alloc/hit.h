/* SPDX-License-Identifier: MIT */
/*
 * Hits: the shortest path of an allocation from cached memory, and of a free.
 *
 * An allocation goes from the stream handle to a cached block in three lookups: the stream lookup
 * cache (streams.h) leads to the stream's entry, the entry to the arena, and the arena's free index
 * to the best fit (best_fit.h).
 *
 *     xseg_hit_alloc
 *     |- allocate_small_block,        the calling thread owns the biased lock of the arena
 *     |  allocate_large_block
 *     |- poll_and_allocate            blocks are pending: polls their events, then searches
 *     |- allocate_under_shared_lock   several threads use the arena, or the configuration has
 *     |                               more rules
 *     `- allocate_without_cache_entry the stream is not in the lookup cache: tries hit_stream.h,
 *                                     then the slow path (slow_path.h), which may call the driver
 *
 * A hit that finds no block continues on the slow path.
 *
 * A free goes from the address to the block's record by the page map (page_map.h). The record names
 * its extent, and the extent names the arena.
 *
 *     xseg_hit_free
 *     |- free_small_block             the start of the address leads to an allocated block
 *     |- free_large_block             the slot of the address leads to an allocated block
 *     |  `- coalesce_freed_block      either kind, if the block has neighbors in its segment
 *     `- free_on_slow_path            all other frees (allocator_free.h); reports invalid frees
 *
 * Four techniques keep these paths short.
 *
 * - Cached decisions. A stream is in the lookup cache only while its requests need no check of
 *   configuration, device, routes or captures. A change of one of these conditions first removes
 *   the stream from the cache. Together with the tail calls this saved 11 of 28 ns for a 4 KiB
 *   block.
 * - Biased lock. The lock of an arena belongs to the first thread that locked it. The owner locks
 *   and unlocks with plain stores (1 ns a pair; an atomic exchange takes 7 ns). If another thread
 *   locks the arena, the lock becomes a shared one, and trylock_owner fails for every thread.
 * - Quotas. A hit adds to three sums of its arena and compares them with precomputed quotas
 *   (counts.h). While no quota is exceeded, no peak of the device can change, so the hit reads
 *   nothing that another arena writes.
 * - Tail calls. Each XSEG_HIT_STEP function is called last by its caller, so the compiler emits a
 *   jump, and a step saves only the registers that it uses itself. This saves a quarter of the
 *   instructions of small blocks. Steps are not inlined, and each begins a cache line: otherwise
 *   their placement by the linker changes the time of traces by up to 5 %.
 *
 * Locking: the only lock is that of the arena. A step that is called with the lock held releases
 * it, or ends in a step that does. No step of a hit makes a driver call, except to poll the events
 * of pending blocks.
 */
#ifndef XSEG_CORE_HIT_H
#define XSEG_CORE_HIT_H

#include "src/core/device/allocator.h"

/* xseg_alloc() for an allocator. `out` is not NULL. */
xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out);

/* xseg_free() for an allocator. */
xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr);

#endif
