/* SPDX-License-Identifier: MIT */
#include "vmm/alias.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "vmm/segment_page.h"

/* Count the memory of a page as stuck exactly if it has memory that no granule can use. */
static void settle(const struct xseg_segment *segment, struct xseg_alias_record *page)
{
    const bool is_stuck = page->handle != 0 && page->count.mapped == 0 && page->count.mappings != 0;

    if (is_stuck != page->is_stuck)
        atomic_fetch_add_explicit(&segment->page_cache->unreleased->unknown,
                                  is_stuck ? segment->granule_bytes : 0 - segment->granule_bytes,
                                  memory_order_relaxed);
    page->is_stuck = is_stuck;
}

static void count_state(struct xseg_mapping_counts *count, unsigned state, uint32_t more)
{
    count->mapped += state == XSEG_PAGE_MAPPED ? more : 0;
    count->evicted += state >= XSEG_PAGE_EVICTED ? more : 0;
    count->fresh += state == XSEG_PAGE_FRESH || state == XSEG_PAGE_FRESH_MAPPED ? more : 0;
}

/* --- Charges. --- */

static void charge(struct xseg_segment *segment, struct xseg_alias_record *page)
{
    page->count.charged += page->charged == segment;
    segment->alias_bytes += segment->granule_bytes;
}

static void uncharge(struct xseg_segment *segment, struct xseg_alias_record *page)
{
    if (page->charged == segment && --page->count.charged == 0)
        page->charged = NULL;
    else
        segment->alias_bytes -= segment->granule_bytes;
    if (page->count.mapped + page->count.evicted == 0)
        segment->unmapped_bytes += segment->granule_bytes;
}

/* --- Records. --- */

/* Count host memory of records; `more` is negative when a record is freed. */
static void count_host_bytes(const struct xseg_segment *segment, uint64_t more)
{
    atomic_fetch_add_explicit(&segment->page_cache->record_bytes, more, memory_order_relaxed);
}

static void free_record(const struct xseg_segment *segment, struct xseg_alias_record *page)
{
    count_host_bytes(segment, 0 - sizeof(*page));
    free(page);
}

/* --- States. --- */

void xseg_alias_set_state(struct xseg_segment *segment, uint32_t granule,
                          enum xseg_page_state state)
{
    struct xseg_alias_record *page = segment->alias_record[granule];
    const uint8_t before = segment->state[granule];

    count_state(&page->count, before, (uint32_t)-1);
    count_state(&page->count, state, 1);
    segment->state[granule] = (uint8_t)state;
    if (xseg_page_state_is_present(before) && !xseg_page_state_is_present(state))
        uncharge(segment, page);
    if (!xseg_page_state_is_present(before) && xseg_page_state_is_present(state))
        charge(segment, page);
    segment->unknown += ((uint64_t)(state == XSEG_PAGE_UNKNOWN) - (before == XSEG_PAGE_UNKNOWN)) *
                        segment->granule_bytes;
    settle(segment, page);
}

void xseg_alias_set_handle(struct xseg_segment *segment, uint32_t granule, uint64_t handle)
{
    struct xseg_alias_record *page = segment->alias_record[granule];

    page->handle = handle;
    settle(segment, page);
}

uint64_t xseg_alias_remove(struct xseg_segment *segment, uint32_t granule, bool *was_exported)
{
    struct xseg_alias_record *page = segment->alias_record[granule];

    xseg_alias_set_state(segment, granule, XSEG_PAGE_UNMAPPED);
    segment->alias_record[granule] = NULL;
    segment->length[granule] = 0;
    page->was_exported |= *was_exported;
    page->count.mappings--;
    settle(segment, page);
    if (page->count.mappings != 0)
        return 0;
    const uint64_t handle = page->handle;
    *was_exported = page->was_exported;
    free_record(segment, page);
    return handle;
}

void xseg_alias_free(struct xseg_segment *segment)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++) {
        struct xseg_alias_record *page = segment->alias_record[at];

        if (page != NULL && --page->count.mappings == 0)
            free_record(segment, page);
    }
    xseg_demand_zero_free(segment->alias_record,
                          segment->granules * sizeof(*segment->alias_record));
    segment->alias_record = NULL;
}

/* --- Mapping. --- */

static bool has_table(struct xseg_segment *segment)
{
    if (segment->alias_record == NULL)
        segment->alias_record =
            xseg_demand_zero_alloc(segment->granules * sizeof(*segment->alias_record));
    return segment->alias_record != NULL;
}

/* Have a record of a page; false on host allocation failure.  A record of one mapping behaves as none. */
static bool has_record(struct xseg_segment *segment, uint32_t granule)
{
    if (segment->alias_record[granule] != NULL)
        return true;
    struct xseg_alias_record *page = calloc(1, sizeof(*page));
    if (page == NULL)
        return false;
    XSEG_ASSERT(xseg_segment_is_mapped(segment, granule) && segment->length[granule] == 1);
    page->handle = segment->handle[granule];
    page->charged = segment;
    page->count =
        (struct xseg_mapping_counts){.mappings = 1, .mapped = 1, .charged = 1, .committed = 1};
    segment->handle[granule] = 0;
    segment->alias_record[granule] = page;
    count_host_bytes(segment, sizeof(*page));
    return true;
}

static xseg_status map_one(struct xseg_segment *segment, uint32_t granule,
                           struct xseg_alias_record *page)
{
    XSEG_ASSERT(segment->state[granule] == XSEG_PAGE_UNMAPPED && page->handle != 0);
    const xseg_status status =
        xseg_driver_map(segment->context, xseg_segment_address(segment, granule),
                        segment->granule_bytes, page->handle);

    if (status != XSEG_OK)
        return status;
    segment->alias_record[granule] = page;
    segment->length[granule] = 1;
    page->count.mappings++;
    xseg_alias_set_state(segment, granule, XSEG_PAGE_UNKNOWN);
    return XSEG_OK;
}

/* Unmap the first `count` granules of a run again.  One that the driver refuses stays stuck. */
static void withdraw(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    bool is_known = true, was_exported = false;

    for (uint32_t granule = first; granule < first + count; granule++)
        if (xseg_segment_unmap_page(segment, granule, &is_known) == XSEG_OK)
            (void)xseg_alias_remove(segment, granule, &was_exported);
}

xseg_status xseg_alias_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at)
{
    bool has_memory = has_table(segment) && has_table(from);
    xseg_status status = XSEG_OK;
    uint32_t mapped = 0;
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->granules && at + count <= from->granules);
    XSEG_ASSERT(segment->granule_bytes == from->granule_bytes && segment->owner == from->owner);
    for (uint32_t i = 0; has_memory && i < count; i++)
        has_memory = has_record(from, at + i);
    if (!has_memory)
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, records of %" PRIu32 " physical pages", count);
    for (; mapped < count && status == XSEG_OK; mapped += status == XSEG_OK)
        status = map_one(segment, first + mapped, from->alias_record[at + mapped]);
    if (status == XSEG_OK)
        status = xseg_segment_set_access(segment, first, count);
    if (status != XSEG_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        withdraw(segment, first, mapped);
        XSEG_AUDIT(xseg_segment_audit, segment);
        return xseg_fail(status, "%s", reason);
    }
    for (uint32_t granule = first; granule < first + count; granule++) {
        xseg_alias_set_state(segment, granule, XSEG_PAGE_MAPPED);
        xseg_segment_count_mapped_page(segment, granule, true);
        segment->alias_record[granule]->count.committed++;
    }
    xseg_segment_record_change(segment, first, count, ++segment->page_cache->generation);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;
}

/* --- The audit. --- */

void xseg_alias_audit_begin(const struct xseg_segment *segment)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++)
        if (segment->alias_record[at] != NULL)
            segment->alias_record[at]->audited = (struct xseg_mapping_counts){0};
}

void xseg_alias_audit_add(const struct xseg_segment *segment, uint32_t granule, bool is_live,
                          uint64_t *alias_bytes)
{
    struct xseg_alias_record *page = xseg_alias_record(segment, granule);

    if (page == NULL)
        return;
    const bool has_page = xseg_page_state_is_present(segment->state[granule]);
    const bool is_charged = has_page && page->charged == segment;
    if (has_page && (!is_charged || page->audited.charged != 0))
        *alias_bytes += segment->granule_bytes;
    page->audited.mappings++;
    page->audited.committed += is_live;
    page->audited.charged += is_charged;
    count_state(&page->audited, segment->state[granule], 1);
}

bool xseg_alias_audit(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++) {
        const struct xseg_alias_record *page = segment->alias_record[at];

        if (page == NULL)
            continue;
        XSEG_INVARIANT(
            violation, "ALIAS-1", memcmp(&page->count, &page->audited, sizeof(page->count)) == 0,
            "granule %" PRIu32 ": record has %" PRIu32 " mappings, %" PRIu32 " mapped, %" PRIu32
            " evicted, %" PRIu32 " charged, %" PRIu32 " committed; granules have %" PRIu32
            ", %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32,
            at, page->count.mappings, page->count.mapped, page->count.evicted, page->count.charged,
            page->count.committed, page->audited.mappings, page->audited.mapped,
            page->audited.evicted, page->audited.charged, page->audited.committed);
        XSEG_INVARIANT(violation, "ALIAS-1", (page->charged == NULL) == (page->count.charged == 0),
                       "granule %" PRIu32 ": charged segment has %" PRIu32 " mappings", at,
                       page->count.charged);
    }
    return true;
}
