/* SPDX-License-Identifier: MIT */
/*
 * The sweep: every driver call of every scenario fails once, with several errors.  fault_env.h lists the checks after
 * each call; the same call then succeeds.
 */
#include "tests/fault/fault_env.h"

/* --- The scenarios. --- */

static void grow_and_shrink(struct fault_env *env)
{
    void *a = fault_alloc(env, 30 * MIB, NULL), *b = fault_alloc(env, 2 * MIB, NULL);
    void *c = fault_alloc(env, 90 * MIB, NULL), *d = fault_alloc(env, 1000, NULL);

    fault_free_and_trim(env, a, c);
    a = fault_alloc(env, 25 * MIB, NULL);
    c = fault_alloc(env, 70 * MIB, NULL);
    fault_free(env, b, d);
    fault_trim(env, false);
    b = fault_alloc(env, 45 * MIB, NULL);
    fault_free_and_trim(env, a, b, c);
}

static void several_streams(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 5 * MIB, NULL), *b = fault_alloc(env, 5 * MIB, side);
    void *c = fault_alloc(env, 300, side);

    fault_record_stream(env, a, side);
    fault_record_stream(env, b, NULL);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    fault_free(env, a, b);
    a = fault_alloc(env, 5 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    b = fault_alloc(env, 5 * MIB, NULL);
    fault_trim(env, false);
    fault_free_and_trim(env, a, b, c);
}

static void private_pool(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool(env, NULL);
    void *a = fault_alloc_in(env, pool, 12 * MIB, NULL),
         *b = fault_alloc_zeroed(env, pool, 700, NULL);
    fault_free_and_trim(env, a);
    a = fault_alloc_in(env, pool, 11 * MIB, NULL);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_free_and_trim(env, b);
    fault_free_and_trim(env, a);
}

/* The device holds 200 MiB: the last request needs cached memory to be released. */
static void full_device(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 100 * MIB, NULL), *b = fault_alloc(env, 3 * MIB, NULL);

    fault_record_stream(env, a, side);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    fault_free(env, a);
    void *c = fault_alloc(env, 130 * MIB, side);
    fault_free(env, b, c);
    a = fault_alloc(env, 150 * MIB, NULL);
    fault_free_and_trim(env, a);
}

/* Calls that fill, check, zero or unmap memory.  The blocks are small, so that their contents can be simulated. */
static void fill_and_zero(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 5000, NULL), *b = fault_alloc_zeroed(env, NULL, 700 * KIB, side);
    void *c = fault_alloc_zeroed(env, NULL, 600 * KIB, NULL);

    fault_record_stream(env, a, side);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    fault_free(env, a, b);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    a = fault_alloc(env, 5000, NULL);
    b = fault_alloc(env, 700 * KIB, side);
    fault_free(env, c);
    c = fault_alloc_zeroed(env, NULL, 600 * KIB, NULL);
    fault_trim(env, false);
    fault_free_and_trim(env, a, b, c);
}

/* Decay releases memory of idle and busy streams, also after limits were lowered. */
static void decay(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 90 * MIB, NULL), *b = fault_alloc(env, 30 * MIB, side);
    void *c = fault_alloc(env, 700, side);

    fault_advance(env, 1);
    assert_int_equal(xseg_sim_launch_on(side, 100 * 1000000, (uint64_t)(uintptr_t)b, 30 * MIB),
                     XSEG_OK);
    fault_free(env, a, b);
    fault_advance(env, 60);
    a = fault_alloc(env, 50 * MIB, NULL);
    fault_advance(env, 60);
    b = fault_alloc(env, 30 * MIB, NULL);
    fault_free(env, a);
    fault_configure(env, "hard_limit_mb:120,soft_limit_mb:40");
    a = fault_alloc(env, 10 * MIB, side);
    fault_free(env, b);
    fault_advance(env, 1);
    fault_free(env, a, c);
    fault_advance(env, 1000);
    fault_advance(env, 1000);
}

/* Allocations and pools on two devices. */
static void two_devices(struct fault_env *env)
{
    struct xseg_pool *pool = NULL;
    void *first = fault_alloc(env, 30 * MIB, NULL), *second = NULL;

    for (int device = 0; device < 2; device++)
        FAULT_RETRY(env, xseg_pool_create(env->allocator, device, NULL, &pool));
    FAULT_RETRY(env, xseg_alloc(env->allocator, 1, 5 * MIB, NULL, &second));
    fault_free(env, first);
    FAULT_RETRY(env, xseg_free(env->allocator, second));
}

/* --- The sweep. --- */

static void sweep(const char *name, fault_scenario scenario, const char *config, uint64_t memory,
                  bool single_mapping_calls)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                         .single_mapping_calls = single_mapping_calls};

    fault_sweep(name, scenario, &settings, config);
}

static void sweep_all(const char *config, bool single_mapping_calls)
{
    sweep("grow and shrink", grow_and_shrink, config, GIB, single_mapping_calls);
    sweep("several streams", several_streams, config, GIB, single_mapping_calls);
    sweep("private pool", private_pool, config, GIB, single_mapping_calls);
    sweep("full device", full_device, config, 200 * MIB, single_mapping_calls);
}

TEST(expandable_segments_survive_each_failure)
{
    sweep_all("expandable_segments:True", false);
}

TEST(contents_survive_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .real_bytes = true,
                                         .memory_bytes = 200 * MIB};

    fault_sweep("contents", full_device, &settings, "expandable_segments:True");
}

TEST(single_mapping_calls_survive_each_failure)
{
    sweep_all("expandable_segments:True", true);
}

TEST(classic_segments_survive_each_failure)
{
    sweep_all("expandable_segments:False", false);
}

TEST(limits_survive_each_failure)
{
    sweep("limit", full_device, "expandable_segments:True,per_process_memory_fraction:0.2", GIB,
          false);
}

TEST(several_devices_survive_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB, .devices = 2};

    fault_sweep("two devices", two_devices, &settings, NULL);
    assert_true(fault_pairs(two_devices, &settings, NULL, 3) > 100);
    /* The first call of a device probes exports. */
    fault_sweep("two devices", two_devices, &settings, "exportable:True");
    assert_true(fault_pairs(two_devices, &settings, "exportable:True", 3) > 100);
}

TEST(decay_survives_each_failure)
{
    sweep("decay", decay, "idle_ms:100", GIB, false);
    sweep("decay", decay, "idle_ms:100,expandable_segments:False", GIB, false);
    sweep("full device", full_device, "hard_limit_mb:200", GIB, false);
}

/* Pages move between pools, through the page cache and by remaps under memory pressure. */
static void change_pools(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool(env, NULL);
    void *a = fault_alloc_in(env, pool, 45 * MIB, NULL);
    void *b = fault_alloc_in(env, pool, 700, env->side);
    fault_free(env, a);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_advance(env, 1);
    fault_advance(env, 1000);
    fault_free(env, b);
    a = fault_alloc(env, 50 * MIB, env->side);
    fault_advance(env, 1000);
    b = fault_alloc(env, 600, NULL);
    fault_free(env, a);
    a = fault_alloc(env, 60 * MIB, NULL);
    fault_free(env, a, b);
    fault_configure(env, "page_cache_mb:0");
}

TEST(page_cache_survives_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    const char *const config = "idle_ms:100,page_cache_mb:50";

    sweep("decay", decay, config, GIB, false);
    sweep("change pools", change_pools, config, 80 * MIB, true);
    sweep("full device", full_device, config, 200 * MIB, false);
    settings.memory_bytes = 80 * MIB;
    settings.real_bytes = true;
    fault_sweep("change pools", change_pools, &settings, config);
}

/* Long pages, which are released as a whole, are replaced by small pages. */
static void long_pages(struct fault_env *env)
{
    void *a = fault_alloc(env, 700 * MIB, NULL);

    fault_free(env, a);
    a = fault_alloc(env, 300 * MIB, NULL);
    fault_trim(env, true);
    void *b = fault_alloc(env, 600 * MIB, NULL);
    fault_free(env, a);
    a = fault_alloc(env, 800 * MIB, env->side);
    fault_free_and_trim(env, b, a);
}

TEST(automatic_pages_survive_each_failure)
{
    sweep("long pages", long_pages, "page_size:auto", 1536 * MIB, false);
}

TEST(debug_fill_survives_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    sweep("several streams", several_streams, "debug_fill:True", GIB, false);
    sweep("full device", full_device, "debug_fill:True", 200 * MIB, false);
    settings.real_bytes = true;
    settings.memory_bytes = GIB;
    fault_sweep("fill and zero", fill_and_zero, &settings, "debug_fill:True");
    fault_sweep("fill and zero", fill_and_zero, &settings,
                "debug_fill:True,expandable_segments:False");
}

/* Blocks of a few pages, each of which is created and mapped separately. */
TEST(guarded_blocks_survive_each_failure)
{
    static const char *const config[] = {"unmap_on_free:True", "guard_page:True,history:all"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        sweep("several streams", several_streams, config[i], GIB, i == 1);
        sweep("fill and zero", fill_and_zero, config[i], 6 * MIB, i == 1);
    }
    sweep("fill and zero", fill_and_zero, "guard_page:True,debug_fill:True", GIB, false);
}

TEST(rollbacks_survive_a_second_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};
    uint64_t runs = 0;

    runs += fault_pairs(grow_and_shrink, &settings, "expandable_segments:True", 4);
    settings.memory_bytes = 200 * MIB;
    runs += fault_pairs(full_device, &settings, "expandable_segments:True", 4);
    settings.memory_bytes = GIB;
    runs += fault_pairs(fill_and_zero, &settings, "debug_fill:True", 1);
    settings.memory_bytes = 6 * MIB;
    runs += fault_pairs(fill_and_zero, &settings, "unmap_on_free:True", 3);
    settings.memory_bytes = 80 * MIB;
    runs += fault_pairs(change_pools, &settings, "idle_ms:100,page_cache_mb:50", 3);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}

TEST(partial_batches_are_rolled_back)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    assert_true(fault_partial_batches(grow_and_shrink, &settings, "expandable_segments:True") > 20);
}
