/* SPDX-License-Identifier: MIT */
/* `xseg replay`: the row of the command. */
#ifndef TOOLS_COMMAND_REPLAY_H
#define TOOLS_COMMAND_REPLAY_H

#include "src/tools/command/command.h"

extern const struct command command_replay;

#endif
