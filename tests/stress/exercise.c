/* SPDX-License-Identifier: MIT */
/*
 * The exerciser: random programs of the whole public interface, on one thread and on several, on one device and on
 * several, with driver faults, checked by an oracle.
 *
 *     test-stress-exercise [OPTION...]
 *       --operations N   of each thread of each program (1000)
 *       --programs N     of each case
 *       --all            90 programs instead of 30, after which every function must have succeeded, and every pair
 *                        of features must have been combined
 *       --seed N         seed of the first program of each case; each further program adds 1
 *       --threads N --devices N   of all programs, up to 8 and 4
 *       --faults N       faults per 1000 operations
 *       --program N      only the program with this seed, with the other options
 *       --background     with --program: with the background thread
 *       --shrink         with --program and one thread: reduce the failing program to the operations that it needs
 *       -v               print the number of calls of each function and pair of features
 *
 * A failure prints the last operations and the command that repeats the program.
 */
#include <getopt.h>
#include <stdlib.h>

#include "tests/stress/exercise/kernel.h"
#include "tests/stress/exercise/program.h"
#include "tests/support/env.h"

static uint64_t operations = 1000, programs, threads, devices, faults = UINT32_MAX, seed = 20261123;
static bool is_verbose, runs_all, has_default_options = true;

/* The options of a program.  Every third program has no faults, to detect log lines and failures without a fault. */
static struct world_options options_of(uint64_t program_seed, unsigned default_threads)
{
    return (struct world_options){
        .seed = program_seed,
        .threads = threads != 0 ? (unsigned)threads : default_threads,
        .devices = (unsigned)(devices != 0 ? devices : 1 + program_seed % 3),
        .faults = (unsigned)(faults != UINT32_MAX    ? faults
                             : program_seed % 3 == 0 ? 0
                                                     : 5 + program_seed % 30),
        .has_background_thread = default_threads > 1 && program_seed % 4 == 0,
    };
}

static void run_programs(uint64_t first, unsigned default_programs, unsigned all_programs,
                         unsigned default_threads)
{
    for (unsigned i = 0; i < (programs != 0 ? programs
                              : runs_all    ? all_programs
                                            : default_programs);
         i++) {
        const struct world_options options = options_of(first + i, default_threads);

        program_play(&options, (unsigned)operations / options.threads);
    }
    print_message("# so far %llu calls, %llu checks of contents, %llu faults\n",
                  (unsigned long long)call_total(), (unsigned long long)kernel_count(),
                  (unsigned long long)fault_count());
}

TEST(one_thread_finds_no_violation)
{
    run_programs(seed, 20, 60, 1);
}

TEST(several_threads_find_no_violation)
{
    run_programs(seed + 1000000, 10, 30, 3);
}

/* Rare functions succeed only in a longer run. */
TEST(every_function_was_called)
{
    const char *function = call_missing(runs_all);

    if (is_verbose)
        call_print();
    if (function != NULL && has_default_options)
        fail_msg("%s was never called%s", function, runs_all ? " with success" : "");
}

TEST(exclusive_features_are_not_combined)
{
    const char *pair = feature_excluded_pair();

    if (pair != NULL)
        fail_msg("exclusive features were combined: %s", pair);
}

TEST(other_pairs_of_features_are_combined)
{
    unsigned reached = 0;
    const unsigned pairs = feature_pairs(&reached);
    const char *pair = feature_missing_pair();

    if (is_verbose)
        feature_print();
    print_message("# %u of %u pairs of features were combined\n", reached, pairs);
    if (pair != NULL && runs_all && has_default_options)
        fail_msg("features were not combined: %s", pair);
}

static uint64_t parse_number(const char *text)
{
    char *end = NULL;
    const uint64_t value = strtoull(text, &end, 0);

    if (*text == 0 || *end != 0)
        failure("'%s' is not a number", text);
    return value;
}

static void run_single(uint64_t program_seed, bool shrinks, bool has_background_thread)
{
    struct world_options options = options_of(program_seed, threads != 0 ? (unsigned)threads : 1);

    options.has_background_thread = has_background_thread;
    if (shrinks)
        program_shrink(&options, (unsigned)operations);
    else
        program_play(&options, (unsigned)operations);
    if (is_verbose) {
        call_print();
        feature_print();
    }
}

int main(int count, char **arguments)
{
    int is_single = false, shrinks = false, has_background_thread = false, option, index = 0;
    uint64_t program_seed = 0;
    const struct option options[] = {
        {"operations", required_argument, NULL, 0},
        {"programs", required_argument, NULL, 0},
        {"seed", required_argument, NULL, 0},
        {"threads", required_argument, NULL, 0},
        {"devices", required_argument, NULL, 0},
        {"faults", required_argument, NULL, 0},
        {"program", required_argument, &is_single, 1},
        {"background", no_argument, &has_background_thread, 1},
        {"shrink", no_argument, &shrinks, 1},
        {"all", no_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    uint64_t *const numbers[] = {&operations, &programs, &seed,        &threads,
                                 &devices,    &faults,   &program_seed};

    failure_install();
    while ((option = getopt_long(count, arguments, "v", options, &index)) != -1) {
        has_default_options = has_default_options && (option == 'v' || option == 'a');
        runs_all = runs_all || option == 'a';
        is_verbose = is_verbose || option == 'v';
        if (option == '?')
            return 2;
        if (option == 0 && options[index].has_arg == required_argument)
            *numbers[index] = parse_number(optarg);
    }
    if (threads > WORLD_WORKERS || devices > WORLD_DEVICES || (shrinks && threads > 1))
        failure("too many threads or devices");
    if (is_single) {
        run_single(program_seed, shrinks, has_background_thread);
        return 0;
    }
    return test_run();
}
