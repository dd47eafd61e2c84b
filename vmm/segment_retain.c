/* SPDX-License-Identifier: MIT */
/* The functions of segment.h for generations, retain counts and exports. */
#include <inttypes.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "vmm/segment_internal.h"

/* A range of granules; a classic segment has one granule. */
struct granule_run {
    uint32_t first, end;
};

static struct granule_run find_granules(const struct xseg_segment *segment, uint64_t begin,
                                        uint64_t end)
{
    if (!xseg_segment_is_expandable(segment))
        return (struct granule_run){0, 1};
    return (struct granule_run){
        (uint32_t)(begin / segment->granule_bytes),
        (uint32_t)(xseg_round_up(end, segment->granule_bytes) / segment->granule_bytes)};
}

static uint32_t count_retain_entries(const struct xseg_segment *segment)
{
    return segment->granules == 0 ? 1 : segment->granules;
}

uint64_t xseg_segment_generation(const struct xseg_segment *segment, uint64_t begin, uint64_t end)
{
    const struct granule_run run = find_granules(segment, begin, end);
    uint64_t latest = 0;

    for (uint32_t at = run.first; at < run.end; at++) {
        const uint64_t generation =
            atomic_load_explicit(&segment->generation[at], memory_order_relaxed);

        latest = xseg_max(latest, generation);
    }
    return latest;
}

/* --- Retain counts. --- */

static xseg_status retain_granules(struct xseg_segment *segment, enum xseg_retainer retainer,
                                   struct granule_run run)
{
    struct xseg_retain_counts *retains = &segment->retain_counts[retainer];

    if (retains->count == NULL)
        retains->count = calloc(count_retain_entries(segment), sizeof(uint32_t));
    if (retains->count == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, retain counts of a segment");
    for (uint32_t at = run.first; at < run.end; at++)
        if (retains->count[at] == UINT32_MAX)
            return xseg_fail(XSEG_ERR_BUSY,
                             "retain count of a page is at its maximum, %" PRIu32
                             "; release a pin, a descriptor or an export of the page",
                             UINT32_MAX);
    for (uint32_t at = run.first; at < run.end; at++)
        retains->granules += retains->count[at]++ == 0;
    return XSEG_OK;
}

static void release_granules(struct xseg_segment *segment, enum xseg_retainer retainer,
                             struct granule_run run)
{
    struct xseg_retain_counts *retains = &segment->retain_counts[retainer];

    /* The counts of a lost device are freed when the close of the allocator begins. */
    for (uint32_t at = run.first; retains->count != NULL && at < run.end; at++) {
        XSEG_ASSERT(retains->count[at] != 0);
        retains->granules -= --retains->count[at] == 0;
    }
    segment->release_count++;
}

xseg_status xseg_segment_retain(struct xseg_segment *segment, enum xseg_retainer retainer,
                                uint64_t begin, uint64_t end)
{
    return retain_granules(segment, retainer, find_granules(segment, begin, end));
}

bool xseg_segment_release(struct xseg_segment *segment, enum xseg_retainer retainer, uint64_t begin,
                          uint64_t end)
{
    const struct xseg_retain_counts *retains = &segment->retain_counts[retainer];
    const struct granule_run run = find_granules(segment, begin, end);

    for (uint32_t at = run.first; at < run.end; at++)
        if (retains->count == NULL || retains->count[at] == 0)
            return false;
    release_granules(segment, retainer, run);
    return true;
}

static bool is_retained_by(const struct xseg_segment *segment, enum xseg_retainer retainer,
                           uint32_t first, uint32_t count)
{
    const struct xseg_retain_counts *retains = &segment->retain_counts[retainer];

    for (uint32_t at = first; retains->granules != 0 && at < first + count; at++)
        if (retains->count[at] != 0)
            return true;
    return false;
}

bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    return is_retained_by(segment, XSEG_RETAIN_PIN, first, count) ||
           is_retained_by(segment, XSEG_RETAIN_REGISTRATION, first, count);
}

bool xseg_segment_is_exported(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    return is_retained_by(segment, XSEG_RETAIN_EXPORT, first, count);
}

bool xseg_segment_is_retained(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    return xseg_segment_is_pinned(segment, first, count) ||
           xseg_segment_is_exported(segment, first, count);
}

/* --- Exports. --- */

uint32_t xseg_segment_pages_overlapping(const struct xseg_segment *segment, uint64_t begin,
                                        uint64_t end, uint32_t *first)
{
    const struct granule_run run = find_granules(segment, begin, end);

    *first = run.first;
    while (segment->length[*first] == 0)
        --*first;
    return xseg_segment_page_end(segment, run.end) - *first;
}

xseg_status xseg_segment_export(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    XSEG_ASSERT(xseg_segment_has_property(segment, XSEG_PAGE_EXPORTABLE) &&
                segment->length[first] != 0);
    if (segment->was_exported == NULL)
        segment->was_exported = calloc(segment->granules, sizeof(uint8_t));
    if (segment->was_exported == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, exports of a segment");
    const xseg_status status =
        retain_granules(segment, XSEG_RETAIN_EXPORT, (struct granule_run){first, first + count});
    for (uint32_t at = first; status == XSEG_OK && at < first + count; at++)
        segment->was_exported[at] = segment->length[at] != 0;
    return status;
}

void xseg_segment_unexport(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    release_granules(segment, XSEG_RETAIN_EXPORT, (struct granule_run){first, first + count});
}

/* --- Exports of whole segments. --- */

static uint64_t page_generation(const struct xseg_segment *segment, uint32_t first)
{
    /* A map draws one generation for all of its granules. */
    return atomic_load_explicit(&segment->generation[first], memory_order_relaxed);
}

bool xseg_segment_find_exported(const struct xseg_segment *segment, uint32_t *at, uint32_t end,
                                uint64_t generation)
{
    for (; *at < end; ++*at)
        if (segment->length[*at] != 0 && xseg_segment_is_mapped(segment, *at) &&
            page_generation(segment, *at) <= generation)
            return true;
    return false;
}

/* Release the pages whose generations are later than `after` and not later than `last`, up to a
 * granule. */
static void unexport_pages(struct xseg_segment *segment, uint64_t after, uint64_t last,
                           uint32_t end)
{
    for (uint32_t at = 0; xseg_segment_find_exported(segment, &at, end, last);
         at += segment->length[at])
        if (page_generation(segment, at) > after)
            xseg_segment_unexport(segment, at, segment->length[at]);
}

xseg_status xseg_segment_export_mapped(struct xseg_segment *segment)
{
    uint64_t latest = segment->export_generation;

    for (uint32_t at = 0; xseg_segment_find_exported(segment, &at, segment->granules, UINT64_MAX);
         at += segment->length[at]) {
        const uint64_t generation = page_generation(segment, at);

        if (generation <= segment->export_generation)
            continue;
        const xseg_status status = xseg_segment_export(segment, at, segment->length[at]);
        if (status != XSEG_OK) {
            unexport_pages(segment, segment->export_generation, UINT64_MAX, at);
            return status;
        }
        latest = xseg_max(latest, generation);
    }
    segment->export_generation = latest;
    return XSEG_OK;
}

void xseg_segment_unexport_mapped(struct xseg_segment *segment)
{
    unexport_pages(segment, 0, segment->export_generation, segment->granules);
    segment->export_generation = 0;
    segment->importers = 0;
}

/* --- Sums. --- */

struct xseg_segment_retained xseg_segment_retained_bytes(const struct xseg_segment *segment,
                                                         uint32_t first, uint32_t count)
{
    struct xseg_segment_retained retained = {0, 0};

    if (!xseg_segment_has_retained(segment))
        return retained;
    if (!xseg_segment_is_expandable(segment)) {
        retained.pinned = segment->bytes;
        return retained;
    }
    for (uint32_t at = first; at < first + count; at++) {
        const uint32_t length = segment->length[at];

        if (length == 0)
            continue;
        if (xseg_segment_is_pinned(segment, at, length))
            retained.pinned += length * segment->granule_bytes;
        else if (xseg_segment_is_exported(segment, at, length))
            retained.exported += length * segment->granule_bytes;
    }
    return retained;
}

struct xseg_segment_retained xseg_segment_all_retained_bytes(const struct xseg_segment *segment)
{
    return xseg_segment_retained_bytes(segment, 0, segment->granules);
}

uint64_t xseg_segment_mapped_export_bytes(const struct xseg_segment *segment)
{
    const struct xseg_retain_counts *exports = &segment->retain_counts[XSEG_RETAIN_EXPORT];
    uint64_t bytes = 0;

    for (uint32_t at = 0;
         xseg_segment_find_exported(segment, &at, segment->granules, segment->export_generation);
         at += segment->length[at])
        if (exports->count[at] == 1 && !xseg_segment_is_pinned(segment, at, segment->length[at]))
            bytes += segment->length[at] * segment->granule_bytes;
    return bytes;
}

size_t xseg_segment_retains_host_bytes(const struct xseg_segment *segment)
{
    size_t bytes =
        segment->was_exported == NULL ? 0 : segment->granules * sizeof(*segment->was_exported);

    for (int retainer = 0; retainer < XSEG_RETAINERS; retainer++)
        if (segment->retain_counts[retainer].count != NULL)
            bytes += count_retain_entries(segment) * sizeof(uint32_t);
    return bytes;
}

void xseg_segment_free_retains(struct xseg_segment *segment)
{
    for (int retainer = 0; retainer < XSEG_RETAINERS; retainer++) {
        free(segment->retain_counts[retainer].count);
        segment->retain_counts[retainer].count = NULL;
        segment->retain_counts[retainer].granules = 0;
    }
    free(segment->was_exported);
    segment->was_exported = NULL;
    segment->export_generation = 0;
    segment->importers = 0;
}

/* --- Audit. --- */

static bool audit_retain_counts(const struct xseg_segment *segment, enum xseg_retainer retainer,
                                struct xseg_violation *violation)
{
    const struct xseg_retain_counts *retains = &segment->retain_counts[retainer];
    uint32_t granules = 0;

    for (uint32_t at = 0; retains->count != NULL && at < segment->granules; at++) {
        granules += retains->count[at] != 0;
        XSEG_INVARIANT(violation, "SEG-5",
                       retains->count[at] == 0 || xseg_segment_is_mapped(segment, at),
                       "granule %" PRIu32 " is retained, in state %d", at, segment->state[at]);
    }
    XSEG_INVARIANT(violation, "SEG-5", segment->granules == 0 || granules == retains->granules,
                   "retained granules: counter %" PRIu32 ", table %" PRIu32, retains->granules,
                   granules);
    return true;
}

static bool audit_exports(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    const uint32_t *exports = segment->retain_counts[XSEG_RETAIN_EXPORT].count;
    uint32_t page = 0;

    for (uint32_t at = 0; exports != NULL && at < segment->granules; at++) {
        page = segment->length[at] != 0 ? at : page;
        XSEG_INVARIANT(violation, "SEG-6",
                       exports[at] == 0 ||
                           (xseg_segment_has_property(segment, XSEG_PAGE_EXPORTABLE) &&
                            exports[page] == exports[at] && segment->was_exported[page] != 0),
                       "granule %" PRIu32 " is exported, in state %d", at, segment->state[at]);
    }
    for (uint32_t at = 0;
         xseg_segment_find_exported(segment, &at, segment->granules, segment->export_generation);
         at += segment->length[at])
        XSEG_INVARIANT(violation, "SEG-7", exports != NULL && exports[at] != 0,
                       "granule %" PRIu32 " is not exported, of generation %" PRIu64, at,
                       page_generation(segment, at));
    return true;
}

bool xseg_segment_audit_retains(const struct xseg_segment *segment,
                                struct xseg_violation *violation)
{
    for (int retainer = 0; retainer < XSEG_RETAINERS; retainer++)
        if (!audit_retain_counts(segment, (enum xseg_retainer)retainer, violation))
            return false;
    return audit_exports(segment, violation);
}
