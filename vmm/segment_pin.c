/* SPDX-License-Identifier: MIT */
/* The functions of segment.h for generations, pins and exports. */
#include <inttypes.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "vmm/segment_page.h"

/* A run of granules; a classic segment has one granule. */
struct run {
    uint32_t first, end;
};

static struct run run_of(const struct xseg_segment *segment, uint64_t begin, uint64_t end)
{
    if (!xseg_segment_is_expandable(segment))
        return (struct run){0, 1};
    return (struct run){
        (uint32_t)(begin / segment->granule_bytes),
        (uint32_t)(xseg_round_up(end, segment->granule_bytes) / segment->granule_bytes)};
}

static uint32_t unit_count(const struct xseg_segment *segment)
{
    return segment->granules == 0 ? 1 : segment->granules;
}

uint64_t xseg_segment_generation(const struct xseg_segment *segment, uint64_t begin, uint64_t end)
{
    const struct run run = run_of(segment, begin, end);
    uint64_t latest = 0;

    for (uint32_t at = run.first; at < run.end; at++) {
        const uint64_t generation =
            atomic_load_explicit(&segment->generation[at], memory_order_relaxed);

        latest = xseg_max(latest, generation);
    }
    return latest;
}

xseg_status xseg_segment_pin(struct xseg_segment *segment, uint64_t begin, uint64_t end)
{
    const struct run run = run_of(segment, begin, end);

    if (segment->pins == NULL)
        segment->pins = calloc(unit_count(segment), sizeof(*segment->pins));
    if (segment->pins == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the pins of a segment");
    for (uint32_t at = run.first; at < run.end; at++)
        if (segment->pins[at] == UINT32_MAX)
            return xseg_fail(XSEG_ERR_BUSY, "a page is pinned as often as it can be: unpin it");
    for (uint32_t at = run.first; at < run.end; at++)
        segment->pinned += segment->pins[at]++ == 0;
    return XSEG_OK;
}

bool xseg_segment_unpin(struct xseg_segment *segment, uint64_t begin, uint64_t end)
{
    const struct run run = run_of(segment, begin, end);

    for (uint32_t at = run.first; at < run.end; at++)
        if (segment->pins == NULL || segment->pins[at] == 0)
            return false;
    for (uint32_t at = run.first; at < run.end; at++)
        segment->pinned -= --segment->pins[at] == 0;
    segment->let_go++;
    return true;
}

bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; segment->pinned != 0 && at < first + count; at++)
        if (segment->pins[at] != 0)
            return true;
    return false;
}

/* --- Exports. --- */

uint32_t xseg_segment_pages_under(const struct xseg_segment *segment, uint64_t begin, uint64_t end,
                                  uint32_t *first)
{
    const struct run run = run_of(segment, begin, end);

    *first = run.first;
    while (segment->length[*first] == 0)
        --*first;
    return xseg_segment_page_end(segment, run.end) - *first;
}

/* Make the tables `exports` and `shown`, in one piece of host memory; false without. */
static bool get_exports(struct xseg_segment *segment)
{
    const size_t granules = segment->granules;
    uint32_t *exports;

    if (segment->exports != NULL)
        return true;
    exports = calloc(granules, sizeof(*exports) + sizeof(*segment->shown));
    if (exports == NULL)
        return false;
    segment->shown = (uint8_t *)(exports + granules);
    segment->exports = exports;
    return true;
}

xseg_status xseg_segment_export(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    XSEG_ASSERT(xseg_segment_has(segment, XSEG_PAGE_EXPORTABLE) && segment->length[first] != 0);
    if (!get_exports(segment))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the exports of a segment");
    for (uint32_t at = first; at < first + count; at++)
        if (segment->exports[at] == UINT32_MAX)
            return xseg_fail(XSEG_ERR_BUSY, "a page is exported as often as it can be");
    for (uint32_t at = first; at < first + count; at++) {
        segment->exported += segment->exports[at]++ == 0;
        segment->shown[at] = segment->length[at] != 0;
    }
    return XSEG_OK;
}

void xseg_segment_unexport(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; at < first + count; at++) {
        XSEG_ASSERT(segment->exports[at] != 0);
        segment->exported -= --segment->exports[at] == 0;
    }
    segment->let_go++;
}

bool xseg_segment_is_exported(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; segment->exported != 0 && at < first + count; at++)
        if (segment->exports[at] != 0)
            return true;
    return false;
}

/* --- Pins and exports together. --- */

bool xseg_segment_is_held(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    return xseg_segment_is_pinned(segment, first, count) ||
           xseg_segment_is_exported(segment, first, count);
}

struct xseg_segment_held xseg_segment_held(const struct xseg_segment *segment, uint32_t first,
                                           uint32_t count)
{
    struct xseg_segment_held held = {0, 0};

    if (!xseg_segment_holds(segment))
        return held;
    if (!xseg_segment_is_expandable(segment)) {
        held.pinned = segment->bytes;
        return held;
    }
    for (uint32_t at = first; at < first + count; at++) {
        const uint32_t length = segment->length[at];

        if (length == 0)
            continue;
        if (xseg_segment_is_pinned(segment, at, length))
            held.pinned += length * segment->granule_bytes;
        else if (xseg_segment_is_exported(segment, at, length))
            held.exported += length * segment->granule_bytes;
    }
    return held;
}

struct xseg_segment_held xseg_segment_all_held(const struct xseg_segment *segment)
{
    return xseg_segment_held(segment, 0, segment->granules);
}

uint32_t xseg_segment_loose_pages(const struct xseg_segment *segment, uint32_t *first, uint32_t end)
{
    uint32_t at = *first;

    if (!xseg_segment_holds(segment))
        return end - at;
    while (at < end && xseg_segment_is_held(segment, at, segment->length[at]))
        at += segment->length[at];
    *first = at;
    while (at < end && !xseg_segment_is_held(segment, at, segment->length[at]))
        at += segment->length[at];
    return at - *first;
}

static bool audit_pins(const struct xseg_segment *segment, struct xseg_finding *finding)
{
    uint32_t pinned = 0;

    for (uint32_t at = 0; segment->pins != NULL && at < segment->granules; at++) {
        pinned += segment->pins[at] != 0;
        XSEG_HOLDS(finding, "SEG-5", segment->pins[at] == 0 || xseg_segment_is_mapped(segment, at),
                   "granule %" PRIu32 " is pinned, in state %d", at, segment->state[at]);
    }
    XSEG_HOLDS(finding, "SEG-5", pinned == segment->pinned,
               "pinned says %" PRIu32 ", there are %" PRIu32, segment->pinned, pinned);
    return true;
}

static bool audit_exports(const struct xseg_segment *segment, struct xseg_finding *finding)
{
    uint32_t exported = 0, page = 0;

    for (uint32_t at = 0; segment->exports != NULL && at < segment->granules; at++) {
        const uint32_t exports = segment->exports[at];

        page = segment->length[at] != 0 ? at : page;
        exported += exports != 0;
        XSEG_HOLDS(finding, "SEG-6",
                   exports == 0 || (xseg_segment_has(segment, XSEG_PAGE_EXPORTABLE) &&
                                    xseg_segment_is_mapped(segment, at) &&
                                    segment->exports[page] == exports && segment->shown[page] != 0),
                   "granule %" PRIu32 " is exported, in state %d", at, segment->state[at]);
    }
    XSEG_HOLDS(finding, "SEG-6", exported == segment->exported,
               "exported says %" PRIu32 ", there are %" PRIu32, segment->exported, exported);
    return true;
}

bool xseg_segment_audit_held(const struct xseg_segment *segment, struct xseg_finding *finding)
{
    return audit_pins(segment, finding) && audit_exports(segment, finding);
}
