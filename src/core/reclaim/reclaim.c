/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/reclaim.h"

#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/trim_steps.h"

/* The memory that a claim may still take; counts down. */
struct quota {
    uint64_t bytes;
    struct xseg_idle_limit idle;
    uint64_t before; /* with idle.ages: only memory that was cached before this time */
};

/* Claimed blocks, linked through `right`, which no tree uses while a block is claimed. */
struct chain {
    struct xseg_block *first, *last;
    uint64_t bytes;
};

struct reclaim {
    struct xseg_device *device;
    const struct xseg_reclaim_policy *policy;
    struct xseg_reclaim_result *result;
    struct quota left;
    uint64_t min_block; /* of the current pass */
    struct chain claimed;
    xseg_status status; /* the first error of a stream */
};

static bool is_in_scope(const struct xseg_reclaim_policy *policy, const struct xseg_arena *arena)
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
        return xseg_pool_may_shrink(pool) && !xseg_pool_has_own_memory(pool);
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

static bool is_left(const struct quota *left)
{
    return left->bytes > 0 && (left->idle.ages == NULL || left->idle.pages > 0);
}

/* Count a page off the quota; false if the page stays cached. */
static bool take_page(struct quota *left, const struct xseg_segment *segment, uint32_t page)
{
    const uint64_t bytes = xseg_idle_page_bytes(segment, page);

    if (left->bytes == 0 || xseg_idle_page_is_held(segment, page))
        return false;
    if (left->idle.ages != NULL) {
        const uint64_t since = xseg_idle_page_since(segment, page);

        if (since >= left->before || !xseg_idle_claim(&left->idle, since, bytes))
            return false;
    }
    left->bytes -= xseg_min(left->bytes, bytes);
    return true;
}

/* The first granule of the page that ends before granule `end`. */
static uint32_t page_before(const struct xseg_segment *segment, uint32_t end)
{
    XSEG_ASSERT(end > 0);
    uint32_t at = end - 1;

    while (xseg_idle_page_length(segment, at) == 0)
        at--;
    return at;
}

/*
 * Choose a run of pages of a block that the quota covers.  The search starts at the start of the block.  A selection by age
 * starts at its end, so that memory that stays mapped is at low addresses.
 *
 * has_more: set to whether the block may have another run after this one
 */
static struct xseg_idle_run choose_run(struct quota *left, const struct xseg_block *block,
                                       bool *has_more)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const bool from_end = left->idle.ages != NULL;
    struct xseg_idle_run rest = xseg_idle_whole_pages(segment, block->base, block->bytes);
    struct xseg_idle_run run = {0, 0};

    *has_more = false;
    while (rest.count > 0) {
        const uint32_t at = from_end ? page_before(segment, rest.first + rest.count) : rest.first;
        const uint32_t length = xseg_idle_page_length(segment, at);

        rest.first += from_end ? 0 : length;
        rest.count -= length;
        if (take_page(left, segment, at)) {
            run.first = from_end || run.count == 0 ? at : run.first;
            run.count += length;
        } else if (run.count > 0) {
            *has_more = is_left(left);
            break;
        }
    }
    return run;
}

static bool may_claim(const struct xseg_reclaim_policy *policy, const struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    if (policy->classic_only && xseg_extent_is_expandable(block->extent))
        return false;
    return policy->min_searches == 0 ||
           policy->searches - block->gc_count_base >= policy->min_searches;
}

static struct xseg_block *claim_run(struct xseg_arena *arena, struct xseg_block *block,
                                    struct xseg_idle_run run) XSEG_REQUIRES(arena->lock)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && run.count > 0);
    if (xseg_extent_is_expandable(block->extent))
        return xseg_trim_claim_pages(arena, block, run.first, run.count);
    return xseg_arena_claim(arena, block);
}

static void add(struct chain *chain, struct xseg_block *block, bool largest_first)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->mapped);
    chain->bytes += block->bytes;
    block->right = largest_first ? chain->first : NULL;
    if (chain->last == NULL)
        chain->first = chain->last = block;
    else if (largest_first)
        chain->first = block;
    else
        chain->last = chain->last->right = block;
}

/*
 * Claim the selected memory of an arena.  The free index is read upward from min_block.  The parts of a block that stay
 * cached are smaller than a page and come earlier in the index, unless the block has another run of pages to claim.
 */
static struct chain claim_blocks(const struct reclaim *reclaim, struct xseg_arena *arena,
                                 struct quota *left) XSEG_REQUIRES(arena->lock)
{
    const struct xseg_reclaim_policy *policy = reclaim->policy;
    uint64_t bytes = reclaim->min_block, position = 0;
    struct chain chain = {NULL, NULL, 0};
    struct xseg_block *block;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && bytes >= XSEG_SIZE_SMALL_SEGMENT);
    while (is_left(left) && xseg_arena_reserve_records(arena, &arena->blocks, XSEG_ARENA_RECORDS) &&
           (block = xseg_arena_cached_from(arena, bytes, position)) != NULL) {
        struct xseg_idle_run run = {0, 0};
        bool has_more = false;

        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        if (may_claim(policy, block))
            run = choose_run(left, block, &has_more);
        if (run.count == 0)
            continue;
        block = claim_run(arena, block, run);
        add(&chain, block, policy->largest_first);
        if (!has_more)
            continue;
        const struct xseg_part rest = xseg_walk_at(
            block->extent, left->idle.ages != NULL ? block->base - 1 : xseg_block_end(block));
        if (rest.bytes >= reclaim->min_block) {
            bytes = rest.bytes;
            position = xseg_extent_position(block->extent, rest.base);
        }
    }
    return chain;
}

/* Truncate a chain, the largest block first, after the first blocks that have `bytes` together; the rest is cached again. */
static void drop_surplus(struct chain *chain, uint64_t bytes)
{
    uint64_t sum = 0;

    for (struct xseg_block *block = chain->first; block != NULL; block = block->right) {
        sum += block->bytes;
        if (sum < bytes)
            continue;
        xseg_trim_settle(block->right);
        block->right = NULL;
        *chain = (struct chain){chain->first, block, sum};
        return;
    }
}

static struct chain claim(const struct reclaim *reclaim, struct xseg_arena *arena,
                          struct quota *left)
{
    const uint64_t wanted = left->bytes;

    left->bytes = reclaim->policy->largest_first ? UINT64_MAX : wanted;
    xseg_arena_lock(arena);
    struct chain chain = claim_blocks(reclaim, arena, left);
    xseg_arena_unlock(arena);
    if (reclaim->policy->largest_first)
        drop_surplus(&chain, wanted);
    left->bytes = wanted - xseg_min(wanted, chain.bytes);
    return chain;
}

/* --- Check. --- */

static bool frees_only(const struct chain *chain)
{
    const struct xseg_block *block = chain->first;

    while (block != NULL && !xseg_extent_is_expandable(block->extent))
        block = block->right;
    return block == NULL;
}

/* Whether no work is queued on claimed memory of an arena. */
static bool is_idle(struct reclaim *reclaim, struct xseg_arena *arena, const struct chain *chain)
{
    const enum xseg_reclaim_work work = reclaim->policy->work;
    bool idle = false;

    if (work == XSEG_RECLAIM_EVICTED || (work == XSEG_RECLAIM_WAIT_TO_UNMAP && frees_only(chain)))
        return true;
    const xseg_status status = xseg_trim_is_idle(reclaim->device, xseg_arena_stream(arena),
                                                 work != XSEG_RECLAIM_QUERY, &idle);
    if (status != XSEG_OK && reclaim->status == XSEG_OK)
        reclaim->status = status;
    return idle;
}

/* Claim the selected memory of an arena on which no work is queued. */
static void claim_idle(struct reclaim *reclaim, struct xseg_arena *arena)
{
    struct quota left = reclaim->left;
    struct chain chain = claim(reclaim, arena, &left);

    if (chain.first == NULL)
        return;
    if (!is_idle(reclaim, arena, &chain)) {
        const uint64_t selected = chain.bytes;

        xseg_trim_settle(chain.first);
        chain = (struct chain){NULL, NULL, 0};
        left = reclaim->left;
        if (left.idle.ages != NULL) {
            left.before = xseg_idle_poll_fence(arena, left.idle.ages->now);
            chain = claim(reclaim, arena, &left);
        }
        reclaim->result->busy += selected - xseg_min(selected, chain.bytes);
    }
    left.before = UINT64_MAX;
    reclaim->left = left;
    if (chain.first == NULL)
        return;
    if (reclaim->claimed.last == NULL)
        reclaim->claimed = chain;
    else {
        reclaim->claimed.last->right = chain.first;
        reclaim->claimed.last = chain.last;
        reclaim->claimed.bytes += chain.bytes;
    }
}

/* --- Release and settle. --- */

/* Release all claimed memory; returns false if observers or a capture keep it. */
static bool release(struct reclaim *reclaim)
{
    const struct xseg_reclaim_policy *policy = reclaim->policy;
    struct xseg_reclaim_result *result = reclaim->result;
    const struct chain claimed = reclaim->claimed;
    struct xseg_block *next;

    reclaim->claimed = (struct chain){NULL, NULL, 0};
    if (policy->work != XSEG_RECLAIM_EVICTED &&
        !xseg_notify_unmap(reclaim->device, claimed.first)) {
        xseg_trim_settle(claimed.first);
        result->kept += claimed.bytes;
        return false;
    }
    for (struct xseg_block *block = claimed.first; block != NULL; block = next) {
        const uint64_t bytes = block->bytes;

        next = block->right;
        block->right = NULL;
        const uint64_t released = xseg_trim_release_pages(block, policy->keep_pages, policy->cause);
        XSEG_ASSERT(released <= bytes);
        result->released += released;
        result->refused += bytes - released;
    }
    return true;
}

static void visit_arena(void *self, struct xseg_arena *arena)
{
    struct reclaim *reclaim = self;
    const uint64_t wanted = reclaim->left.bytes, released = reclaim->result->released;

    /* A capture may begin while observers are notified. */
    if ((reclaim->policy->all_or_nothing && wanted == 0) || !is_in_scope(reclaim->policy, arena) ||
        (reclaim->policy->work != XSEG_RECLAIM_EVICTED &&
         xseg_pending_captures(reclaim->device->pending)))
        return;
    if (wanted > 0 && reclaim->status != XSEG_ERR_DEVICE_LOST)
        claim_idle(reclaim, arena);
    if (reclaim->policy->all_or_nothing)
        return;
    (void)release(reclaim);
    reclaim->left.bytes = wanted - xseg_min(wanted, reclaim->result->released - released);
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_trim_finish_unmapped_all(arena);
}

static void run_pass(struct reclaim *reclaim, uint64_t min_block)
{
    reclaim->min_block = min_block;
    if (reclaim->policy->arena != NULL)
        visit_arena(reclaim, reclaim->policy->arena);
    if (reclaim->policy->scope != XSEG_RECLAIM_ARENA)
        xseg_device_visit_arenas(reclaim->device, visit_arena, reclaim);
}

xseg_status xseg_reclaim(struct xseg_device *device, const struct xseg_reclaim_policy *policy,
                         struct xseg_reclaim_result *result)
{
    struct reclaim reclaim = {
        .device = device,
        .policy = policy,
        .result = result,
        .left = {policy->bytes, policy->idle, UINT64_MAX},
    };

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(!policy->largest_first ||
                (policy->all_or_nothing && policy->scope == XSEG_RECLAIM_ARENA));
    *result = (struct xseg_reclaim_result){.released = 0};
    if (policy->preferred_block > policy->min_block)
        run_pass(&reclaim, policy->preferred_block);
    run_pass(&reclaim, policy->min_block);
    if (policy->all_or_nothing && reclaim.left.bytes == 0)
        result->is_complete = release(&reclaim);
    xseg_trim_settle(reclaim.claimed.first);
    result->pages = policy->idle.pages - reclaim.left.idle.pages;
    return reclaim.status;
}
