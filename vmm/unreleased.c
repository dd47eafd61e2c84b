/* SPDX-License-Identifier: MIT */
#include "vmm/unreleased.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"

/* Room made ahead: far more than a driver has been seen to refuse at once.  The number is a choice. */
#define FIRST_CAPACITY 256u

xseg_status xseg_unreleased_init(struct xseg_unreleased_list *unreleased,
                                 struct xseg_context *context)
{
    unreleased->context = context;
    unreleased->count = 0;
    unreleased->capacity = FIRST_CAPACITY;
    unreleased->lost = 0;
    atomic_init(&unreleased->physical, 0);
    atomic_init(&unreleased->unknown, 0);
    unreleased->kept = malloc(FIRST_CAPACITY * sizeof(*unreleased->kept));
    if (unreleased->kept == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of unreleased memory");
    return XSEG_OK;
}

void xseg_unreleased_fini(struct xseg_unreleased_list *unreleased)
{
    free(unreleased->kept);
    unreleased->kept = NULL;
}

xseg_status xseg_unreleased_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                  bool *is_known)
{
    const xseg_status status = xseg_driver_unmap(context, address, bytes);
    bool mapped = true;
    char reason[256];

    *is_known = true;
    if (status == XSEG_OK)
        return XSEG_OK;
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    *is_known = xseg_driver_is_mapped(context, address, &mapped) == XSEG_OK;
    return mapped ? xseg_fail(status, "%s", reason) : XSEG_OK;
}

static xseg_status offer_page(struct xseg_context *context, struct xseg_unreleased *page)
{
    xseg_status status = XSEG_OK;
    bool is_known = true;

    if (page->mapped_at != 0)
        status = xseg_unreleased_unmap(context, page->mapped_at, page->bytes, &is_known);
    if (status != XSEG_OK)
        return status;
    page->mapped_at = 0;
    return xseg_driver_release(context, page->what);
}

/* Offer one thing to the driver.  A mapping of which it is not known whether it is there is offered again later. */
static xseg_status offer(struct xseg_context *context, struct xseg_unreleased *entry)
{
    bool is_known = true;

    switch (entry->kind) {
    case XSEG_UNRELEASED_PAGE:
        return offer_page(context, entry);
    case XSEG_UNRELEASED_ALLOCATION:
        return xseg_driver_free(context, entry->what);
    case XSEG_UNRELEASED_HOST:
        return xseg_driver_host_free(
            context, (void *)(uintptr_t)entry->what); /* NOLINT(performance-no-int-to-ptr) */
    case XSEG_UNRELEASED_MAPPING:
        return xseg_unreleased_unmap(context, entry->what, entry->bytes, &is_known);
    case XSEG_UNRELEASED_RANGE:
        break;
    }
    return xseg_driver_unreserve(context, entry->what, entry->bytes);
}

static uint64_t physical_of(const struct xseg_unreleased *entry)
{
    return entry->kind == XSEG_UNRELEASED_PAGE || entry->kind == XSEG_UNRELEASED_ALLOCATION
               ? entry->bytes
               : 0;
}

static void keep(struct xseg_unreleased_list *unreleased, const struct xseg_unreleased *entry)
{
    atomic_fetch_add_explicit(&unreleased->physical, physical_of(entry), memory_order_relaxed);
    if (unreleased->count == unreleased->capacity) {
        const size_t capacity = unreleased->capacity * 2;
        struct xseg_unreleased *kept = realloc(unreleased->kept, capacity * sizeof(*kept));

        /* Without host memory the thing cannot be kept: it is lost until the process ends, and still counted in
         * `physical`. */
        if (kept == NULL) {
            unreleased->lost += physical_of(entry);
            return;
        }
        unreleased->kept = kept;
        unreleased->capacity = capacity;
    }
    unreleased->kept[unreleased->count++] = *entry;
}

static xseg_status give(struct xseg_unreleased_list *unreleased, struct xseg_unreleased entry)
{
    const xseg_status status = offer(unreleased->context, &entry);

    if (status != XSEG_OK)
        keep(unreleased, &entry);
    return status;
}

xseg_status xseg_unreleased_release(struct xseg_unreleased_list *unreleased,
                                    enum xseg_unreleased_kind kind, uint64_t what, uint64_t bytes)
{
    return give(unreleased, (struct xseg_unreleased){kind, what, bytes, 0});
}

xseg_status xseg_unreleased_release_mapped(struct xseg_unreleased_list *unreleased, uint64_t handle,
                                           uint64_t address, uint64_t bytes)
{
    return give(unreleased, (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, bytes, address});
}

xseg_status xseg_unreleased_retry(struct xseg_unreleased_list *unreleased)
{
    xseg_status first = XSEG_OK;
    size_t left = 0;

    for (size_t i = 0; i < unreleased->count; i++) {
        struct xseg_unreleased entry = unreleased->kept[i];
        const xseg_status status = offer(unreleased->context, &entry);

        if (status == XSEG_OK) {
            atomic_fetch_sub_explicit(&unreleased->physical, physical_of(&entry),
                                      memory_order_relaxed);
            continue;
        }
        first = first == XSEG_OK ? status : first;
        unreleased->kept[left++] = entry;
    }
    unreleased->count = left;
    return first;
}

bool xseg_unreleased_audit(const struct xseg_unreleased_list *unreleased,
                           struct xseg_violation *violation)
{
    uint64_t sum = unreleased->lost;

    for (size_t i = 0; i < unreleased->count; i++)
        sum += physical_of(&unreleased->kept[i]);
    XSEG_INVARIANT(violation, "LEFT-1", sum == atomic_load(&unreleased->physical),
                   "physical is %" PRIu64 ", sum of the records is %" PRIu64,
                   (uint64_t)atomic_load(&unreleased->physical), sum);
    return true;
}
