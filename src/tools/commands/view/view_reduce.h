/* SPDX-License-Identifier: MIT */
/*
 * A history with more lives than a page can have, made smaller: the lives with the most bytes x events stay, and of the
 * others the sum of their bytes.  Their events are gone, and the events that stay are numbered anew.
 *
 * Between two events that stay only summed lives change, so the peak of all memory is what it was.
 *
 * Locking: none.
 */
#ifndef TOOLS_VIEW_REDUCE_H
#define TOOLS_VIEW_REDUCE_H

#include "src/tools/commands/view/view_lives.h"

/* Returns false without host memory; the lives have to be ended as before. */
bool view_lives_reduce(struct view_lives *lives, size_t most_lives);

#endif
