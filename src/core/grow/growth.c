/* SPDX-License-Identifier: MIT */
#include "src/core/grow/growth.h"

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/block/arena.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/segments.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"

/* --- Limits. --- */

xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more)
{
    const uint64_t limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    const uint64_t reserved = atomic_load_explicit(&pool->reserved, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    pool->is_at_limit = reserved > limit || more > limit - reserved;
    if (!pool->is_at_limit)
        return XSEG_OK;
    return xseg_oom_cause_fail(pool, XSEG_OOM_CAUSE_POOL, more);
}

xseg_status xseg_growth_check_free(struct xseg_pool *pool, uint64_t more)
{
    struct xseg_device *device = pool->device;
    const uint64_t physical = xseg_device_physical(device) + device->unused_quota;
    const xseg_status status = xseg_device_query_free_limit(device);

    if (status != XSEG_OK)
        return status;
    if (physical > device->free_limit || more > device->free_limit - physical)
        return xseg_oom_cause_fail(pool, XSEG_OOM_CAUSE_FREE_MIN, more);
    return XSEG_OK;
}

xseg_status xseg_growth_check(struct xseg_pool *pool, uint64_t more, uint64_t covered)
{
    struct xseg_device *device = pool->device;
    const uint64_t total = device->context.total_bytes, limit = xseg_device_allowance(device);
    /* The quotas of ranges count as physical memory. */
    const uint64_t physical = xseg_device_physical(device) + device->unused_quota;
    xseg_status status = xseg_growth_check_pool(pool, more);

    XSEG_ASSERT(covered <= more);
    more -= covered;
    /* A growth beyond the memory of the device fails here, not after some of its pages were created. */
    if (physical > total || more > total - physical)
        return xseg_oom_cause_fail(pool, XSEG_OOM_CAUSE_DEVICE, more);
    if (status != XSEG_OK)
        return status;
    if (physical > limit || more > limit - physical)
        return xseg_oom_cause_fail(pool, xseg_oom_cause_of_limit(device, limit), more);
    if (__builtin_expect(xseg_allocator_config(device->allocator)->throw_on_cudamalloc_oom, 0)) {
        const uint64_t max =
            (uint64_t)(atomic_load_explicit(&device->limits.rejection, memory_order_relaxed) *
                       (double)total);

        if (physical > max || more > max - physical)
            return xseg_oom_cause_fail(pool, XSEG_OOM_CAUSE_REJECTION, more);
    }
    status = more == 0 ? XSEG_OK : xseg_growth_check_free(pool, more);
    if (status == XSEG_OK)
        device->oom_cause = XSEG_OOM_CAUSE_DRIVER;
    return status;
}

xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device)
{
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "virtual memory management is not available on device %d",
                     device->context.ordinal);
}

/* --- Candidate ranges. --- */

/* Return a block if it can be part of a candidate range, because it is cached or unmapped; else NULL. */
static struct xseg_block *usable_block(struct xseg_block *block)
{
    return block != NULL &&
                   (block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_UNMAPPED)
               ? block
               : NULL;
}

/* Find the first block of the candidate range of which `unmapped` is the first unmapped block: the previous block if that is
 * cached. */
static struct xseg_block *find_first_block(struct xseg_block *unmapped)
{
    struct xseg_block *const prev = unmapped->prev;

    return prev != NULL && prev->state == XSEG_BLOCK_CACHED ? prev : unmapped;
}

/* Find the lowest candidate range of `bytes` that has an unmapped block.  A range in an extent without mapped memory is chosen
 * only if no other extent has a range: PyTorch has destroyed that segment.  Returns the first block of the range, or NULL if
 * there is none. */
static struct xseg_block *find_lowest_candidate(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *empty = NULL; /* of the first extent without memory that is long enough */

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && bytes > 0);
    for (struct xseg_block *unmapped = xseg_tree_first(arena->records, arena->unmapped_blocks);
         unmapped != NULL;
         unmapped = xseg_tree_next(arena->records, arena->unmapped_blocks, unmapped)) {
        struct xseg_block *const first = find_first_block(unmapped);
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

/* Get the bytes of an unmapped block to map for `bytes`: up to the end of a full page, or of a small page. */
static uint64_t needed_bytes_of_block(const struct xseg_block *unmapped, uint64_t bytes, bool small)
{
    const struct xseg_segment *segment = &unmapped->extent->segment;
    XSEG_ASSERT(unmapped->state == XSEG_BLOCK_UNMAPPED && bytes > 0);
    const uint64_t page_bytes = small ? segment->granule_bytes : segment->page_bytes;
    const uint64_t offset = unmapped->base - segment->base;
    const uint64_t granule = xseg_round_up(offset + bytes, page_bytes) / segment->granule_bytes;

    if (granule >= segment->granules)
        return unmapped->bytes;
    return xseg_segment_page_end(segment, (uint32_t)granule) * segment->granule_bytes - offset;
}

/* Count the bytes to map for a candidate range that starts at a block; UINT64_MAX if the range is too short. */
static uint64_t count_missing_from(struct xseg_block *block, uint64_t bytes)
{
    uint64_t sum = 0, missing = 0;

    for (; block != NULL && sum < bytes; block = usable_block(block->next)) {
        if (!block->mapped)
            missing += xseg_min(needed_bytes_of_block(block, bytes - sum, true), block->bytes);
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
        struct xseg_block *const first = find_first_block(unmapped);
        const uint64_t missing = count_missing_from(first, bytes);

        if (missing < min) {
            min = missing;
            cheapest = first;
        }
    }
    *min_missing = min;
    return cheapest;
}

/* Claim the candidate range that starts with a block.  XSEG_ARENA_RECORDS records are reserved, because the last unmapped block
 * can be split. */
static void claim_candidate(struct xseg_arena *arena, struct xseg_block *first, uint64_t bytes,
                            bool small, struct xseg_candidate *candidate)
{
    struct xseg_block *next = first;
    uint64_t sum = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && first->extent->arena == arena);
    XSEG_ASSERT(arena->blocks.free_count >= XSEG_ARENA_RECORDS);
    *candidate = (struct xseg_candidate){.small = small};
    while (sum < bytes) {
        XSEG_ASSERT(next != NULL);
        const uint64_t needed = next->mapped ? 0 : needed_bytes_of_block(next, bytes - sum, small);

        if (!next->mapped && xseg_block_is_whole(next)) {
            /* PyTorch has destroyed the empty segment, and registers a new one. */
            xseg_growth_renew_positions(next->extent);
            next->requested = 0;
        }
        struct xseg_block *block = !next->mapped && needed < next->bytes
                                       ? xseg_arena_claim_head(arena, next, needed)
                                       : xseg_arena_claim(arena, next);
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
                                            .max_page_bytes = candidate->max_page_bytes};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && candidate->failed == NULL);
    for (struct xseg_block *block = candidate->first;; block = block->next) {
        const uint64_t offset = block->base - segment->base;
        xseg_status status = XSEG_OK;

        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        if (!block->mapped &&
            !xseg_page_map_populate(extent->arena->page_map, extent, offset, offset + block->bytes))
            status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment tables");
        else if (!block->mapped)
            status = xseg_segment_map(segment, (uint32_t)(offset / granule),
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
    uint64_t last_requested = 0; /* `requested` of the block that was mapped last */
    bool has_grown = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    for (;; block = next) {
        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        const bool is_last = block == candidate->last;

        next = block->next;
        mapped = mapped && block != candidate->failed;
        if (!block->mapped && mapped) {
            block->mapped = has_grown = true;
            last_requested = block->requested;
            xseg_arena_run_free_actions(arena, block->extent, block->base, block->bytes);
            xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, block->bytes);
        } else if (block->mapped && has_grown) {
            /* As in PyTorch, new memory keeps its `requested` when it coalesces with cached blocks. */
            block->requested = last_requested;
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
                                            .max_page_bytes = candidate->max_page_bytes};
    uint64_t small_bytes = xseg_page_cache_usable_bytes(segment->page_cache, granule, filter),
             covered = 0;
    uint64_t full_bytes =
        segment->page_bytes == granule
            ? 0
            : xseg_page_cache_usable_bytes(segment->page_cache, segment->page_bytes, filter);

    for (const struct xseg_block *block = candidate->first; small_bytes + full_bytes != 0;
         block = block->next) {
        if (!block->mapped)
            covered += xseg_segment_bytes_from_page_cache(
                segment, (uint32_t)((block->base - segment->base) / granule),
                (uint32_t)(block->bytes / granule), &source, &full_bytes, &small_bytes);
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

/* --- Growth in an expandable segment. --- */

xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool small, struct xseg_candidate *candidate)
{
    xseg_status status = xseg_pool_check_running(arena->pool);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && params->span > 0);
    if (status != XSEG_OK)
        return status;
    for (;;) {
        xseg_biased_lock_lock(&arena->lock);
        const bool has_records =
            xseg_arena_reserve_records(arena, &arena->blocks, XSEG_ARENA_RECORDS);
        struct xseg_block *first = NULL;
        uint64_t missing;

        if (has_records)
            first = small ? xseg_candidate_find_cheapest(arena, params->span, &missing)
                          : find_lowest_candidate(arena, params->span);
        if (first != NULL)
            claim_candidate(arena, first, params->span, small, candidate);
        xseg_biased_lock_unlock(&arena->lock);
        if (!has_records)
            return xseg_arena_fail_host_memory();
        if (first != NULL)
            return XSEG_OK;
        status = xseg_growth_add_segment(arena, params);
        if (status != XSEG_OK)
            return status;
    }
}

xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_candidate *candidate, xseg_status status,
                               struct xseg_alloc_result *out)
{
    const bool is_allowed = status == XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                candidate->first->extent->arena == arena);
    if (is_allowed)
        status = xseg_candidate_map(candidate);
    if (is_allowed)
        xseg_candidate_notify(candidate);
    xseg_biased_lock_lock(&arena->lock);
    const bool has_records = xseg_arena_reserve_records(arena, &arena->blocks, 2);
    struct xseg_block *block = xseg_candidate_settle(arena, candidate, is_allowed);
    if (status == XSEG_OK && has_records)
        *out = xseg_arena_allocate_block(arena, block, params);
    xseg_biased_lock_unlock(&arena->lock);
    if (status == XSEG_OK && !has_records)
        return xseg_arena_fail_host_memory();
    return status;
}

/*
 * Choose the sizes of the pages to map in a candidate range.  After memory pressure, pages are small as long as more than half
 * of the limit is in use: later remaps would have to release full pages and create small ones.
 *
 * page_size:small always maps small pages.  page_size:auto also maps small pages for a small growth in the last sixteenth of
 * the limit.  Up to three quarters of the limit it maps long pages, since the driver's work is O(pages).  No page is longer
 * than a sixteenth of the growth, since a page is released as a whole.
 */
static void choose_page_sizes(struct xseg_device *device, const struct xseg_alloc_params *params,
                              struct xseg_candidate *candidate)
{
    const struct xseg_segment *segment = &candidate->first->extent->segment;
    const uint64_t limit = xseg_min(xseg_device_allowance(device), device->context.total_bytes);
    const uint64_t physical = xseg_device_physical(device) + candidate->missing;

    XSEG_ASSERT(candidate->first->extent->arena->device == device);
    device->is_memory_low = device->is_memory_low && physical > limit / 2;
    candidate->small =
        device->is_memory_low || params->config->page_sizes == XSEG_CONFIG_PAGES_SMALL;
    if (params->config->page_sizes != XSEG_CONFIG_PAGES_AUTO)
        return;
    if (physical > limit - limit / 16 && candidate->missing < 16 * segment->page_bytes)
        candidate->small = true;
    if (physical <= limit - limit / 4)
        candidate->max_page_bytes = xseg_min(candidate->missing / 16, 512 * XSEG_MIB);
}

static xseg_status grow_expandable_segment(struct xseg_arena *arena,
                                           const struct xseg_alloc_params *params,
                                           struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_candidate candidate = {0};
    const bool small = params->config->page_sizes == XSEG_CONFIG_PAGES_SMALL;
    xseg_status status = xseg_growth_claim(arena, params, small, &candidate);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(candidate.first != NULL && candidate.last != NULL);
    XSEG_ASSERT(candidate.first->state == XSEG_BLOCK_CLAIMED &&
                candidate.last->state == XSEG_BLOCK_CLAIMED);
    choose_page_sizes(device, params, &candidate);
    const struct xseg_page_filter filter = {.properties =
                                                candidate.first->extent->segment.properties};
    const uint64_t covered = xseg_page_cache_bytes(&device->page_cache) == 0
                                 ? 0
                                 : xseg_candidate_covered(&candidate, &filter);
    status = xseg_growth_check(arena->pool, candidate.missing, covered);
    return xseg_growth_finish(arena, params, &candidate, status, out);
}

/* --- All kinds of segments. --- */

/* The parameters of a request in a classic segment, for a device that makes no pages. */
static struct xseg_alloc_params make_classic_params(const struct xseg_arena *arena,
                                                    const struct xseg_alloc_params *params)
{
    struct xseg_alloc_params classic = *params;

    classic.expandable = classic.is_single = false;
    classic.no_split = atomic_load_explicit(&arena->pool->no_split, memory_order_relaxed);
    classic.span = params->bytes + params->alignment - XSEG_SIZE_UNIT;
    classic.segment_bytes =
        xseg_max(params->segment_bytes, xseg_round_up(classic.span, XSEG_SIZE_SEGMENT_STEP));
    return classic;
}

xseg_status xseg_growth_run(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            struct xseg_alloc_result *out)
{
    const bool is_paged = params->expandable && xseg_device_makes_pages(arena->device);
    const int device = arena->device->context.ordinal;
    xseg_status status;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                params->bytes >= params->requested);
    XSEG_SPAN_BEGIN(growth, device, params->bytes);
    if (__builtin_expect(params->is_guarded, 0)) {
        status = xseg_growth_guarded(arena, params, out);
    } else if (params->expandable && __builtin_expect(!is_paged, 0)) {
        const struct xseg_alloc_params classic = make_classic_params(arena, params);

        status = xseg_growth_classic(arena, &classic, out);
    } else if (!is_paged) {
        status = xseg_growth_classic(arena, params, out);
    } else {
        status = params->is_single ? xseg_growth_single_page(arena, params, out)
                                   : grow_expandable_segment(arena, params, out);
    }
    XSEG_SPAN_END(growth, device, status);
    return status;
}
