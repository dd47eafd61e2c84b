/* SPDX-License-Identifier: MIT */
/* `xseg view`: the row of the command. */
#ifndef TOOLS_COMMAND_VIEW_H
#define TOOLS_COMMAND_VIEW_H

#include "src/tools/command/command.h"

extern const struct command command_view;

#endif
