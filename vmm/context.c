/* SPDX-License-Identifier: MIT */
#include "vmm/context.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "vmm/free_memory.h"

/* One page tests a mapping; a second one tests whether one call can cover both. */
#define PROBE_PAGES 2u

struct probe {
    struct xseg_context *context;
    unsigned properties; /* of the pages */
    uint64_t base, page_bytes;
    uint64_t handle[PROBE_PAGES];
    unsigned created, mapped;
};

static xseg_status map_probe_pages(struct probe *probe)
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

static xseg_status probe_access(struct probe *probe)
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

static xseg_status probe_unmap(struct probe *probe)
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

/* Release the memory and the VA range of a probe.  Objects that the driver does not release become
 * unreleased. */
static void release_probe(struct probe *probe, struct xseg_unreleased_list *unreleased)
{
    for (unsigned page = 0; page < probe->created; page++) {
        const uint64_t address = probe->base + page * probe->page_bytes;

        (void)xseg_unreleased_release(
            unreleased,
            (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, probe->handle[page], probe->page_bytes,
                                     page < probe->mapped ? address : 0});
    }
    (void)xseg_unreleased_release(unreleased,
                                  (struct xseg_unreleased){XSEG_UNRELEASED_RANGE, probe->base,
                                                           PROBE_PAGES * probe->page_bytes, 0});
}

/* Query whether network cards can access the pages, because a driver may ignore the property. */
static xseg_status probe_rdma(const struct probe *probe)
{
    bool is_capable = true;
    xseg_status status = XSEG_OK;

    if ((probe->properties & XSEG_PAGE_RDMA) != 0)
        status = xseg_driver_is_rdma_capable(probe->context, probe->base, &is_capable);
    if (status != XSEG_OK || is_capable)
        return status;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "driver ignores the flag for GPUDirect RDMA "
                     "(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE is 0)");
}

static xseg_status probe_pages(struct xseg_context *context,
                               struct xseg_unreleased_list *unreleased, unsigned properties)
{
    struct probe probe = {
        .context = context, .properties = properties, .page_bytes = context->granularity};
    xseg_status status =
        xseg_driver_reserve(context, PROBE_PAGES * probe.page_bytes, 0, &probe.base);

    if (status != XSEG_OK)
        return status;
    status = map_probe_pages(&probe);
    if (status == XSEG_OK)
        status = probe_access(&probe);
    if (status == XSEG_OK)
        status = probe_rdma(&probe);
    if (status == XSEG_OK)
        status = probe_unmap(&probe);
    release_probe(&probe, unreleased);
    return status;
}

/* Release the context after a failed open, and keep the error message. */
static xseg_status fail_open(struct xseg_context *context, xseg_status status)
{
    char reason[256];

    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    xseg_driver_release_context_or_keep(context);
    return xseg_fail(status, "%s", reason);
}

bool xseg_context_has_ample_memory(struct xseg_context *context, uint64_t bytes, uint64_t *free)
{
    struct xseg_fail_saved saved;
    uint64_t total = 0;

    xseg_fail_save(&saved);
    *free = 0;
    (void)xseg_free_memory_query(context, free, &total);
    xseg_fail_restore(&saved);
    return *free >= xseg_context_ample_bytes(context, bytes);
}

/* Whether cuMemAlloc() can allocate as much memory as a probe. */
static bool can_allocate_classic(struct xseg_context *context,
                                 struct xseg_unreleased_list *unreleased)
{
    const uint64_t bytes = PROBE_PAGES * context->granularity;
    uint64_t address = 0;

    if (xseg_driver_alloc(context, bytes, &address) != XSEG_OK)
        return false;
    (void)xseg_unreleased_release(
        unreleased, (struct xseg_unreleased){XSEG_UNRELEASED_ALLOCATION, address, bytes, 0});
    return true;
}

/* Whether a probe that ran out of memory failed for another reason: ample memory is free before a
 * second probe, and cuMemAlloc() works after it.  Memory that other processes allocate or free
 * during the probes does not invalidate this check.  *status: of the second probe, if any */
static bool is_oom_spurious(struct xseg_context *context, struct xseg_unreleased_list *unreleased,
                            xseg_status *status, char *reason, size_t reason_bytes)
{
    uint64_t free = 0;

    if (!xseg_context_has_ample_memory(context, PROBE_PAGES * context->granularity, &free))
        return false;
    *status = probe_pages(context, unreleased, 0);
    if (*status != XSEG_ERR_NO_MEMORY)
        return false;
    (void)snprintf(reason, reason_bytes, "%s with %" PRIu64 " MiB free, while cuMemAlloc works",
                   xseg_fail_detail(), free >> 20);
    if (can_allocate_classic(context, unreleased))
        return true;
    reason[0] = '\0';
    return false;
}

xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_unreleased_list *unreleased, char *reason,
                              size_t reason_bytes)
{
    xseg_status status;

    *context = (struct xseg_context){.driver = driver, .ordinal = ordinal};
    reason[0] = '\0';
    status = xseg_driver_retain(context);
    if (status != XSEG_OK)
        return status;
    status = xseg_driver_describe(context);
    if (status != XSEG_OK)
        return fail_open(context, status);
    if (!context->has_vmm) {
        (void)snprintf(reason, reason_bytes,
                       "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0");
        return XSEG_OK;
    }
    status = probe_pages(context, unreleased, 0);
    if (status == XSEG_ERR_NO_MEMORY &&
        is_oom_spurious(context, unreleased, &status, reason, reason_bytes)) {
        context->has_vmm = false;
    } else if (status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_NO_ADDRESSES) {
        /* On a full device, or without VA space, the probe is inconclusive: assume that batches
         * work.  Growth falls back to single calls, and reports the error. */
        context->batches_access = context->batches_unmap = true;
    } else if (status == XSEG_ERR_DEVICE_LOST) {
        return fail_open(context, status);
    } else if (status != XSEG_OK) {
        context->has_vmm = false;
        (void)snprintf(reason, reason_bytes, "%s", xseg_fail_detail());
    }
    return XSEG_OK;
}

xseg_status xseg_context_probe_pages(struct xseg_context *context,
                                     struct xseg_unreleased_list *unreleased, unsigned properties)
{
    const bool batches_access = context->batches_access, batches_unmap = context->batches_unmap;
    const xseg_status status = probe_pages(context, unreleased, properties);

    /* Keep the batching capabilities that xseg_context_open() has probed. */
    context->batches_access = batches_access;
    context->batches_unmap = batches_unmap;
    return status;
}

void xseg_context_retain_again(struct xseg_context *context)
{
    if (context->primary == NULL && xseg_driver_retain(context) != XSEG_OK)
        xseg_driver_mark_lost(context, "context could not be retained");
}

/* --- Peers. --- */

bool xseg_context_has_peer(const struct xseg_context *owner, const struct xseg_context *peer)
{
    for (unsigned i = 0; i < owner->peers; i++)
        if (owner->peer[i] == peer->device)
            return true;
    return false;
}

void xseg_context_add_peer(struct xseg_context *owner, const struct xseg_context *peer)
{
    XSEG_ASSERT(owner->peers < XSEG_PEERS_MAX && !xseg_context_has_peer(owner, peer));
    owner->peer[owner->peers++] = peer->device;
}

void xseg_context_remove_peer(struct xseg_context *owner, const struct xseg_context *peer)
{
    unsigned index = 0;

    XSEG_ASSERT(xseg_context_has_peer(owner, peer));
    while (owner->peer[index] != peer->device)
        index++;
    owner->peer[index] = owner->peer[--owner->peers];
}
