/* SPDX-License-Identifier: MIT */
/*
 * Routes: the pools of requests that name no pool.
 *
 * A route sends requests on streams that a predicate accepts to its pool.  A capture is a route that
 * accepts the streams which take part in it; the driver says which these are.  Of all routes that accept
 * a stream, the one that was begun last serves the request.
 *
 * Allocating threads read the list of routes without a lock, since predicates are the user's code.  A
 * thread that removes a route waits until no thread reads the list as it was before: readers are counted
 * by epoch, as in sleepable read-copy-update.
 *
 * Locking: TABLE of the device for changes, held while readers finish; readers take none.
 */
#ifndef XSEG_CORE_ROUTE_H
#define XSEG_CORE_ROUTE_H

#include "src/core/stream/streams.h"

struct xseg_pool;

struct xseg_route {
    _Atomic(struct xseg_route *) next; /* the route that was begun before */
    struct xseg_pool *pool;
    bool (*accepts)(void *self,
                    xseg_stream stream); /* NULL: accepts every stream; not for captures */
    void *self;
    /* The stream that the capture begins on; NULL: no capture. */
    struct xseg_known_stream *captured;
    atomic_uint_fast64_t capture; /* number of the capture, once known; 0: not yet */
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
 * Begin a route; `wanted` is copied.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the pool has one, or another capture began on the stream),
 *          XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *wanted);

/* End the route of a pool.  False if the pool has no route, or one of the other kind. */
bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture);

/* Note of every pool that has a route that it takes part in a capture. */
void xseg_routes_record_capture(struct xseg_routes *routes);

/* Whether a capture that has not ended began on a stream. */
bool xseg_routes_begin_on(struct xseg_routes *routes, const struct xseg_known_stream *stream);

/*
 * The pool that a request on a stream goes to, retained for the caller; NULL if no route accepts it.
 *
 * Returns: XSEG_OK, or the driver's error when asked about a capture
 * Cost:    while a capture is under way, one question about the stream; one more until the capture
 *          is known by its number
 */
xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out);

#endif
