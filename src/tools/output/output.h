/* SPDX-License-Identifier: MIT */
/*
 * Standard output, JSON and files that a command writes.
 *
 * Standard output is checked once, at the end of the program: a report that could not be written completely is an
 * error.
 *
 * An *output file* is complete or absent.  It is written to a temporary file in the same folder, which is renamed to
 * its path when it is complete, so the previous file remains until then.  If the path is a symbolic link, its target
 * is replaced.  SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2 and SIGXCPU remove the temporary file
 * before they end the process; SIGKILL and signals of a crash leave it.  A full disk, a limit on the size of files and
 * a closed pipe are write errors: SIGXFSZ is ignored, and so is SIGPIPE once a file has been opened.
 * The first error is recorded, and output_file_close() reports it.
 *
 * Standard output (`-`), a path to standard output or standard error (such as /dev/stdout) and any path that is not a
 * regular file (a pipe, a device) are written directly.
 *
 * Locking: none; one thread opens and closes files, at most OUTPUT_FILES at a time.
 */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* --- Standard output. --- */

/* Call this first in main().  It opens /dev/null for closed standard streams, so that no file gets their descriptors,
 * and ignores SIGXFSZ, so that a write beyond the limit on file sizes fails. */
void output_init(void);

/* Replace the process by a program, which is searched for in PATH, with the signal handlers of its start.  Returns the errno
 * of the failure. */
int output_execute(const char *program, char **arguments);

/* Flush a stream.  Returns whether all writes to it have succeeded; errno is set if the flush fails. */
bool output_flush(FILE *file);

/* Call this last: flush standard output, and report on standard error if it could not be written.  Returns whether all
 * output was written. */
bool output_finish(void);

/* --- JSON.  Each function takes over the reference to the object that it adds or writes. --- */

/* Write an object and a newline.  Returns false, with a message on standard error, if `object` is NULL (out of host
 * memory). */
bool output_json(FILE *out, json_t *object);

/* Append to an array, or set a key of an object.  On failure, or if `item` is NULL, *to is released and set to NULL. */
void output_json_add(json_t **to, json_t *item);
void output_json_set(json_t **to, const char *key, json_t *item);

/* Make an integer; NULL if the number does not exist, which json_pack() accepts as null (`o?`) or as an omitted key
 * (`o*`). */
json_t *output_json_number(bool exists, uint64_t number);

/* --- Files. --- */

#define OUTPUT_FILES 4u

/* Zero-filled: closed.  An open file must not be moved in memory. */
struct output_file {
    const char *path;
    char *target;    /* the resolved path; NULL: `path` is written directly */
    char *temporary; /* path of the temporary file */
    FILE *out;
    int descriptor;
    int error; /* errno of the first failed write */
};

/*
 * Open a file for writing.
 *
 * path:   must live until the file is closed; `-` is standard output.
 * inputs: paths of `input_count` files that must not be replaced.
 *
 * Returns: false, with a message on standard error, if the file cannot be opened; it is closed then
 */
bool output_file_open(struct output_file *file, const char *path, char *const *inputs,
                      int input_count);

/*
 * As output_file_open(), for a file that is written in addition to a report.  If the file is standard output, *report
 * is set to standard error.
 *
 * path: NULL: no file; the file is closed, and the result is true.
 */
bool output_file_open_second(struct output_file *file, const char *path, char *const *inputs,
                             int input_count, FILE **report);

/*
 * Close the file, and rename it to its path.  No effect on a closed file.
 *
 * is_complete: false: remove the temporary file; the previous file remains.
 *
 * Returns: whether the file is complete; a write error is reported on standard error
 */
bool output_file_close(struct output_file *file, bool is_complete);

#endif
