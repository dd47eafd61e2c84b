/* SPDX-License-Identifier: MIT */
/* `xseg top`: the row of the command. */
#ifndef TOOLS_COMMAND_TOP_H
#define TOOLS_COMMAND_TOP_H

#include "src/tools/command/command.h"

extern const struct command command_top;

#endif
