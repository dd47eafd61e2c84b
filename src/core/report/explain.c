/* SPDX-License-Identifier: MIT */
#include "src/core/report/explain.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/register/register.h"

#define UNKNOWN_AGE UINT64_MAX

/* --- Capacity for the reasons of a device. --- */

struct capacity {
    size_t pages, arenas;
};

static void count_pages(struct capacity *capacity, struct xseg_arena *arena)
{
    capacity->arenas += !xseg_list_is_empty(&arena->extents);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_segment *segment =
            &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;
        const uint64_t mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);

        capacity->pages +=
            xseg_segment_is_expandable(segment) ? mapped / segment->granule_bytes : 1;
    }
}

static xseg_status fail_without_host_memory(size_t pages)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, explanation of %zu pages", pages);
}

static xseg_status reserve_reasons(struct xseg_explainer *explainer)
{
    struct xseg_reason_list *reasons = explainer->reasons;
    struct capacity capacity = {0, 0};
    struct xseg_reason *list;

    XSEG_DEVICE_FOR_ARENAS(arena, explainer->device)
    {
        count_pages(&capacity, arena);
    }
    explainer->arenas = malloc((capacity.arenas + 1) * sizeof(*explainer->arenas));
    explainer->capacity = capacity.arenas;
    if (explainer->arenas != NULL && capacity.pages <= reasons->capacity - reasons->count)
        return XSEG_OK;
    list = explainer->arenas == NULL
               ? NULL
               : realloc(reasons->list, (reasons->count + capacity.pages) * sizeof(*list));
    if (list == NULL) {
        free(explainer->arenas);
        return fail_without_host_memory(capacity.pages);
    }
    reasons->list = list;
    reasons->capacity = reasons->count + capacity.pages;
    return XSEG_OK;
}

/* --- One page. --- */

/* The reason of a page or a classic segment without blocks.  since: time of the last free or map;
 * 0: unknown */
static struct xseg_reason init_reason(const struct xseg_explainer *explainer,
                                      const struct xseg_extent *extent, uint64_t base,
                                      uint64_t bytes, uint64_t since)
{
    const struct xseg_arena *arena = extent->arena;
    struct xseg_reason reason = {.struct_size = sizeof(reason), .kind = XSEG_REASON_POLICY};

    XSEG_ASSERT(bytes > 0);
    reason.device = explainer->device->context.ordinal;
    reason.stream = xseg_arena_stream(arena)->handle;
    reason.pool = xseg_pool_of(extent);
    reason.is_small = arena->is_small;
    reason.is_expandable = xseg_extent_is_expandable(extent);
    reason.is_single_page = xseg_pool_is_single_page(extent);
    reason.base = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    reason.bytes = bytes;
    reason.block_age_ms = UNKNOWN_AGE;
    reason.age_ms = explainer->decay_now == 0 || since == 0 || since > explainer->decay_now
                        ? UNKNOWN_AGE
                        : (explainer->decay_now - since) / XSEG_MILLISECOND;
    return reason;
}

static enum xseg_reason_kind reason_of_state(enum xseg_block_state state)
{
    switch (state) {
    case XSEG_BLOCK_ALLOCATED:
        return XSEG_REASON_ALLOCATED;
    case XSEG_BLOCK_PENDING_FREE:
        return XSEG_REASON_PENDING;
    case XSEG_BLOCK_CLAIMED:
        return XSEG_REASON_CLAIMED;
    default:
        return XSEG_REASON_POLICY;
    }
}

static void set_block(struct xseg_reason *reason, const struct xseg_block_view *view)
{
    struct xseg_pool *pool = ((struct xseg_arena *)view->extent->arena)->pool;

    reason->pool = view->is_fallback ? NULL : xseg_pool_visible(pool);
    reason->fallback_pool = view->is_fallback ? pool : NULL;
    reason->block = (void *)(uintptr_t)view->base; /* NOLINT(performance-no-int-to-ptr) */
    reason->block_bytes = view->bytes;
    reason->block_requested = view->requested;
}

/* Count the part of a block that is on the page, in bytes. */
static void count_block(struct xseg_reason *reason, const struct xseg_block_view *view,
                        uint64_t bytes)
{
    const enum xseg_reason_kind kind = reason_of_state(view->state);

    XSEG_ASSERT(bytes > 0 && bytes <= view->bytes);
    reason->allocated_bytes += view->state == XSEG_BLOCK_ALLOCATED ? bytes : 0;
    reason->pending_bytes += view->state == XSEG_BLOCK_PENDING_FREE ? bytes : 0;
    reason->claimed_bytes += view->state == XSEG_BLOCK_CLAIMED ? bytes : 0;
    reason->cached_bytes += view->state == XSEG_BLOCK_CACHED ? bytes : 0;
    reason->allocated_blocks += view->state == XSEG_BLOCK_ALLOCATED;
    if (kind < reason->kind || (kind == reason->kind && view->bytes > reason->block_bytes)) {
        reason->kind = kind;
        reason->block = NULL;
        reason->block_bytes = reason->block_requested = 0;
        if (kind == XSEG_REASON_ALLOCATED || kind == XSEG_REASON_PENDING)
            set_block(reason, view);
    }
}

/* Whether a page belongs to the run of the page before it: both are idle with the same age, or
 * inside the same block, and both or none are registered. */
static bool is_same_run(const struct xseg_reason *run, const struct xseg_reason *page)
{
    return (char *)run->base + run->bytes == page->base && run->kind == page->kind &&
           run->block == page->block && run->age_ms == page->age_ms &&
           run->allocated_blocks == page->allocated_blocks && run->allocated_blocks <= 1 &&
           (run->registered_bytes == 0) == (page->registered_bytes == 0) &&
           (run->allocated_bytes == run->bytes || run->pending_bytes == run->bytes ||
            run->cached_bytes == run->bytes) &&
           (page->allocated_bytes == page->bytes || page->pending_bytes == page->bytes ||
            page->cached_bytes == page->bytes);
}

/* Append the reason of a page, or extend the run of the last reason. */
static void append_page(struct xseg_reason_list *reasons, const struct xseg_reason *page,
                        bool may_extend)
{
    struct xseg_reason *run = reasons->count > 0 ? &reasons->list[reasons->count - 1] : NULL;

    if (may_extend && is_same_run(run, page)) {
        run->bytes += page->bytes;
        run->allocated_bytes += page->allocated_bytes;
        run->pending_bytes += page->pending_bytes;
        run->cached_bytes += page->cached_bytes;
        run->registered_bytes += page->registered_bytes;
        return;
    }
    XSEG_ASSERT(reasons->count < reasons->capacity);
    reasons->list[reasons->count++] = *page;
}

/* --- Pages of a segment. --- */

static uint64_t page_free_time(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    uint64_t since = 0;

    for (uint32_t at = first; at < first + count; at++)
        since = xseg_max(since, segment->idle_since[at]);
    return since;
}

/* Set the registered bytes of a page and, if the page is idle, a reason that is a property of the
 * page: a registration, a pin or an export.  These reasons precede the other reasons of idle
 * memory. */
static void set_page_reason(const struct xseg_explainer *explainer, struct xseg_reason *page,
                            const struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    struct xseg_registrations *registrations = explainer->device->allocator->registrations;
    const struct xseg_segment *segment = &extent->segment;
    const uint64_t base = (uintptr_t)page->base;

    if (extent->registered != 0)
        page->registered_bytes =
            xseg_registrations_bytes_in(registrations, base, base + page->bytes);
    if (page->kind != XSEG_REASON_POLICY)
        return;
    if (xseg_segment_is_pinned(segment, first, count))
        page->kind = xseg_registrations_pin_any(registrations, base, base + page->bytes)
                         ? XSEG_REASON_REGISTERED
                         : XSEG_REASON_PINNED;
    else if (xseg_segment_is_exported(segment, first, count))
        page->kind = XSEG_REASON_EXPORTED;
}

static void set_block_age(const struct xseg_explainer *explainer, const struct xseg_extent *extent,
                          struct xseg_reason *page)
{
    if (page->block != NULL)
        page->block_age_ms =
            xseg_origins_age(extent, (uint64_t)(uintptr_t)page->block, explainer->origins_now);
}

static void begin_page(struct xseg_explainer *explainer, const struct xseg_extent *extent,
                       uint32_t first, uint32_t count)
{
    const struct xseg_segment *segment = &extent->segment;
    const bool is_expandable = xseg_segment_is_expandable(segment);

    explainer->page =
        init_reason(explainer, extent, segment->base + first * segment->granule_bytes,
                    is_expandable ? count * segment->granule_bytes : segment->bytes,
                    is_expandable ? page_free_time(segment, first, count) : segment->idle_since[0]);
    explainer->page_granules = count;
}

/* Complete the current page after its last block. */
static void finish_page(struct xseg_explainer *explainer)
{
    set_page_reason(explainer, &explainer->page, explainer->extent, explainer->granule,
                    explainer->page_granules);
    set_block_age(explainer, explainer->extent, &explainer->page);
    append_page(explainer->reasons, &explainer->page,
                explainer->reasons->count > explainer->segment_first);
    explainer->granule += explainer->page_granules;
    explainer->page_granules = 0;
}

/* Begin the next mapped page of the segment if it starts below an address.  Returns false if there
 * is no such page. */
static bool begin_next_page(struct xseg_explainer *explainer, uint64_t end)
{
    const struct xseg_segment *segment = &explainer->extent->segment;
    uint32_t count;

    if (!xseg_segment_is_expandable(segment)) {
        if (explainer->granule == 0)
            begin_page(explainer, explainer->extent, 0, 1);
        return explainer->granule == 0;
    }
    for (; explainer->granule < segment->granules; explainer->granule += count) {
        if (segment->base + explainer->granule * segment->granule_bytes >= end)
            return false;
        count = segment->length[explainer->granule] != 0 ? segment->length[explainer->granule] : 1;
        if (xseg_segment_is_mapped(segment, explainer->granule)) {
            begin_page(explainer, explainer->extent, explainer->granule, count);
            return true;
        }
    }
    return false;
}

static void begin_segment(struct xseg_explainer *explainer, const struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(explainer->page_granules == 0);
    explainer->extent = extent;
    explainer->granule = 0;
    explainer->segment_first = explainer->reasons->count;
    if (explainer->count > 0 && explainer->arenas[explainer->count - 1].arena == arena)
        return;
    XSEG_ASSERT(explainer->count < explainer->capacity);
    explainer->arenas[explainer->count++] =
        (struct xseg_explained_arena){arena, explainer->reasons->count};
}

void xseg_explain_add_block(struct xseg_explainer *explainer, const struct xseg_block_view *view)
{
    const uint64_t end = xseg_block_view_end(view);

    if (view->extent != explainer->extent)
        begin_segment(explainer, view->extent);
    while (explainer->page_granules != 0 || begin_next_page(explainer, end)) {
        const uint64_t base = (uintptr_t)explainer->page.base,
                       page_end = base + explainer->page.bytes;

        count_block(&explainer->page, view, xseg_min(end, page_end) - xseg_max(view->base, base));
        if (end < page_end)
            return;
        finish_page(explainer);
    }
}

/* --- Idle memory. --- */

/* The reason of idle memory of an arena.  classify_above_share() refines ABOVE_SHARE,
 * mark_kept_memory() refines DECAY. */
static enum xseg_reason_kind reason_of_idle_memory(const struct xseg_explainer *explainer,
                                                   struct xseg_arena *arena)
{
    bool idle = false;

    if (!xseg_pool_may_shrink(arena->pool))
        return XSEG_REASON_POOL;
    if (xseg_pending_captures(explainer->device->pending))
        return XSEG_REASON_CAPTURE;
    if (xseg_context_is_lost(&explainer->device->context))
        return XSEG_REASON_POLICY;
    if (explainer->may_query_driver &&
        xseg_reclaim_check_stream(explainer->device, xseg_arena_stream(arena), false, &idle) ==
            XSEG_OK &&
        !idle)
        return XSEG_REASON_STREAM;
    if (!xseg_idle_is_counted(arena, NULL))
        return XSEG_REASON_POLICY;
    if (explainer->config->budget_file[0] != '\0')
        return XSEG_REASON_ABOVE_SHARE;
    return explainer->config->decays ? XSEG_REASON_DECAY : XSEG_REASON_POLICY;
}

/* Cached bytes of an arena on pages that also contain blocks in use; 0 if the memory of the arena
 * is not released. */
static uint64_t fragmented_bytes(const struct xseg_explainer *explainer,
                                 const struct xseg_arena *arena, size_t first, size_t end)
{
    uint64_t bytes = 0;

    if (!xseg_idle_is_counted(arena, NULL))
        return 0;
    for (size_t i = first; i < end; i++) {
        const struct xseg_reason *reason = &explainer->reasons->list[i];

        bytes += reason->kind <= XSEG_REASON_CLAIMED ? reason->cached_bytes : 0;
    }
    return bytes;
}

/* Set the reason of the idle memory of an arena, whose reasons are [first, end). */
static void set_idle_reason(struct xseg_explainer *explainer, struct xseg_arena *arena,
                            size_t first, size_t end)
{
    bool has_idle = false;

    for (size_t i = first; i < end; i++)
        has_idle |= explainer->reasons->list[i].kind == XSEG_REASON_POLICY;
    explainer->fragmented += fragmented_bytes(explainer, arena, first, end);
    const enum xseg_reason_kind kind =
        has_idle ? reason_of_idle_memory(explainer, arena) : XSEG_REASON_POLICY;
    for (size_t i = first; i < end; i++)
        if (explainer->reasons->list[i].kind == XSEG_REASON_POLICY)
            explainer->reasons->list[i].kind = kind;
}

static void set_idle_reasons(struct xseg_explainer *explainer)
{
    for (size_t i = 0; i < explainer->count; i++)
        set_idle_reason(explainer, explainer->arenas[i].arena, explainer->arenas[i].first,
                        i + 1 < explainer->count ? explainer->arenas[i + 1].first
                                                 : explainer->reasons->count);
}

/* --- Pages above the share of the process in a budget. --- */

static int compare_ages(const void *left, const void *right)
{
    const struct xseg_reason *a = *(struct xseg_reason *const *)left;
    const struct xseg_reason *b = *(struct xseg_reason *const *)right;

    if (a->age_ms != b->age_ms)
        return a->age_ms < b->age_ms ? -1 : 1;
    return (a->base > b->base) - (a->base < b->base);
}

/* The reasons of one kind on the device from the youngest to the oldest, as an array that the
 * caller frees.  *count is 0 and *out NULL if there are none. */
static xseg_status collect_by_age(const struct xseg_explainer *explainer,
                                  enum xseg_reason_kind kind, struct xseg_reason ***out,
                                  size_t *count)
{
    struct xseg_reason_list *reasons = explainer->reasons;
    size_t found = 0, at = 0;

    *out = NULL;
    *count = 0;
    for (size_t i = explainer->first; i < reasons->count; i++)
        found += reasons->list[i].kind == kind;
    if (found == 0)
        return XSEG_OK;
    struct xseg_reason **by_age = calloc(found, sizeof(struct xseg_reason *));
    if (by_age == NULL)
        return fail_without_host_memory(found);
    for (size_t i = explainer->first; i < reasons->count; i++)
        if (reasons->list[i].kind == kind)
            by_age[at++] = &reasons->list[i];
    XSEG_ASSERT(at == found);
    qsort(by_age, found, sizeof(struct xseg_reason *), compare_ages);
    *out = by_age;
    *count = found;
    return XSEG_OK;
}

/* Bytes of idle pages that the process releases if the other processes demand all memory above its
 * share: the page cache is released first, and budget_min_mb is never released. */
static uint64_t above_share_bytes(const struct xseg_explainer *explainer)
{
    struct xseg_device *device = explainer->device;
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t page_cache = xseg_page_cache_bytes(&device->page_cache);
    const uint64_t above_min = physical - xseg_min(physical, explainer->config->budget_min_bytes);
    const uint64_t above_share = xseg_min(xseg_budget_above_share(device), above_min);

    return above_share - xseg_min(above_share, page_cache);
}

static const struct xseg_segment *find_segment(const struct xseg_explainer *explainer,
                                               const struct xseg_reason *run)
{
    const uint64_t base = (uint64_t)(uintptr_t)run->base;

    for (size_t i = 0; i < explainer->count; i++)
        XSEG_LIST_FOR(node, &explainer->arenas[i].arena->extents)
        {
            const struct xseg_segment *segment =
                &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

            if (base - segment->base < segment->bytes)
                return segment;
        }
    return NULL;
}

/* Size of the fewest pages at the end of a run that contain at least `bytes`. */
static uint64_t tail_pages_bytes(const struct xseg_explainer *explainer,
                                 const struct xseg_reason *run, uint64_t bytes)
{
    if (!run->is_expandable || run->bytes <= bytes)
        return run->bytes;
    const struct xseg_segment *segment = find_segment(explainer, run);
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

static void update_registered_bytes(const struct xseg_explainer *explainer, struct xseg_reason *run)
{
    const uint64_t base = (uint64_t)(uintptr_t)run->base;

    if (run->registered_bytes != 0)
        run->registered_bytes = xseg_registrations_bytes_in(
            explainer->device->allocator->registrations, base, base + run->bytes);
}

/* Split a run of idle pages: `tail` bytes at its end become a separate entry, and the first part
 * gets another kind.  The list has capacity for the entry, because a run that is split has at least
 * two pages. */
static void split_run(struct xseg_explainer *explainer, struct xseg_reason *run, uint64_t tail,
                      enum xseg_reason_kind kind)
{
    struct xseg_reason_list *reasons = explainer->reasons;
    struct xseg_reason *next = run + 1;

    XSEG_ASSERT(tail < run->bytes && run->cached_bytes == run->bytes);
    XSEG_ASSERT(reasons->count < reasons->capacity);
    memmove(next + 1, next, (size_t)(reasons->list + reasons->count - next) * sizeof(*run));
    reasons->count++;
    *next = *run;
    next->base = (char *)run->base + (run->bytes - tail);
    next->bytes = next->cached_bytes = tail;
    run->bytes -= tail;
    run->cached_bytes = run->bytes;
    run->kind = kind;
    update_registered_bytes(explainer, run);
    update_registered_bytes(explainer, next);
}

/* Keep ABOVE_SHARE on the oldest pages up to the amount above the share, in whole pages.  The other
 * pages become DECAY, or POLICY if no memory decays.  At most one run is split. */
static xseg_status classify_above_share(struct xseg_explainer *explainer)
{
    const enum xseg_reason_kind kind_within_share =
        explainer->config->decays ? XSEG_REASON_DECAY : XSEG_REASON_POLICY;
    struct xseg_reason **by_age, *split = NULL;
    uint64_t tail = 0;
    size_t count;

    const xseg_status status = collect_by_age(explainer, XSEG_REASON_ABOVE_SHARE, &by_age, &count);
    if (status != XSEG_OK || count == 0)
        return status;
    uint64_t remaining = above_share_bytes(explainer);
    for (size_t i = count; i-- > 0;) {
        const uint64_t bytes =
            remaining == 0 ? 0 : tail_pages_bytes(explainer, by_age[i], remaining);

        if (bytes == 0)
            by_age[i]->kind = kind_within_share;
        else if (bytes < by_age[i]->bytes) {
            split = by_age[i];
            tail = bytes;
        }
        remaining -= xseg_min(remaining, bytes);
    }
    if (split != NULL)
        split_run(explainer, split, tail, kind_within_share);
    free(by_age);
    return XSEG_OK;
}

/* --- Pages that decay keeps. --- */

/* Change DECAY to KEEP on the youngest pages up to the amount that decay keeps of all idle
 * memory. */
static xseg_status mark_kept_memory(struct xseg_explainer *explainer)
{
    struct xseg_reason_list *reasons = explainer->reasons;
    struct xseg_reason **by_age;
    uint64_t idle = 0, kept_bytes = 0;
    size_t count;

    const xseg_status status = collect_by_age(explainer, XSEG_REASON_DECAY, &by_age, &count);
    if (status != XSEG_OK || count == 0)
        return status;
    for (size_t i = explainer->first; i < reasons->count; i++) {
        const struct xseg_reason *reason = &reasons->list[i];

        if (reason->kind == XSEG_REASON_DECAY || reason->kind == XSEG_REASON_ABOVE_SHARE)
            idle += reason->bytes;
    }
    const uint64_t max_kept = xseg_decay_kept(explainer->device, explainer->config, idle);
    for (size_t i = 0; i < count && kept_bytes < max_kept; i++) {
        /* Without idle_ms, decay only enforces limits, so the reason of memory within the limits is
         * POLICY. */
        by_age[i]->kind = explainer->config->idle_ms < 0 ? XSEG_REASON_POLICY : XSEG_REASON_KEEP;
        kept_bytes += by_age[i]->bytes;
    }
    free(by_age);
    return XSEG_OK;
}

/* --- Streams for which pending blocks wait. --- */

struct waiting_block {
    uint64_t base;
    xseg_stream stream;
};

static int compare_waiting_blocks(const void *left, const void *right)
{
    const uint64_t a = ((const struct waiting_block *)left)->base;
    const uint64_t b = ((const struct waiting_block *)right)->base;

    return (a > b) - (a < b);
}

/* Copy at most `max` pending blocks, each with a stream for which it waits.  Returns the number of
 * entries. */
static size_t collect_waiting_blocks(struct xseg_pending *pending, struct waiting_block *blocks,
                                     size_t max)
{
    size_t count = 0;

    xseg_biased_lock_lock(&pending->lock);
    XSEG_LIST_FOR(node, &pending->streams)
    {
        const struct xseg_known_stream *stream =
            XSEG_CONTAINER(node, struct xseg_known_stream, waiting);

        XSEG_LIST_FOR(link, &stream->uses)
        {
            const struct xseg_stream_use *use = XSEG_CONTAINER(link, struct xseg_stream_use, link);

            if (count < max)
                blocks[count++] = (struct waiting_block){use->block->base, stream->handle};
        }
    }
    XSEG_LIST_FOR(node, &pending->deferred)
    {
        const struct xseg_block *block = XSEG_CONTAINER(node, struct xseg_deferred, link)->block;

        if (count < max && block->uses != NULL)
            blocks[count++] = (struct waiting_block){block->base, block->uses->stream->handle};
    }
    xseg_biased_lock_unlock(&pending->lock);
    XSEG_ASSERT(count <= max);
    return count;
}

static xseg_status set_awaited_streams(struct xseg_explainer *explainer)
{
    struct xseg_pending *pending = explainer->device->pending;
    const size_t max = xseg_pending_count(pending);
    struct waiting_block *blocks = calloc(max + 1, sizeof(*blocks));

    if (blocks == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, explanation of %zu pending blocks", max);
    const size_t count = collect_waiting_blocks(pending, blocks, max);
    qsort(blocks, count, sizeof(*blocks), compare_waiting_blocks);
    for (size_t i = explainer->first; i < explainer->reasons->count; i++) {
        struct xseg_reason *reason = &explainer->reasons->list[i];
        const struct waiting_block key = {(uint64_t)(uintptr_t)reason->block, NULL};
        const struct waiting_block *found =
            reason->kind == XSEG_REASON_PENDING
                ? bsearch(&key, blocks, count, sizeof(*blocks), compare_waiting_blocks)
                : NULL;

        reason->has_waits_for = found != NULL;
        reason->waits_for = found != NULL ? found->stream : NULL;
        if (reason->kind == XSEG_REASON_PENDING && found == NULL)
            reason->has_waits_for =
                xseg_pending_unmap_stream(explainer->device, key.base, &reason->waits_for);
    }
    free(blocks);
    return XSEG_OK;
}

/* --- One pass over a device. --- */

xseg_status xseg_explain_begin(struct xseg_explainer *explainer)
{
    const struct xseg_config *config = explainer->config;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(explainer->reasons->count <= explainer->reasons->capacity);
    explainer->first = explainer->reasons->count;
    explainer->decay_now =
        config->decays || config->budget_file[0] != '\0' ? xseg_decay_now(explainer->device) : 0;
    return reserve_reasons(explainer);
}

xseg_status xseg_explain_end(struct xseg_explainer *explainer)
{
    struct xseg_device *device = explainer->device;

    XSEG_ASSERT(explainer->page_granules == 0);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    set_idle_reasons(explainer);
    xseg_status status = classify_above_share(explainer);
    free(explainer->arenas);
    xseg_timestamped_set(&device->fragmented, xseg_clock_coarse(&device->allocator->clock),
                         explainer->fragmented);
    status = status == XSEG_OK ? set_awaited_streams(explainer) : status;
    /* With device_free_min_mb the kept amount depends on the free memory of the device, a query of
     * the driver. */
    if (status != XSEG_OK ||
        (!explainer->may_query_driver && explainer->config->device_free_min_bytes != 0))
        return status;
    return mark_kept_memory(explainer);
}

static void explain_block(void *self, const struct xseg_block_view *view)
{
    xseg_explain_add_block(self, view);
}

xseg_status xseg_explain_device(struct xseg_device *device, const struct xseg_config *config,
                                struct xseg_reason_list *reasons)
{
    struct xseg_explainer explainer = {
        .device = device, .config = config, .reasons = reasons, .may_query_driver = true};

    XSEG_ASSERT(device->allocator != NULL);
    explainer.origins_now = xseg_origins_now_if_enabled(&device->allocator->clock, config);
    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_explain_begin(&explainer);
    if (status == XSEG_OK) {
        xseg_device_walk(device, explain_block, &explainer);
        status = xseg_explain_end(&explainer);
    }
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}
