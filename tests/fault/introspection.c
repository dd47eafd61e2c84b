/* SPDX-License-Identifier: MIT */
/*
 * The sweep over queries and records of host memory: ages, histories, observers, pins, iterations, explanations, lists of
 * mappings, and the background thread.
 */
#include "tests/fault/fault_env.h"

static bool read_block(void *context, const struct xseg_block_info *info)
{
    (void)context;
    return info->bytes != 0;
}

static bool read_reason(void *context, const struct xseg_reason *reason)
{
    (void)context;
    return reason->bytes != 0;
}

static bool read_mapping(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->bytes != 0;
}

static void query(struct fault_env *env)
{
    struct xseg_explain_result sums = {sizeof(sums)};

    FAULT_RETRY(env, xseg_for_each_block(env->allocator, NULL, read_block, NULL));
    FAULT_RETRY(env, xseg_explain(env->allocator, NULL, read_reason, NULL, &sums));
    FAULT_RETRY(env, xseg_for_each_mapping(env->allocator, NULL, read_mapping, NULL));
}

static void count_entry(void *context, const struct xseg_trace_entry *entry)
{
    unsigned *count = context;

    (void)entry;
    ++*count;
}

static void run_queries(struct fault_env *env)
{
    struct xseg_observer observer = {sizeof(observer), .on_trace = count_entry};
    unsigned entries = 0;
    uint64_t id = 0;

    observer.context = &entries;
    FAULT_RETRY(env, xseg_observer_add(env->allocator, &observer, &id));
    void *a = fault_alloc(env, 30 * MIB, NULL), *b = fault_alloc(env, 700, env->side);
    void *c = fault_alloc(env, 3 * MIB, NULL);
    fault_record_stream(env, a, env->side);
    assert_int_equal(xseg_sim_launch(env->side, UINT64_MAX), XSEG_OK);
    query(env);
    FAULT_RETRY(env, xseg_pin(env->allocator, c, 3 * MIB));
    fault_free(env, a);
    query(env);
    fault_trim(env, false);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    a = fault_alloc(env, 12 * MIB, NULL);
    fault_advance(env, 200);
    query(env);
    FAULT_RETRY(env, xseg_unpin(env->allocator, c, 3 * MIB));
    fault_free(env, c, b);
    fault_configure(env, "history:all,history_stacks:all");
    fault_free(env, a);
    FAULT_RETRY(env, xseg_observer_remove(env->allocator, id));
    fault_trim(env, true);
}

/* The thread starts, stops and starts again; the scenario ends before its first pass. */
static void restart_thread(struct fault_env *env)
{
    void *a = fault_alloc(env, 30 * MIB, NULL);

    fault_configure(env, "background_thread:True");
    fault_free(env, a);
    fault_configure(env, "background_thread:False");
    a = fault_alloc(env, 50 * MIB, NULL);
    fault_configure(env, "background_thread:True");
    fault_free(env, a);
}

static void sweep(const char *name, fault_scenario scenario, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    fault_sweep(name, scenario, &settings, config);
}

TEST(ages_and_histories_survive_each_failure)
{
    sweep("queries", run_queries, "idle_ms:100,history:state");
    sweep("queries, classic", run_queries, "expandable_segments:False,history:state");
}

TEST(background_thread_survives_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    assert_true(fault_sweep_host("thread", restart_thread, &settings, "idle_ms:3600000") >= 10);
}
