/* SPDX-License-Identifier: MIT */
/*
 * Capture topology: which nodes of a graph under capture precede all further work of a stream.
 *
 * A block that other streams used, and that was freed during a capture, can be reused on its own
 * stream in the same capture once the graph orders all these uses before the next node of the
 * stream.
 *
 *     a --> b --> c       b: terminal of the stream, its last node so far
 *           ^             a, b, d precede all further work of the stream
 *     d ----+
 *
 * A *view* is one stream in one capture.  It has the set of nodes that precede the stream.  When
 * the terminals of the stream change, the view walks the graph backward from the new terminals.  It
 * stops at nodes that are in the set already, so each node is visited once: O(new nodes and
 * edges).
 *
 * A *waiter* is a block with the terminals of all streams that used it at its free.  It is ready
 * when all these nodes precede the stream.  Each node has a list of its waiters, so ready waiters
 * are found without a search.
 *
 * A node that cannot be visited, because of a host allocation failure or a driver error, does not
 * enter the set.  Then a waiter waits longer, until the end of the capture at most.
 *
 * Locking: the caller holds the lock of pending blocks (rank PENDING).
 */
#ifndef XSEG_CORE_TOPOLOGY_H
#define XSEG_CORE_TOPOLOGY_H

#include "src/base/hash_table.h"
#include "src/core/stream/streams.h"

struct xseg_topology_view {
    struct xseg_list link;
    uint64_t capture; /* ID of the capture */
    const struct xseg_known_stream *stream;
    struct xseg_hash_table nodes; /* that precede the stream, or have waiters */
    struct xseg_list ready;       /* waiters that are ready */
};

/* A node for which a waiter waits. */
struct xseg_topology_mark {
    xseg_node node;
    struct xseg_topology_waiter *waiter;
    struct xseg_topology_mark *next; /* of this node */
};

struct xseg_topology_waiter {
    struct xseg_list link; /* in the ready list of the view, or in none */
    size_t missing;        /* number of marks whose nodes do not precede the stream yet */
};

/* The views of a device. */
struct xseg_topology {
    struct xseg_list views;
};

void xseg_topology_init(struct xseg_topology *topology);

/* Destroy all views.  There are no waiters. */
void xseg_topology_fini(struct xseg_topology *topology);

/* Find or add the view of a stream in a capture.  Returns NULL on host allocation failure. */
struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream);

/* Advance a view to the current terminals of its stream.  Waiters may become ready. */
void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count);

/* Wait for the nodes of all marks, at least one.  The waiter may be ready immediately.  On host
 * allocation failure nothing waits, and the result is false. */
bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count);

#endif
