/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/top/top_screen.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

/* Options that are fine apart and not together. */
static bool agree(const struct option_values *arguments)
{
    if (arguments->of[OPTION_JSON].given && !arguments->of[OPTION_ONCE].given)
        return option_refuse("--json", "needs --once");
    if (arguments->of[OPTION_INTERVAL].given && arguments->of[OPTION_ONCE].given)
        return option_refuse("--interval", "cannot be given with --once");
    return true;
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
        text_print_heading(stdout, "%s", line);
    for (size_t i = 0; i < table.count; i++) {
        top_table_line(&table.rows[i], line);
        (void)printf("%s\n", line);
    }
    top_table_fini(&table);
    return true;
}

static void print_budget(const struct top_budget *budget)
{
    char line[TOP_LINE];

    for (size_t i = 0; i < top_budget_lines(budget); i++) {
        top_budget_line(budget, i, line);
        if (i == 0)
            text_print_heading(stdout, "%s", line);
        else
            (void)printf("%s\n", line);
    }
}

/* Both tables, as text or as JSON; budget: NULL without the second one. */
static bool print_all(const struct option_values *arguments, const struct publishers *publishers,
                      const struct top_budget *budget)
{
    if (arguments->of[OPTION_JSON].given) {
        json_t *shared = budget ? top_budget_json(budget) : NULL;

        if (budget && !shared)
            return message_out_of_memory();
        return output_json(stdout, top_table_json(publishers, shared));
    }
    if (!print_text(publishers, (enum top_by)arguments->of[OPTION_SORT].number))
        return message_out_of_memory();
    if (budget)
        print_budget(budget);
    return true;
}

/* The processes that publish; complains where there are none that could be meant.  Returns an exit status. */
static int find_publishers(struct publishers *publishers, pid_t pid)
{
    const int error = publishers_find(publishers, pid);

    if (error != 0) {
        message_error("the processes cannot be listed in /proc: %s", strerror(error));
        return COMMAND_BAD;
    }
    if (pid == 0 || publishers->count > 0)
        return COMMAND_FINE;
    message_error("process %ld publishes nothing that may be read: it needs the key "
                   "publish:True, and to be of the same user",
                   (long)pid);
    publishers_fini(publishers);
    return COMMAND_MISMATCH;
}

static int print_once(const struct option_values *arguments, const struct top_wish *wish)
{
    struct top_budget budget = {.status = XSEG_OK};
    struct publishers publishers;
    bool fine = false;

    if (wish->budget)
        top_budget_look(&budget, wish->budget);
    if (budget.status != XSEG_OK) {
        message_error("%s", budget.problem);
        top_budget_fini(&budget);
        return budget.status == XSEG_ERR_FILE || budget.status == XSEG_ERR_BUSY ? COMMAND_MISMATCH
                                                                                : COMMAND_BAD;
    }
    const int found = find_publishers(&publishers, wish->pid);
    if (found == COMMAND_FINE) {
        fine = print_all(arguments, &publishers, wish->budget ? &budget : NULL);
        publishers_fini(&publishers);
    }
    top_budget_fini(&budget);
    return found != COMMAND_FINE || fine ? found : COMMAND_BAD;
}

static int run(const struct option_values *arguments)
{
    const struct top_wish wish = {
        .by = (enum top_by)arguments->of[OPTION_SORT].number,
        .seconds = (unsigned)arguments->of[OPTION_INTERVAL].number,
        .pid = (pid_t)arguments->of[OPTION_PID].number,
        .budget = arguments->of[OPTION_BUDGET].text,
    };
    const char *why;

    if (!agree(arguments))
        return COMMAND_BAD;
    if (arguments->of[OPTION_ONCE].given)
        return print_once(arguments, &wish);
    why = !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)
              ? "standard input and output are no terminal: give --once"
              : top_screen_run(&wish);
    if (!why)
        return COMMAND_FINE;
    message_error("%s", why);
    return COMMAND_BAD;
}

const struct command command_top = {
    .name = "top",
    .run = run,
    .sentence = "show the memory of running processes",
    .usage = "",
    .options = {OPTION_ONCE, OPTION_SORT, OPTION_INTERVAL, OPTION_PID, OPTION_BUDGET, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Shows the memory of processes that have the key `publish:True`, by device and pool: "
        "allocated, pending, cached and reserved bytes, the peak of reserved bytes, the numbers of "
        "failed requests, and the age of these figures. The kernel lets a user see "
        "the processes of that user; others are counted.\n"
        "\n"
        "With `--budget`, also which processes share devices by a budget file, whether they "
        "publish or "
        "not.\n"
        "\n"
        "On a terminal: `q` quits, `<` and `>` order by another column, `p` shows and hides "
        "pools, arrows scroll, the space bar looks at once.",
    .examples =
        {
            {"XSEG_ALLOC_CONF=publish:True ./service &", "a process that publishes"},
            {"xseg top", "all of them, on the screen"},
            {"xseg top --once --sort cached", "one look, as text"},
            {"xseg top --once --budget rack7", "and who shares devices by the budget file rack7"},
            {"xseg top --once --json | jq '.publishers[].devices[].reserved'", "for a script"},
        },
    .exits =
        {COMMAND_EXIT_FINE,
         "the process that is asked for publishes nothing that may be read, or there is no such "
         "budget file",
         "a bad argument, no terminal, or output that cannot be written"},
};
