/* SPDX-License-Identifier: MIT */
/*
 * The lines of a text file.
 *
 * The file is read as a stream, so memory stays bounded whatever its size: a line longer than
 * LINES_LONGEST is refused.  A line without its newline at the end of the file is refused, too: such a file was cut.
 *
 * Locking: none; a reader belongs to one thread.
 */
#ifndef TOOLS_LINES_H
#define TOOLS_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/reading/input.h"

#define LINES_LONGEST ((size_t)16384) /* bytes in one line; real ones have under 200 */

struct lines;

enum lines_state {
    LINES_NEXT, /* here is a line */
    LINES_END,  /* the file ended where a line ended */
    LINES_BAD   /* lines_problem() says why there is no next line */
};

/* Start reading an input, which stays the caller's.  Returns NULL without host memory. */
struct lines *lines_open(struct input *input);
void lines_close(struct lines *lines);

/*
 * The next line, terminated, without its newline.  It may be written to, and is good until the next
 * call.
 */
enum lines_state lines_next(struct lines *lines, char **text);

/* Number of the line that was last asked for; the first is 1. */
uint64_t lines_number(const struct lines *lines);

/* A sentence about why lines_next() said LINES_BAD. */
const char *lines_problem(const struct lines *lines);

#endif
