/* SPDX-License-Identifier: MIT */
/*
 * `xseg blame` and `xseg compare` where they are given folders.  Each returns the exit status of its command.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANKS_RUN_H
#define TOOLS_RANKS_RUN_H

#include "src/tools/command/command.h"

int ranks_run_blame(const struct option_values *arguments);
int ranks_run_compare(const struct option_values *arguments);

#endif
