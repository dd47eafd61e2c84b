/* SPDX-License-Identifier: MIT */
/*
 * Random programs about streams, captures and pools, against the model.
 *
 * Both kinds of segment, with and without reuse inside a capture, with room and running short.  All
 * work is open-ended and says which block it touches, so that the strict simulator ends the process
 * if a page goes under it; the current context is any, and none.  After each step every block is
 * where it was and what it was, and the statistics of the device and of each pool are the model's
 * to the byte.  The audits hold after each step of every 16th program, and after every 32nd of
 * the others.
 *
 * A failure prints its seed.  By hand:
 *   XSEG_TEST_SEED=N XSEG_TEST_SEEDS=1 build-tests/tests/test-model-streams
 *   XSEG_TEST_TRACE=1 ...                     (the name of each step)
 *   XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=100000 XSEG_TEST_STEPS=1000 ...
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/model/run.h"

struct choice {
    const char *name;
    void (*step)(struct run *run);
    unsigned weight, weight_captured; /* weight of the step, by kind of program */
};

/* clang-format off */
#define CHOICE(step, weight, weight_captured) {#step, step, weight, weight_captured}
/* clang-format on */

static const struct choice choices[] = {
    CHOICE(step_alloc, 50, 50),
    CHOICE(step_free, 25, 25),
    CHOICE(step_free_after, 5, 3),
    CHOICE(step_record_stream, 5, 12),
    CHOICE(step_work, 18, 10),
    CHOICE(step_finish, 8, 4),
    CHOICE(step_synchronize, 2, 2),
    CHOICE(step_retire, 3, 1),
    CHOICE(step_trim, 4, 2),
    CHOICE(step_prewarm, 1, 1),
    CHOICE(step_second_device, 2, 2),
    CHOICE(step_bad_input, 2, 2),
    CHOICE(step_pool, 4, 4),
    CHOICE(step_release, 3, 2),
    CHOICE(step_route, 2, 1),
    CHOICE(step_route_end, 2, 2),
    CHOICE(step_checkpoint, 3, 1),
    CHOICE(step_restore, 2, 1),
    CHOICE(step_check_live, 1, 1),
    CHOICE(step_capture, 2, 12),
    CHOICE(step_capture_begin_late, 1, 3),
    CHOICE(step_capture_node, 3, 20),
    CHOICE(step_capture_share, 1, 12),
    CHOICE(step_capture_join, 3, 15),
    CHOICE(step_capture_invalidate, 0, 1),
    CHOICE(step_capture_end, 2, 4),
    CHOICE(step_mark, 1, 3),
};

/* The current program, for reports. */
static uint64_t seed_played;
static unsigned step_played;

static char text_played[128];

static void note_step(void)
{
    (void)snprintf(text_played, sizeof(text_played),
                   "in step %u of the programme XSEG_TEST_SEED=%llu XSEG_TEST_SEEDS=1\n",
                   step_played, (unsigned long long)seed_played);
}

/* The simulator and the audits end the process. */
static void report_abort(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, text_played, strlen(text_played));
}

static int report_failure(void **state)
{
    (void)state;
    if (seed_played != 0)
        print_error("%s", text_played);
    seed_played = 0;
    return 0;
}

static unsigned long by_environment(const char *name, unsigned long usual)
{
    const char *value = getenv(name);

    return value != NULL ? strtoul(value, NULL, 10) : usual;
}

static void take_step(struct run *run)
{
    const bool captured = run->options.is_captured;
    uint64_t sum = 0;
    unsigned i = 0;

    for (unsigned k = 0; k < COUNT_OF(choices); k++)
        sum += captured ? choices[k].weight_captured : choices[k].weight;
    uint64_t at = run_random(run, sum);
    for (; at >= (captured ? choices[i].weight_captured : choices[i].weight); i++)
        at -= captured ? choices[i].weight_captured : choices[i].weight;
    if (getenv("XSEG_TEST_TRACE") != NULL)
        print_message("# %u %s\n", step_played, choices[i].name);
    choices[i].step(run);
}

/* Totals of all programs, to detect a test without effect. */
static struct {
    uint64_t allocations, ghosts, oom, above_share, restored, reused;
} tally;

static void play(const struct run_options *options, unsigned steps)
{
    struct run *run = malloc(sizeof(*run));
    const bool audits = XSEG_CHECKS >= 3 || options->seed % 16 == 0;

    assert_non_null(run);
    seed_played = options->seed;
    step_played = 0;
    run_open(run, options);
    step_pool(run);
    step_pool(run);
    for (; step_played < steps; step_played++) {
        note_step();
        take_step(run);
        run_check(run, audits || step_played % 32 == 0);
    }
    run_close(run);
    tally.allocations += run->model.allocations;
    tally.ghosts += run->model.ghost_total;
    tally.oom += run->oom;
    tally.above_share += run->above_share;
    tally.restored += run->restored;
    tally.reused += run->reused;
    free(run);
    seed_played = 0;
}

/*
 * Seeds from `first` on, or those of the environment; the seed selects the kind of program. With audits after each
 * step there are fewer.
 */
static void play_all(uint64_t first, bool is_low_on_memory, bool is_captured)
{
    const uint64_t begin = by_environment("XSEG_TEST_SEED", first);
    const uint64_t seeds = by_environment("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 20 : 80);
    const unsigned steps = (unsigned)by_environment("XSEG_TEST_STEPS", 300);

    memset(&tally, 0, sizeof(tally));
    for (uint64_t seed = begin; seed < begin + seeds; seed++) {
        const struct run_options options = {.seed = seed,
                                            .expandable = seed % 2 == 0,
                                            .reuse = seed / 2 % 2 == 0,
                                            .is_low_on_memory = is_low_on_memory,
                                            .is_captured = is_captured};

        play(&options, steps);
    }
    print_message("# %llu allocations, %llu freed under work, %llu refused, %llu lent, %llu pools "
                  "restored, %llu reused in a capture\n",
                  (unsigned long long)tally.allocations, (unsigned long long)tally.ghosts,
                  (unsigned long long)tally.oom, (unsigned long long)tally.above_share,
                  (unsigned long long)tally.restored, (unsigned long long)tally.reused);
    if (seeds * steps >= 20000) {
        assert_true(tally.allocations > seeds * steps / 20);
        assert_true(tally.ghosts > seeds);
        assert_true(!is_low_on_memory || tally.oom > seeds);
        /* In programs with captures almost every pool may be used by a graph. */
        assert_true(!is_low_on_memory || is_captured || tally.above_share > 0);
        assert_true(is_captured ? tally.reused > seeds / 10 : tally.restored > 0);
    }
}

static void streams_with_room(void **state)
{
    (void)state;
    play_all(1, false, false);
}

static void streams_running_short(void **state)
{
    (void)state;
    play_all(1001, true, false);
}

static void captures_with_room(void **state)
{
    (void)state;
    play_all(2001, false, true);
}

static void captures_running_short(void **state)
{
    (void)state;
    play_all(3001, true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(streams_with_room, report_failure),
        cmocka_unit_test_teardown(streams_running_short, report_failure),
        cmocka_unit_test_teardown(captures_with_room, report_failure),
        cmocka_unit_test_teardown(captures_running_short, report_failure),
    };

    (void)signal(SIGABRT, report_abort);
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
