/* SPDX-License-Identifier: MIT */
#include "src/core/stretch.h"

#include "src/base/error.h"
#include "src/core/device.h"
#include "src/core/fill.h"
#include "src/core/scrub.h"
#include "src/core/trace.h"

static bool is_free(const struct xseg_block *block)
{
    return block != NULL && (block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_HOLE);
}

struct xseg_block *xseg_stretch_find_lowest(const struct xseg_arena *arena, uint64_t bytes)
{
    for (struct xseg_block *hole = xseg_tree_first(arena->holes); hole != NULL;
         hole = xseg_tree_next(arena->holes, hole)) {
        struct xseg_block *first = is_free(hole->prev) ? hole->prev : hole;
        uint64_t sum = 0;

        for (const struct xseg_block *block = first; is_free(block) && sum < bytes;
             block = block->next)
            sum += block->bytes;
        if (sum >= bytes)
            return first;
    }
    return NULL;
}

/* What of a hole is needed for `bytes`: up to the end of a full page, or of a small one. */
static uint64_t wanted_of(const struct xseg_block *hole, uint64_t bytes, bool small)
{
    const struct xseg_segment *segment = &hole->extent->segment;
    const uint64_t page = small ? segment->granule_bytes : segment->page_bytes;
    const uint64_t begin = hole->base - segment->base;
    const uint64_t granule = xseg_round_up(begin + bytes, page) / segment->granule_bytes;

    if (granule >= segment->granules)
        return hole->bytes;
    return xseg_segment_page_end(segment, (uint32_t)granule) * segment->granule_bytes - begin;
}

/* What would have to be mapped for a stretch from a block on; UINT64_MAX if it is too short. */
static uint64_t missing_from(const struct xseg_block *block, uint64_t bytes)
{
    uint64_t sum = 0, missing = 0;

    for (; is_free(block) && sum < bytes; block = block->next) {
        if (!block->mapped)
            missing += xseg_min(wanted_of(block, bytes - sum, true), block->bytes);
        sum += block->bytes;
    }
    return sum < bytes ? UINT64_MAX : missing;
}

struct xseg_block *xseg_stretch_find_cheapest(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *cheapest = NULL;
    uint64_t least = UINT64_MAX;

    for (struct xseg_block *hole = xseg_tree_first(arena->holes); hole != NULL;
         hole = xseg_tree_next(arena->holes, hole)) {
        struct xseg_block *first = is_free(hole->prev) ? hole->prev : hole;
        const uint64_t missing = missing_from(first, bytes);

        if (missing < least) {
            least = missing;
            cheapest = first;
        }
    }
    return cheapest;
}

struct xseg_stretch xseg_stretch_claim(struct xseg_arena *arena, struct xseg_block *first,
                                       uint64_t bytes, bool small)
{
    struct xseg_stretch stretch = {.first = first, .small = small};
    uint64_t sum = 0;

    for (struct xseg_block *block = first; sum < bytes; block = block->next) {
        const uint64_t wanted = block->mapped ? 0 : wanted_of(block, bytes - sum, small);

        xseg_arena_claim(arena, block);
        if (!block->mapped && wanted < block->bytes)
            (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, wanted));
        stretch.missing += block->mapped ? 0 : block->bytes;
        stretch.last = block;
        sum += block->bytes;
    }
    return stretch;
}

static xseg_status map_hole(struct xseg_block *hole, struct xseg_supply *supply)
{
    struct xseg_extent *extent = hole->extent;
    struct xseg_segment *segment = &extent->segment;
    const uint64_t begin = hole->base - segment->base;

    if (!xseg_starts_cover(&extent->starts, begin, begin + hole->bytes))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a segment's table");
    return xseg_segment_map(segment, (uint32_t)(begin / segment->granule_bytes),
                            (uint32_t)(hole->bytes / segment->granule_bytes), supply);
}

xseg_status xseg_stretch_map(struct xseg_pool *pool, struct xseg_stretch *stretch)
{
    const struct xseg_arena *arena = stretch->first->extent->arena;
    struct xseg_supply supply = {
        .small = stretch->small,
        .choice = xseg_scrub_taker(arena).choice,
        .stream = xseg_arena_stream(arena)->handle,
    };

    for (struct xseg_block *block = stretch->first;; block = block->next) {
        if (!block->mapped) {
            supply.cleared = 0;
            const xseg_status status = map_hole(block, &supply);

            if (status != XSEG_OK) {
                stretch->failed = block;
                return status;
            }
            xseg_pool_note_growth(pool, block->bytes);
            xseg_trace_note(block->extent->arena, XSEG_TRACE_SEGMENT_MAP, block->base,
                            block->bytes);
            atomic_fetch_add_explicit(&pool->device->scrubbed, supply.cleared,
                                      memory_order_relaxed);
            xseg_fill_busy(block);
        }
        if (block == stretch->last)
            return XSEG_OK;
    }
}

struct xseg_block *xseg_stretch_settle(struct xseg_arena *arena, const struct xseg_stretch *stretch,
                                       bool mapped)
{
    struct xseg_block *block = stretch->first, *next, *result;

    for (;; block = next) {
        const bool is_last = block == stretch->last;

        next = block->next;
        mapped = mapped && block != stretch->failed;
        if (!block->mapped && mapped) {
            block->mapped = true;
            xseg_arena_stamp(arena, block);
            xseg_counts_up(&arena->counts, XSEG_COUNT_RESERVED_BYTES, block->bytes);
        }
        result = xseg_arena_settle(arena, block);
        if (is_last)
            return result;
    }
}

uint64_t xseg_stretch_full_pages(const struct xseg_stretch *stretch)
{
    const struct xseg_segment *segment = &stretch->first->extent->segment;
    uint64_t pages = 0;

    for (const struct xseg_block *block = stretch->first;; block = block->next) {
        pages += block->mapped ? 0 : block->bytes / segment->page_bytes;
        if (block == stretch->last)
            return pages;
    }
}

uint64_t xseg_stretch_covered(const struct xseg_stretch *stretch,
                              const struct xseg_page_taker *taker)
{
    const struct xseg_segment *segment = &stretch->first->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    uint64_t small = xseg_pages_idle(segment->pages, granule, taker), covered = 0;
    uint64_t full = segment->page_bytes == granule
                        ? 0
                        : xseg_pages_idle(segment->pages, segment->page_bytes, taker);

    for (const struct xseg_block *block = stretch->first; small + full != 0; block = block->next) {
        if (!block->mapped)
            covered += xseg_segment_covered(
                segment, (uint32_t)((block->base - segment->base) / granule),
                (uint32_t)(block->bytes / granule), stretch->small, &full, &small);
        if (block == stretch->last)
            break;
    }
    return covered;
}
