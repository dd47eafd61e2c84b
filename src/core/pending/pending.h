/* SPDX-License-Identifier: MIT */
/*
 * Pending blocks: blocks that were freed while streams other than their own may still use them.
 *
 *     free(block)  -->  record an event on each stream that uses it  -->  queue of that stream
 *                                                                              |
 *     alloc()      -->  poll the first event of each queue           <---------+
 *                       all events of a block have completed: the block is cached
 *
 * A *use* records that a stream other than the block's own uses the block (record_stream() in
 * PyTorch).  While the block is allocated, the use is in the block's list; when the block is freed,
 * it moves to the queue of its stream.  A queue is polled from the front, because the events of a
 * stream complete in order.  Streams are polled in a fixed order, so that a program coalesces
 * blocks in the same order in each run.
 *
 * An event that was recorded in a capture without a notification never completes.  Its query fails,
 * and the event is recorded again after the capture.
 *
 * Deferred blocks.  During a capture no event can be recorded or queried, so a block with uses that
 * is freed during a capture is *deferred*.  After the last capture of the device has ended, uses
 * that were recorded only on a capturing stream end, because that work did not run.  Events are
 * recorded for the other uses, and the block becomes pending.  With
 * graph_capture_record_stream_reuse a deferred block may be reused within the capture: if all
 * streams that use the block belong to one capture, the last graph nodes of each stream are the
 * block's *marks*.  Once all marks precede the work of the block's own stream in the graph
 * (streams.h), that stream may reuse the block.
 *
 * Invariants:
 *   - A pending block is cached only after all of its events have completed.
 *   - During a capture no event is recorded or queried.
 *   - While nothing is pending, an allocation makes one load for pending blocks: uses in queues and
 *     deferred blocks are counted in `slow_path` of the context (vmm/driver.h), which is read
 *     without a lock and is also nonzero on a lost device.
 *
 * Locking: PENDING guards queues, events, captures and deferred blocks; ARENA guards the list of
 * uses of an allocated block and is locked inside PENDING.
 */
#ifndef XSEG_CORE_PENDING_H
#define XSEG_CORE_PENDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/intervals.h"
#include "src/base/mutex.h"
#include "src/core/block/arena.h"
#include "src/core/device/device.h"
#include "src/core/stream/streams.h"
#include "vmm/driver.h"
#include "xseg/status.h"

struct xseg_pending {
    struct xseg_biased_lock lock; /* PENDING */
    struct xseg_fences fences;
    struct xseg_list streams;  /* streams with uses in their queues, by rank */
    struct xseg_list deferred; /* struct xseg_deferred, in the order of their frees */
    struct xseg_topology topology;
    /* Claimed blocks without uses, which are filled with the debug pattern after the unlock; linked
     * through `chain`. */
    struct xseg_block *completed_blocks;
    /* Active captures on the device, including marks; may be read without the lock. */
    atomic_uint captures;
    unsigned marks; /* of these, captures that xseg_capture_mark() announced */
};

/* A block that was freed during a capture. */
struct xseg_deferred {
    struct xseg_list link; /* in pending->deferred */
    struct xseg_block *block;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[];
};

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context);

/* Destroy the marks and the lock.  The caller has destroyed the idle events (xseg_fences_fini()),
 * unless the device is lost. */
void xseg_pending_fini(struct xseg_pending *pending);

/* Return an event for reuse.  Locks PENDING. */
void xseg_pending_return_event(struct xseg_pending *pending, xseg_event event);

/* Whether the entry of a use still belongs to the same stream, retired or not. */
static inline bool xseg_pending_is_current(const struct xseg_stream_use *use)
{
    return atomic_load_explicit(&use->stream->id, memory_order_acquire) == use->stream_id;
}

/* The number of uses in queues and deferred blocks. */
static inline uint64_t xseg_pending_count(const struct xseg_pending *pending)
{
    return atomic_load_explicit(&pending->fences.context->slow_path, memory_order_relaxed) &
           ~XSEG_CONTEXT_LOSS;
}

/* Whether a capture is active on the device.  No capture begins while the device memory lock is
 * held. */
static inline bool xseg_pending_captures(const struct xseg_pending *pending)
{
    return __builtin_expect(atomic_load_explicit(&pending->captures, memory_order_relaxed) != 0, 0);
}

/* Fail with XSEG_ERR_BUSY because a capture is active. */
xseg_status xseg_pending_fail_capture(const struct xseg_pending *pending);

/*
 * Record that a stream uses an allocated block.  The caller holds the arena lock and has reserved a
 * record for the use.
 *
 * is_captured: the stream is being captured
 */
void xseg_pending_record_stream(struct xseg_arena *arena, struct xseg_block *block,
                                struct xseg_known_stream *stream, bool is_captured);

/*
 * Free a claimed block that has uses: the block becomes pending.  The caller may hold the device
 * memory lock, and no other lock.
 *
 * by_topology: in a capture, the block may be reused as soon as the graph orders its uses
 * Returns: XSEG_OK; or the driver's error, and the block is allocated again with its uses.  On a
 *          lost device the block is cached immediately, because no work runs there any more.
 */
xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/* Cache the blocks whose events have completed.  A block whose query fails remains pending; during
 * a capture nothing is queried. */
void xseg_pending_poll(struct xseg_pending *pending);

/*
 * Wait for the blocks that are pending at the time of the call, and cache them.  The caller may
 * hold the device memory lock, and no other lock; no capture is active.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pending_wait(struct xseg_pending *pending);

/* Complete the uses of a stream that is known to have completed, without a query. */
void xseg_pending_stream_synchronized(struct xseg_pending *pending,
                                      struct xseg_known_stream *stream);

/* --- Deferred blocks. --- */

/*
 * Cache the deferred blocks of a stream that the graph allows to reuse; the stream allocates during
 * a capture.  The caller holds no lock.
 *
 * Cost: one query of the capture state of the stream, and one or two queries per node that was
 *       added since the last call
 */
void xseg_deferred_reuse(struct xseg_pending *pending, struct xseg_known_stream *stream);

/* Discard all marks, because the last capture has ended.  The caller holds PENDING. */
void xseg_deferred_discard_marks(struct xseg_pending *pending);

/*
 * Flush deferred blocks, which become pending or cached; no capture is active.  A block that fails
 * remains deferred.  The caller holds PENDING.
 *
 * pool: only blocks of this pool; NULL: all
 * Returns: XSEG_OK; or the first error of a block that remains deferred
 */
xseg_status xseg_deferred_flush(struct xseg_pending *pending, const struct xseg_pool *pool);

/* --- Retirement of streams. --- */

/*
 * Stream retirement: the end of a stream that the application is about to destroy, and the reuse of
 * its entry.
 *
 *     KNOWN --> RETIRING     an event was recorded after its work; lookups skip the handle
 *     RETIRING --> RETIRED   the event has completed: no work of the stream runs
 *     RETIRED --> KNOWN      a new stream reuses the entry and the memory of the old stream
 *
 * Until a stream is retired, a trim queries its last event instead of the stream.  The queue of a
 * retiring stream shares that event, so the event is returned only after the queue is empty.
 *
 * Locking: the device memory lock, PENDING and TABLE are locked inside.  The caller holds no lock,
 * unless a function states otherwise.
 */

/*
 * Retire a stream that is about to be destroyed; an unknown stream is ignored.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the stream is being captured), XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER
 * Cost:    one query of the capture state of the stream, one event record
 */
xseg_status xseg_stream_retirement_begin(struct xseg_device *device, xseg_stream handle);

/*
 * Get the entry of a stream, as xseg_streams_find_or_add() does; a new stream reuses the entry of a
 * retired stream, if there is one.
 *
 * Cost: for a new stream, an event query for each of the next retiring streams
 */
xseg_status xseg_stream_retirement_get(struct xseg_device *device, xseg_stream handle,
                                       struct xseg_known_stream **out);

/* Set *completed to whether the work of a retiring or retired stream has completed; with `wait`,
 * wait for it.  The caller may hold the device memory lock. */
xseg_status xseg_stream_retirement_check(struct xseg_device *device,
                                         struct xseg_known_stream *stream, bool wait,
                                         bool *completed);

/* Finish the retirement of all streams, because the device closes.  The caller holds the device
 * memory lock. */
void xseg_stream_retirement_finish_all(struct xseg_device *device);

/* --- Debug pattern. --- */

/*
 * The debug pattern (key debug_fill): freed memory is filled with a pattern, which is checked when
 * the memory is allocated again.  debug_fill.c also zeroes the memory of requests with `zeroed`.
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
 * The pattern is a NaN in floating-point formats of 16 bits and more, so that results of code that
 * reads freed memory become NaN.  Private pools are not filled, because graphs that were captured
 * there write to free memory of the pool.  Streams that are being captured, or that the calling
 * thread cannot address, are not filled either.  If a memset fails, the memory is not checked
 * later.  At the first difference one word is written and read back, to probe whether the driver
 * can read contents back.
 *
 * Locking: the caller may hold the device memory lock and no other lock.  Blocks are claimed, or
 * allocated and not yet returned to the application.
 */

#define XSEG_DEBUG_FILL_PATTERN UINT32_C(0xFFFDFFFD)

/* Whether memory of a device can be read back. */
enum xseg_debug_fill_read_back {
    XSEG_DEBUG_FILL_UNPROBED,
    XSEG_DEBUG_FILL_READABLE,
    XSEG_DEBUG_FILL_UNREADABLE
};

/* The debug pattern of a device. */
struct xseg_debug_fill {
    struct xseg_allocator *allocator; /* source of the configuration and the log */
    atomic_uint read_back;            /* enum xseg_debug_fill_read_back */
    struct xseg_mutex lock;           /* LEAF */
    struct xseg_intervals filled;     /* disjoint, not adjacent; guarded by the lock */
    atomic_bool has_filled;           /* the set may have ranges; written under the lock */
};

void xseg_debug_fill_init(struct xseg_debug_fill *fill, struct xseg_allocator *allocator);
void xseg_debug_fill_fini(struct xseg_debug_fill *fill);

/* Empty the set of filled ranges, because the key has changed.  The caller holds no lock. */
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
