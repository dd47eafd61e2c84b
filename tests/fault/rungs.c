/* SPDX-License-Identifier: MIT */
/*
 * The sweep over the ladder: a scenario for each rung, in which every driver call fails once, and
 * pairs of calls that follow one another.  What must hold after each is in stage.h.
 */
#include "tests/fault/stage.h"

/* --- Scenarios: each ends up at the rung that names it when nothing fails. --- */

struct spare {
    struct stage *stage;
    void *block;
};

static bool free_spare(void *context, const struct xseg_oom_info *shortage)
{
    struct spare *spare = context;
    void *block = spare->block;

    (void)shortage;
    spare->block = NULL;
    if (block != NULL)
        stage_give(spare->stage, block);
    return block != NULL;
}

static void ask(struct stage *stage)
{
    struct spare spare = {stage, stage_take(stage, 150 * MIB, NULL)};
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    void *a;

    observer.context = &spare;
    observer.on_low_memory = free_spare;
    while (stage_again(stage, xseg_observer_add(stage->allocator, &observer, &id)))
        ;
    a = stage_take(stage, 90 * MIB, NULL);
    stage_give(stage, a);
    if (spare.block != NULL)
        stage_give(stage, spare.block);
    while (stage_again(stage, xseg_observer_remove(stage->allocator, id)))
        ;
    stage_trim(stage, true);
}

static void own_segments(struct stage *stage)
{
    void *idle = stage_take(stage, 60 * MIB, NULL), *live = stage_take(stage, 120 * MIB, NULL);

    stage_give(stage, idle);
    idle = stage_take(stage, 80 * MIB, NULL);
    stage_give(stage, live);
    stage_give(stage, idle);
    stage_trim(stage, true);
}

static void other_streams(struct stage *stage)
{
    void *a = stage_take(stage, 190 * MIB, stage->side), *b, *c;

    stage_give(stage, a);
    /* Full pages for the one, small ones of what was full for the other. */
    b = stage_take(stage, 65 * MIB, NULL);
    c = stage_take(stage, 3000, NULL);
    stage_give(stage, b);
    stage_give(stage, c);
    stage_trim(stage, true);
}

static void small_to_large(struct stage *stage)
{
    void *block[16], *large;

    for (unsigned i = 0; i < COUNT_OF(block); i++)
        block[i] = stage_take(stage, MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(block); i++)
        stage_give(stage, block[i]);
    large = stage_take(stage, 12 * MIB, NULL);
    stage_give(stage, large);
    stage_trim(stage, true);
}

static void busy_stream(struct stage *stage)
{
    void *a = stage_take(stage, 190 * MIB, stage->side);

    assert_int_equal(xseg_sim_launch_on(stage->side, 1000000, (uintptr_t)a, 190 * MIB), XSEG_OK);
    stage_give(stage, a);
    a = stage_take(stage, 65 * MIB, NULL);
    stage_give(stage, a);
    stage_trim(stage, true);
}

static void lend(struct stage *stage)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    void *a;

    options.use_on_oom = true;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &pool)))
        ;
    a = stage_take_from(stage, pool, 150 * MIB, NULL);
    stage_give(stage, a);
    a = stage_take(stage, 90 * MIB, NULL);
    stage_give(stage, a);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, true);
}

static void pending(struct stage *stage)
{
    void *a = stage_take(stage, 190 * MIB, NULL);

    stage_use(stage, a, stage->side);
    assert_int_equal(xseg_sim_launch(stage->side, UINT64_MAX), XSEG_OK);
    stage_give(stage, a);
    a = stage_take(stage, 90 * MIB, NULL);
    stage_give(stage, a);
    stage_trim(stage, true);
}

/* Classic: segments of max_split_size_mb, then everything. */
static void segments(struct stage *stage)
{
    void *a = stage_take(stage, 110 * MIB, NULL), *b = stage_take(stage, 80 * MIB, NULL);

    stage_give(stage, a);
    stage_give(stage, b);
    a = stage_take(stage, 50 * MIB, NULL);
    stage_give(stage, a);
    a = stage_take(stage, 170 * MIB, NULL);
    stage_give(stage, a);
    stage_trim(stage, true);
}

/* Garbage, before anything is short of memory. */
static void garbage(struct stage *stage)
{
    void *a = stage_take(stage, 40 * MIB, NULL), *b = stage_take(stage, 30 * MIB, NULL), *c;

    stage_give(stage, a);
    stage_give(stage, b);
    c = stage_take(stage, 60 * MIB, NULL);
    b = stage_take(stage, 70 * MIB, NULL);
    stage_give(stage, b);
    stage_give(stage, c);
    stage_trim(stage, true);
}

/* What is cached goes before a capture, once memory has been short: of a busy stream and of an idle one,
 * and a block that another stream uses. */
static void before_capture(struct stage *stage)
{
    struct xseg_pool *pool = NULL;
    void *a = stage_take(stage, 150 * MIB, stage->side), *b, *c;

    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, NULL, &pool)))
        ;
    stage_give(stage, a);
    b = stage_take(stage, 90 * MIB, NULL);
    c = stage_take(stage, 20 * MIB, NULL);
    stage_use(stage, c, stage->side);
    assert_int_equal(xseg_sim_launch(stage->side, UINT64_MAX), XSEG_OK);
    stage_give(stage, c);
    stage_give(stage, b);
    while (stage_again(stage, xseg_capture_begin(pool, stage->side)))
        ;
    while (stage_again(stage, xseg_capture_end(pool)))
        ;
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, true);
}

/* No addresses for a second segment: a classic one. */
static void addresses(struct stage *stage)
{
    void *a = stage_take(stage, 5 * MIB, NULL), *b, *c;

    xseg_sim_set_external_addresses(2 * GIB - 100 * MIB);
    b = stage_take(stage, 1000, NULL);
    c = stage_take(stage, 900, stage->side);
    stage_give(stage, a);
    stage_give(stage, b);
    stage_trim(stage, true);
    stage_give(stage, c);
    stage_trim(stage, true);
    xseg_sim_set_external_addresses(0);
}

/* --- The sweep. --- */

static const struct {
    const char *name;
    stage_scenario play;
    const char *config;
    size_t mib; /* of the device */
} rung[] = {
    {"ask", ask, "expandable_segments:True", 200},
    {"own segments", own_segments, "expandable_segments:True", 200},
    {"other streams", other_streams, "expandable_segments:True", 200},
    {"small to large", small_to_large, "expandable_segments:True", 40},
    {"busy stream", busy_stream, "expandable_segments:True", 200},
    {"lend", lend, "expandable_segments:True", 200},
    {"pending", pending, "expandable_segments:True", 200},
    {"classic, ask", ask, "expandable_segments:False", 200},
    {"classic, pending", pending, "expandable_segments:False", 200},
    {"classic, segments", segments, "expandable_segments:False,max_split_size_mb:40", 200},
    {"classic, garbage", garbage,
     "expandable_segments:False,per_process_memory_fraction:0.4,garbage_collection_threshold:0.4",
     600},
    {"garbage", garbage,
     "expandable_segments:True,per_process_memory_fraction:0.4,garbage_collection_threshold:0.4",
     600},
    {"a limit", other_streams, "expandable_segments:True,per_process_memory_fraction:0.2", 1000},
    {"addresses", addresses, "expandable_segments:True", 1000},
    {"before a capture", before_capture, "expandable_segments:True", 200},
};

static struct xseg_sim_settings device_of(unsigned i, bool one_by_one)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = rung[i].mib * MIB;
    settings.single_mapping_calls = one_by_one;
    settings.address_bytes = rung[i].play == addresses ? 4 * GIB : 0;
    return settings;
}

static void singles(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rung); i++) {
        const struct xseg_sim_settings settings = device_of(i, false);

        stage_sweep(rung[i].name, rung[i].play, &settings, rung[i].config);
    }
}

/* On a driver that unmaps and grants access one mapping at a time. */
static void singles_one_by_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rung); i++) {
        const struct xseg_sim_settings settings = device_of(i, true);

        stage_sweep(rung[i].name, rung[i].play, &settings, rung[i].config);
    }
}

static void pairs(void **state)
{
    uint64_t runs = 0;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rung); i++) {
        const struct xseg_sim_settings settings = device_of(i, false);

        runs += stage_pairs(rung[i].play, &settings, rung[i].config, 3);
    }
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(singles),
        cmocka_unit_test(singles_one_by_one),
        cmocka_unit_test(pairs),
    };

    return cmocka_run_group_tests_name("rungs", tests, NULL, NULL);
}
