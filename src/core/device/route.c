/* SPDX-License-Identifier: MIT */
#include "src/core/device/route.h"

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

/* --- Readers, and the one who takes a route out. --- */

/* Begin reading the list.  Returns the index of the count that the reader is in. */
static unsigned begin_reading(struct xseg_routes *routes)
{
    for (;;) {
        const unsigned epoch = atomic_load(&routes->epoch);

        atomic_fetch_add(&routes->readers[epoch & 1], 1);
        if (atomic_load(&routes->epoch) == epoch)
            return epoch & 1;
        atomic_fetch_sub(&routes->readers[epoch & 1], 1);
    }
}

static void end_reading(struct xseg_routes *routes, unsigned side)
{
    XSEG_ASSERT(side < 2 && atomic_load(&routes->readers[side]) != 0);
    atomic_fetch_sub(&routes->readers[side], 1);
}

/* Wait until no thread reads the list as it was before this call.  TABLE is held. */
static void wait_for_readers(struct xseg_routes *routes)
{
    const unsigned epoch = atomic_fetch_add(&routes->epoch, 1);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    while (atomic_load(&routes->readers[epoch & 1]) != 0)
        (void)sched_yield();
}

/* The pointer to the route of a pool; without a route the last pointer of the list, which is
 * NULL. */
static _Atomic(struct xseg_route *) *link_of(struct xseg_routes *routes,
                                             const struct xseg_pool *pool)
{
    _Atomic(struct xseg_route *) *link = &routes->latest;

    for (struct xseg_route *route; (route = atomic_load(link)) != NULL; link = &route->next)
        if (route->pool == pool)
            break;
    return link;
}

/* The route of a capture that began on a stream and has not ended; NULL if there is none.  TABLE
 * is held. */
static const struct xseg_route *capture_on(struct xseg_routes *routes,
                                           const struct xseg_known_stream *stream)
{
    const struct xseg_route *route = atomic_load(&routes->latest);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    while (route != NULL && route->captured != stream)
        route = atomic_load(&route->next);
    return route;
}

/* Check that a route contradicts no other one.  TABLE is held. */
static xseg_status check(struct xseg_routes *routes, const struct xseg_route *wanted)
{
    const struct xseg_route *other = atomic_load(link_of(routes, wanted->pool));

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (other != NULL)
        return xseg_fail(XSEG_ERR_BUSY, "%s is already active, pool %s; end it first",
                         other->captured != NULL ? "capture" : "route",
                         xseg_pool_label(wanted->pool));
    other = wanted->captured == NULL ? NULL : capture_on(routes, wanted->captured);
    if (other != NULL)
        return xseg_fail(XSEG_ERR_BUSY,
                         "stream is already being captured, into pool %s; end that capture first",
                         xseg_pool_label(other->pool));
    return XSEG_OK;
}

xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *wanted)
{
    struct xseg_route *route = malloc(sizeof(*route));

    XSEG_ASSERT(wanted->pool != NULL && (wanted->captured == NULL || wanted->accepts == NULL));
    if (route == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, route to a pool");
    *route = *wanted;
    xseg_mutex_lock(routes->table_lock);
    const xseg_status status = check(routes, wanted);
    if (status == XSEG_OK) {
        atomic_store(&route->next, atomic_load(&routes->latest));
        atomic_store(&routes->latest, route);
    }
    xseg_mutex_unlock(routes->table_lock);
    if (status != XSEG_OK)
        free(route);
    return status;
}

bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture)
{
    xseg_mutex_lock(routes->table_lock);
    _Atomic(struct xseg_route *) *link = link_of(routes, pool);
    struct xseg_route *route = atomic_load(link);
    const bool found = route != NULL && (route->captured != NULL) == is_capture;
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

bool xseg_routes_begin_on(struct xseg_routes *routes, const struct xseg_known_stream *stream)
{
    xseg_mutex_lock(routes->table_lock);
    const bool found = capture_on(routes, stream) != NULL;
    xseg_mutex_unlock(routes->table_lock);
    return found;
}

/* --- Finding. --- */

/* The driver's answer about a stream, asked for at most once per request. */
struct question {
    struct xseg_context *context;
    struct xseg_known_stream *stream;
    bool asked;
    struct xseg_capture_info info;
};

static xseg_status ask(struct question *question)
{
    if (question->asked)
        return XSEG_OK;
    question->asked = true;
    /* The legacy stream cannot be captured. */
    if (question->stream->handle == NULL)
        return XSEG_OK;
    return xseg_driver_capture_info(question->context, question->stream->handle, &question->info);
}

/* Get the number of a route's capture from the stream on which it began; 0 if it is not known. */
static xseg_status learn_number(struct xseg_routes *routes, struct xseg_route *route,
                                uint64_t *number)
{
    struct xseg_capture_info info;
    bool can_name = true;
    xseg_status status = XSEG_OK;

    *number = atomic_load(&route->capture);
    if (*number != 0)
        return XSEG_OK;
    XSEG_ASSERT(route->captured != NULL);
    status = xseg_streams_can_name(routes->context, route->captured, &can_name);
    if (status != XSEG_OK || !can_name)
        return status;
    status = xseg_driver_capture_info(routes->context, route->captured->handle, &info);
    if (status != XSEG_OK)
        return status;
    atomic_store(&route->capture, info.id);
    *number = info.id;
    return XSEG_OK;
}

/* Whether a capture accepts the requests of a stream: those of the stream it began on, and of
 * all that joined. */
static xseg_status captures(struct xseg_routes *routes, struct xseg_route *route,
                            struct question *question, bool *accepted)
{
    uint64_t number = 0;
    xseg_status status = ask(question);

    if (status != XSEG_OK)
        return status;
    /* A capture that was invalidated has no number any more. */
    if (question->info.is_invalid || question->info.id == 0) {
        *accepted = question->info.is_invalid && question->stream == route->captured;
        return XSEG_OK;
    }
    if (question->stream == route->captured)
        atomic_store(&route->capture, question->info.id);
    status = learn_number(routes, route, &number);
    *accepted = number == question->info.id;
    return status;
}

xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out)
{
    struct question question = {.context = routes->context, .stream = stream};
    const unsigned side = begin_reading(routes);
    struct xseg_route *route = atomic_load(&routes->latest);
    xseg_status status = XSEG_OK;
    bool accepted = false;

    for (; route != NULL; route = atomic_load(&route->next)) {
        if (route->captured != NULL)
            status = captures(routes, route, &question, &accepted);
        else
            accepted = route->accepts == NULL || route->accepts(route->self, stream->handle);
        if (status != XSEG_OK || accepted)
            break;
    }
    *out = accepted ? route->pool : NULL;
    /* The route holds the pool until there are no readers. */
    if (accepted && !xseg_pool_try_retain(route->pool))
        XSEG_ASSERT(false);
    end_reading(routes, side);
    return status;
}
