/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/pool.h"

void xseg_routes_init(struct xseg_routes *routes, struct xseg_context *context,
                      struct xseg_mutex *table_lock)
{
    XSEG_ASSERT(table_lock->rank == XSEG_RANK_TABLE);
    memset(routes, 0, sizeof(*routes));
    routes->context = context;
    routes->table_lock = table_lock;
}

void xseg_routes_fini(struct xseg_routes *routes)
{
    struct xseg_route *route = atomic_load(&routes->latest), *next;

    XSEG_ASSERT(atomic_load(&routes->readers[0]) == 0 && atomic_load(&routes->readers[1]) == 0);
    for (; route != NULL; route = next) {
        next = atomic_load(&route->next);
        free(route);
    }
    atomic_store(&routes->latest, NULL);
}

/* --- Readers, and removal of a route. --- */

/* Begin a read of the list.  Returns the index of the counter that counts the reader. */
static unsigned begin_route_read(struct xseg_routes *routes)
{
    for (;;) {
        const unsigned epoch = atomic_load(&routes->epoch);

        atomic_fetch_add(&routes->readers[epoch & 1], 1);
        if (atomic_load(&routes->epoch) == epoch)
            return epoch & 1;
        atomic_fetch_sub(&routes->readers[epoch & 1], 1);
    }
}

static void end_route_read(struct xseg_routes *routes, unsigned counter)
{
    XSEG_ASSERT(counter < 2 && atomic_load(&routes->readers[counter]) != 0);
    atomic_fetch_sub(&routes->readers[counter], 1);
}

/* Wait until no thread reads the list as of before the call.  The caller holds TABLE. */
static void wait_for_readers(struct xseg_routes *routes)
{
    const unsigned epoch = atomic_fetch_add(&routes->epoch, 1);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    while (atomic_load(&routes->readers[epoch & 1]) != 0)
        (void)sched_yield();
}

/* Find the link that points to the route of a pool.  If the pool has no route, the result is the
 * last link of the list, which is NULL. */
static _Atomic(struct xseg_route *) *find_route_link(struct xseg_routes *routes,
                                                     const struct xseg_pool *pool)
{
    _Atomic(struct xseg_route *) *link = &routes->latest;

    for (struct xseg_route *route; (route = atomic_load(link)) != NULL; link = &route->next)
        if (route->pool == pool)
            break;
    return link;
}

/* Find the route of the active capture that began on a stream, or NULL.  The caller holds TABLE. */
static const struct xseg_route *find_capture_on(struct xseg_routes *routes,
                                                const struct xseg_known_stream *stream)
{
    const struct xseg_route *route = atomic_load(&routes->latest);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    while (route != NULL && route->origin != stream)
        route = atomic_load(&route->next);
    return route;
}

/* Check that a new route does not conflict with another one.  The caller holds TABLE. */
static xseg_status check_route(struct xseg_routes *routes, const struct xseg_route *route)
{
    const struct xseg_route *conflict = atomic_load(find_route_link(routes, route->pool));

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (conflict != NULL)
        return xseg_fail(XSEG_ERR_BUSY, "%s is already active, pool %s; end it first",
                         conflict->origin != NULL ? "capture" : "route",
                         xseg_pool_label(route->pool));
    conflict = route->origin == NULL ? NULL : find_capture_on(routes, route->origin);
    if (conflict != NULL)
        return xseg_fail(XSEG_ERR_BUSY,
                         "stream is already being captured, into pool %s; end that capture first",
                         xseg_pool_label(conflict->pool));
    return XSEG_OK;
}

xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *route)
{
    struct xseg_route *copy = malloc(sizeof(*copy));

    XSEG_ASSERT(route->pool != NULL && (route->origin == NULL || route->accepts == NULL));
    if (copy == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, route to a pool");
    *copy = *route;
    xseg_mutex_lock(routes->table_lock);
    const xseg_status status = check_route(routes, route);
    if (status == XSEG_OK) {
        atomic_store(&copy->next, atomic_load(&routes->latest));
        atomic_store(&routes->latest, copy);
    }
    xseg_mutex_unlock(routes->table_lock);
    if (status != XSEG_OK)
        free(copy);
    return status;
}

bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture)
{
    xseg_mutex_lock(routes->table_lock);
    _Atomic(struct xseg_route *) *link = find_route_link(routes, pool);
    struct xseg_route *route = atomic_load(link);
    const bool found = route != NULL && (route->origin != NULL) == is_capture;
    if (found) {
        atomic_store(link, atomic_load(&route->next));
        wait_for_readers(routes);
    }
    xseg_mutex_unlock(routes->table_lock);
    if (found)
        free(route);
    return found;
}

void xseg_routes_record_capture(struct xseg_routes *routes)
{
    xseg_mutex_lock(routes->table_lock);
    for (struct xseg_route *route = atomic_load(&routes->latest); route != NULL;
         route = atomic_load(&route->next))
        atomic_store_explicit(&route->pool->is_captured, true, memory_order_relaxed);
    xseg_mutex_unlock(routes->table_lock);
}

bool xseg_routes_captures_on(struct xseg_routes *routes, const struct xseg_known_stream *stream)
{
    xseg_mutex_lock(routes->table_lock);
    const bool found = find_capture_on(routes, stream) != NULL;
    xseg_mutex_unlock(routes->table_lock);
    return found;
}

/* --- Lookup. --- */

/* The capture state of a stream, queried at most once per request. */
struct capture_query {
    struct xseg_context *context;
    struct xseg_known_stream *stream;
    bool is_queried;
    struct xseg_capture_info info;
};

static xseg_status query_stream_capture(struct capture_query *query)
{
    if (query->is_queried)
        return XSEG_OK;
    query->is_queried = true;
    /* The legacy stream cannot be captured. */
    if (query->stream->handle == NULL)
        return XSEG_OK;
    return xseg_driver_capture_info(query->context, query->stream->handle, &query->info);
}

/* Get the ID of a route's capture from the origin stream; 0 if the ID is not known. */
static xseg_status resolve_capture_id(struct xseg_routes *routes, struct xseg_route *route,
                                      uint64_t *id)
{
    struct xseg_capture_info info;
    bool is_addressable = true;
    xseg_status status = XSEG_OK;

    *id = atomic_load(&route->capture_id);
    if (*id != 0)
        return XSEG_OK;
    XSEG_ASSERT(route->origin != NULL);
    status = xseg_streams_can_use(routes->context, route->origin, &is_addressable);
    if (status != XSEG_OK || !is_addressable)
        return status;
    status = xseg_driver_capture_info(routes->context, route->origin->handle, &info);
    if (status != XSEG_OK)
        return status;
    atomic_store(&route->capture_id, info.id);
    *id = info.id;
    return XSEG_OK;
}

/* Set *accepted to whether a stream participates in the capture of a route. */
static xseg_status match_capture(struct xseg_routes *routes, struct xseg_route *route,
                                 struct capture_query *query, bool *accepted)
{
    uint64_t id = 0;
    xseg_status status = query_stream_capture(query);

    if (status != XSEG_OK)
        return status;
    /* An invalidated capture has no ID. */
    if (query->info.is_invalid || query->info.id == 0) {
        *accepted = query->info.is_invalid && query->stream == route->origin;
        return XSEG_OK;
    }
    if (query->stream == route->origin)
        atomic_store(&route->capture_id, query->info.id);
    status = resolve_capture_id(routes, route, &id);
    *accepted = id == query->info.id;
    return status;
}

xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out)
{
    struct capture_query query = {.context = routes->context, .stream = stream};
    const unsigned counter = begin_route_read(routes);
    struct xseg_route *route = atomic_load(&routes->latest);
    xseg_status status = XSEG_OK;
    bool accepted = false;

    for (; route != NULL; route = atomic_load(&route->next)) {
        if (route->origin != NULL)
            status = match_capture(routes, route, &query, &accepted);
        else
            accepted = route->accepts == NULL || route->accepts(route->self, stream->handle);
        if (status != XSEG_OK || accepted)
            break;
    }
    *out = accepted ? route->pool : NULL;
    /* The route retains the pool while there are readers. */
    if (accepted && !xseg_pool_try_retain(route->pool))
        XSEG_ASSERT(false);
    end_route_read(routes, counter);
    return status;
}
