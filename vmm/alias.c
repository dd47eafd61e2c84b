/* SPDX-License-Identifier: MIT */
#include "vmm/alias.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "vmm/segment_internal.h"

/* Count the memory of a page as unknown if and only if no granule can use it. */
static void update_unknown_bytes(const struct xseg_segment *segment,
                                 struct xseg_alias_record *record)
{
    const bool counts_as_unknown =
        record->handle != 0 && record->count.mapped == 0 && record->count.mappings != 0;

    if (counts_as_unknown != record->counts_as_unknown)
        atomic_fetch_add_explicit(&segment->page_cache->unreleased->unknown,
                                  counts_as_unknown ? segment->granule_bytes
                                                    : 0 - segment->granule_bytes,
                                  memory_order_relaxed);
    record->counts_as_unknown = counts_as_unknown;
}

static void count_granule_state(struct xseg_mapping_counts *count, unsigned state, uint32_t delta)
{
    count->mapped += state == XSEG_PAGE_MAPPED ? delta : 0;
    count->evicted += state >= XSEG_PAGE_EVICTED ? delta : 0;
    count->fresh += state == XSEG_PAGE_FRESH || state == XSEG_PAGE_FRESH_MAPPED ? delta : 0;
}

/* --- Charges. --- */

static void charge_segment(struct xseg_segment *segment, struct xseg_alias_record *record)
{
    record->count.charged += record->charged == segment;
    segment->alias_bytes += segment->granule_bytes;
}

static void uncharge_segment(struct xseg_segment *segment, struct xseg_alias_record *record)
{
    if (record->charged == segment && --record->count.charged == 0)
        record->charged = NULL;
    else
        segment->alias_bytes -= segment->granule_bytes;
    if (record->count.mapped + record->count.evicted == 0)
        segment->unmapped_bytes += segment->granule_bytes;
}

/* --- Records. --- */

/* Add the host memory of a record, or subtract it: a negative `delta` wraps around. */
static void count_record_bytes(const struct xseg_segment *segment, uint64_t delta)
{
    atomic_fetch_add_explicit(&segment->page_cache->record_bytes, delta, memory_order_relaxed);
}

static void free_alias_record(const struct xseg_segment *segment, struct xseg_alias_record *record)
{
    count_record_bytes(segment, 0 - sizeof(*record));
    free(record);
}

/* --- States and handles. --- */

void xseg_alias_set_state(struct xseg_segment *segment, uint32_t granule,
                          enum xseg_page_state state)
{
    struct xseg_alias_record *record = segment->alias_record[granule];
    const uint8_t old_state = segment->state[granule];

    count_granule_state(&record->count, old_state, (uint32_t)-1);
    count_granule_state(&record->count, state, 1);
    segment->state[granule] = (uint8_t)state;
    if (xseg_page_state_is_present(old_state) && !xseg_page_state_is_present(state))
        uncharge_segment(segment, record);
    if (!xseg_page_state_is_present(old_state) && xseg_page_state_is_present(state))
        charge_segment(segment, record);
    segment->unknown +=
        ((uint64_t)(state == XSEG_PAGE_UNKNOWN) - (old_state == XSEG_PAGE_UNKNOWN)) *
        segment->granule_bytes;
    update_unknown_bytes(segment, record);
}

void xseg_alias_set_handle(struct xseg_segment *segment, uint32_t granule, uint64_t handle)
{
    struct xseg_alias_record *record = segment->alias_record[granule];

    record->handle = handle;
    update_unknown_bytes(segment, record);
}

uint64_t xseg_alias_remove(struct xseg_segment *segment, uint32_t granule, bool *was_exported)
{
    struct xseg_alias_record *record = segment->alias_record[granule];

    xseg_alias_set_state(segment, granule, XSEG_PAGE_UNMAPPED);
    segment->alias_record[granule] = NULL;
    segment->length[granule] = 0;
    record->was_exported |= *was_exported;
    record->count.mappings--;
    update_unknown_bytes(segment, record);
    if (record->count.mappings != 0)
        return 0;
    const uint64_t handle = record->handle;
    *was_exported = record->was_exported;
    free_alias_record(segment, record);
    return handle;
}

void xseg_alias_free(struct xseg_segment *segment)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++) {
        struct xseg_alias_record *record = segment->alias_record[at];

        if (record != NULL && --record->count.mappings == 0)
            free_alias_record(segment, record);
    }
    xseg_demand_zero_free(segment->alias_record,
                          segment->granules * sizeof(*segment->alias_record));
    segment->alias_record = NULL;
}

/* --- Mapping. --- */

static bool ensure_record_table(struct xseg_segment *segment)
{
    if (segment->alias_record == NULL)
        segment->alias_record =
            xseg_demand_zero_alloc(segment->granules * sizeof(*segment->alias_record));
    return segment->alias_record != NULL;
}

/* Create the record of a page unless it exists.  Returns false on host allocation failure.  A page
 * whose record has one mapping is equivalent to a page without a record. */
static bool ensure_record(struct xseg_segment *segment, uint32_t granule)
{
    if (segment->alias_record[granule] != NULL)
        return true;
    struct xseg_alias_record *record = calloc(1, sizeof(*record));
    if (record == NULL)
        return false;
    XSEG_ASSERT(xseg_segment_is_mapped(segment, granule) && segment->length[granule] == 1);
    record->handle = segment->handle[granule];
    record->charged = segment;
    record->count =
        (struct xseg_mapping_counts){.mappings = 1, .mapped = 1, .charged = 1, .committed = 1};
    segment->handle[granule] = 0;
    segment->alias_record[granule] = record;
    count_record_bytes(segment, sizeof(*record));
    return true;
}

static xseg_status map_alias(struct xseg_segment *segment, uint32_t granule,
                             struct xseg_alias_record *record)
{
    XSEG_ASSERT(segment->state[granule] == XSEG_PAGE_UNMAPPED && record->handle != 0);
    const xseg_status status =
        xseg_driver_map(segment->context, xseg_segment_address(segment, granule),
                        segment->granule_bytes, record->handle);

    if (status != XSEG_OK)
        return status;
    segment->alias_record[granule] = record;
    segment->length[granule] = 1;
    record->count.mappings++;
    xseg_alias_set_state(segment, granule, XSEG_PAGE_UNKNOWN);
    return XSEG_OK;
}

/* Unmap the aliases of granules.  A granule that the driver does not unmap remains in state
 * UNKNOWN. */
static void roll_back_aliases(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    bool is_known = true, was_exported = false;

    for (uint32_t granule = first; granule < first + count; granule++)
        if (xseg_segment_unmap_page(segment, granule, &is_known) == XSEG_OK)
            (void)xseg_alias_remove(segment, granule, &was_exported);
}

xseg_status xseg_alias_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at)
{
    bool has_memory = ensure_record_table(segment) && ensure_record_table(from);
    xseg_status status = XSEG_OK;
    uint32_t mapped = 0;
    char reason[256];

    XSEG_ASSERT(count > 0 && first + count <= segment->granules && at + count <= from->granules);
    XSEG_ASSERT(segment->granule_bytes == from->granule_bytes && segment->owner == from->owner);
    for (uint32_t i = 0; has_memory && i < count; i++)
        has_memory = ensure_record(from, at + i);
    if (!has_memory)
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, records of %" PRIu32 " physical pages", count);
    for (; mapped < count && status == XSEG_OK; mapped += status == XSEG_OK)
        status = map_alias(segment, first + mapped, from->alias_record[at + mapped]);
    if (status == XSEG_OK)
        status = xseg_segment_set_access(segment, first, count);
    if (status != XSEG_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        roll_back_aliases(segment, first, mapped);
        XSEG_AUDIT(xseg_segment_audit, segment);
        return xseg_fail(status, "%s", reason);
    }
    for (uint32_t granule = first; granule < first + count; granule++) {
        xseg_alias_set_state(segment, granule, XSEG_PAGE_MAPPED);
        atomic_fetch_add_explicit(&segment->mapped, xseg_segment_page_bytes(segment, granule),
                                  memory_order_relaxed);
        segment->alias_record[granule]->count.committed++;
    }
    xseg_segment_record_change(segment, first, count, ++segment->page_cache->generation);
    XSEG_AUDIT(xseg_segment_audit, segment);
    return XSEG_OK;
}

/* --- Audit. --- */

void xseg_alias_audit_begin(const struct xseg_segment *segment)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++)
        if (segment->alias_record[at] != NULL)
            segment->alias_record[at]->audited = (struct xseg_mapping_counts){0};
}

void xseg_alias_audit_add(const struct xseg_segment *segment, uint32_t granule, bool is_committed,
                          uint64_t *alias_bytes)
{
    struct xseg_alias_record *record = xseg_alias_record(segment, granule);

    if (record == NULL)
        return;
    const bool has_page = xseg_page_state_is_present(segment->state[granule]);
    const bool is_charged = has_page && record->charged == segment;
    if (has_page && (!is_charged || record->audited.charged != 0))
        *alias_bytes += segment->granule_bytes;
    record->audited.mappings++;
    record->audited.committed += is_committed;
    record->audited.charged += is_charged;
    count_granule_state(&record->audited, segment->state[granule], 1);
}

bool xseg_alias_audit(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    for (uint32_t at = 0; segment->alias_record != NULL && at < segment->granules; at++) {
        const struct xseg_alias_record *record = segment->alias_record[at];

        if (record == NULL)
            continue;
        XSEG_INVARIANT(violation, "ALIAS-1",
                       memcmp(&record->count, &record->audited, sizeof(record->count)) == 0,
                       "granule %" PRIu32 ": record has %" PRIu32 " mappings, %" PRIu32
                       " mapped, %" PRIu32 " evicted, %" PRIu32 " charged, %" PRIu32
                       " committed; granules have %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32
                       ", %" PRIu32,
                       at, record->count.mappings, record->count.mapped, record->count.evicted,
                       record->count.charged, record->count.committed, record->audited.mappings,
                       record->audited.mapped, record->audited.evicted, record->audited.charged,
                       record->audited.committed);
        XSEG_INVARIANT(violation, "ALIAS-1",
                       (record->charged == NULL) == (record->count.charged == 0),
                       "granule %" PRIu32 ": charged segment has %" PRIu32 " mappings", at,
                       record->count.charged);
    }
    return true;
}
