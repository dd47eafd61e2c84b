/* SPDX-License-Identifier: MIT */
/*
 * The debug pattern (debug_fill): freed memory is filled with a pattern, which is checked when the memory is allocated again.
 * Zeroing of requests is here as well.
 *
 * Memory of the default pools that becomes cached is overwritten by work of its own stream.  The device has the set of the address
 * ranges that hold the pattern for all later work of their streams.  An allocation removes its block from the set; if all of the
 * block was in it, the memory is read back: a byte that differs was written after the free, or past the end of a neighbor.
 *
 *     free, growth  -->  pattern queued  -->  in the set, cached  -->  allocation  -->  read back, compared
 *
 * While the key is set, allocations take the slow path.  When the key changes, the set is emptied.  Unmapping leaves the set alone:
 * growth fills or removes what it maps.
 *
 * The pattern is a NaN in every format of floating point, so that code which reads freed memory shows it.  Private pools are not
 * filled: graphs that were captured there write to their free memory.  Neither are streams that are being captured, or that the
 * calling thread cannot name.  If a memset fails, the memory is not checked later.  At the first difference the pattern is written
 * and read once more, to find out whether contents can be read back at all.
 *
 * Locking: callers may hold the device memory lock, no other lock; blocks are busy, or live and not yet the user's.
 */
#ifndef XSEG_CORE_DEBUG_FILL_H
#define XSEG_CORE_DEBUG_FILL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/intervals.h"
#include "src/base/mutex.h"
#include "xseg/status.h"

#define XSEG_DEBUG_FILL_PATTERN UINT32_C(0xFFFDFFFD)

struct xseg_allocator;
struct xseg_arena;
struct xseg_block;
struct xseg_alloc_result;

/* Whether a device's memory can be read back. */
enum xseg_debug_fill_reads {
    XSEG_DEBUG_FILL_UNTRIED,
    XSEG_DEBUG_FILL_READS,
    XSEG_DEBUG_FILL_READS_NOTHING
};

/* The state of poisoning of a device. */
struct xseg_debug_fill {
    struct xseg_allocator *allocator; /* source of the configuration and the log */
    atomic_uint reads;                /* enum xseg_debug_fill_reads */
    struct xseg_mutex lock;           /* LEAF */
    struct xseg_intervals filled;     /* disjoint, not adjacent; guarded by the lock */
    atomic_bool has_filled;           /* the set may have ranges; written under the lock */
};

void xseg_debug_fill_init(struct xseg_debug_fill *fill, struct xseg_allocator *allocator);
void xseg_debug_fill_fini(struct xseg_debug_fill *fill);

/* Empty the set of filled ranges, because the key has changed.  No lock is held. */
void xseg_debug_fill_discard(struct xseg_debug_fill *fill);

/* Whether memory of an arena is to be filled when it becomes cached. */
bool xseg_debug_fill_is_on(const struct xseg_arena *arena);

/* Fill a busy block that is about to become cached, if the key is set, and update the set. */
void xseg_debug_fill_claimed(struct xseg_block *block);

/* Fill busy blocks whose uses have ended, and take them back.  The blocks are chained through
 * `ended`. */
void xseg_debug_fill_freed(struct xseg_block *block);

/*
 * Check the pattern of a block that is allocated, if it was filled; zero the requested bytes if requested.
 *
 * is_paused: set to whether the pool has been paused since the block was taken; then there is no
 *            memory, and nothing is checked or zeroed
 * Returns:   XSEG_OK; the driver's error if the block cannot be zeroed
 */
xseg_status xseg_debug_fill_allocated(const struct xseg_alloc_result *result, bool zeroed,
                                      bool *is_paused);

#endif
