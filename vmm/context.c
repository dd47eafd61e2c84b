/* SPDX-License-Identifier: MIT */
#include "vmm/context.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"

/* Pages of the trial: one shows that a mapping works, two that one call works over both. */
#define TRIAL_PAGES 2u

struct trial {
    struct xseg_context *context;
    unsigned properties; /* of the pages */
    uint64_t base, page_bytes;
    uint64_t handle[TRIAL_PAGES];
    unsigned created, mapped;
};

static xseg_status fill(struct trial *trial)
{
    struct xseg_context *context = trial->context;
    xseg_status status = XSEG_OK;

    while (trial->created < TRIAL_PAGES && status == XSEG_OK) {
        status = xseg_driver_create(context, trial->page_bytes, trial->properties,
                                    &trial->handle[trial->created]);
        trial->created += status == XSEG_OK;
    }
    while (trial->mapped < TRIAL_PAGES && status == XSEG_OK) {
        status = xseg_driver_map(context, trial->base + trial->mapped * trial->page_bytes,
                                 trial->page_bytes, trial->handle[trial->mapped]);
        trial->mapped += status == XSEG_OK;
    }
    return status;
}

static xseg_status try_access(struct trial *trial)
{
    struct xseg_context *context = trial->context;
    xseg_status status = XSEG_OK;

    context->batches_access =
        xseg_driver_set_access(context, trial->base, TRIAL_PAGES * trial->page_bytes) == XSEG_OK;
    if (context->batches_access)
        return XSEG_OK;
    for (unsigned page = 0; page < TRIAL_PAGES && status == XSEG_OK; page++)
        status = xseg_driver_set_access(context, trial->base + page * trial->page_bytes,
                                        trial->page_bytes);
    return status;
}

static xseg_status try_unmap(struct trial *trial)
{
    struct xseg_context *context = trial->context;
    xseg_status status = XSEG_OK;

    context->batches_unmap =
        xseg_driver_unmap(context, trial->base, TRIAL_PAGES * trial->page_bytes) == XSEG_OK;
    if (context->batches_unmap)
        trial->mapped = 0;
    while (trial->mapped > 0 && status == XSEG_OK) {
        status = xseg_driver_unmap(context, trial->base + (trial->mapped - 1) * trial->page_bytes,
                                   trial->page_bytes);
        trial->mapped -= status == XSEG_OK;
    }
    return status;
}

/* Give back the memory and the addresses of the trial; what the driver refuses is a leftover. */
static void clean_up(struct trial *trial, struct xseg_leftovers *leftovers)
{
    for (unsigned page = 0; page < trial->created; page++) {
        const uint64_t address = trial->base + page * trial->page_bytes;

        (void)xseg_leftovers_give_mapped(leftovers, trial->handle[page],
                                         page < trial->mapped ? address : 0, trial->page_bytes);
    }
    (void)xseg_leftovers_give(leftovers, XSEG_LEFTOVER_RANGE, trial->base,
                              TRIAL_PAGES * trial->page_bytes);
}

/* Whether network cards may reach the pages: a driver may take the property for a wish. */
static xseg_status try_reach(const struct trial *trial)
{
    bool is_reachable = true;
    xseg_status status = XSEG_OK;

    if ((trial->properties & XSEG_PAGE_RDMA) != 0)
        status = xseg_driver_is_reachable(trial->context, trial->base, &is_reachable);
    if (status != XSEG_OK || is_reachable)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "driver ignores the flag for GPUDirect RDMA "
                     "(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE is 0)");
}

static xseg_status try_pages(struct xseg_context *context, struct xseg_leftovers *leftovers,
                             unsigned properties)
{
    struct trial trial = {
        .context = context, .properties = properties, .page_bytes = context->granularity};
    xseg_status status =
        xseg_driver_reserve(context, TRIAL_PAGES * trial.page_bytes, 0, &trial.base);

    if (status != XSEG_OK)
        return status;
    status = fill(&trial);
    if (status == XSEG_OK)
        status = try_access(&trial);
    if (status == XSEG_OK)
        status = try_reach(&trial);
    if (status == XSEG_OK)
        status = try_unmap(&trial);
    clean_up(&trial, leftovers);
    return status;
}

/* Let go of the context after opening has failed. */
static xseg_status give_up(struct xseg_context *context, xseg_status status)
{
    char reason[256];

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    xseg_driver_let_go_or_keep(context);
    return xseg_fail(status, "%s", reason);
}

bool xseg_context_has_plenty(struct xseg_context *context, uint64_t bytes, uint64_t *free)
{
    struct xseg_fail_kept kept;
    uint64_t total = 0;

    xseg_fail_keep(&kept);
    *free = 0;
    (void)xseg_driver_memory(context, free, &total);
    xseg_fail_restore(&kept);
    return *free >= xseg_context_plenty(context, bytes);
}

/* Allocate as much as a trial takes, and give it back. */
static bool can_allocate(struct xseg_context *context, struct xseg_leftovers *leftovers)
{
    const uint64_t bytes = TRIAL_PAGES * context->granularity;
    uint64_t address = 0;

    if (xseg_driver_alloc(context, bytes, &address) != XSEG_OK)
        return false;
    (void)xseg_leftovers_give(leftovers, XSEG_LEFTOVER_ALLOCATION, address, bytes);
    return true;
}

/*
 * Whether a trial that found no memory was refused for another reason: plenty is free before it is made once more, and
 * cuMemAlloc has memory after it.  So memory that others free or take meanwhile does not mislead.
 *
 * status: of the second trial, if it was made
 */
static bool is_no_shortage(struct xseg_context *context, struct xseg_leftovers *leftovers,
                           xseg_status *status, char *why, size_t why_bytes)
{
    uint64_t free = 0;

    if (!xseg_context_has_plenty(context, TRIAL_PAGES * context->granularity, &free))
        return false;
    *status = try_pages(context, leftovers, 0);
    if (*status != XSEG_ERR_NO_MEMORY)
        return false;
    (void)snprintf(why, why_bytes, "%s with %" PRIu64 " MiB free, while cuMemAlloc works",
                   xseg_fail_detail(), free >> 20);
    if (can_allocate(context, leftovers))
        return true;
    why[0] = '\0';
    return false;
}

xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_leftovers *leftovers, char *why, size_t why_bytes)
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
    status = try_pages(context, leftovers, 0);
    if (status == XSEG_ERR_NO_MEMORY &&
        is_no_shortage(context, leftovers, &status, why, why_bytes)) {
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

xseg_status xseg_context_try(struct xseg_context *context, struct xseg_leftovers *leftovers,
                             unsigned properties)
{
    const bool access = context->batches_access, unmap = context->batches_unmap;
    const xseg_status status = try_pages(context, leftovers, properties);

    /* What the trial of the opening has shown of batches stays. */
    context->batches_access = access;
    context->batches_unmap = unmap;
    return status;
}

xseg_status xseg_context_close(struct xseg_context *context)
{
    return xseg_driver_let_go(context);
}

void xseg_context_reopen(struct xseg_context *context)
{
    if (context->primary == NULL && xseg_driver_retain(context) != XSEG_OK)
        xseg_driver_note_lost(context, "context could not be retained");
}
