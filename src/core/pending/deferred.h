/* SPDX-License-Identifier: MIT */
/*
 * Deferred blocks: freed during a capture while other streams use them.
 *
 * During a capture no event can be recorded or queried.  When no capture is under way any more, uses
 * that were noted only while their stream was captured end, since that work did not run.  For the other
 * uses events are recorded, and the block is pending like any other.
 *
 * With graph_capture_record_stream_reuse a block may come back within the capture.  If all streams that
 * use the block take part in one capture, the last nodes of each are the block's *marks*.  Once all
 * marks are behind the stream that the block belongs to (topology.h), that stream may reuse the block.
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
 * Defer a busy block with uses that is freed during a capture.  PENDING is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, and nothing has changed
 */
xseg_status xseg_deferred_add(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology);

/*
 * Take back the blocks of a stream that the graph allows; the stream allocates during a capture.
 * No lock is held.
 *
 * Cost: one question about the stream, and one (two if it has many) per node that is new to it
 */
void xseg_deferred_reuse(struct xseg_pending *pending, struct xseg_known_stream *stream);

/* Forget the graph of a capture: the last capture has ended.  PENDING is held. */
void xseg_deferred_unmark(struct xseg_pending *pending);

/*
 * Turn deferred blocks into pending or cached ones; no capture is under way.  A block that fails
 * stays deferred.  PENDING is held.
 *
 * pool: only its blocks; NULL: all
 * Returns: XSEG_OK; or the first error of a block that stays
 */
xseg_status xseg_deferred_settle(struct xseg_pending *pending, const struct xseg_pool *pool);

#endif
