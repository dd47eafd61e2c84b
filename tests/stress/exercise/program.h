/* SPDX-License-Identifier: MIT */
/* Programs: lists of operations.  The kind and the number of an operation determine all its choices, so a list can run
 * without some operations.  A program with one thread is deterministic. */
#ifndef XSEG_TESTS_EXERCISE_PROGRAM_H
#define XSEG_TESTS_EXERCISE_PROGRAM_H

#include "tests/stress/exercise/world.h"

void program_play(const struct world_options *options, unsigned count);

/* Find a shorter list that fails as well, trying each in a child process, and run it; for programs of one thread. */
void program_shrink(const struct world_options *options, unsigned count);

#endif
