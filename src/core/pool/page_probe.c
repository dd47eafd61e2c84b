/* SPDX-License-Identifier: MIT */
#include "src/core/pool/page_probe.h"

#include <stdio.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "vmm/context.h"

/* --- The results. --- */

xseg_status xseg_page_probe_refuse(const struct xseg_sharing *sharing)
{
    const struct xseg_page_probe *probe = &sharing->exporting;

    XSEG_ASSERT(probe->verdict == XSEG_PAGE_PROBE_REFUSED && probe->why[0] != '\0');
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "memory of the device cannot be exported, %s",
                     probe->why);
}

/* Keep the text of the error in hand as the reason. */
static void keep_reason(char *why, size_t bytes)
{
    (void)snprintf(why, bytes, "%s", xseg_fail_detail());
}

static void note_owed(struct xseg_sharing *sharing)
{
    const bool is_owed = sharing->exporting.is_owed || sharing->rdma.is_owed;

    atomic_store_explicit(&sharing->is_owed, is_owed, memory_order_relaxed);
}

/* Give the segments without memory, which were made before the trial, the properties that their pools have now. */
static void set_properties(void *self, struct xseg_arena *arena)
{
    (void)self;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        if (xseg_segment_is_expandable(segment) && atomic_load(&segment->mapped) == 0 &&
            segment->unknown == 0)
            segment->properties = xseg_pool_properties(arena->pool);
    }
}

static void set_all_properties(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_device_visit_arenas(device, set_properties, NULL);
}

/* --- Exporting. --- */

/* Create a page with fabric handles; without, where the driver refuses that. */
static xseg_status create_page(struct xseg_device *device, uint64_t *handle)
{
    struct xseg_context *context = &device->context;
    struct xseg_sharing *sharing = device->sharing;
    uint8_t fabric[XSEG_DRIVER_FABRIC_BYTES];

    context->has_fabric = true;
    xseg_status status =
        xseg_driver_create(context, context->granularity, XSEG_PAGE_EXPORTABLE, handle);
    const bool is_made = status == XSEG_OK;
    if (is_made)
        status = xseg_driver_export_fabric(context, *handle, fabric);
    context->has_fabric = status == XSEG_OK;
    if (status == XSEG_OK || status == XSEG_ERR_DEVICE_LOST || status == XSEG_ERR_NO_MEMORY)
        return status;
    keep_reason(sharing->why_no_fabric, sizeof(sharing->why_no_fabric));
    return is_made
               ? XSEG_OK
               : xseg_driver_create(context, context->granularity, XSEG_PAGE_EXPORTABLE, handle);
}

/* Create a page, export it, and release it. */
static xseg_status try_page(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exporting;
    struct xseg_context *context = &device->context;
    uint64_t handle = 0;
    int file = -1;
    xseg_status status = create_page(device, &handle);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status != XSEG_OK)
        return status;
    status = xseg_driver_export(context, handle, &file);
    keep_reason(probe->why, sizeof(probe->why));
    if (status == XSEG_OK)
        (void)close(file);
    (void)xseg_unreleased_release(&device->unreleased, XSEG_UNRELEASED_PAGE, handle,
                                  context->granularity);
    return status == XSEG_OK ? XSEG_OK : xseg_fail(status, "%s", probe->why);
}

/* The trial has worked, so the default pool becomes exportable if it is to.  All its pages are of one kind: while it has
 * memory that was made before, it stays as it is. */
static void follow(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exporting;
    bool *exportable = &device->pool.options.exportable;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                probe->verdict == XSEG_PAGE_PROBE_WORKS);
    if (probe->is_wanted && !*exportable && atomic_load(&device->pool.reserved) == 0) {
        *exportable = true;
        set_all_properties(device);
    }
    probe->is_owed = probe->is_wanted && !*exportable;
}

static xseg_status try_export(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->exporting;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (!xseg_device_makes_pages(device))
        return xseg_fail(
            XSEG_ERR_UNSUPPORTED,
            "memory of device %d cannot be exported, virtual memory management is not available",
            device->context.ordinal);
    if (probe->verdict == XSEG_PAGE_PROBE_REFUSED)
        return xseg_page_probe_refuse(device->sharing);
    const xseg_status status = probe->verdict == XSEG_PAGE_PROBE_WORKS ? XSEG_OK : try_page(device);
    if (status == XSEG_OK) {
        probe->verdict = XSEG_PAGE_PROBE_WORKS;
        follow(device);
    }
    if (status == XSEG_ERR_NO_MEMORY)
        probe->is_owed = true;
    if (status != XSEG_ERR_UNSUPPORTED)
        return status == XSEG_ERR_NO_MEMORY ? XSEG_OK : status;
    keep_reason(probe->why, sizeof(probe->why));
    probe->verdict = XSEG_PAGE_PROBE_REFUSED;
    probe->is_owed = false;
    return xseg_page_probe_refuse(device->sharing);
}

xseg_status xseg_page_probe_export(struct xseg_device *device, bool *works)
{
    struct xseg_sharing *sharing = device->sharing;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_lock(&device->growth_lock);
    const xseg_status status = try_export(device);
    *works = sharing->exporting.verdict == XSEG_PAGE_PROBE_WORKS;
    note_owed(sharing);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_page_probe_fabric(struct xseg_device *device)
{
    const struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (sharing->exporting.verdict == XSEG_PAGE_PROBE_UNTRIED)
        status = try_export(device);
    note_owed(device->sharing);
    if (status != XSEG_OK || device->context.has_fabric)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "memory of device %d has no fabric handles, %s; use XSEG_HANDLE_FD on this "
                     "host",
                     device->context.ordinal,
                     sharing->exporting.verdict == XSEG_PAGE_PROBE_UNTRIED
                         ? "out of memory for a probe"
                         : sharing->why_no_fabric);
}

/* --- Network cards. --- */

/* Map pages that network cards may reach, and let go of them. */
static xseg_status try_rdma(struct xseg_device *device)
{
    struct xseg_page_probe *probe = &device->sharing->rdma;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const xseg_status status =
        xseg_context_probe_pages(&device->context, &device->unreleased, XSEG_PAGE_RDMA);
    probe->is_owed = status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_NO_ADDRESSES;
    if (probe->is_owed || status == XSEG_ERR_DEVICE_LOST)
        return status;
    if (status != XSEG_OK) {
        /* Which error a driver gives for the property alone is written nowhere, so each of them is a refusal. */
        keep_reason(probe->why, sizeof(probe->why));
        probe->verdict = XSEG_PAGE_PROBE_REFUSED;
        return XSEG_ERR_UNSUPPORTED;
    }
    probe->verdict = XSEG_PAGE_PROBE_WORKS;
    device->context.has_rdma = true;
    set_all_properties(device);
    return XSEG_OK;
}

xseg_status xseg_page_probe_rdma(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!xseg_device_makes_pages(device))
        return XSEG_OK;
    xseg_mutex_lock(&device->growth_lock);
    const bool is_untried = sharing->rdma.verdict == XSEG_PAGE_PROBE_UNTRIED;
    if (is_untried)
        status = try_rdma(device);
    note_owed(sharing);
    xseg_mutex_unlock(&device->growth_lock);
    if (status == XSEG_ERR_UNSUPPORTED)
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "device %d: rdma has no effect, %s", device->context.ordinal,
                      sharing->rdma.why);
    return status == XSEG_ERR_DEVICE_LOST ? status : XSEG_OK;
}

/* --- What is owed. --- */

void xseg_page_probe_again(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    bool works = false;

    xseg_mutex_lock(&device->growth_lock);
    const bool owes_export = sharing->exporting.is_owed, owes_rdma = sharing->rdma.is_owed;
    xseg_mutex_unlock(&device->growth_lock);
    if (owes_rdma)
        (void)xseg_page_probe_rdma(device);
    /* Another error of the driver is the growth's to find. */
    if (owes_export && xseg_page_probe_export(device, &works) == XSEG_ERR_UNSUPPORTED &&
        sharing->exporting.is_wanted)
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "device %d: exportable has no effect, %s", device->context.ordinal,
                      sharing->exporting.why);
}
