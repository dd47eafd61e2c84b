/* SPDX-License-Identifier: MIT */
/*
 * The bytes of an open file, plain or compressed with Zstandard, whatever its name: what its first
 * bytes say counts.
 *
 * Locking: none; an input belongs to one thread.
 */
#ifndef TOOLS_INPUT_H
#define TOOLS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define INPUT_MOST  ((uint64_t)4 << 30) /* bytes in one file, decompressed */
#define INPUT_BEGIN 4096                /* bytes that input_begin() returns at most */

struct input;

/* Start reading an open file, which stays the caller's.  Returns NULL without host memory. */
struct input *input_open(FILE *file);
void input_close(struct input *input);

/*
 * The next bytes, at most `room` (at least 1) of them.
 *
 * Returns: how many; 0 at the end of the file, or where input_problem() says why there is no next
 *          byte.
 */
size_t input_read(struct input *input, void *to, size_t room);

/*
 * The first bytes, decompressed: INPUT_BEGIN of them, or all if the file has fewer.  The first call precedes all reads; a
 * later call returns the same bytes.  input_read() returns these bytes, too.
 */
size_t input_begin(struct input *input, const unsigned char **bytes);

/* The first of these bytes; -1: there is none. */
int input_peek(struct input *input);

/* A sentence about why nothing more can be read; NULL: nothing is wrong. */
const char *input_problem(const struct input *input);

/* Whether the file is a folder, which has no bytes. */
bool input_is_folder(const struct input *input);

#endif
