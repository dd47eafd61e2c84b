/* SPDX-License-Identifier: MIT */
#include "src/tools/main/commands.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

const struct command commands_tool = {
    .sentence = "replay recorded programmes through a GPU memory allocator, and probe drivers",
    .usage = "COMMAND [ARGUMENT]...",
    .needs = "a command",
    .operands = COMMAND_NAMES,
    .most_operands = INT_MAX,
    .options = {OPTION_HELP, OPTION_VERSION},
    .description =
        "The command line tool of xseg, a GPU memory allocator with expandable segments. No GPU is "
        "needed: a simulated driver is the default.",
    .examples =
        {
            {"xseg replay --compare expandable_segments:False job.pickle",
             "what expandable segments save in a PyTorch job, by its memory snapshot"},
            {"xseg config", "which configuration a programme would get here, and why"},
            {"xseg probe --driver cuda", "what this machine's driver can do and what it costs"},
        },
    .exits = {COMMAND_EXIT_FINE, NULL, "a bad argument"},
};

const struct command *const commands[] = {
#define ROW(name) &command_##name,
    COMMAND_LIST(ROW)
#undef ROW
        NULL,
};

const struct command *commands_find(const char *name)
{
    for (const struct command *const *command = commands; *command; command++)
        if (strcmp(name, (*command)->name) == 0)
            return *command;
    return NULL;
}

const char *commands_full_name(const struct command *command)
{
    static char name[32];

    (void)snprintf(name, sizeof(name), "xseg%s%s", command->name ? " " : "",
                   command->name ? command->name : "");
    return name;
}
