/* SPDX-License-Identifier: MIT */
/*
 * Standard output: what could not be written is an error.  whole_file.h writes files.
 *
 * Locking: none.
 */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* First of all: no file that is opened later becomes standard input, output or error, and a write beyond the limit on the size
 * of files fails instead of ending the process. */
void output_guard(void);

/* Flush a stream.  Returns whether everything could be written so far; errno is set if the flush fails.  output_finish() reports
 * the reason of the first failure of standard output. */
bool output_flush(FILE *file);

/* Last of all: whether everything was written to standard output.  Returns false where it was not: standard error has the
 * sentence. */
bool output_finish(void);

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
