/* SPDX-License-Identifier: MIT */
/* Names of a process's own files: by its rank, as launchers of several processes say it, and its number. */
#ifndef XSEG_CORE_SNAPSHOT_RANK_H
#define XSEG_CORE_SNAPSHOT_RANK_H

#include <stddef.h>

/*
 * Write `FOLDER/WHAT-rankR-pidP-N.pickle`; the rank is that of RANK, SLURM_PROCID, else LOCAL_RANK, and is left out
 * where none of them is a number.
 *
 * Returns: the length of the name, which was cut if it is not below `bytes`
 */
size_t xseg_snapshot_rank_name(char *name, size_t bytes, const char *folder, const char *what,
                               unsigned number);

#endif
