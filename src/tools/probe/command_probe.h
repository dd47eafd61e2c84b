/* SPDX-License-Identifier: MIT */
/* `xseg probe`: the row of the command. */
#ifndef TOOLS_COMMAND_PROBE_H
#define TOOLS_COMMAND_PROBE_H

#include "src/tools/command/command.h"

extern const struct command command_probe;

#endif
