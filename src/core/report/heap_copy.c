/* SPDX-License-Identifier: MIT */
#include "src/core/report/heap_copy.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/history/history.h"
#include "vmm/evicted.h"

/* Virtual address space for the records of each kind: enough for 2^28 blocks. */
#define RESERVED_BYTES ((size_t)16 << 30)

/* --- One block. --- */

static bool is_page_evicted(const struct xseg_segment *segment, uint64_t address)
{
    return xseg_segment_is_expandable(segment) &&
           xseg_segment_is_evicted(segment,
                                   (uint32_t)((address - segment->base) / segment->granule_bytes));
}

static struct xseg_heap_range *begin_range(struct xseg_heap_copy *copy,
                                           const struct xseg_block_view *view, bool is_evicted)
{
    const struct xseg_extent *extent = view->extent;
    const struct xseg_arena *arena = extent->arena;
    struct xseg_heap_range *range = xseg_bump_alloc(&copy->range_records, sizeof(*range));

    if (range == NULL)
        return NULL;
    *range = (struct xseg_heap_range){
        .base = view->base,
        .pool = arena->pool_id,
        .stream = (uint64_t)(uintptr_t)xseg_arena_stream(arena)->handle,
        .is_small = arena->is_small,
        .is_expandable = xseg_extent_is_expandable(extent),
        .is_evicted = is_evicted,
    };
    copy->count++;
    return range;
}

/* The state of a block according to the recorded events.  A claimed block is being freed; the event
 * is recorded at the end of the free, so the block still counts as allocated.  There is one
 * exception: the free of a pending block that debug_fill fills was already recorded. */
static enum xseg_block_state recorded_state(const struct xseg_block_view *view)
{
    return view->state == XSEG_BLOCK_CLAIMED ? XSEG_BLOCK_ALLOCATED : view->state;
}

static bool append_block(struct xseg_heap_copy *copy, struct xseg_heap_range *range,
                         const struct xseg_block_view *view)
{
    const enum xseg_block_state state = recorded_state(view);
    const struct xseg_origin origin = state != XSEG_BLOCK_CACHED
                                          ? xseg_origins_of(view->extent, view->base)
                                          : (struct xseg_origin){0, 0, 0};
    struct xseg_heap_block *block = xseg_bump_alloc(&copy->block_records, sizeof(*block));

    if (block == NULL)
        return false;
    *block = (struct xseg_heap_block){
        .base = view->base,
        .bytes = view->bytes,
        .requested = view->requested,
        .stack = origin.stack,
        .frames = origin.frames,
        .label = origin.label,
        .state = (uint8_t)state,
    };
    if (range->count++ == 0)
        range->blocks = block;
    XSEG_ASSERT(range->base + range->bytes == view->base &&
                block == range->blocks + range->count - 1);
    range->bytes += view->bytes;
    copy->allocated_blocks += state == XSEG_BLOCK_ALLOCATED;
    return true;
}

/* Copy a block, which continues the current range or begins another one.  Returns false on host
 * allocation failure. */
static bool copy_block(struct xseg_heap_copy *copy, const struct xseg_block_view *view)
{
    const struct xseg_arena *arena = view->extent->arena;
    struct xseg_heap_range *range = view->extent == copy->extent ? copy->range : NULL;

    copy->extent = view->extent;
    copy->range = NULL;
    if (view->state == XSEG_BLOCK_UNMAPPED)
        return true;
    const bool is_evicted = arena->is_paused && is_page_evicted(&view->extent->segment, view->base);
    if (range == NULL || range->is_evicted != is_evicted)
        range = begin_range(copy, view, is_evicted);
    if (range == NULL || !append_block(copy, range, view))
        return false;
    copy->range = range;
    return true;
}

/* --- All blocks of a device. --- */

static int compare_ranges(const void *left, const void *right)
{
    const uint64_t a = (*(struct xseg_heap_range *const *)left)->base;
    const uint64_t b = (*(struct xseg_heap_range *const *)right)->base;

    return (a > b) - (a < b);
}

/* Create the list of ranges by address.  The records are contiguous, in the order of arenas. */
static bool sort_ranges(struct xseg_heap_copy *copy)
{
    const size_t bytes = xseg_round_up(sizeof(struct xseg_heap_range), XSEG_BUMP_UNIT);
    char *first = xseg_bump_at(&copy->range_records, 1);

    copy->ranges = malloc((copy->count + 1) * sizeof(*copy->ranges));
    if (copy->ranges == NULL)
        return false;
    for (size_t i = 0; i < copy->count; i++)
        copy->ranges[i] = (struct xseg_heap_range *)(void *)(first + i * bytes);
    qsort(copy->ranges, copy->count, sizeof(*copy->ranges), compare_ranges);
    return true;
}

struct copy_walk {
    struct xseg_heap_copy *copy;
    struct xseg_explainer *explainer;
    bool has_memory;
};

static void copy_visited_block(void *self, const struct xseg_block_view *view)
{
    struct copy_walk *walk = self;

    walk->has_memory = walk->has_memory && copy_block(walk->copy, view);
    xseg_explain_add_block(walk->explainer, view);
}

static bool copy_heap(struct xseg_heap_copy *copy, struct xseg_device *device,
                      struct xseg_explainer *explainer)
{
    struct copy_walk walk = {.copy = copy, .explainer = explainer};

    memset(copy, 0, sizeof(*copy));
    walk.has_memory = xseg_bump_init(&copy->block_records, RESERVED_BYTES) &&
                      xseg_bump_init(&copy->range_records, RESERVED_BYTES);
    struct xseg_arena *first = xseg_device_lock_arenas(device);
    xseg_device_history_begin_cut(device, &copy->cut);
    for (struct xseg_arena *arena = first; arena != NULL; arena = arena->locked_next) {
        xseg_arena_for_each_block(arena, copy_visited_block, &walk);
        xseg_device_history_cut_arena(arena);
    }
    xseg_device_unlock_arenas(first);
    return xseg_device_history_finish_cut(device, &copy->cut) && walk.has_memory &&
           sort_ranges(copy);
}

xseg_status xseg_heap_copy_init(struct xseg_heap_copy *copy, struct xseg_device *device,
                                struct xseg_explainer *explainer)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (copy_heap(copy, device, explainer))
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot of device %d",
                     device->context.ordinal);
}

uint64_t xseg_heap_copy_host_bytes(const struct xseg_heap_copy *copy)
{
    return xseg_bump_resident(&copy->block_records) + xseg_bump_resident(&copy->range_records) +
           copy->count * sizeof(*copy->ranges);
}

void xseg_heap_copy_fini(struct xseg_heap_copy *copy)
{
    xseg_history_cut_fini(&copy->cut);
    free(copy->ranges);
    xseg_bump_fini(&copy->range_records);
    xseg_bump_fini(&copy->block_records);
    memset(copy, 0, sizeof(*copy));
}

/* --- Description of a block. --- */

/* Get the block before or after a block; extent is NULL at the end of the segment. */
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
    const uint64_t now =
        xseg_origins_now_if_enabled(&allocator->clock, xseg_allocator_config(allocator));
    struct xseg_extent *extent = xseg_arena_lock_at(&allocator->page_map, address);

    if (extent == NULL)
        return xseg_allocator_fail_foreign(address);
    const struct xseg_block_view view = xseg_extent_view_at(extent, address);
    XSEG_ASSERT(view.base <= address && address < xseg_block_view_end(&view));
    fill_block_info(&view, now, out);
    xseg_biased_lock_unlock(&extent->arena->lock);
    return XSEG_OK;
}

/* --- List of the blocks of an arena. --- */

/* Find the segment with the lowest address that ends above the cursor, or NULL.  pool: its pool;
 * NULL: every pool */
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

    xseg_biased_lock_lock(&arena->lock);
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
    xseg_biased_lock_unlock(&arena->lock);
    return count;
}
