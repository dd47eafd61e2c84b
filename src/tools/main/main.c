/* SPDX-License-Identifier: MIT */
/* The `xseg` command line tool: finds the subcommand. */
#include <stdio.h>

#include "src/tools/main/help.h"
#include "src/tools/main/version.h"
#include "src/tools/text/output.h"

static int run_command(const struct command *command, int count, char **arguments)
{
    struct option_values values;

    if (!option_parse(command, count, arguments, &values))
        return COMMAND_BAD;
    if (!values.of[OPTION_HELP].given)
        return command->run(&values);
    help_print(stdout, command);
    return COMMAND_FINE;
}

static int run(int count, char **arguments, const struct command **command)
{
    struct option_values values;

    *command = &command_tool;
    if (!option_parse(&command_tool, count, arguments, &values))
        return COMMAND_BAD;
    if (values.of[OPTION_VERSION].given) {
        version_print(stdout);
        return COMMAND_FINE;
    }
    if (values.of[OPTION_HELP].given) {
        help_print(stdout, &command_tool);
        return COMMAND_FINE;
    }
    if (values.operand_count == 0) {
        help_print(stderr, &command_tool);
        return COMMAND_BAD;
    }
    *command = command_find(values.operands[0]);
    if (*command)
        return run_command(*command, values.operand_count, values.operands);
    *command = &command_tool;
    command_complain(&command_tool, "there is no command '%s'; `xseg help` lists them",
                     values.operands[0]);
    return COMMAND_BAD;
}

int main(int count, char **arguments)
{
    const struct command *command;
    int status;

    output_guard();
    status = run(count, arguments, &command);
    return output_finish(command_full_name(command)) ? status : COMMAND_BAD;
}
