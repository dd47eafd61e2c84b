/* SPDX-License-Identifier: MIT */
/* `xseg blame`: the row of the command. */
#ifndef TOOLS_COMMAND_BLAME_H
#define TOOLS_COMMAND_BLAME_H

#include "src/tools/command/command.h"

extern const struct command command_blame;

#endif
