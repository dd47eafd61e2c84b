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
 * and it is recorded again after the capture.
 *
 * Deferred blocks.  During a capture no event can be recorded or queried, so a block with uses that
 * is freed then is *deferred*.  After the last capture of the device has ended, uses that were
 * recorded only on a capturing stream end, because that work did not run.  Events are recorded for
 * the other uses, and the block is pending like any other.  With graph_capture_record_stream_reuse
 * a deferred block may be reused within the capture: if all streams that use the block take part in
 * one capture, the last graph nodes of each stream are the block's *marks*.  Once all marks precede
 * the work of the block's own stream in the graph (topology.h), that stream may reuse the block.
 *
 * Invariants:
 *   - A pending block is cached only after all of its events have completed.
 *   - During a capture no event is recorded or queried.
 *   - An allocation costs one load here while nothing is pending: uses in queues and deferred
 *     blocks are counted in `slow_path` of the context (vmm/driver.h), which is read without a lock
 *     and is also nonzero on a lost device.
 *
 * Locking: PENDING guards queues, events, captures and deferred blocks; ARENA guards the list of
 * uses of an allocated block and is locked inside PENDING.
 */
#ifndef XSEG_CORE_PENDING_H
#define XSEG_CORE_PENDING_H

#include "src/base/check.h"
#include "src/core/block/arena.h"
#include "src/core/stream/topology.h"
#include "vmm/driver.h"

struct xseg_pending {
    struct xseg_biased_lock lock; /* PENDING */
    struct xseg_fences fences;
    struct xseg_list streams;  /* streams with uses in their queues, by rank */
    struct xseg_list deferred; /* struct xseg_deferred, in the order of their frees */
    struct xseg_topology topology;
    /* Claimed blocks without uses that the debug pattern is written to after unlock; linked through
     * `chain`. */
    struct xseg_block *ended;
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

/* The idle events have been destroyed (xseg_fences_fini()), or the device is lost. */
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
 * captured: the stream is being captured
 */
void xseg_pending_record_stream(struct xseg_arena *arena, struct xseg_block *block,
                                struct xseg_known_stream *stream, bool captured);

/*
 * Free a claimed block that has uses: the block becomes pending.  The caller may hold the device
 * memory lock, and no other lock.
 *
 * by_topology: in a capture, the block may be reused as soon as the graph allows it
 * Returns: XSEG_OK; or the driver's error, and the block is allocated again with its uses.  On a
 *          lost device the block is cached immediately, because no work runs there any more.
 */
xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/* Cache the blocks whose events have completed.  A block whose query fails stays pending; during a
 * capture nothing is queried. */
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
 * Make deferred blocks pending or cached; no capture is active.  A block that fails stays deferred.
 * The caller holds PENDING.
 *
 * pool: only blocks of this pool; NULL: all
 * Returns: XSEG_OK; or the first error of a block that stays deferred
 */
xseg_status xseg_deferred_settle(struct xseg_pending *pending, const struct xseg_pool *pool);

#endif
