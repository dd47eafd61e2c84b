/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/device_route.h"
#include "src/core/instance/housekeeping.h"

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/pool/pause.h"
#include "src/core/reclaim/pool_release.h"
#include "src/core/reclaim/trim.h"

static xseg_status hold(struct xseg_pool *pool)
{
    return xseg_pool_try_retain(pool) ? XSEG_OK : xseg_pool_fail_released(pool);
}

/* Add a route to a pool; the route holds the pool as long as it lasts. */
static xseg_status add_route(const struct xseg_route *route)
{
    xseg_status status = hold(route->pool);

    XSEG_ASSERT(route->accepts == NULL || route->captured == NULL);
    if (status != XSEG_OK)
        return status;
    status = xseg_routes_begin(&route->pool->device->routes, route);
    if (status != XSEG_OK)
        (void)xseg_release_pool(route->pool);
    else
        xseg_stream_cache_drop_all(&route->pool->device->allocator->stream_cache,
                                   route->pool->device->context.ordinal);
    return status;
}

xseg_status xseg_device_begin_route(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                                    void *self)
{
    const struct xseg_route route = {.pool = pool, .accepts = accepts, .self = self};

    struct xseg_pending *pending = pool->device->pending;
    const xseg_status status = add_route(&route);

    if (status != XSEG_OK)
        return status;
    /* A mark that comes after this look finds the route. */
    xseg_pending_lock(pending);
    if (pending->marks != 0)
        atomic_store_explicit(&pool->is_captured, true, memory_order_relaxed);
    xseg_pending_unlock(pending);
    return XSEG_OK;
}

/* What PyTorch does with the blocks of a pool when its route ends; all others follow when an allocation starts.
 * PENDING is held. */
static void settle_pool(struct xseg_pending *pending, struct xseg_pool *pool)
{
    if (!xseg_pending_captures(pending) &&
        xseg_allocator_config(pool->device->allocator)->graph_capture_record_stream_reuse)
        (void)xseg_deferred_settle(pending, pool);
}

xseg_status xseg_device_end_route(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;

    if (!xseg_routes_end(&device->routes, pool, false))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "route is not active, pool %s; match each call to one xseg_route_begin()",
                         xseg_pool_label(pool));
    xseg_pending_lock(device->pending);
    settle_pool(device->pending, pool);
    xseg_pending_unlock(device->pending);
    (void)xseg_release_pool(pool);
    return XSEG_OK;
}

/*
 * Make room for a capture, during which no memory can be taken away and no stream waited for.  Where memory
 * has been short, all idle memory goes back to the driver now, once its streams have finished, so that the
 * capture can grow.  PyTorch's torch.cuda.graph does so before every capture.  The device memory lock is held.
 */
static void make_room(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (device->is_memory_low && !xseg_pending_captures(device->pending))
        (void)xseg_trim_all(device, true);
}

static xseg_status check_running(struct xseg_pool *pool)
{
    xseg_mutex_lock(&pool->device->growth_lock);
    const xseg_status status = xseg_pool_check_running(pool);
    xseg_mutex_unlock(&pool->device->growth_lock);
    return status;
}

xseg_status xseg_device_begin_capture(struct xseg_pool *pool, xseg_stream handle)
{
    struct xseg_device *device = pool->device;
    struct xseg_route route = {.pool = pool};
    xseg_status status;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    status = xseg_stream_retirement_get(device, handle, &route.captured);
    if (status == XSEG_OK && route.captured->handle == NULL)
        status = xseg_fail(
            XSEG_ERR_ARGUMENT,
            "stream is the legacy default stream, which cannot be captured; pass another stream");
    if (status == XSEG_OK)
        status = check_running(pool);
    if (status == XSEG_OK)
        status = add_route(&route);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(route.captured != NULL && route.captured->handle != NULL);
    xseg_streams_claim(route.captured);
    atomic_store_explicit(&pool->is_captured, true, memory_order_relaxed);
    /* A trim, a growth or a poll of events that is under way ends before the capture begins. */
    xseg_mutex_lock(&device->growth_lock);
    make_room(device);
    xseg_pending_lock(device->pending);
    atomic_fetch_add(&device->pending->captures, 1);
    xseg_pending_unlock(device->pending);
    xseg_mutex_unlock(&device->growth_lock);
    xseg_pools_notify(device);
    xseg_housekeeping_end_call(device->allocator);
    return XSEG_OK;
}

/* Count one capture or mark less on the device.  PENDING is held. */
static void end_capture(struct xseg_pending *pending)
{
    XSEG_ASSERT(atomic_load(&pending->captures) > pending->marks);
    if (atomic_fetch_sub(&pending->captures, 1) == 1)
        xseg_deferred_discard_marks(pending);
}

xseg_status xseg_device_end_capture(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct xseg_pending *pending = device->pending;

    if (!xseg_routes_end(&device->routes, pool, true))
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "capture is not active, pool %s; match each call to one xseg_capture_begin()",
            xseg_pool_label(pool));
    xseg_pending_lock(pending);
    end_capture(pending);
    settle_pool(pending, pool);
    xseg_pending_unlock(pending);
    (void)xseg_release_pool(pool);
    return XSEG_OK;
}

xseg_status xseg_device_mark(struct xseg_device *device)
{
    struct xseg_pending *pending = device->pending;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    /* As for a capture.  No room is made: the driver may have begun already. */
    xseg_mutex_lock(&device->growth_lock);
    xseg_pending_lock(pending);
    pending->marks++;
    atomic_fetch_add(&pending->captures, 1);
    xseg_pending_unlock(pending);
    xseg_mutex_unlock(&device->growth_lock);
    xseg_routes_record_capture(&device->routes);
    return XSEG_OK;
}

bool xseg_device_unmark(struct xseg_device *device)
{
    struct xseg_pending *pending = device->pending;

    xseg_pending_lock(pending);
    const bool is_marked = pending->marks != 0;
    if (is_marked) {
        pending->marks--;
        end_capture(pending);
    }
    xseg_pending_unlock(pending);
    return is_marked;
}

xseg_status xseg_device_is_captured(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured)
{
    struct xseg_capture_info info;
    xseg_status status = XSEG_OK;

    *captured = false;
    if (!xseg_pending_captures(device->pending) || stream->handle == NULL)
        return XSEG_OK;
    xseg_streams_claim(stream);
    status = xseg_driver_capture_info(&device->context, stream->handle, &info);
    *captured = status == XSEG_OK && (info.id != 0 || info.is_invalid);
    return status;
}

xseg_status xseg_device_side_stream(struct xseg_device *device, struct xseg_known_stream **out)
{
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&device->growth_lock);
    if (device->wait_stream == NULL)
        status = xseg_driver_stream_create(&device->context, &device->wait_stream);
    if (status == XSEG_OK)
        status = xseg_streams_get(&device->streams, device->wait_stream, out);
    XSEG_ASSERT(status != XSEG_OK || (*out)->handle == device->wait_stream);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}
