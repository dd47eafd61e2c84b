/* SPDX-License-Identifier: MIT */
/* The `xseg` command line tool: finds the subcommand. */
#include <stdio.h>
#include <unistd.h>

#include "src/tools/command/option.h"
#include "src/tools/main/commands.h"
#include "src/tools/main/help.h"
#include "src/tools/main/version.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"

/* Read the arguments of a command, in whose name the tool complains from then on. */
static bool begin(const struct command *command, int count, char **arguments,
                  struct option_values *out)
{
    message_set_program(commands_full_name(command));
    return option_parse(command, count, arguments, out);
}

static int run_command(const struct command *command, int count, char **arguments)
{
    struct option_values values;

    if (!begin(command, count, arguments, &values))
        return COMMAND_BAD;
    if (!values.of[OPTION_HELP].given)
        return command->run(&values);
    help_print(stdout, command);
    return COMMAND_FINE;
}

static int run(int count, char **arguments)
{
    struct option_values values;
    const struct command *command;

    if (!begin(&commands_tool, count, arguments, &values))
        return COMMAND_BAD;
    if (values.of[OPTION_VERSION].given) {
        version_print(stdout);
        return COMMAND_FINE;
    }
    if (values.of[OPTION_HELP].given) {
        help_print(stdout, &commands_tool);
        return COMMAND_FINE;
    }
    if (values.operand_count == 0) {
        help_print(stderr, &commands_tool);
        return COMMAND_BAD;
    }
    command = commands_find(values.operands[0]);
    if (command)
        return run_command(command, values.operand_count, values.operands);
    if (access(values.operands[0], F_OK) == 0)
        message_error("a command is missing before the file '%s'; `xseg help` lists the commands",
                       values.operands[0]);
    else
        message_error("there is no command '%s'; `xseg help` lists them", values.operands[0]);
    return COMMAND_BAD;
}

int main(int count, char **arguments)
{
    int status;

    output_init();
    status = run(count, arguments);
    return output_finish() ? status : COMMAND_BAD;
}
