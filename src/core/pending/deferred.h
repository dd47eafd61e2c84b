/* SPDX-License-Identifier: MIT */
/*
 * Deferred blocks: freed during a capture while other streams use them.
 *
 * No event can be recorded or asked then.  When no capture is under way any more, uses that were
 * noted only while their stream was captured are over, since that work did not run; for the others
 * events are recorded, and the block is pending like any other.
 *
 * With graph_capture_record_stream_reuse a block may come back within the capture: if all streams
 * that use it take part in the same capture, the last nodes of each are its *marks*, and once all
 * marks are behind the stream that the block belongs to (topology.h), that stream may have it again.
 *
 * Locking: PENDING; ARENA is taken inside.
 */
#ifndef XSEG_CORE_DEFERRED_H
#define XSEG_CORE_DEFERRED_H

#include "src/core/pending/pending.h"

struct xseg_deferred {
    struct xseg_list link; /* in pending->deferred */
    struct xseg_block *block;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[];
};

/*
 * A busy block with uses is freed during a capture.  PENDING is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, and nothing has changed
 */
xseg_status xseg_deferred_add(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/*
 * A stream allocates during a capture: take back the blocks of that stream that the graph allows.
 * No lock is held.
 *
 * Cost: one question about the stream, and one (two if it has many) a node that is new to it
 */
void xseg_deferred_reuse(struct xseg_pending *pending, struct xseg_known_stream *stream);

/* The last capture has ended: nobody waits for its graph any more.  PENDING is held. */
void xseg_deferred_unmark(struct xseg_pending *pending);

/*
 * No capture is under way any more: turn deferred blocks into pending or cached ones.  What fails
 * stays deferred.  PENDING is held.
 *
 * pool: only its blocks; NULL: all
 */
void xseg_deferred_settle(struct xseg_pending *pending, const struct xseg_pool *pool);

#endif
