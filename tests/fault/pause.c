/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over pause and resume, on 120 MiB in several segments (30 MiB where a file is written).  After a failed
 * pause the pool is unchanged; if a second fault occurs in the rollback, the pool may be paused instead, and the message
 * contains that.  After a failed resume it is still paused, and retains no memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/fault_env.h"

static char file_name[] = P_tmpdir "/xseg-fault-pause-XXXXXX";

static unsigned strandings; /* failed pauses without rollback */

/* Expect that no memory of the pool is reserved; failed releases of the driver are unreleased memory. */
static void expect_released(struct fault_env *env, uint64_t others)
{
    struct xseg_scope scope = {sizeof(scope), .device = 0};
    struct xseg_statistics stats = {sizeof(stats)};

    FAULT_RETRY(env, xseg_stats_get(env->allocator, &scope, &stats));
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, others);
    assert_int_equal(xseg_sim_used(0), others + stats.unreleased_bytes);
}

static void resume(struct fault_env *env, struct xseg_pool *pool, uint64_t others)
{
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_resume(pool);

        if (status == XSEG_OK)
            env->paused = NULL;
        is_retried = fault_retry(env, status);
        if (is_retried)
            expect_released(env, others);
    } while (is_retried);
}

static void pause_with(struct fault_env *env, struct xseg_pool *pool, enum xseg_keep keep,
                       uint64_t others)
{
    const char *name = keep == XSEG_KEEP_FILE ? file_name : NULL;
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_pause(pool, keep, name);
        const bool stranded = status != XSEG_OK && fault_is_stranded();

        if (status == XSEG_OK || stranded)
            env->paused = pool;
        strandings += stranded;
        is_retried = fault_retry(env, status);
        if (stranded)
            resume(env, pool, others);
    } while (is_retried);
}

static void set_up(struct fault_env *env, struct xseg_pool **pool)
{
    env->stride = 12 * MIB;
    assert_int_equal(xseg_pool_create(env->allocator, 0, NULL, pool), XSEG_OK);
}

/* Pause and resume `whole` MiB: segments of large pages on two streams, and a segment of small pages. */
static void pause_and_resume(struct fault_env *env, enum xseg_keep keep, size_t whole)
{
    struct xseg_pool *pool = NULL;
    void *ptr[5];

    set_up(env, &pool);
    ptr[0] = fault_alloc_in(env, pool, whole * MIB / 2, NULL);
    ptr[1] = fault_alloc_in(env, pool, whole * MIB / 10, NULL);
    ptr[2] = fault_alloc_in(env, pool, whole * MIB / 3, env->side);
    ptr[3] = fault_alloc_in(env, pool, MIB, NULL);
    ptr[4] = fault_alloc_in(env, pool, MIB, NULL);
    void *other = fault_alloc(env, 700 * KIB, NULL);
    fault_free(env, ptr[1]); /* cached memory is paused and resumed as well */
    faults_begin();
    pause_with(env, pool, keep, 2 * MIB);
    expect_released(env, 2 * MIB);
    fault_free(env, ptr[4]);
    /* Discarded contents are lost. */
    const bool had_bytes = env->bytes;
    env->bytes = had_bytes && keep != XSEG_KEEP_NOTHING;
    resume(env, pool, 2 * MIB);
    faults_end();
    assert_int_not_equal(access(file_name, F_OK), 0);
    fault_free(env, fault_alloc_in(env, pool, 10 * MIB, NULL));
    for (unsigned i = 0; i < 4; i += i == 0 ? 2 : 1)
        fault_free(env, ptr[i]);
    env->bytes = had_bytes;
    fault_free(env, other);
}

static void keep_nothing(struct fault_env *env)
{
    pause_and_resume(env, XSEG_KEEP_NOTHING, 120);
}

static void keep_on_host(struct fault_env *env)
{
    pause_and_resume(env, XSEG_KEEP_HOST, 120);
}

/* The pause searches the contents for zeros, which takes time, so the pool is smaller. */
static void keep_in_file(struct fault_env *env)
{
    pause_and_resume(env, XSEG_KEEP_FILE, 30);
}

/* A paused pool that is never resumed: a trim discards its contents. */
static void never_resumed(struct fault_env *env)
{
    struct xseg_pool *pool = NULL;

    set_up(env, &pool);
    void *ptr = fault_alloc_in(env, pool, 66 * MIB, NULL);
    faults_begin();
    pause_with(env, pool, XSEG_KEEP_HOST, 0);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    fault_free_and_trim(env, ptr);
    faults_end();
}

/* The close destroys a paused pool; faults are injected there as well. */
static void closed(struct fault_env *env)
{
    struct xseg_pool *pool = NULL;

    set_up(env, &pool);
    fault_free(env, fault_alloc_in(env, pool, 66 * MIB, NULL));
    faults_begin();
    pause_with(env, pool, XSEG_KEEP_HOST, 0);
}

static const struct fault_suite_scenario scenarios[] = {
    {"keep nothing", keep_nothing, 4, 6},
    {"keep on the host", keep_on_host, 2, 4},
    {"keep in a file", keep_in_file, 1, 0},
    {"never resumed", never_resumed, 2, 4},
    {"closed", closed, 2, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"pause", scenarios,    COUNT_OF(scenarios),
                                      NULL,    keep_on_host, 400};
    const int file = mkstemp(file_name);

    if (file < 0 || close(file) != 0 || unlink(file_name) != 0)
        return 1;
    const int failed = fault_suite_run(&sweep);
    print_message("# %u pauses could not be undone\n", strandings);
    return failed != 0 || strandings == 0;
}
