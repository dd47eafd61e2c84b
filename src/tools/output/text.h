/* SPDX-License-Identifier: MIT */
/*
 * Text of reports: escaping, colors, headings and word wrap.
 *
 * Text from outside (names of files, functions and processes) may contain any byte.  It is escaped before it is
 * printed: a byte that is not printable ASCII is shown as \xNN.
 *
 * Colors are used on a terminal that supports them, unless NO_COLOR is set; --color overrides both.
 *
 *     fprintf(out, "%s%s%s", text_style_on(out, TEXT_STRONG), text, text_style_off(out));
 *
 * Locking: none; text_set_color() is called before other threads start.
 */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* --- Escaping. --- */

/* Escape into a buffer, truncated to its size, and terminate.  Returns the number of bytes of `text` that were
 * escaped. */
size_t text_escape(const char *text, char *out, size_t bytes);

void text_print(FILE *out, const char *text);

/* A JSON string.  Valid UTF-8 is kept, other text is escaped.  Returns NULL if out of host memory. */
json_t *text_json(const char *text);

/* --- Styles. --- */

enum text_style { TEXT_STRONG, TEXT_GOOD, TEXT_BAD };

/* In the order of the values of --color. */
enum text_color { TEXT_COLOR_AUTO, TEXT_COLOR_ALWAYS, TEXT_COLOR_NEVER };

void text_set_color(enum text_color color);

/* The escape sequences that switch a style on and off for a stream; "" without colors. */
const char *text_style_on(FILE *file, enum text_style style);
const char *text_style_off(FILE *file);

/* Print escaped text in TEXT_STRONG. */
void text_print_strong(FILE *out, const char *text);

/* Print an empty line and the heading of a table. */
void text_print_heading(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Print a text from the current position, wrapped at 80 columns; later lines are indented to `column`.  An empty line
 * separates paragraphs, and text in backquotes is printed in TEXT_STRONG.
 */
void text_wrap(FILE *out, const char *text, unsigned column);

#endif
