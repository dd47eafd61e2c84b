/* SPDX-License-Identifier: MIT */
#include "src/core/report/allocator_describe.h"

#include "src/core/arena/live.h"
#include "src/core/arena/origins.h"
#include "src/core/cache/walk.h"
#include "src/core/history/history.h"

/* The block before or behind another one; no block where the segment ends. */
static struct xseg_part beside(const struct xseg_part *part, bool before)
{
    const uint64_t base = part->extent->segment.base;

    if (!before)
        return xseg_walk_next(part);
    return part->base == base ? (struct xseg_part){0} : xseg_walk_at(part->extent, part->base - 1);
}

/* Count the cached bytes beside a block in one direction, and those of the hole beyond them. */
static void look_beside(const struct xseg_part *part, bool before, size_t *cached, size_t *unmapped)
{
    struct xseg_part next = beside(part, before);

    *cached = *unmapped = 0;
    if (next.extent != NULL && next.state == XSEG_BLOCK_CACHED) {
        *cached = next.bytes;
        next = beside(&next, before);
    }
    if (next.extent != NULL && next.state == XSEG_BLOCK_UNMAPPED)
        *unmapped = next.bytes;
}

static void tell_origin(const struct xseg_part *part, uint64_t now, struct xseg_block_info *info)
{
    struct xseg_history_store *store = part->extent->arena->history->store;

    info->age_ms = XSEG_ORIGINS_UNKNOWN;
    info->stack = info->frames = 0;
    info->label = NULL;
    info->user = NULL;
    if (part->state != XSEG_BLOCK_ALLOCATED && part->state != XSEG_BLOCK_PENDING_FREE)
        return;
    const struct xseg_origin origin = xseg_origins_of(part->extent, part->base);
    const uint64_t user = xseg_origins_user(part->extent, part->base);
    info->age_ms = xseg_origins_age(part->extent, part->base, now);
    info->stack = origin.stack;
    info->frames = origin.frames;
    info->label = xseg_history_labels_text(&store->labels, origin.label);
    /* Without the key a place may still have the word of an earlier block. */
    if ((xseg_history_store_settings(store) & XSEG_HISTORY_USERS) != 0)
        info->user = (void *)(uintptr_t)user; /* NOLINT(performance-no-int-to-ptr) */
}

void xseg_allocator_describe_address(const struct xseg_part *part, uint64_t now,
                                     struct xseg_block_info *info)
{
    const struct xseg_extent *extent = part->extent;
    const struct xseg_arena *arena = extent->arena;
    const struct xseg_segment *segment = &extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && part->bytes > 0);
    XSEG_ASSERT(part->base >= segment->base &&
                xseg_part_end(part) <= segment->base + segment->bytes);
    info->base = (void *)(uintptr_t)part->base; /* NOLINT(performance-no-int-to-ptr) */
    info->bytes = part->bytes;
    info->requested = part->requested;
    info->state = part->state;
    info->device = arena->device->context.ordinal;
    info->stream = xseg_arena_stream(arena)->handle;
    info->pool = part->is_fallback ? NULL : xseg_pool_of(extent);
    info->fallback_pool = part->is_fallback ? arena->pool : NULL;
    info->is_small = arena->is_small;
    info->is_expandable = xseg_extent_is_expandable(extent);
    info->segment_base = (void *)(uintptr_t)segment->base; /* NOLINT(performance-no-int-to-ptr) */
    info->segment_bytes = segment->bytes;
    info->segment_mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    look_beside(part, true, &info->free_before, &info->unmapped_before);
    look_beside(part, false, &info->free_after, &info->unmapped_after);
    info->is_paused = arena->is_paused;
    info->generation = part->state == XSEG_BLOCK_UNMAPPED
                           ? 0
                           : xseg_segment_generation(segment, part->base - segment->base,
                                                     xseg_part_end(part) - segment->base);
    tell_origin(part, now, info);
}

xseg_status xseg_allocator_describe(struct xseg_allocator *allocator, const void *pointer,
                                    struct xseg_block_info *out) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    const uint64_t now = xseg_origins_now_by(&allocator->clock, xseg_allocator_config(allocator));
    struct xseg_extent *extent = xseg_extent_lock_at(&allocator->page_map, address);

    if (extent == NULL)
        return xseg_allocator_fail_foreign(address);
    const struct xseg_part part = xseg_walk_at(extent, address);
    XSEG_ASSERT(part.base <= address && address < xseg_part_end(&part));
    xseg_allocator_describe_address(&part, now, out);
    xseg_arena_unlock(extent->arena);
    return XSEG_OK;
}
