/* SPDX-License-Identifier: MIT */
/*
 * Standard output as the tool's last word: what could not be written is an error.
 *
 * Locking: none.
 */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>

/* First of all: no file that is opened later becomes standard input, output or error. */
void output_guard(void);

/*
 * Last of all: whether everything was written to standard output.
 *
 * Returns: false where it was not; standard error has the sentence, which begins with `who`.
 */
bool output_finish(const char *who);

#endif
