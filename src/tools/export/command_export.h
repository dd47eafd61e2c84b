/* SPDX-License-Identifier: MIT */
/* `xseg export`: the row of the command. */
#ifndef TOOLS_COMMAND_EXPORT_H
#define TOOLS_COMMAND_EXPORT_H

#include "src/tools/command/command.h"

extern const struct command command_export;

#endif
