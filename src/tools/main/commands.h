/* SPDX-License-Identifier: MIT */
/*
 * The tool itself, the list of its commands, and their help.
 *
 * Locking: none.
 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdio.h>

#include "src/tools/command/command.h"

extern const struct command commands_tool;
extern const struct command *const commands[]; /* sorted by name; NULL ends the list */

/* The command with this name.  NULL: there is none; the error message, with the closest match, is on standard error. */
const struct command *commands_find(const char *name);

/* "xseg replay"; valid until the next call. */
const char *commands_full_name(const struct command *command);

/* Print the help of a command; of the tool itself, also the list of commands. */
void commands_print_help(FILE *out, const struct command *command);

#endif
