/* SPDX-License-Identifier: MIT */
/*
 * Routes: the selection of a pool for requests that name no pool.
 *
 * A route directs requests on streams that its predicate accepts to its pool.  A capture is a route
 * that accepts the streams of the capture, which the driver reports.  If several routes accept a
 * stream, the newest route is used.
 *
 * Allocating threads read the list of routes without a lock, because predicates are code of the
 * application.  A thread that removes a route waits until no thread reads the previous list:
 * readers are counted by epoch, as in sleepable read-copy-update (SRCU).
 *
 * Locking: changes lock TABLE of the device and hold it while readers finish; readers are
 * lock-free.
 */
#ifndef XSEG_CORE_ROUTE_H
#define XSEG_CORE_ROUTE_H

#include "src/core/stream/streams.h"

struct xseg_pool;

struct xseg_route {
    _Atomic(struct xseg_route *) next; /* the next older route */
    struct xseg_pool *pool;
    /* The predicate of a route that is not a capture; NULL: accepts every stream. */
    bool (*accepts)(void *self, xseg_stream stream);
    void *self;
    /* The stream on which the capture began; NULL: the route is not a capture. */
    struct xseg_known_stream *captured;
    atomic_uint_fast64_t capture; /* ID of the capture; 0: not known yet */
};

/* The routes of a device. */
struct xseg_routes {
    struct xseg_context *context;
    struct xseg_mutex *table_lock;       /* TABLE */
    _Atomic(struct xseg_route *) latest; /* NULL: none */
    atomic_uint epoch, readers[2];
};

void xseg_routes_init(struct xseg_routes *routes, struct xseg_context *context,
                      struct xseg_mutex *table_lock);
void xseg_routes_fini(struct xseg_routes *routes);

/* Whether any route exists. */
static inline bool xseg_routes_exist(struct xseg_routes *routes)
{
    return __builtin_expect(atomic_load_explicit(&routes->latest, memory_order_relaxed) != NULL, 0);
}

/*
 * Begin a route; `route` is copied.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the pool has a route, or another capture began on the stream),
 *          XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *route);

/* End the route of a pool.  Returns false if the pool has no route of this kind. */
bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture);

/* Mark every pool that has a route as captured. */
void xseg_routes_record_capture(struct xseg_routes *routes);

/* Whether an active capture began on a stream. */
bool xseg_routes_captures_on(struct xseg_routes *routes, const struct xseg_known_stream *stream);

/*
 * Find the pool for a request on a stream, and retain it for the caller.  The result is NULL if no
 * route accepts the stream.
 *
 * Returns: XSEG_OK, or the error of a driver query about a capture
 * Cost:    during a capture, one query of the stream's capture state, and one more until the ID of
 *          the capture is known
 */
xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out);

#endif
