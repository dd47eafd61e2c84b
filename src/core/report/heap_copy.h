/* SPDX-License-Identifier: MIT */
/*
 * Heap copy: all blocks of a device at one moment, with the positions of its event rings at that
 * moment.
 *
 * A memory snapshot shows a state and the events that led to it.  A viewer undoes the events from
 * the last to the first, so both must agree to the last block.  The copy therefore locks all arenas
 * of the device together: a block that one thread frees and another thread allocates elsewhere
 * would otherwise appear twice or never.  Under the locks it copies the blocks by one walk and cuts
 * each ring of events (device_history.h); replaying the events before the cut yields exactly the
 * copied blocks.  Explain counts its pages in the same walk (explain.h).
 *
 * Everything else, such as sorting, copying events and writing the file, runs later without the
 * arena locks.  Records are stored in two bump allocators, because no host memory may be allocated
 * under an arena lock; their physical memory is committed as the copy grows.
 *
 * A range is contiguous mapped memory of one segment, the unit that PyTorch's snapshots call a
 * segment.  An unmapped range ends it, and so does the border between evicted and mapped pages of a
 * paused pool: an evicted page has an address and blocks, but no physical memory.
 *
 * Invariants: the blocks of a range are adjacent in the array and cover the range without gaps;
 * `ranges` is sorted by address.
 *
 * Locking: the caller holds the device memory lock, so no page is mapped, unmapped or moved.  All
 * arena locks are acquired inside.  Hits and frees on the device wait during the walk.  A copy
 * belongs to one thread.
 */
#ifndef XSEG_CORE_HEAP_COPY_H
#define XSEG_CORE_HEAP_COPY_H

#include "src/base/intern.h"
#include "src/core/device/device.h"
#include "src/core/report/device_history.h"
#include "src/core/report/explain.h"

struct xseg_heap_block {
    uint64_t base, bytes;
    uint64_t requested;            /* requested size, see block.h */
    uint32_t stack, frames, label; /* of the allocation; 0: unknown */
    uint8_t state;                 /* XSEG_BLOCK_ALLOCATED, _PENDING_FREE or _CACHED */
};

struct xseg_heap_range {
    uint64_t base, bytes;
    const struct xseg_heap_block *blocks; /* [count], in the order of addresses */
    uint32_t count;
    uint32_t pool; /* ID of the pool, as in events; 0: the default pool */
    uint64_t stream;
    bool is_small, is_expandable, is_evicted;
};

struct xseg_heap_copy {
    struct xseg_heap_range **ranges; /* [count], in the order of addresses */
    size_t count;
    uint64_t allocated_blocks;
    struct xseg_history_cut cut;
    struct xseg_bump block_records; /* struct xseg_heap_block */
    struct xseg_bump range_records; /* struct xseg_heap_range */
    /* During the walk: the segment, and the range to which its next block may belong, or NULL. */
    const struct xseg_extent *extent;
    struct xseg_heap_range *range;
};

/*
 * Copy the blocks of a device.
 *
 * copy:      initialized also on failure; the caller finalizes it
 * explainer: begun (xseg_explain_begin()); receives each block of the walk
 * Returns:   XSEG_OK, XSEG_ERR_HOST_MEMORY
 * Cost:      O(blocks), no driver call
 */
xseg_status xseg_heap_copy_init(struct xseg_heap_copy *copy, struct xseg_device *device,
                                struct xseg_explainer *explainer);
void xseg_heap_copy_fini(struct xseg_heap_copy *copy);

/* Host memory of the copy, in bytes. */
uint64_t xseg_heap_copy_host_bytes(const struct xseg_heap_copy *copy);

/* --- Descriptions of blocks. --- */

/*
 * Block descriptions for users: struct xseg_block_info of one address or of every block of an
 * arena.
 *
 * Locking: a description is read under the lock of the block's arena.  A list of blocks is read in
 * batches; the arena is unlocked between two batches, so blocks can be allocated, freed and
 * coalesced during the list.
 */

/* Describe the block at an address; struct_size is not written.  Implements xseg_block_query(). */
xseg_status xseg_block_info_at(struct xseg_allocator *allocator, const void *pointer,
                               struct xseg_block_info *out);

/*
 * Describe the blocks of an arena from an address on, in the order of their addresses.
 * The caller holds no lock.
 *
 * pool:    the pool of the segments; NULL: every pool
 * cursor:  the address; receives the end of the last block
 * now:     current time, see recorder.h
 * Returns: the number of blocks; 0 after the last one
 */
size_t xseg_block_info_list(struct xseg_arena *arena, const struct xseg_pool *pool,
                            uint64_t *cursor, uint64_t now, struct xseg_block_info *out,
                            size_t max);

#endif
