/* SPDX-License-Identifier: MIT */
/* The `xseg` command line tool. */
#include <stdio.h>

#include "src/tools/command/option.h"
#include "src/tools/commit.h"
#include "src/tools/main/commands.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/reading/symbols.h"
#include "xseg/version.h"

/* "xseg 1.0.0 (release build, without self-checks, with libdw, commit 0123456789ab)" */
static void print_version(void)
{
    char checks[32] = "without self-checks";

    if (XSEG_CHECKS > 0)
        (void)snprintf(checks, sizeof(checks), "self-checks of level %d", XSEG_CHECKS);
    (void)printf("xseg %s (%s build, %s, %s libdw, commit %s)\n", XSEG_VERSION_TEXT,
                 TOOLS_BUILD_TYPE, checks, symbols_available() ? "with" : "without", TOOLS_COMMIT);
}

/* Parse the arguments of a command.  Error messages begin with its name from now on. */
static bool parse_arguments(const struct command *command, int count, char **arguments,
                            struct option_values *out)
{
    message_set_program(commands_full_name(command));
    return option_parse(command, count, arguments, out);
}

static int run_command(const struct command *command, int count, char **arguments)
{
    struct option_values values;

    if (!parse_arguments(command, count, arguments, &values))
        return COMMAND_ERROR;
    if (!option_given(&values, OPTION_HELP))
        return command->run(&values);
    commands_print_help(stdout, command);
    return COMMAND_SUCCESS;
}

static int run_tool(int count, char **arguments)
{
    struct option_values values;
    const struct command *command;

    if (!parse_arguments(&commands_tool, count, arguments, &values))
        return COMMAND_ERROR;
    if (option_given(&values, OPTION_VERSION)) {
        print_version();
        return COMMAND_SUCCESS;
    }
    if (option_given(&values, OPTION_HELP)) {
        commands_print_help(stdout, &commands_tool);
        return COMMAND_SUCCESS;
    }
    if (values.operand_count == 0) {
        commands_print_help(stderr, &commands_tool);
        return COMMAND_ERROR;
    }
    command = commands_find(values.operands[0]);
    return command ? run_command(command, values.operand_count, values.operands) : COMMAND_ERROR;
}

int main(int count, char **arguments)
{
    int status;

    output_init();
    status = run_tool(count, arguments);
    return output_finish() ? status : COMMAND_ERROR;
}
