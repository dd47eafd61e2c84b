/* SPDX-License-Identifier: MIT */
#include "src/core/grow/fallback_chain.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/block/arena.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/remap.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"
#include "vmm/context.h"

/* A request in the chain. */
struct fallback {
    struct xseg_device *device;
    struct xseg_arena *arena;
    const struct xseg_alloc_params *params;
    struct xseg_alloc_result *out;
    xseg_status denied;     /* the last status that means memory pressure */
    uint64_t generation;    /* xseg_arena_generation() before the last search */
    unsigned situation;     /* enum situation */
    unsigned notifications; /* number of calls of the observers */
    bool was_freed;         /* an observer has freed memory, so the chain may run again */
    /* Whether to log that the device uses classic segments, because it is out of virtual addresses. */
    bool lacks_virtual_addresses;
    unsigned page_failures; /* context.page_failures when it was last read */
    char page_error[512];   /* why this request has disabled pages; empty: it has not */
};

static bool is_paged(const struct fallback *fallback)
{
    return fallback->params->expandable && xseg_device_makes_pages(fallback->device);
}

/* --- Search and growth. --- */

static xseg_status search_arena(struct fallback *fallback)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && fallback->out->base == 0);
    XSEG_ASSERT(!fallback->params->counts_search);
    fallback->generation = xseg_arena_generation(fallback->arena);
    return fallback->params->is_guarded
               ? XSEG_OK
               : xseg_arena_alloc(fallback->arena, fallback->params, fallback->out);
}

/* Search again, unless no memory of the arena has become cached since the last search. */
static xseg_status search_if_freed(struct fallback *fallback)
{
    return xseg_arena_generation(fallback->arena) == fallback->generation ? XSEG_OK
                                                                          : search_arena(fallback);
}

/* Search, collect garbage and grow, as PyTorch does without memory pressure. */
static xseg_status search_and_grow(struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;

    if (atomic_load_explicit(&device->polls_on_miss, memory_order_relaxed) &&
        xseg_pending_count(device->pending) != 0 && !xseg_pending_captures(device->pending))
        xseg_pending_poll(device->pending);
    if (!xseg_list_is_empty(&device->pending_unmaps->batches))
        xseg_pending_unmap_poll(device, false);
    /* Another thread may have freed or mapped a block that fits before this thread acquired the lock. */
    const xseg_status status = search_arena(fallback);

    if (status != XSEG_OK || fallback->out->base != 0)
        return status;
    if (__builtin_expect(fallback->params->collects_garbage, 0))
        xseg_trim_garbage(device, fallback->params->config);
    return xseg_growth_run(fallback->arena, fallback->params, fallback->out);
}

/* --- Steps. --- */

static xseg_status free_completed_blocks(struct fallback *fallback)
{
    xseg_pending_poll(fallback->device->pending);
    xseg_pending_unmap_poll(fallback->device, false);
    return search_if_freed(fallback);
}

/* Grow with small pages in the candidate range that needs the fewest: with new pages as far as limits allow, else with idle
 * pages of other segments. */
static xseg_status map_small_pages(struct fallback *fallback, bool waits)
{
    struct xseg_arena *arena = fallback->arena;
    struct xseg_device *device = fallback->device;
    const struct xseg_alloc_params *params = fallback->params;
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
        .wait = waits,
        .arena = arena,
    };
    status = xseg_growth_check_pool(arena->pool, candidate.missing);
    if (status == XSEG_OK)
        status = xseg_remap_pages(device, &plan);
    status = xseg_growth_finish(arena, params, &candidate, status, fallback->out);
    xseg_page_cache_shrink_unprepared(&device->page_cache, params->config->page_cache_bytes);
    return status;
}

static xseg_status remap_pages(struct fallback *fallback, bool waits)
{
    const int device = fallback->device->context.ordinal;

    XSEG_SPAN_BEGIN(growth, device, fallback->params->bytes);
    const xseg_status status = map_small_pages(fallback, waits);
    XSEG_SPAN_END(growth, device, status);
    return status;
}

static xseg_status remap_idle_pages(struct fallback *fallback)
{
    return remap_pages(fallback, false);
}

static xseg_status remap_after_waiting(struct fallback *fallback)
{
    return remap_pages(fallback, true);
}

/* Allocate a cached block of a private pool that serves the default pool under memory pressure (use_on_oom). */
static xseg_status allocate_from_fallback_pools(struct fallback *fallback)
{
    struct xseg_arena *arena = fallback->arena;
    struct xseg_alloc_params params = *fallback->params;
    struct xseg_pool *pool = NULL;
    xseg_status status = XSEG_OK;

    if (arena->pool->is_private || params.is_prewarm)
        return XSEG_OK;
    while (status == XSEG_OK && fallback->out->base == 0 &&
           (pool = xseg_pools_next(arena->device, pool)) != NULL) {
        struct xseg_arena *fallback_arena =
            xseg_pool_allows_fallback(pool)
                ? xseg_pool_find_arena(pool, xseg_arena_stream(arena), arena->is_small)
                : NULL;

        XSEG_ASSERT(fallback_arena != arena);
        /* A cached block of a single_page pool must not be split. */
        params.no_split =
            atomic_load_explicit(&pool->no_split, memory_order_relaxed) ||
            (atomic_load_explicit(&pool->is_single, memory_order_relaxed) && !arena->is_small);
        params.is_fallback = true;
        if (fallback_arena != NULL)
            status = xseg_arena_alloc(fallback_arena, &params, fallback->out);
    }
    if (pool != NULL)
        xseg_pool_end_visit(pool);
    return status;
}

static xseg_status wait_for_pending_blocks(struct fallback *fallback)
{
    struct xseg_pending *pending = fallback->device->pending;

    /* A capture may have begun while an earlier step had released the device memory lock. */
    if (xseg_pending_count(pending) == 0 || xseg_pending_captures(pending))
        return XSEG_OK;
    const xseg_status status = xseg_pending_wait(pending);
    /* After another error a stream was not synchronized, but blocks of other streams may have been freed. */
    if (status == XSEG_ERR_DEVICE_LOST)
        return status;
    return search_if_freed(fallback);
}

/* Release classic segments of max_split_size_mb or more of the arena: the smallest segment that is large enough, else the
 * largest segments until their sum is large enough (PyTorch's rule).  Then grow. */
static xseg_status release_oversize_segments(struct fallback *fallback)
{
    const struct xseg_alloc_params *params = fallback->params;
    const uint64_t min = params->config->max_split_bytes;

    XSEG_ASSERT(!is_paged(fallback));
    if (min == UINT64_MAX ||
        !xseg_trim_oversize(fallback->arena, min, xseg_max(params->bytes, min)))
        return XSEG_OK;
    return xseg_growth_run(fallback->arena, fallback->params, fallback->out);
}

/* Release the idle memory of the pool on the stream of a request for a single page, and grow.  Idle pages of other sizes cannot
 * serve the request. */
static xseg_status release_pool_memory(struct fallback *fallback)
{
    struct xseg_arena *arena = fallback->arena;
    const struct xseg_trim_plan plan = {
        .stream = xseg_arena_stream(arena), .pool = arena->pool, .wait = true};
    struct xseg_trim_result result = {sizeof(result)};
    const xseg_status status = xseg_trim_device(fallback->device, &plan, &result);

    XSEG_ASSERT(fallback->params->is_single);
    if (status == XSEG_ERR_DEVICE_LOST || result.released == 0)
        return status == XSEG_ERR_DEVICE_LOST ? status : XSEG_OK;
    return xseg_growth_run(fallback->arena, fallback->params, fallback->out);
}

/* Release all idle memory to the driver, and grow. */
static xseg_status release_all_memory(struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;
    xseg_status status = xseg_trim_all(device, true);

    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->retries, 1, memory_order_relaxed);
    status = xseg_growth_run(fallback->arena, fallback->params, fallback->out);
    if (status == XSEG_ERR_NO_ADDRESSES) {
        XSEG_DEVICE_FOR_ARENAS(arena, device)
        {
            (void)xseg_reclaim_destroy_all_unmapped(arena);
        }
        status = xseg_growth_run(fallback->arena, fallback->params, fallback->out);
    }
    return status;
}

static xseg_status wait_for_other_processes(struct fallback *fallback);
static xseg_status notify_observers(struct fallback *fallback);

/* --- The chain. --- */

/* Kinds of requests. */
enum kind {
    KIND_PAGED,  /* from an expandable segment */
    KIND_SINGLE, /* a single page: idle pages of other sizes must be released to the driver first */
    KIND_CLASSIC, /* from a classic segment */
    KIND_GUARDED, /* a guarded block, which has its own segment, so no cached memory can serve it */
    KINDS
};

/* The situation of a request; exactly one applies. */
enum situation {
    NORMAL = 1,   /* none of the following */
    CAPTURE = 2,  /* a capture is active: no step waits or unmaps memory */
    AT_LIMIT = 4, /* the pool is at its own limit: memory of other pools does not help */
    EARLY = 8 /* before other processes are notified: no step waits, and observers are not called */
};

#define ALWAYS (NORMAL | CAPTURE | AT_LIMIT)

/* A step that serves the request returns XSEG_OK and a block in out->base; otherwise the next step runs.  An error other than
 * memory pressure ends the chain. */
struct step {
    const char *name;
    xseg_status (*run)(struct fallback *fallback);
    unsigned situations[KINDS]; /* in which the step runs */
};

static const struct step steps[] = {
    {"completed events",
     free_completed_blocks,
     {NORMAL | AT_LIMIT, NORMAL | AT_LIMIT, NORMAL | AT_LIMIT, 0}},
    {"other processes", wait_for_other_processes, {ALWAYS, ALWAYS, ALWAYS, ALWAYS}},
    {"observers", notify_observers, {ALWAYS, ALWAYS, ALWAYS, ALWAYS}},
    /* During a capture the remap only maps new small pages. */
    {"remap", remap_idle_pages, {ALWAYS | EARLY, 0, 0, 0}},
    {"remap, waiting", remap_after_waiting, {NORMAL, 0, 0, 0}},
    {"fallback pools",
     allocate_from_fallback_pools,
     {NORMAL | CAPTURE | EARLY, NORMAL | CAPTURE, NORMAL | CAPTURE | EARLY, 0}},
    {"oversize", release_oversize_segments, {0, 0, NORMAL, 0}},
    {"pending blocks",
     wait_for_pending_blocks,
     {NORMAL | AT_LIMIT, NORMAL | AT_LIMIT, AT_LIMIT, 0}},
    {"pool", release_pool_memory, {0, NORMAL | AT_LIMIT, 0, 0}},
    {"remap, waiting", remap_after_waiting, {NORMAL, 0, 0, 0}},
    {"release all", release_all_memory, {NORMAL, NORMAL, NORMAL, NORMAL}},
    {"remap", remap_idle_pages, {NORMAL, 0, 0, 0}},
    {"search", search_if_freed, {NORMAL | AT_LIMIT, NORMAL, NORMAL | AT_LIMIT, 0}},
};

/* Get the index of the step that notifies observers, at which a repetition of the chain begins. */
static size_t index_of_observer_step(void)
{
    size_t i = 0;

    while (steps[i].run != notify_observers)
        i++;
    return i;
}

static enum kind kind_of_request(const struct fallback *fallback)
{
    XSEG_ASSERT(fallback->params->is_guarded == fallback->arena->is_guarded);
    if (fallback->params->is_guarded)
        return KIND_GUARDED;
    if (!is_paged(fallback))
        return KIND_CLASSIC;
    return fallback->params->is_single ? KIND_SINGLE : KIND_PAGED;
}

static enum situation current_situation(const struct fallback *fallback)
{
    if (fallback->params->is_guarded)
        return NORMAL;
    if (xseg_pending_captures(fallback->device->pending))
        return CAPTURE;
    return fallback->arena->pool->is_at_limit ? AT_LIMIT : NORMAL;
}

/* Run a step, if it applies.  Returns whether the chain ends. */
static bool run_step(struct fallback *fallback, const struct step *step, unsigned situation,
                     xseg_status *status)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && fallback->out->base == 0);
    XSEG_ASSERT(xseg_oom_cause_is_memory_pressure(fallback->denied));
    if ((step->situations[kind_of_request(fallback)] & situation) == 0)
        return false;
    *status = step->run(fallback);
    if (fallback->out->base != 0 ||
        (*status != XSEG_OK && !xseg_oom_cause_is_memory_pressure(*status)))
        return true;
    if (*status != XSEG_OK)
        fallback->denied = *status;
    return false;
}

/* Run the steps that neither wait nor call observers.  Returns fallback->denied if none serves the request. */
static xseg_status run_early_steps(struct fallback *fallback)
{
    xseg_status status = XSEG_OK;

    if (fallback->params->is_single || current_situation(fallback) == CAPTURE)
        return fallback->denied;
    for (size_t i = index_of_observer_step(); i < XSEG_COUNT_OF(steps); i++)
        if (run_step(fallback, &steps[i], EARLY, &status))
            return status;
    return fallback->denied;
}

/* Whether the device is out of memory, or a limit of the process is reached.  False if only the pool is at its own limit, or if
 * the memory function of the pool has no memory. */
static bool has_device_pressure(const struct fallback *fallback, xseg_status denied)
{
    const struct xseg_pool *pool = fallback->arena->pool;

    if (pool->has_own_memory)
        return false;
    return denied == XSEG_ERR_NO_MEMORY || (denied == XSEG_ERR_LIMIT && !pool->is_at_limit);
}

/* Run the chain.  denied: status of the growth that failed */
static xseg_status run_chain(struct fallback *fallback, xseg_status denied)
{
    struct xseg_device *device = fallback->device;
    xseg_status status = XSEG_OK;
    size_t next = 0;

    device->is_memory_low = device->is_memory_low || has_device_pressure(fallback, denied);
    if (device->is_memory_low && fallback->params->expandable &&
        !fallback->arena->pool->is_at_limit)
        atomic_store_explicit(&device->polls_on_miss, true, memory_order_relaxed);
    fallback->denied = denied;
    fallback->situation = current_situation(fallback);
    fallback->notifications = 0;
    while (next < XSEG_COUNT_OF(steps)) {
        if (run_step(fallback, &steps[next], fallback->situation, &status))
            return status;
        next++;
        if (next == XSEG_COUNT_OF(steps) && fallback->was_freed &&
            fallback->notifications < XSEG_LOW_MEMORY_CALLS_MAX)
            next = index_of_observer_step();
    }
    return fallback->denied;
}

/* --- Steps that release the device memory lock. --- */

/* Call the observers for low memory; if one has freed memory, search and grow.  All state of the device may have changed
 * afterwards. */
static xseg_status notify_observers(struct fallback *fallback) XSEG_UNCHECKED
{
    struct xseg_device *device = fallback->device;

    XSEG_ASSERT(fallback->notifications < XSEG_LOW_MEMORY_CALLS_MAX);
    xseg_mutex_unlock(&device->memory_lock);
    fallback->was_freed = xseg_oom_notify(fallback->arena, fallback->params, fallback->denied,
                                          XSEG_OBSERVER_LOW_MEMORY, fallback->notifications++);
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = fallback->was_freed ? search_and_grow(fallback) : XSEG_OK;
    fallback->situation = current_situation(fallback);
    return status;
}

/* Get an upper bound of the bytes that must be free on the device for a request.  A growth can begin at any small page, and
 * ends at the end of a full page. */
static uint64_t bytes_to_request(const struct fallback *fallback)
{
    const struct xseg_alloc_params *params = fallback->params;
    const bool has_pages = !params->is_small &&
                           params->config->page_sizes != XSEG_CONFIG_PAGES_SMALL &&
                           !params->is_single;
    const uint64_t page_bytes =
        has_pages ? params->config->large_segment_bytes : XSEG_SIZE_SMALL_SEGMENT;
    const uint64_t bytes = xseg_round_up(params->bytes, XSEG_SIZE_SMALL_SEGMENT);
    const uint64_t max = xseg_max(bytes, fallback->device->context.total_bytes);

    return params->expandable ? xseg_min(bytes + page_bytes - XSEG_SIZE_SMALL_SEGMENT, max)
                              : params->segment_bytes;
}

/* Serve the request from memory that was freed; if `grows` is set, also by a growth and the early steps. */
static xseg_status retry_without_waiting(struct fallback *fallback, bool grows)
{
    const xseg_status status = grows ? search_and_grow(fallback) : free_completed_blocks(fallback);

    if (fallback->out->base != 0 ||
        (status != XSEG_OK && !xseg_oom_cause_is_memory_pressure(status)))
        return status;
    return grows ? run_early_steps(fallback) : fallback->denied;
}

/* Run the early steps.  Then request idle memory of other processes, and retry until the time has elapsed.  The device memory
 * lock is released between the retries. */
static xseg_status wait_for_other_processes(struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;
    struct xseg_budget_wait budget_wait;

    if (!xseg_budget_is_open(device) || !has_device_pressure(fallback, fallback->denied))
        return fallback->denied;
    xseg_status status = run_early_steps(fallback);
    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    if (xseg_budget_wait_begin(&budget_wait, fallback->arena, bytes_to_request(fallback),
                               fallback->params->config))
        while (xseg_oom_cause_is_memory_pressure(status) && xseg_budget_wait_retry(&budget_wait))
            status = retry_without_waiting(fallback, budget_wait.grows);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/* --- Devices without addresses or without pages. --- */

/*
 * Serve a request after the driver was out of addresses.  First, segments without mapped memory release their addresses.  If
 * that does not suffice, a classic segment serves the request; it uses no more addresses than its size.
 */
static xseg_status grow_with_fewer_addresses(struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;
    struct xseg_alloc_params classic = *fallback->params;

    XSEG_ASSERT(classic.expandable && fallback->out->base == 0);
    if (!xseg_pending_captures(device->pending)) {
        XSEG_DEVICE_FOR_ARENAS(arena, device)
        {
            (void)xseg_reclaim_destroy_all_unmapped(arena);
        }
        const xseg_status status =
            xseg_growth_run(fallback->arena, fallback->params, fallback->out);

        if (status != XSEG_ERR_NO_ADDRESSES)
            return status;
    }
    if (classic.is_guarded)
        return XSEG_ERR_NO_ADDRESSES;
    classic.expandable = false;
    const xseg_status status = xseg_growth_run(fallback->arena, &classic, fallback->out);
    if (status != XSEG_OK)
        return xseg_oom_cause_is_memory_pressure(status) ? XSEG_ERR_NO_ADDRESSES : status;
    fallback->lacks_virtual_addresses = !device->lacks_virtual_addresses;
    device->lacks_virtual_addresses = true;
    return XSEG_OK;
}

/* Whether a growth failed because pages could not be created or mapped, for a reason other than memory pressure. */
static bool is_page_failure(struct fallback *fallback, xseg_status status)
{
    const unsigned previous = fallback->page_failures;

    fallback->page_failures =
        atomic_load_explicit(&fallback->device->context.page_failures, memory_order_relaxed);
    /* An unsupported page size or property fails with XSEG_ERR_UNSUPPORTED, in some cases without a driver call. */
    return is_paged(fallback) &&
           (status == XSEG_ERR_UNSUPPORTED ||
            (status == XSEG_ERR_DRIVER && fallback->page_failures != previous));
}

/* Whether the driver, and no limit, has reported memory pressure that the memory of this process does not explain.  No driver
 * call is necessary for this comparison. */
static bool is_pressure_doubtful(const struct fallback *fallback, xseg_status status)
{
    const struct xseg_device *device = fallback->device;
    const uint64_t ample =
        xseg_context_ample_bytes(&device->context, fallback->params->segment_bytes);
    const uint64_t physical = xseg_device_physical(device);

    return is_paged(fallback) && status == XSEG_ERR_NO_MEMORY &&
           device->oom_cause == XSEG_OOM_CAUSE_DRIVER && physical <= device->context.total_bytes &&
           ample <= device->context.total_bytes - physical;
}

/* Repeat a growth, to determine whether a failure persists.  Returns the last status. */
static xseg_status repeat_growth(struct fallback *fallback, bool is_doubtful, bool *persists)
{
    xseg_status status = XSEG_OK;

    *persists = true;
    for (unsigned attempt = 1; *persists && attempt < XSEG_FALLBACK_ATTEMPTS; attempt++) {
        status = xseg_growth_run(fallback->arena, fallback->params, fallback->out);
        *persists = is_doubtful ? status == XSEG_ERR_NO_MEMORY : is_page_failure(fallback, status);
    }
    return status;
}

/* Grow with a classic segment, as if pages were disabled on the device.  A guarded request is served from the default pool. */
static xseg_status grow_without_pages(struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;
    struct xseg_arena *arena = fallback->arena;
    struct xseg_alloc_params params = *fallback->params;

    XSEG_ASSERT(params.is_guarded == arena->is_guarded);
    if (params.is_guarded)
        arena = xseg_pool_find_arena(&device->pool, xseg_arena_stream(arena), params.is_small);
    if (arena == NULL)
        return XSEG_ERR_UNSUPPORTED;
    params.is_guarded = params.at_end = false;
    atomic_store_explicit(&device->is_unpaged, true, memory_order_relaxed);
    const xseg_status status = xseg_growth_run(arena, &params, fallback->out);
    atomic_store_explicit(&device->is_unpaged, false, memory_order_relaxed);
    return status;
}

/* Disable pages on the device because of the last failure. */
static void disable_pages(struct fallback *fallback)
{
    XSEG_ASSERT(xseg_device_makes_pages(fallback->device));
    (void)snprintf(fallback->page_error, sizeof(fallback->page_error), "%s", xseg_fail_detail());
    atomic_store_explicit(&fallback->device->is_unpaged, true, memory_order_relaxed);
}

/* Determine whether a growth failed because the device cannot create or map pages.  Returns the status of the request, or
 * XSEG_OK if a classic segment serves the request or the request must start again without pages. */
static xseg_status check_page_support(struct fallback *fallback, xseg_status status)
{
    struct xseg_device *device = fallback->device;
    struct xseg_fail_saved saved;
    uint64_t free = 0;
    bool persists = false;

    XSEG_ASSERT(fallback->out->base == 0);
    const bool is_doubtful =
        is_pressure_doubtful(fallback, status) &&
        xseg_context_has_ample_memory(&device->context, fallback->params->segment_bytes, &free);
    if (!is_doubtful && !is_page_failure(fallback, status))
        return status;
    status = repeat_growth(fallback, is_doubtful, &persists);
    if (!persists)
        return status;
    if (is_doubtful)
        xseg_fail_append(" with %" PRIu64 " MiB free", free >> 20);
    xseg_fail_save(&saved);
    const xseg_status classic = grow_without_pages(fallback);
    xseg_fail_restore(&saved);
    if (classic == XSEG_OK || (!is_doubtful && xseg_oom_cause_is_memory_pressure(classic))) {
        disable_pages(fallback);
        return XSEG_OK;
    }
    return status;
}

/* Run the chain.  If a step fails because pages cannot be created or mapped, repeat the chain.  After
 * XSEG_FALLBACK_ATTEMPTS such failures, disable pages, so that the request starts again without pages. */
static xseg_status run_chain_and_check_pages(struct fallback *fallback, xseg_status denied)
{
    xseg_status status = run_chain(fallback, denied);

    for (unsigned attempt = 1; is_page_failure(fallback, status); attempt++) {
        if (attempt == XSEG_FALLBACK_ATTEMPTS) {
            disable_pages(fallback);
            return XSEG_OK;
        }
        status = run_chain(fallback, denied);
    }
    return status;
}

/* Log that the request was the first one without virtual addresses, or has disabled pages.  No lock is held. */
static void log_disabled_features(const struct fallback *fallback)
{
    struct xseg_device *device = fallback->device;
    const struct xseg_config *config = xseg_allocator_config(device->allocator);
    struct xseg_log *log = &device->allocator->log;

    if (fallback->lacks_virtual_addresses)
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "device %d: out of virtual addresses for expandable segments, %" PRIu64
                      " bytes reserved; further memory is allocated in classic segments",
                      device->context.ordinal,
                      atomic_load_explicit(&device->addresses, memory_order_relaxed));
    if (fallback->page_error[0] != '\0')
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "device %d: expandable segments have been disabled, %s; new segments are classic "
            "segments%s, set expandable_segments:False to disable expandable segments from "
            "the start",
            device->context.ordinal, fallback->page_error,
            config->unmap_on_free || config->guard_page ? " without unmap_on_free and guard_page"
                                                        : "");
}

/* --- The call. --- */

/* Whether a request is rejected immediately, by PyTorch's rule: with throw_on_cudamalloc_oom, if rejection_fraction is
 * exceeded, or if the device has too little memory and no memory fraction is set. */
static bool is_rejected(const struct xseg_device *device, const struct xseg_alloc_params *params)
{
    if (device->oom_cause == XSEG_OOM_CAUSE_REJECTION)
        return true;
    return params->config->throw_on_cudamalloc_oom &&
           atomic_load_explicit(&device->limits.fraction, memory_order_relaxed) >= 1.0 &&
           device->oom_cause == XSEG_OOM_CAUSE_DEVICE;
}

static __attribute__((noinline)) xseg_status
handle_growth_failure(struct fallback *fallback, xseg_status status, bool *rejected)
{
    struct xseg_device *device = fallback->device;
    const struct xseg_alloc_params *params = fallback->params;

    if (status == XSEG_ERR_NO_ADDRESSES)
        status = grow_with_fewer_addresses(fallback);
    if (status != XSEG_OK)
        status = check_page_support(fallback, status);
    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    *rejected = is_rejected(device, params);
    if (!*rejected) {
        XSEG_SPAN_BEGIN(fallback, device->context.ordinal, params->bytes);
        status = run_chain_and_check_pages(fallback, status);
        XSEG_SPAN_END(fallback, device->context.ordinal, status);
    }
    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    atomic_fetch_add_explicit(*rejected ? &device->rejections : &device->ooms, 1,
                              memory_order_relaxed);
    return xseg_oom_fail(fallback->arena, params, status, *rejected);
}

xseg_status xseg_fallback_chain_alloc(const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out, bool *rejected)
{
    struct xseg_device *device = params->arena->device;
    struct fallback fallback;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(out->base == 0 && params->bytes >= params->requested);
    *rejected = false;
    fallback.device = device;
    fallback.arena = params->arena;
    fallback.params = params;
    fallback.out = out;
    fallback.was_freed = fallback.lacks_virtual_addresses = false;
    fallback.page_error[0] = '\0';
    xseg_mutex_lock(&device->memory_lock);
    fallback.page_failures =
        atomic_load_explicit(&device->context.page_failures, memory_order_relaxed);
    /* If pages were disabled, a guarded request starts again as a request that is not guarded. */
    if (!params->is_guarded || xseg_device_makes_pages(device)) {
        status = search_and_grow(&fallback);
        if (__builtin_expect(status != XSEG_OK, 0))
            status = handle_growth_failure(&fallback, status, rejected);
    }
    xseg_mutex_unlock(&device->memory_lock);
    if (__builtin_expect(fallback.lacks_virtual_addresses || fallback.page_error[0] != '\0', 0))
        log_disabled_features(&fallback);
    return status;
}
