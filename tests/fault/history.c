/* SPDX-License-Identifier: MIT */
/*
 * The sweep over histories: after each call the history is replayed from the start, and its final state must equal that of
 * xseg_for_each_block().  After a failure of the host, events may be missing, and the history is not replayed.
 */
#include "tests/fault/replay_history.h"

/* The history is checked after each call of the scenario. */
static void begin_history(struct fault_env *env, struct xseg_pool *pool)
{
    replayed_pool = pool;
    env->check = replay_history;
}

/* --- The scenarios. --- */

static void grow_and_shrink(struct fault_env *env)
{
    begin_history(env, NULL);
    void *a = fault_alloc(env, 30 * MIB, NULL), *b = fault_alloc(env, 2 * MIB, env->side);
    void *c = fault_alloc(env, 90 * MIB, NULL), *d = fault_alloc(env, 1000, NULL);

    fault_free_and_trim(env, a, c);
    a = fault_alloc(env, 70 * MIB, env->side);
    fault_free(env, b, d);
    fault_trim(env, false);
    fault_free_and_trim(env, a);
}

static void pending_blocks(struct fault_env *env)
{
    begin_history(env, NULL);
    void *a = fault_alloc(env, 5 * MIB, NULL), *b = fault_alloc(env, 700, env->side);

    fault_record_stream(env, a, env->side);
    fault_record_stream(env, b, NULL);
    assert_int_equal(xseg_sim_launch(env->side, UINT64_MAX), XSEG_OK);
    fault_free(env, a, b);
    a = fault_alloc(env, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    b = fault_alloc(env, 5 * MIB, NULL);
    fault_trim(env, false);
    fault_free_and_trim(env, a, b);
}

/* On a device of 200 MiB, memory of another stream is remapped, and then a pool serves as fallback pool. */
static void exceed_memory(struct fault_env *env)
{
    begin_history(env, fault_pool_of(env, .use_on_oom = true));
    void *a = fault_alloc_in(env, replayed_pool, 60 * MIB, NULL),
         *b = fault_alloc(env, 100 * MIB, NULL);

    fault_free(env, b);
    b = fault_alloc(env, 90 * MIB, env->side);
    fault_free(env, a);
    a = fault_alloc(env, 55 * MIB, NULL);
    fault_free(env, a, b);
    fault_pool_end(env, replayed_pool);
}

/* --- Queries. --- */

static bool read_event(void *context, const struct xseg_history_entry *entry)
{
    *(uint32_t *)context = entry->stack != 0 ? entry->stack : *(uint32_t *)context;
    return true;
}

static bool read_frame(void *context, const struct xseg_history_frame *frame)
{
    (void)context;
    return frame->pc != NULL;
}

static uint32_t gather(void *context)
{
    return *(const uint32_t *)context;
}

static void discard(void *context, const uint32_t *kept, size_t count)
{
    (void)context, (void)kept, (void)count;
}

static void query(struct fault_env *env)
{
    uint32_t stack = 0;

    FAULT_RETRY(env, xseg_for_each_event(env->allocator, -1, read_event, &stack, NULL));
    if (stack != 0)
        FAULT_RETRY(env, xseg_history_stack(env->allocator, stack, read_frame, NULL));
}

static void run_queries(struct fault_env *env)
{
    static uint32_t context_value = 5;
    struct xseg_history_hook hook = {sizeof(hook), .context = &context_value, .gather = gather,
                                     .discard = discard};
    const char *before = NULL;

    FAULT_RETRY(env, xseg_history_set_hook(env->allocator, &hook));
    FAULT_RETRY(env, xseg_history_label(env->allocator, "outer", &before));
    void *a = fault_alloc(env, 700, NULL), *b = fault_alloc(env, 30 * MIB, env->side);
    FAULT_RETRY(env, xseg_history_annotate(env->allocator, 0, "a text"));
    query(env);
    fault_free(env, a);
    fault_configure(env, "history_events:5000");
    fault_configure(env, "block_user:True");
    fault_free(env, b);
    a = fault_alloc(env, 800, NULL);
    query(env);
    FAULT_RETRY(env, xseg_history_clear(env->allocator, -1));
    fault_free(env, a);
    fault_configure(env, "history:nothing");
    query(env);
    FAULT_RETRY(env, xseg_history_label(env->allocator, before, NULL));
    FAULT_RETRY(env, xseg_history_set_hook(env->allocator, NULL));
    fault_trim(env, true);
}

/* --- The sweeps. --- */

static void sweep(const char *name, fault_scenario scenario, const char *config, uint64_t memory)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory};

    const unsigned replays_before = history_replays();
    fault_sweep(name, scenario, &settings, config);
    assert_true(history_replays() - replays_before > 300);
}

#define EXPANDABLE "expandable_segments:True,history:all"
#define CLASSIC    "expandable_segments:False,history:all"

TEST(history_of_expandable_segments_stays_consistent)
{
    sweep("grow and shrink", grow_and_shrink, EXPANDABLE, GIB);
    sweep("pending", pending_blocks, EXPANDABLE ",block_user:True", GIB);
    sweep("short", exceed_memory, EXPANDABLE, 200 * MIB);
}

TEST(history_of_classic_segments_stays_consistent)
{
    sweep("grow and shrink", grow_and_shrink, CLASSIC, GIB);
    sweep("pending", pending_blocks, CLASSIC ",history_stacks:all", GIB);
    sweep("short", exceed_memory, CLASSIC ",block_user:True", 200 * MIB);
}

TEST(history_of_guarded_blocks_stays_consistent)
{
    sweep("guarded", pending_blocks, EXPANDABLE ",guard_page:True", GIB);
    sweep("unmapped", pending_blocks, EXPANDABLE ",unmap_on_free:True,history_stacks:all", GIB);
}

TEST(history_during_queries_stays_consistent)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    fault_sweep("queries", run_queries, &settings, "history:all,history_stacks:all");
    fault_sweep("queries with user values", run_queries, &settings, "history:all,block_user:True");
}

TEST(history_stays_consistent_after_a_second_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};
    uint64_t runs = 0;

    runs += fault_pairs(grow_and_shrink, &settings, EXPANDABLE, 2);
    settings.memory_bytes = 200 * MIB;
    runs += fault_pairs(exceed_memory, &settings, EXPANDABLE, 2);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 200);
}
