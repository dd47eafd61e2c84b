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
 * Locking: PENDING guards queues and events; ARENA the list of uses of a live block.  `count` is
 * read without a lock, so that an allocation with nothing pending costs one load.
 */
#ifndef XSEG_CORE_PENDING_H
#define XSEG_CORE_PENDING_H

#include "src/core/arena.h"
#include "vmm/fence.h"

struct xseg_pending_use {
    struct xseg_slab_record record;
    struct xseg_pending_use *next; /* of the same block */
    struct xseg_known_stream *stream;
    struct xseg_block *block;
    xseg_event event;      /* once freed */
    struct xseg_list link; /* in the stream's queue, once freed */
};

struct xseg_pending {
    struct xseg_lock lock; /* PENDING */
    struct xseg_fences fences;
    struct xseg_list streams;   /* those with uses in their queue */
    atomic_uint_fast64_t count; /* uses in queues */
    /* Busy blocks whose uses have ended and that are to be filled, chained through `right`. */
    struct xseg_block *ended;
};

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context);

/* The idle events must be gone (xseg_fences_fini()), or the device lost. */
void xseg_pending_fini(struct xseg_pending *pending);

/* Note that a stream uses a live block.  The arena's lock is held; a use must be in stock. */
void xseg_pending_use(struct xseg_arena *arena, struct xseg_block *block,
                      struct xseg_known_stream *stream);

/*
 * Free a busy block that has uses: it becomes pending.  No lock is held.
 *
 * Returns: XSEG_OK; or the driver's error, and the block is live again, uses and all.  On a lost
 *          device the block is cached at once, since nothing runs there any more.
 */
xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block);

/* Take back the blocks whose events are complete.  Queries that fail leave them for later. */
void xseg_pending_poll(struct xseg_pending *pending);

/*
 * Wait for what is pending now, and take it back.  GROWTH may be held, no other lock.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER
 */
xseg_status xseg_pending_wait(struct xseg_pending *pending);

#endif
