/* SPDX-License-Identifier: MIT */
#include "src/core/grow/fallback_chain.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/arena/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/budget_wait.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/oom.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/grow/remap.h"
#include "src/core/grow/unpaged.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
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
typedef xseg_status step(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                         struct xseg_alloc_result *out);

/* --- Rungs. --- */

static xseg_status search(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          struct xseg_alloc_result *out)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && out->base == 0);
    return params->is_guarded ? XSEG_OK : xseg_arena_alloc(arena, params, out);
}

static xseg_status take_finished(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                 struct xseg_alloc_result *out)
{
    xseg_pending_poll(arena->device->pending);
    xseg_pending_unmap_poll(arena->device, false);
    return search(arena, params, out);
}

/* Grow with small pages where the fewest are missing: new pages as far as possible, else stolen ones. */
static xseg_status map_small(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             bool wait, struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_candidate candidate = {0};
    xseg_status status = xseg_growth_claim(arena, params, true, &candidate);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(candidate.first != NULL && candidate.first->state == XSEG_BLOCK_CLAIMED);
    const struct xseg_remap_plan plan = {
        .filter = {.properties = candidate.first->extent->segment.properties},
        .config = params->config,
        .bytes = candidate.missing,
        .granule_bytes = candidate.first->extent->segment.granule_bytes,
        .page_bytes = candidate.first->extent->segment.page_bytes,
        .full_pages = xseg_candidate_full_pages(&candidate),
        .wait = wait,
        .arena = arena,
    };
    status = xseg_growth_check_pool(arena->pool, candidate.missing);
    if (status == XSEG_OK)
        status = xseg_remap_pages(device, &plan);
    status = xseg_growth_finish(arena, params, &candidate, status, out);
    xseg_page_cache_shrink_unprepared(&device->page_cache, params->config->page_cache_bytes);
    return status;
}

static xseg_status grow_small(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool wait, struct xseg_alloc_result *out)
{
    const int device = arena->device->context.ordinal;

    XSEG_SPAN_BEGIN(growth, device, params->bytes);
    const xseg_status status = map_small(arena, params, wait, out);
    XSEG_SPAN_END(growth, device, status);
    return status;
}

static xseg_status steal(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                         struct xseg_alloc_result *out)
{
    return grow_small(arena, params, false, out);
}

static xseg_status steal_waiting(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                 struct xseg_alloc_result *out)
{
    return grow_small(arena, params, true, out);
}

/* Borrow a cached block of a private pool that lends to the default pool when memory is short (use_on_oom). */
static xseg_status borrow(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          struct xseg_alloc_result *out)
{
    struct xseg_alloc_params wanted = *params;
    struct xseg_pool *pool = NULL;
    xseg_status status = XSEG_OK;

    if (arena->pool->is_private || params->keep)
        return XSEG_OK;
    while (status == XSEG_OK && out->base == 0 &&
           (pool = xseg_pools_next(arena->device, pool)) != NULL) {
        struct xseg_arena *lender =
            xseg_pool_allows_fallback(pool)
                ? xseg_pool_find_arena(pool, xseg_arena_stream(arena), arena->is_small)
                : NULL;

        XSEG_ASSERT(lender != arena);
        /* A cached single page stays one. */
        wanted.no_split =
            xseg_pool_is_whole(pool) || (xseg_pool_is_single(pool) && !arena->is_small);
        wanted.is_fallback = true;
        if (lender != NULL)
            status = xseg_arena_alloc_fallback(lender, &wanted, out);
    }
    if (pool != NULL)
        xseg_pool_end_visit(pool);
    return status;
}

static xseg_status wait_for_pending(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params,
                                    struct xseg_alloc_result *out)
{
    xseg_status status = XSEG_OK;

    /* A capture may have begun while an earlier rung let the device memory lock go. */
    if (xseg_pending_count(arena->device->pending) == 0 ||
        xseg_pending_captures(arena->device->pending))
        return XSEG_OK;
    status = xseg_pending_wait(arena->device->pending);
    /* Another error means a stream that could not be waited for; the blocks of other streams are free. */
    if (status == XSEG_ERR_DEVICE_LOST)
        return status;
    return search(arena, params, out);
}

/* Free classic segments of max_split_size_mb or more of the arena: the smallest one that is large enough, else the
 * largest ones until they are together (PyTorch's rule).  Then grow. */
static xseg_status free_oversize(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                 struct xseg_alloc_result *out)
{
    const uint64_t min = params->config->max_split_bytes;
    const uint64_t wanted = xseg_max(params->bytes, min);

    XSEG_ASSERT(!params->expandable || !xseg_device_makes_pages(arena->device));
    if (min == UINT64_MAX || !xseg_trim_oversize(arena, min, wanted))
        return XSEG_OK;
    return xseg_growth_run(arena, params, out);
}

/* Give what is idle in the pool on the stream of a request for a single page back to the driver, since idle pages of
 * other sizes cannot serve it; then grow. */
static xseg_status shrink_pool(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_alloc_result *out)
{
    const struct xseg_trim_plan own = {
        .stream = xseg_arena_stream(arena), .pool = arena->pool, .wait = true};
    struct xseg_trim_result done = {sizeof(done)};
    const xseg_status status = xseg_trim_device(arena->device, &own, &done);

    XSEG_ASSERT(params->is_single);
    if (status == XSEG_ERR_DEVICE_LOST || done.released == 0)
        return status == XSEG_ERR_DEVICE_LOST ? status : XSEG_OK;
    return xseg_growth_run(arena, params, out);
}

/* Give all idle memory back to the driver, then try growth once more. */
static xseg_status flush(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                         struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = xseg_trim_all(device, true);

    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->retries, 1, memory_order_relaxed);
    status = xseg_growth_run(arena, params, out);
    if (status == XSEG_ERR_NO_ADDRESSES) {
        xseg_device_visit_arenas(device, xseg_trim_finish_unmapped_of, NULL);
        status = xseg_growth_run(arena, params, out);
    }
    return status;
}

/* --- The rungs of each situation, in their order. --- */

static step *const expandable_rungs[] = {
    steal, steal_waiting, borrow, wait_for_pending, steal_waiting, flush, steal, search, NULL};
static step *const classic_rungs[] = {borrow, free_oversize, flush, search, NULL};
/* In a capture no rung waits or takes memory away; `steal` then only makes small pages. */
static step *const capture_rungs[] = {steal, borrow, NULL};
static step *const classic_capture_rungs[] = {borrow, NULL};
/* A guarded block has a segment to itself, so no cached memory can serve it. */
static step *const guarded_rungs[] = {flush, NULL};
/* A single page comes of no stretch, so idle pages of other places are of use to the driver only. */
static step *const single_rungs[] = {borrow, wait_for_pending, shrink_pool, flush, search, NULL};
static step *const single_full_pool_rungs[] = {wait_for_pending, shrink_pool, NULL};
/* A pool at its own limit gains nothing from memory of other pools. */
static step *const full_pool_rungs[] = {steal, wait_for_pending, search, NULL};
static step *const classic_full_pool_rungs[] = {wait_for_pending, search, NULL};

/* What neither waits nor asks users is tried before other processes are asked. */
static step *const early_rungs[] = {steal, borrow, NULL};
static step *const classic_early_rungs[] = {borrow, NULL};

static step *const *choose_rungs(const struct xseg_arena *arena,
                                 const struct xseg_alloc_params *params)
{
    const bool is_paged = params->expandable && xseg_device_makes_pages(arena->device);

    XSEG_ASSERT(params->is_guarded == arena->is_guarded);
    if (params->is_guarded)
        return guarded_rungs;
    if (xseg_pending_captures(arena->device->pending))
        return is_paged && !params->is_single ? capture_rungs : classic_capture_rungs;
    if (is_paged && params->is_single)
        return arena->pool->is_full ? single_full_pool_rungs : single_rungs;
    if (arena->pool->is_full)
        return is_paged ? full_pool_rungs : classic_full_pool_rungs;
    return is_paged ? expandable_rungs : classic_rungs;
}

/* Climb rungs until one serves the request, or fails for another reason than shortage. */
static xseg_status climb(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                         step *const *next, xseg_status refused, struct xseg_alloc_result *out)
{
    XSEG_ASSERT(is_shortage(refused));
    for (; *next != NULL; next++) {
        XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && out->base == 0);
        const xseg_status status = (*next)(arena, params, out);

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
static bool is_rejected(const struct xseg_device *device, const struct xseg_alloc_params *params)
{
    if (device->refuser == XSEG_OOM_CAUSE_REJECTION)
        return true;
    return params->config->throw_on_cudamalloc_oom &&
           xseg_device_limits_fraction(&device->limits) >= 1.0 &&
           device->refuser == XSEG_OOM_CAUSE_DEVICE;
}

/* Search, collect garbage, grow: as PyTorch does while memory lasts. */
static xseg_status serve(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                         struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;

    if (atomic_load_explicit(&device->asks_late, memory_order_relaxed) &&
        xseg_pending_count(device->pending) != 0 && !xseg_pending_captures(device->pending))
        xseg_pending_poll(device->pending);
    xseg_pending_unmap_poll(device, false);
    /* Another thread may have freed or mapped a fitting block while this one waited for the lock. */
    const xseg_status status = search(arena, params, out);

    if (status != XSEG_OK || out->base != 0)
        return status;
    if (__builtin_expect(params->collects_garbage, 0))
        xseg_trim_garbage(device, params->config);
    return xseg_growth_run(arena, params, out);
}

/*
 * Ask the observers to spare memory; returns whether one has.  The device memory lock is given meanwhile, so everything may be
 * different afterwards.
 */
static bool ask(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                xseg_status refused, unsigned attempt) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                attempt < XSEG_LOW_MEMORY_CALLS_MAX);
    xseg_mutex_unlock(&arena->device->growth_lock);
    const bool spared = xseg_oom_notify(arena, params, refused, XSEG_OBSERVERS_LOW_MEMORY, attempt);
    xseg_mutex_lock(&arena->device->growth_lock);
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
static uint64_t bytes_to_ask(const struct xseg_arena *arena, const struct xseg_alloc_params *params)
{
    const bool has_pages = !arena->is_small &&
                           params->config->page_sizes != XSEG_CONFIG_PAGES_SMALL &&
                           !params->is_single;
    const uint64_t page = has_pages ? params->config->large_segment_bytes : XSEG_SIZE_SMALL_SEGMENT;
    const uint64_t bytes = xseg_round_up(params->bytes, XSEG_SIZE_SMALL_SEGMENT);
    const uint64_t max = xseg_max(bytes, arena->device->context.total_bytes);

    return params->expandable ? xseg_min(bytes + page - XSEG_SIZE_SMALL_SEGMENT, max)
                              : params->segment_bytes;
}

/* The rungs that neither wait nor take from users, for requests that have some. */
static xseg_status climb_early(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               xseg_status refused, struct xseg_alloc_result *out)
{
    const bool is_paged = params->expandable && xseg_device_makes_pages(arena->device);

    if (params->is_guarded || params->is_single || xseg_pending_captures(arena->device->pending))
        return refused;
    return climb(arena, params, is_paged ? early_rungs : classic_early_rungs, refused, out);
}

/* Look for memory that has become free; with `grows`, for new memory as well, and for what both have together. */
static xseg_status try_again(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             xseg_status refused, bool grows, struct xseg_alloc_result *out)
{
    const xseg_status status =
        grows ? serve(arena, params, out) : take_finished(arena, params, out);

    if (out->base != 0 || (status != XSEG_OK && !is_shortage(status)))
        return status;
    return grows ? climb_early(arena, params, refused, out) : refused;
}

/*
 * Try what needs no wait; then ask other processes for memory that they leave idle, and try again until the time is over.
 * The device memory lock is let go meanwhile.
 */
static xseg_status ask_others(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              xseg_status refused, struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    struct xseg_budget_wait budget_wait;

    if (!xseg_budget_is_open(device) || !device_is_short(arena, refused))
        return refused;
    xseg_status status = climb_early(arena, params, refused, out);
    if (!is_shortage(status))
        return status;
    if (xseg_budget_wait_begin(&budget_wait, arena, bytes_to_ask(arena, params), params->config))
        while (is_shortage(status) && xseg_budget_wait_retry(&budget_wait))
            status = try_again(arena, params, status, budget_wait.grows, out);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/*
 * Overcome a shortage: take back pending blocks that have finished, ask other processes, ask the observers, then climb the
 * rungs; ask the observers and climb again while an observer spares memory and the request still fails.
 */
static xseg_status overcome(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            xseg_status refused, struct xseg_alloc_result *out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = XSEG_OK;
    bool spared = true;

    XSEG_ASSERT(is_shortage(refused));
    device->is_short = device->is_short || device_is_short(arena, refused);
    if (device->is_short && params->expandable && !arena->pool->is_full)
        atomic_store_explicit(&device->asks_late, true, memory_order_relaxed);
    if (!params->is_guarded && !xseg_pending_captures(device->pending))
        status = take_finished(arena, params, out);
    if (status != XSEG_OK || out->base != 0)
        return status;
    status = ask_others(arena, params, refused, out);
    for (unsigned attempt = 0; spared && attempt < XSEG_LOW_MEMORY_CALLS_MAX && is_shortage(status);
         attempt++) {
        spared = ask(arena, params, status, attempt);
        if (spared)
            status = serve(arena, params, out);
        if (is_shortage(status))
            status = climb(arena, params, choose_rungs(arena, params), status, out);
    }
    return status;
}

/*
 * Serve a request for which there are no addresses.  Segments that are one hole give theirs back first; else a
 * classic segment serves the request, which takes no more addresses than it needs.
 *
 * is_first: set to whether this is the first such classic segment of the device
 */
static xseg_status do_with_fewer_addresses(struct xseg_arena *arena,
                                           const struct xseg_alloc_params *params,
                                           struct xseg_alloc_result *out, bool *is_first)
{
    struct xseg_device *device = arena->device;
    struct xseg_alloc_params classic = *params;

    XSEG_ASSERT(params->expandable && out->base == 0);
    if (!xseg_pending_captures(device->pending)) {
        xseg_device_visit_arenas(device, xseg_trim_finish_unmapped_of, NULL);
        const xseg_status status = xseg_growth_run(arena, params, out);

        if (status != XSEG_ERR_NO_ADDRESSES)
            return status;
    }
    if (params->is_guarded)
        return XSEG_ERR_NO_ADDRESSES;
    classic.expandable = false;
    const xseg_status status = xseg_growth_run(arena, &classic, out);
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
static xseg_status overcome_without_pages(struct xseg_arena *arena,
                                          const struct xseg_alloc_params *params,
                                          xseg_status refused, struct xseg_alloc_result *out,
                                          struct xseg_unpaged *request)
{
    xseg_status status = overcome(arena, params, refused, out);

    for (unsigned tried = 1; xseg_unpaged_is_failure(arena->device, params, status, request);
         tried++) {
        if (tried == XSEG_UNPAGED_TRIES) {
            xseg_unpaged_give_up(arena->device, request);
            return XSEG_OK;
        }
        status = overcome(arena, params, refused, out);
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
    if (!xseg_recorder_is_enabled(arena))
        return;
    xseg_arena_lock(arena);
    xseg_recorder_oom(arena, requested, free_bytes);
    xseg_arena_unlock(arena);
}

/* Whether a guarded block was wanted while the device still made pages. */
static bool is_late(const struct xseg_device *device, const struct xseg_alloc_params *params)
{
    return params->is_guarded && !xseg_device_makes_pages(device);
}

/* Search, collect garbage, grow; with classic segments where pages cannot be made or get no addresses. */
static xseg_status serve_somehow(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                 struct xseg_alloc_result *out, struct xseg_unpaged *request,
                                 bool *says)
{
    xseg_status status = serve(arena, params, out);

    if (status == XSEG_ERR_NO_ADDRESSES)
        status = do_with_fewer_addresses(arena, params, out, says);
    return status == XSEG_OK ? XSEG_OK
                             : xseg_unpaged_alloc_classic(arena, params, status, out, request);
}

xseg_status xseg_fallback_chain_alloc(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out, bool *rejected)
{
    struct xseg_device *device = arena->device;
    bool says = false;
    uint64_t free_bytes = 0;

    XSEG_ASSERT(out->base == 0 && params->bytes >= params->requested);
    *rejected = false;
    xseg_mutex_lock(&device->growth_lock);
    struct xseg_unpaged unpaged = xseg_unpaged_begin(device);
    if (is_late(device, params)) {
        xseg_mutex_unlock(&device->growth_lock);
        return XSEG_OK;
    }
    xseg_status status = serve_somehow(arena, params, out, &unpaged, &says);
    if (is_shortage(status)) {
        *rejected = is_rejected(device, params);
        if (!*rejected) {
            XSEG_SPAN_BEGIN(fallback, device->context.ordinal, params->bytes);
            status = overcome_without_pages(arena, params, status, out, &unpaged);
            XSEG_SPAN_END(fallback, device->context.ordinal, status);
        }
    }
    if (is_shortage(status)) {
        atomic_fetch_add_explicit(*rejected ? &device->rejections : &device->ooms, 1,
                                  memory_order_relaxed);
        status = xseg_oom_fail(arena, params, status, *rejected, &free_bytes);
        if (!*rejected)
            note_oom(arena, params->requested, free_bytes);
    }
    xseg_mutex_unlock(&device->growth_lock);
    if (says)
        say_addresses_are_short(device);
    xseg_unpaged_log(device, &unpaged);
    return status;
}
