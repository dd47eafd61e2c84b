/* SPDX-License-Identifier: MIT */
/* `xseg help`: the row of the command. */
#ifndef TOOLS_COMMAND_HELP_H
#define TOOLS_COMMAND_HELP_H

#include "src/tools/command/command.h"

extern const struct command command_help;

#endif
