/* SPDX-License-Identifier: MIT */
/*
 * The debug pattern (key debug_fill): freed memory is filled with a pattern, which is checked when
 * the memory is allocated again.  The file also zeroes the memory of requests that ask for it.
 *
 * When memory of the default pool becomes cached, a memset on the stream of its arena writes the
 * pattern.  The device has a set of the address ranges that contain the pattern for all later work
 * of their streams.  An allocation removes its block from the set.  If the whole block was in the
 * set, the memory is read back: a byte that differs was written after the free, or past the end of
 * a neighbor.
 *
 *     free, growth --> memset queued --> in the set, cached --> allocation --> read back, compared
 *
 * While the key is set, allocations take the slow path.  When the key changes, the set is emptied.
 * Unmapping does not change the set, because growth fills the memory that it maps or removes it
 * from the set.
 *
 * The pattern is a NaN in every floating-point format, so that results of code that reads freed
 * memory become NaN.  Private pools are not filled, because graphs that were captured there write
 * to free memory of the pool.  Streams that are being captured, or that the calling thread cannot
 * address, are not filled either.  If a memset fails, the memory is not checked later.  At the
 * first difference one word is written and read back, to probe whether contents can be read back at
 * all.
 *
 * Locking: the caller may hold the device memory lock and no other lock.  Blocks are claimed, or
 * allocated and not yet returned to the application.
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

/* Whether memory of a device can be read back. */
enum xseg_debug_fill_read_back {
    XSEG_DEBUG_FILL_UNPROBED,
    XSEG_DEBUG_FILL_READABLE,
    XSEG_DEBUG_FILL_UNREADABLE
};

/* The debug pattern of a device. */
struct xseg_debug_fill {
    struct xseg_allocator *allocator; /* source of the configuration and the log */
    atomic_uint reads;                /* enum xseg_debug_fill_read_back */
    struct xseg_mutex lock;           /* LEAF */
    struct xseg_intervals filled;     /* disjoint, not adjacent; guarded by the lock */
    atomic_bool has_filled;           /* the set may have ranges; written under the lock */
};

void xseg_debug_fill_init(struct xseg_debug_fill *fill, struct xseg_allocator *allocator);
void xseg_debug_fill_fini(struct xseg_debug_fill *fill);

/* Empty the set of filled ranges, because the key has changed.  No lock is held. */
void xseg_debug_fill_discard(struct xseg_debug_fill *fill);

/* Whether memory of an arena is filled when it becomes cached. */
bool xseg_debug_fill_is_on(const struct xseg_arena *arena);

/* Fill a claimed block that is about to become cached, if the key is set, and update the set. */
void xseg_debug_fill_claimed(struct xseg_block *block);

/* Fill claimed blocks whose last use completed, linked through `chain`, and cache them. */
void xseg_debug_fill_freed(struct xseg_block *block);

/*
 * Check the pattern of a block that is allocated, if it was filled; zero the requested bytes if
 * requested.
 *
 * is_paused: set to whether the pool was paused after the block was allocated; then the block has
 *            no memory, and nothing is checked or zeroed
 * Returns:   XSEG_OK; the driver's error if the block cannot be zeroed
 */
xseg_status xseg_debug_fill_allocated(const struct xseg_alloc_result *result, bool zeroed,
                                      bool *is_paused);

#endif
