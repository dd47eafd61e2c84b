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
    if (option_given(arguments, OPTION_JSON) && !option_given(arguments, OPTION_ONCE))
        return option_error("--json", "needs --once");
    if (option_given(arguments, OPTION_INTERVAL) && option_given(arguments, OPTION_ONCE))
        return option_error("--interval", "cannot be given with --once");
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
    if (option_given(arguments, OPTION_JSON)) {
        json_t *shared = budget ? top_budget_json(budget) : NULL;

        if (budget && !shared)
            return message_out_of_memory();
        return output_json(stdout, top_table_json(publishers, shared));
    }
    if (!print_text(publishers, (enum top_by)option_number(arguments, OPTION_SORT)))
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
        return COMMAND_ERROR;
    }
    if (pid == 0 || publishers->count > 0)
        return COMMAND_SUCCESS;
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
                                                                                : COMMAND_ERROR;
    }
    const int found = find_publishers(&publishers, wish->pid);
    if (found == COMMAND_SUCCESS) {
        fine = print_all(arguments, &publishers, wish->budget ? &budget : NULL);
        publishers_fini(&publishers);
    }
    top_budget_fini(&budget);
    return found != COMMAND_SUCCESS || fine ? found : COMMAND_ERROR;
}

static int run(const struct option_values *arguments)
{
    const struct top_wish wish = {
        .by = (enum top_by)option_number(arguments, OPTION_SORT),
        .seconds = (unsigned)option_number(arguments, OPTION_INTERVAL),
        .pid = (pid_t)option_number(arguments, OPTION_PID),
        .budget = option_text(arguments, OPTION_BUDGET),
    };
    const char *why;

    if (!agree(arguments))
        return COMMAND_ERROR;
    if (option_given(arguments, OPTION_ONCE))
        return print_once(arguments, &wish);
    why = !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)
              ? "standard input and output are no terminal: give --once"
              : top_screen_run(&wish);
    if (!why)
        return COMMAND_SUCCESS;
    message_error("%s", why);
    return COMMAND_ERROR;
}

const struct command command_top = {
    .name = "top",
    .run = run,
    .sentence = "show the memory of running processes",
    .usage = "",
    .options = {OPTION_ONCE, OPTION_SORT, OPTION_INTERVAL, OPTION_PID, OPTION_BUDGET, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Shows the memory of the processes that publish their statistics (key `publish:True`), by "
        "device and "
        "pool: allocated, pending, cached and reserved bytes, the peak of reserved bytes, "
        "registered bytes, the "
        "numbers of out-of-memory errors and of rejected requests, and the age of these values. "
        "Without root "
        "privileges, only processes of the same user can be read; the first line has the number of "
        "the others.\n"
        "\n"
        "With `--budget`, a second table shows the processes that share devices through a budget "
        "file, "
        "including those that do not publish.\n"
        "\n"
        "Keys on a terminal: `q` quits, `<` and `>` select the column to sort by, `p` shows or "
        "hides pools, the "
        "up and down arrows and Page Up and Page Down scroll the rows, the left and right arrows "
        "scroll the "
        "columns if the terminal is too narrow for all, and the space bar updates the values.",
    .examples =
        {
            {"XSEG_ALLOC_CONF=publish:True ./service &",
             "start a process that publishes its statistics"},
            {"xseg top", "show all such processes on the terminal"},
            {"xseg top --once --sort cached", "print the table once, sorted by cached bytes"},
            {"xseg top --once --budget rack7",
             "also show who shares devices by the budget file rack7"},
            {"xseg top --once --json | jq '.publishers[].devices[].reserved'",
             "the reserved bytes of all devices, for a script"},
        },
    .exits = {COMMAND_EXIT_SUCCESS,
              "the process of --pid publishes nothing that the user may read, or there is no such "
              "budget file",
              "an invalid argument, no terminal, or an output error"},
};
