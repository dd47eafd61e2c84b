/* SPDX-License-Identifier: MIT */
#include "src/tools/help.h"

int command_help(const struct option_values *arguments)
{
    const char *name = arguments->operand_count > 0 ? arguments->operands[0] : NULL;
    const struct command *command = name ? command_find(name) : &command_tool;

    if (!command) {
        command_complain(command_find("help"), "there is no command '%s'; `xseg help` lists them",
                         name);
        return COMMAND_BAD;
    }
    help_print(stdout, command);
    return COMMAND_FINE;
}
