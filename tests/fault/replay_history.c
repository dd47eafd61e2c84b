/* SPDX-License-Identifier: MIT */
#include "tests/fault/replay_history.h"

#include <stdlib.h>

#include "tests/fault/host_faults.h"
#include "tests/model/replay.h"
#include "tests/support/history_list.h"

struct xseg_pool *replayed_pool;

static unsigned replay_count;

static void replay_and_compare(struct fault_env *env)
{
    struct history_list history = history_read(env->allocator, -1);
    struct replay replay = {.blocks = 0},
                  current = replay_read(env->allocator, &replayed_pool, replayed_pool != NULL);

    assert_int_equal(history.summary.lost, 0);
    for (size_t i = 0; i < history.count; i++)
        if (!replay_apply(&replay, &history.entry[i]))
            fail_msg("event %zu of %zu, %s: %s", i, history.count,
                     history_action_name(history.entry[i].action), replay.error);
    if (!replay_equal(&replay, &current))
        fail_msg("after %zu events: %s", history.count, replay.error);
    replay_free(&replay);
    replay_free(&current);
    free(history.entry);
    replay_count++;
}

void replay_history(struct fault_env *env)
{
    host_fault_suspend(true);
    if (host_fault_count() == 0 && env->allocator != NULL)
        replay_and_compare(env);
    host_fault_suspend(false);
}

unsigned history_replays(void)
{
    return replay_count;
}
