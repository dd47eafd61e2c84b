/* SPDX-License-Identifier: MIT */
/*
 * A command that is given folders: it reads them, and says which rank is the odd one before what only it has to say.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANKS_RUN_H
#define TOOLS_RANKS_RUN_H

#include <jansson.h>

#include "src/tools/ranks/ranks_job.h"

/* The verdict, and which folders it is about. */
void ranks_run_heading(const struct ranks_job *job, const char *verdict);

/* The object that begins so; NULL without host memory. */
json_t *ranks_run_json(const struct ranks_job *job, const char *verdict);

/*
 * Read the folders and print.
 *
 * print:      returns false where standard error has a sentence instead
 * if_differs: the exit status where the ranks, or the two jobs, differ
 *
 * Returns: the exit status
 */
int ranks_run(const struct option_values *arguments,
              bool (*print)(const struct ranks_job *job, const char *verdict), int if_differs);

#endif
