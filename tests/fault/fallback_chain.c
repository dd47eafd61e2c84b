/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over the out-of-memory fallback chain: a scenario for each step, in which every driver call fails once,
 * and pairs of consecutive calls.  fault_env.h lists the checks after each call.
 */
#include "tests/fault/fault_env.h"

/* --- Scenarios: without faults, the step that a scenario is named after serves the request. --- */

struct spare_block {
    struct fault_env *env;
    void *block;
};

static bool free_spare(void *context, const struct xseg_oom_info *oom)
{
    struct spare_block *spare_block = context;
    void *block = spare_block->block;

    (void)oom;
    spare_block->block = NULL;
    if (block != NULL)
        fault_free(spare_block->env, block);
    return block != NULL;
}

static void notify_observer(struct fault_env *env)
{
    struct spare_block spare_block = {env, fault_alloc(env, 150 * MIB, NULL)};
    struct xseg_observer observer = {sizeof(observer), .context = &spare_block,
                                     .on_low_memory = free_spare};
    uint64_t id = 0;

    FAULT_RETRY(env, xseg_observer_add(env->allocator, &observer, &id));
    void *a = fault_alloc(env, 90 * MIB, NULL);
    fault_free(env, a);
    if (spare_block.block != NULL)
        fault_free(env, spare_block.block);
    FAULT_RETRY(env, xseg_observer_remove(env->allocator, id));
    fault_trim(env, true);
}

static void own_segments(struct fault_env *env)
{
    void *idle = fault_alloc(env, 60 * MIB, NULL), *live = fault_alloc(env, 120 * MIB, NULL);

    fault_free(env, idle);
    idle = fault_alloc(env, 80 * MIB, NULL);
    fault_free_and_trim(env, live, idle);
}

static void other_streams(struct fault_env *env)
{
    void *a = fault_alloc(env, 190 * MIB, env->side);

    fault_free(env, a);
    /* Small pages serve a large block, and the full page of a large block is replaced by small pages. */
    void *b = fault_alloc(env, 65 * MIB, NULL), *c = fault_alloc(env, 3000, NULL);
    fault_free_and_trim(env, b, c);
}

static void small_to_large(struct fault_env *env)
{
    void *block[16];

    for (unsigned i = 0; i < COUNT_OF(block); i++)
        block[i] = fault_alloc(env, MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(block); i++)
        fault_free(env, block[i]);
    void *large = fault_alloc(env, 12 * MIB, NULL);
    fault_free_and_trim(env, large);
}

static void busy_stream(struct fault_env *env)
{
    void *a = fault_alloc(env, 190 * MIB, env->side);

    assert_int_equal(xseg_sim_launch_on(env->side, 1000000, (uintptr_t)a, 190 * MIB), XSEG_OK);
    fault_free(env, a);
    a = fault_alloc(env, 65 * MIB, NULL);
    fault_free_and_trim(env, a);
}

static void alloc_fallback(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool_of(env, .use_on_oom = true);
    void *a = fault_alloc_in(env, pool, 150 * MIB, NULL);
    fault_free(env, a);
    a = fault_alloc(env, 90 * MIB, NULL);
    fault_free(env, a);
    fault_pool_end(env, pool);
}

static void pending(struct fault_env *env)
{
    void *a = fault_alloc(env, 190 * MIB, NULL);

    fault_record_stream(env, a, env->side);
    assert_int_equal(xseg_sim_launch(env->side, UINT64_MAX), XSEG_OK);
    fault_free(env, a);
    a = fault_alloc(env, 90 * MIB, NULL);
    fault_free_and_trim(env, a);
}

/* Classic segments: oversize segments are released first, then all segments. */
static void segments(struct fault_env *env)
{
    void *a = fault_alloc(env, 110 * MIB, NULL), *b = fault_alloc(env, 80 * MIB, NULL);

    fault_free(env, a, b);
    a = fault_alloc(env, 50 * MIB, NULL);
    fault_free(env, a);
    a = fault_alloc(env, 170 * MIB, NULL);
    fault_free_and_trim(env, a);
}

/* Garbage collection, without memory pressure. */
static void garbage(struct fault_env *env)
{
    void *a = fault_alloc(env, 40 * MIB, NULL), *b = fault_alloc(env, 30 * MIB, NULL);

    fault_free(env, a, b);
    void *c = fault_alloc(env, 60 * MIB, NULL);
    b = fault_alloc(env, 70 * MIB, NULL);
    fault_free_and_trim(env, b, c);
}

/* After memory pressure, a capture begins with the release of cached memory of a busy and an idle stream, and of a block that
 * another stream uses. */
static void before_capture(struct fault_env *env)
{
    void *a = fault_alloc(env, 150 * MIB, env->side);

    struct xseg_pool *pool = fault_pool(env, NULL);
    fault_free(env, a);
    void *b = fault_alloc(env, 90 * MIB, NULL), *c = fault_alloc(env, 20 * MIB, NULL);
    fault_record_stream(env, c, env->side);
    assert_int_equal(xseg_sim_launch(env->side, UINT64_MAX), XSEG_OK);
    fault_free(env, c, b);
    FAULT_RETRY(env, xseg_capture_begin(pool, env->side));
    FAULT_RETRY(env, xseg_capture_end(pool));
    fault_pool_end(env, pool);
}

/* The addresses that remain are not sufficient for a second expandable segment, so a classic segment is allocated. */
static void addresses(struct fault_env *env)
{
    void *a = fault_alloc(env, 5 * MIB, NULL);

    xseg_sim_set_external_addresses(2 * GIB - 100 * MIB);
    void *b = fault_alloc(env, 1000, NULL), *c = fault_alloc(env, 900, env->side);
    fault_free_and_trim(env, a, b);
    fault_free_and_trim(env, c);
    xseg_sim_set_external_addresses(0);
}

/* --- The sweep. --- */

static const struct {
    const char *name;
    fault_scenario run;
    const char *config;
    size_t mib; /* of the device */
    bool integrated;
} steps[] = {
    {"observer", notify_observer, "expandable_segments:True", 200},
    {"own segments", own_segments, "expandable_segments:True", 200},
    {"other streams", other_streams, "expandable_segments:True", 200},
    {"small to large", small_to_large, "expandable_segments:True", 40},
    {"busy stream", busy_stream, "expandable_segments:True", 200},
    {"fallback pool", alloc_fallback, "expandable_segments:True", 200},
    {"pending", pending, "expandable_segments:True", 200},
    {"classic, observer", notify_observer, "expandable_segments:False", 200},
    {"classic, pending", pending, "expandable_segments:False", 200},
    {"classic, segments", segments, "expandable_segments:False,max_split_size_mb:40", 200},
    {"classic, garbage", garbage,
     "expandable_segments:False,per_process_memory_fraction:0.4,garbage_collection_threshold:0.4",
     600},
    {"garbage", garbage,
     "expandable_segments:True,per_process_memory_fraction:0.4,garbage_collection_threshold:0.4",
     600},
    {"a limit", other_streams, "expandable_segments:True,per_process_memory_fraction:0.2", 1000},
    {"a free minimum", other_streams, "device_free_min_mb:800", 1000},
    {"a free minimum, observer", notify_observer, "device_free_min_mb:800", 1000},
    {"a free minimum, small to large", small_to_large, "device_free_min_mb:160", 200},
    {"a free minimum, fallback pool", alloc_fallback, "device_free_min_mb:800", 1000},
    {"a free minimum, pending", pending, "device_free_min_mb:800", 1000},
    {"a free minimum, classic", segments,
     "device_free_min_mb:800,expandable_segments:False,max_split_size_mb:40", 1000},
    /* 812 MiB: a default free minimum of 512 MiB, 100 MiB of host programs, and 200 MiB for the device. */
    {"integrated", other_streams, "expandable_segments:True", 812, true},
    {"integrated, classic", segments, "expandable_segments:False,max_split_size_mb:40", 812, true},
    {"addresses", addresses, "expandable_segments:True", 1000},
    {"before a capture", before_capture, "expandable_segments:True", 200},
};

static struct xseg_sim_settings device_of(unsigned i, bool single_mapping_calls)
{
    struct xseg_sim_settings settings = {sizeof(settings),
                                         .memory_bytes = steps[i].mib * MIB,
                                         .integrated = steps[i].integrated,
                                         .host_bytes = steps[i].integrated ? 100 * MIB : 0,
                                         .page_cache_bytes = steps[i].integrated ? 600 * MIB : 0,
                                         .single_mapping_calls = single_mapping_calls,
                                         .address_bytes = steps[i].run == addresses ? 4 * GIB : 0};

    return settings;
}

/* The second half of the runs uses a driver that rejects calls for several mappings. */
TEST(steps_survive_each_failure)
{
    for (unsigned i = 0; i < 2 * COUNT_OF(steps); i++) {
        const unsigned index = i % COUNT_OF(steps);
        const struct xseg_sim_settings settings = device_of(index, i >= COUNT_OF(steps));

        fault_sweep(steps[index].name, steps[index].run, &settings, steps[index].config);
    }
}

TEST(steps_survive_a_second_failure)
{
    uint64_t pairs = 0;

    for (unsigned i = 0; i < COUNT_OF(steps); i++) {
        const struct xseg_sim_settings settings = device_of(i, false);

        pairs += fault_pairs(steps[i].run, &settings, steps[i].config, 3);
    }
    print_message("# %u pairs\n", (unsigned)pairs);
    assert_true(pairs > 1000);
}
