/* SPDX-License-Identifier: MIT */
/*
 * The processes that publish their memory (xseg/published.h), found under /proc.
 *
 * A process may end at any time, and another one get its number: a file is taken for that of a process only if that
 * process wrote it.
 *
 * Locking: none.
 */
#ifndef TOOLS_PUBLISHERS_H
#define TOOLS_PUBLISHERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "src/base/published.h"

/* An allocator of a process. */
struct publisher {
    pid_t pid;
    char command[64];                   /* of the process, printable */
    const char *problem;                /* why its file cannot be read; NULL: it was */
    double age;                         /* seconds since the frame was filled */
    struct xseg_published_sample frame; /* where there is no problem */
};

struct publishers {
    struct publisher **list; /* in order of pid */
    size_t count;
    unsigned hidden; /* processes whose descriptors may not be looked at */
};

/*
 * Look at all processes, or at one.
 *
 * pid: 0 for all
 * Returns: 0, or an errno: /proc is not there (ENOENT, ...), or ENOMEM.  After an error there is nothing to end.
 */
int publishers_find(struct publishers *publishers, pid_t pid);
void publishers_fini(struct publishers *publishers);

#endif
