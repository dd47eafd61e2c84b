/* SPDX-License-Identifier: MIT */
/*
 * A file that a command writes: it is complete or absent.  The file is written under a temporary name in the same folder, and
 * renamed when all of it is written, so what was in its place stays until then.  Where a path is a symbolic link, the file
 * that it leads to is replaced.
 *
 * A signal that ends the process, but for SIGKILL, removes the temporary file.  A full disk, a limit on the size of files and
 * a closed pipe are errors of a write: SIGPIPE is ignored once a file is open.
 *
 * Standard output (`-`) is written as it is, and so is a path to standard output or standard error, such as /dev/stdout, or to
 * something else than a regular file, such as a pipe or a terminal.
 *
 * Locking: none; all files are opened and closed by one thread.  At most WHOLE_FILES are open at a time.
 */
#ifndef TOOLS_WHOLE_FILE_H
#define TOOLS_WHOLE_FILE_H

#include <stdbool.h>
#include <stdio.h>

#define WHOLE_FILES 4u

/* Zeros: closed.  It must not be moved while it is open. */
struct whole_file {
    const char *path;
    char *place;  /* the path without symbolic links; NULL: written in place */
    char *beside; /* the temporary name */
    FILE *out;
    int descriptor;
    int error; /* errno of the first write that failed */
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
 * As whole_file_open(), for a file that is written in addition to a report: where it is standard output, the report goes to
 * standard error.
 *
 * path: NULL: there is none; the file is closed, and the result true
 */
bool whole_file_open_second(struct whole_file *file, const char *path, char *const *inputs,
                            int input_count, FILE **report);

/*
 * Close it; no effect on a closed one.
 *
 * fine: whether all of it was made; otherwise nothing is left of it, and what was in its place stays
 *
 * Returns: `fine`, if it is complete; standard error has the sentence where it could not be written
 */
bool whole_file_close(struct whole_file *file, bool fine);

#endif
