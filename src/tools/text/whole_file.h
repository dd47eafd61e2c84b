/* SPDX-License-Identifier: MIT */
/*
 * A file that is whole or not there: it is written beside its place, under a name that nothing else has, and put there when
 * all of it is written.  Where a place is a symbolic link, the file that it leads to is replaced.
 *
 * SIGINT, SIGTERM and SIGHUP leave nothing of it, either.
 *
 * Standard output (`-`), and a place that holds something else than a regular file, such as a pipe or a terminal, are
 * written as they are.
 *
 * Locking: none; one file at a time, by one thread.
 */
#ifndef TOOLS_WHOLE_FILE_H
#define TOOLS_WHOLE_FILE_H

#include <stdbool.h>
#include <stdio.h>

struct whole_file {
    const char *path;
    char *place;  /* where it goes; NULL: it is written there, not beside it */
    char *beside; /* of it */
    FILE *out;
};

/*
 * Open a file.
 *
 * path:   must live as long as the file; `-` is standard output
 * inputs: paths of `input_count` files that it must not replace
 *
 * Returns: false where it cannot be written: standard error has the sentence, and there is nothing to close
 */
bool whole_file_open(struct whole_file *file, const char *path, char *const *inputs,
                     int input_count);

/*
 * Close it.
 *
 * fine: whether all of it was made; otherwise nothing is left of it, and what was in its place stays
 *
 * Returns: whether it is whole; standard error has the sentence where it could not be written
 */
bool whole_file_close(struct whole_file *file, bool fine);

#endif
