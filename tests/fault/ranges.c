/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over elastic ranges, with enough memory and with too little.  After each attempt every committed granule
 * of a pool that is not paused is mapped and accessible, and keeps its contents.  After a failed one the ranges are
 * unchanged, except for memory whose pending unmap has completed; the same call then succeeds.
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
    uint64_t tag[RANGES][GRANULES];  /* of what is committed; 0: nothing is */
    uint64_t left[RANGES][GRANULES]; /* of what was decommitted last */
    bool paused[RANGES];
    uint64_t tags;
    struct xseg_pool *pool; /* of ranges that are reserved; NULL: each has its own */
    struct xseg_checkpoint *checkpoint;
    uint64_t saved[RANGES][GRANULES]; /* `tag` when it was taken */
} wanted;

/* --- What must hold after every call. --- */

static struct xseg_range_info info_of(unsigned range)
{
    struct xseg_range_info info = {sizeof(info)};

    assert_int_equal(xseg_range_query(wanted.range[range], &info), XSEG_OK);
    return info;
}

static uint64_t *word_of(unsigned range, unsigned at)
{
    return (uint64_t *)(void *)((char *)info_of(range).base + at * PAGE + PAGE / 2);
}

static void expect_granule(unsigned range, unsigned at)
{
    assert_int_equal(fault_access(0, word_of(range, at)), 3);
    assert_int_equal(*word_of(range, at), wanted.tag[range][at]);
}

static void expect_ranges(const struct fault_env *env)
{
    struct xseg_device *device = xseg_allocator_open_device(env->allocator, 0);
    uint64_t own = 0;

    for (unsigned range = 0; range < RANGES; range++) {
        uint64_t live = 0;

        if (wanted.range[range] == NULL)
            continue;
        for (unsigned at = 0; at < GRANULES; at++)
            if (wanted.tag[range][at] != 0) {
                if (!wanted.paused[range])
                    expect_granule(range, at);
                live++;
            }
        const struct xseg_range_info info = info_of(range);
        assert_int_equal(info.committed_bytes, live * PAGE);
        if (!wanted.paused[range])
            assert_int_equal(info.mapped_bytes, info.committed_bytes + info.pending_unmap_bytes);
        assert_true(info.physical_bytes <= info.mapped_bytes);
        own += info.physical_bytes;
    }
    assert_true(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_RESERVED_BYTES).current >= own);
    assert_int_equal(xseg_sim_used(0), xseg_device_physical(device));
}

/* The statistics of all ranges before the current call. */
static struct {
    struct xseg_range_info info[RANGES];
    struct xseg_range *range[RANGES];
    uint64_t allocated;
} before;

static uint64_t allocated(const struct fault_env *env)
{
    struct xseg_device *device = xseg_allocator_open_device(env->allocator, 0);

    return xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATED_BYTES).current;
}

static void record_state(const struct fault_env *env)
{
    host_fault_suspend(true);
    before.allocated = allocated(env);
    memcpy(before.range, wanted.range, sizeof(before.range));
    for (unsigned range = 0; range < RANGES; range++)
        if (wanted.range[range] != NULL)
            before.info[range] = info_of(range);
    host_fault_suspend(false);
}

/* A call has failed: the state is unchanged, except for completed pending unmaps. */
static void expect_as_before(const struct fault_env *env)
{
    assert_int_equal(allocated(env), before.allocated);
    for (unsigned range = 0; range < RANGES; range++) {
        if (before.range[range] == NULL)
            continue;
        const struct xseg_range_info *was = &before.info[range], now = info_of(range);
        assert_int_equal(now.committed_bytes, was->committed_bytes);
        assert_true(now.pending_unmap_bytes <= was->pending_unmap_bytes);
        assert_int_equal(now.quota_bytes, was->quota_bytes);
        assert_int_equal(now.recommits, was->recommits);
    }
}

/* As fault_retry(), after record_state(). */
static bool again(struct fault_env *env, xseg_status status)
{
    host_fault_suspend(true);
    expect_ranges(env);
    if (status != XSEG_OK)
        expect_as_before(env);
    host_fault_suspend(false);
    return fault_retry(env, status);
}

/* --- The calls. --- */

/* Make a call until it succeeds, then `done`, before the state is checked. */
#define REPEAT(env, call, done)        \
    do {                               \
        xseg_status status_;           \
        do {                           \
            record_state(env);         \
            status_ = (call);          \
            if (status_ == XSEG_OK)    \
                done;                  \
        } while (again(env, status_)); \
    } while (0)

static void reserve(struct fault_env *env, unsigned range, uint64_t limit)
{
    struct xseg_range_options options = {
        sizeof(options), .limit_bytes = limit,
        .pool = range == 1 && wanted.range[0] != NULL ? info_of(0).pool : wanted.pool};
    struct xseg_range *made = NULL;

    REPEAT(env, xseg_range_reserve(env->allocator, 0, GRANULES * PAGE, &options, &made),
           wanted.range[range] = made);
}

/* A restored granule keeps its contents; the others get new ones. */
static void note_committed(unsigned range, unsigned first, unsigned count, bool is_recommit)
{
    for (unsigned at = first; at < first + count; at++) {
        if (!is_recommit)
            wanted.left[range][at] = *word_of(range, at) = ++wanted.tags;
        wanted.tag[range][at] = wanted.left[range][at];
    }
}

static void commit(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                   xseg_stream stream)
{
    REPEAT(env, xseg_range_commit(wanted.range[range], first * PAGE, count * PAGE, stream),
           note_committed(range, first, count,
                          info_of(range).recommits == before.info[range].recommits + count));
}

static void decommit(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                     xseg_stream stream)
{
    REPEAT(env, xseg_range_decommit(wanted.range[range], first * PAGE, count * PAGE, stream),
           memset(&wanted.tag[range][first], 0, count * sizeof(wanted.tag[range][0])));
}

static void note_aliased(unsigned range, unsigned first, unsigned count, unsigned from, unsigned at)
{
    memcpy(&wanted.tag[range][first], &wanted.tag[from][at], count * sizeof(uint64_t));
    memcpy(&wanted.left[range][first], &wanted.tag[from][at], count * sizeof(uint64_t));
}

static void alias(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                  unsigned from, unsigned at)
{
    REPEAT(env,
           xseg_range_alias(wanted.range[range], first * PAGE, count * PAGE, wanted.range[from],
                            at * PAGE),
           note_aliased(range, first, count, from, at));
}

static void hold(struct fault_env *env, unsigned range, unsigned first, unsigned count)
{
    do
        record_state(env);
    while (again(env, xseg_range_hold(wanted.range[range], first * PAGE, count * PAGE)));
}

static void unhold(struct fault_env *env, unsigned range, unsigned first, unsigned count,
                   xseg_stream stream)
{
    do
        record_state(env);
    while (again(env, xseg_range_unhold(wanted.range[range], first * PAGE, count * PAGE, stream)));
}

static void prepare(struct fault_env *env, unsigned range, unsigned count)
{
    REPEAT(env, xseg_range_prepare(wanted.range[range], count * PAGE),
           assert_true(info_of(range).prepared_bytes >= count * PAGE));
}

static void set_quota(struct fault_env *env, unsigned range, unsigned count)
{
    do
        record_state(env);
    while (again(env, xseg_range_set_quota(wanted.range[range], count * PAGE)));
}

static void release(struct fault_env *env, unsigned range)
{
    REPEAT(env, xseg_range_release(wanted.range[range]), wanted.range[range] = NULL);
}

static void resume(struct fault_env *env, unsigned range)
{
    struct xseg_pool *pool = wanted.range[range]->state->pool;
    xseg_status status;

    do {
        record_state(env);
        status = xseg_pool_resume(pool);
        wanted.paused[range] = status != XSEG_OK;
    } while (again(env, status));
}

/* A pause that could not be undone leaves the pool paused, and nothing is lost. */
static void pause(struct fault_env *env, unsigned range)
{
    struct xseg_pool *pool = wanted.range[range]->state->pool;
    xseg_status status;
    bool is_again;

    do {
        record_state(env);
        status = xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL);
        wanted.paused[range] = pool->state == XSEG_POOL_PAUSED;
        is_again = again(env, status);
        if (is_again && wanted.paused[range])
            resume(env, range);
    } while (is_again);
}

static void take_checkpoint(struct fault_env *env)
{
    REPEAT(env, xseg_pool_checkpoint(wanted.pool, &wanted.checkpoint),
           memcpy(wanted.saved, wanted.tag, sizeof(wanted.saved)));
}

/* Exactly the granules of the checkpoint are committed, those that were decommitted with what they contained. */
static void note_restored(void)
{
    for (unsigned range = 0; range < RANGES; range++)
        for (unsigned at = 0; at < GRANULES; at++) {
            if (wanted.tag[range][at] == 0)
                wanted.tag[range][at] = wanted.left[range][at];
            if (wanted.saved[range][at] == 0)
                wanted.tag[range][at] = 0;
        }
}

static void restore(struct fault_env *env)
{
    REPEAT(env, xseg_pool_restore(wanted.pool, wanted.checkpoint, fault_log_restored, env),
           note_restored());
}

/* Work of the second stream on granules, which runs until a call waits. */
static void work(const struct fault_env *env, unsigned range, unsigned first, unsigned count)
{
    assert_int_equal(xseg_sim_launch_on(env->side, UINT64_MAX,
                                        (uint64_t)(uintptr_t)info_of(range).base + first * PAGE,
                                        count * PAGE),
                     XSEG_OK);
}

/* --- The scenarios. --- */

static void begin(struct fault_env *env, const char *config)
{
    memset(&wanted, 0, sizeof(wanted));
    fault_free_and_trim(env, fault_alloc(env, 1000, env->side));
    if (config != NULL)
        fault_configure(env, config);
}

/* New memory, memory that is taken back on the same stream and on another one, and memory that goes. */
static void come_and_go(struct fault_env *env)
{
    begin(env, NULL);
    faults_begin();
    reserve(env, 0, 0);
    commit(env, 0, 1, 3, env->side);
    work(env, 0, 1, 3);
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

/* The same with cached pages and prepared pages. */
static void with_idle_pages(struct fault_env *env)
{
    begin(env, "page_cache_mb:8");
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

/* Aliased pages, whose first mappings are removed first; granules that are pending unmap cannot become aliases. */
static void aliased(struct fault_env *env)
{
    begin(env, NULL);
    reserve(env, 0, 0);
    reserve(env, 1, 0);
    commit(env, 0, 0, 4, env->side);
    faults_begin();
    alias(env, 1, 3, 3, 0, 1);
    alias(env, 0, 8, 2, 1, 3);
    work(env, 1, 3, 3);
    work(env, 0, 8, 2);
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

/* Aliases, in a pool that is paused; then the first mappings have been removed. */
static void paused(struct fault_env *env)
{
    begin(env, NULL);
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

/* Holds, over decommits. */
static void held(struct fault_env *env)
{
    begin(env, NULL);
    reserve(env, 0, 0);
    faults_begin();
    hold(env, 0, 1, 4);
    hold(env, 0, 2, 1);
    commit(env, 0, 0, 4, NULL);
    work(env, 0, 1, 3);
    decommit(env, 0, 0, 4, NULL);
    commit(env, 0, 3, 1, env->side);
    decommit(env, 0, 3, 1, env->side);
    unhold(env, 0, 1, 4, env->side);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    unhold(env, 0, 2, 1, NULL);
    release(env, 0);
    faults_end();
}

/* A device with 14 pages of memory, which come from cached blocks, from granules pending unmap, and from pages
 * prepared for others; one of the ranges is at its limit. */
static void running_short(struct fault_env *env)
{
    begin(env, "hard_limit_mb:28");
    reserve(env, 0, 0);
    reserve(env, 1, 4 * PAGE);
    fault_free(env, fault_alloc(env, MIB, env->side));
    commit(env, 0, 0, 6, env->side);
    commit(env, 1, 0, 4, env->side);
    faults_begin();
    prepare(env, 0, 2);
    commit(env, 0, 6, 3, NULL);
    work(env, 0, 0, 6);
    work(env, 1, 0, 2);
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

/* A pool of ranges and blocks that is restored: granules that left with either stream, and were held, come back, and
 * others leave, some of them mappings of one page.  A restore that has failed has freed no block. */
static void restored(struct fault_env *env)
{
    begin(env, NULL);
    wanted.pool = fault_pool(env, NULL);
    reserve(env, 0, 0);
    hold(env, 0, 0, 3);
    commit(env, 0, 0, 4, env->side);
    void *block = fault_alloc_in(env, wanted.pool, 3 * MIB, NULL);
    faults_begin();
    take_checkpoint(env);
    work(env, 0, 1, 1);
    decommit(env, 0, 0, 2, env->side);
    decommit(env, 0, 2, 1, NULL);
    reserve(env, 1, 0);
    commit(env, 1, 4, 3, env->side);
    commit(env, 0, 6, 1, NULL);
    alias(env, 0, 8, 2, 1, 4);
    fault_free(env, block);
    (void)fault_alloc_in(env, wanted.pool, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    restore(env);
    commit(env, 0, 4, 2, NULL);
    restore(env);
    assert_int_equal(info_of(0).committed_bytes, 4 * PAGE);
    xseg_checkpoint_destroy(wanted.checkpoint);
    fault_free(env, block);
    unhold(env, 0, 0, 3, NULL);
    decommit(env, 0, 0, 4, NULL);
    release(env, 0);
    release(env, 1);
    FAULT_RETRY(env, xseg_pool_release(wanted.pool));
    faults_end();
}

/* The close releases the remaining ranges; the faults occur there as well. */
static void closed(struct fault_env *env)
{
    begin(env, NULL);
    reserve(env, 0, 0);
    reserve(env, 1, 0);
    commit(env, 0, 0, 4, env->side);
    alias(env, 1, 0, 2, 0, 1);
    work(env, 0, 0, 4);
    work(env, 1, 0, 2);
    faults_begin();
    prepare(env, 1, 2);
    decommit(env, 0, 0, 4, env->side);
    decommit(env, 1, 0, 2, env->side);
}

static const struct fault_suite_scenario scenarios[] = {
    {"come and go", come_and_go, 4, 4},
    {"with idle pages", with_idle_pages, 3, 3},
    {"aliased", aliased, 4, 4},
    {"paused", paused, 4, 4},
    {"held", held, 3, 3},
    {"running short", running_short, 4, 4},
    {"restored", restored, 4, 4},
    {"closed", closed, 3, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"ranges", scenarios, COUNT_OF(scenarios), NULL, aliased, 400};

    return fault_suite_run(&sweep);
}
