/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over pause and resume, on 120 MiB in several segments (30 MiB where a file is written).  After a failed
 * pause the pool is unchanged; if a second fault occurs in the rollback, the pool may be paused instead, and the message
 * states this.  After a failed resume the pool is still paused, and has no memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/fault_env.h"

static char file_name[] = P_tmpdir "/xseg-fault-pause-XXXXXX";

static unsigned failed_rollbacks; /* failed pauses whose rollback also failed */

/* Expect that only other memory is reserved.  Memory whose release failed is still used, and counted as unreleased. */
static void expect_released(struct fault_env *env, uint64_t other_bytes)
{
    struct xseg_scope scope = {sizeof(scope), .device = 0};
    struct xseg_statistics stats = {sizeof(stats)};

    FAULT_RETRY(env, xseg_stats_get(env->allocator, &scope, &stats));
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, other_bytes);
    assert_int_equal(xseg_sim_used(0), other_bytes + stats.unreleased_bytes);
}

static void resume(struct fault_env *env, struct xseg_pool *pool, uint64_t other_bytes)
{
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_resume(pool);

        if (status == XSEG_OK)
            env->paused_pool = NULL;
        is_retried = fault_retry(env, status);
        if (is_retried)
            expect_released(env, other_bytes);
    } while (is_retried);
}

static void pause_with(struct fault_env *env, struct xseg_pool *pool, enum xseg_keep keep,
                       uint64_t other_bytes)
{
    const char *name = keep == XSEG_KEEP_FILE ? file_name : NULL;
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_pause(pool, keep, name);
        const bool rollback_failed = status != XSEG_OK && fault_rollback_failed();

        if (status == XSEG_OK || rollback_failed)
            env->paused_pool = pool;
        failed_rollbacks += rollback_failed;
        is_retried = fault_retry(env, status);
        if (rollback_failed)
            resume(env, pool, other_bytes);
    } while (is_retried);
}

static void set_up(struct fault_env *env, struct xseg_pool **pool)
{
    env->stride = 12 * MIB;
    assert_int_equal(xseg_pool_create(env->allocator, 0, NULL, pool), XSEG_OK);
}

/* Pause and resume a pool of about `total_mib`: segments of large pages on two streams, and a segment of small pages.
 * Outside the pool, a small block reserves a page of 2 MiB. */
static void pause_and_resume(struct fault_env *env, enum xseg_keep keep, size_t total_mib)
{
    struct xseg_pool *pool = NULL;
    void *ptr[5];

    set_up(env, &pool);
    ptr[0] = fault_alloc_in(env, pool, total_mib * MIB / 2, NULL);
    ptr[1] = fault_alloc_in(env, pool, total_mib * MIB / 10, NULL);
    ptr[2] = fault_alloc_in(env, pool, total_mib * MIB / 3, env->side);
    ptr[3] = fault_alloc_in(env, pool, MIB, NULL);
    ptr[4] = fault_alloc_in(env, pool, MIB, NULL);
    void *other = fault_alloc(env, 700 * KIB, NULL);
    fault_free(env, ptr[1]); /* cached memory is paused and resumed as well */
    faults_begin();
    pause_with(env, pool, keep, 2 * MIB);
    expect_released(env, 2 * MIB);
    fault_free(env, ptr[4]);
    /* Discarded contents are lost. */
    const bool had_contents = env->has_contents;
    env->has_contents = had_contents && keep != XSEG_KEEP_NOTHING;
    resume(env, pool, 2 * MIB);
    faults_end();
    assert_int_not_equal(access(file_name, F_OK), 0);
    fault_free(env, fault_alloc_in(env, pool, 10 * MIB, NULL));
    fault_free(env, ptr[0], ptr[2], ptr[3]);
    env->has_contents = had_contents;
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
static void trim_paused_pool(struct fault_env *env)
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

/* The close destroys a paused pool; faults are also injected into the close. */
static void close_paused_pool(struct fault_env *env)
{
    struct xseg_pool *pool = NULL;

    set_up(env, &pool);
    fault_free(env, fault_alloc_in(env, pool, 66 * MIB, NULL));
    faults_begin();
    pause_with(env, pool, XSEG_KEEP_HOST, 0);
}

static const struct fault_suite_scenario scenarios[] = {
    {"keep nothing", keep_nothing, 4, 6},   {"keep on the host", keep_on_host, 2, 4},
    {"keep in a file", keep_in_file, 1, 0}, {"never resumed", trim_paused_pool, 2, 4},
    {"closed", close_paused_pool, 2, 4},
};

int main(void)
{
    const struct fault_suite sweep = {"pause", scenarios,    COUNT_OF(scenarios),
                                      NULL,    keep_on_host, 400};
    const int fd = mkstemp(file_name);

    if (fd < 0 || close(fd) != 0 || unlink(file_name) != 0)
        return 1;
    const int failed = fault_suite_run(&sweep);
    print_message("# %u pauses could not be undone\n", failed_rollbacks);
    return failed != 0 || failed_rollbacks == 0;
}
