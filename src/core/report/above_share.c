/* SPDX-License-Identifier: MIT */
#include "src/core/report/above_share.h"

#include <stdlib.h>
#include <string.h>

#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"
#include "src/core/register/register.h"

int xseg_above_share_compare_ages(const void *left, const void *right)
{
    const struct xseg_reason *a = *(struct xseg_reason *const *)left;
    const struct xseg_reason *b = *(struct xseg_reason *const *)right;

    if (a->age_ms != b->age_ms)
        return a->age_ms < b->age_ms ? -1 : 1;
    return (a->base > b->base) - (a->base < b->base);
}

/* Bytes of reserved memory that others would get, if they wanted all that is borrowed. */
static uint64_t above_share_bytes(const struct xseg_explaining *look)
{
    struct xseg_device *device = look->device;
    const uint64_t taken = xseg_device_physical(device),
                   cached = xseg_page_cache_bytes(&device->page_cache);
    const uint64_t above_floor = taken - xseg_min(taken, look->config->budget_min_bytes);
    const uint64_t above_share = xseg_min(xseg_budget_above_share(device), above_floor);

    return above_share - xseg_min(above_share, cached);
}

/* The segment that a run of pages lies in. */
static const struct xseg_segment *segment_of(const struct xseg_explaining *look,
                                             const struct xseg_reason *run)
{
    const uint64_t base = (uint64_t)(uintptr_t)run->base;

    for (size_t i = 0; i < look->count; i++)
        XSEG_LIST_FOR(node, &look->arenas[i].arena->extents)
        {
            const struct xseg_segment *segment =
                &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

            if (base - segment->base < segment->bytes)
                return segment;
        }
    return NULL;
}

/* Bytes of the pages at the end of a run that come to `bytes` at least. */
static uint64_t last_pages(const struct xseg_explaining *look, const struct xseg_reason *run,
                           uint64_t bytes)
{
    if (!run->is_expandable || run->bytes <= bytes)
        return run->bytes;
    const struct xseg_segment *segment = segment_of(look, run);
    if (segment == NULL)
        return run->bytes;
    const uint64_t first = (uint64_t)(uintptr_t)run->base - segment->base;
    uint64_t at = first + run->bytes;
    while (at > first && first + run->bytes - at < bytes) {
        at -= segment->granule_bytes;
        while (at > first && segment->length[at / segment->granule_bytes] == 0)
            at -= segment->granule_bytes;
    }
    return first + run->bytes - at;
}

static void note_registered(const struct xseg_explaining *look, struct xseg_reason *part)
{
    const uint64_t base = (uint64_t)(uintptr_t)part->base;

    if (part->registered_bytes != 0)
        part->registered_bytes = xseg_registrations_over(look->device->allocator->registrations,
                                                         base, base + part->bytes);
}

/* Part a run of idle pages in two, so that so many bytes at its end stand for themselves; the first part has another
 * kind.  A run has two pages at least, and each page had room in the list. */
static void split(struct xseg_explaining *look, struct xseg_reason *run, uint64_t last,
                  enum xseg_reason_kind kind)
{
    struct xseg_reasons *reasons = look->reasons;
    struct xseg_reason *behind = run + 1;

    XSEG_ASSERT(last < run->bytes && run->cached_bytes == run->bytes);
    XSEG_ASSERT(reasons->count < reasons->capacity);
    memmove(behind + 1, behind, (size_t)(reasons->list + reasons->count - behind) * sizeof(*run));
    reasons->count++;
    *behind = *run;
    behind->base = (char *)run->base + (run->bytes - last);
    behind->bytes = behind->cached_bytes = last;
    run->bytes -= last;
    run->cached_bytes = run->bytes;
    run->kind = kind;
    note_registered(look, run);
    note_registered(look, behind);
}

/* Name the reasons, which are in the order of their ages. */
static void name(struct xseg_explaining *look, struct xseg_reason **young, size_t count)
{
    const enum xseg_reason_kind rest =
        look->config->decays ? XSEG_REASON_DECAY : XSEG_REASON_POLICY;
    uint64_t left = above_share_bytes(look), last = 0;
    struct xseg_reason *parted = NULL;

    for (size_t i = count; i-- > 0;) {
        const uint64_t part = left == 0 ? 0 : last_pages(look, young[i], left);

        if (part == 0)
            young[i]->kind = rest;
        else if (part < young[i]->bytes) {
            parted = young[i];
            last = part;
        }
        left -= xseg_min(left, part);
    }
    if (parted != NULL)
        split(look, parted, last, rest);
}

xseg_status xseg_above_share_classify(struct xseg_explaining *look)
{
    struct xseg_reasons *reasons = look->reasons;
    size_t found = 0, at = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = look->first; i < reasons->count; i++)
        found += reasons->list[i].kind == XSEG_REASON_ABOVE_SHARE;
    if (found == 0)
        return XSEG_OK;
    struct xseg_reason **young = calloc(found, sizeof(struct xseg_reason *));
    if (young == NULL)
        return xseg_explain_fail(found);
    for (size_t i = look->first; i < reasons->count; i++)
        if (reasons->list[i].kind == XSEG_REASON_ABOVE_SHARE)
            young[at++] = &reasons->list[i];
    XSEG_ASSERT(at == found);
    qsort(young, found, sizeof(struct xseg_reason *), xseg_above_share_compare_ages);
    name(look, young, found);
    free(young);
    return XSEG_OK;
}
