/* SPDX-License-Identifier: MIT */
#include "src/core/range/commit.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/arena/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/budget_wait.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/oom.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/grow/remap.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/range/aliases.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/release.h"
#include "src/core/reclaim/trim.h"
#include "vmm/alias.h"

/* A commit under way. */
struct commit {
    struct xseg_device *device;
    struct xseg_range_run run;
    struct xseg_arena *arena;
    struct xseg_known_stream *stream;
    const struct xseg_config *config;
    struct xseg_alloc_params params; /* as the ladder describes a request */
    uint64_t missing;                /* bytes of granules that need pages */
    bool is_full;                    /* the range or its pool is at its own limit */
};

/* --- Claiming. --- */

/* Whether the granules can be committed: each is empty, or leaves. */
static xseg_status check_use(const struct xseg_range_run *run)
{
    const uint8_t *use = run->extent->elastic->use;

    for (uint32_t at = run->first; at < run->first + run->count; at++)
        if (use[at] != XSEG_ELASTIC_EMPTY && use[at] != XSEG_ELASTIC_UNMAPPING)
            return xseg_range_fail_use(
                run, at, "only unmapped granules and granules pending unmap can be committed");
    return XSEG_OK;
}

/* The next run of granules from one on that leave, or that do not: a claimed one leaves as long as it has a batch. */
static struct xseg_range_run next_part(const struct xseg_range_run *run, uint32_t from, bool leaves)
{
    const uint32_t *batch = run->extent->elastic->batch;
    const uint32_t end = run->first + run->count;
    struct xseg_range_run part = {run->body, run->extent, from, 0};

    while (part.first < end && (batch[part.first] != 0) != leaves)
        part.first++;
    while (part.first + part.count < end && (batch[part.first + part.count] != 0) == leaves)
        part.count++;
    return part;
}

#define FOR_PARTS(part, run, leaves)                                                               \
    for (struct xseg_range_run part = next_part((run), (run)->first, (leaves)); (part).count != 0; \
         (part) = next_part((run), (part).first + (part).count, (leaves)))

/* Give claimed granules up: those that left leave again, the others are empty. */
static void unclaim(const struct commit *commit)
{
    FOR_PARTS(empty, &commit->run, false)
    {
        xseg_range_set_use(&empty, XSEG_ELASTIC_EMPTY);
    }
    FOR_PARTS(part, &commit->run, true)
    {
        xseg_pending_unmap_resume(part.extent, part.first, part.count);
    }
}

/* --- Getting pages. --- */

static xseg_status check_limits(struct commit *commit)
{
    const struct xseg_range_state *body = commit->run.body;
    const uint64_t page = commit->run.extent->segment.page_bytes, own = body->elastic.own;
    const struct xseg_page_filter filter = {.properties = commit->run.extent->segment.properties,
                                            .prepared_for = body};
    const uint64_t idle = xseg_pages_idle(&commit->device->pages, page, &filter);

    commit->is_full = own > body->limit || commit->missing > body->limit - own;
    if (commit->is_full)
        return xseg_fail(XSEG_ERR_LIMIT,
                         "limit_bytes of the range rejects the request, %" PRIu64
                         " bytes requested, limit %" PRIu64 " bytes; %" PRIu64
                         " bytes used by the range, %" PRIu64 " of them pending unmap",
                         commit->missing, body->limit, own,
                         body->elastic.pending_unmaps * commit->run.extent->segment.granule_bytes);
    const xseg_status status =
        xseg_growth_check(commit->arena->pool, commit->missing, xseg_min(commit->missing, idle));
    commit->is_full = commit->arena->pool->is_full;
    return status;
}

/* Unmap the granules again that were empty, up to one. */
static void unmap_up_to(const struct commit *commit, uint32_t end)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    uint32_t done = 0;

    FOR_PARTS(part, &commit->run, false)
    {
        if (part.first >= end)
            return;
        (void)xseg_segment_unmap(segment, part.first, part.count, true, &done);
        /* A page that the driver refuses to unmap is neither committed nor a hole: it is made a stuck one. */
        if (done < part.count)
            xseg_segment_mark_unknown(segment, part.first + done, part.count - done);
    }
}

/* Map all granules that are empty, or none. */
static xseg_status map_all(struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    const struct xseg_page_source source = {.prepared_for = commit->run.body};
    char reason[256];

    FOR_PARTS(part, &commit->run, false)
    {
        const xseg_status status = xseg_segment_map(segment, part.first, part.count, &source);

        if (status == XSEG_OK)
            continue;
        (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
        unmap_up_to(commit, part.first);
        return xseg_fail(status, "%s", reason);
    }
    return XSEG_OK;
}

/* Get pages and map them, as far as limits and the driver allow without taking any from elsewhere. */
static xseg_status grow(struct commit *commit)
{
    const xseg_status status = check_limits(commit);

    return status == XSEG_OK ? map_all(commit) : status;
}

/* --- Steps when memory is short. --- */

typedef xseg_status step(struct commit *commit);

static xseg_status finished(struct commit *commit)
{
    xseg_pending_poll(commit->device->pending);
    xseg_pending_unmap_poll(commit->device, true);
    return grow(commit);
}

static xseg_status steal_pages(struct commit *commit, bool wait)
{
    const struct xseg_segment *segment = &commit->run.extent->segment;
    const struct xseg_remap_plan plan = {
        .filter = {.properties = segment->properties, .prepared_for = commit->run.body},
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
    const xseg_status stolen = xseg_remap_pages(commit->device, &plan);
    return stolen == XSEG_OK ? map_all(commit) : stolen;
}

static xseg_status steal(struct commit *commit)
{
    return steal_pages(commit, false);
}

static xseg_status steal_waiting(struct commit *commit)
{
    return steal_pages(commit, true);
}

static xseg_status pending(struct commit *commit)
{
    xseg_status status = xseg_pending_captures(commit->device->pending)
                             ? XSEG_OK
                             : xseg_pending_wait(commit->device->pending);

    if (status != XSEG_ERR_DEVICE_LOST)
        status = xseg_pending_unmap_wait(commit->device, true);
    return status == XSEG_ERR_DEVICE_LOST ? status : grow(commit);
}

static xseg_status flush(struct commit *commit)
{
    const xseg_status status = xseg_trim_all(commit->device, true);

    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&commit->device->retries, 1, memory_order_relaxed);
    return grow(commit);
}

static step *const all_steps[] = {steal, steal_waiting, pending, steal_waiting, flush, NULL};
static step *const capture_steps[] = {steal, NULL};

/* Memory of others is of no use to a range or a pool that is at its own limit, as long as it is. */
static xseg_status climb(struct commit *commit, xseg_status refused)
{
    const bool captures = xseg_pending_captures(commit->device->pending);

    if (commit->is_full && !captures)
        refused = pending(commit);
    if (commit->is_full || !xseg_oom_cause_is_memory_pressure(refused))
        return refused;
    commit->device->is_short = true;
    for (step *const *next = captures ? capture_steps : all_steps;
         *next != NULL && xseg_oom_cause_is_memory_pressure(refused); next++)
        refused = (*next)(commit);
    return refused;
}

/* Ask the observers to spare memory; returns whether one has.  The device memory lock is let go meanwhile. */
static bool ask(const struct commit *commit, xseg_status refused, unsigned attempt) XSEG_UNCHECKED
{
    xseg_mutex_unlock(&commit->device->growth_lock);
    const bool spared = xseg_oom_notify(commit->arena, &commit->params, refused,
                                        XSEG_OBSERVERS_LOW_MEMORY, attempt);
    xseg_mutex_lock(&commit->device->growth_lock);
    return spared;
}

/* Try what needs no wait; then ask other processes for memory, and try again until the time is over. */
static xseg_status ask_others(struct commit *commit, xseg_status refused)
{
    struct xseg_device *device = commit->device;
    struct xseg_budget_wait budget_wait;

    if (commit->is_full || !xseg_budget_is_open(device) || xseg_pending_captures(device->pending))
        return refused;
    refused = steal(commit);
    if (!xseg_oom_cause_is_memory_pressure(refused))
        return refused;
    if (xseg_budget_wait_begin(&budget_wait, commit->arena, commit->missing, commit->config))
        while (xseg_oom_cause_is_memory_pressure(refused) && xseg_budget_wait_retry(&budget_wait))
            if (budget_wait.grows)
                refused = grow(commit);
    xseg_budget_wait_end(&budget_wait, refused == XSEG_OK);
    return refused;
}

static xseg_status overcome(struct commit *commit, xseg_status refused)
{
    struct xseg_device *device = commit->device;
    bool spared = true;

    device->is_short = device->is_short || !commit->is_full;
    if (!xseg_pending_captures(device->pending))
        refused = finished(commit);
    if (xseg_oom_cause_is_memory_pressure(refused))
        refused = ask_others(commit, refused);
    for (unsigned attempt = 0; spared && attempt < XSEG_LOW_MEMORY_CALLS_MAX &&
                               xseg_oom_cause_is_memory_pressure(refused);
         attempt++) {
        spared = ask(commit, refused, attempt);
        if (spared)
            refused = grow(commit);
        if (xseg_oom_cause_is_memory_pressure(refused))
            refused = climb(commit, refused);
    }
    return refused;
}

/* Have pages mapped beneath the empty granules.  What idle pages are left goes as page_cache_mb says. */
static xseg_status source(struct commit *commit)
{
    struct xseg_elastic *elastic = commit->run.extent->elastic;
    struct xseg_device *device = commit->device;

    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming + commit->missing,
                           &device->promised);
    xseg_status status = grow(commit);
    if (xseg_oom_cause_is_memory_pressure(status)) {
        XSEG_SPAN_BEGIN(fallback, device->context.ordinal, commit->missing);
        status = overcome(commit, status);
        XSEG_SPAN_END(fallback, device->context.ordinal, status);
    }
    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming - commit->missing,
                           &device->promised);
    xseg_pages_shrink_to(&device->pages, commit->config->page_cache_bytes);
    return status;
}

/* --- Settling. --- */

/* Let the stream of the commit wait for those that granules leave with. */
static xseg_status order(const struct commit *commit)
{
    const uint32_t *batch = commit->run.extent->elastic->batch;
    uint32_t last = 0;

    FOR_PARTS(part, &commit->run, true)
    {
        for (uint32_t at = part.first; at < part.first + part.count; at++) {
            const xseg_status status =
                batch[at] == last ? XSEG_OK
                                  : xseg_pending_unmap_order(part.extent, at, commit->stream);

            if (status != XSEG_OK)
                return status;
            last = batch[at];
        }
    }
    return XSEG_OK;
}

void xseg_commit_retake(const struct xseg_range_run *part)
{
    struct xseg_elastic *elastic = part->extent->elastic;
    struct xseg_arena *arena = part->extent->arena;

    xseg_pending_unmap_end(part->extent, part->first, part->count);
    xseg_aliases_use_again(part);
    xseg_arena_lock(arena);
    elastic->pending_unmaps -= part->count;
    elastic->live += part->count;
    xseg_counts_use_again(&arena->counts, xseg_range_bytes(part));
    xseg_arena_unlock(arena);
    part->body->retaken += part->count;
}

/* Count granules that were mapped. */
static void count_mapped(const struct commit *commit, const struct xseg_range_run *part)
{
    struct xseg_elastic *elastic = part->extent->elastic;
    struct xseg_arena *arena = commit->arena;
    const uint64_t bytes = xseg_range_bytes(part);

    xseg_arena_lock(arena);
    xseg_elastic_set_bytes(elastic, elastic->own + bytes, elastic->coming,
                           &commit->device->promised);
    elastic->live += part->count;
    xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    xseg_counts_use(&arena->counts, bytes);
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_segment(part->extent, XSEG_HISTORY_SEGMENT_MAP, xseg_range_base(part), bytes);
    xseg_arena_unlock(arena);
    xseg_pool_record_growth(arena, bytes);
}

/* All granules are live.  Observers are told of new memory while it is still claimed, but counts already: the device memory lock is let
 * go meanwhile, and limits have to hold. */
static void settle(const struct commit *commit)
{
    const struct xseg_range_run *run = &commit->run;

    FOR_PARTS(part, run, false)
    {
        count_mapped(commit, &part);
    }
    if (xseg_notify_is_enabled(commit->device))
        FOR_PARTS(part, run, false)
        {
            xseg_notify_map(part.extent, xseg_range_base(&part), xseg_range_bytes(&part));
        }
    /* From here on the parts are not told apart any more: taking back ends batches. */
    for (uint32_t at = run->first, end = run->first + run->count; at < end;) {
        const struct xseg_range_run part = next_part(run, at, true);

        if (part.count == 0)
            break;
        xseg_commit_retake(&part);
        at = part.first + part.count;
    }
    xseg_range_set_use(run, XSEG_ELASTIC_ALLOCATED);
}

/* --- The call. --- */

static void describe(struct commit *commit)
{
    commit->missing = 0;
    FOR_PARTS(part, &commit->run, false)
    {
        commit->missing += xseg_range_bytes(&part);
    }
    commit->params = (struct xseg_alloc_params){
        .config = commit->config,
        .requested = xseg_range_bytes(&commit->run),
        .bytes = commit->missing,
        .alignment = XSEG_SIZE_UNIT,
        .span = commit->missing,
        .segment_bytes = commit->missing,
        .expandable = true,
        .is_single = true, /* no cached block serves it */
        .no_split = true,
    };
}

/* Unmap stuck granules of aliased pages: the commit maps other pages there. */
static xseg_status unstick_aliases(const struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    const uint32_t first = commit->run.first, end = first + commit->run.count;
    xseg_status status = segment->physical == NULL
                             ? XSEG_OK
                             : xseg_segment_retry_unknown_run(segment, first, commit->run.count);

    for (uint32_t at = first; status != XSEG_OK && at < end; at++)
        if (segment->state[at] == XSEG_PAGE_UNKNOWN && xseg_alias_page(segment, at) != NULL)
            return status;
    return XSEG_OK;
}

/* Commit the granules, which have been checked.  The device memory lock is held. */
static xseg_status commit_run(struct commit *commit)
{
    struct xseg_segment *segment = &commit->run.extent->segment;
    xseg_status status = XSEG_OK;

    describe(commit);
    xseg_range_set_use(&commit->run, XSEG_ELASTIC_CLAIMED);
    if (commit->missing != 0) {
        xseg_pending_unmap_poll(commit->device, true);
        status = unstick_aliases(commit);
        if (status == XSEG_OK)
            status = source(commit);
    }
    if (status == XSEG_OK) {
        status = order(commit);
        if (status != XSEG_OK) {
            unmap_up_to(commit, segment->granules);
            xseg_pages_shrink_to(&commit->device->pages, commit->config->page_cache_bytes);
        }
    }
    if (status == XSEG_OK)
        settle(commit);
    else
        unclaim(commit);
    return status;
}

/* Begin a commit: everything that can be wrong with its arguments.  The device memory lock is held. */
static xseg_status begin(struct commit *commit, struct xseg_range *range, uint64_t offset,
                         uint64_t bytes)
{
    xseg_status status = xseg_range_find(range, offset, bytes, &commit->run);

    if (status == XSEG_OK && xseg_context_is_lost(&commit->device->context))
        status = xseg_driver_fail_lost(&commit->device->context);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(commit->run.body->pool);
    if (status == XSEG_OK)
        status = check_use(&commit->run);
    if (status == XSEG_OK && !xseg_range_streams_add(&commit->run.body->streams, commit->stream))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, streams of a range");
    if (status == XSEG_OK)
        commit->arena = commit->run.extent->arena;
    return status;
}

/* Wait for the streams with which aliased granules of a run are pending unmap, and unmap them; not in a capture.  Observers
 * may run in the end, so the range may have been released. */
static xseg_status wait_for_aliases(const struct xseg_range_run *run)
{
    struct xseg_device *device = xseg_device_of(run->extent);
    const uint32_t end = run->first + run->count;

    if (xseg_pending_captures(device->pending))
        return XSEG_OK;
    xseg_pending_unmap_query(device);
    for (uint32_t at = run->first; (at = xseg_aliases_next_pending(run, at)) < end; at++) {
        const xseg_status status = xseg_pending_unmap_wait_for(run->extent, at);

        if (status != XSEG_OK)
            return status;
    }
    xseg_pending_unmap_poll(device, false);
    return XSEG_OK;
}

/* Begin a commit.  A granule that is pending unmap is not taken back if its page has other mappings: the granule is unmapped
 * first, and gets another page. */
static xseg_status begin_unaliased(struct commit *commit, struct xseg_range *range, uint64_t offset,
                                   uint64_t bytes)
{
    const struct xseg_range_run *run = &commit->run;
    xseg_status status = begin(commit, range, offset, bytes);

    if (status != XSEG_OK || xseg_aliases_next_pending(run, run->first) == run->first + run->count)
        return status;
    status = wait_for_aliases(run);
    if (status == XSEG_OK)
        status = begin(commit, range, offset, bytes);
    if (status != XSEG_OK)
        return status;
    const uint32_t at = xseg_aliases_next_pending(run, run->first);
    if (at == run->first + run->count)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_BUSY,
                     "granule is pending unmap and its page is aliased, offset %" PRIu64
                     "; commit the granule after the capture, when it is not held, pinned or "
                     "exported",
                     at * run->extent->segment.granule_bytes);
}

/* Write the error text of a refusal, and count it.  The device memory lock is held. */
static xseg_status refuse(struct commit *commit, xseg_status status)
{
    struct xseg_arena *arena = commit->arena;
    uint64_t free_bytes = 0;

    atomic_fetch_add_explicit(&commit->device->ooms, 1, memory_order_relaxed);
    if (commit->is_full && !arena->pool->is_full)
        return status;
    status = xseg_oom_fail(arena, &commit->params, status, false, &free_bytes);
    if (!xseg_recorder_is_enabled(arena))
        return status;
    xseg_arena_lock(arena);
    xseg_recorder_oom(arena, commit->params.requested, free_bytes);
    xseg_arena_unlock(arena);
    return status;
}

xseg_status xseg_commit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                        xseg_stream stream, struct xseg_commit_oom *oom)
{
    struct xseg_device *device = range->device;
    struct commit commit = {.device = device, .config = xseg_allocator_config(device->allocator)};
    xseg_status status = xseg_stream_retirement_get(device, stream, &commit.stream);

    if (status != XSEG_OK)
        return status;
    if (xseg_pending_captures(device->pending))
        xseg_streams_claim(commit.stream);
    xseg_mutex_lock(&device->growth_lock);
    status = begin_unaliased(&commit, range, offset, bytes);
    if (status != XSEG_OK || commit.run.count == 0) {
        xseg_mutex_unlock(&device->growth_lock);
        return status;
    }
    status = commit_run(&commit);
    if (xseg_oom_cause_is_memory_pressure(status)) {
        status = refuse(&commit, status);
        oom->arena = commit.arena;
        oom->params = commit.params;
        oom->retained = xseg_pool_try_retain(commit.arena->pool) ? commit.arena->pool : NULL;
    }
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}
