/* SPDX-License-Identifier: MIT */
/*
 * The sweep over histories: whatever the driver refuses, the events that there are say what has happened; and what
 * the host refuses leaves events out at most.
 *
 * After each call the history is played from the start, and must give the state of xseg_for_each_block().
 */
#include "tests/fault/followed.h"

static bool again(struct stage *stage, xseg_status status)
{
    followed(stage);
    return stage_again(stage, status);
}

static void *take(struct stage *stage, unsigned pool, size_t bytes, xseg_stream stream)
{
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;
    xseg_status status;

    request.bytes = bytes;
    request.stream = stream;
    request.pool = pool == 0 ? NULL : followed_pool;
    request.user = stage;
    do {
        status = xseg_alloc_with(stage->allocator, &request, &ptr);
        if (status == XSEG_OK)
            stage_hold(stage, ptr, bytes);
    } while (again(stage, status));
    return ptr;
}

static void give(struct stage *stage, void *ptr)
{
    xseg_status status;

    do {
        status = xseg_free(stage->allocator, ptr);
        if (status == XSEG_OK)
            stage_drop(stage, ptr);
    } while (again(stage, status));
}

static void trim(struct stage *stage, bool wait)
{
    struct xseg_trim_options how = {sizeof(how)};

    how.wait = wait;
    while (again(stage, xseg_trim(stage->allocator, NULL, &how, NULL)))
        ;
}

static void make_pool(struct stage *stage, bool lends)
{
    struct xseg_pool_options options = {sizeof(options)};

    options.use_on_oom = lends;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &followed_pool)))
        ;
}

/* --- The scenarios. --- */

static void grow_and_shrink(struct stage *stage)
{
    followed_pool = NULL;
    void *a = take(stage, 0, 30 * MIB, NULL), *b = take(stage, 0, 2 * MIB, stage->side);
    void *c = take(stage, 0, 90 * MIB, NULL), *d = take(stage, 0, 1000, NULL);

    give(stage, a);
    give(stage, c);
    trim(stage, true);
    a = take(stage, 0, 70 * MIB, stage->side);
    give(stage, b);
    give(stage, d);
    trim(stage, false);
    give(stage, a);
    trim(stage, true);
}

static void pending_blocks(struct stage *stage)
{
    followed_pool = NULL;
    void *a = take(stage, 0, 5 * MIB, NULL), *b = take(stage, 0, 700, stage->side);

    stage_use(stage, a, stage->side);
    stage_use(stage, b, NULL);
    assert_int_equal(xseg_sim_launch(stage->side, UINT64_MAX), XSEG_OK);
    give(stage, a);
    give(stage, b);
    a = take(stage, 0, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(stage->side), XSEG_OK);
    b = take(stage, 0, 5 * MIB, NULL);
    trim(stage, false);
    give(stage, a);
    give(stage, b);
    trim(stage, true);
}

/* The device holds 200 MiB: memory is stolen from a stream, then lent by a pool. */
static void short_of_memory(struct stage *stage)
{
    make_pool(stage, true);
    void *a = take(stage, 1, 60 * MIB, NULL), *b = take(stage, 0, 100 * MIB, NULL);

    give(stage, b);
    b = take(stage, 0, 90 * MIB, stage->side);
    give(stage, a);
    a = take(stage, 0, 55 * MIB, NULL);
    give(stage, a);
    give(stage, b);
    while (again(stage, xseg_pool_release(followed_pool)))
        ;
    trim(stage, true);
}

/* --- What is asked. --- */

static bool go_on(void *context, const struct xseg_history_entry *entry)
{
    *(uint32_t *)context = entry->stack != 0 ? entry->stack : *(uint32_t *)context;
    return true;
}

static bool go_on_frames(void *context, const struct xseg_history_frame *frame)
{
    (void)context;
    return frame->pc != NULL;
}

static uint32_t gather(void *context)
{
    return *(const uint32_t *)context;
}

static void forget(void *context, const uint32_t *kept, size_t count)
{
    (void)context;
    (void)kept;
    (void)count;
}

static void ask(struct stage *stage)
{
    uint32_t stack = 0;

    while (stage_again(stage, xseg_for_each_event(stage->allocator, -1, go_on, &stack, NULL)))
        ;
    if (stack != 0)
        while (stage_again(stage, xseg_history_stack(stage->allocator, stack, go_on_frames, NULL)))
            ;
}

static void everything_is_asked(struct stage *stage)
{
    struct xseg_history_hook hook = {sizeof(hook)};
    static uint32_t number = 5;
    const char *before = NULL;

    followed_pool = NULL;
    hook.context = &number;
    hook.gather = gather;
    hook.discard = forget;
    while (stage_again(stage, xseg_history_set_hook(stage->allocator, &hook)))
        ;
    while (stage_again(stage, xseg_history_label(stage->allocator, "outer", &before)))
        ;
    void *a = stage_take(stage, 700, NULL), *b = stage_take(stage, 30 * MIB, stage->side);
    while (stage_again(stage, xseg_history_annotate(stage->allocator, 0, "a text")))
        ;
    ask(stage);
    stage_give(stage, a);
    stage_configure(stage, "history_events:5000");
    stage_configure(stage, "block_user:True");
    stage_give(stage, b);
    a = stage_take(stage, 800, NULL);
    ask(stage);
    while (stage_again(stage, xseg_history_clear(stage->allocator, -1)))
        ;
    stage_give(stage, a);
    stage_configure(stage, "history:nothing");
    ask(stage);
    while (stage_again(stage, xseg_history_label(stage->allocator, before, NULL)))
        ;
    while (stage_again(stage, xseg_history_set_hook(stage->allocator, NULL)))
        ;
    stage_trim(stage, true);
}

/* --- The sweeps. --- */

static void sweep(const char *name, stage_scenario scenario, const char *config, uint64_t memory)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = memory;
    const unsigned plays = followed_plays();
    stage_sweep(name, scenario, &settings, config);
    assert_true(followed_plays() - plays > 300);
}

#define EXPANDABLE "expandable_segments:True,history:all"
#define CLASSIC    "expandable_segments:False,history:all"

static void expandable(void **state)
{
    (void)state;
    sweep("grow and shrink", grow_and_shrink, EXPANDABLE, GIB);
    sweep("pending", pending_blocks, EXPANDABLE ",block_user:True", GIB);
    sweep("short", short_of_memory, EXPANDABLE, 200 * MIB);
}

static void classic(void **state)
{
    (void)state;
    sweep("grow and shrink", grow_and_shrink, CLASSIC, GIB);
    sweep("pending", pending_blocks, CLASSIC ",history_stacks:all", GIB);
    sweep("short", short_of_memory, CLASSIC ",block_user:True", 200 * MIB);
}

static void alone(void **state)
{
    (void)state;
    sweep("guarded", pending_blocks, EXPANDABLE ",guard_page:True", GIB);
    sweep("unmapped", pending_blocks, EXPANDABLE ",unmap_on_free:True,history_stacks:all", GIB);
}

static void asked(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    (void)state;
    settings.memory_bytes = GIB;
    stage_sweep("asked", everything_is_asked, &settings, "history:all,history_stacks:all");
    stage_sweep("asked, with words", everything_is_asked, &settings, "history:all,block_user:True");
}

/* A second fault strikes where the first one is undone. */
static void pairs(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    uint64_t runs = 0;

    (void)state;
    settings.memory_bytes = GIB;
    runs += stage_pairs(grow_and_shrink, &settings, EXPANDABLE, 2);
    settings.memory_bytes = 200 * MIB;
    runs += stage_pairs(short_of_memory, &settings, EXPANDABLE, 2);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expandable), cmocka_unit_test(classic), cmocka_unit_test(alone),
        cmocka_unit_test(asked),      cmocka_unit_test(pairs),
    };

    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
