/* SPDX-License-Identifier: MIT */
#include "vmm/context.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"

/* Pages of the trial: one shows that a mapping works, two that one call works over both. */
#define PROBE_PAGES 2u

struct probe {
    struct xseg_context *context;
    unsigned properties; /* of the pages */
    uint64_t base, page_bytes;
    uint64_t handle[PROBE_PAGES];
    unsigned created, mapped;
};

static xseg_status fill(struct probe *probe)
{
    struct xseg_context *context = probe->context;
    xseg_status status = XSEG_OK;

    while (probe->created < PROBE_PAGES && status == XSEG_OK) {
        status = xseg_driver_create(context, probe->page_bytes, probe->properties,
                                    &probe->handle[probe->created]);
        probe->created += status == XSEG_OK;
    }
    while (probe->mapped < PROBE_PAGES && status == XSEG_OK) {
        status = xseg_driver_map(context, probe->base + probe->mapped * probe->page_bytes,
                                 probe->page_bytes, probe->handle[probe->mapped]);
        probe->mapped += status == XSEG_OK;
    }
    return status;
}

static xseg_status try_access(struct probe *probe)
{
    struct xseg_context *context = probe->context;
    xseg_status status = XSEG_OK;

    context->batches_access =
        xseg_driver_set_access(context, probe->base, PROBE_PAGES * probe->page_bytes) == XSEG_OK;
    if (context->batches_access)
        return XSEG_OK;
    for (unsigned page = 0; page < PROBE_PAGES && status == XSEG_OK; page++)
        status = xseg_driver_set_access(context, probe->base + page * probe->page_bytes,
                                        probe->page_bytes);
    return status;
}

static xseg_status try_unmap(struct probe *probe)
{
    struct xseg_context *context = probe->context;
    xseg_status status = XSEG_OK;

    context->batches_unmap =
        xseg_driver_unmap(context, probe->base, PROBE_PAGES * probe->page_bytes) == XSEG_OK;
    if (context->batches_unmap)
        probe->mapped = 0;
    while (probe->mapped > 0 && status == XSEG_OK) {
        status = xseg_driver_unmap(context, probe->base + (probe->mapped - 1) * probe->page_bytes,
                                   probe->page_bytes);
        probe->mapped -= status == XSEG_OK;
    }
    return status;
}

/* Give back the memory and the addresses of the trial; what the driver refuses is a leftover. */
static void clean_up(struct probe *probe, struct xseg_unreleased_list *unreleased)
{
    for (unsigned page = 0; page < probe->created; page++) {
        const uint64_t address = probe->base + page * probe->page_bytes;

        (void)xseg_unreleased_release_mapped(unreleased, probe->handle[page],
                                             page < probe->mapped ? address : 0, probe->page_bytes);
    }
    (void)xseg_unreleased_release(unreleased, XSEG_UNRELEASED_RANGE, probe->base,
                                  PROBE_PAGES * probe->page_bytes);
}

/* Whether network cards may reach the pages: a driver may take the property for a wish. */
static xseg_status try_reach(const struct probe *probe)
{
    bool is_reachable = true;
    xseg_status status = XSEG_OK;

    if ((probe->properties & XSEG_PAGE_RDMA) != 0)
        status = xseg_driver_is_rdma_capable(probe->context, probe->base, &is_reachable);
    if (status != XSEG_OK || is_reachable)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "driver ignores the flag for GPUDirect RDMA "
                     "(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE is 0)");
}

static xseg_status try_pages(struct xseg_context *context, struct xseg_unreleased_list *unreleased,
                             unsigned properties)
{
    struct probe probe = {
        .context = context, .properties = properties, .page_bytes = context->granularity};
    xseg_status status =
        xseg_driver_reserve(context, PROBE_PAGES * probe.page_bytes, 0, &probe.base);

    if (status != XSEG_OK)
        return status;
    status = fill(&probe);
    if (status == XSEG_OK)
        status = try_access(&probe);
    if (status == XSEG_OK)
        status = try_reach(&probe);
    if (status == XSEG_OK)
        status = try_unmap(&probe);
    clean_up(&probe, unreleased);
    return status;
}

/* Let go of the context after opening has failed. */
static xseg_status give_up(struct xseg_context *context, xseg_status status)
{
    char reason[256];

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    xseg_driver_release_context_or_keep(context);
    return xseg_fail(status, "%s", reason);
}

bool xseg_context_has_ample_memory(struct xseg_context *context, uint64_t bytes, uint64_t *free)
{
    struct xseg_fail_saved kept;
    uint64_t total = 0;

    xseg_fail_save(&kept);
    *free = 0;
    (void)xseg_driver_memory_info(context, free, &total);
    xseg_fail_restore(&kept);
    return *free >= xseg_context_ample_bytes(context, bytes);
}

/* Allocate as much as a trial takes, and give it back. */
static bool can_allocate(struct xseg_context *context, struct xseg_unreleased_list *unreleased)
{
    const uint64_t bytes = PROBE_PAGES * context->granularity;
    uint64_t address = 0;

    if (xseg_driver_alloc(context, bytes, &address) != XSEG_OK)
        return false;
    (void)xseg_unreleased_release(unreleased, XSEG_UNRELEASED_ALLOCATION, address, bytes);
    return true;
}

/*
 * Whether a trial that found no memory was refused for another reason: plenty is free before it is made once more, and
 * cuMemAlloc has memory after it.  So memory that others free or take meanwhile does not mislead.
 *
 * status: of the second trial, if it was made
 */
static bool is_no_shortage(struct xseg_context *context, struct xseg_unreleased_list *unreleased,
                           xseg_status *status, char *why, size_t why_bytes)
{
    uint64_t free = 0;

    if (!xseg_context_has_ample_memory(context, PROBE_PAGES * context->granularity, &free))
        return false;
    *status = try_pages(context, unreleased, 0);
    if (*status != XSEG_ERR_NO_MEMORY)
        return false;
    (void)snprintf(why, why_bytes, "%s with %" PRIu64 " MiB free, while cuMemAlloc works",
                   xseg_fail_detail(), free >> 20);
    if (can_allocate(context, unreleased))
        return true;
    why[0] = '\0';
    return false;
}

xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_unreleased_list *unreleased, char *why, size_t why_bytes)
{
    xseg_status status;

    *context = (struct xseg_context){.driver = driver, .ordinal = ordinal};
    why[0] = '\0';
    status = xseg_driver_retain(context);
    if (status != XSEG_OK)
        return status;
    status = xseg_driver_describe(context);
    if (status != XSEG_OK)
        return give_up(context, status);
    if (!context->has_vmm) {
        (void)snprintf(why, why_bytes,
                       "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0");
        return XSEG_OK;
    }
    status = try_pages(context, unreleased, 0);
    if (status == XSEG_ERR_NO_MEMORY &&
        is_no_shortage(context, unreleased, &status, why, why_bytes)) {
        context->has_vmm = false;
    } else if (status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_NO_ADDRESSES) {
        /* On a full device, or without addresses, the trial shows nothing: assume that batches work.  Growth falls
         * back call by call, and reports the shortage. */
        context->batches_access = context->batches_unmap = true;
    } else if (status == XSEG_ERR_DEVICE_LOST) {
        return give_up(context, status);
    } else if (status != XSEG_OK) {
        context->has_vmm = false;
        (void)snprintf(why, why_bytes, "%s", xseg_fail_detail());
    }
    return XSEG_OK;
}

xseg_status xseg_context_probe_pages(struct xseg_context *context,
                                     struct xseg_unreleased_list *unreleased, unsigned properties)
{
    const bool access = context->batches_access, unmap = context->batches_unmap;
    const xseg_status status = try_pages(context, unreleased, properties);

    /* What the trial of the opening has shown of batches stays. */
    context->batches_access = access;
    context->batches_unmap = unmap;
    return status;
}

void xseg_context_retain_again(struct xseg_context *context)
{
    if (context->primary == NULL && xseg_driver_retain(context) != XSEG_OK)
        xseg_driver_mark_lost(context, "context could not be retained");
}
