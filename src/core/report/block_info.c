/* SPDX-License-Identifier: MIT */
#include "src/core/report/block_info.h"

#include "src/core/block/arena.h"
#include "src/core/block/extent.h"
#include "src/core/block/origins.h"
#include "src/core/history/history.h"

/* --- One block. --- */

/* The adjacent block on one side; no block (extent NULL) at the end of the segment. */
static struct xseg_block_view adjacent_block(const struct xseg_block_view *view, bool before)
{
    const uint64_t base = view->extent->segment.base;

    if (!before)
        return xseg_extent_next_view(view);
    return view->base == base ? (struct xseg_block_view){0}
                              : xseg_extent_view_at(view->extent, view->base - 1);
}

/* Measure the cached block on one side of a block and the unmapped range next to it. */
static void measure_free_side(const struct xseg_block_view *view, bool before, size_t *cached,
                              size_t *unmapped)
{
    struct xseg_block_view next = adjacent_block(view, before);

    *cached = *unmapped = 0;
    if (next.extent != NULL && next.state == XSEG_BLOCK_CACHED) {
        *cached = next.bytes;
        next = adjacent_block(&next, before);
    }
    if (next.extent != NULL && next.state == XSEG_BLOCK_UNMAPPED)
        *unmapped = next.bytes;
}

static void fill_origin(const struct xseg_block_view *view, uint64_t now,
                        struct xseg_block_info *info)
{
    struct xseg_history_store *store = view->extent->arena->history->store;

    info->age_ms = XSEG_ORIGINS_UNKNOWN;
    info->stack = info->frames = 0;
    info->label = NULL;
    info->user = NULL;
    if (view->state != XSEG_BLOCK_ALLOCATED && view->state != XSEG_BLOCK_PENDING_FREE)
        return;
    const struct xseg_origin origin = xseg_origins_of(view->extent, view->base);
    const uint64_t user = xseg_origins_user(view->extent, view->base);
    info->age_ms = xseg_origins_age(view->extent, view->base, now);
    info->stack = origin.stack;
    info->frames = origin.frames;
    info->label = xseg_history_labels_text(&store->labels, origin.label);
    /* While user values are not recorded, the stored value may belong to an earlier block. */
    if ((xseg_history_store_settings(store) & XSEG_HISTORY_USERS) != 0)
        info->user = (void *)(uintptr_t)user; /* NOLINT(performance-no-int-to-ptr) */
}

/* Fill in the description of a block except struct_size.  The arena is locked. */
static void fill_block_info(const struct xseg_block_view *view, uint64_t now,
                            struct xseg_block_info *info)
{
    const struct xseg_extent *extent = view->extent;
    const struct xseg_arena *arena = extent->arena;
    const struct xseg_segment *segment = &extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && view->bytes > 0);
    XSEG_ASSERT(view->base >= segment->base &&
                xseg_block_view_end(view) <= segment->base + segment->bytes);
    info->base = (void *)(uintptr_t)view->base; /* NOLINT(performance-no-int-to-ptr) */
    info->bytes = view->bytes;
    info->requested = view->requested;
    info->state = view->state;
    info->device = arena->device->context.ordinal;
    info->stream = xseg_arena_stream(arena)->handle;
    info->pool = view->is_fallback ? NULL : xseg_pool_of(extent);
    info->fallback_pool = view->is_fallback ? arena->pool : NULL;
    info->is_small = arena->is_small;
    info->is_expandable = xseg_extent_is_expandable(extent);
    info->segment_base = (void *)(uintptr_t)segment->base; /* NOLINT(performance-no-int-to-ptr) */
    info->segment_bytes = segment->bytes;
    info->segment_mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    measure_free_side(view, true, &info->free_before, &info->unmapped_before);
    measure_free_side(view, false, &info->free_after, &info->unmapped_after);
    info->is_paused = arena->is_paused;
    info->generation = view->state == XSEG_BLOCK_UNMAPPED
                           ? 0
                           : xseg_segment_generation(segment, view->base - segment->base,
                                                     xseg_block_view_end(view) - segment->base);
    fill_origin(view, now, info);
}

xseg_status xseg_block_info_at(struct xseg_allocator *allocator, const void *pointer,
                               struct xseg_block_info *out) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    const uint64_t now = xseg_origins_now_if_enabled(&allocator->clock, xseg_allocator_config(allocator));
    struct xseg_extent *extent = xseg_arena_lock_at(&allocator->page_map, address);

    if (extent == NULL)
        return xseg_allocator_fail_foreign(address);
    const struct xseg_block_view view = xseg_extent_view_at(extent, address);
    XSEG_ASSERT(view.base <= address && address < xseg_block_view_end(&view));
    fill_block_info(&view, now, out);
    xseg_arena_unlock(extent->arena);
    return XSEG_OK;
}

/* --- The blocks of an arena. --- */

/* The segment with the lowest address that ends above the cursor, or NULL.  pool: its pool; NULL:
 * every pool */
static const struct xseg_extent *find_extent_above(const struct xseg_arena *arena,
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

size_t xseg_block_info_list(struct xseg_arena *arena, const struct xseg_pool *pool,
                            uint64_t *cursor, uint64_t now, struct xseg_block_info *out, size_t max)
{
    const struct xseg_extent *extent;
    size_t count = 0;

    xseg_arena_lock(arena);
    while (count < max && (extent = find_extent_above(arena, pool, *cursor)) != NULL) {
        const uint64_t from = xseg_max(*cursor, extent->segment.base);
        struct xseg_block_view view = xseg_extent_view_at(extent, from);

        /* Skip a block that starts below the cursor: since the last batch it coalesced with a
         * reported block. */
        *cursor = xseg_block_view_end(&view);
        if (view.base < from)
            view = xseg_extent_next_view(&view);
        for (; view.extent != NULL && count < max; view = xseg_extent_next_view(&view)) {
            out[count] = (struct xseg_block_info){.struct_size = sizeof(out[count])};
            XSEG_ASSERT(xseg_block_view_end(&view) >= *cursor);
            fill_block_info(&view, now, &out[count++]);
            *cursor = xseg_block_view_end(&view);
        }
    }
    xseg_arena_unlock(arena);
    return count;
}
