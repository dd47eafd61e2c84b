/* SPDX-License-Identifier: MIT */
/*
 * Messages on standard error.  All messages of the tool are written by this module, one line each.
 *
 * File names, file contents, arguments and the environment may contain any byte, so each message is escaped as
 * text_escape() does.
 *
 * Locking: none; the name of the program is set before other threads start.
 */
#ifndef TOOLS_MESSAGE_H
#define TOOLS_MESSAGE_H

#include <stdbool.h>

/* Print one line, such as "FILE:LINE: ...". */
void message_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Set the name with which message_error() begins, such as "xseg replay".  `name` must live until the end of the
 * program. */
void message_set_program(const char *name);
const char *message_program(void);

/* Print one line that begins with the name of the program, in color. */
void message_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As message_error(): out of host memory.  Returns false. */
bool message_out_of_memory(void);

/* Print each line of a text. */
void message_lines(const char *text);

#endif
