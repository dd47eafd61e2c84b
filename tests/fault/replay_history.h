/* SPDX-License-Identifier: MIT */
/* The history of a scenario, which is replayed from the start to the state of xseg_for_each_block(). */
#ifndef XSEG_TESTS_REPLAY_HISTORY_H
#define XSEG_TESTS_REPLAY_HISTORY_H

#include "tests/fault/fault_env.h"

/* The only pool that the scenario makes, or NULL. */
extern struct xseg_pool *replayed_pool;

/* Replay unless a host call has failed, since then events are missing. */
void replay_history(struct fault_env *env);

/* Histories replayed so far. */
unsigned history_replays(void);

#endif
