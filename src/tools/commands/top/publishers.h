/* SPDX-License-Identifier: MIT */
/*
 * The processes that publish their statistics (src/base/published.h), found in /proc.
 *
 * The contents of such files are not trusted: any process can have a file with that name and change it at any time.  Therefore
 * a file is copied first, and the copy is validated.  A file belongs to a process only if that process wrote it, because a
 * process can exit at any time and another process can get its ID.
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
    char command[64];  /* printable */
    const char *error; /* reason why its file cannot be read; NULL: the sample is valid */
    double age;        /* of the sample, in seconds */
    struct xseg_published_sample sample; /* valid if `error` is NULL */
};

struct publishers {
    struct publisher **list; /* sorted by pid */
    size_t count;
    unsigned hidden; /* processes whose file descriptors this user may not read */
};

/*
 * Read the statistics of all processes, or of one.
 *
 * @param pid  0: all processes
 * @return 0; ENOMEM; or the error of opening /proc.  After an error, `publishers` is empty
 */
int publishers_find(struct publishers *publishers, pid_t pid);
void publishers_fini(struct publishers *publishers);

/*
 * Copy the current sample from the contents of a file and validate it: counts and kinds are in range, the device of each pool
 * exists, and strings are printable and terminated.
 *
 * @param header  receives the data before the samples
 * @param reason  receives an error message if the contents are invalid
 */
bool published_copy(const void *bytes, size_t count, struct xseg_published *header,
                    struct xseg_published_sample *sample, const char **reason);

/* Read the current sample of an open file of any type, as published_copy() does.  Does not block. */
bool published_read(int file, struct xseg_published *header, struct xseg_published_sample *sample,
                    const char **reason);

#endif
