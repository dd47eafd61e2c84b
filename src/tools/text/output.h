/* SPDX-License-Identifier: MIT */
/*
 * Standard output, and files that are written beside it: what could not be written is an error.
 *
 * Locking: none.
 */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* First of all: no file that is opened later becomes standard input, output or error. */
void output_guard(void);

/* Last of all: whether everything was written to standard output.  Returns false where it was not: standard error has the
 * sentence. */
bool output_finish(void);

/*
 * Open a file to write beside a report.  Where it is standard output, `-`, the report goes to standard error.
 *
 * path: NULL: there is none, and *out stays as it is
 *
 * Returns: false where it cannot be written: standard error has the sentence
 */
bool output_open(const char *path, FILE **out, FILE **report);

/* Close it; NULL and standard output are fine.  Returns whether all of it was written, or standard error has the sentence. */
bool output_close(const char *path, FILE *file);

/*
 * Write an object, which is given up, and end the line.  What could not be written is seen by output_finish().
 *
 * Returns: false where there is none, for want of host memory: standard error has the sentence
 */
bool output_json(FILE *out, json_t *object);

/* Add an item to a list, or a key to an object; the item is given up.  Without it, for want of host memory, *to is given up,
 * too, and NULL from then on. */
void output_json_add(json_t **to, json_t *item);
void output_json_set(json_t **to, const char *key, json_t *item);

/* A number, or NULL, which json_pack() takes as null (`o?`) or as no key (`o*`). */
json_t *output_json_number(bool is_there, uint64_t number);

#endif
