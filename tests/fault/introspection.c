/* SPDX-License-Identifier: MIT */
/*
 * The sweep over what is kept on the host beside the blocks, and over what is asked: ages, histories,
 * observers, pins, walks, explanations, lists of mappings, and the background thread.
 */
#include "tests/fault/fault_env.h"

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

static void ask(struct fault_env *env)
{
    struct xseg_explain_result sums = {sizeof(sums)};

    FAULT_RETRY(env, xseg_for_each_block(env->allocator, NULL, go_on_walking, NULL));
    FAULT_RETRY(env, xseg_explain(env->allocator, NULL, go_on_explaining, NULL, &sums));
    FAULT_RETRY(env, xseg_for_each_mapping(env->allocator, NULL, go_on_listing, NULL));
}

static void log_line(void *context, const struct xseg_trace_entry *entry)
{
    unsigned *count = context;

    (void)entry;
    ++*count;
}

static void is_asked(struct fault_env *env)
{
    struct xseg_observer observer = {sizeof(observer), .on_trace = log_line};
    unsigned entries = 0;
    uint64_t id = 0;

    observer.context = &entries;
    FAULT_RETRY(env, xseg_observer_add(env->allocator, &observer, &id));
    void *a = fault_alloc(env, 30 * MIB, NULL);
    void *b = fault_alloc(env, 700, env->side);
    void *c = fault_alloc(env, 3 * MIB, NULL);
    fault_record_stream(env, a, env->side);
    assert_int_equal(xseg_sim_launch(env->side, UINT64_MAX), XSEG_OK);
    ask(env);
    FAULT_RETRY(env, xseg_pin(env->allocator, c, 3 * MIB));
    fault_free(env, a);
    ask(env);
    fault_trim(env, false);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    a = fault_alloc(env, 12 * MIB, NULL);
    fault_advance(env, 200);
    ask(env);
    FAULT_RETRY(env, xseg_unpin(env->allocator, c, 3 * MIB));
    fault_free(env, c, b);
    fault_configure(env, "history:all,history_stacks:all");
    fault_free(env, a);
    FAULT_RETRY(env, xseg_observer_remove(env->allocator, id));
    fault_trim(env, true);
}

/* The thread starts, stops and starts again; its passes come long after the scenario. */
static void thread_comes_and_goes(struct fault_env *env)
{
    void *a = fault_alloc(env, 30 * MIB, NULL);

    fault_configure(env, "background_thread:True");
    fault_free(env, a);
    fault_configure(env, "background_thread:False");
    a = fault_alloc(env, 50 * MIB, NULL);
    fault_configure(env, "background_thread:True");
    fault_free(env, a);
}

static void sweep(const char *name, fault_scenario play, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    fault_sweep(name, play, &settings, config);
}

TEST(ages_and_histories_survive_each_failure)
{
    sweep("asked", is_asked, "idle_ms:100,history:state");
    sweep("asked, classic", is_asked, "expandable_segments:False,history:state");
}

TEST(background_thread_survives_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    assert_true(fault_sweep_host("thread", thread_comes_and_goes, &settings, "idle_ms:3600000") >=
                10);
}
