/* SPDX-License-Identifier: MIT */
/*
 * Help on a command, made from the tables.
 *
 * Locking: none.
 */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include <stdio.h>

#include "src/tools/command/command.h"

/* What `xseg help COMMAND` says; of the tool itself, the list of commands. */
void help_print(FILE *out, const struct command *command);

#endif
