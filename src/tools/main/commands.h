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

/* Find the command with a name.  Returns NULL after an error message with the closest match. */
const struct command *commands_find(const char *name);

/* Get a name such as "xseg replay"; valid until the next call. */
const char *commands_full_name(const struct command *command);

/* Print the help of a command; of the tool itself, also the list of commands. */
void commands_print_help(FILE *out, const struct command *command);

#endif
