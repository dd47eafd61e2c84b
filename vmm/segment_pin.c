/* SPDX-License-Identifier: MIT */
/* Of segment.h: generations and pins. */
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "vmm/segment.h"

/* A run of granules; of a classic segment its one. */
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
    return true;
}

bool xseg_segment_is_pinned(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    for (uint32_t at = first; segment->pinned != 0 && at < first + count; at++)
        if (segment->pins[at] != 0)
            return true;
    return false;
}

uint64_t xseg_segment_pinned_bytes(const struct xseg_segment *segment)
{
    uint64_t granules = 0;

    if (segment->pinned == 0)
        return 0;
    if (!xseg_segment_is_expandable(segment))
        return segment->bytes;
    for (uint32_t at = 0; at < segment->granules; at++)
        if (segment->length[at] != 0 && xseg_segment_is_pinned(segment, at, segment->length[at]))
            granules += segment->length[at];
    return granules * segment->granule_bytes;
}

uint32_t xseg_segment_loose_pages(const struct xseg_segment *segment, uint32_t *first, uint32_t end)
{
    uint32_t at = *first;

    if (segment->pinned == 0)
        return end - at;
    while (at < end && xseg_segment_is_pinned(segment, at, segment->length[at]))
        at += segment->length[at];
    *first = at;
    while (at < end && !xseg_segment_is_pinned(segment, at, segment->length[at]))
        at += segment->length[at];
    return at - *first;
}
