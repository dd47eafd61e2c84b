/* SPDX-License-Identifier: MIT */
/*
 * Commit: map pages in granules of a range; prepared pages and quotas.
 *
 *     1. Claim the granules.
 *     2. Get pages for those that are empty, and map them.
 *     3. Make the stream wait for the streams on which the other granules are pending unmap.
 *     4. Settle: all granules become allocated, or all of them return to their previous state.
 *
 * Pages come from the range's prepared pages, the page cache and the driver, in this order.  Under
 * memory pressure the commit runs the table `steps`, which has the steps of the out-of-memory
 * fallback chain and the situations in which each of them runs.  A step frees or obtains memory and
 * then tries again to map the pages.  If an observer frees memory and the commit still fails, the
 * chain runs again from the observers on, up to XSEG_LOW_MEMORY_CALLS_MAX times.
 *
 * Locking: the device memory lock.  It is released while observers run and while the commit waits
 * for other processes.  `committing` of the extent has the bytes that the commit is about to map.
 * These bytes are not part of the unused quota, so that a check of the limits does not count them
 * twice.
 */
#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/remap.h"
#include "src/core/pending/pending.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"
#include "vmm/alias.h"

struct commit {
    struct xseg_device *device;
    struct xseg_range_run run;
    struct xseg_arena *arena;
    struct xseg_known_stream *stream;
    const struct xseg_config *config;
    struct xseg_alloc_params params; /* for observers and the out-of-memory report */
    uint64_t missing;                /* bytes of granules that need pages */
    bool is_at_limit;                /* the range or its pool is at its own limit */
    xseg_status denied;              /* status of the last attempt to map the pages */
    unsigned notifications;          /* number of calls of observers */
    bool was_freed; /* an observer has freed memory, so that the chain may run again */
};

/* --- Claiming. --- */

static xseg_status check_committable(const struct xseg_range_run *run)
{
    const uint8_t *use = run->extent->elastic->use;

    for (uint32_t granule = run->first; granule < run->first + run->count; granule++)
        if (use[granule] != XSEG_ELASTIC_EMPTY && use[granule] != XSEG_ELASTIC_UNMAPPING)
            return xseg_range_fail_use(
                run, granule, "only unmapped granules and granules pending unmap can be committed");
    return XSEG_OK;
}

/* Find the next granules of a run, from `start` on, that are all pending unmap or all empty.  A
 * claimed granule that was pending unmap keeps its batch, so the batch ID distinguishes the two. */
static struct xseg_range_run next_subrun(const struct xseg_range_run *run, uint32_t start,
                                         bool is_pending)
{
    const uint32_t *batch = run->extent->elastic->batch;
    const uint32_t end = run->first + run->count;
    struct xseg_range_run subrun = {run->state, run->extent, start, 0};

    while (subrun.first < end && (batch[subrun.first] != 0) != is_pending)
        subrun.first++;
    while (subrun.first + subrun.count < end &&
           (batch[subrun.first + subrun.count] != 0) == is_pending)
        subrun.count++;
    return subrun;
}

#define FOR_SUBRUNS(subrun, run, is_pending)                                            \
    for (struct xseg_range_run subrun = next_subrun((run), (run)->first, (is_pending)); \
         (subrun).count != 0;                                                           \
         (subrun) = next_subrun((run), (subrun).first + (subrun).count, (is_pending)))

/* Return claimed granules to their previous state. */
static void unclaim_granules(const struct commit *commit)
{
    FOR_SUBRUNS(empty, &commit->run, false)
    {
        xseg_elastic_set_use(empty.extent, empty.first, empty.count, XSEG_ELASTIC_EMPTY);
    }
    FOR_SUBRUNS(subrun, &commit->run, true)
    {
        xseg_pending_unmap_resume(subrun.extent, subrun.first, subrun.count);
    }
}

/* --- Getting pages. --- */

static xseg_status check_limits(struct commit *commit)
{
    const struct xseg_range_state *state = commit->run.state;
    const uint64_t page_bytes = commit->run.extent->segment.page_bytes,
                   charged = state->elastic.charged;
    const struct xseg_page_filter filter = {.properties = commit->run.extent->segment.properties,
                                            .prepared_for = state};
    const uint64_t usable_bytes =
        xseg_page_cache_usable_bytes(&commit->device->page_cache, page_bytes, &filter);

    commit->is_at_limit = charged > state->limit || commit->missing > state->limit - charged;
    if (commit->is_at_limit)
        return xseg_fail(XSEG_ERR_LIMIT,
                         "limit_bytes of the range rejects the request, %" PRIu64
                         " bytes requested, limit %" PRIu64 " bytes; %" PRIu64
                         " bytes used by the range, %" PRIu64 " of them pending unmap",
                         commit->missing, state->limit, charged,
                         state->elastic.pending_unmaps * commit->run.extent->segment.granule_bytes);
    const xseg_status status = xseg_growth_check(commit->arena->pool, commit->missing,
                                                 xseg_min(commit->missing, usable_bytes));
    commit->is_at_limit = commit->arena->pool->is_at_limit;
    return status;
}

/* Roll back: unmap the granules before `end` that were empty. */
static void unmap_before(const struct commit *commit, uint32_t end)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    uint32_t unmapped = 0;

    FOR_SUBRUNS(subrun, &commit->run, false)
    {
        if (subrun.first >= end)
            return;
        (void)xseg_segment_unmap(segment, subrun.first, subrun.count, true, &unmapped);
        /* If the driver fails to unmap a page, the state of the page is unknown. */
        if (unmapped < subrun.count)
            xseg_segment_mark_unknown(segment, subrun.first + unmapped, subrun.count - unmapped);
    }
}

/* Map all empty granules, or none. */
static xseg_status map_empty(struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    const struct xseg_page_source source = {.prepared_for = commit->run.state};
    char reason[256];

    FOR_SUBRUNS(subrun, &commit->run, false)
    {
        const xseg_status status = xseg_segment_map(segment, subrun.first, subrun.count, &source);

        if (status == XSEG_OK)
            continue;
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        unmap_before(commit, subrun.first);
        return xseg_fail(status, "%s", reason);
    }
    return XSEG_OK;
}

/* Map the empty granules with prepared, cached or new pages, within the limits. */
static xseg_status map_pages(struct commit *commit)
{
    const xseg_status status = check_limits(commit);

    return status == XSEG_OK ? map_empty(commit) : status;
}

/* --- The out-of-memory fallback chain. --- */

static xseg_status reclaim_completed(struct commit *commit)
{
    xseg_pending_poll(commit->device->pending);
    xseg_pending_unmap_poll(commit->device, true);
    return map_pages(commit);
}

static xseg_status remap_pages(struct commit *commit, bool wait)
{
    const struct xseg_segment *segment = &commit->run.extent->segment;
    const struct xseg_remap_plan plan = {
        .filter = {.properties = segment->properties, .prepared_for = commit->run.state},
        .config = commit->config,
        .bytes = commit->missing,
        .granule_bytes = segment->page_bytes,
        .page_bytes = segment->page_bytes,
        .full_pages = commit->missing / segment->page_bytes,
        .wait = wait,
        .arena = commit->arena,
    };
    const xseg_status status = xseg_growth_check_pool(commit->arena->pool, commit->missing);

    if (status != XSEG_OK)
        return status;
    const xseg_status remapped = xseg_remap_pages(commit->device, &plan);
    return remapped == XSEG_OK ? map_empty(commit) : remapped;
}

static xseg_status remap_idle_pages(struct commit *commit)
{
    return remap_pages(commit, false);
}

static xseg_status remap_after_waiting(struct commit *commit)
{
    return remap_pages(commit, true);
}

static xseg_status wait_for_pending(struct commit *commit)
{
    xseg_status status = xseg_pending_captures(commit->device->pending)
                             ? XSEG_OK
                             : xseg_pending_wait(commit->device->pending);

    if (status != XSEG_ERR_DEVICE_LOST)
        status = xseg_pending_unmap_wait(commit->device, true);
    return status == XSEG_ERR_DEVICE_LOST ? status : map_pages(commit);
}

static xseg_status release_all_memory(struct commit *commit)
{
    const xseg_status status = xseg_trim_all(commit->device, true);

    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&commit->device->retries, 1, memory_order_relaxed);
    return map_pages(commit);
}

/* Request memory from other processes and retry until the timeout.  Idle pages are remapped first,
 * because that costs the other processes nothing. */
static xseg_status wait_for_other_processes(struct commit *commit)
{
    struct xseg_budget_wait budget_wait;

    if (!xseg_budget_is_open(commit->device))
        return commit->denied;
    xseg_status status = remap_idle_pages(commit);
    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    if (xseg_budget_wait_begin(&budget_wait, commit->arena, commit->missing, commit->config))
        while (xseg_oom_cause_is_memory_pressure(status) && xseg_budget_wait_retry(&budget_wait))
            if (budget_wait.grows)
                status = map_pages(commit);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/* Call on_low_memory of the observers, without the device memory lock. */
static xseg_status notify_observers(struct commit *commit) XSEG_UNCHECKED
{
    xseg_mutex_unlock(&commit->device->memory_lock);
    commit->was_freed = xseg_oom_notify(commit->arena, &commit->params, commit->denied,
                                        XSEG_OBSERVER_LOW_MEMORY, commit->notifications++);
    xseg_mutex_lock(&commit->device->memory_lock);
    return commit->was_freed ? map_pages(commit) : commit->denied;
}

/* Situations, one at a time.  AT_LIMIT: the range or its pool is at its own limit, so that memory
 * of other ranges and pools does not help. */
enum situation { NORMAL = 1, CAPTURE = 2, AT_LIMIT = 4, AT_LIMIT_CAPTURE = 8 };

/* A step returns the status of its attempt.  The chain ends with a status other than memory
 * pressure. */
struct step {
    const char *name;
    xseg_status (*run)(struct commit *commit);
    unsigned situations; /* in which the step runs */
};

static const struct step steps[] = {
    {"completed events", reclaim_completed, NORMAL | AT_LIMIT},
    {"other processes", wait_for_other_processes, NORMAL},
    {"observers", notify_observers, NORMAL | CAPTURE | AT_LIMIT | AT_LIMIT_CAPTURE},
    {"pending memory", wait_for_pending, AT_LIMIT},
    /* During a capture the remap only creates pages. */
    {"remap", remap_idle_pages, NORMAL | CAPTURE},
    {"remap, waiting", remap_after_waiting, NORMAL},
    {"pending memory", wait_for_pending, NORMAL},
    /* Includes the memory that the previous step has freed. */
    {"remap, waiting", remap_after_waiting, NORMAL},
    {"release all", release_all_memory, NORMAL},
};

/* Find the index of the step that notifies observers, from which the chain is repeated. */
static size_t find_observer_step(void)
{
    size_t index = 0;

    while (steps[index].run != notify_observers)
        index++;
    return index;
}

static enum situation get_situation(const struct commit *commit)
{
    const bool captures = xseg_pending_captures(commit->device->pending);

    if (commit->is_at_limit)
        return captures ? AT_LIMIT_CAPTURE : AT_LIMIT;
    return captures ? CAPTURE : NORMAL;
}

/* Run the chain.  denied: status of the attempt to map the pages that caused the run */
static xseg_status run_chain(struct commit *commit, xseg_status denied)
{
    commit->denied = denied;
    for (size_t next = 0;
         next < XSEG_COUNT_OF(steps) && xseg_oom_cause_is_memory_pressure(commit->denied);) {
        const enum situation situation = get_situation(commit);

        commit->device->is_memory_low = commit->device->is_memory_low || !commit->is_at_limit;
        if ((steps[next].situations & situation) != 0)
            commit->denied = steps[next].run(commit);
        next++;
        if (next == XSEG_COUNT_OF(steps) && commit->was_freed &&
            commit->notifications < XSEG_LOW_MEMORY_CALLS_MAX)
            next = find_observer_step();
    }
    return commit->denied;
}

/* Map all empty granules, or none, and shrink the page cache to page_cache_mb. */
static xseg_status get_pages(struct commit *commit)
{
    struct xseg_elastic *elastic = commit->run.extent->elastic;
    struct xseg_device *device = commit->device;

    xseg_elastic_set_bytes(elastic, elastic->charged, elastic->committing + commit->missing,
                           &device->unused_quota);
    xseg_status status = map_pages(commit);
    if (xseg_oom_cause_is_memory_pressure(status)) {
        XSEG_SPAN_BEGIN(fallback, device->context.ordinal, commit->missing);
        status = run_chain(commit, status);
        XSEG_SPAN_END(fallback, device->context.ordinal, status);
    }
    xseg_elastic_set_bytes(elastic, elastic->charged, elastic->committing - commit->missing,
                           &device->unused_quota);
    xseg_page_cache_shrink_unprepared(&device->page_cache, commit->config->page_cache_bytes);
    return status;
}

/* --- Settling. --- */

/* Make the stream of the commit wait for the streams on which granules are pending unmap. */
static xseg_status order_stream(const struct commit *commit)
{
    const uint32_t *batch = commit->run.extent->elastic->batch;
    uint32_t previous_batch = 0;

    FOR_SUBRUNS(subrun, &commit->run, true)
    {
        for (uint32_t granule = subrun.first; granule < subrun.first + subrun.count; granule++) {
            const xseg_status status =
                batch[granule] == previous_batch
                    ? XSEG_OK
                    : xseg_pending_unmap_order(subrun.extent, granule, commit->stream);

            if (status != XSEG_OK)
                return status;
            previous_batch = batch[granule];
        }
    }
    return XSEG_OK;
}

static void count_mapped(const struct commit *commit, const struct xseg_range_run *subrun)
{
    struct xseg_elastic *elastic = subrun->extent->elastic;
    struct xseg_arena *arena = commit->arena;
    const uint64_t bytes = xseg_range_bytes(subrun);

    xseg_biased_lock_lock(&arena->lock);
    xseg_elastic_set_bytes(elastic, elastic->charged + bytes, elastic->committing,
                           &commit->device->unused_quota);
    elastic->allocated += subrun->count;
    xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    xseg_counts_alloc_bytes(&arena->counts, bytes);
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_segment(subrun->extent, XSEG_HISTORY_SEGMENT_MAP, xseg_range_base(subrun),
                              bytes);
    xseg_biased_lock_unlock(&arena->lock);
    xseg_pool_record_growth(arena, bytes);
}

/* Make all granules allocated.  Observers are notified of new memory while it is still claimed.
 * The memory is counted before that, because the device memory lock is released while observers
 * run. */
static void settle_commit(const struct commit *commit)
{
    const struct xseg_range_run *run = &commit->run;

    FOR_SUBRUNS(subrun, run, false)
    {
        count_mapped(commit, &subrun);
    }
    if (xseg_notify_is_enabled(commit->device))
        FOR_SUBRUNS(subrun, run, false)
        {
            xseg_notify_map(subrun.extent, xseg_range_base(&subrun), xseg_range_bytes(&subrun));
        }
    /* FOR_SUBRUNS cannot be used, because a recommit clears the batch IDs. */
    for (uint32_t granule = run->first, end = run->first + run->count; granule < end;) {
        const struct xseg_range_run subrun = next_subrun(run, granule, true);

        if (subrun.count == 0)
            break;
        xseg_range_recommit_run(&subrun);
        granule = subrun.first + subrun.count;
    }
    xseg_elastic_set_use(run->extent, run->first, run->count, XSEG_ELASTIC_ALLOCATED);
}

/* --- Commit. --- */

static void set_alloc_params(struct commit *commit)
{
    commit->missing = 0;
    FOR_SUBRUNS(subrun, &commit->run, false)
    {
        commit->missing += xseg_range_bytes(&subrun);
    }
    commit->params = (struct xseg_alloc_params){
        .config = commit->config,
        .requested = xseg_range_bytes(&commit->run),
        .bytes = commit->missing,
        .alignment = XSEG_SIZE_UNIT,
        .span = commit->missing,
        .segment_bytes = commit->missing,
        .expandable = true,
        .is_single = true, /* no cached block is used */
        .no_split = true,
    };
}

/* Unmap granules in unknown state whose pages are aliased: the commit maps other pages there. */
static xseg_status unmap_unknown_aliases(const struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    const uint32_t first = commit->run.first, end = first + commit->run.count;
    xseg_status status = segment->alias_record == NULL
                             ? XSEG_OK
                             : xseg_segment_retry_unknown(segment, first, commit->run.count);

    for (uint32_t granule = first; status != XSEG_OK && granule < end; granule++)
        if (segment->state[granule] == XSEG_PAGE_UNKNOWN &&
            xseg_alias_record(segment, granule) != NULL)
            return status;
    return XSEG_OK;
}

static xseg_status commit_run(struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    xseg_status status = XSEG_OK;

    set_alloc_params(commit);
    xseg_elastic_set_use(commit->run.extent, commit->run.first, commit->run.count,
                         XSEG_ELASTIC_CLAIMED);
    if (commit->missing != 0) {
        xseg_pending_unmap_poll(commit->device, true);
        status = unmap_unknown_aliases(commit);
        if (status == XSEG_OK)
            status = get_pages(commit);
    }
    if (status == XSEG_OK) {
        status = order_stream(commit);
        if (status != XSEG_OK) {
            unmap_before(commit, segment->granules);
            xseg_page_cache_shrink_unprepared(&commit->device->page_cache,
                                              commit->config->page_cache_bytes);
        }
    }
    if (status == XSEG_OK)
        settle_commit(commit);
    else
        unclaim_granules(commit);
    return status;
}

/* Check the arguments of a commit, and set its run, arena and stream entry. */
static xseg_status begin_commit(struct commit *commit, struct xseg_range *range, uint64_t offset,
                                uint64_t bytes)
{
    xseg_status status = xseg_range_find_run(range, offset, bytes, &commit->run);

    if (status == XSEG_OK && xseg_context_is_lost(&commit->device->context))
        status = xseg_driver_fail_lost(&commit->device->context);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(commit->run.state->pool);
    if (status == XSEG_OK)
        status = check_committable(&commit->run);
    if (status == XSEG_OK && !xseg_range_add_stream(commit->run.state, commit->stream))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, streams of a range");
    if (status == XSEG_OK)
        commit->arena = commit->run.extent->arena;
    return status;
}

/* Find the first granule of a run, from `granule` on, that is pending unmap and whose page has
 * other mappings; the end of the run if there is none. */
static uint32_t next_aliased_pending(const struct xseg_range_run *run, uint32_t granule)
{
    const uint32_t *batch = run->extent->elastic->batch, end = run->first + run->count;

    while (granule < end &&
           (batch[granule] == 0 || !xseg_alias_exists(&run->extent->segment, granule)))
        granule++;
    return granule;
}

/* Wait for the streams of the granules of a run that are pending unmap and whose pages are aliased,
 * and unmap these granules.  Does nothing during a capture.  Observers run at the end and may
 * release the range. */
static xseg_status unmap_pending_aliases(const struct xseg_range_run *run)
{
    struct xseg_device *device = xseg_device_of(run->extent);
    const uint32_t end = run->first + run->count;

    if (xseg_pending_captures(device->pending))
        return XSEG_OK;
    xseg_pending_unmap_query(device);
    for (uint32_t granule = run->first; (granule = next_aliased_pending(run, granule)) < end;
         granule++) {
        const xseg_status status = xseg_pending_unmap_wait_for(run->extent, granule);

        if (status != XSEG_OK)
            return status;
    }
    xseg_pending_unmap_poll(device, false);
    return XSEG_OK;
}

/* Begin a commit of granules whose pages are not aliased.  A granule that is pending unmap and
 * whose page is aliased cannot be recommitted: it is unmapped first, and another page is mapped. */
static xseg_status begin_commit_unaliased(struct commit *commit, struct xseg_range *range,
                                          uint64_t offset, uint64_t bytes)
{
    const struct xseg_range_run *run = &commit->run;
    xseg_status status = begin_commit(commit, range, offset, bytes);

    if (status != XSEG_OK || next_aliased_pending(run, run->first) == run->first + run->count)
        return status;
    status = unmap_pending_aliases(run);
    if (status == XSEG_OK)
        status = begin_commit(commit, range, offset, bytes);
    if (status != XSEG_OK)
        return status;
    const uint32_t granule = next_aliased_pending(run, run->first);
    if (granule == run->first + run->count)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_BUSY,
                     "granule is pending unmap and its page is aliased, offset %" PRIu64
                     "; commit the granule after the capture, when it is not held, pinned or "
                     "exported",
                     granule * run->extent->segment.granule_bytes);
}

/* Write the error message of an out-of-memory failure, and count the failure. */
static xseg_status fail_commit(struct commit *commit, xseg_status status)
{
    atomic_fetch_add_explicit(&commit->device->ooms, 1, memory_order_relaxed);
    return commit->is_at_limit && !commit->arena->pool->is_at_limit
               ? status
               : xseg_oom_fail(commit->arena, &commit->params, status, false);
}

xseg_status xseg_ranges_commit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                               xseg_stream stream, struct xseg_range_oom *oom)
{
    struct xseg_device *device = range->device;
    struct commit commit = {.device = device, .config = xseg_allocator_config(device->allocator)};
    xseg_status status = xseg_stream_retirement_get(device, stream, &commit.stream);

    if (status != XSEG_OK)
        return status;
    if (xseg_pending_captures(device->pending))
        xseg_streams_claim(commit.stream);
    xseg_mutex_lock(&device->memory_lock);
    status = begin_commit_unaliased(&commit, range, offset, bytes);
    if (status != XSEG_OK || commit.run.count == 0) {
        xseg_mutex_unlock(&device->memory_lock);
        return status;
    }
    status = commit_run(&commit);
    if (xseg_oom_cause_is_memory_pressure(status)) {
        status = fail_commit(&commit, status);
        oom->arena = commit.arena;
        oom->params = commit.params;
        oom->retained = xseg_pool_try_retain(commit.arena->pool) ? commit.arena->pool : NULL;
    }
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

/* --- Prepared pages. --- */

/* Create one page, unless the range has prepared pages of `bytes` in total.  The device memory lock
 * is held.  is_complete: set to whether the range has `bytes` of prepared pages */
static xseg_status create_prepared_page(struct xseg_range_state *state, uint64_t bytes,
                                        bool *is_complete)
{
    struct xseg_device *device = state->range->device;
    struct xseg_elastic *elastic = &state->elastic;
    const struct xseg_segment *segment = &state->extent->segment;
    const uint64_t page_bytes = segment->page_bytes;
    const struct xseg_page_kind kind = {page_bytes, segment->properties, state};
    const uint64_t prepared_bytes = xseg_page_cache_kind_bytes(&device->page_cache, kind);

    *is_complete = prepared_bytes >= bytes;
    if (*is_complete)
        return XSEG_OK;
    /* The prepared pages count against the quota during the check. */
    xseg_elastic_set_bytes(elastic, elastic->charged,
                           elastic->committing + prepared_bytes + page_bytes,
                           &device->unused_quota);
    xseg_status status = xseg_growth_check(state->pool, page_bytes, 0);
    xseg_elastic_set_bytes(elastic, elastic->charged,
                           elastic->committing - prepared_bytes - page_bytes,
                           &device->unused_quota);
    if (status == XSEG_OK)
        status = xseg_page_cache_create(&device->page_cache, kind);
    return status;
}

xseg_status xseg_ranges_prepare(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run run;
    bool is_complete = false;
    xseg_status status = XSEG_OK;

    while (status == XSEG_OK && !is_complete) {
        xseg_mutex_lock(&device->memory_lock);
        status = xseg_range_find_run(range, 0, 0, &run);
        if (status == XSEG_OK && xseg_context_is_lost(&device->context))
            status = xseg_driver_fail_lost(&device->context);
        if (status == XSEG_OK && bytes > run.extent->segment.bytes)
            status = xseg_fail(XSEG_ERR_ARGUMENT,
                               "size exceeds the range, %" PRIu64 " bytes; the range has %" PRIu64
                               " bytes",
                               bytes, run.extent->segment.bytes);
        if (status == XSEG_OK)
            status = create_prepared_page(run.state, bytes, &is_complete);
        xseg_mutex_unlock(&device->memory_lock);
    }
    return status;
}

/* --- Quota. --- */

/* The maximum of the physical memory and the unused quotas of a device, as of the last query of the
 * free memory. */
static uint64_t limit_with_quotas(const struct xseg_device *device)
{
    return xseg_min(xseg_min(xseg_device_allowance(device), device->free_limit),
                    device->context.total_bytes);
}

/* Check the physical memory and the unused quotas of a device against its limits. */
static xseg_status check_quotas(struct xseg_device *device, bool *is_within)
{
    const xseg_status status = xseg_device_query_free_limit(device);

    *is_within = status == XSEG_OK &&
                 xseg_device_physical(device) + device->unused_quota <= limit_with_quotas(device);
    return status;
}

static xseg_status fail_quota(const struct xseg_device *device, uint64_t bytes)
{
    const uint64_t limit = limit_with_quotas(device);

    return xseg_fail(
        limit < device->context.total_bytes ? XSEG_ERR_LIMIT : XSEG_ERR_NO_MEMORY,
        "quota exceeds the available memory of device %d, %" PRIu64 " bytes; %" PRIu64
        " of %" PRIu64 " bytes used by this allocator, %" PRIu64 " bytes reserved by quotas%s",
        device->context.ordinal, bytes, xseg_device_physical(device), limit, device->unused_quota,
        limit == device->free_limit ? "; device_free_min_mb leaves no more" : "");
}

/* Set a quota if the quotas of all ranges are within the limits; otherwise keep the previous quota. */
static xseg_status try_range_quota(struct xseg_range *range, uint64_t bytes, bool *is_within)
{
    struct xseg_device *device = range->device;
    struct xseg_elastic *elastic = &range->state->elastic;
    const uint64_t old_quota = elastic->quota;

    elastic->quota = bytes;
    xseg_elastic_set_bytes(elastic, elastic->charged, elastic->committing, &device->unused_quota);
    *is_within = bytes <= old_quota;
    const xseg_status status = *is_within ? XSEG_OK : check_quotas(device, is_within);
    if (*is_within)
        return XSEG_OK;
    elastic->quota = old_quota;
    xseg_elastic_set_bytes(elastic, elastic->charged, elastic->committing, &device->unused_quota);
    return status;
}

static xseg_status set_range_quota(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    bool is_within;
    xseg_status status = try_range_quota(range, bytes, &is_within);

    if (status == XSEG_OK && !is_within && !xseg_pending_captures(device->pending)) {
        status = xseg_trim_all(device, false);
        /* An observer that ran during the trim may have released the range, or set its quota. */
        if (range->state == NULL)
            return xseg_range_check_handle(range);
        if (status == XSEG_OK)
            status = try_range_quota(range, bytes, &is_within);
    }
    return status == XSEG_OK && !is_within ? fail_quota(device, bytes) : status;
}

xseg_status xseg_ranges_set_quota(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run run;

    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_range_find_run(range, 0, 0, &run);
    if (status == XSEG_OK) {
        const uint64_t max = xseg_min(run.extent->segment.bytes, run.state->limit);

        status = bytes > max
                     ? xseg_fail(XSEG_ERR_ARGUMENT,
                                 "quota exceeds the size or limit_bytes of the range, %" PRIu64
                                 " bytes; use at most %" PRIu64 " bytes",
                                 bytes, max)
                     : set_range_quota(range, bytes);
    }
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}
