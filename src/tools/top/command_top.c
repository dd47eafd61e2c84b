/* SPDX-License-Identifier: MIT */
#include "src/tools/command/command.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/text/style.h"
#include "src/tools/top/top_screen.h"

static int lacks_memory(void)
{
    command_complain(command_find("top"), "no host memory is left");
    return COMMAND_BAD;
}

/* Options that are fine apart and not together. */
static bool agree(const struct option_values *arguments)
{
    const struct command *command = command_find("top");

    if (arguments->of[OPTION_JSON].given && !arguments->of[OPTION_ONCE].given)
        return option_refuse(command, "--json", "needs --once");
    if (arguments->of[OPTION_INTERVAL].given && arguments->of[OPTION_ONCE].given)
        return option_refuse(command, "--interval", "cannot be given with --once");
    return true;
}

static bool print_json(const struct publishers *publishers)
{
    json_t *object = top_table_json(publishers);
    const bool fine = object && json_dumpf(object, stdout, JSON_INDENT(2)) == 0;

    if (fine)
        (void)fputc('\n', stdout);
    json_decref(object);
    return object != NULL;
}

static bool print_text(const struct publishers *publishers, enum top_by by)
{
    struct top_table table;
    char line[TOP_LINE];
    int from, length;

    if (!top_table_init(&table, publishers, by, true))
        return false;
    top_table_summary(&table, publishers, line);
    (void)printf("%s\n", line);
    if (table.count == 0)
        (void)printf("no process publishes its memory: give one the key publish:True\n");
    top_table_head(line, by, &from, &length);
    if (table.count > 0)
        (void)printf("\n%s%s%s\n", style_on(stdout, STYLE_STRONG), line, style_off(stdout));
    for (size_t i = 0; i < table.count; i++) {
        top_table_line(&table.rows[i], line);
        (void)printf("%s\n", line);
    }
    top_table_fini(&table);
    return true;
}

static int print_once(const struct option_values *arguments, pid_t pid)
{
    const enum top_by by = (enum top_by)arguments->of[OPTION_SORT].number;
    struct publishers publishers;
    const int error = publishers_find(&publishers, pid);
    bool fine;

    if (error != 0) {
        command_complain(command_find("top"), "the processes cannot be listed in /proc: %s",
                         strerror(error));
        return COMMAND_BAD;
    }
    if (pid != 0 && publishers.count == 0) {
        command_complain(command_find("top"),
                         "process %ld publishes nothing that may be read: it needs the key "
                         "publish:True, and to be of the same user",
                         (long)pid);
        publishers_fini(&publishers);
        return COMMAND_MISMATCH;
    }
    fine = arguments->of[OPTION_JSON].given ? print_json(&publishers) : print_text(&publishers, by);
    publishers_fini(&publishers);
    return fine ? COMMAND_FINE : lacks_memory();
}

int command_top(const struct option_values *arguments)
{
    const struct top_wish wish = {
        .by = (enum top_by)arguments->of[OPTION_SORT].number,
        .seconds = (unsigned)arguments->of[OPTION_INTERVAL].number,
        .pid = (pid_t)arguments->of[OPTION_PID].number,
    };
    const char *why;

    if (!agree(arguments))
        return COMMAND_BAD;
    if (arguments->of[OPTION_ONCE].given)
        return print_once(arguments, wish.pid);
    why = !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)
              ? "standard input and output are no terminal: give --once"
              : top_screen_run(&wish);
    if (!why)
        return COMMAND_FINE;
    command_complain(command_find("top"), "%s", why);
    return COMMAND_BAD;
}
