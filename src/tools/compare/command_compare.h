/* SPDX-License-Identifier: MIT */
/* `xseg compare`: the row of the command. */
#ifndef TOOLS_COMMAND_COMPARE_H
#define TOOLS_COMMAND_COMPARE_H

#include "src/tools/command/command.h"

extern const struct command command_compare;

#endif
