/* SPDX-License-Identifier: MIT */
/*
 * Verifies the assumptions of xseg about a CUDA driver.
 *
 *   gpu-facts [--skip-without-gpu]      as a test: TAP
 *   gpu-facts --table [--seconds N]     lines of ID, verdict, answer, milliseconds and position; within N seconds, of which
 *                                       three quarters are for the checks
 *   gpu-facts --limit N                 at most N seconds for a fact, and 30 for opening the driver; by default both depend on
 *                                       --seconds; with other options
 *   gpu-facts --from ID                 start with this fact; with other options
 *   gpu-facts --describe                properties for which the simulator has settings
 *   gpu-facts --list                    IDs and names
 *
 * Each run of the tests verifies the facts on the simulator and, if the host has a GPU, on its driver.
 * docs/driver-facts.md has a row for each ID: the documentation of CUDA, and the code that relies on the
 * fact.  verify.h describes how checks are isolated.
 *
 * Exit status: 0 if each fact that could be verified holds, else 1; 2 for an unknown option.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/facts/child.h"
#include "tests/gpu/facts/describe.h"
#include "tests/gpu/facts/driver.h"
#include "tests/gpu/facts/verify.h"

/* Maximum seconds for a fact and for opening the driver, which is slow with many devices; and the divisors of --seconds that
 * yield smaller limits. */
#define FACT_MAX     20u
#define FACT_DIVISOR 5u
#define OPEN_MAX     30u
#define OPEN_DIVISOR 3u
#define MIN_SECONDS  2u

struct options {
    bool is_table;
    unsigned seconds, limit;
    size_t first;
};

static unsigned failures;
static struct verify_result result;
static bool may_skip;

/* Whether there is no device and --skip-without-gpu was specified. */
static bool skips_all(void)
{
    return may_skip && result.problem[0] != '\0';
}

static void count_outcome(const struct outcome *outcome)
{
    failures += outcome->verdict != HOLDS && outcome->verdict != SKIPPED;
}

static void print_row(size_t index, const struct outcome *outcome)
{
    count_outcome(outcome);
    (void)printf("%s\t%s\t%s\t%.2f\t%s\n", fact_at(index)->id, verdict_name(outcome->verdict),
                 outcome->answer, outcome->milliseconds, outcome->position);
    (void)fflush(stdout);
}

/* Print the header. Returns whether answers follow; otherwise all facts are skipped. */
static bool begin_test(void)
{
    static bool has_begun;

    if (!has_begun && skips_all())
        (void)printf("1..0 # SKIP %s\n", result.problem);
    else if (!has_begun)
        (void)printf("1..%zu\n", fact_count());
    has_begun = true;
    return !skips_all();
}

static void print_test(size_t index, const struct outcome *outcome)
{
    const struct fact *fact = fact_at(index);
    const bool is_ok = outcome->verdict == HOLDS || outcome->verdict == SKIPPED;

    count_outcome(outcome);
    if (!begin_test())
        return;
    (void)printf("%sok %zu - %s %s%s%s\n", is_ok ? "" : "not ", index + 1, fact->id, fact->name,
                 outcome->verdict == SKIPPED ? " # SKIP " : "",
                 outcome->verdict == SKIPPED ? outcome->answer : "");
    if (!is_ok)
        (void)printf("# %s: %s (%s)\n", verdict_name(outcome->verdict), outcome->answer,
                     outcome->position);
    (void)fflush(stdout);
}

static int list(void)
{
    for (size_t i = 0; i < fact_count(); i++)
        (void)printf("%s\t%s\n", fact_at(i)->id, fact_at(i)->name);
    return 0;
}

/* Returns the number of arguments that an option uses; 0: unknown option or invalid value. */
static int read_option(char **arguments, struct options *options)
{
    const char *value = arguments[1];
    char *end;

    if (strcmp(arguments[0], "--table") == 0)
        return options->is_table = true;
    if (strcmp(arguments[0], "--skip-without-gpu") == 0)
        return may_skip = true;
    if ((strcmp(arguments[0], "--seconds") == 0 || strcmp(arguments[0], "--limit") == 0) &&
        value != NULL) {
        unsigned *number = arguments[0][2] == 's' ? &options->seconds : &options->limit;

        *number = (unsigned)strtoul(value, &end, 10);
        return *end == '\0' && *number > 0 ? 2 : 0;
    }
    if (strcmp(arguments[0], "--from") == 0 && value != NULL) {
        options->first = fact_find(value);
        return options->first < fact_count() ? 2 : 0;
    }
    return 0;
}

/* Runs the options that verify no facts, and those of child processes. Returns an exit status, or -1 for other options. */
static int run_command(int count, char **arguments)
{
    if (count == 6 && strcmp(arguments[1], "--verify") == 0) {
        const struct verify_options options = {.first = fact_find(arguments[2]),
                                               .limit = (unsigned)strtoul(arguments[3], NULL, 10),
                                               .open_limit =
                                                   (unsigned)strtoul(arguments[4], NULL, 10),
                                               .deadline = strtod(arguments[5], NULL)};
        return verify_in_child(&options);
    }
    if (count == 2 && strcmp(arguments[1], "--describe") == 0)
        return describe();
    if (count == 2 && strcmp(arguments[1], "--list") == 0)
        return list();
    if (count < 2 ||
        (strcmp(arguments[1], "--access-late") != 0 && strcmp(arguments[1], "--use-shared") != 0))
        return -1;
    child_begin(CHILD_SECONDS);
    if (driver_open() != NULL)
        return 1;
    return count > 2 ? access_late(arguments[2]) : use_shared();
}

/* Returns the maximum if `seconds` is 0. */
static unsigned limit_from(unsigned seconds, unsigned divisor, unsigned max)
{
    if (seconds == 0 || seconds / divisor > max)
        return max;
    return seconds / divisor < MIN_SECONDS ? MIN_SECONDS : seconds / divisor;
}

static int run_all(const struct options *options)
{
    struct verify_options all = {.first = options->first,
                                 .limit = limit_from(options->seconds, FACT_DIVISOR, FACT_MAX),
                                 .open_limit = limit_from(options->seconds, OPEN_DIVISOR, OPEN_MAX),
                                 .report = options->is_table ? print_row : print_test};

    if (options->limit > 0) {
        all.limit = options->limit;
        all.open_limit = OPEN_MAX;
    }
    if (options->seconds > 0) {
        all.seconds = options->seconds;
        all.deadline =
            microseconds() + options->seconds * 750e3; /* three quarters of the seconds */
    }
    verify_all(&all, &result);
    if (result.problem[0] != '\0' && !may_skip) {
        (void)fprintf(options->is_table ? stderr : stdout, "%s%s\n",
                      options->is_table ? "gpu-facts: " : "Bail out! ", result.problem);
        return 1;
    }
    if (result.has_leaked)
        (void)fprintf(stderr, "gpu-facts: objects have leaked, although each fact holds\n");
    return result.has_leaked || failures > 0;
}

int main(int count, char **arguments)
{
    struct options options = {.first = 0};
    const int status = run_command(count, arguments);
    int used;

    if (status >= 0)
        return status;
    for (int i = 1; i < count; i += used) {
        used = read_option(arguments + i, &options);
        if (used == 0) {
            (void)fprintf(stderr,
                          "gpu-facts: unknown option or value, %s; see the start of facts.c\n",
                          arguments[i]);
            return 2;
        }
    }
    return run_all(&options);
}
