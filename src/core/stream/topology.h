/* SPDX-License-Identifier: MIT */
/*
 * Topology: what a stream of a capture comes after, by the graph that is being captured.
 *
 *     a --> b --> c       b: last node of the stream so far (its terminal)
 *           ^             behind the stream: b, and everything that b needs: a, d
 *     d ----+
 *
 * Whatever the stream captures next runs behind these nodes.  Somebody who waits for a set of nodes
 * (the terminals of all streams that used a block) is ready once all of them are behind the stream.
 * Nodes are walked backwards from the terminals, each once, so a look costs only the new nodes; and
 * every node knows who waits for it, so those who are ready are found without a search.
 *
 * Terms:
 *   view    one stream in one capture
 *   waiter  a set of nodes that is waited for in a view
 *
 * What cannot be found out (no host memory, a driver that refuses an answer) counts as not behind:
 * then a waiter only waits longer.
 *
 * Locking: the owner's (PENDING of the device).
 */
#ifndef XSEG_CORE_TOPOLOGY_H
#define XSEG_CORE_TOPOLOGY_H

#include "src/core/stream/streams.h"

struct xseg_topology_place;

struct xseg_topology_view {
    struct xseg_list link;
    uint64_t capture; /* its number */
    const struct xseg_known_stream *stream;
    struct xseg_topology_place *place; /* hash table, [capacity], a power of two */
    size_t used, capacity;
    struct xseg_list ready; /* waiters, by their link */
};

/* One node that a waiter waits for. */
struct xseg_topology_mark {
    xseg_node node;
    struct xseg_topology_waiter *waiter;
    struct xseg_topology_mark *next; /* of the same node */
};

struct xseg_topology_waiter {
    struct xseg_list link; /* in its view's ready list, or alone */
    size_t missing;        /* marks that are not behind the stream */
};

/* The views of a device. */
struct xseg_topology {
    struct xseg_list views;
};

void xseg_topology_init(struct xseg_topology *topology);

/* Forget all views; nobody may wait any more. */
void xseg_topology_fini(struct xseg_topology *topology);

/* The view of a stream in a capture, made if there is none; NULL without host memory. */
struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream);

/* The stream has come to these terminals: waiters whose last mark is behind it now are ready. */
void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count);

/*
 * Wait for all marks; `count` is not 0.  Ready at once if all of them are behind the stream.
 * Returns false without host memory; then nobody waits.
 */
bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count);

#endif
