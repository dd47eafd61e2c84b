/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/top/top_screen.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

/* Reject combinations of options. */
static bool check_options(const struct option_values *arguments)
{
    if (option_given(arguments, OPTION_JSON) && !option_given(arguments, OPTION_ONCE))
        return option_error("--json", "requires --once");
    if (option_given(arguments, OPTION_INTERVAL) && option_given(arguments, OPTION_ONCE))
        return option_error("--interval", "cannot be combined with --once");
    return true;
}

static bool print_text(const struct publishers *publishers, enum top_by by)
{
    const struct top_layout layout = top_table_layout(0, by, 0);
    struct top_table table;
    char line[TOP_LINE];
    int from, length;

    if (!top_table_init(&table, publishers, by, true))
        return false;
    top_table_summary(&table, publishers, line);
    (void)printf("%s\n", line);
    if (table.count == 0)
        (void)printf("%s\n", TOP_NO_PROCESS);
    top_table_head(&layout, by, line, &from, &length);
    if (table.count > 0)
        text_print_heading(stdout, "%s", line);
    for (size_t i = 0; i < table.count; i++) {
        top_table_line(&layout, &table.rows[i], line);
        (void)printf("%s\n", line);
    }
    top_table_fini(&table);
    return true;
}

static void print_budget(const struct top_budget *budget)
{
    const struct top_layout layout = top_budget_layout(0, 0);
    char line[TOP_LINE];

    for (size_t i = 0; i < top_budget_lines(budget); i++) {
        top_budget_line(&layout, budget, i, line);
        if (i == 0)
            text_print_heading(stdout, "%s", line);
        else
            (void)printf("%s\n", line);
    }
}

/* Print the tables as text or as JSON.  budget: NULL for the first table only */
static bool print_all(const struct publishers *publishers, const struct top_budget *budget,
                      enum top_by by, bool as_json)
{
    if (as_json) {
        json_t *shared = budget ? top_budget_json(budget) : NULL;

        if (budget && !shared)
            return message_out_of_memory();
        return output_json(stdout, top_table_json(publishers, shared));
    }
    if (!print_text(publishers, by))
        return message_out_of_memory();
    if (budget)
        print_budget(budget);
    return true;
}

/* Find the processes that publish.  Returns an exit status; if it is not success, an error message is on standard error. */
static int find_publishers(struct publishers *publishers, pid_t pid)
{
    const int error = publishers_find(publishers, pid);

    if (error == ENOMEM)
        (void)message_out_of_memory();
    else if (error != 0)
        message_error("/proc cannot be read: %s", strerror(error));
    if (error != 0)
        return COMMAND_ERROR;
    if (pid == 0 || publishers->count > 0)
        return COMMAND_SUCCESS;
    message_error("process %ld publishes no statistics that this user can read; set its key "
                  "publish:True, and "
                  "run as its user",
                  (long)pid);
    publishers_fini(publishers);
    return COMMAND_MISMATCH;
}

static int print_once(const struct option_values *arguments, const struct top_options *options)
{
    struct top_budget budget = {.status = XSEG_OK};
    struct publishers publishers;
    bool success = false;

    if (options->budget)
        top_budget_init(&budget, options->budget);
    if (budget.status != XSEG_OK) {
        message_error("%s", budget.error);
        top_budget_fini(&budget);
        return budget.status == XSEG_ERR_FILE || budget.status == XSEG_ERR_BUSY ? COMMAND_MISMATCH
                                                                                : COMMAND_ERROR;
    }
    const int found = find_publishers(&publishers, options->pid);
    if (found == COMMAND_SUCCESS) {
        success = print_all(&publishers, options->budget ? &budget : NULL, options->by,
                            option_given(arguments, OPTION_JSON));
        publishers_fini(&publishers);
    }
    top_budget_fini(&budget);
    return found != COMMAND_SUCCESS || success ? found : COMMAND_ERROR;
}

static int command_top_run(const struct option_values *arguments)
{
    const struct top_options options = {
        .by = (enum top_by)option_number(arguments, OPTION_SORT),
        .seconds = (unsigned)option_number(arguments, OPTION_INTERVAL),
        .pid = (pid_t)option_number(arguments, OPTION_PID),
        .budget = option_text(arguments, OPTION_BUDGET),
    };
    const char *reason;

    if (!check_options(arguments))
        return COMMAND_ERROR;
    if (option_given(arguments, OPTION_ONCE))
        return print_once(arguments, &options);
    reason = !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)
                 ? "standard input and output must be a terminal; use --once"
                 : top_screen_run(&options);
    if (!reason)
        return COMMAND_SUCCESS;
    message_error("%s", reason);
    return COMMAND_ERROR;
}

const struct command command_top = {
    .name = "top",
    .run = command_top_run,
    .summary = "show the memory of running processes",
    .usage = "",
    .options = {OPTION_ONCE, OPTION_SORT, OPTION_INTERVAL, OPTION_PID, OPTION_BUDGET, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Shows the memory of the processes that publish their statistics (key `publish:True`), by "
        "device and pool: allocated, pending, cached and reserved bytes, the peak of reserved "
        "bytes, bytes registered for network transfers, the numbers of out-of-memory errors and of "
        "rejected requests, and the age of these values. Without root privileges, only processes "
        "of the same user can "
        "be read; the first line has the number of the others."
        "\n\n"
        "With `--budget`, a second table shows the processes that share devices through a budget "
        "file, including those that do not publish: the device (UUID), the physical memory of the "
        "process on it, the idle part of this memory, the bytes of requests that wait for memory "
        "(demand), the key `budget_share`, and the bytes that the process has released for others."
        "\n\n"
        "Keys on a terminal: `q` quits, `<` and `>` select the column to sort by, `p` shows or "
        "hides pools, the up and down arrows and Page Up and Page Down scroll the rows, the left "
        "and right arrows scroll the columns if the terminal is too narrow for all, and the space "
        "bar updates the values.",
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
