/* SPDX-License-Identifier: MIT */
/*
 * The bytes and lines of an open file.
 *
 * An *input* reads a file, plain or compressed with Zstandard, which its first bytes show and not its name.  The amount of
 * data is bounded by INPUT_MAX.  *Lines* reads an input line by line with bounded memory: a line longer than
 * LINES_MAX is rejected, and so is a last line without a newline, since such a file is truncated.
 *
 * After an error a reader returns no more data; input_error() and lines_error() return the error message.
 *
 * Locking: none; one thread uses a reader.
 */
#ifndef TOOLS_INPUT_H
#define TOOLS_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define INPUT_MAX       ((uint64_t)4 << 30) /* decompressed bytes of a file */
#define INPUT_BEGIN_MAX 4096                /* bytes that input_begin() returns */
#define LINES_MAX       ((size_t)16384)     /* bytes of a line; real lines have less than 200 */

struct input;
struct lines;

/* --- Bytes. --- */

/* Start reading an open file, which remains the caller's.  Returns NULL if out of host memory. */
struct input *input_open(FILE *file);
void input_close(struct input *input);

/*
 * Read the next bytes.
 *
 * capacity: of the buffer `to`, at least 1.
 *
 * Returns: the number of bytes; 0 at the end of the file and on an error (input_error())
 */
size_t input_read(struct input *input, void *to, size_t capacity);

/*
 * Get the first bytes, decompressed: INPUT_BEGIN_MAX bytes, or the whole file if it is shorter.  The first call
 * precedes all reads; later calls return the same bytes.  input_read() returns these bytes as well.
 */
size_t input_begin(struct input *input, const unsigned char **bytes);

/* Get the first byte; -1: the file is empty. */
int input_peek(struct input *input);

/* Get the error message; NULL: no error. */
const char *input_error(const struct input *input);

bool input_is_folder(const struct input *input);

/* --- Lines. --- */

enum lines_state { LINES_NEXT, LINES_END, LINES_BAD /* lines_error() */ };

/* Start reading an input, which remains the caller's.  Returns NULL if out of host memory. */
struct lines *lines_open(struct input *input);
void lines_close(struct lines *lines);

/* Read the next line, terminated, without its newline.  *text is writable, and valid until the next call. */
enum lines_state lines_next(struct lines *lines, char **text);

/* Get the number of the line that lines_next() read, or failed to read; the first is 1. */
uint64_t lines_number(const struct lines *lines);

/* Get the error message after LINES_BAD. */
const char *lines_error(const struct lines *lines);

#endif
