/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/reclaim.h"

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/best_fit.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"

_Static_assert(XSEG_ARENA_RECORDS >= 4, "a claim of pages needs four records");

/* --- Steps on one block or stream. --- */

/* Settle the remainder of a block after a split.  As in PyTorch, the block that is released keeps
 * the requested size. */
static void settle_remainder(struct xseg_arena *arena, struct xseg_block *remainder)
{
    remainder->requested = 0;
    (void)xseg_arena_settle(arena, remainder);
}

/* Claim whole pages inside a cached block, `count` granules from `first` on.  The remainders of the
 * block stay cached.  The caller has reserved XSEG_ARENA_RECORDS block records. */
static struct xseg_block *claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                      uint32_t first, uint32_t count) XSEG_REQUIRES(arena->lock)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const uint64_t begin = segment->base + first * segment->granule_bytes;
    const uint64_t end = begin + count * segment->granule_bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && count > 0);
    XSEG_ASSERT(begin >= block->base && end <= xseg_block_end(block));
    block = xseg_arena_claim(arena, block);
    if (begin > block->base) {
        struct xseg_block *inner = xseg_arena_split_block(arena, block, begin - block->base);

        settle_remainder(arena, block);
        block = inner;
    }
    if (end < xseg_block_end(block))
        settle_remainder(arena, xseg_arena_split_block(arena, block, end - block->base));
    XSEG_ASSERT(block->base == begin && xseg_block_end(block) == end);
    return block;
}

xseg_status xseg_reclaim_check_stream(struct xseg_device *device, struct xseg_known_stream *stream,
                                      bool wait, bool *idle)
{
    struct xseg_context *context = &device->context;
    bool is_addressable = true;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *idle = false;
    if (!xseg_stream_is_known(stream))
        return xseg_stream_retirement_check(device, stream, wait, idle);
    status = xseg_streams_can_use(context, stream, &is_addressable);
    if (status != XSEG_OK)
        return status;
    if (!wait)
        return is_addressable ? xseg_driver_stream_query(context, stream->handle, idle) : XSEG_OK;
    /*
     * The calling thread cannot address the per-thread default stream of another thread, and a
     * stream that cannot be waited for may have been destroyed.  Both cases wait for the whole
     * context.
     */
    status = is_addressable ? xseg_driver_stream_synchronize(context, stream->handle)
                            : XSEG_ERR_UNSUPPORTED;
    if (status != XSEG_OK && !xseg_context_is_lost(context))
        status = xseg_driver_context_synchronize(context);
    *idle = status == XSEG_OK;
    return status;
}

/* Remove an extent of one claimed block from its arena and the page map. */
static void unregister_extent(struct xseg_arena *arena, struct xseg_extent *extent)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_page_map *page_map = arena->device->page_map;

    xseg_arena_remove_extent(arena, extent);
    xseg_mutex_lock(&page_map->lock);
    xseg_page_map_remove(page_map, extent);
    xseg_mutex_unlock(&page_map->lock);
    xseg_extent_fini(extent);
}

/* Record the release of a claimed block in the history: its cause, unless that is the action
 * itself, then the action. */
static void record_release(const struct xseg_block *block, enum xseg_history_action cause,
                           enum xseg_history_action action, uint64_t bytes)
{
    if (!xseg_recorder_is_enabled(block->extent->arena))
        return;
    if (cause != XSEG_HISTORY_SEGMENT_UNMAP)
        xseg_recorder_unmapped(block->extent, cause, action, block->base, bytes);
    else
        xseg_recorder_segment(block->extent, action, block->base, bytes);
}

/* Free the classic segment of a claimed block.  Returns the bytes of the segment. */
static uint64_t free_classic_segment(struct xseg_arena *arena, struct xseg_block *block,
                                     enum xseg_history_action cause)
{
    struct xseg_device *device = arena->device;
    struct xseg_extent *extent = block->extent;
    const uint64_t bytes = block->bytes;

    XSEG_ASSERT(xseg_block_is_whole(block) && !xseg_segment_has_retained(&extent->segment));
    xseg_biased_lock_lock(&arena->lock);
    record_release(block, cause, XSEG_HISTORY_SEGMENT_FREE, bytes);
    xseg_counts_decrease(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    unregister_extent(arena, extent);
    xseg_biased_lock_unlock(&arena->lock);
    /* If the driver fails, the range stays in device->unreleased. */
    (void)xseg_segment_destroy(&extent->segment);
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_pool_record_shrink(arena, bytes);
    xseg_release_pool_reference(arena->pool);
    return bytes;
}

/* Unmap the pages of a claimed block; pages that the driver does not unmap are cached again.
 * Returns the released bytes. */
static uint64_t unmap_block_pages(struct xseg_arena *arena, struct xseg_block *block, bool keep,
                                  enum xseg_history_action cause)
{
    struct xseg_segment *segment = &block->extent->segment;
    const uint64_t granule_bytes = segment->granule_bytes;
    const uint64_t mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    void *spare_record = NULL; /* the record for the split after a partial unmap */
    uint32_t unmapped_granules = 0;

    xseg_biased_lock_lock(&arena->lock);
    if (xseg_arena_reserve_records(arena, &arena->blocks, 1))
        spare_record = xseg_slab_alloc_uninitialized(&arena->blocks);
    xseg_biased_lock_unlock(&arena->lock);
    if (spare_record != NULL)
        (void)xseg_segment_unmap(segment, (uint32_t)((block->base - segment->base) / granule_bytes),
                                 (uint32_t)(block->bytes / granule_bytes), keep,
                                 &unmapped_granules);
    const uint64_t released = unmapped_granules * granule_bytes;
    XSEG_ASSERT(released <= block->bytes);
    /* Evicted memory was not counted as reserved. */
    const uint64_t reserved = mapped - atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    XSEG_ASSERT(reserved <= released);
    /* Other threads may map and unmap memory of the segment while observers run. */
    if (released < block->bytes)
        xseg_notify_map(block->extent, block->base + released, block->bytes - released);
    xseg_biased_lock_lock(&arena->lock);
    if (spare_record != NULL)
        xseg_slab_free(&arena->blocks, spare_record);
    if (released > 0) {
        if (released < block->bytes)
            settle_remainder(arena, xseg_arena_split_block(arena, block, released));
        block->mapped = false;
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, reserved);
        XSEG_ASSERT(arena->evicted >= released - reserved);
        arena->evicted -= released - reserved;
        atomic_fetch_sub_explicit(&arena->device->evicted, released - reserved,
                                  memory_order_relaxed);
        if (reserved > 0)
            xseg_pool_record_shrink(arena, reserved);
        if (reserved > 0)
            record_release(block, cause, XSEG_HISTORY_SEGMENT_UNMAP, released);
        else if (xseg_recorder_is_enabled(arena))
            xseg_recorder_discarded(block->extent, block->base, released);
    }
    (void)xseg_arena_settle(arena, block);
    xseg_biased_lock_unlock(&arena->lock);
    return released;
}

uint64_t xseg_reclaim_release_block(struct xseg_block *block, bool keep,
                                    enum xseg_history_action cause)
{
    struct xseg_extent *extent = block->extent;
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED &&
                xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!xseg_extent_is_expandable(extent))
        return free_classic_segment(arena, block, cause);
    const uint64_t released = unmap_block_pages(arena, block, keep, cause);
    /*
     * The last page destroys a segment of a retired pool, and the last segment destroys the pool.
     */
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_reclaim_destroy_unmapped(extent);
    return released;
}

void xseg_reclaim_settle(struct xseg_block *claimed)
{
    struct xseg_block *next;

    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        struct xseg_arena *arena = block->extent->arena;

        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        next = block->chain;
        block->chain = NULL;
        xseg_biased_lock_lock(&arena->lock);
        (void)xseg_arena_settle(arena, block);
        xseg_biased_lock_unlock(&arena->lock);
    }
}

/* --- Segments without memory. --- */

/* Free the virtual address range of an unregistered extent.  Its pool may be destroyed. */
static void free_extent_addresses(struct xseg_extent *extent)
{
    struct xseg_device *device = xseg_device_of(extent);
    struct xseg_pool *pool = extent->arena->pool;

    XSEG_ASSERT(atomic_load(&extent->segment.mapped) == 0);
    XSEG_ASSERT(atomic_load(&device->addresses) >= extent->segment.reserved_bytes);
    XSEG_ASSERT(atomic_load(&pool->addresses) >= extent->segment.reserved_bytes);
    atomic_fetch_sub_explicit(&device->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&device->page_map->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    /* If the driver fails, the range stays in device->unreleased. */
    (void)xseg_segment_destroy(&extent->segment);
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_release_pool_reference(pool);
}

void xseg_reclaim_destroy_elastic(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(extent->elastic != NULL && extent->registered == 0 && extent->segment.unknown == 0);
    xseg_biased_lock_lock(&arena->lock);
    unregister_extent(arena, extent);
    xseg_biased_lock_unlock(&arena->lock);
    free_extent_addresses(extent);
}

bool xseg_reclaim_destroy_unmapped(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (arena->pool->state != XSEG_POOL_RUNNING || extent->registered != 0)
        return false;
    xseg_biased_lock_lock(&arena->lock);
    const bool is_unmapped = extent->first->state == XSEG_BLOCK_UNMAPPED &&
                             extent->first->next == NULL && extent->segment.unknown == 0;
    if (is_unmapped) {
        (void)xseg_arena_claim(arena, extent->first);
        unregister_extent(arena, extent);
    }
    xseg_biased_lock_unlock(&arena->lock);
    if (is_unmapped)
        free_extent_addresses(extent);
    return is_unmapped;
}

bool xseg_reclaim_destroy_all_unmapped(struct xseg_arena *arena)
{
    bool destroyed_all = true;

    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        destroyed_all =
            xseg_reclaim_destroy_unmapped(XSEG_CONTAINER(node, struct xseg_extent, link)) &&
            destroyed_all;
    }
    return destroyed_all;
}

void xseg_reclaim_destroy_some_unmapped(struct xseg_arena *arena, uint32_t max)
{
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        if (max == 0)
            return;
        max -= xseg_reclaim_destroy_unmapped(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
}

/* --- The reclaim operation. --- */

/* The memory that may still be claimed; decreases to 0. */
struct quota {
    uint64_t bytes;
    struct xseg_idle_limit idle;
    uint64_t cached_before; /* with idle.ages: only memory that was cached before this time */
};

/* Claimed blocks, a list by `chain`. */
struct chain {
    struct xseg_block *first, *last;
    uint64_t bytes;
};

struct reclaim {
    struct xseg_device *device;
    const struct xseg_reclaim_policy *policy;
    struct xseg_reclaim_result *result;
    struct quota quota;
    uint64_t min_block; /* of the current pass */
    struct chain claimed;
    xseg_status status; /* the first error of a stream */
};

static bool is_arena_in_scope(const struct xseg_reclaim_policy *policy,
                              const struct xseg_arena *arena)
{
    const struct xseg_pool *pool = arena->pool;

    if ((policy->stream != NULL && xseg_arena_stream(arena) != policy->stream) ||
        (policy->pool != NULL && pool != policy->pool) ||
        (policy->idle.ages != NULL && !xseg_idle_is_counted(arena, policy->pool)))
        return false;
    switch (policy->scope) {
    case XSEG_RECLAIM_RELEASABLE:
        return xseg_pool_may_trim(pool, policy->pool);
    case XSEG_RECLAIM_PAGES:
        return xseg_pool_may_shrink(pool) && !pool->has_own_memory;
    case XSEG_RECLAIM_LARGE:
        return pool == &arena->device->pool && !arena->is_small;
    case XSEG_RECLAIM_ALL:
    case XSEG_RECLAIM_ARENA:
        break;
    }
    return true;
}

uint64_t xseg_reclaim_page_cache(struct xseg_device *device, uint64_t *bytes, uint64_t pages)
{
    const uint64_t idle = xseg_page_cache_bytes(&device->page_cache);
    const uint64_t count =
        xseg_page_cache_shrink(&device->page_cache, idle - xseg_min(idle, *bytes), pages);

    XSEG_ASSERT(count <= pages && xseg_page_cache_bytes(&device->page_cache) <= idle);
    *bytes -= xseg_min(*bytes, idle - xseg_page_cache_bytes(&device->page_cache));
    return count;
}

/* --- Claim. --- */

static bool quota_remains(const struct quota *quota)
{
    return quota->bytes > 0 && (quota->idle.ages == NULL || quota->idle.pages > 0);
}

/* Subtract a page from the quota.  Returns false if the quota does not cover the page. */
static bool claim_page_from_quota(struct quota *quota, const struct xseg_segment *segment,
                                  uint32_t page)
{
    const uint64_t bytes = xseg_idle_page_bytes(segment, page);

    if (quota->bytes == 0 || xseg_idle_page_is_retained(segment, page))
        return false;
    if (quota->idle.ages != NULL) {
        const uint64_t since = xseg_idle_page_since(segment, page);

        if (since >= quota->cached_before || !xseg_idle_claim(&quota->idle, since, bytes))
            return false;
    }
    quota->bytes -= xseg_min(quota->bytes, bytes);
    return true;
}

/* The first granule of the page that ends before granule `end`. */
static uint32_t find_page_before(const struct xseg_segment *segment, uint32_t end)
{
    XSEG_ASSERT(end > 0);
    uint32_t granule = end - 1;

    while (xseg_idle_page_length(segment, granule) == 0)
        granule--;
    return granule;
}

/*
 * Choose a run of pages of a block that the quota covers.  The search starts at the start of the
 * block.  A selection by age starts at its end, so that memory that stays mapped is at low
 * addresses.
 *
 * has_more: set to whether the block may have another run after this one
 */
static struct xseg_idle_run choose_page_run(struct quota *quota, const struct xseg_block *block,
                                            bool *has_more)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const bool from_end = quota->idle.ages != NULL;
    struct xseg_idle_run remaining = xseg_idle_whole_pages(segment, block->base, block->bytes);
    struct xseg_idle_run run = {0, 0};

    *has_more = false;
    while (remaining.count > 0) {
        const uint32_t page = from_end
                                  ? find_page_before(segment, remaining.first + remaining.count)
                                  : remaining.first;
        const uint32_t length = xseg_idle_page_length(segment, page);

        remaining.first += from_end ? 0 : length;
        remaining.count -= length;
        if (claim_page_from_quota(quota, segment, page)) {
            run.first = from_end || run.count == 0 ? page : run.first;
            run.count += length;
        } else if (run.count > 0) {
            *has_more = quota_remains(quota);
            break;
        }
    }
    return run;
}

static void append_claimed_block(struct chain *chain, struct xseg_block *block, bool largest_first)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->mapped);
    chain->bytes += block->bytes;
    block->chain = largest_first ? chain->first : NULL;
    if (chain->last == NULL)
        chain->first = chain->last = block;
    else if (largest_first)
        chain->first = block;
    else
        chain->last = chain->last->chain = block;
}

/*
 * Claim the selected memory of an arena.  The free index is read upward from min_block.  The
 * remainders of a block, which stay cached, are smaller than a page and precede the block in the
 * index, unless the block has another run of pages to claim.
 */
static struct chain claim_selected_blocks(const struct reclaim *reclaim, struct xseg_arena *arena,
                                          struct quota *quota) XSEG_REQUIRES(arena->lock)
{
    const struct xseg_reclaim_policy *policy = reclaim->policy;
    uint64_t bytes = reclaim->min_block, position = 0;
    struct chain chain = {NULL, NULL, 0};
    struct xseg_block *block;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && bytes >= XSEG_SIZE_SMALL_SEGMENT);
    while (quota_remains(quota) &&
           xseg_arena_reserve_records(arena, &arena->blocks, XSEG_ARENA_RECORDS) &&
           (block = xseg_cached_lower_bound(arena, bytes, position)) != NULL) {
        struct xseg_idle_run run = {0, 0};
        bool has_more = false;

        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        const bool is_expandable = xseg_extent_is_expandable(block->extent);
        if (!(policy->classic_only && is_expandable) &&
            (policy->min_searches == 0 ||
             policy->searches - block->gc_count_base >= policy->min_searches))
            run = choose_page_run(quota, block, &has_more);
        if (run.count == 0)
            continue;
        block = is_expandable ? claim_pages(arena, block, run.first, run.count)
                              : xseg_arena_claim(arena, block);
        append_claimed_block(&chain, block, policy->largest_first);
        if (!has_more)
            continue;
        const struct xseg_block_view remainder = xseg_extent_view_at(
            block->extent, quota->idle.ages != NULL ? block->base - 1 : xseg_block_end(block));
        if (remainder.bytes >= reclaim->min_block) {
            bytes = remainder.bytes;
            position = xseg_extent_position(block->extent, remainder.base);
        }
    }
    return chain;
}

/* Truncate a chain, the largest block first, after the first blocks that have `bytes` together.
 * The remaining blocks are cached again. */
static void settle_surplus_blocks(struct chain *chain, uint64_t bytes)
{
    uint64_t sum = 0;

    for (struct xseg_block *block = chain->first; block != NULL; block = block->chain) {
        sum += block->bytes;
        if (sum < bytes)
            continue;
        xseg_reclaim_settle(block->chain);
        block->chain = NULL;
        *chain = (struct chain){chain->first, block, sum};
        return;
    }
}

static struct chain claim_arena_memory(const struct reclaim *reclaim, struct xseg_arena *arena,
                                       struct quota *quota)
{
    const uint64_t target = quota->bytes;

    quota->bytes = reclaim->policy->largest_first ? UINT64_MAX : target;
    xseg_biased_lock_lock(&arena->lock);
    struct chain chain = claim_selected_blocks(reclaim, arena, quota);
    xseg_biased_lock_unlock(&arena->lock);
    if (reclaim->policy->largest_first)
        settle_surplus_blocks(&chain, target);
    quota->bytes = target - xseg_min(target, chain.bytes);
    return chain;
}

/* --- Check. --- */

static bool frees_only_classic_segments(const struct chain *chain)
{
    const struct xseg_block *block = chain->first;

    while (block != NULL && !xseg_extent_is_expandable(block->extent))
        block = block->chain;
    return block == NULL;
}

/* Whether no work is queued on claimed memory of an arena. */
static bool check_arena_is_idle(struct reclaim *reclaim, struct xseg_arena *arena,
                                const struct chain *chain)
{
    const enum xseg_reclaim_work work = reclaim->policy->work;
    bool idle = false;

    if (work == XSEG_RECLAIM_EVICTED ||
        (work == XSEG_RECLAIM_WAIT_TO_UNMAP && frees_only_classic_segments(chain)))
        return true;
    const xseg_status status = xseg_reclaim_check_stream(reclaim->device, xseg_arena_stream(arena),
                                                         work != XSEG_RECLAIM_QUERY, &idle);
    if (status != XSEG_OK && reclaim->status == XSEG_OK)
        reclaim->status = status;
    return idle;
}

/* Claim the selected memory of an arena on which no work is queued. */
static void claim_idle_memory(struct reclaim *reclaim, struct xseg_arena *arena)
{
    struct quota quota = reclaim->quota;
    struct chain chain = claim_arena_memory(reclaim, arena, &quota);

    if (chain.first == NULL)
        return;
    if (!check_arena_is_idle(reclaim, arena, &chain)) {
        const uint64_t selected = chain.bytes;

        xseg_reclaim_settle(chain.first);
        chain = (struct chain){NULL, NULL, 0};
        quota = reclaim->quota;
        if (quota.idle.ages != NULL) {
            quota.cached_before = xseg_idle_poll_fence(arena, quota.idle.ages->now);
            chain = claim_arena_memory(reclaim, arena, &quota);
        }
        reclaim->result->busy += selected - xseg_min(selected, chain.bytes);
    }
    quota.cached_before = UINT64_MAX;
    reclaim->quota = quota;
    if (chain.first == NULL)
        return;
    if (reclaim->claimed.last == NULL)
        reclaim->claimed = chain;
    else {
        reclaim->claimed.last->chain = chain.first;
        reclaim->claimed.last = chain.last;
        reclaim->claimed.bytes += chain.bytes;
    }
}

/* --- Release and settle. --- */

/* Release all claimed memory.  Returns false if observers or a capture keep the memory. */
static bool release_claimed_memory(struct reclaim *reclaim)
{
    const struct xseg_reclaim_policy *policy = reclaim->policy;
    struct xseg_reclaim_result *result = reclaim->result;
    const struct chain claimed = reclaim->claimed;
    struct xseg_block *next;

    reclaim->claimed = (struct chain){NULL, NULL, 0};
    if (policy->work != XSEG_RECLAIM_EVICTED &&
        !xseg_notify_unmap(reclaim->device, claimed.first)) {
        xseg_reclaim_settle(claimed.first);
        result->kept += claimed.bytes;
        return false;
    }
    for (struct xseg_block *block = claimed.first; block != NULL; block = next) {
        const uint64_t bytes = block->bytes;

        next = block->chain;
        block->chain = NULL;
        const uint64_t released =
            xseg_reclaim_release_block(block, policy->keep_pages, policy->cause);
        XSEG_ASSERT(released <= bytes);
        result->released += released;
        result->failed += bytes - released;
    }
    return true;
}

static void reclaim_arena(struct reclaim *reclaim, struct xseg_arena *arena)
{
    const uint64_t target = reclaim->quota.bytes, released_before = reclaim->result->released;

    /* A capture may begin while observers are notified. */
    if ((reclaim->policy->all_or_nothing && target == 0) ||
        !is_arena_in_scope(reclaim->policy, arena) ||
        (reclaim->policy->work != XSEG_RECLAIM_EVICTED &&
         xseg_pending_captures(reclaim->device->pending)))
        return;
    if (target > 0 && reclaim->status != XSEG_ERR_DEVICE_LOST)
        claim_idle_memory(reclaim, arena);
    if (reclaim->policy->all_or_nothing)
        return;
    (void)release_claimed_memory(reclaim);
    reclaim->quota.bytes = target - xseg_min(target, reclaim->result->released - released_before);
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_reclaim_destroy_all_unmapped(arena);
}

static void run_reclaim_pass(struct reclaim *reclaim, uint64_t min_block)
{
    reclaim->min_block = min_block;
    if (reclaim->policy->arena != NULL)
        reclaim_arena(reclaim, reclaim->policy->arena);
    if (reclaim->policy->scope != XSEG_RECLAIM_ARENA)
        XSEG_DEVICE_FOR_ARENAS(arena, reclaim->device)
        {
            reclaim_arena(reclaim, arena);
        }
}

xseg_status xseg_reclaim(struct xseg_device *device, const struct xseg_reclaim_policy *policy,
                         struct xseg_reclaim_result *result)
{
    struct reclaim reclaim = {
        .device = device,
        .policy = policy,
        .result = result,
        .quota = {policy->bytes, policy->idle, UINT64_MAX},
    };

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(!policy->largest_first ||
                (policy->all_or_nothing && policy->scope == XSEG_RECLAIM_ARENA));
    *result = (struct xseg_reclaim_result){.released = 0};
    if (policy->preferred_block > policy->min_block)
        run_reclaim_pass(&reclaim, policy->preferred_block);
    run_reclaim_pass(&reclaim, policy->min_block);
    if (policy->all_or_nothing && reclaim.quota.bytes == 0)
        result->is_complete = release_claimed_memory(&reclaim);
    xseg_reclaim_settle(reclaim.claimed.first);
    result->pages = policy->idle.pages - reclaim.quota.idle.pages;
    return reclaim.status;
}
