/* SPDX-License-Identifier: MIT */
/*
 * The sweep over what is kept on the host beside the blocks, and over what is asked: ages, histories,
 * observers, pins, walks, explanations, lists of mappings, and the background thread.
 */
#include "tests/fault/stage.h"

static bool go_on_walking(void *context, const struct xseg_block_info *info)
{
    (void)context;
    return info->bytes != 0;
}

static bool go_on_explaining(void *context, const struct xseg_reason *reason)
{
    (void)context;
    return reason->bytes != 0;
}

static bool go_on_listing(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->bytes != 0;
}

static void ask(struct stage *stage)
{
    struct xseg_explain_result sums = {sizeof(sums)};

    while (stage_again(stage, xseg_for_each_block(stage->allocator, NULL, go_on_walking, NULL)))
        ;
    while (stage_again(stage, xseg_explain(stage->allocator, NULL, go_on_explaining, NULL, &sums)))
        ;
    while (stage_again(stage, xseg_for_each_mapping(stage->allocator, NULL, go_on_listing, NULL)))
        ;
}

static void hear(void *context, const struct xseg_trace_entry *entry)
{
    unsigned *count = context;

    (void)entry;
    ++*count;
}

static void is_asked(struct stage *stage)
{
    struct xseg_observer observer = {sizeof(observer)};
    unsigned entries = 0;
    uint64_t id = 0;
    void *a, *b, *c;

    observer.context = &entries;
    observer.on_trace = hear;
    while (stage_again(stage, xseg_observer_add(stage->allocator, &observer, &id)))
        ;
    a = stage_take(stage, 30 * MIB, NULL);
    b = stage_take(stage, 700, stage->side);
    c = stage_take(stage, 3 * MIB, NULL);
    stage_use(stage, a, stage->side);
    assert_int_equal(xseg_sim_launch(stage->side, UINT64_MAX), XSEG_OK);
    ask(stage);
    while (stage_again(stage, xseg_pin(stage->allocator, c, 3 * MIB)))
        ;
    stage_give(stage, a);
    ask(stage);
    stage_trim(stage, false);
    assert_int_equal(xseg_sim_finish(stage->side), XSEG_OK);
    a = stage_take(stage, 12 * MIB, NULL);
    stage_pass(stage, 200);
    ask(stage);
    while (stage_again(stage, xseg_unpin(stage->allocator, c, 3 * MIB)))
        ;
    stage_give(stage, c);
    stage_give(stage, b);
    stage_configure(stage, "history:all,history_stacks:all");
    stage_give(stage, a);
    while (stage_again(stage, xseg_observer_remove(stage->allocator, id)))
        ;
    stage_trim(stage, true);
}

/* The thread starts, stops and starts again; it looks long after the scenario is over. */
static void thread_comes_and_goes(struct stage *stage)
{
    void *a = stage_take(stage, 30 * MIB, NULL);

    stage_configure(stage, "background_thread:True");
    stage_give(stage, a);
    stage_configure(stage, "background_thread:False");
    a = stage_take(stage, 50 * MIB, NULL);
    stage_configure(stage, "background_thread:True");
    stage_give(stage, a);
}

static void sweep(const char *name, stage_scenario play, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = GIB;
    stage_sweep(name, play, &settings, config);
}

static void with_ages_and_histories(void **state)
{
    (void)state;
    sweep("asked", is_asked, "idle_ms:100,history:state");
    sweep("asked, classic", is_asked, "expandable_segments:False,history:state");
}

static void with_a_thread(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    (void)state;
    settings.memory_bytes = GIB;
    stage_sweep_host("thread", thread_comes_and_goes, &settings, "idle_ms:3600000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_ages_and_histories),
        cmocka_unit_test(with_a_thread),
    };

    return cmocka_run_group_tests_name("seen", tests, NULL, NULL);
}
