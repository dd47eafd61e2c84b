/* SPDX-License-Identifier: MIT */
/*
 * What the tool says on standard error, a line at a time: nothing else in it writes sentences there.
 * Names and contents of files, arguments and the environment may hold any byte, so the whole line is shown as
 * printable.h says.
 *
 * Locking: none; the name is set before the program's other threads.
 */
#ifndef TOOLS_COMPLAIN_H
#define TOOLS_COMPLAIN_H

#include <stdbool.h>

/* complain() prints one line, and ends it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Set the name that complain_named() begins with, such as "xseg replay".  It must live as long as the programme. */
void complain_as(const char *who);
const char *complain_name(void);

/* complain_named() prints one line that begins with that name, in colour. */
void complain_named(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Say, as complain_named(), that no host memory is left.  Returns false. */
bool complain_of_memory(void);

/* Several lines, each of which is shown so. */
void complain_lines(const char *text);

#endif
