/* SPDX-License-Identifier: MIT */
#include "src/tools/main/commands.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/suggestion.h"
#include "src/tools/output/message.h"

const struct command commands_tool = {
    .summary = "replay, analyze and monitor GPU memory allocation",
    .usage = "COMMAND [ARGUMENT]...",
    .required_operands = "a command",
    .operands = COMMAND_NAMES,
    .max_operands = INT_MAX,
    .options = {OPTION_HELP, OPTION_VERSION},
    .description =
        "The command line tool of xseg, a GPU memory allocator with expandable segments. The "
        "default driver is simulated, so only commands with `--driver cuda` need a GPU.",
    .examples =
        {
            {"xseg replay --compare expandable_segments:False job.pickle",
             "the memory that expandable segments save in a PyTorch job, from its memory snapshot"},
            {"xseg blame job.pickle", "the call sites that fragment the memory of the job"},
            {"xseg advise job.pickle",
             "the configuration that reduces its peak of reserved memory"},
            {"xseg top", "the memory of all processes that publish their statistics"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, NULL, "an invalid argument"},
};

const struct command *const commands[] = {
#define ROW(name) &command_##name,
    COMMAND_LIST(ROW)
#undef ROW
        NULL,
};

const struct command *commands_find(const char *name)
{
    struct suggestion suggestion;

    suggestion_init(&suggestion, name, strlen(name));
    for (const struct command *const *command = commands; *command; command++) {
        if (strcmp(name, (*command)->name) == 0)
            return *command;
        suggestion_consider(&suggestion, (*command)->name);
    }
    if (suggestion.name)
        message_error("unknown command '%s'; did you mean %s?", name, suggestion.name);
    else if (access(name, F_OK) == 0)
        message_error("no command before the file '%s'; `xseg help` lists the commands", name);
    else
        message_error("unknown command '%s'; `xseg help` lists the commands", name);
    return NULL;
}

const char *commands_full_name(const struct command *command)
{
    static char name[32];

    (void)snprintf(name, sizeof(name), "xseg%s%s", command->name ? " " : "",
                   command->name ? command->name : "");
    return name;
}
