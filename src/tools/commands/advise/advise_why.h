/* SPDX-License-Identifier: MIT */
/*
 * Why a configuration is advised, or that none helps, as a sentence.
 *
 * Locking: none.
 */
#ifndef TOOLS_ADVISE_WHY_H
#define TOOLS_ADVISE_WHY_H

#include "src/tools/commands/advise/advise.h"

/* The sentence without its full stop.  Allocated; NULL without host memory. */
char *advise_why(const struct advice *advice);

#endif
