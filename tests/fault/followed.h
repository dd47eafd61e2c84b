/* SPDX-License-Identifier: MIT */
/* A stage whose history is followed: played from the start, it gives the state of xseg_for_each_block(). */
#ifndef XSEG_TESTS_FOLLOWED_H
#define XSEG_TESTS_FOLLOWED_H

#include "tests/fault/stage.h"

/* The only pool that the scenario makes, or NULL. */
extern struct xseg_pool *followed_pool;

/* Play the history, unless the host has failed: then events are missing. */
void followed(struct stage *stage);

/* How often histories were played so far. */
unsigned followed_plays(void);

#endif
