/* SPDX-License-Identifier: MIT */
#include "src/core/pools/share_trial.h"

#include <stdio.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"

xseg_status xseg_share_trial_refuse(struct xseg_sharing *sharing)
{
    XSEG_ASSERT(sharing->verdict == XSEG_SHARE_REFUSED && sharing->why[0] != '\0');
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "memory of this device cannot be exported: %s",
                     sharing->why);
}

/* Create a page with fabric handles; without, where the driver refuses that. */
static xseg_status create_page(struct xseg_device *device, uint64_t *handle)
{
    struct xseg_context *context = &device->context;
    uint8_t fabric[XSEG_DRIVER_FABRIC_BYTES];

    context->has_fabric = true;
    xseg_status status = xseg_driver_create(context, context->granularity, true, handle);
    const bool is_made = status == XSEG_OK;
    if (is_made)
        status = xseg_driver_export_fabric(context, *handle, fabric);
    context->has_fabric = status == XSEG_OK;
    if (status == XSEG_OK || status == XSEG_ERR_DEVICE_LOST || status == XSEG_ERR_NO_MEMORY)
        return status;
    (void)snprintf(device->sharing->why_no_fabric, sizeof(device->sharing->why_no_fabric), "%s",
                   xseg_fail_text()->buffer);
    return is_made ? XSEG_OK : xseg_driver_create(context, context->granularity, true, handle);
}

/* Create a page, export it, and release it. */
static xseg_status try_page(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    struct xseg_context *context = &device->context;
    uint64_t handle = 0;
    int file = -1;
    xseg_status status = create_page(device, &handle);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (status != XSEG_OK)
        return status;
    status = xseg_driver_export(context, handle, &file);
    (void)snprintf(sharing->why, sizeof(sharing->why), "%s", xseg_fail_text()->buffer);
    if (status == XSEG_OK)
        (void)close(file);
    (void)xseg_leftovers_give(&device->leftovers, XSEG_LEFTOVER_PAGE, handle, context->granularity);
    return status == XSEG_OK ? XSEG_OK : xseg_fail(status, "%s", sharing->why);
}

static void set_owed(struct xseg_sharing *sharing, bool is_owed)
{
    atomic_store_explicit(&sharing->is_owed, is_owed, memory_order_relaxed);
}

static void set_exportable(void *self, struct xseg_arena *arena)
{
    (void)self;
    if (arena->pool->is_private)
        return;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        XSEG_CONTAINER(node, struct xseg_extent, link)->segment.is_exportable = true;
    }
}

/* The trial has worked, so the default pool becomes exportable if it is to.  All its pages are of one kind: while it has
 * memory that was made before, it stays as it is. */
static void follow(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    bool *exportable = &device->pool_body.options.exportable;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && sharing->verdict == XSEG_SHARE_WORKS);
    if (sharing->is_wanted && !*exportable && atomic_load(&device->pool_body.reserved) == 0) {
        *exportable = true;
        xseg_device_visit_arenas(device, set_exportable, NULL);
    }
    set_owed(sharing, sharing->is_wanted && !*exportable);
}

static xseg_status try_device(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (!device->context.has_vmm)
        return xseg_fail(
            XSEG_ERR_UNSUPPORTED,
            "memory of this device cannot be exported: device %d has no virtual memory "
            "management",
            device->context.ordinal);
    if (sharing->verdict == XSEG_SHARE_REFUSED)
        return xseg_share_trial_refuse(sharing);
    const xseg_status status = sharing->verdict == XSEG_SHARE_WORKS ? XSEG_OK : try_page(device);
    if (status == XSEG_OK) {
        sharing->verdict = XSEG_SHARE_WORKS;
        follow(device);
    }
    if (status == XSEG_ERR_NO_MEMORY)
        set_owed(sharing, true);
    if (status != XSEG_ERR_UNSUPPORTED)
        return status == XSEG_ERR_NO_MEMORY ? XSEG_OK : status;
    (void)snprintf(sharing->why, sizeof(sharing->why), "%s", xseg_fail_text()->buffer);
    sharing->verdict = XSEG_SHARE_REFUSED;
    set_owed(sharing, false);
    return xseg_share_trial_refuse(sharing);
}

xseg_status xseg_share_trial(struct xseg_device *device, bool *works)
{
    XSEG_ASSERT(!xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_lock_take(&device->growth_lock);
    const xseg_status status = try_device(device);
    *works = device->sharing->verdict == XSEG_SHARE_WORKS;
    xseg_lock_give(&device->growth_lock);
    return status;
}

void xseg_share_trial_again(struct xseg_device *device)
{
    bool works = false;

    /* Another error of the driver is the growth's to find. */
    if (xseg_share_trial(device, &works) == XSEG_ERR_UNSUPPORTED && device->sharing->is_wanted)
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "device %d: exportable has no effect: %s", device->context.ordinal,
                      device->sharing->why);
}

xseg_status xseg_share_trial_fabric(struct xseg_device *device)
{
    const struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (sharing->verdict == XSEG_SHARE_UNTRIED)
        status = try_device(device);
    if (status != XSEG_OK || device->context.has_fabric)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "memory of device %d has no fabric handles: %s; share it by XSEG_SHARE_FD, "
                     "within this machine",
                     device->context.ordinal,
                     sharing->verdict == XSEG_SHARE_UNTRIED ? "memory is too short to try them"
                                                            : sharing->why_no_fabric);
}
