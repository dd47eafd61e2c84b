/* SPDX-License-Identifier: MIT */
/* The `xseg` command line tool: finds the subcommand. */
#include <stdio.h>
#include <string.h>

#include "src/tools/command.h"
#include "src/tools/version.h"

static const struct {
    const char *name;
    int (*run)(int count, char **arguments);
    const char *sentence;
} commands[] = {
    {"probe", command_probe, "say what a driver can do and what its calls cost"},
    {"replay", command_replay, "replay recorded programmes through the allocator"},
};

static void print_usage(FILE *out)
{
    (void)fprintf(out, "usage: xseg COMMAND [OPTION]... [FILE]...\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        (void)fprintf(out, "  xseg %-10s %s\n", commands[i].name, commands[i].sentence);
    (void)fprintf(out, "\n  xseg COMMAND --help lists the options of a command\n"
                       "  xseg --version      prints the version, the build type and the commit\n");
}

int main(int count, char **arguments)
{
    const char *word = count > 1 ? arguments[1] : "";

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(word, commands[i].name) == 0)
            return commands[i].run(count - 1, arguments + 1);
    if (strcmp(word, "--version") == 0) {
        version_print(stdout);
        return COMMAND_FINE;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_usage(stdout);
        return COMMAND_FINE;
    }
    if (count > 1)
        (void)fprintf(stderr, "xseg: there is no command '%s'\n", word);
    print_usage(stderr);
    return COMMAND_BAD;
}
