/* SPDX-License-Identifier: MIT */
#include "src/core/report/explain.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/arena/origins.h"
#include "src/core/cache/walk.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/deferred.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/idle.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/trim_steps.h"
#include "src/core/register/register.h"
#include "src/core/report/above_share.h"
#include "src/core/report/allocator_describe.h"

#define UNKNOWN_AGE UINT64_MAX

/* --- Room for reasons, made before the lock of an arena is taken. --- */

struct room {
    size_t pages, arenas;
};

static void count_pages(void *self, struct xseg_arena *arena)
{
    struct room *room = self;

    room->arenas += !xseg_list_is_empty(&arena->extents);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_segment *segment =
            &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;
        const uint64_t mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);

        room->pages += xseg_segment_is_expandable(segment) ? mapped / segment->granule_bytes : 1;
    }
}

xseg_status xseg_explain_fail(size_t pages)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, explanation of %zu pages", pages);
}

static xseg_status make_room(struct xseg_explaining *look)
{
    struct xseg_reasons *reasons = look->reasons;
    struct room room = {0, 0};
    struct xseg_reason *list;

    xseg_device_visit_arenas(look->device, count_pages, &room);
    look->arenas = malloc((room.arenas + 1) * sizeof(*look->arenas));
    look->room = room.arenas;
    if (look->arenas != NULL && room.pages <= reasons->capacity - reasons->count)
        return XSEG_OK;
    list = look->arenas == NULL
               ? NULL
               : realloc(reasons->list, (reasons->count + room.pages) * sizeof(*list));
    if (list == NULL) {
        free(look->arenas);
        return xseg_explain_fail(room.pages);
    }
    reasons->list = list;
    reasons->capacity = reasons->count + room.pages;
    return XSEG_OK;
}

/* --- One page. --- */

/* The reason of a page or a classic segment, before its blocks are looked at. */
static struct xseg_reason begin_reason(const struct xseg_explaining *look,
                                       const struct xseg_extent *extent, uint64_t base,
                                       uint64_t bytes, uint64_t since)
{
    const struct xseg_arena *arena = extent->arena;
    struct xseg_reason reason = {.struct_size = sizeof(reason), .kind = XSEG_REASON_POLICY};

    XSEG_ASSERT(bytes > 0);
    reason.device = look->device->context.ordinal;
    reason.stream = xseg_arena_stream(arena)->handle;
    reason.pool = xseg_pool_of(extent);
    reason.is_small = arena->is_small;
    reason.is_expandable = xseg_extent_is_expandable(extent);
    reason.is_single_page = xseg_pool_is_single_page(extent);
    reason.base = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    reason.bytes = bytes;
    reason.block_age_ms = UNKNOWN_AGE;
    reason.age_ms = look->now == 0 || since == 0 || since > look->now
                        ? UNKNOWN_AGE
                        : (look->now - since) / UINT64_C(1000000);
    return reason;
}

static enum xseg_reason_kind kind_of(enum xseg_block_state state)
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

static void name_block(struct xseg_reason *reason, const struct xseg_part *part)
{
    struct xseg_pool *pool = ((struct xseg_arena *)part->extent->arena)->pool;

    reason->pool = part->is_fallback ? NULL : xseg_pool_shown(pool);
    reason->fallback_pool = part->is_fallback ? pool : NULL;
    reason->block = (void *)(uintptr_t)part->base; /* NOLINT(performance-no-int-to-ptr) */
    reason->block_bytes = part->bytes;
    reason->block_requested = part->requested;
}

/* Count a block that lies on the page with so many bytes. */
static void add_part(struct xseg_reason *reason, const struct xseg_part *part, uint64_t bytes)
{
    const enum xseg_reason_kind kind = kind_of(part->state);

    XSEG_ASSERT(bytes > 0 && bytes <= part->bytes);

    reason->allocated_bytes += part->state == XSEG_BLOCK_ALLOCATED ? bytes : 0;
    reason->pending_bytes += part->state == XSEG_BLOCK_PENDING_FREE ? bytes : 0;
    reason->claimed_bytes += part->state == XSEG_BLOCK_CLAIMED ? bytes : 0;
    reason->cached_bytes += part->state == XSEG_BLOCK_CACHED ? bytes : 0;
    reason->allocated_blocks += part->state == XSEG_BLOCK_ALLOCATED;
    if (kind < reason->kind || (kind == reason->kind && part->bytes > reason->block_bytes)) {
        reason->kind = kind;
        reason->block = NULL;
        reason->block_bytes = reason->block_requested = 0;
        if (kind == XSEG_REASON_ALLOCATED || kind == XSEG_REASON_PENDING)
            name_block(reason, part);
    }
}

/* Whether a page continues the run of the page before: idle as long, or inside the same block; and registered
 * as well, or not. */
static bool continues(const struct xseg_reason *run, const struct xseg_reason *page)
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

static void put_reason(struct xseg_reasons *reasons, const struct xseg_reason *page, bool may_join)
{
    struct xseg_reason *run = reasons->count > 0 ? &reasons->list[reasons->count - 1] : NULL;

    if (may_join && continues(run, page)) {
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

/* --- The pages of a segment, while the walk visits its blocks. --- */

static uint64_t page_since(const struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    uint64_t since = 0;

    for (uint32_t at = first; at < first + count; at++)
        since = xseg_max(since, segment->idle_since[at]);
    return since;
}

/* Note what is registered of a page, and that an idle one is pinned, by a registration or otherwise, or exported: these
 * reasons go before the others of idle memory. */
static void note_held(const struct xseg_explaining *look, struct xseg_reason *page,
                      const struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    struct xseg_registrations *registrations = look->device->allocator->registrations;
    const struct xseg_segment *segment = &extent->segment;
    const uint64_t base = (uintptr_t)page->base;

    if (extent->registered != 0)
        page->registered_bytes = xseg_registrations_over(registrations, base, base + page->bytes);
    if (page->kind != XSEG_REASON_POLICY)
        return;
    if (xseg_segment_is_pinned(segment, first, count))
        page->kind = xseg_registrations_pin(registrations, base, base + page->bytes)
                         ? XSEG_REASON_REGISTERED
                         : XSEG_REASON_PINNED;
    else if (xseg_segment_is_exported(segment, first, count))
        page->kind = XSEG_REASON_EXPORTED;
}

/* Note the age of the block that the reason names. */
static void note_age(const struct xseg_explaining *look, const struct xseg_extent *extent,
                     struct xseg_reason *page)
{
    if (page->block != NULL)
        page->block_age_ms =
            xseg_origins_age(extent, (uint64_t)(uintptr_t)page->block, look->origins_now);
}

static void begin_page(struct xseg_explaining *look, const struct xseg_extent *extent,
                       uint32_t first, uint32_t count)
{
    const struct xseg_segment *segment = &extent->segment;
    const bool is_expandable = xseg_segment_is_expandable(segment);

    look->page =
        begin_reason(look, extent, segment->base + first * segment->granule_bytes,
                     is_expandable ? count * segment->granule_bytes : segment->bytes,
                     is_expandable ? page_since(segment, first, count) : segment->idle_since[0]);
    look->page_count = count;
}

/* Add the page, which all its blocks have been counted for, to the reasons. */
static void end_page(struct xseg_explaining *look)
{
    note_held(look, &look->page, look->extent, look->granule, look->page_count);
    note_age(look, look->extent, &look->page);
    put_reason(look->reasons, &look->page, look->reasons->count > look->segment_first);
    look->granule += look->page_count;
    look->page_count = 0;
}

/* Begin the first mapped page that begins below an address, from the current granule on.  Returns false if there is none. */
static bool find_page(struct xseg_explaining *look, uint64_t end)
{
    const struct xseg_segment *segment = &look->extent->segment;
    uint32_t count;

    if (!xseg_segment_is_expandable(segment)) {
        if (look->granule == 0)
            begin_page(look, look->extent, 0, 1);
        return look->granule == 0;
    }
    for (; look->granule < segment->granules; look->granule += count) {
        if (segment->base + look->granule * segment->granule_bytes >= end)
            return false;
        count = segment->length[look->granule] != 0 ? segment->length[look->granule] : 1;
        if (xseg_segment_is_mapped(segment, look->granule)) {
            begin_page(look, look->extent, look->granule, count);
            return true;
        }
    }
    return false;
}

static void begin_segment(struct xseg_explaining *look, const struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(look->page_count == 0);
    look->extent = extent;
    look->granule = 0;
    look->segment_first = look->reasons->count;
    if (look->count > 0 && look->arenas[look->count - 1].arena == arena)
        return;
    XSEG_ASSERT(look->count < look->room);
    look->arenas[look->count++] = (struct xseg_explained_arena){arena, look->reasons->count};
}

void xseg_explain_part(struct xseg_explaining *look, const struct xseg_part *part)
{
    const uint64_t end = xseg_part_end(part);

    if (part->extent != look->extent)
        begin_segment(look, part->extent);
    while (look->page_count != 0 || find_page(look, end)) {
        const uint64_t base = (uintptr_t)look->page.base, page_end = base + look->page.bytes;

        add_part(&look->page, part, xseg_min(end, page_end) - xseg_max(part->base, base));
        if (end < page_end)
            return;
        end_page(look);
    }
}

/* --- Why idle memory stays. --- */

/* Why the idle memory of an arena stays; BORROWED is weighed further by xseg_above_share_classify(), DECAY by weigh_decay(). */
static enum xseg_reason_kind keeper_of(const struct xseg_explaining *look, struct xseg_arena *arena)
{
    bool idle = false;

    if (!xseg_pool_may_shrink(arena->pool))
        return XSEG_REASON_POOL;
    if (xseg_pending_captures(look->device->pending))
        return XSEG_REASON_CAPTURE;
    if (xseg_context_is_lost(&look->device->context))
        return XSEG_REASON_POLICY;
    if (look->asks &&
        xseg_trim_is_idle(look->device, xseg_arena_stream(arena), false, &idle) == XSEG_OK && !idle)
        return XSEG_REASON_STREAM;
    if (!xseg_idle_is_counted(arena, NULL))
        return XSEG_REASON_POLICY;
    if (look->config->budget_file[0] != '\0')
        return XSEG_REASON_ABOVE_SHARE;
    return look->config->decays ? XSEG_REASON_DECAY : XSEG_REASON_POLICY;
}

/* Cached bytes of an arena whose memory may go back, on pages that blocks in use share. */
static uint64_t stranded_bytes(const struct xseg_explaining *look, const struct xseg_arena *arena,
                               size_t first, size_t end)
{
    uint64_t bytes = 0;

    if (!xseg_idle_is_counted(arena, NULL))
        return 0;
    for (size_t i = first; i < end; i++) {
        const struct xseg_reason *reason = &look->reasons->list[i];

        bytes += reason->kind <= XSEG_REASON_CLAIMED ? reason->cached_bytes : 0;
    }
    return bytes;
}

/* Say why the idle memory of an arena stays, of which the reasons from one on up to another are. */
static void name_keeper(struct xseg_explaining *look, struct xseg_arena *arena, size_t first,
                        size_t end)
{
    bool has_idle = false;

    for (size_t i = first; i < end; i++)
        has_idle |= look->reasons->list[i].kind == XSEG_REASON_POLICY;
    look->stranded += stranded_bytes(look, arena, first, end);
    const enum xseg_reason_kind keeper = has_idle ? keeper_of(look, arena) : XSEG_REASON_POLICY;
    for (size_t i = first; i < end; i++)
        if (look->reasons->list[i].kind == XSEG_REASON_POLICY)
            look->reasons->list[i].kind = keeper;
}

static void name_keepers(struct xseg_explaining *look)
{
    for (size_t i = 0; i < look->count; i++)
        name_keeper(look, look->arenas[i].arena, look->arenas[i].first,
                    i + 1 < look->count ? look->arenas[i + 1].first : look->reasons->count);
}

/* --- The stream that a pending block waits for. --- */

struct wait {
    uint64_t base;
    xseg_stream stream;
};

static int compare_waits(const void *left, const void *right)
{
    const uint64_t a = ((const struct wait *)left)->base, b = ((const struct wait *)right)->base;

    return (a > b) - (a < b);
}

/* Read which blocks wait for which streams, up to `most`.  Returns how many. */
static size_t read_waits(struct xseg_pending *pending, struct wait *waits, size_t max)
{
    size_t count = 0;

    xseg_pending_lock(pending);
    XSEG_LIST_FOR(node, &pending->streams)
    {
        const struct xseg_known_stream *stream =
            XSEG_CONTAINER(node, struct xseg_known_stream, waiting);

        XSEG_LIST_FOR(link, &stream->uses)
        {
            const struct xseg_stream_use *use = XSEG_CONTAINER(link, struct xseg_stream_use, link);

            if (count < max)
                waits[count++] = (struct wait){use->block->base, stream->handle};
        }
    }
    XSEG_LIST_FOR(node, &pending->deferred)
    {
        const struct xseg_block *block = XSEG_CONTAINER(node, struct xseg_deferred, link)->block;

        if (count < max && block->uses != NULL)
            waits[count++] = (struct wait){block->base, block->uses->stream->handle};
    }
    xseg_pending_unlock(pending);
    XSEG_ASSERT(count <= max);
    return count;
}

static xseg_status name_streams(struct xseg_explaining *look, size_t first)
{
    struct xseg_pending *pending = look->device->pending;
    const size_t max = xseg_pending_count(pending);
    struct wait *waits = calloc(max + 1, sizeof(*waits));

    if (waits == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, explanation of %zu pending blocks", max);
    const size_t count = read_waits(pending, waits, max);
    qsort(waits, count, sizeof(*waits), compare_waits);
    for (size_t i = first; i < look->reasons->count; i++) {
        struct xseg_reason *reason = &look->reasons->list[i];
        const struct wait wanted = {(uint64_t)(uintptr_t)reason->block, NULL};
        const struct wait *found =
            reason->kind == XSEG_REASON_PENDING
                ? bsearch(&wanted, waits, count, sizeof(*waits), compare_waits)
                : NULL;

        reason->has_waits_for = found != NULL;
        reason->waits_for = found != NULL ? found->stream : NULL;
        if (reason->kind == XSEG_REASON_PENDING && found == NULL)
            reason->has_waits_for =
                xseg_pending_unmap_stream(look->device, wanted.base, &reason->waits_for);
    }
    free(waits);
    return XSEG_OK;
}

/* --- The floor of decay: it keeps the youngest of the memory that it could take. --- */

static xseg_status weigh_decay(struct xseg_explaining *look, size_t first)
{
    struct xseg_reasons *reasons = look->reasons;
    const size_t count = reasons->count - first;
    struct xseg_reason **young = calloc(count + 1, sizeof(struct xseg_reason *));
    uint64_t idle = 0, kept = 0;
    size_t found = 0;

    if (young == NULL)
        return xseg_explain_fail(count);
    for (size_t i = first; i < reasons->count; i++) {
        const enum xseg_reason_kind kind = reasons->list[i].kind;

        idle += kind == XSEG_REASON_DECAY || kind == XSEG_REASON_ABOVE_SHARE
                    ? reasons->list[i].bytes
                    : 0;
        if (kind == XSEG_REASON_DECAY)
            young[found++] = &reasons->list[i];
    }
    XSEG_ASSERT(found <= count);
    qsort(young, found, sizeof(struct xseg_reason *), xseg_above_share_compare_ages);
    const uint64_t max = found == 0 ? 0 : xseg_decay_kept(look->device, look->config, idle);
    /* Without idle_ms only limits take memory; memory within the limits stays by policy. */
    for (size_t i = 0; i < found && kept < max; i++) {
        young[i]->kind = look->config->idle_ms < 0 ? XSEG_REASON_POLICY : XSEG_REASON_KEEP;
        kept += young[i]->bytes;
    }
    free(young);
    return XSEG_OK;
}

xseg_status xseg_explain_begin(struct xseg_explaining *look)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(look->reasons->count <= look->reasons->capacity);
    look->first = look->reasons->count;
    look->now = look->config->decays || look->config->budget_file[0] != '\0'
                    ? xseg_decay_now(look->device)
                    : 0;
    return make_room(look);
}

xseg_status xseg_explain_end(struct xseg_explaining *look)
{
    struct xseg_device *device = look->device;

    XSEG_ASSERT(look->page_count == 0);
    name_keepers(look);
    xseg_status status = xseg_above_share_classify(look);
    free(look->arenas);
    xseg_timestamped_set(&device->stranded, xseg_clock_coarse(&device->allocator->clock),
                         look->stranded);
    status = status == XSEG_OK ? name_streams(look, look->first) : status;
    /* What device_free_min_mb demands only the driver knows. */
    if (status != XSEG_OK || (!look->asks && look->config->device_free_min_bytes != 0))
        return status;
    return weigh_decay(look, look->first);
}

static void visit(void *self, const struct xseg_part *part)
{
    xseg_explain_part(self, part);
}

xseg_status xseg_explain_device(struct xseg_device *device, const struct xseg_config *config,
                                struct xseg_reasons *reasons)
{
    struct xseg_explaining look = {
        .device = device, .config = config, .reasons = reasons, .asks = true};

    XSEG_ASSERT(device->allocator != NULL);
    look.origins_now = xseg_origins_now_by(&device->allocator->clock, config);
    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = xseg_explain_begin(&look);
    if (status == XSEG_OK) {
        xseg_device_walk(device, visit, &look);
        status = xseg_explain_end(&look);
    }
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

/* --- Blocks. --- */

/* The segment with the lowest addresses that reaches behind the cursor, or NULL.  pool: its owner; NULL: any */
static const struct xseg_extent *extent_after(const struct xseg_arena *arena,
                                              const struct xseg_pool *pool, uint64_t cursor)
{
    const struct xseg_extent *lowest = NULL;

    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);
        const struct xseg_segment *segment = &extent->segment;

        if (segment->base + segment->bytes > cursor && (pool == NULL || pool == arena->pool) &&
            (lowest == NULL || segment->base < lowest->segment.base))
            lowest = extent;
    }
    return lowest;
}

size_t xseg_explain_blocks(struct xseg_arena *arena, const struct xseg_pool *pool, uint64_t *cursor,
                           uint64_t now, struct xseg_block_info *out, size_t max)
{
    const struct xseg_extent *extent;
    size_t count = 0;

    xseg_arena_lock(arena);
    while (count < max && (extent = extent_after(arena, pool, *cursor)) != NULL) {
        const uint64_t from = xseg_max(*cursor, extent->segment.base);
        struct xseg_part part = xseg_walk_at(extent, from);

        /* A block that has merged with one reported before begins below the cursor: it is skipped. */
        *cursor = xseg_part_end(&part);
        if (part.base < from)
            part = xseg_walk_next(&part);
        for (; part.extent != NULL && count < max; part = xseg_walk_next(&part)) {
            out[count] = (struct xseg_block_info){.struct_size = sizeof(out[count])};
            XSEG_ASSERT(xseg_part_end(&part) >= *cursor);
            xseg_allocator_describe_address(&part, now, &out[count++]);
            *cursor = xseg_part_end(&part);
        }
    }
    xseg_arena_unlock(arena);
    return count;
}
