/* SPDX-License-Identifier: MIT */
/*
 * Help on a command, made from the tables, and the words that every form of it uses.
 *
 * Locking: none.
 */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include <stddef.h>
#include <stdio.h>

#include "src/tools/command/command.h"

/* What `xseg help COMMAND` says; of the tool itself, the list of commands. */
void help_print(FILE *out, const struct command *command);

/* `--check[=HOW]`, with its letter before it: "-v, --verbose". */
void help_option(const struct option_row *row, char *text, size_t bytes);

/* A text, wrapped, from a column on; the first line is there already. */
void help_wrap(FILE *out, const char *text, unsigned column);

#endif
