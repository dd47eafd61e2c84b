/* SPDX-License-Identifier: MIT */
/*
 * Topology: what a stream of a capture comes after, by the graph that is being captured.
 *
 *     a --> b --> c       b: last node of the stream so far (its terminal)
 *           ^             behind the stream: b, and everything that b needs: a, d
 *     d ----+
 *
 * All work that the stream captures next runs behind these nodes.  A waiter waits for a set of nodes
 * (the terminals of all streams that used a block), and is ready once all of them are behind the
 * stream.  Nodes are walked backwards from the terminals, each once, so advancing costs only the new
 * nodes.  Every node lists its waiters, so the ready ones are found without a search.
 *
 * Terms:
 *   view    one stream in one capture
 *   waiter  a set of nodes that is waited for in a view
 *
 * If a node cannot be examined (no host memory, an error of the driver), it counts as not behind the
 * stream: then a waiter only waits longer.
 *
 * Locking: the owner's (PENDING of the device).
 */
#ifndef XSEG_CORE_TOPOLOGY_H
#define XSEG_CORE_TOPOLOGY_H

#include "src/base/hash_table.h"
#include "src/core/stream/streams.h"

struct xseg_topology_view {
    struct xseg_list link;
    uint64_t capture; /* number of the capture */
    const struct xseg_known_stream *stream;
    struct xseg_hash_table places; /* of nodes that were walked or are waited for */
    struct xseg_list ready;        /* waiters, by their link */
};

/* A node that a waiter waits for. */
struct xseg_topology_mark {
    xseg_node node;
    struct xseg_topology_waiter *waiter;
    struct xseg_topology_mark *next; /* next mark of this node */
};

struct xseg_topology_waiter {
    struct xseg_list link; /* in the ready list of the view, or in none */
    size_t missing;        /* number of marks that are not behind the stream */
};

/* The views of a device. */
struct xseg_topology {
    struct xseg_list views;
};

void xseg_topology_init(struct xseg_topology *topology);

/* Forget all views; there are no waiters any more. */
void xseg_topology_fini(struct xseg_topology *topology);

/* The view of a stream in a capture, made if there is none; NULL without host memory. */
struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream);

/* Advance a view to the last nodes of its stream: waiters whose last mark is now behind the
 * stream become ready. */
void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count);

/*
 * Wait for all marks; `count` is not 0.  The waiter is ready at once if all marks are behind the
 * stream.
 *
 * Returns: false without host memory; then nothing waits
 */
bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count);

#endif
