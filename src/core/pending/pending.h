/* SPDX-License-Identifier: MIT */
/*
 * Pending blocks: freed, but streams other than their own may still use them.
 *
 *     free(block)  -->  an event on each stream that uses it  -->  queue of that stream
 *                                                                        |
 *     alloc()      -->  polls the front of each queue     <-------------+
 *                       all events of a block complete: it is cached again
 *
 * A use is a record on the block's list while the block is live, and moves to the queue of its
 * stream when the block is freed.  Queues are polled from the front, since a stream's events
 * complete in order.  Streams are polled in a fixed order, so that a program merges blocks in the same
 * way in each run.
 *
 * An event that was recorded in a capture of which the library was not told never completes; it is
 * recorded again after the capture.
 *
 * While a capture is under way on the device, no event is recorded or queried: a block with uses that
 * is freed then is *deferred* (deferred.h).
 *
 * Locking: PENDING guards queues, events and captures; ARENA the list of uses of a live block.
 * Uses in queues and deferred blocks are counted in `slow_path` of the context (vmm/driver.h).  That is
 * read without a lock, so an allocation with no pending block on a device that is not lost pays one load.
 */
#ifndef XSEG_CORE_PENDING_H
#define XSEG_CORE_PENDING_H

#include "src/base/check.h"
#include "src/core/arena/arena.h"
#include "src/core/stream/topology.h"
#include "vmm/driver.h"

/* Whether the entry of a use still stands for the same stream, there or not. */
static inline bool xseg_pending_is_current(const struct xseg_stream_use *use)
{
    return atomic_load_explicit(&use->stream->number, memory_order_acquire) == use->number;
}

struct xseg_pending {
    struct xseg_biased_lock lock; /* PENDING */
    struct xseg_fences fences;
    struct xseg_list streams;  /* streams with uses in their queues */
    struct xseg_list deferred; /* struct xseg_deferred, in the order of their frees */
    struct xseg_topology topology;
    /* Busy blocks to be filled and taken back; chained through `ended`. */
    struct xseg_block *ended;
    /* Captures under way on the device, and marks; may be read without the lock. */
    atomic_uint captures;
    unsigned marks; /* of these, xseg_capture_mark()'s */
};

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context);

/* The idle events must be gone (xseg_fences_fini()), or the device lost. */
void xseg_pending_fini(struct xseg_pending *pending);

/* Give an event back for reuse.  Takes the lock. */
void xseg_pending_return_event(struct xseg_pending *pending, xseg_event event);

/* The number of uses in queues and deferred blocks. */
static inline uint64_t xseg_pending_count(const struct xseg_pending *pending)
{
    return atomic_load_explicit(&pending->fences.context->slow_path, memory_order_relaxed) &
           ~XSEG_CONTEXT_LOSS;
}

/* Change the number of uses in queues and deferred blocks. */
static inline void xseg_pending_count_one(struct xseg_pending *pending)
{
    atomic_fetch_add_explicit(&pending->fences.context->slow_path, 1, memory_order_relaxed);
}

static inline void xseg_pending_uncount_one(struct xseg_pending *pending)
{
    XSEG_ASSERT(xseg_pending_count(pending) != 0);
    atomic_fetch_sub_explicit(&pending->fences.context->slow_path, 1, memory_order_relaxed);
}

static inline void xseg_pending_lock(struct xseg_pending *pending)
    XSEG_ACQUIRES(pending->lock) XSEG_UNCHECKED
{
    xseg_biased_lock_lock(&pending->lock);
}

static inline void xseg_pending_unlock(struct xseg_pending *pending)
    XSEG_RELEASES(pending->lock) XSEG_UNCHECKED
{
    xseg_biased_lock_unlock(&pending->lock);
}

/* Whether a capture is under way on the device.  While the device memory lock is held, none begins. */
static inline bool xseg_pending_captures(const struct xseg_pending *pending)
{
    return __builtin_expect(atomic_load_explicit(&pending->captures, memory_order_relaxed) != 0, 0);
}

/* Fail with XSEG_ERR_BUSY because of an active capture. */
xseg_status xseg_pending_fail_capture(const struct xseg_pending *pending);

/*
 * Note that a stream uses a live block.  The arena's lock is held, and a record for the use is in
 * stock.
 *
 * captured: the stream is being captured
 */
void xseg_pending_record_stream(struct xseg_arena *arena, struct xseg_block *block,
                                struct xseg_known_stream *stream, bool captured);

/*
 * Free a busy block that has uses: the block becomes pending.  The device memory lock may be held, no other lock.
 *
 * by_topology: in a capture, the block may come back as soon as the graph allows
 * Returns: XSEG_OK; or the driver's error, and the block is live again, uses and all.  On a lost
 *          device the block is cached at once, since nothing runs there any more.
 */
xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/*
 * Take back the blocks whose events are complete.  A block whose query fails stays pending; during
 * a capture nothing is queried.
 */
void xseg_pending_poll(struct xseg_pending *pending);

/*
 * Wait for the blocks that are pending now, and take them back.  The device memory lock may be held, no other lock;
 * no capture is under way.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pending_wait(struct xseg_pending *pending);

/* Take back the blocks that wait for a stream which is known to have passed, without a query. */
void xseg_pending_stream_synchronized(struct xseg_pending *pending,
                                      struct xseg_known_stream *stream);

/* --- For deferred.c; PENDING is held. --- */

/*
 * Record an event for each use of a block.  With XSEG_OK the uses are queued, and the block waits
 * for them.
 *
 * Returns: XSEG_OK; or the driver's error, and nothing is recorded
 */
xseg_status xseg_pending_record(struct xseg_pending *pending, struct xseg_block *block);

/* Forget the uses of a freed block, and cache it. */
void xseg_pending_discard(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_REQUIRES(arena->lock);

#endif
