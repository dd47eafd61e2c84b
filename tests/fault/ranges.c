/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over elastic ranges, with enough memory and with too little.  After each attempt every committed granule
 * of a pool that is not paused is mapped and accessible, and keeps its contents.  After a failed attempt the ranges are
 * unchanged, except for memory whose pending unmap has completed; the next attempt succeeds.
 */
#include <string.h>

#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/range/range.h"
#include "tests/fault/fault_env.h"
#include "tests/fault/host_faults.h"
#include "xseg/range.h"

#define PAGE     (2 * MIB)
#define RANGES   3u
#define GRANULES 12u

/* The expected state of the ranges of a run. */
static struct {
    struct xseg_range *range[RANGES];
    uint64_t tag[RANGES][GRANULES];        /* contents of committed granules; 0: not committed */
    uint64_t latest_tag[RANGES][GRANULES]; /* its latest contents, also after a decommit */
    bool paused[RANGES];
    uint64_t tag_count;
    struct xseg_pool *pool; /* pool of new ranges; NULL: a separate pool for each range */
    struct xseg_checkpoint *checkpoint;
    uint64_t saved[RANGES][GRANULES]; /* `tag` at the checkpoint */
} expected;

/* --- Invariants after every call. --- */

static struct xseg_range_info info_of(unsigned range)
{
    struct xseg_range_info info = {sizeof(info)};

    assert_int_equal(xseg_range_query(expected.range[range], &info), XSEG_OK);
    return info;
}

static uint64_t *word_of(unsigned range, unsigned at)
{
    return (uint64_t *)(void *)((char *)info_of(range).base + at * PAGE + PAGE / 2);
}

static void expect_granule(unsigned range, unsigned at)
{
    assert_int_equal(fault_access(0, word_of(range, at)), ENV_READ_WRITE);
    assert_int_equal(*word_of(range, at), expected.tag[range][at]);
}

static void expect_ranges(const struct fault_env *env)
{
    struct xseg_device *device = xseg_allocator_open_device(env->allocator, 0);
    uint64_t physical = 0;

    for (unsigned range = 0; range < RANGES; range++) {
        uint64_t live = 0;

        if (expected.range[range] == NULL)
            continue;
        for (unsigned at = 0; at < GRANULES; at++)
            if (expected.tag[range][at] != 0) {
                if (!expected.paused[range])
                    expect_granule(range, at);
                live++;
            }
        const struct xseg_range_info info = info_of(range);
        assert_int_equal(info.committed_bytes, live * PAGE);
        if (!expected.paused[range])
            assert_int_equal(info.mapped_bytes, info.committed_bytes + info.pending_unmap_bytes);
        assert_true(info.physical_bytes <= info.mapped_bytes);
        physical += info.physical_bytes;
    }
    assert_true(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_RESERVED_BYTES).current >=
        physical);
    assert_int_equal(xseg_sim_used(0), xseg_device_physical(device));
}

/* The statistics of all ranges before the current call. */
static struct {
    struct xseg_range_info info[RANGES];
    struct xseg_range *range[RANGES];
    uint64_t allocated;
} before_call;

static uint64_t allocated(const struct fault_env *env)
{
    struct xseg_device *device = xseg_allocator_open_device(env->allocator, 0);

    return xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATED_BYTES).current;
}

static void record_state(const struct fault_env *env)
{
    host_fault_suspend(true);
    before_call.allocated = allocated(env);
    memcpy(before_call.range, expected.range, sizeof(before_call.range));
    for (unsigned range = 0; range < RANGES; range++)
        if (expected.range[range] != NULL)
            before_call.info[range] = info_of(range);
    host_fault_suspend(false);
}

/* Expect that a failed call has changed nothing except completed pending unmaps. */
static void expect_unchanged(const struct fault_env *env)
{
    assert_int_equal(allocated(env), before_call.allocated);
    for (unsigned range = 0; range < RANGES; range++) {
        if (before_call.range[range] == NULL)
            continue;
        const struct xseg_range_info *old = &before_call.info[range], current = info_of(range);
        assert_int_equal(current.committed_bytes, old->committed_bytes);
        assert_true(current.pending_unmap_bytes <= old->pending_unmap_bytes);
        assert_int_equal(current.quota_bytes, old->quota_bytes);
        assert_int_equal(current.recommits, old->recommits);
    }
}

/* As fault_retry(), and compares the state with that of record_state(). */
static bool check_and_retry(struct fault_env *env, xseg_status status)
{
    host_fault_suspend(true);
    expect_ranges(env);
    if (status != XSEG_OK)
        expect_unchanged(env);
    host_fault_suspend(false);
    return fault_retry(env, status);
}

/* --- The calls. --- */

/* Repeat a call until it succeeds, and run `on_success` before the state is checked. */
#define REPEAT(env, call, on_success)            \
    do {                                         \
        xseg_status status_;                     \
        do {                                     \
            record_state(env);                   \
            status_ = (call);                    \
            if (status_ == XSEG_OK)              \
                on_success;                      \
        } while (check_and_retry(env, status_)); \
    } while (0)

static void reserve(struct fault_env *env, unsigned range, uint64_t limit)
{
    struct xseg_range_options options = {
        sizeof(options), .limit_bytes = limit,
        .pool = range == 1 && expected.range[0] != NULL ? info_of(0).pool : expected.pool};
    struct xseg_range *reserved = NULL;

    REPEAT(env, xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &reserved),
           expected.range[range] = reserved);
}

/* A recommitted granule keeps its contents; the other granules get new contents. */
static void record_committed(unsigned range, unsigned first, unsigned count, bool is_recommit)
{
    for (unsigned at = first; at < first + count; at++) {
        if (!is_recommit)
            expected.latest_tag[range][at] = *word_of(range, at) = ++expected.tag_count;
        expected.tag[range][at] = expected.latest_tag[range][at];
    }
}

static void commit(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                   xseg_stream stream)
{
    REPEAT(env, xseg_range_commit(expected.range[range], first * PAGE, count * PAGE, stream),
           record_committed(range, first, count,
                            info_of(range).recommits == before_call.info[range].recommits + count));
}

static void decommit(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                     xseg_stream stream)
{
    REPEAT(env, xseg_range_decommit(expected.range[range], first * PAGE, count * PAGE, stream),
           memset(&expected.tag[range][first], 0, count * sizeof(expected.tag[range][0])));
}

static void record_aliased(unsigned range, unsigned first, unsigned count, unsigned from,
                           unsigned at)
{
    memcpy(&expected.tag[range][first], &expected.tag[from][at], count * sizeof(uint64_t));
    memcpy(&expected.latest_tag[range][first], &expected.tag[from][at], count * sizeof(uint64_t));
}

static void alias(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                  unsigned from, unsigned at)
{
    REPEAT(env,
           xseg_range_alias(expected.range[range], first * PAGE, count * PAGE, expected.range[from],
                            at * PAGE),
           record_aliased(range, first, count, from, at));
}

static void hold(struct fault_env *env, unsigned range, unsigned first, unsigned count)
{
    do
        record_state(env);
    while (
        check_and_retry(env, xseg_range_hold(expected.range[range], first * PAGE, count * PAGE)));
}

static void unhold(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                   xseg_stream stream)
{
    do
        record_state(env);
    while (check_and_retry(
        env, xseg_range_unhold(expected.range[range], first * PAGE, count * PAGE, stream)));
}

static void prepare(struct fault_env *env, unsigned range, unsigned count)
{
    REPEAT(env, xseg_range_prepare(expected.range[range], count * PAGE),
           assert_true(info_of(range).prepared_bytes >= count * PAGE));
}

static void set_quota(struct fault_env *env, unsigned range, unsigned count)
{
    do
        record_state(env);
    while (check_and_retry(env, xseg_range_set_quota(expected.range[range], count * PAGE)));
}

static void release(struct fault_env *env, unsigned range)
{
    REPEAT(env, xseg_range_release(expected.range[range]), expected.range[range] = NULL);
}

static void resume(struct fault_env *env, unsigned range)
{
    struct xseg_pool *pool = expected.range[range]->state->pool;
    xseg_status status;

    do {
        record_state(env);
        status = xseg_pool_resume(pool);
        expected.paused[range] = status != XSEG_OK;
    } while (check_and_retry(env, status));
}

/* If the rollback of a failed pause fails as well, the pool stays paused and keeps its contents. */
static void pause(struct fault_env *env, unsigned range)
{
    struct xseg_pool *pool = expected.range[range]->state->pool;
    xseg_status status;
    bool retries;

    do {
        record_state(env);
        status = xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL);
        expected.paused[range] = pool->state == XSEG_POOL_PAUSED;
        retries = check_and_retry(env, status);
        if (retries && expected.paused[range])
            resume(env, range);
    } while (retries);
}

static void take_checkpoint(struct fault_env *env)
{
    REPEAT(env, xseg_pool_checkpoint(expected.pool, &expected.checkpoint),
           memcpy(expected.saved, expected.tag, sizeof(expected.saved)));
}

/* Exactly the granules of the checkpoint are committed; decommitted granules have their old contents. */
static void record_restored(void)
{
    for (unsigned range = 0; range < RANGES; range++)
        for (unsigned at = 0; at < GRANULES; at++) {
            if (expected.tag[range][at] == 0)
                expected.tag[range][at] = expected.latest_tag[range][at];
            if (expected.saved[range][at] == 0)
                expected.tag[range][at] = 0;
        }
}

static void restore(struct fault_env *env)
{
    REPEAT(env, xseg_pool_restore(expected.pool, expected.checkpoint, fault_log_restored, env),
           record_restored());
}

/* Launch work on granules on the second stream.  The work runs until a call waits for it. */
static void launch_on(const struct fault_env *env, unsigned range, unsigned first, unsigned count)
{
    assert_int_equal(xseg_sim_launch_on(env->side, UINT64_MAX,
                                        (uint64_t)(uintptr_t)info_of(range).base + first * PAGE,
                                        count * PAGE),
                     XSEG_OK);
}

/* --- The scenarios. --- */

static void begin_scenario(struct fault_env *env, const char *config)
{
    memset(&expected, 0, sizeof(expected));
    fault_free_and_trim(env, fault_alloc(env, 1000, env->side));
    if (config != NULL)
        fault_configure(env, config);
}

/* Commits of new memory, recommits on the same and on another stream, and decommits. */
static void commit_and_decommit(struct fault_env *env)
{
    begin_scenario(env, NULL);
    faults_begin();
    reserve(env, 0, 0);
    commit(env, 0, 1, 3, env->side);
    launch_on(env, 0, 1, 3);
    decommit(env, 0, 1, 2, env->side);
    commit(env, 0, 2, 1, env->side);
    commit(env, 0, 0, 2, NULL);
    decommit(env, 0, 2, 1, env->side);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    decommit(env, 0, 3, 1, env->side);
    commit(env, 0, 6, 2, NULL);
    decommit(env, 0, 6, 2, NULL);
    decommit(env, 0, 0, 2, NULL);
    release(env, 0);
    faults_end();
}

/* Commits and decommits with cached pages and prepared pages. */
static void with_idle_pages(struct fault_env *env)
{
    begin_scenario(env, "page_cache_mb:8");
    faults_begin();
    reserve(env, 0, 0);
    reserve(env, 1, 0);
    prepare(env, 0, 3);
    commit(env, 0, 0, 2, NULL);
    decommit(env, 0, 0, 2, NULL);
    commit(env, 1, 4, 3, env->side);
    prepare(env, 1, 1);
    decommit(env, 1, 4, 3, env->side);
    commit(env, 0, 5, 2, env->side);
    decommit(env, 0, 5, 2, NULL);
    release(env, 0);
    fault_configure(env, "page_cache_mb:0");
    release(env, 1);
    faults_end();
}

/* Aliases whose primary mappings are removed first; granules that are pending unmap cannot become aliases. */
static void use_aliases(struct fault_env *env)
{
    begin_scenario(env, NULL);
    reserve(env, 0, 0);
    reserve(env, 1, 0);
    commit(env, 0, 0, 4, env->side);
    faults_begin();
    alias(env, 1, 3, 3, 0, 1);
    alias(env, 0, 8, 2, 1, 3);
    launch_on(env, 1, 3, 3);
    launch_on(env, 0, 8, 2);
    decommit(env, 0, 0, 4, NULL);
    decommit(env, 1, 3, 2, env->side);
    commit(env, 1, 3, 1, env->side);
    decommit(env, 0, 8, 2, env->side);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    alias(env, 0, 2, 1, 1, 3);
    decommit(env, 1, 3, 1, env->side);
    decommit(env, 1, 5, 1, env->side);
    release(env, 1);
    decommit(env, 0, 2, 1, NULL);
    release(env, 0);
    faults_end();
}

/* A pause of a pool with aliases, and a pause after the primary mappings have been removed. */
static void pause_and_resume(struct fault_env *env, const char *config)
{
    begin_scenario(env, config);
    reserve(env, 0, 0);
    commit(env, 0, 0, 3, NULL);
    faults_begin();
    alias(env, 0, 4, 2, 0, 0);
    alias(env, 0, 6, 1, 0, 4);
    alias(env, 0, 8, 1, 0, 2);
    pause(env, 0);
    resume(env, 0);
    decommit(env, 0, 0, 3, NULL);
    pause(env, 0);
    resume(env, 0);
    decommit(env, 0, 4, 2, NULL);
    decommit(env, 0, 6, 1, NULL);
    decommit(env, 0, 8, 1, NULL);
    release(env, 0);
    faults_end();
}

static void pause_ranges(struct fault_env *env)
{
    pause_and_resume(env, NULL);
}

/* With a free minimum, the resume queries the free memory. */
static void pause_ranges_with_free_minimum(struct fault_env *env)
{
    pause_and_resume(env, "device_free_min_mb:100");
}

/* Decommits of held granules. */
static void use_held_granules(struct fault_env *env)
{
    begin_scenario(env, NULL);
    reserve(env, 0, 0);
    faults_begin();
    hold(env, 0, 1, 4);
    hold(env, 0, 2, 1);
    commit(env, 0, 0, 4, NULL);
    launch_on(env, 0, 1, 3);
    decommit(env, 0, 0, 4, NULL);
    commit(env, 0, 3, 1, env->side);
    decommit(env, 0, 3, 1, env->side);
    unhold(env, 0, 1, 4, env->side);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    unhold(env, 0, 2, 1, NULL);
    release(env, 0);
    faults_end();
}

/* The configuration allows 14 pages (28 MiB), so commits need the memory of cached blocks, of granules that are pending
 * unmap, and of pages prepared for other commits.  The second range is at its limit. */
static void reach_limit(struct fault_env *env, const char *config)
{
    begin_scenario(env, config);
    reserve(env, 0, 0);
    reserve(env, 1, 4 * PAGE);
    fault_free(env, fault_alloc(env, MIB, env->side));
    commit(env, 0, 0, 6, env->side);
    commit(env, 1, 0, 4, env->side);
    faults_begin();
    prepare(env, 0, 2);
    commit(env, 0, 6, 3, NULL);
    launch_on(env, 0, 0, 6);
    launch_on(env, 1, 0, 2);
    decommit(env, 1, 0, 2, env->side);
    commit(env, 1, 6, 2, NULL);
    decommit(env, 0, 6, 3, NULL);
    void *block = fault_alloc(env, 5 * MIB, NULL);
    decommit(env, 0, 0, 2, env->side);
    fault_free(env, block);
    set_quota(env, 1, 4);
    commit(env, 0, 6, 6, NULL);
    decommit(env, 0, 2, 10, NULL);
    decommit(env, 1, 2, 2, env->side);
    decommit(env, 1, 6, 2, env->side);
    set_quota(env, 1, 0);
    release(env, 0);
    release(env, 1);
    faults_end();
}

static void reach_hard_limit(struct fault_env *env)
{
    reach_limit(env, "hard_limit_mb:28");
}

/* The device has 1024 MiB. */
static void reach_free_minimum(struct fault_env *env)
{
    reach_limit(env, "device_free_min_mb:996");
}

/* The restore of a pool with ranges and blocks recommits held granules that either stream decommitted, and decommits
 * later granules, some of them aliases of one page.  A failed restore frees no block. */
static void restore_ranges(struct fault_env *env)
{
    begin_scenario(env, NULL);
    expected.pool = fault_pool(env, NULL);
    reserve(env, 0, 0);
    hold(env, 0, 0, 3);
    commit(env, 0, 0, 4, env->side);
    void *block = fault_alloc_in(env, expected.pool, 3 * MIB, NULL);
    faults_begin();
    take_checkpoint(env);
    launch_on(env, 0, 1, 1);
    decommit(env, 0, 0, 2, env->side);
    decommit(env, 0, 2, 1, NULL);
    reserve(env, 1, 0);
    commit(env, 1, 4, 3, env->side);
    commit(env, 0, 6, 1, NULL);
    alias(env, 0, 8, 2, 1, 4);
    fault_free(env, block);
    (void)fault_alloc_in(env, expected.pool, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    restore(env);
    commit(env, 0, 4, 2, NULL);
    restore(env);
    assert_int_equal(info_of(0).committed_bytes, 4 * PAGE);
    xseg_checkpoint_destroy(expected.checkpoint);
    fault_free(env, block);
    unhold(env, 0, 0, 3, NULL);
    decommit(env, 0, 0, 4, NULL);
    release(env, 0);
    release(env, 1);
    FAULT_RETRY(env, xseg_pool_release(expected.pool));
    faults_end();
}

/* The close releases the remaining ranges; faults are also injected into the close. */
static void close_with_ranges(struct fault_env *env)
{
    begin_scenario(env, NULL);
    reserve(env, 0, 0);
    reserve(env, 1, 0);
    commit(env, 0, 0, 4, env->side);
    alias(env, 1, 0, 2, 0, 1);
    launch_on(env, 0, 0, 4);
    launch_on(env, 1, 0, 2);
    faults_begin();
    prepare(env, 1, 2);
    decommit(env, 0, 0, 4, env->side);
    decommit(env, 1, 0, 2, env->side);
}

static const struct fault_suite_scenario scenarios[] = {
    {"commit and decommit", commit_and_decommit, 4, 4},
    {"with idle pages", with_idle_pages, 3, 3},
    {"aliased", use_aliases, 4, 4},
    {"paused", pause_ranges, 4, 4},
    {"paused with a free minimum", pause_ranges_with_free_minimum, 2, 2},
    {"held", use_held_granules, 3, 3},
    {"running short", reach_hard_limit, 4, 4},
    {"at the free minimum", reach_free_minimum, 2, 2},
    {"restored", restore_ranges, 4, 4},
    {"closed", close_with_ranges, 3, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"ranges", scenarios,   COUNT_OF(scenarios),
                                      NULL,     use_aliases, 400};

    return fault_suite_run(&sweep);
}
