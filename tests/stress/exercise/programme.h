/* SPDX-License-Identifier: MIT */
/*
 * Programmes: lists of operations, and their play.
 *
 * Each operation is a kind and a number from which everything follows that it does, so a list can be
 * played without some of them.  With one thread a programme is the same each time.
 */
#ifndef XSEG_TESTS_EXERCISE_PROGRAMME_H
#define XSEG_TESTS_EXERCISE_PROGRAMME_H

#include "tests/stress/exercise/world.h"

struct operation {
    unsigned kind;
    uint64_t number;
};

/* The operations of one thread of a programme; the caller frees them. */
struct operation *programme_list(uint64_t seed, unsigned thread, unsigned count);

/* Play a programme of one thread from a list; of several, each by its own list. */
void programme_play_list(const struct world_options *options, const struct operation *list,
                         unsigned count);
void programme_play(const struct world_options *options, unsigned count);

/*
 * Find a shorter list that fails as well, trying each in a child process, and play that; for programmes
 * of one thread.
 */
void programme_shrink(const struct world_options *options, unsigned count);

/* The name of a kind. */
const char *programme_name(unsigned kind);

#endif
