/* SPDX-License-Identifier: MIT */
/*
 * Progress of long operations: a line on standard error that the next line replaces, and that is removed at the end.
 *
 *     [##########                              ] job.pickle
 *
 * The line has at most one column less than the terminal, so it never wraps: first the bar gets shorter, then the
 * middle of the text is replaced by "...".  The width is that of the terminal (TIOCGWINSZ), else COLUMNS, else 80
 * columns.  It is queried for each line, so a resized window is respected.
 *
 * Readers call progress_update() whether or not an operation is displayed, so they do not depend on their caller.
 *
 * Locking: none; one thread displays one operation at a time.  While none is displayed, any thread may call
 * progress_update().
 */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdint.h>

/* Display an operation if standard error is a terminal.  name: of the file that is processed; must live until the end */
void progress_begin(const char *name);
void progress_end(void);

/*
 * Report progress.
 *
 * all: the amount that `done` reaches at the end; 0: unknown, and `done` is in bytes.
 *
 * Cost: reads a clock; most calls draw nothing
 */
void progress_update(uint64_t done, uint64_t all);

/* Draw a line without progress_begin(): text, or a bar and text. */
void progress_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_print_bar(uint64_t done, uint64_t all, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Remove the line. */
void progress_clear(void);

#endif
