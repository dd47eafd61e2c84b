/* SPDX-License-Identifier: MIT */
/*
 * Routes: where requests go that name no pool.
 *
 * A route sends what a predicate accepts to its pool; a capture is a route that accepts the streams
 * which take part in it, by the driver's own account.  The route that was begun last and accepts a
 * stream serves it.
 *
 * Allocating threads read the list of routes without a lock, since predicates are the user's code.
 * Whoever takes a route out waits until nobody reads the list as it was before: readers are counted
 * by epoch, as in sleepable read-copy-update.
 *
 * Locking: TABLE of the device for changes, held while readers finish; readers take none.
 */
#ifndef XSEG_CORE_ROUTE_H
#define XSEG_CORE_ROUTE_H

#include "src/core/stream/streams.h"

struct xseg_pool;

struct xseg_route {
    _Atomic(struct xseg_route *) next; /* the one begun before */
    struct xseg_pool *pool;
    bool (*accepts)(void *self, xseg_stream stream); /* NULL: everything; not for captures */
    void *self;
    struct xseg_known_stream
        *captured;                /* the stream that the capture begins on; NULL: no capture */
    atomic_uint_fast64_t capture; /* its number, once it has been seen; 0: not yet */
};

/* Of a device. */
struct xseg_routes {
    struct xseg_context *context;
    struct xseg_lock *table_lock;        /* TABLE */
    _Atomic(struct xseg_route *) latest; /* NULL: none */
    atomic_uint epoch, readers[2];
};

void xseg_routes_init(struct xseg_routes *routes, struct xseg_context *context,
                      struct xseg_lock *table_lock);
void xseg_routes_fini(struct xseg_routes *routes);

/* Whether there is any. */
static inline bool xseg_routes_exist(struct xseg_routes *routes)
{
    return __builtin_expect(atomic_load_explicit(&routes->latest, memory_order_relaxed) != NULL, 0);
}

/*
 * Begin a route; `wanted` is copied.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the pool has one, or another capture began on the stream),
 *          XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *wanted);

/* End the route of a pool.  False if it has none, or one of the other kind. */
bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture);

/* Whether a capture that has not ended began on a stream. */
bool xseg_routes_begin_on(struct xseg_routes *routes, const struct xseg_known_stream *stream);

/*
 * The pool that a request on a stream goes to; NULL if no route accepts it.
 *
 * Returns: XSEG_OK, or the driver's error when asked about a capture
 * Cost:    while a capture is under way, one question about the stream; one more until the capture
 *          is known by its number
 */
xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out);

#endif
