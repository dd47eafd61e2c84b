/* SPDX-License-Identifier: MIT */
#include "src/core/grow/ladder.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/arena/notes.h"
#include "src/core/budget/budget.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/asking.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/refusal.h"
#include "src/core/grow/shortage.h"
#include "src/core/grow/steal.h"
#include "src/core/grow/unpaged.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/leaving.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"

static bool is_shortage(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/*
 * A rung.  With XSEG_OK and a base in *out it has served the request; else the next rung is tried.
 */
typedef xseg_status rung(struct xseg_arena *arena, const struct xseg_need *need,
                         struct xseg_grant *out);

/* --- Rungs. --- */

static xseg_status search(struct xseg_arena *arena, const struct xseg_need *need,
                          struct xseg_grant *out)
{
    struct xseg_need again = *need;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && out->base == 0);
    /* A request counts once on the clock by which garbage ages. */
    again.ages = false;
    return need->is_guarded ? XSEG_OK : xseg_arena_alloc(arena, &again, out);
}

static xseg_status take_finished(struct xseg_arena *arena, const struct xseg_need *need,
                                 struct xseg_grant *out)
{
    xseg_pending_poll(arena->device->pending);
    xseg_leaving_look(arena->device, false);
    return search(arena, need, out);
}

/* Grow with small pages where the fewest are missing: new pages as far as possible, else stolen ones. */
static xseg_status map_small(struct xseg_arena *arena, const struct xseg_need *need, bool wait,
                             struct xseg_grant *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_stretch stretch = {0};
    xseg_status status = xseg_growth_claim(arena, need, true, &stretch);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(stretch.first != NULL && stretch.first->state == XSEG_BLOCK_CLAIMED);
    const struct xseg_steal_plan plan = {
        .taker = {.properties = stretch.first->extent->segment.properties},
        .config = need->config,
        .bytes = stretch.missing,
        .granule_bytes = stretch.first->extent->segment.granule_bytes,
        .page_bytes = stretch.first->extent->segment.page_bytes,
        .full_pages = xseg_stretch_full_pages(&stretch),
        .wait = wait,
        .arena = arena,
    };
    status = xseg_growth_check_pool(arena->pool, stretch.missing);
    if (status == XSEG_OK)
        status = xseg_steal(device, &plan);
    status = xseg_growth_finish(arena, need, &stretch, status, out);
    xseg_pages_fit(&device->pages, need->config->page_cache_bytes);
    return status;
}

static xseg_status grow_small(struct xseg_arena *arena, const struct xseg_need *need, bool wait,
                              struct xseg_grant *out)
{
    const int device = arena->device->context.ordinal;

    XSEG_SPAN_BEGIN(growth, device, need->bytes);
    const xseg_status status = map_small(arena, need, wait, out);
    XSEG_SPAN_END(growth, device, status);
    return status;
}

static xseg_status steal(struct xseg_arena *arena, const struct xseg_need *need,
                         struct xseg_grant *out)
{
    return grow_small(arena, need, false, out);
}

static xseg_status steal_waiting(struct xseg_arena *arena, const struct xseg_need *need,
                                 struct xseg_grant *out)
{
    return grow_small(arena, need, true, out);
}

/* Borrow a cached block of a private pool that lends to the default pool when memory is short (use_on_oom). */
static xseg_status borrow(struct xseg_arena *arena, const struct xseg_need *need,
                          struct xseg_grant *out)
{
    struct xseg_need wanted = *need;
    struct xseg_pool *pool = NULL;
    xseg_status status = XSEG_OK;

    if (arena->pool->is_private || need->keep)
        return XSEG_OK;
    while (status == XSEG_OK && out->base == 0 &&
           (pool = xseg_pools_next(arena->device, pool)) != NULL) {
        struct xseg_arena *lender =
            xseg_pool_may_lend(pool)
                ? xseg_pool_find_arena(pool, xseg_arena_stream(arena), arena->is_small)
                : NULL;

        XSEG_ASSERT(lender != arena);
        /* A cached single page stays one. */
        wanted.no_split =
            xseg_pool_is_whole(pool) || (xseg_pool_is_single(pool) && !arena->is_small);
        wanted.is_lent = true;
        if (lender != NULL)
            status = xseg_arena_lend(lender, &wanted, out);
    }
    if (pool != NULL)
        xseg_pool_end_visit(pool);
    return status;
}

static xseg_status wait_for_pending(struct xseg_arena *arena, const struct xseg_need *need,
                                    struct xseg_grant *out)
{
    xseg_status status = XSEG_OK;

    /* A capture may have begun while an earlier rung let GROWTH go. */
    if (xseg_pending_count(arena->device->pending) == 0 ||
        xseg_pending_captures(arena->device->pending))
        return XSEG_OK;
    status = xseg_pending_wait(arena->device->pending);
    /* Another error means a stream that could not be waited for; the blocks of other streams are free. */
    if (status == XSEG_ERR_DEVICE_LOST)
        return status;
    return search(arena, need, out);
}

/* Free classic segments of max_split_size_mb or more of the arena: the smallest one that is large enough, else the
 * largest ones until they are together (PyTorch's rule).  Then grow. */
static xseg_status free_oversize(struct xseg_arena *arena, const struct xseg_need *need,
                                 struct xseg_grant *out)
{
    const uint64_t least = need->config->max_split_bytes;
    const uint64_t wanted = xseg_max(need->bytes, least);

    XSEG_ASSERT(!need->expandable || !xseg_device_makes_pages(arena->device));
    if (least == UINT64_MAX || !xseg_trim_oversize(arena, least, wanted))
        return XSEG_OK;
    return xseg_growth_grow(arena, need, out);
}

/* Give what is idle in the pool on the stream of a request for a single page back to the driver, since idle pages of
 * other sizes cannot serve it; then grow. */
static xseg_status shrink_pool(struct xseg_arena *arena, const struct xseg_need *need,
                               struct xseg_grant *out)
{
    const struct xseg_trim_plan own = {
        .stream = xseg_arena_stream(arena), .pool = arena->pool, .wait = true};
    struct xseg_trim_result done = {sizeof(done)};
    const xseg_status status = xseg_trim_device(arena->device, &own, &done);

    XSEG_ASSERT(need->is_single);
    if (status == XSEG_ERR_DEVICE_LOST || done.released == 0)
        return status == XSEG_ERR_DEVICE_LOST ? status : XSEG_OK;
    return xseg_growth_grow(arena, need, out);
}

/* Give all idle memory back to the driver, then try growth once more. */
static xseg_status flush(struct xseg_arena *arena, const struct xseg_need *need,
                         struct xseg_grant *out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = xseg_trim_everything(device, true);

    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->retries, 1, memory_order_relaxed);
    status = xseg_growth_grow(arena, need, out);
    if (status == XSEG_ERR_NO_ADDRESSES) {
        xseg_device_visit_arenas(device, xseg_trim_end_holes_of, NULL);
        status = xseg_growth_grow(arena, need, out);
    }
    return status;
}

/* --- The rungs of each situation, in their order. --- */

static rung *const expandable_rungs[] = {
    steal, steal_waiting, borrow, wait_for_pending, steal_waiting, flush, steal, search, NULL};
static rung *const classic_rungs[] = {borrow, free_oversize, flush, search, NULL};
/* In a capture no rung waits or takes memory away; `steal` then only makes small pages. */
static rung *const capture_rungs[] = {steal, borrow, NULL};
static rung *const classic_capture_rungs[] = {borrow, NULL};
/* A guarded block has a segment to itself, so no cached memory can serve it. */
static rung *const guarded_rungs[] = {flush, NULL};
/* A single page comes of no stretch, so idle pages of other places are of use to the driver only. */
static rung *const single_rungs[] = {borrow, wait_for_pending, shrink_pool, flush, search, NULL};
static rung *const single_full_pool_rungs[] = {wait_for_pending, shrink_pool, NULL};
/* A pool at its own limit gains nothing from memory of other pools. */
static rung *const full_pool_rungs[] = {steal, wait_for_pending, search, NULL};
static rung *const classic_full_pool_rungs[] = {wait_for_pending, search, NULL};

/* What neither waits nor asks users is tried before other processes are asked. */
static rung *const early_rungs[] = {steal, borrow, NULL};
static rung *const classic_early_rungs[] = {borrow, NULL};

static rung *const *choose_rungs(const struct xseg_arena *arena, const struct xseg_need *need)
{
    const bool is_paged = need->expandable && xseg_device_makes_pages(arena->device);

    XSEG_ASSERT(need->is_guarded == arena->is_guarded);
    if (need->is_guarded)
        return guarded_rungs;
    if (xseg_pending_captures(arena->device->pending))
        return is_paged && !need->is_single ? capture_rungs : classic_capture_rungs;
    if (is_paged && need->is_single)
        return arena->pool->is_full ? single_full_pool_rungs : single_rungs;
    if (arena->pool->is_full)
        return is_paged ? full_pool_rungs : classic_full_pool_rungs;
    return is_paged ? expandable_rungs : classic_rungs;
}

/* Climb rungs until one serves the request, or fails for another reason than shortage. */
static xseg_status climb(struct xseg_arena *arena, const struct xseg_need *need, rung *const *next,
                         xseg_status refused, struct xseg_grant *out)
{
    XSEG_ASSERT(is_shortage(refused));
    for (; *next != NULL; next++) {
        XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && out->base == 0);
        const xseg_status status = (*next)(arena, need, out);

        if (out->base != 0 || (status != XSEG_OK && !is_shortage(status)))
            return status;
        if (status != XSEG_OK)
            refused = status;
    }
    XSEG_ASSERT(is_shortage(refused));
    return refused;
}

/* Whether a request is refused at once, by PyTorch's rule: with throw_on_cudamalloc_oom, where no limit refuses it, but the
 * device has no room, or the fraction of rejections is passed. */
static bool is_rejected(const struct xseg_device *device, const struct xseg_need *need)
{
    if (device->refuser == XSEG_REFUSER_REJECTION)
        return true;
    return need->config->throw_on_cudamalloc_oom && xseg_bounds_fraction(&device->bounds) >= 1.0 &&
           device->refuser == XSEG_REFUSER_DEVICE;
}

/* Search, collect garbage, grow: as PyTorch does while memory lasts. */
static xseg_status serve(struct xseg_arena *arena, const struct xseg_need *need,
                         struct xseg_grant *out)
{
    struct xseg_device *device = arena->device;

    if (atomic_load_explicit(&device->asks_late, memory_order_relaxed) &&
        xseg_pending_count(device->pending) != 0 && !xseg_pending_captures(device->pending))
        xseg_pending_poll(device->pending);
    xseg_leaving_look(device, false);
    /* Another thread may have freed or mapped a fitting block while this one waited for the lock. */
    const xseg_status status = search(arena, need, out);

    if (status != XSEG_OK || out->base != 0)
        return status;
    if (__builtin_expect(need->ages, 0))
        xseg_trim_garbage(device, need->config);
    return xseg_growth_grow(arena, need, out);
}

/*
 * Ask the observers to spare memory; returns whether one has.  GROWTH is given meanwhile, so everything may be
 * different afterwards.
 */
static bool ask(struct xseg_arena *arena, const struct xseg_need *need, xseg_status refused,
                unsigned attempt) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && attempt < XSEG_LOW_MEMORY_CALLS_MAX);
    xseg_lock_give(&arena->device->growth_lock);
    const bool spared = xseg_shortage_tell(arena, need, refused, XSEG_OBSERVERS_SHORT, attempt);
    xseg_lock_take(&arena->device->growth_lock);
    return spared;
}

/* Whether the device, or the process by its limits, is short of memory: not where a pool is at its own limit, or a
 * pool's own memory function has none. */
static bool device_is_short(const struct xseg_arena *arena, xseg_status refused)
{
    if (xseg_pool_has_own_memory(arena->pool))
        return false;
    return refused == XSEG_ERR_NO_MEMORY || (refused == XSEG_ERR_LIMIT && !arena->pool->is_full);
}

/* Bytes that the device has to have free for a request: a growth ends where a full page does, wherever it begins. */
static uint64_t bytes_to_ask(const struct xseg_arena *arena, const struct xseg_need *need)
{
    const bool has_pages =
        !arena->is_small && need->config->page_sizes != XSEG_CONFIG_PAGES_SMALL && !need->is_single;
    const uint64_t page = has_pages ? need->config->large_segment_bytes : XSEG_SIZE_SMALL_SEGMENT;
    const uint64_t bytes = xseg_round_up(need->bytes, XSEG_SIZE_SMALL_SEGMENT);
    const uint64_t most = xseg_max(bytes, arena->device->context.total_bytes);

    return need->expandable ? xseg_min(bytes + page - XSEG_SIZE_SMALL_SEGMENT, most)
                            : need->segment_bytes;
}

/* The rungs that neither wait nor take from users, for requests that have some. */
static xseg_status climb_early(struct xseg_arena *arena, const struct xseg_need *need,
                               xseg_status refused, struct xseg_grant *out)
{
    const bool is_paged = need->expandable && xseg_device_makes_pages(arena->device);

    if (need->is_guarded || need->is_single || xseg_pending_captures(arena->device->pending))
        return refused;
    return climb(arena, need, is_paged ? early_rungs : classic_early_rungs, refused, out);
}

/* Look for memory that has become free; with `grows`, for new memory as well, and for what both have together. */
static xseg_status try_again(struct xseg_arena *arena, const struct xseg_need *need,
                             xseg_status refused, bool grows, struct xseg_grant *out)
{
    const xseg_status status = grows ? serve(arena, need, out) : take_finished(arena, need, out);

    if (out->base != 0 || (status != XSEG_OK && !is_shortage(status)))
        return status;
    return grows ? climb_early(arena, need, refused, out) : refused;
}

/*
 * Try what needs no wait; then ask other processes for memory that they leave idle, and try again until the time is over.
 * GROWTH is let go meanwhile.
 */
static xseg_status ask_others(struct xseg_arena *arena, const struct xseg_need *need,
                              xseg_status refused, struct xseg_grant *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_asking asking;

    if (!xseg_budget_is_open(device) || !device_is_short(arena, refused))
        return refused;
    xseg_status status = climb_early(arena, need, refused, out);
    if (!is_shortage(status))
        return status;
    if (xseg_asking_begin(&asking, arena, bytes_to_ask(arena, need), need->config))
        while (is_shortage(status) && xseg_asking_wait(&asking))
            status = try_again(arena, need, status, asking.grows, out);
    xseg_asking_end(&asking, status == XSEG_OK);
    return status;
}

/*
 * Overcome a shortage: take back pending blocks that have finished, ask other processes, ask the observers, then climb the
 * rungs; ask the observers and climb again while an observer spares memory and the request still fails.
 */
static xseg_status overcome(struct xseg_arena *arena, const struct xseg_need *need,
                            xseg_status refused, struct xseg_grant *out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = XSEG_OK;
    bool spared = true;

    XSEG_ASSERT(is_shortage(refused));
    device->is_short = device->is_short || device_is_short(arena, refused);
    if (device->is_short && need->expandable && !arena->pool->is_full)
        atomic_store_explicit(&device->asks_late, true, memory_order_relaxed);
    if (!need->is_guarded && !xseg_pending_captures(device->pending))
        status = take_finished(arena, need, out);
    if (status != XSEG_OK || out->base != 0)
        return status;
    status = ask_others(arena, need, refused, out);
    for (unsigned attempt = 0; spared && attempt < XSEG_LOW_MEMORY_CALLS_MAX && is_shortage(status);
         attempt++) {
        spared = ask(arena, need, status, attempt);
        if (spared)
            status = serve(arena, need, out);
        if (is_shortage(status))
            status = climb(arena, need, choose_rungs(arena, need), status, out);
    }
    return status;
}

/*
 * Serve a request for which there are no addresses.  Segments that are one hole give theirs back first; else a
 * classic segment serves the request, which takes no more addresses than it needs.
 *
 * is_first: set to whether this is the first such classic segment of the device
 */
static xseg_status do_with_fewer_addresses(struct xseg_arena *arena, const struct xseg_need *need,
                                           struct xseg_grant *out, bool *is_first)
{
    struct xseg_device *device = arena->device;
    struct xseg_need classic = *need;

    XSEG_ASSERT(need->expandable && out->base == 0);
    if (!xseg_pending_captures(device->pending)) {
        xseg_device_visit_arenas(device, xseg_trim_end_holes_of, NULL);
        const xseg_status status = xseg_growth_grow(arena, need, out);

        if (status != XSEG_ERR_NO_ADDRESSES)
            return status;
    }
    if (need->is_guarded)
        return XSEG_ERR_NO_ADDRESSES;
    classic.expandable = false;
    const xseg_status status = xseg_growth_grow(arena, &classic, out);
    if (status != XSEG_OK)
        return is_shortage(status) ? XSEG_ERR_NO_ADDRESSES : status;
    *is_first = !device->lacks_addresses;
    device->lacks_addresses = true;
    return XSEG_OK;
}

/*
 * Overcome a shortage.  A rung may find that pages cannot be made, for another reason than that: then it is all tried
 * again, and after that the request starts anew without pages.
 */
static xseg_status overcome_without_pages(struct xseg_arena *arena, const struct xseg_need *need,
                                          xseg_status refused, struct xseg_grant *out,
                                          struct xseg_unpaged *request)
{
    xseg_status status = overcome(arena, need, refused, out);

    for (unsigned tried = 1; xseg_unpaged_is_refusal(arena->device, need, status, request);
         tried++) {
        if (tried == XSEG_UNPAGED_TRIES) {
            xseg_unpaged_give_up(arena->device, request);
            return XSEG_OK;
        }
        status = overcome(arena, need, refused, out);
    }
    return status;
}

static void say_addresses_are_short(struct xseg_device *device)
{
    xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                  "device %d: out of virtual addresses for expandable segments, %" PRIu64
                  " bytes reserved; further memory is allocated in classic segments",
                  device->context.ordinal,
                  atomic_load_explicit(&device->addresses, memory_order_relaxed));
}

static void note_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes)
{
    if (!xseg_notes_are_kept(arena))
        return;
    xseg_arena_lock(arena);
    xseg_notes_oom(arena, requested, free_bytes);
    xseg_arena_unlock(arena);
}

/* Whether a guarded block was wanted while the device still made pages. */
static bool is_late(const struct xseg_device *device, const struct xseg_need *need)
{
    return need->is_guarded && !xseg_device_makes_pages(device);
}

/* Search, collect garbage, grow; with classic segments where pages cannot be made or get no addresses. */
static xseg_status serve_somehow(struct xseg_arena *arena, const struct xseg_need *need,
                                 struct xseg_grant *out, struct xseg_unpaged *request, bool *says)
{
    xseg_status status = serve(arena, need, out);

    if (status == XSEG_ERR_NO_ADDRESSES)
        status = do_with_fewer_addresses(arena, need, out, says);
    return status == XSEG_OK ? XSEG_OK : xseg_unpaged_serve(arena, need, status, out, request);
}

xseg_status xseg_ladder_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                              struct xseg_grant *out, bool *rejected)
{
    struct xseg_device *device = arena->device;
    bool says = false;
    uint64_t free_bytes = 0;

    XSEG_ASSERT(out->base == 0 && need->bytes >= need->requested);
    *rejected = false;
    xseg_lock_take(&device->growth_lock);
    struct xseg_unpaged unpaged = xseg_unpaged_begin(device);
    if (is_late(device, need)) {
        xseg_lock_give(&device->growth_lock);
        return XSEG_OK;
    }
    xseg_status status = serve_somehow(arena, need, out, &unpaged, &says);
    if (is_shortage(status)) {
        *rejected = is_rejected(device, need);
        if (!*rejected) {
            XSEG_SPAN_BEGIN(fallback, device->context.ordinal, need->bytes);
            status = overcome_without_pages(arena, need, status, out, &unpaged);
            XSEG_SPAN_END(fallback, device->context.ordinal, status);
        }
    }
    if (is_shortage(status)) {
        atomic_fetch_add_explicit(*rejected ? &device->rejections : &device->ooms, 1,
                                  memory_order_relaxed);
        status = xseg_shortage_fail(arena, need, status, *rejected, &free_bytes);
        if (!*rejected)
            note_oom(arena, need->requested, free_bytes);
    }
    xseg_lock_give(&device->growth_lock);
    if (says)
        say_addresses_are_short(device);
    xseg_unpaged_say(device, &unpaged);
    return status;
}
