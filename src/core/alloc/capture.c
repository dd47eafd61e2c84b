/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/alloc.h"

#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/pause.h"
#include "src/core/reclaim/reclaim.h"

static xseg_status retain_pool(struct xseg_pool *pool)
{
    return xseg_pool_try_retain(pool) ? XSEG_OK : xseg_pool_fail_released(pool);
}

/* Add a route to a pool; the route retains the pool. */
static xseg_status add_route(const struct xseg_route *route)
{
    xseg_status status = retain_pool(route->pool);

    XSEG_ASSERT(route->accepts == NULL || route->origin == NULL);
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

xseg_status xseg_route_start(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                             void *self)
{
    const struct xseg_route route = {.pool = pool, .accepts = accepts, .self = self};
    struct xseg_pending *pending = pool->device->pending;
    const xseg_status status = add_route(&route);

    if (status != XSEG_OK)
        return status;
    /* A mark that is added after this check finds the route. */
    xseg_biased_lock_lock(&pending->lock);
    if (pending->marks != 0)
        atomic_store_explicit(&pool->is_captured, true, memory_order_relaxed);
    xseg_biased_lock_unlock(&pending->lock);
    return XSEG_OK;
}

/* Free the deferred blocks of a pool when its route ends, as PyTorch does.  The next allocation frees all other deferred
 * blocks.  The lock of the pending queue is held. */
static void settle_deferred_blocks(struct xseg_pending *pending, struct xseg_pool *pool)
{
    if (!xseg_pending_captures(pending) &&
        xseg_allocator_config(pool->device->allocator)->graph_capture_record_stream_reuse)
        (void)xseg_deferred_flush(pending, pool);
}

xseg_status xseg_route_stop(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;

    if (!xseg_routes_end(&device->routes, pool, false))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "route is not active, pool %s; match each call to one xseg_route_begin()",
                         xseg_pool_label(pool));
    xseg_biased_lock_lock(&device->pending->lock);
    settle_deferred_blocks(device->pending, pool);
    xseg_biased_lock_unlock(&device->pending->lock);
    (void)xseg_release_pool(pool);
    return XSEG_OK;
}

/*
 * Release memory before a capture, during which no memory can be unmapped and no stream synchronized.  After memory pressure,
 * wait for the streams of all idle memory and release it to the driver, so that the capture can grow.  PyTorch's
 * torch.cuda.graph does so before every capture.  The device memory lock is held.
 */
static void release_memory_before_capture(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (device->is_memory_low && !xseg_pending_captures(device->pending))
        (void)xseg_trim_all(device, true);
}

static xseg_status check_pool_running(struct xseg_pool *pool)
{
    xseg_mutex_lock(&pool->device->memory_lock);
    const xseg_status status = xseg_pool_check_running(pool);
    xseg_mutex_unlock(&pool->device->memory_lock);
    return status;
}

xseg_status xseg_capture_start(struct xseg_pool *pool, xseg_stream handle)
{
    struct xseg_device *device = pool->device;
    struct xseg_route route = {.pool = pool};
    xseg_status status;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    status = xseg_stream_retirement_get(device, handle, &route.origin);
    if (status == XSEG_OK && route.origin->handle == NULL)
        status = xseg_fail(
            XSEG_ERR_ARGUMENT,
            "stream is the legacy default stream, which cannot be captured; pass another stream");
    if (status == XSEG_OK)
        status = check_pool_running(pool);
    if (status == XSEG_OK)
        status = add_route(&route);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(route.origin != NULL && route.origin->handle != NULL);
    xseg_streams_claim(route.origin);
    atomic_store_explicit(&pool->is_captured, true, memory_order_relaxed);
    /* A trim, a growth or a poll that is in progress ends before the capture begins. */
    xseg_mutex_lock(&device->memory_lock);
    release_memory_before_capture(device);
    xseg_biased_lock_lock(&device->pending->lock);
    atomic_fetch_add(&device->pending->captures, 1);
    xseg_biased_lock_unlock(&device->pending->lock);
    xseg_mutex_unlock(&device->memory_lock);
    xseg_pools_notify(device);
    xseg_housekeeping_end_call(device->allocator);
    return XSEG_OK;
}

/* Decrease the number of captures and marks of the device.  The lock of the pending queue is held. */
static void decrease_captures(struct xseg_pending *pending)
{
    XSEG_ASSERT(atomic_load(&pending->captures) > pending->marks);
    if (atomic_fetch_sub(&pending->captures, 1) == 1)
        xseg_deferred_discard_marks(pending);
}

xseg_status xseg_capture_stop(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct xseg_pending *pending = device->pending;

    if (!xseg_routes_end(&device->routes, pool, true))
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "capture is not active, pool %s; match each call to one xseg_capture_begin()",
            xseg_pool_label(pool));
    xseg_biased_lock_lock(&pending->lock);
    decrease_captures(pending);
    settle_deferred_blocks(pending, pool);
    xseg_biased_lock_unlock(&pending->lock);
    (void)xseg_release_pool(pool);
    return XSEG_OK;
}

xseg_status xseg_capture_mark_device(struct xseg_device *device)
{
    struct xseg_pending *pending = device->pending;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    /* The locks are acquired for the same reason as in xseg_capture_start().  No memory is released, because the driver may
     * have begun the capture already. */
    xseg_mutex_lock(&device->memory_lock);
    xseg_biased_lock_lock(&pending->lock);
    pending->marks++;
    atomic_fetch_add(&pending->captures, 1);
    xseg_biased_lock_unlock(&pending->lock);
    xseg_mutex_unlock(&device->memory_lock);
    xseg_routes_record_capture(&device->routes);
    return XSEG_OK;
}

bool xseg_capture_unmark_device(struct xseg_device *device)
{
    struct xseg_pending *pending = device->pending;

    xseg_biased_lock_lock(&pending->lock);
    const bool is_marked = pending->marks != 0;
    if (is_marked) {
        pending->marks--;
        decrease_captures(pending);
    }
    xseg_biased_lock_unlock(&pending->lock);
    return is_marked;
}

xseg_status xseg_capture_has_stream(struct xseg_device *device, struct xseg_known_stream *stream,
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

xseg_status xseg_side_stream_get(struct xseg_device *device, struct xseg_known_stream **out)
{
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&device->memory_lock);
    if (device->wait_stream == NULL)
        status = xseg_driver_stream_create(&device->context, &device->wait_stream);
    if (status == XSEG_OK)
        status = xseg_streams_find_or_add(&device->streams, device->wait_stream, out);
    XSEG_ASSERT(status != XSEG_OK || (*out)->handle == device->wait_stream);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}
