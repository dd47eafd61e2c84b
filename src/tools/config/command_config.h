/* SPDX-License-Identifier: MIT */
/* `xseg config`: the row of the command. */
#ifndef TOOLS_COMMAND_CONFIG_H
#define TOOLS_COMMAND_CONFIG_H

#include "src/tools/command/command.h"

extern const struct command command_config;

#endif
