/* SPDX-License-Identifier: MIT */
/*
 * Colour, where somebody sees it: on a terminal that knows colours, unless NO_COLOR is set; or as
 * --color says.
 *
 *     fprintf(out, "%s%s%s", style_on(out, STYLE_STRONG), text, style_off(out));
 *
 * Locking: none; set up before the first use.
 */
#ifndef TOOLS_STYLE_H
#define TOOLS_STYLE_H

#include <stdio.h>

enum style { STYLE_STRONG, STYLE_GOOD, STYLE_BAD };

/* In the order of the words of --color. */
enum style_when { STYLE_AUTO, STYLE_ALWAYS, STYLE_NEVER };

void style_choose(enum style_when when);

/* What switches a style on for a stream, and off again; "" where there are no colours. */
const char *style_on(FILE *file, enum style style);
const char *style_off(FILE *file);

/* Print a text from outside in STYLE_STRONG; and the heading of a table, in a line of its own below an empty one. */
void style_strong(FILE *out, const char *text);
void style_heading(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Print a text, wrapped, from a column on; the first line is there already.  What stands between backquotes is set off,
 * and a blank line parts paragraphs.
 */
void style_wrap(FILE *out, const char *text, unsigned column);

#endif
