/* SPDX-License-Identifier: MIT */
/* Programs: lists of operations.  The kind and the random number of an operation determine all its choices, so operations
 * can be removed from a list.  A program with one thread is deterministic. */
#ifndef XSEG_TESTS_EXERCISE_PROGRAM_H
#define XSEG_TESTS_EXERCISE_PROGRAM_H

#include "tests/stress/exercise/world.h"

void program_play(const struct world_options *options, unsigned count);

/* Find a shorter list of operations that fails as well, and run it.  Each candidate runs in a child process.  Only for
 * programs with one thread. */
void program_shrink(const struct world_options *options, unsigned count);

#endif
