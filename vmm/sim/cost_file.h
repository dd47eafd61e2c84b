/* SPDX-License-Identifier: MIT */
/*
 * Costs as a file: a line for each member of struct sim_costs, under its name.
 *
 *     # from a '#' to the end of its line nothing counts
 *     name = NVIDIA A100-SXM4-80GB
 *     reserve = 2000
 *     create = 7000 150 0
 *
 * Numbers are nanoseconds, up to SIM_COST_MOST.  What grows with size has up to three: base, for each
 * MiB, and the least; those left out are 0.  Every member is there once, in any order; a name is
 * printable ASCII.
 *
 * An error leaves the costs unchanged.  Its message begins with the line, except for errors of the whole file.
 *
 * Locking: none.
 */
#ifndef XSEG_SIM_COST_FILE_H
#define XSEG_SIM_COST_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "vmm/sim/cost.h"

/* Far more than such a file needs, and enough for many comments. */
#define SIM_COST_FILE_BYTES ((size_t)64 << 10)

/** Whether a name is a file's: it has a '/' or a '.', which no preset has. */
bool sim_cost_file_is(const char *name);

/** Parse the contents of a file.  Returns: false with a message in `why` if they are invalid. */
bool sim_cost_file_parse(const char *text, size_t length, struct sim_costs *costs, char *why,
                         size_t why_bytes);

/** Read a file.  Returns: as above. */
bool sim_cost_file_read(const char *path, struct sim_costs *costs, char *why, size_t why_bytes);

#endif
