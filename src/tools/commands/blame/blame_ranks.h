/* SPDX-License-Identifier: MIT */
/*
 * `xseg blame` of a folder: the sites of all ranks of a job.
 *
 * Locking: none.
 */
#ifndef TOOLS_BLAME_RANKS_H
#define TOOLS_BLAME_RANKS_H

#include "src/tools/command/option.h"

/* Returns the exit status. */
int blame_ranks(const struct option_values *arguments);

#endif
