/* SPDX-License-Identifier: MIT */
/* Fault sweep over the histories of paused and resumed pools: the unmap and map events must match the mapped memory. */
#include <string.h>

#include "tests/fault/fault_env.h"
#include "tests/fault/replay_history.h"

static unsigned failed_rollbacks; /* failed pauses whose rollback also failed */

static void resume(struct fault_env *env, bool rollback_failed)
{
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_resume(replayed_pool);

        if (status == XSEG_OK)
            env->paused_pool = NULL;
        /* After a failed rollback it is undefined which pages are mapped, so the history is not compared. */
        if (status == XSEG_OK || !rollback_failed)
            replay_history(env);
        is_retried = fault_retry(env, status);
    } while (is_retried);
}

static void pause_pool(struct fault_env *env)
{
    bool is_retried;

    do {
        const xseg_status status = xseg_pool_pause(replayed_pool, XSEG_KEEP_NOTHING, NULL);
        const bool rollback_failed = status != XSEG_OK && fault_rollback_failed();

        if (status == XSEG_OK || rollback_failed)
            env->paused_pool = replayed_pool;
        if (!rollback_failed)
            replay_history(env);
        is_retried = fault_retry(env, status);
        failed_rollbacks += rollback_failed;
        if (rollback_failed)
            resume(env, true);
    } while (is_retried);
}

static void free_block(struct fault_env *env, void *ptr)
{
    fault_free(env, ptr);
    replay_history(env);
}

static void trim(struct fault_env *env)
{
    fault_trim(env, true);
    replay_history(env);
}

/* Faults are injected from the first pause on; the contents of blocks are discarded. */
static void pause_and_resume(struct fault_env *env)
{
    env->has_contents = false;
    assert_int_equal(xseg_pool_create(env->allocator, 0, NULL, &replayed_pool), XSEG_OK);
    void *a = fault_alloc_in(env, replayed_pool, 50 * MIB, NULL);
    void *b = fault_alloc_in(env, replayed_pool, 700, env->side);
    void *c = fault_alloc_in(env, replayed_pool, 30 * MIB, env->side);
    void *d = fault_alloc(env, 700, NULL);
    free_block(env, c);
    faults_begin();
    pause_pool(env);
    free_block(env, b);
    resume(env, false);
    b = fault_alloc_in(env, replayed_pool, 1000, env->side);
    replay_history(env);
    free_block(env, a);
    pause_pool(env);
    FAULT_RETRY(env, xseg_pool_release(replayed_pool));
    /* The paused pool is destroyed. */
    free_block(env, b);
    trim(env);
    env->paused_pool = NULL;
    free_block(env, d);
    trim(env);
    faults_end();
}

static const struct fault_suite_scenario scenarios[] = {
    {"pause and resume", pause_and_resume, 2, 6},
};

int main(void)
{
    const struct fault_suite sweep = {"paused_history",    scenarios,
                                      COUNT_OF(scenarios), "expandable_segments:True,history:all",
                                      pause_and_resume,    200};
    const int failed = fault_suite_run(&sweep);

    print_message("# %u pauses could not be undone, %u histories were replayed\n", failed_rollbacks,
                  history_replays());
    return failed != 0 || failed_rollbacks == 0 || history_replays() < 1000;
}
