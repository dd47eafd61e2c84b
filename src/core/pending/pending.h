/* SPDX-License-Identifier: MIT */
/*
 * Pending blocks: freed, but streams other than their own may still use them.
 *
 *     free(block)  -->  an event on each stream that uses it  -->  queue of that stream
 *                                                                        |
 *     alloc()      -->  looks at the front of each queue   <-------------+
 *                       all events of a block complete: it is cached again
 *
 * A use is a record on the block's list while the block is live, and moves to the queue of its
 * stream when the block is freed.  Queues are looked at from the front, since a stream's events
 * complete in order.  Streams are looked at in a fixed order, so that the same programme merges
 * blocks in the same way each time.
 *
 * An event that was recorded while its stream was in a capture that nobody told of never completes;
 * it is recorded anew after the capture.
 *
 * While a capture is under way on the device, nothing is recorded or asked: what is freed with uses
 * is *deferred* (deferred.h).
 *
 * Locking: PENDING guards queues, events and captures; ARENA the list of uses of a live block.
 * Uses in queues and deferred blocks are counted among the slow_path of the context (vmm/driver.h), which are
 * read without a lock, so that an allocation with nothing pending on a device that is there costs one load.
 */
#ifndef XSEG_CORE_PENDING_H
#define XSEG_CORE_PENDING_H

#include "src/base/check.h"
#include "src/core/cache/arena.h"
#include "src/core/stream/topology.h"
#include "vmm/fence.h"

/* Whether the stream of a use is still the one that it was, there or not. */
static inline bool xseg_pending_is_current(const struct xseg_use *use)
{
    return atomic_load_explicit(&use->stream->number, memory_order_acquire) == use->number;
}

struct xseg_pending {
    struct xseg_biased_lock lock; /* PENDING */
    struct xseg_fences fences;
    struct xseg_list streams;  /* those with uses in their queue */
    struct xseg_list deferred; /* struct xseg_deferred, in the order of their frees */
    struct xseg_topology topology;
    struct xseg_block *ended; /* busy, to be poisoned and taken back; chained through `ended` */
    atomic_uint captures;     /* under way on the device; may be read without the lock */
};

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context);

/* The idle events must be gone (xseg_fences_fini()), or the device lost. */
void xseg_pending_fini(struct xseg_pending *pending);

/* An event is not needed any more, and may be recorded again.  Takes the lock. */
void xseg_pending_put_event(struct xseg_pending *pending, xseg_event event);

/* How many that are. */
static inline uint64_t xseg_pending_count(const struct xseg_pending *pending)
{
    return atomic_load_explicit(&pending->fences.context->slow_path, memory_order_relaxed) &
           ~XSEG_CONTEXT_LOSS;
}

/* One more or less of what is counted. */
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
    xseg_biased_lock_take(&pending->lock);
}

static inline void xseg_pending_unlock(struct xseg_pending *pending)
    XSEG_RELEASES(pending->lock) XSEG_UNCHECKED
{
    xseg_biased_lock_give(&pending->lock);
}

/* Whether a capture is under way on the device.  While GROWTH is held, none begins. */
static inline bool xseg_pending_captures(const struct xseg_pending *pending)
{
    return __builtin_expect(atomic_load_explicit(&pending->captures, memory_order_relaxed) != 0, 0);
}

/*
 * Note that a stream uses a live block.  The arena's lock is held; a use must be in stock.
 *
 * captured: the stream is being captured
 */
void xseg_pending_use(struct xseg_arena *arena, struct xseg_block *block,
                      struct xseg_known_stream *stream, bool captured);

/*
 * Free a busy block that has uses: it becomes pending.  No lock is held.
 *
 * by_topology: in a capture, it may come back as soon as the graph allows
 * Returns: XSEG_OK; or the driver's error, and the block is live again, uses and all.  On a lost
 *          device the block is cached at once, since nothing runs there any more.
 */
xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/*
 * Take back the blocks whose events are complete.  Queries that fail leave them for later; nothing
 * is asked while a capture is under way.
 */
void xseg_pending_poll(struct xseg_pending *pending);

/*
 * Wait for what is pending now, and take it back.  GROWTH may be held, no other lock; no capture is
 * under way.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER
 */
xseg_status xseg_pending_wait(struct xseg_pending *pending);

/* A stream is known to have passed: what waits for it is taken back without a look. */
void xseg_pending_passed(struct xseg_pending *pending, struct xseg_known_stream *stream);

/* --- For deferred.c; PENDING is held. --- */

/*
 * Record an event for each use of a block; with XSEG_OK, queue them: it waits for them.
 *
 * Returns: XSEG_OK; or the driver's error, and nothing is recorded
 */
xseg_status xseg_pending_record(struct xseg_pending *pending, struct xseg_block *block);

/* Forget the uses of a freed block, and cache it. */
void xseg_pending_forget(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_REQUIRES(arena->lock);

#endif
