/* SPDX-License-Identifier: MIT */
/* Devices whose driver has virtual memory management and cannot create or map pages (unsloth-zoo #1235). */
#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

#include <string.h>

/* Of CUresult. */
#define NO_MEMORY     2
#define NOT_SUPPORTED 801
#define UNKNOWN       999

#define EXPANDABLE "expandable_segments:True"

static struct env_log logged;

/* Open an allocator on a reset simulator, with this memory for each device; 0: the default. */
static struct xseg_allocator *open_reset(unsigned devices, uint64_t memory, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = devices,
                                         .memory_bytes = memory};

    assert_ok(xseg_sim_reset(&settings));
    return env_open_logged(config, &logged);
}

/* From the nth call of this name on, all calls fail. */
static void fail_from(const char *call, uint64_t nth, int error)
{
    env_fault(0, .call = call, .nth = nth, .every = 1, .error = error);
}

static void end_failures(void)
{
    assert_ok(xseg_sim_fault_set(0, NULL));
}

/* Expect one log line with the device, the reason, the consequence and the key that disables the warning. */
static void expect_line(const char *device, const char *reason)
{
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.line, device));
    assert_non_null(strstr(logged.line, reason));
    assert_non_null(strstr(logged.line, "classic"));
    assert_non_null(strstr(logged.line, "expandable_segments:False"));
}

static void *alloc_classic(struct xseg_allocator *allocator, size_t bytes)
{
    void *ptr = env_alloc(allocator, bytes, NULL);

    assert_false(env_block(allocator, ptr).is_expandable);
    return ptr;
}

/* Expect that a block is in an expandable segment, and that nothing has been logged. */
static void expect_expandable(struct xseg_allocator *allocator, size_t bytes)
{
    void *ptr = env_alloc(allocator, bytes, NULL);

    assert_true(env_block(allocator, ptr).is_expandable);
    assert_int_equal(logged.lines, 0);
    env_free(allocator, ptr);
}

static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
static const int errors[] = {NO_MEMORY, NOT_SUPPORTED, UNKNOWN};

TEST_TIMES(device_without_page_creation_uses_classic_segments, COUNT_OF(calls) * COUNT_OF(errors),
           open_reset(1, 0, EXPANDABLE))
{
    fail_from(calls[i / COUNT_OF(errors)], 1, errors[i % COUNT_OF(errors)]);
    void *ptr = alloc_classic(allocator, MIB);
    assert_int_equal(env_stats(allocator).segment[XSEG_STAT_ALL].current, 1);
    expect_line("device 0", calls[i / COUNT_OF(errors)]);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(logged.lines, 1);
    env_free(allocator, ptr);
}

/* If the driver reports out of memory, the log line has the free memory. */
TEST(log_line_has_the_free_memory)
{
    struct xseg_allocator *allocator = open_reset(1, 50 * GIB, EXPANDABLE);

    fail_from("cuMemCreate", 1, NO_MEMORY);
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    expect_line("device 0", "51200 MiB free");
    env_close(allocator);
    /* Without expandable segments nothing is logged. */
    allocator = open_reset(1, 0, "expandable_segments:False");
    fail_from("cuMemCreate", 1, NO_MEMORY);
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    assert_int_equal(logged.lines, 0);
    env_close(allocator);
}

/* Other processes use the memory when the device is opened; expandable segments are used after it is free. */
TEST_ON(full_device_at_open_keeps_expandable_segments, open_reset(1, 400 * MIB, EXPANDABLE))
{
    assert_ok(xseg_sim_set_external_memory(0, 400 * MIB));
    assert_error(env_try_alloc(allocator, MIB, NULL), NO_MEMORY, "");
    assert_ok(xseg_sim_set_external_memory(0, 0));
    expect_expandable(allocator, MIB);
}

/* The driver reports free memory, but pages and classic allocations fail, so expandable segments stay enabled. */
TEST_ON(device_without_any_memory_keeps_expandable_segments, open_reset(1, 0, EXPANDABLE))
{
    fail_from("cuMemCreate", 1, NO_MEMORY);
    env_fault(1, .call = "cuMemAlloc", .every = 1);
    assert_error(env_try_alloc(allocator, MIB, NULL), NO_MEMORY, "");
    end_failures();
    assert_ok(xseg_sim_fault_set(1, NULL));
    expect_expandable(allocator, MIB);
}

/* The probe creates two pages, and the first growth fails to create the third page. */
TEST_TIMES(failure_at_the_first_growth_selects_classic_segments, COUNT_OF(errors),
           open_reset(1, 0, EXPANDABLE))
{
    fail_from("cuMemCreate", 3, errors[i]);
    void *first = env_alloc(allocator, MIB, NULL), *second = env_alloc(allocator, MIB, NULL);
    assert_false(env_block(allocator, first).is_expandable);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    expect_line("device 0", "cuMemCreate");
    env_free(allocator, first, second);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* Mapped pages still serve requests; new segments are classic. */
TEST_TIMES(later_failure_keeps_mapped_pages, COUNT_OF(calls) * COUNT_OF(errors),
           open_reset(1, 0, EXPANDABLE))
{
    void *expandable_block = env_alloc(allocator, 30 * MIB, NULL);

    assert_true(env_block(allocator, expandable_block).is_expandable);
    fail_from(calls[i / COUNT_OF(errors)], 1, errors[i % COUNT_OF(errors)]);
    void *classic_block = alloc_classic(allocator, 50 * MIB);
    assert_int_equal(env_reserved(allocator), (40 + 50) * MIB);
    expect_line("device 0", calls[i / COUNT_OF(errors)]);
    env_free(allocator, expandable_block);
    assert_ptr_equal(env_alloc(allocator, 30 * MIB, NULL), expandable_block);
    env_free(allocator, expandable_block, classic_block);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* After a single failure the growth is retried. */
TEST_TIMES(single_failure_keeps_expandable_segments, COUNT_OF(calls) * COUNT_OF(errors),
           open_reset(1, 0, EXPANDABLE))
{
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    assert_ok(xseg_sim_fail(calls[i / COUNT_OF(errors)], 1, errors[i % COUNT_OF(errors)]));
    expect_expandable(allocator, 30 * MIB);
    assert_true(xseg_sim_failed());
}

/* On a device that is full, because of this process or others, expandable segments stay enabled. */
TEST_ON(memory_pressure_keeps_expandable_segments, open_reset(1, 400 * MIB, EXPANDABLE))
{
    void *allocated = env_alloc(allocator, 100 * MIB, NULL);

    assert_ok(xseg_sim_set_external_memory(0, 280 * MIB));
    assert_error(env_try_alloc(allocator, 60 * MIB, NULL), NO_MEMORY, "");
    assert_ok(xseg_sim_set_external_memory(0, 0));
    assert_error(env_try_alloc(allocator, 350 * MIB, NULL), NO_MEMORY, "");
    expect_expandable(allocator, 60 * MIB);
    env_free(allocator, allocated);
}

/* A device that fails under memory pressure continues with classic segments. */
TEST_ON(failure_under_memory_pressure_selects_classic_segments,
        open_reset(1, 200 * MIB, EXPANDABLE))
{
    const xseg_stream side = env_stream();

    env_free(allocator, env_alloc(allocator, 160 * MIB, side));
    fail_from("cuMemMap", 1, UNKNOWN);
    void *ptr = alloc_classic(allocator, 100 * MIB);
    expect_line("device 0", "cuMemMap");
    env_free(allocator, ptr);
}

TEST_ON(failure_affects_one_device, open_reset(2, 0, EXPANDABLE))
{
    void *first = env_alloc(allocator, MIB, NULL), *second = env_alloc_on(allocator, 1, MIB);
    env_free(allocator, second);
    fail_from("cuMemCreate", 1, NOT_SUPPORTED);
    second = env_alloc_on(allocator, 1, 30 * MIB);
    assert_false(env_block(allocator, second).is_expandable);
    expect_line("device 1", "cuMemCreate");
    env_free(allocator, second);
    end_failures();
    env_free(allocator, first);
    first = env_alloc(allocator, 30 * MIB, NULL);
    assert_true(env_block(allocator, first).is_expandable);
    env_free(allocator, first);
    assert_int_equal(logged.lines, 1);
}

/* A capture allocates a classic segment, as with expandable_segments:False, and stays valid. */
TEST_TIMES(capture_uses_a_classic_segment_after_a_failure, COUNT_OF(errors),
           open_reset(1, 0, EXPANDABLE))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool(allocator);

    env_free(allocator, env_alloc(allocator, MIB, NULL));
    fail_from("cuMemCreate", 1, errors[i]);
    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 30 * MIB, stream);
    assert_false(env_block(allocator, ptr).is_expandable);
    struct CUgraph_st *graph = env_capture_end_graph(pool, stream);
    expect_line("device 0", "cuMemCreate");
    env_free(allocator, ptr);
    env_graph_destroy(graph);
    assert_ok(xseg_pool_release(pool));
}

/* A private pool, and a pool with single_page. */
TEST_TIMES(private_pools_use_classic_segments, 2, open_reset(1, 0, EXPANDABLE))
{
    struct xseg_pool *pool = env_pool_of(allocator, .single_page = i != 0);
    void *expandable_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    fail_from("cuMemCreate", 1, UNKNOWN);
    void *classic_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_false(env_block(allocator, classic_block).is_expandable);
    expect_line("device 0", "cuMemCreate");
    env_free(allocator, expandable_block, classic_block);
    expandable_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    /* One page of 30 MiB or two pages of 20 MiB, and the classic segment. */
    assert_int_equal(env_reserved(allocator), i != 0 ? (30 + 30) * MIB : (40 + 30) * MIB);
    env_free(allocator, expandable_block);
    assert_ok(xseg_pool_release(pool));
}

/* Without pages, exportable pools are rejected, and memory of existing exportable pools cannot be exported. */
TEST_ON(exportable_pools_are_rejected, open_reset(1, 0, EXPANDABLE))
{
    struct xseg_pool_options options = {sizeof(options), .exportable = true};
    struct xseg_pool *pool = env_pool_with(allocator, &options), *rejected = NULL;

    fail_from("cuMemCreate", 1, UNKNOWN);
    void *ptr = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    expect_line("device 0", "cuMemCreate");
    assert_error(export_and_close_handles(allocator, ptr), UNSUPPORTED, "classic");
    assert_error(xseg_pool_create(allocator, 0, &options, &rejected), UNSUPPORTED,
                 "virtual memory management is not available");
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
}

TEST_ON(limits_apply_to_classic_segments,
        open_reset(1, 0, "expandable_segments:True,hard_limit_mb:120"))
{
    const xseg_stream side = env_stream();
    void *allocated = env_alloc(allocator, 80 * MIB, NULL);

    fail_from("cuMemCreate", 1, NOT_SUPPORTED);
    assert_error(env_try_alloc(allocator, 60 * MIB, NULL), LIMIT, "hard_limit_mb");
    void *ptr = alloc_classic(allocator, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    expect_line("device 0", "cuMemCreate");
    /* Cached pages of one stream are released for a classic segment of another stream. */
    env_free(allocator, allocated);
    allocated = env_alloc(allocator, 80 * MIB, side);
    assert_false(env_block(allocator, allocated).is_expandable);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    env_free(allocator, allocated, ptr);
}

/* Guarded blocks need pages, so blocks are not guarded any more. */
TEST_TIMES(guarded_blocks_become_unguarded, COUNT_OF(errors),
           open_reset(1, 0, "expandable_segments:True,unmap_on_free:True"))
{
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    fail_from("cuMemCreate", 1, errors[i]);
    void *ptr = alloc_classic(allocator, 3 * MIB);
    expect_line("device 0", "unmap_on_free");
    env_free(allocator, ptr);
}

TEST_ON(prewarm_uses_classic_segments, open_reset(1, 0, EXPANDABLE))
{
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    fail_from("cuMemSetAccess", 1, UNKNOWN);
    assert_ok(xseg_prewarm(allocator, env_scope(.device = 0), 30 * MIB));
    expect_line("device 0", "cuMemSetAccess");
    assert_int_equal(env_reserved(allocator), (2 + 30) * MIB);
    const uint64_t allocs = xseg_sim_calls("cuMemAlloc");
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(xseg_sim_calls("cuMemAlloc"), allocs);
}

/* Messages about the build are logged once per process; log them before the tests. */
static int log_build_messages(void **state)
{
    (void)state;
    env_close(env_open(NULL));
    return 0;
}

TEST_GROUP_FIXTURE(log_build_messages, NULL)
