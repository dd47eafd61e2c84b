/* SPDX-License-Identifier: MIT */
#include "tests/fault/replay_history.h"

#include <stdlib.h>

#include "tests/fault/host_faults.h"
#include "tests/model/replay.h"
#include "tests/support/history_list.h"

struct xseg_pool *replayed_pool;

static unsigned plays;

static void play(struct fault_env *env)
{
    struct history_list recorded = history_read(env->allocator, -1);
    struct replay replay = {.blocks = 0},
                  is = replay_read(env->allocator, &replayed_pool, replayed_pool != NULL);

    assert_int_equal(recorded.summary.lost, 0);
    for (size_t i = 0; i < recorded.count; i++)
        if (!replay_apply(&replay, &recorded.entry[i]))
            fail_msg("event %zu of %zu, %s: %s", i, recorded.count,
                     history_action_name(recorded.entry[i].action), replay.why);
    if (!replay_equal(&replay, &is))
        fail_msg("after %zu events: %s", recorded.count, replay.why);
    replay_free(&replay);
    replay_free(&is);
    free(recorded.entry);
    plays++;
}

void replay_history(struct fault_env *env)
{
    host_fault_suspend(true);
    if (host_fault_count() == 0 && env->allocator != NULL)
        play(env);
    host_fault_suspend(false);
}

unsigned history_replays(void)
{
    return plays;
}
