/* SPDX-License-Identifier: MIT */
/*
 * The tool itself, and the list of its commands.
 *
 * Locking: none.
 */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include "src/tools/command/command.h"

extern const struct command commands_tool;
extern const struct command *const commands[]; /* in the order of names; NULL ends them */

/* The command with this name; NULL: there is none. */
const struct command *commands_find(const char *name);

/* "xseg replay"; valid until the next call. */
const char *commands_full_name(const struct command *command);

#endif
