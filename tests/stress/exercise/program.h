/* SPDX-License-Identifier: MIT */
/* Programs: lists of operations, each a kind and a number that determines all its choices, so a list can be run without some of them.
 * With one thread a program is deterministic. */
#ifndef XSEG_TESTS_EXERCISE_PROGRAM_H
#define XSEG_TESTS_EXERCISE_PROGRAM_H

#include "tests/stress/exercise/world.h"

void program_play(const struct world_options *options, unsigned count);

/* Find a shorter list that fails as well, trying each in a child process, and run it; for programs of one thread. */
void program_shrink(const struct world_options *options, unsigned count);

#endif
