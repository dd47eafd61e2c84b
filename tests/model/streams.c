/* SPDX-License-Identifier: MIT */
/*
 * Random programs about streams, captures and pools, against the model.
 *
 * Expandable and classic segments, with and without reuse inside a capture, with much memory and with little.  All
 * work is open-ended and names its block, so the strict simulator ends the process if a page is unmapped during work.
 * The current context is that of any device, or none.  After each step every block has its address,
 * size and state, and the statistics of the device and of each pool equal the model's to the byte.  The audits run
 * after each step of every 16th program, and after every 32nd step of the others.
 *
 * By hand: XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=100000 XSEG_TEST_STEPS=1000 build-tests/tests/test-model-streams
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/run.h"
#include "tests/support/random_program.h"

struct choice {
    const char *name;
    void (*step)(struct run *run);
    unsigned weight, weight_captured; /* in programs with streams; in programs with captures */
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
    CHOICE(step_capture_use, 1, 12),
    CHOICE(step_capture_join, 3, 15),
    CHOICE(step_capture_invalidate, 0, 1),
    CHOICE(step_capture_end, 2, 4),
    CHOICE(step_mark, 1, 3),
};

static void take_step(struct run *run)
{
    const struct choice *choice = &choices[program_draw(
        run_random(run, UINT64_MAX),
        run->options.is_captured ? &choices[0].weight_captured : &choices[0].weight,
        sizeof(choices[0]), COUNT_OF(choices))];

    program_trace(choice->name);
    choice->step(run);
}

/* Totals of all programs, to detect a test without effect. */
static struct {
    uint64_t allocations, ghosts, rejected, fallbacks, restored, reused;
} tally;

static void play(const struct run_options *options, unsigned steps)
{
    struct run *run = malloc(sizeof(*run));
    const bool audits = XSEG_CHECKS >= 3 || options->seed % 16 == 0;

    assert_non_null(run);
    program.seed = options->seed;
    program.step = 0;
    run_open(run, options);
    step_pool(run);
    step_pool(run);
    for (; program.step < steps; program.step++) {
        take_step(run);
        run_check(run, audits || program.step % 32 == 0);
    }
    run_close(run);
    tally.allocations += run->model.allocations;
    tally.ghosts += run->model.ghost_total;
    tally.rejected += run->rejected;
    tally.fallbacks += run->fallbacks;
    tally.restored += run->restored;
    tally.reused += run->reused;
    free(run);
    program.seed = 0;
}

/* The seed selects the kind of program. */
static void play_all(uint64_t first, bool is_low_on_memory, bool is_captured)
{
    const uint64_t begin = program_number("XSEG_TEST_SEED", first);
    const uint64_t seeds = program_number("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 20 : 80);
    const unsigned steps = (unsigned)program_number("XSEG_TEST_STEPS", 300);

    memset(&tally, 0, sizeof(tally));
    for (uint64_t seed = begin; seed < begin + seeds; seed++) {
        const struct run_options options = {.seed = seed,
                                            .expandable = seed % 2 == 0,
                                            .reuse = seed / 2 % 2 == 0,
                                            .is_low_on_memory = is_low_on_memory,
                                            .is_captured = is_captured};

        play(&options, steps);
    }
    print_message("# %" PRIu64 " allocations, %" PRIu64
                  " freed before their work completed, %" PRIu64 " rejected, %" PRIu64
                  " from fallback pools, %" PRIu64 " pools restored, %" PRIu64
                  " reused in a capture\n",
                  tally.allocations, tally.ghosts, tally.rejected, tally.fallbacks, tally.restored,
                  tally.reused);
    if (seeds * steps >= 20000) {
        assert_true(tally.allocations > seeds * steps / 20);
        assert_true(tally.ghosts > seeds);
        assert_true(!is_low_on_memory || tally.rejected > seeds);
        /* In programs with captures graphs may use almost all pools, which then serve no fallback allocations. */
        assert_true(!is_low_on_memory || is_captured || tally.fallbacks > 0);
        assert_true(is_captured ? tally.reused > seeds / 10 : tally.restored > 0);
    }
}

TEST_PROGRAM(streams_match_the_model)
{
    play_all(1, false, false);
}

TEST_PROGRAM(streams_with_little_memory_match_the_model)
{
    play_all(1001, true, false);
}

TEST_PROGRAM(captures_match_the_model)
{
    play_all(2001, false, true);
}

TEST_PROGRAM(captures_with_little_memory_match_the_model)
{
    play_all(3001, true, true);
}
