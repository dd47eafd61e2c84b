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
 *       --seed N         of the first program; later ones add 1
 *       --threads N --devices N   of all programs, up to 8 and 4
 *       --faults N       faults per 1000 operations
 *       --program N      only the program with this seed, with the other options
 *       --background     with --program: with the background thread
 *       --shrink         with --program and one thread: find the operations that are needed for the failure
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
static bool is_verbose, plays_all, is_usual = true;

/* Every third program has no faults, so that log lines and failures without a fault are detected. */
static struct world_options options_of(uint64_t number, unsigned usual_threads)
{
    return (struct world_options){
        .seed = number,
        .threads = threads != 0 ? (unsigned)threads : usual_threads,
        .devices = (unsigned)(devices != 0 ? devices : 1 + number % 3),
        .faults = (unsigned)(faults != UINT32_MAX ? faults
                             : number % 3 == 0    ? 0
                                                  : 5 + number % 30),
        .has_background_thread = usual_threads > 1 && number % 4 == 0,
    };
}

static void play_all(uint64_t first, unsigned usual, unsigned all, unsigned usual_threads)
{
    for (unsigned i = 0; i < (programs != 0 ? programs : plays_all ? all : usual); i++) {
        const struct world_options options = options_of(first + i, usual_threads);

        program_play(&options, (unsigned)operations / options.threads);
    }
    print_message("# so far %llu calls, %llu checks of contents, %llu faults\n",
                  (unsigned long long)call_total(), (unsigned long long)kernel_count(),
                  (unsigned long long)fault_count());
}

TEST(one_thread_finds_no_violation)
{
    play_all(seed, 20, 60, 1);
}

TEST(several_threads_find_no_violation)
{
    play_all(seed + 1000000, 10, 30, 3);
}

/* Rare functions succeed only in a longer run. */
TEST(every_function_was_called)
{
    const char *missing = call_missing(plays_all);

    if (is_verbose)
        call_print();
    if (missing != NULL && is_usual)
        fail_msg("%s was never called%s", missing, plays_all ? " with success" : "");
}

TEST(exclusive_features_are_not_combined)
{
    const char *combined = feature_excluded_pair();

    if (combined != NULL)
        fail_msg("against the table: %s", combined);
}

TEST(other_pairs_of_features_are_combined)
{
    unsigned reached = 0;
    const unsigned pairs = feature_pairs(&reached);
    const char *missing = feature_missing_pair();

    if (is_verbose)
        feature_print();
    print_message("# %u of %u pairs of features have met\n", reached, pairs);
    if (missing != NULL && plays_all && is_usual)
        fail_msg("against the table: %s", missing);
}

static uint64_t number(const char *text)
{
    char *end = NULL;
    const uint64_t value = strtoull(text, &end, 0);

    if (*text == 0 || *end != 0)
        failure("'%s' is not a number", text);
    return value;
}

static void play_one(uint64_t which, bool shrinks, bool has_background_thread)
{
    struct world_options options = options_of(which, threads != 0 ? (unsigned)threads : 1);

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
    int is_one = false, shrinks = false, has_background_thread = false, option, index = 0;
    uint64_t which = 0;
    const struct option options[] = {
        {"operations", required_argument, NULL, 0},
        {"programs", required_argument, NULL, 0},
        {"seed", required_argument, NULL, 0},
        {"threads", required_argument, NULL, 0},
        {"devices", required_argument, NULL, 0},
        {"faults", required_argument, NULL, 0},
        {"program", required_argument, &is_one, 1},
        {"background", no_argument, &has_background_thread, 1},
        {"shrink", no_argument, &shrinks, 1},
        {"all", no_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    uint64_t *const numbers[] = {&operations, &programs, &seed, &threads,
                                 &devices,    &faults,   &which};

    failure_install();
    while ((option = getopt_long(count, arguments, "v", options, &index)) != -1) {
        is_usual = is_usual && (option == 'v' || option == 'a');
        plays_all = plays_all || option == 'a';
        is_verbose = is_verbose || option == 'v';
        if (option == '?')
            return 2;
        if (option == 0 && options[index].has_arg == required_argument)
            *numbers[index] = number(optarg);
    }
    if (threads > WORLD_WORKERS || devices > WORLD_DEVICES || (shrinks && threads > 1))
        failure("too many threads or devices");
    if (is_one) {
        play_one(which, shrinks, has_background_thread);
        return 0;
    }
    return test_run();
}
