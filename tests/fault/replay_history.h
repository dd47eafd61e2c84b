/* SPDX-License-Identifier: MIT */
/* Replays the history of a scenario from the start; the final state must equal that of xseg_for_each_block(). */
#ifndef XSEG_TESTS_REPLAY_HISTORY_H
#define XSEG_TESTS_REPLAY_HISTORY_H

#include "tests/fault/fault_env.h"

/* The only private pool of the scenario, or NULL. */
extern struct xseg_pool *replayed_pool;

/* Replay the history and compare its final state, unless a host call has failed: then events may be missing. */
void replay_history(struct fault_env *env);

/* Histories replayed so far. */
unsigned history_replays(void);

#endif
