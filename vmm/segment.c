/* SPDX-License-Identifier: MIT */
#include "vmm/segment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"

/* Ranges are whole GiB at whole GiB, so that one flat table finds the segment of an address. */
#define RANGE_ALIGNMENT XSEG_GIB

static uint64_t address_of(const struct xseg_segment *segment, uint32_t page)
{
    return segment->base + (uint64_t)page * segment->page_bytes;
}

static void init(struct xseg_segment *segment, struct xseg_context *context,
                 struct xseg_leftovers *leftovers, uint64_t bytes)
{
    memset(segment, 0, sizeof(*segment));
    segment->context = context;
    segment->leftovers = leftovers;
    segment->bytes = bytes;
    atomic_init(&segment->mapped, 0);
}

/* Reserve the addresses of an initialised segment: `behind` bytes more than it can use. */
static xseg_status reserve(struct xseg_segment *segment, uint64_t page_bytes, uint64_t behind,
                           uint64_t alignment)
{
    struct xseg_context *context = segment->context;
    xseg_status status;

    XSEG_ASSERT(page_bytes % context->granularity == 0 && segment->bytes % page_bytes == 0);
    segment->page_bytes = page_bytes;
    segment->pages = (uint32_t)(segment->bytes / page_bytes);
    segment->reserved_bytes = segment->bytes + behind;
    segment->handle = calloc(segment->pages, sizeof(*segment->handle));
    segment->state = calloc(segment->pages, sizeof(*segment->state));
    if (segment->handle == NULL || segment->state == NULL) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY,
                           "no host memory for the table of %" PRIu32 " pages", segment->pages);
        goto free_tables;
    }
    status = xseg_driver_reserve(context, segment->reserved_bytes, alignment, &segment->base);
    if (status != XSEG_OK)
        goto free_tables;
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;

free_tables:
    free(segment->handle);
    free(segment->state);
    return status;
}

xseg_status xseg_segment_reserve(struct xseg_segment *segment, struct xseg_context *context,
                                 struct xseg_leftovers *leftovers, uint64_t bytes,
                                 uint64_t page_bytes)
{
    init(segment, context, leftovers, bytes);
    return reserve(segment, page_bytes, xseg_round_up(bytes, RANGE_ALIGNMENT) - bytes,
                   RANGE_ALIGNMENT);
}

xseg_status xseg_segment_reserve_guarded(struct xseg_segment *segment, struct xseg_context *context,
                                         struct xseg_leftovers *leftovers, uint64_t bytes,
                                         uint64_t page_bytes, uint64_t alignment)
{
    init(segment, context, leftovers, bytes);
    return reserve(segment, page_bytes, page_bytes, alignment);
}

xseg_status xseg_segment_allocate(struct xseg_segment *segment, struct xseg_context *context,
                                  struct xseg_leftovers *leftovers, uint64_t bytes)
{
    init(segment, context, leftovers, bytes);
    const xseg_status status = xseg_driver_alloc(context, bytes, &segment->base);
    if (status == XSEG_OK)
        atomic_store_explicit(&segment->mapped, bytes, memory_order_relaxed);
    return status;
}

static void count_stuck(struct xseg_segment *segment, int64_t bytes)
{
    segment->stuck += (uint64_t)bytes;
    atomic_fetch_add_explicit(&segment->leftovers->stuck, (uint64_t)bytes, memory_order_relaxed);
}

/* Give the memory of a page that is no longer mapped to the driver. */
static xseg_status release_page(struct xseg_segment *segment, uint32_t page)
{
    const uint64_t handle = segment->handle[page];

    segment->handle[page] = 0;
    segment->state[page] = XSEG_PAGE_HOLE;
    return xseg_leftovers_give(segment->leftovers, XSEG_LEFTOVER_PAGE, handle, segment->page_bytes);
}

/*
 * Unmap one page.  When the driver says no, it is asked whether the page is mapped at all: a batch
 * that failed half-way may have unmapped it before.
 */
static xseg_status unmap_page(struct xseg_segment *segment, uint32_t page)
{
    const uint64_t address = address_of(segment, page);
    const xseg_status status = xseg_driver_unmap(segment->context, address, segment->page_bytes);
    bool mapped = true;

    if (status == XSEG_OK)
        return XSEG_OK;
    if (xseg_driver_is_mapped(segment->context, address, &mapped) == XSEG_OK && !mapped)
        return XSEG_OK;
    return status;
}

/* Take the memory of a page away that is mapped or stuck, and account for it. */
static xseg_status clear_page(struct xseg_segment *segment, uint32_t page)
{
    if (segment->state[page] == XSEG_PAGE_MAPPED)
        atomic_fetch_sub_explicit(&segment->mapped, segment->page_bytes, memory_order_relaxed);
    else
        count_stuck(segment, -(int64_t)segment->page_bytes);
    return release_page(segment, page);
}

xseg_status xseg_segment_unmap(struct xseg_segment *segment, uint32_t first, uint32_t count,
                               uint32_t *done)
{
    struct xseg_context *context = segment->context;
    xseg_status status = XSEG_OK;
    bool together = false;

    XSEG_ASSERT(count > 0 && first + count <= segment->pages);
    if (count > 1 && context->batches_unmap)
        together = xseg_driver_unmap(context, address_of(segment, first),
                                     count * segment->page_bytes) == XSEG_OK;
    for (*done = 0; *done < count; ++*done) {
        if (!together && (status = unmap_page(segment, first + *done)) != XSEG_OK)
            break;
        (void)clear_page(segment, first + *done); /* kept as a leftover if refused */
    }
    XSEG_AUDIT(xseg_segment_audit, segment);
    return status;
}

/* Create memory for the holes of the run; on failure what was created is released again. */
static xseg_status create_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page++) {
        xseg_status status = XSEG_OK;

        if (segment->state[page] == XSEG_PAGE_HOLE)
            status =
                xseg_driver_create(segment->context, segment->page_bytes, &segment->handle[page]);
        if (status == XSEG_OK)
            continue;
        while (page-- > first)
            if (segment->state[page] == XSEG_PAGE_HOLE)
                (void)release_page(segment, page);
        return status;
    }
    return XSEG_OK;
}

/* Map the created memory; on failure what cannot be unmapped stays stuck, the rest is released. */
static xseg_status map_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    xseg_status status = XSEG_OK;

    for (uint32_t page = first; page < first + count && status == XSEG_OK; page++) {
        if (segment->state[page] != XSEG_PAGE_HOLE)
            continue;
        status = xseg_driver_map(segment->context, address_of(segment, page), segment->page_bytes,
                                 segment->handle[page]);
        if (status == XSEG_OK) {
            segment->state[page] = XSEG_PAGE_STUCK;
            count_stuck(segment, (int64_t)segment->page_bytes);
        }
    }
    return status;
}

static xseg_status access_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    struct xseg_context *context = segment->context;
    xseg_status status = XSEG_ERR_DRIVER;

    if (count == 1 || context->batches_access)
        status = xseg_driver_set_access(context, address_of(segment, first),
                                        count * segment->page_bytes);
    if (status == XSEG_OK || count == 1)
        return status;
    status = XSEG_OK;
    for (uint32_t page = first; page < first + count && status == XSEG_OK; page++)
        status = xseg_driver_set_access(context, address_of(segment, page), segment->page_bytes);
    return status;
}

/* Undo a growth: whatever it mapped or created goes; rights are unknown, so nothing stays usable. */
static void withdraw_run(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page++) {
        if (segment->state[page] == XSEG_PAGE_HOLE && segment->handle[page] != 0)
            (void)release_page(segment, page);
        else if (segment->state[page] == XSEG_PAGE_STUCK && unmap_page(segment, page) == XSEG_OK)
            (void)clear_page(segment, page);
    }
}

xseg_status xseg_segment_map(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->pages);
    xseg_status status = create_run(segment, first, count);
    if (status != XSEG_OK)
        return status;
    status = map_run(segment, first, count);
    if (status == XSEG_OK)
        status = access_run(segment, first, count);
    if (status != XSEG_OK) {
        /* The undo may fail as well; the first reason is the one to tell. */
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_text()->buffer);
        withdraw_run(segment, first, count);
        XSEG_AUDIT(xseg_segment_audit, segment);
        return xseg_fail(status, "%s", reason);
    }
    for (uint32_t page = first; page < first + count; page++)
        segment->state[page] = XSEG_PAGE_MAPPED;
    count_stuck(segment, -(int64_t)(count * segment->page_bytes));
    atomic_fetch_add_explicit(&segment->mapped, count * segment->page_bytes, memory_order_relaxed);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;
}

xseg_status xseg_segment_unstick(struct xseg_segment *segment)
{
    xseg_status result = XSEG_OK;

    for (uint32_t page = 0; segment->stuck != 0 && page < segment->pages; page++) {
        if (segment->state[page] != XSEG_PAGE_STUCK)
            continue;
        const xseg_status status = unmap_page(segment, page);
        if (status == XSEG_OK)
            (void)clear_page(segment, page);
        else if (result == XSEG_OK)
            result = status;
    }
    return result;
}

xseg_status xseg_segment_end(struct xseg_segment *segment)
{
    if (!xseg_segment_is_expandable(segment))
        return xseg_leftovers_give(segment->leftovers, XSEG_LEFTOVER_ALLOCATION, segment->base,
                                   segment->bytes);
    XSEG_ASSERT(atomic_load(&segment->mapped) == 0 && segment->stuck == 0);
    const xseg_status status = xseg_leftovers_give(segment->leftovers, XSEG_LEFTOVER_RANGE,
                                                   segment->base, segment->reserved_bytes);
    xseg_segment_abandon(segment);
    return status;
}

void xseg_segment_abandon(struct xseg_segment *segment)
{
    free(segment->handle);
    free(segment->state);
    segment->handle = NULL;
    segment->state = NULL;
}

size_t xseg_segment_host_bytes(const struct xseg_segment *segment)
{
    return segment->pages * (sizeof(*segment->handle) + sizeof(*segment->state));
}

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_finding *finding)
{
    const uint64_t mapped = atomic_load(&segment->mapped);
    uint64_t backed = 0, stuck = 0;

    if (!xseg_segment_is_expandable(segment))
        return true;
    XSEG_HOLDS(finding, "SEG-1",
               segment->base % segment->context->granularity == 0 &&
                   segment->base <= UINT64_MAX - segment->reserved_bytes,
               "base %#" PRIx64 " with %" PRIu64 " bytes", segment->base, segment->reserved_bytes);
    for (uint32_t page = 0; page < segment->pages; page++) {
        backed += segment->state[page] == XSEG_PAGE_MAPPED ? segment->page_bytes : 0;
        stuck += segment->state[page] == XSEG_PAGE_STUCK ? segment->page_bytes : 0;
    }
    XSEG_HOLDS(finding, "SEG-2", mapped == backed && segment->stuck == stuck,
               "mapped says %" PRIu64 ", pages %" PRIu64 "; stuck says %" PRIu64 ", pages %" PRIu64,
               mapped, backed, segment->stuck, stuck);
    XSEG_HOLDS(finding, "SEG-3", segment->reserved_bytes >= segment->pages * segment->page_bytes,
               "%" PRIu32 " pages in %" PRIu64 " bytes", segment->pages, segment->reserved_bytes);
    return true;
}
