/* SPDX-License-Identifier: MIT */
#include "vmm/leftovers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"

/* Room made ahead: far more than a driver has been seen to refuse at once.  The number is a choice. */
#define FIRST_CAPACITY 256u

xseg_status xseg_leftovers_init(struct xseg_leftovers *leftovers, struct xseg_context *context)
{
    leftovers->context = context;
    leftovers->count = 0;
    leftovers->capacity = FIRST_CAPACITY;
    leftovers->lost = 0;
    atomic_init(&leftovers->physical, 0);
    atomic_init(&leftovers->stuck, 0);
    leftovers->kept = malloc(FIRST_CAPACITY * sizeof(*leftovers->kept));
    if (leftovers->kept == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of unreleased memory");
    return XSEG_OK;
}

void xseg_leftovers_fini(struct xseg_leftovers *leftovers)
{
    free(leftovers->kept);
    leftovers->kept = NULL;
}

xseg_status xseg_leftovers_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
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

static xseg_status offer_page(struct xseg_context *context, struct xseg_leftover *page)
{
    xseg_status status = XSEG_OK;
    bool is_known = true;

    if (page->mapped_at != 0)
        status = xseg_leftovers_unmap(context, page->mapped_at, page->bytes, &is_known);
    if (status != XSEG_OK)
        return status;
    page->mapped_at = 0;
    return xseg_driver_release(context, page->what);
}

/* Offer one thing to the driver.  A mapping of which it is not known whether it is there is offered again later. */
static xseg_status offer(struct xseg_context *context, struct xseg_leftover *leftover)
{
    bool is_known = true;

    switch (leftover->kind) {
    case XSEG_LEFTOVER_PAGE:
        return offer_page(context, leftover);
    case XSEG_LEFTOVER_ALLOCATION:
        return xseg_driver_free(context, leftover->what);
    case XSEG_LEFTOVER_HOST:
        return xseg_driver_host_free(
            context, (void *)(uintptr_t)leftover->what); /* NOLINT(performance-no-int-to-ptr) */
    case XSEG_LEFTOVER_MAPPING:
        return xseg_leftovers_unmap(context, leftover->what, leftover->bytes, &is_known);
    case XSEG_LEFTOVER_RANGE:
        break;
    }
    return xseg_driver_unreserve(context, leftover->what, leftover->bytes);
}

static uint64_t physical_of(const struct xseg_leftover *leftover)
{
    return leftover->kind == XSEG_LEFTOVER_PAGE || leftover->kind == XSEG_LEFTOVER_ALLOCATION
               ? leftover->bytes
               : 0;
}

static void keep(struct xseg_leftovers *leftovers, const struct xseg_leftover *leftover)
{
    atomic_fetch_add_explicit(&leftovers->physical, physical_of(leftover), memory_order_relaxed);
    if (leftovers->count == leftovers->capacity) {
        const size_t capacity = leftovers->capacity * 2;
        struct xseg_leftover *kept = realloc(leftovers->kept, capacity * sizeof(*kept));

        /* Without host memory the thing cannot be kept: it is lost until the process ends, and still counted in
         * `physical`. */
        if (kept == NULL) {
            leftovers->lost += physical_of(leftover);
            return;
        }
        leftovers->kept = kept;
        leftovers->capacity = capacity;
    }
    leftovers->kept[leftovers->count++] = *leftover;
}

static xseg_status give(struct xseg_leftovers *leftovers, struct xseg_leftover leftover)
{
    const xseg_status status = offer(leftovers->context, &leftover);

    if (status != XSEG_OK)
        keep(leftovers, &leftover);
    return status;
}

xseg_status xseg_leftovers_give(struct xseg_leftovers *leftovers, enum xseg_leftover_kind kind,
                                uint64_t what, uint64_t bytes)
{
    return give(leftovers, (struct xseg_leftover){kind, what, bytes, 0});
}

xseg_status xseg_leftovers_give_mapped(struct xseg_leftovers *leftovers, uint64_t handle,
                                       uint64_t address, uint64_t bytes)
{
    return give(leftovers, (struct xseg_leftover){XSEG_LEFTOVER_PAGE, handle, bytes, address});
}

xseg_status xseg_leftovers_retry(struct xseg_leftovers *leftovers)
{
    xseg_status first = XSEG_OK;
    size_t left = 0;

    for (size_t i = 0; i < leftovers->count; i++) {
        struct xseg_leftover leftover = leftovers->kept[i];
        const xseg_status status = offer(leftovers->context, &leftover);

        if (status == XSEG_OK) {
            atomic_fetch_sub_explicit(&leftovers->physical, physical_of(&leftover),
                                      memory_order_relaxed);
            continue;
        }
        first = first == XSEG_OK ? status : first;
        leftovers->kept[left++] = leftover;
    }
    leftovers->count = left;
    return first;
}

bool xseg_leftovers_audit(const struct xseg_leftovers *leftovers, struct xseg_finding *finding)
{
    uint64_t sum = leftovers->lost;

    for (size_t i = 0; i < leftovers->count; i++)
        sum += physical_of(&leftovers->kept[i]);
    XSEG_HOLDS(finding, "LEFT-1", sum == atomic_load(&leftovers->physical),
               "physical is %" PRIu64 ", sum of the records is %" PRIu64,
               (uint64_t)atomic_load(&leftovers->physical), sum);
    return true;
}
