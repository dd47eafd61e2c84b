/* SPDX-License-Identifier: MIT */
/* `xseg advise`: the row of the command. */
#ifndef TOOLS_COMMAND_ADVISE_H
#define TOOLS_COMMAND_ADVISE_H

#include "src/tools/command/command.h"

extern const struct command command_advise;

#endif
