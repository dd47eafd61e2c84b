/* SPDX-License-Identifier: MIT */
/*
 * Probes of the page properties `exportable` and `rdma` (share.h).
 *
 * Locking: the device memory lock.
 */
#include <stdio.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/pool/share.h"
#include "vmm/context.h"

/* --- Results. --- */

xseg_status xseg_page_probe_fail_export(const struct xseg_sharing *sharing)
{
    const struct xseg_page_probe *probe = &sharing->exportable;

    XSEG_ASSERT(probe->result == XSEG_PAGE_PROBE_UNSUPPORTED && probe->reason[0] != '\0');
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "memory of the device cannot be exported, %s",
                     probe->reason);
}

/* Copy the message of the last error. */
static void copy_reason(char *reason, size_t bytes)
{
    (void)snprintf(reason, bytes, "%s", xseg_fail_detail());
}

static void update_deferred(struct xseg_sharing *sharing)
{
    const bool is_deferred = sharing->exportable.is_deferred || sharing->rdma.is_deferred;

    atomic_store_explicit(&sharing->has_deferred_probe, is_deferred, memory_order_relaxed);
}

/* Set the properties of the segments that have no memory; they were created before the probe. */
static void update_arena_properties(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        if (xseg_segment_is_expandable(segment) && atomic_load(&segment->mapped) == 0 &&
            segment->unknown == 0)
            segment->properties = xseg_pool_properties(arena->pool);
    }
}

static void update_properties(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        update_arena_properties(arena);
    }
}

/* --- Exports. --- */

/* Create a page with a fabric handle, or without a fabric handle if the driver rejects it. */
static xseg_status create_probe_page(struct xseg_device *device, uint64_t *handle)
{
    struct xseg_context *context = &device->context;
    struct xseg_sharing *sharing = device->sharing;
    uint8_t fabric[XSEG_DRIVER_FABRIC_BYTES];

    context->has_fabric = true;
    xseg_status status =
        xseg_driver_create(context, context->granularity, XSEG_PAGE_EXPORTABLE, handle);
    const bool is_created = status == XSEG_OK;
    if (is_created)
        status = xseg_driver_export_fabric(context, *handle, fabric);
    context->has_fabric = status == XSEG_OK;
    if (status == XSEG_OK || status == XSEG_ERR_DEVICE_LOST || status == XSEG_ERR_NO_MEMORY)
        return status;
    copy_reason(sharing->no_fabric_reason, sizeof(sharing->no_fabric_reason));
    return is_created
               ? XSEG_OK
               : xseg_driver_create(context, context->granularity, XSEG_PAGE_EXPORTABLE, handle);
}

/* Create a page, export it, and release it. */
static xseg_status probe_export_page(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exportable;
    struct xseg_context *context = &device->context;
    uint64_t handle = 0;
    int fd = -1;
    xseg_status status = create_probe_page(device, &handle);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status != XSEG_OK)
        return status;
    status = xseg_driver_export(context, handle, &fd);
    copy_reason(probe->reason, sizeof(probe->reason));
    if (status == XSEG_OK)
        (void)close(fd);
    (void)xseg_unreleased_release(
        &device->unreleased,
        (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, context->granularity, 0});
    return status == XSEG_OK ? XSEG_OK : xseg_fail(status, "%s", probe->reason);
}

/* Make the default pool exportable if the configuration requires it.  All pages of a pool have the
 * same properties, so the change is deferred until the pool has no reserved memory. */
static void configure_default_pool(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exportable;
    bool *exportable = &device->pool.options.exportable;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                probe->result == XSEG_PAGE_PROBE_SUPPORTED);
    if (probe->is_configured && !*exportable && atomic_load(&device->pool.reserved) == 0) {
        *exportable = true;
        update_properties(device);
    }
    probe->is_deferred = probe->is_configured && !*exportable;
}

static xseg_status probe_export(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exportable;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (!xseg_device_makes_pages(device))
        return xseg_fail(
            XSEG_ERR_UNSUPPORTED,
            "memory of device %d cannot be exported, virtual memory management is not available",
            device->context.ordinal);
    if (probe->result == XSEG_PAGE_PROBE_UNSUPPORTED)
        return xseg_page_probe_fail_export(device->sharing);
    const xseg_status status =
        probe->result == XSEG_PAGE_PROBE_SUPPORTED ? XSEG_OK : probe_export_page(device);
    if (status == XSEG_OK) {
        probe->result = XSEG_PAGE_PROBE_SUPPORTED;
        configure_default_pool(device);
    }
    if (status == XSEG_ERR_NO_MEMORY)
        probe->is_deferred = true;
    if (status != XSEG_ERR_UNSUPPORTED)
        return status == XSEG_ERR_NO_MEMORY ? XSEG_OK : status;
    copy_reason(probe->reason, sizeof(probe->reason));
    probe->result = XSEG_PAGE_PROBE_UNSUPPORTED;
    probe->is_deferred = false;
    return xseg_page_probe_fail_export(device->sharing);
}

xseg_status xseg_page_probe_export(struct xseg_device *device, bool *supported)
{
    struct xseg_sharing *sharing = device->sharing;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = probe_export(device);
    *supported = sharing->exportable.result == XSEG_PAGE_PROBE_SUPPORTED;
    update_deferred(sharing);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_page_probe_fabric(struct xseg_device *device)
{
    const struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (sharing->exportable.result == XSEG_PAGE_PROBE_NONE)
        status = probe_export(device);
    update_deferred(device->sharing);
    if (status != XSEG_OK || device->context.has_fabric)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "memory of device %d has no fabric handles, %s; use XSEG_HANDLE_FD on this "
                     "host",
                     device->context.ordinal,
                     sharing->exportable.result == XSEG_PAGE_PROBE_NONE
                         ? "out of memory for a probe"
                         : sharing->no_fabric_reason);
}

/* --- Network adapters. --- */

/* Map pages that network adapters can access, and release them. */
static xseg_status probe_rdma(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->rdma;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const xseg_status status =
        xseg_context_probe_pages(&device->context, &device->unreleased, XSEG_PAGE_RDMA);
    probe->is_deferred = status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_NO_ADDRESSES;
    if (probe->is_deferred || status == XSEG_ERR_DEVICE_LOST)
        return status;
    if (status != XSEG_OK) {
        /* The error code for an unsupported property is not documented: treat every other error as
         * unsupported. */
        copy_reason(probe->reason, sizeof(probe->reason));
        probe->result = XSEG_PAGE_PROBE_UNSUPPORTED;
        return XSEG_ERR_UNSUPPORTED;
    }
    probe->result = XSEG_PAGE_PROBE_SUPPORTED;
    device->context.has_rdma = true;
    update_properties(device);
    return XSEG_OK;
}

xseg_status xseg_page_probe_rdma(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!xseg_device_makes_pages(device))
        return XSEG_OK;
    xseg_mutex_lock(&device->memory_lock);
    const bool is_first = sharing->rdma.result == XSEG_PAGE_PROBE_NONE;
    if (is_first)
        status = probe_rdma(device);
    update_deferred(sharing);
    xseg_mutex_unlock(&device->memory_lock);
    if (status == XSEG_ERR_UNSUPPORTED)
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "device %d: rdma has no effect, %s", device->context.ordinal,
                      sharing->rdma.reason);
    return status == XSEG_ERR_DEVICE_LOST ? status : XSEG_OK;
}

/* --- Deferred probes. --- */

void xseg_page_probe_retry(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    bool supported = false;

    xseg_mutex_lock(&device->memory_lock);
    const bool retry_export = sharing->exportable.is_deferred,
               retry_rdma = sharing->rdma.is_deferred;
    xseg_mutex_unlock(&device->memory_lock);
    if (retry_rdma)
        (void)xseg_page_probe_rdma(device);
    /* The growth reports other errors of the driver. */
    if (retry_export && xseg_page_probe_export(device, &supported) == XSEG_ERR_UNSUPPORTED &&
        sharing->exportable.is_configured)
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "device %d: exportable has no effect, %s", device->context.ordinal,
                      sharing->exportable.reason);
}
