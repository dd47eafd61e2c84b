/* SPDX-License-Identifier: MIT */
#include "src/core/grow/growth.h"

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"

/* A block if it can be part of a candidate range, as cached and unmapped blocks can; else NULL. */
static struct xseg_block *usable_block(struct xseg_block *block)
{
    return block != NULL &&
                   (block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_UNMAPPED)
               ? block
               : NULL;
}

struct xseg_block *xseg_candidate_find_lowest(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *empty = NULL; /* the first extent without memory that is long enough */

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && bytes > 0);
    for (struct xseg_block *unmapped = xseg_tree_first(arena->records, arena->unmapped_blocks);
         unmapped != NULL;
         unmapped = xseg_tree_next(arena->records, arena->unmapped_blocks, unmapped)) {
        struct xseg_block *const prev = unmapped->prev;
        struct xseg_block *const first =
            prev != NULL && prev->state == XSEG_BLOCK_CACHED ? prev : unmapped;
        uint64_t sum = 0;

        if (xseg_block_is_whole(unmapped)) {
            if (empty == NULL && unmapped->bytes >= bytes)
                empty = unmapped;
            continue;
        }
        for (struct xseg_block *block = first; block != NULL && sum < bytes;
             block = usable_block(block->next))
            sum += block->bytes;
        if (sum >= bytes)
            return first;
    }
    return empty;
}

/* Bytes of an unmapped block that `bytes` need: up to the end of a full page, or of a small one. */
static uint64_t needed_bytes_of(const struct xseg_block *unmapped, uint64_t bytes, bool small)
{
    const struct xseg_segment *segment = &unmapped->extent->segment;
    XSEG_ASSERT(unmapped->state == XSEG_BLOCK_UNMAPPED && bytes > 0);
    const uint64_t page = small ? segment->granule_bytes : segment->page_bytes;
    const uint64_t begin = unmapped->base - segment->base;
    const uint64_t granule = xseg_round_up(begin + bytes, page) / segment->granule_bytes;

    if (granule >= segment->granules)
        return unmapped->bytes;
    return xseg_segment_page_end(segment, (uint32_t)granule) * segment->granule_bytes - begin;
}

/* Bytes to be mapped for a candidate range from a block on; UINT64_MAX if the range is too short. */
static uint64_t count_missing_from(struct xseg_block *block, uint64_t bytes)
{
    uint64_t sum = 0, missing = 0;

    for (; block != NULL && sum < bytes; block = usable_block(block->next)) {
        if (!block->mapped)
            missing += xseg_min(needed_bytes_of(block, bytes - sum, true), block->bytes);
        sum += block->bytes;
    }
    return sum < bytes ? UINT64_MAX : missing;
}

struct xseg_block *xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                                uint64_t *min_missing)
{
    struct xseg_block *cheapest = NULL;
    uint64_t min = UINT64_MAX;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && bytes > 0);
    for (struct xseg_block *unmapped = xseg_tree_first(arena->records, arena->unmapped_blocks);
         unmapped != NULL;
         unmapped = xseg_tree_next(arena->records, arena->unmapped_blocks, unmapped)) {
        struct xseg_block *const prev = unmapped->prev;
        struct xseg_block *first =
            prev != NULL && prev->state == XSEG_BLOCK_CACHED ? prev : unmapped;
        const uint64_t missing = count_missing_from(first, bytes);

        if (missing < min) {
            min = missing;
            cheapest = first;
        }
    }
    *min_missing = min;
    return cheapest;
}

void xseg_candidate_claim(struct xseg_arena *arena, struct xseg_block *first, uint64_t bytes,
                          bool small, struct xseg_candidate *candidate)
{
    struct xseg_block *next = first;
    uint64_t sum = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && first->extent->arena == arena);
    XSEG_ASSERT(arena->blocks.free_count >= XSEG_ARENA_RECORDS);
    *candidate = (struct xseg_candidate){.small = small};
    while (sum < bytes) {
        XSEG_ASSERT(next != NULL);
        const uint64_t needed = next->mapped ? 0 : needed_bytes_of(next, bytes - sum, small);
        struct xseg_block *block = xseg_arena_claim(arena, next);

        if (!block->mapped && xseg_block_is_whole(block)) {
            /* PyTorch has destroyed the empty segment, and registers a new one. */
            xseg_growth_renew_positions(block->extent);
            block->requested = 0;
        }
        if (!block->mapped && needed < block->bytes) {
            /* The rest stays unmapped. */
            struct xseg_block *rest = xseg_arena_split_block(arena, block, needed);

            rest->requested = 0;
            (void)xseg_arena_settle(arena, rest);
        }
        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        candidate->missing += block->mapped ? 0 : block->bytes;
        candidate->first = candidate->first == NULL ? block : candidate->first;
        candidate->last = block;
        sum += block->bytes;
        next = usable_block(block->next);
    }
}

/* Record in the history that an unmapped block was mapped. */
static void record_map(const struct xseg_block *block)
{
    struct xseg_arena *arena = block->extent->arena;

    if (!xseg_recorder_is_enabled(arena))
        return;
    xseg_biased_lock_lock(&arena->lock);
    xseg_recorder_segment(block->extent, XSEG_HISTORY_SEGMENT_MAP, block->base, block->bytes);
    xseg_biased_lock_unlock(&arena->lock);
}

xseg_status xseg_candidate_map(struct xseg_candidate *candidate)
{
    struct xseg_extent *extent = candidate->first->extent;
    struct xseg_segment *segment = &extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const struct xseg_page_source source = {.use_small = candidate->small,
                                            .max_page_bytes = candidate->longest};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && candidate->failed == NULL);
    for (struct xseg_block *block = candidate->first;; block = block->next) {
        const uint64_t begin = block->base - segment->base;
        xseg_status status = XSEG_OK;

        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        if (!block->mapped && !xseg_extent_cover(extent, begin, begin + block->bytes))
            status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment tables");
        else if (!block->mapped)
            status = xseg_segment_map(segment, (uint32_t)(begin / granule),
                                      (uint32_t)(block->bytes / granule), &source);
        if (status != XSEG_OK) {
            candidate->failed = block;
            return status;
        }
        if (!block->mapped) {
            xseg_pool_record_growth(extent->arena, block->bytes);
            record_map(block);
            xseg_debug_fill_claimed(block);
        }
        if (block == candidate->last)
            return XSEG_OK;
    }
}

struct xseg_block *xseg_candidate_settle(struct xseg_arena *arena,
                                         const struct xseg_candidate *candidate, bool mapped)
{
    struct xseg_block *block = candidate->first, *next, *result;
    uint64_t requested = 0; /* of the block that was mapped last */
    bool has_grown = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    for (;; block = next) {
        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        const bool is_last = block == candidate->last;

        next = block->next;
        mapped = mapped && block != candidate->failed;
        if (!block->mapped && mapped) {
            block->mapped = has_grown = true;
            requested = block->requested;
            xseg_arena_run_free_actions(arena, block->extent, block->base, block->bytes);
            xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, block->bytes);
        } else if (block->mapped && has_grown) {
            /* As in PyTorch, new memory keeps its `requested` when it coalesces with cached blocks. */
            block->requested = requested;
        }
        result = xseg_arena_settle(arena, block);
        if (is_last)
            return result;
    }
}

uint64_t xseg_candidate_full_pages(const struct xseg_candidate *candidate)
{
    const struct xseg_segment *segment = &candidate->first->extent->segment;
    uint64_t pages = 0;

    for (const struct xseg_block *block = candidate->first;; block = block->next) {
        pages += block->mapped ? 0 : block->bytes / segment->page_bytes;
        if (block == candidate->last)
            return pages;
    }
}

uint64_t xseg_candidate_covered(const struct xseg_candidate *candidate,
                                const struct xseg_page_filter *filter)
{
    const struct xseg_segment *segment = &candidate->first->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const struct xseg_page_source source = {.use_small = candidate->small,
                                            .max_page_bytes = candidate->longest};
    uint64_t small = xseg_page_cache_usable_bytes(segment->page_cache, granule, filter),
             covered = 0;
    uint64_t full =
        segment->page_bytes == granule
            ? 0
            : xseg_page_cache_usable_bytes(segment->page_cache, segment->page_bytes, filter);

    for (const struct xseg_block *block = candidate->first; small + full != 0;
         block = block->next) {
        if (!block->mapped)
            covered += xseg_segment_covered_by_idle(
                segment, (uint32_t)((block->base - segment->base) / granule),
                (uint32_t)(block->bytes / granule), &source, &full, &small);
        if (block == candidate->last)
            break;
    }
    XSEG_ASSERT(covered <= candidate->missing);
    return covered;
}

void xseg_candidate_notify(const struct xseg_candidate *candidate)
{
    if (!xseg_notify_is_enabled(candidate->first->extent->arena->device))
        return;
    for (const struct xseg_block *block = candidate->first; block != candidate->failed;
         block = block->next) {
        if (!block->mapped)
            xseg_notify_map(block->extent, block->base, block->bytes);
        if (block == candidate->last)
            return;
    }
}
