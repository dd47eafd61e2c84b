/* SPDX-License-Identifier: MIT */
/*
 * The sweep over pausing and resuming: every driver call of both fails once, on a set of 600 MiB in
 * several segments (of 150 where a file is written); and pairs of them.
 *
 * After a failed pause the pool is as it was, its blocks mapped, with what was in them.  Where a second
 * fault strikes in the undo, it may be paused instead, and says so.  After a failed resume it is still
 * paused, and holds no memory.  In the end everything is there again.
 *
 * Pages are large here, so that the calls are few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/stage.h"

static char file_name[] = P_tmpdir "/xseg-fault-pause-XXXXXX";

/* The faults of a run, which strike from the pause on, so that all of them strike in what is tested. */
static struct xseg_sim_fault fault[2];

static void arm(void)
{
    for (unsigned i = 0; i < COUNT_OF(fault); i++)
        if (fault[i].nth != 0)
            assert_int_equal(xseg_sim_fault_set(i, &fault[i]), XSEG_OK);
}

static void disarm(void)
{
    for (unsigned i = 0; i < COUNT_OF(fault); i++)
        assert_int_equal(xseg_sim_fault_set(i, NULL), XSEG_OK);
}

/* The pool is paused in spite of an error, as the driver refused the undo. */
static bool is_stranded(void)
{
    char text[1024];

    (void)xseg_error_text(text, sizeof(text));
    return strstr(text, "so the pool is paused") != NULL;
}

static void resume(struct stage *stage, struct xseg_pool *pool)
{
    xseg_status status;

    do {
        status = xseg_pool_resume(pool);
        if (status == XSEG_OK)
            stage->paused = NULL;
    } while (stage_again(stage, status));
}

static void pause_with(struct stage *stage, struct xseg_pool *pool, enum xseg_keep keep)
{
    const char *name = keep == XSEG_KEEP_FILE ? file_name : NULL;
    bool again;

    do {
        const xseg_status status = xseg_pool_pause(pool, keep, name);
        const bool stranded = status != XSEG_OK && is_stranded();

        if (status == XSEG_OK || stranded)
            stage->paused = pool;
        again = stage_again(stage, status);
        if (stranded)
            resume(stage, pool);
    } while (again);
}

/* Nothing of a pool's memory is left on the device, unless the driver refused to take it. */
static void expect_gone(struct stage *stage, uint64_t others)
{
    struct xseg_where where = XSEG_WHERE_ANY;
    struct xseg_stats stats = {.struct_bytes = sizeof(stats)};

    where.device = 0;
    while (stage_again(stage, xseg_stats(stage->allocator, &where, &stats)))
        ;
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, others);
    assert_int_equal(xseg_sim_used(0), others + stats.stuck_bytes);
}

static void set_up(struct stage *stage, struct xseg_pool **pool)
{
    stage->page_bytes = 100 * MIB;
    stage->stride = 64 * MIB;
    assert_int_equal(xseg_pool_create(stage->allocator, 0, NULL, pool), XSEG_OK);
}

/* `whole` MiB: a segment of large pages on each of two streams, and one of small pages. */
static void come_and_go(struct stage *stage, enum xseg_keep keep, size_t whole)
{
    struct xseg_pool *pool = NULL;
    void *ptr[5], *other;

    set_up(stage, &pool);
    ptr[0] = stage_take_from(stage, pool, whole * MIB / 2, NULL);
    ptr[1] = stage_take_from(stage, pool, whole * MIB / 10, NULL);
    ptr[2] = stage_take_from(stage, pool, whole * MIB / 3, stage->side);
    ptr[3] = stage_take_from(stage, pool, MIB, NULL);
    ptr[4] = stage_take_from(stage, pool, MIB, NULL);
    other = stage_take(stage, 700 * KIB, NULL);
    stage_give(stage, ptr[1]); /* cached: it goes and comes as well */
    arm();
    pause_with(stage, pool, keep);
    expect_gone(stage, 2 * MIB);
    stage_give(stage, ptr[4]);
    /* What is not kept is not there again. */
    const bool had_bytes = stage->bytes;
    stage->bytes = had_bytes && keep != XSEG_KEEP_NOTHING;
    resume(stage, pool);
    disarm();
    assert_int_not_equal(access(file_name, F_OK), 0);
    stage_give(stage, stage_take_from(stage, pool, 10 * MIB, NULL));
    for (unsigned i = 0; i < 4; i += i == 0 ? 2 : 1)
        stage_give(stage, ptr[i]);
    stage->bytes = had_bytes;
    stage_give(stage, other);
}

static void keep_nothing(struct stage *stage)
{
    come_and_go(stage, XSEG_KEEP_NOTHING, 600);
}

static void keep_on_host(struct stage *stage)
{
    come_and_go(stage, XSEG_KEEP_HOST, 600);
}

/* All of what is saved is searched for zeros, which takes its time: a smaller set. */
static void keep_in_file(struct stage *stage)
{
    come_and_go(stage, XSEG_KEEP_FILE, 150);
}

/* A paused pool that nobody wants back: what is kept goes at a trim. */
static void never_resumed(struct stage *stage)
{
    struct xseg_pool *pool = NULL;

    set_up(stage, &pool);
    void *ptr = stage_take_from(stage, pool, 330 * MIB, NULL);
    arm();
    pause_with(stage, pool, XSEG_KEEP_HOST);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_give(stage, ptr);
    stage_trim(stage, true);
    disarm();
}

/* What is still paused goes as the allocator closes; the faults strike in there as well. */
static void closed(struct stage *stage)
{
    struct xseg_pool *pool = NULL;

    set_up(stage, &pool);
    stage_give(stage, stage_take_from(stage, pool, 330 * MIB, NULL));
    arm();
    pause_with(stage, pool, XSEG_KEEP_HOST);
}

#define CONFIG "expandable_segments:True,large_segment_size_mb:100"

static const struct {
    const char *name;
    stage_scenario play;
    unsigned rounds;   /* of single faults */
    unsigned distance; /* of the second fault of a pair */
} scenarios[] = {
    {"keep nothing", keep_nothing, 4, 6},
    {"keep on the host", keep_on_host, 2, 4},
    {"keep in a file", keep_in_file, 1, 0},
    {"never resumed", never_resumed, 2, 4},
    {"closed", closed, 2, 4},
};

/* A round of single faults: with which error, and whether the driver takes one mapping a call. */
static const struct {
    int error;
    bool one_by_one;
} rounds[] = {{999, false}, {999, true}, {2, false}, {1, false}};

static struct xseg_sim_settings settings_of(bool one_by_one)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

    settings.memory_bytes = GIB;
    settings.real_bytes = true;
    settings.one_by_one = one_by_one;
    return settings;
}

/* Run a scenario; whether the last of its faults struck. */
static bool run(stage_scenario play, const struct xseg_sim_settings *settings)
{
    const struct xseg_sim_fault none = stage_nth_call(0, 1);

    (void)stage_run(play, settings, CONFIG, none, none);
    return xseg_sim_fault_struck(fault[1].nth != 0 ? 1 : 0) != 0;
}

static void singles(void **state)
{
    uint64_t n = 0;

    (void)state;
    fault[1].nth = 0;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++) {
        for (unsigned round = 0; round < scenarios[i].rounds; round++) {
            const struct xseg_sim_settings settings = settings_of(rounds[round].one_by_one);

            for (n = 1; fault[0] = stage_nth_call(n, rounds[round].error),
                run(scenarios[i].play, &settings);
                 n++)
                assert_true(n < 1000);
        }
        print_message("# %s: %u driver calls\n", scenarios[i].name, (unsigned)(n - 1));
        assert_true(n > 20);
    }
}

/* A second fault behind the first one, where the undo is. */
static void pairs(void **state)
{
    const struct xseg_sim_settings settings = settings_of(false);
    uint64_t runs = 0;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        for (uint64_t behind = 1; behind <= scenarios[i].distance; behind++)
            for (uint64_t n = 1;
                 fault[0] = stage_nth_call(n, 999), fault[1] = stage_nth_call(n + behind, 999),
                          run(scenarios[i].play, &settings);
                 n++)
                runs++;
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}

/* A batched unmap or set-access that does some of its mappings and then fails. */
static void halfway(void **state)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemSetAccess"};
    const struct xseg_sim_settings settings = settings_of(false);
    uint64_t runs = 0;

    (void)state;
    fault[1].nth = 0;
    for (unsigned call = 0; call < COUNT_OF(calls); call++)
        for (uint64_t mappings = 1; mappings <= 3; mappings++) {
            fault[0] = stage_nth_call(1, 999);
            fault[0].call = calls[call];
            fault[0].halfway = mappings;
            for (; run(keep_on_host, &settings); fault[0].nth++)
                runs++;
        }
    assert_true(runs > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singles),
        cmocka_unit_test(pairs),
        cmocka_unit_test(halfway),
    };
    const int file = mkstemp(file_name);

    if (file < 0 || close(file) != 0 || unlink(file_name) != 0)
        return 1;
    return cmocka_run_group_tests_name("pause", tests, NULL, NULL);
}
