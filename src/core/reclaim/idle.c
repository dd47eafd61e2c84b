/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/idle.h"

#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"

/* Nanoseconds that stand for the span where the span is shorter. */
#define LEAST_SPAN UINT64_C(1000000)

_Static_assert(XSEG_IDLE_OLDER % 4 == 0, "older ages have four steps to a doubling");

static bool is_meant(const struct xseg_arena *arena, const struct xseg_pool *named)
{
    return xseg_pool_may_trim(arena->pool, named) && !xseg_pool_has_own_memory(arena->pool) &&
           !arena->is_guarded;
}

/* --- Pages of a cached block. --- */

/* A run of granules. */
struct run {
    uint32_t first, count;
};

/* The whole pages of a block; of a classic segment one "granule" if the block is all of it. */
static struct run whole_pages(const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;
    struct run run = {0, 0};

    if (!xseg_segment_is_expandable(segment))
        run.count = xseg_trim_can_go(block);
    else
        run.count = xseg_segment_whole_pages(segment, block->base - segment->base,
                                             xseg_block_end(block) - segment->base, &run.first);
    XSEG_ASSERT(run.first + run.count <= xseg_max(segment->granules, 1));
    return run;
}

static uint32_t page_length(const struct xseg_segment *segment, uint32_t granule)
{
    return xseg_segment_is_expandable(segment) ? segment->length[granule] : 1;
}

static uint64_t page_bytes(const struct xseg_segment *segment, uint32_t granule)
{
    return xseg_segment_is_expandable(segment) ? segment->length[granule] * segment->granule_bytes
                                               : segment->bytes;
}

static bool is_held(const struct xseg_segment *segment, uint32_t granule)
{
    return xseg_segment_is_held(segment, granule, page_length(segment, granule));
}

/* When the last block on a page was freed. */
static uint64_t page_since(const struct xseg_segment *segment, uint32_t granule)
{
    const uint32_t length = page_length(segment, granule);
    uint64_t since = 0;

    for (uint32_t at = granule; at < granule + length; at++)
        since = xseg_max(since, segment->since[at]);
    return since;
}

uint32_t xseg_idle_step(const struct xseg_idle_ages *ages, uint64_t since)
{
    const uint64_t age = since < ages->now ? ages->now - since : 0;

    if (age < ages->span)
        return (uint32_t)(age * XSEG_IDLE_STEPS / ages->span);
    /* The step counts doublings of the span, and the two bits behind the highest one: quarters of a doubling. */
    const uint64_t times = xseg_max(age / xseg_max(ages->span, LEAST_SPAN), 1);
    const unsigned twice = xseg_log2_floor(times);
    const uint64_t quarter = times * 4 >> twice;
    return XSEG_IDLE_STEPS + (uint32_t)xseg_min(twice * 4 + (quarter - 4), XSEG_IDLE_OLDER - 1);
}

/* --- Counting. --- */

/* Start the time of an arena at the first look: the age of its memory runs from now on. */
static void start_time(struct xseg_arena *arena, uint64_t now)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        for (uint32_t at = 0; at < xseg_max(segment->granules, 1); at++)
            segment->since[at] = now;
    }
}

static void count_block(struct xseg_idle_ages *ages, const struct xseg_block *block,
                        uint64_t before)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const struct run run = whole_pages(block);

    for (uint32_t at = run.first; at < run.first + run.count; at += page_length(segment, at)) {
        const uint64_t since = page_since(segment, at), bytes = page_bytes(segment, at);
        const uint32_t step = xseg_idle_step(ages, since);

        XSEG_ASSERT(step < XSEG_IDLE_ALL && bytes > 0);
        if (is_held(segment, at)) {
            ages->held += bytes;
            continue;
        }

        ages->bytes[step] += bytes;
        ages->pages[step]++;
        ages->fresh += since >= before ? bytes : 0;
        ages->largest = xseg_max(ages->largest, bytes);
    }
}

struct counting {
    struct xseg_idle_ages *ages;
    const struct xseg_pool *named;
};

static void count_arena(void *self, struct xseg_arena *arena)
{
    const struct counting *counting = self;
    struct xseg_idle_ages *ages = counting->ages;
    const struct xseg_block *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    if (!is_meant(arena, counting->named))
        return;
    xseg_arena_lock(arena);
    const uint64_t before = xseg_arena_now(arena);
    XSEG_ASSERT(before <= ages->now);
    if (before == 0)
        start_time(arena, ages->now);
    xseg_arena_set_now(arena, ages->now);
    ages->cached += xseg_arena_cached_bytes(arena);
    while ((block = xseg_arena_cached_from(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        count_block(ages, block, before);
    }
    xseg_arena_unlock(arena);
}

void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages)
{
    struct counting counting = {ages, named};

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    *ages = (struct xseg_idle_ages){.now = now, .span = span};
    xseg_pages_set_time(&device->pages, now);
    xseg_device_visit_arenas(device, count_arena, &counting);
}

void xseg_idle_choose(struct xseg_idle_wish *wish, uint64_t bytes, uint32_t youngest,
                      uint64_t pages)
{
    const struct xseg_idle_ages *ages = wish->ages;
    uint64_t left = pages;

    XSEG_ASSERT(ages != NULL && youngest < XSEG_IDLE_ALL);
    wish->pages = pages;
    for (wish->step = XSEG_IDLE_ALL - 1; wish->step > youngest; wish->step--) {
        if (ages->bytes[wish->step] > bytes || ages->pages[wish->step] > left)
            break;
        bytes -= ages->bytes[wish->step];
        left -= ages->pages[wish->step];
    }
    XSEG_ASSERT(wish->step >= youngest && left <= pages);
    wish->part = bytes;
    wish->part_pages = left;
}

/* --- Claiming. --- */

/* The state of one round of claims; `part`, `part_pages` and `pages` count down to 0. */
struct claim {
    const struct xseg_idle_ages *ages;
    uint32_t step;
    uint64_t part, part_pages, pages;
    bool rounds_up;
    uint64_t before; /* only memory that was cached before this time */
};

static bool is_wanted(const struct claim *claim, const struct xseg_segment *segment,
                      uint32_t granule)
{
    const uint64_t since = page_since(segment, granule);
    const uint32_t step = xseg_idle_step(claim->ages, since);

    return since < claim->before && claim->pages > 0 && !is_held(segment, granule) &&
           (step > claim->step ||
            (step == claim->step && claim->part_pages > 0 &&
             claim->part >= (claim->rounds_up ? 1 : page_bytes(segment, granule))));
}

static void note_claim(struct claim *claim, const struct xseg_segment *segment, uint32_t granule)
{
    const uint64_t bytes = page_bytes(segment, granule);

    XSEG_ASSERT(claim->pages > 0 && page_length(segment, granule) > 0);
    claim->pages--;
    if (xseg_idle_step(claim->ages, page_since(segment, granule)) != claim->step)
        return;
    XSEG_ASSERT(claim->part_pages > 0);
    claim->part -= xseg_min(claim->part, bytes);
    claim->part_pages--;
}

/* The first granule of the page that ends before granule `end`. */
static uint32_t page_before(const struct xseg_segment *segment, uint32_t end)
{
    XSEG_ASSERT(end > 0);
    uint32_t at = end - 1;

    while (page_length(segment, at) == 0)
        at--;
    return at;
}

/* The topmost run of wanted pages of a block, so that the memory that stays lies low. */
static struct run choose_run(struct claim *claim, const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const struct run whole = whole_pages(block);
    struct run run = {0, 0};

    for (uint32_t end = whole.first + whole.count, at; end > whole.first; end = at) {
        at = page_before(segment, end);
        if (is_wanted(claim, segment, at)) {
            note_claim(claim, segment, at);
            run.count += end - at;
            run.first = at;
        } else if (run.count > 0) {
            break;
        }
    }
    return run;
}

static struct xseg_block *claim_run(struct xseg_arena *arena, struct xseg_block *block,
                                    struct run run) XSEG_REQUIRES(arena->lock)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_ARENA) && run.count > 0);
    if (xseg_extent_is_expandable(block->extent))
        return xseg_trim_claim_pages(arena, block, run.first, run.count);
    return xseg_arena_claim(arena, block);
}

/* Claim wanted pages of an arena, chained through `right`. */
static struct xseg_block *claim_pages(struct xseg_arena *arena, struct claim *claim)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_block *claimed = NULL, *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    while (claim->pages > 0 && xseg_arena_stock(arena, &arena->blocks, XSEG_ARENA_RECORDS) &&
           (block = xseg_arena_cached_from(arena, bytes, position)) != NULL) {
        const struct run run = choose_run(claim, block);
        const uint64_t begin = block->base;

        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        if (run.count == 0)
            continue;
        block = claim_run(arena, block, run);
        XSEG_ASSERT(block->state == XSEG_BLOCK_BUSY && block->base >= begin);
        block->right = claimed;
        claimed = block;
        /* More wanted pages may lie before the run. */
        if (block->base == begin)
            continue;
        const struct xseg_part before = xseg_walk_at(block->extent, block->base - 1);
        if (before.bytes >= XSEG_SIZE_SMALL_SEGMENT) {
            bytes = before.bytes;
            position = xseg_extent_position(block->extent, before.base);
        }
    }
    return claimed;
}

/* --- Evidence that no work is queued. --- */

/* Look at the fence of an arena whose stream is busy; record one if there is none. */
static void look_at_fence(struct xseg_arena *arena, uint64_t now)
{
    struct xseg_device *device = arena->device;
    struct xseg_known_stream *stream = xseg_arena_stream(arena);
    struct xseg_fences *fences = &device->pending->fences;
    bool done = false;
    int mode = 0;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (arena->fence == NULL && !xseg_streams_is_open(&device->context, stream))
        return;
    if (xseg_driver_relax(&device->context, &mode) != XSEG_OK)
        return;
    xseg_pending_lock(device->pending);
    if (arena->fence == NULL) {
        if (xseg_fences_record(fences, stream->handle, &arena->fence) == XSEG_OK)
            arena->fenced = now;
    } else if (xseg_driver_event_done(&device->context, arena->fence, &done) == XSEG_OK && done) {
        XSEG_ASSERT(arena->passed <= arena->fenced);
        arena->passed = arena->fenced;
        xseg_fences_put(fences, arena->fence);
        arena->fence = NULL;
    }
    xseg_pending_unlock(device->pending);
    xseg_driver_unrelax(&device->context, mode);
}

/* --- Taking. --- */

struct taking {
    const struct xseg_idle_wish *wish;
    struct claim left;
    struct xseg_idle_taken *taken;
    xseg_status status;
};

static uint64_t chain_bytes(const struct xseg_block *claimed)
{
    uint64_t bytes = 0;

    for (; claimed != NULL; claimed = claimed->right)
        bytes += claimed->bytes;
    return bytes;
}

static struct xseg_block *locked_claim(struct xseg_arena *arena, struct claim *claim)
{
    xseg_arena_lock(arena);
    struct xseg_block *claimed = claim_pages(arena, claim);
    xseg_arena_unlock(arena);
    return claimed;
}

/* Claim wanted memory of an arena on which no work is queued. */
static struct xseg_block *claim_idle(struct taking *taking, struct xseg_arena *arena)
{
    struct claim claim = taking->left;
    bool idle = false;

    claim.before = UINT64_MAX;
    struct xseg_block *claimed = locked_claim(arena, &claim);
    if (claimed == NULL)
        return NULL;
    const uint64_t wanted = chain_bytes(claimed);
    const xseg_status status =
        xseg_trim_is_idle(arena->device, xseg_arena_stream(arena), taking->wish->wait, &idle);
    if (status == XSEG_ERR_DEVICE_LOST)
        taking->status = status;
    if (!idle) {
        xseg_trim_put_back(arena, claimed);
        look_at_fence(arena, taking->wish->ages->now);
        claim = taking->left;
        claim.before = arena->passed;
        claimed = locked_claim(arena, &claim);
        taking->taken->busy += wanted - xseg_min(wanted, chain_bytes(claimed));
    }
    XSEG_ASSERT(claim.pages <= taking->left.pages);
    taking->left = claim;
    return claimed;
}

static void take_arena(void *self, struct xseg_arena *arena)
{
    struct taking *taking = self;
    const struct xseg_idle_wish *wish = taking->wish;
    struct xseg_block *next;

    if (!is_meant(arena, wish->pool) || taking->left.pages == 0 || taking->status != XSEG_OK ||
        (wish->stream != NULL && xseg_arena_stream(arena) != wish->stream) ||
        (wish->pool != NULL && arena->pool != wish->pool))
        return;
    struct xseg_block *claimed = claim_idle(taking, arena);
    if (!xseg_notice_leave(arena->device, claimed)) {
        taking->taken->busy += chain_bytes(claimed);
        xseg_trim_put_back(arena, claimed);
        return;
    }
    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        const uint64_t bytes = block->bytes;

        next = block->right;
        block->right = NULL;
        const uint64_t given = xseg_trim_give(
            block, wish->keep, wish->is_gift ? XSEG_HISTORY_GIVE : XSEG_HISTORY_DECAY);
        XSEG_ASSERT(given <= bytes);
        taking->taken->returned += given;
        taking->taken->refused += bytes - given;
    }
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_trim_end_holes(arena);
}

xseg_status xseg_idle_take(struct xseg_device *device, const struct xseg_idle_wish *wish,
                           struct xseg_idle_taken *taken)
{
    struct taking taking = {
        .wish = wish,
        .left = {wish->ages, wish->step, wish->part, wish->part_pages, wish->pages, wish->rounds_up,
                 UINT64_MAX},
        .taken = taken,
        .status = XSEG_OK,
    };

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && wish->step < XSEG_IDLE_ALL);
    xseg_device_visit_arenas(device, take_arena, &taking);
    XSEG_ASSERT(taking.left.pages <= wish->pages);
    taken->pages += wish->pages - taking.left.pages;
    return taking.status;
}

static void end_fence(void *self, struct xseg_arena *arena)
{
    (void)self;
    if (arena->fence != NULL)
        xseg_fences_put(&arena->device->pending->fences, arena->fence);
    arena->fence = NULL;
}

void xseg_idle_end(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_pending_lock(device->pending);
    xseg_device_visit_arenas(device, end_fence, NULL);
    xseg_pending_unlock(device->pending);
}
