/* SPDX-License-Identifier: MIT */
/* device_free_min_mb: growth leaves device memory free for other users of the GPU, such as NCCL, and on integrated devices
 * for the host. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/driver.h"
#include "tests/support/env.h"
#include "tests/support/process.h"
#include "tests/support/trim_due.h"
#include "xseg/range.h"

/* Memory of device 0 that no process uses. */
static uint64_t free_bytes(uint64_t total)
{
    return total - xseg_sim_used(0);
}

static uint64_t count_queries(void)
{
    return xseg_sim_calls("cuMemGetInfo");
}

/* Allocate blocks of 20 MiB until a request fails.  Returns the number of blocks. */
static unsigned fill_device(struct xseg_allocator *allocator, void **block, unsigned max)
{
    unsigned count = 0;

    while (count < max && xseg_alloc(allocator, 0, 20 * MIB, NULL, &block[count]) == XSEG_OK)
        count++;
    return count;
}

static void free_blocks(struct xseg_allocator *allocator, void *const *block, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        env_free(allocator, block[i]);
}

/* --- Allocations. --- */

TEST(growth_leaves_the_minimum_free)
{
    static const char *const configs[] = {
        "device_free_min_mb:400",
        "device_free_min_mb:400,expandable_segments:False",
        "device_free_min_mb:400,page_size:small",
        "device_free_min_mb:400,page_size:auto",
        "device_free_min_mb:400,unmap_on_free:True",
        "device_free_min_mb:400,page_cache_mb:100",
    };

    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open_mib(1000, configs[i]);
        void *block[50], *ptr = NULL;
        const unsigned count = fill_device(allocator, block, COUNT_OF(block));

        assert_int_equal(count, 30); /* (1000 - 400) / 20 */
        assert_int_equal(free_bytes(1000 * MIB), 400 * MIB);
        assert_error(xseg_alloc(allocator, 0, 20 * MIB, NULL, &ptr), LIMIT,
                     "device_free_min_mb rejects the request on device 0, 20.00 MiB requested, "
                     "minimum 400.00 MiB free; 20.00 MiB needed from the driver, 400.00 MiB of "
                     "1000.00 MiB free, 600.00 MiB used by this allocator: 600.00 MiB allocated; "
                     "lower device_free_min_mb to 380 or less");
        assert_int_equal(env_stats(allocator).num_ooms, 2);
        assert_ok(xseg_config_set(allocator, "device_free_min_mb:380"));
        ptr = env_alloc(allocator, 20 * MIB, NULL);
        assert_error(xseg_alloc(allocator, 0, 2 * MIB, NULL, &block[count]), LIMIT,
                     "device_free_min_mb");
        free_blocks(allocator, block, count);
        env_free(allocator, ptr);
        env_close(allocator);
    }
}

/* A request that full pages cannot serve is served by small ones, up to the minimum. */
TEST_ON(small_pages_use_the_rest, env_open_mib(1000, "device_free_min_mb:389"))
{
    void *block[50];
    const unsigned count = fill_device(allocator, block, COUNT_OF(block));

    assert_int_equal(count, 30);
    /* 11 MiB remain above the minimum: 5 small pages. */
    void *small_pages = env_alloc(allocator, 10 * MIB, NULL);
    assert_int_equal(free_bytes(1000 * MIB), 390 * MIB);
    free_blocks(allocator, block, count);
    env_free(allocator, small_pages);
}

/* Memory of other users of the device is not free. */
TEST_ON(memory_of_others_is_counted, env_open_mib(1000, "device_free_min_mb:400"))
{
    void *block[50];

    assert_ok(xseg_sim_set_external_memory(0, 310 * MIB));
    const unsigned count = fill_device(allocator, block, COUNT_OF(block));
    assert_int_equal(count, 14); /* (1000 - 310 - 400) / 20 */
    assert_ok(xseg_sim_set_external_memory(0, 700 * MIB));
    assert_error(env_try_alloc(allocator, 2 * MIB, NULL), LIMIT,
                 "20.00 MiB of 1000.00 MiB free, 700.00 MiB used by others");
    assert_ok(xseg_sim_set_external_memory(0, 0));
    void *ptr = env_alloc(allocator, 300 * MIB, NULL);
    free_blocks(allocator, block, count);
    env_free(allocator, ptr);
}

/* The out-of-memory fallback chain moves or releases idle memory, as for a limit. */
TEST(idle_memory_serves_a_request_at_the_minimum)
{
    static const char *const configs[] = {
        "device_free_min_mb:400",
        "device_free_min_mb:400,expandable_segments:False",
        "device_free_min_mb:400,page_cache_mb:100",
    };

    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open_mib(1000, configs[i]);
        const xseg_stream side = env_stream();
        struct xseg_pool *pool = env_pool(allocator);

        void *small = env_alloc(allocator, 100, NULL);
        env_free(allocator, env_alloc(allocator, 560 * MIB, NULL));
        void *ptr = env_alloc(allocator, 500 * MIB, side);
        assert_true(free_bytes(1000 * MIB) >= 400 * MIB);
        env_free(allocator, ptr);
        ptr = env_alloc_in(allocator, pool, 590 * MIB, NULL);
        assert_true(free_bytes(1000 * MIB) >= 400 * MIB);
        env_free(allocator, ptr, small);
        assert_int_equal(env_stats(allocator).num_ooms, 0);
        assert_ok(xseg_pool_release(pool));
        env_close(allocator, side);
    }
}

static bool shrink_others(void *context, const struct xseg_oom_info *info)
{
    (void)context;
    assert_int_equal(info->status, XSEG_ERR_LIMIT);
    assert_non_null(strstr(info->message, "device_free_min_mb"));
    return xseg_sim_set_external_memory(0, 0) == XSEG_OK;
}

TEST_ON(observers_can_free_memory_of_others, env_open_mib(1000, "device_free_min_mb:400"))
{
    assert_ok(xseg_sim_set_external_memory(0, 500 * MIB));
    const uint64_t id = env_observe(allocator, .on_low_memory = shrink_others);
    env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    assert_ok(xseg_observer_remove(allocator, id));
}

TEST_ON(growth_during_a_capture_leaves_the_minimum_free,
        env_open_mib(1000, "device_free_min_mb:400"))
{
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 580 * MIB, stream);
    assert_error(env_try_alloc(allocator, 40 * MIB, stream), LIMIT, "device_free_min_mb");
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
}

/* --- Other calls that allocate device memory. --- */

TEST_ON(prewarm_leaves_the_minimum_free, env_open_mib(1000, "device_free_min_mb:400"))
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = 0;
    assert_error(xseg_prewarm(allocator, &scope, 620 * MIB), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 620.00 MiB requested, "
                 "minimum 400.00 MiB free");
    assert_ok(xseg_prewarm(allocator, &scope, 600 * MIB));
    assert_int_equal(free_bytes(1000 * MIB), 400 * MIB);
}

TEST_ON(ranges_leave_the_minimum_free, env_open_mib(1000, "device_free_min_mb:400"))
{
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, 800 * MIB, &options, &range));
    assert_error(xseg_range_commit(range, 0, 620 * MIB, NULL), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 620.00 MiB requested");
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    assert_ok(xseg_range_commit(range, 0, 500 * MIB, NULL));
    assert_true(free_bytes(1000 * MIB) >= 400 * MIB);
    assert_error(xseg_range_set_quota(range, 610 * MIB), LIMIT, "device_free_min_mb");
    assert_ok(xseg_range_set_quota(range, 540 * MIB));
    /* The quota is reserved. */
    assert_error(env_try_alloc(allocator, 70 * MIB, NULL), LIMIT, "device_free_min_mb");
    assert_ok(xseg_range_set_quota(range, 0));
    env_empty_cache(allocator);
    assert_error(xseg_range_prepare(range, 110 * MIB), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 2.00 MiB requested, minimum "
                 "400.00 MiB free; 400.00 MiB of 1000.00 MiB free");
    assert_int_equal(free_bytes(1000 * MIB), 400 * MIB);
    assert_ok(xseg_range_decommit(range, 0, 500 * MIB, NULL));
    assert_ok(xseg_range_release(range));
}

TEST_ON(resume_leaves_the_minimum_free, env_open_mib(1000, "device_free_min_mb:400"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *of_pool = env_alloc_in(allocator, pool, 300 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    void *ptr = env_alloc(allocator, 400 * MIB, NULL);
    assert_error(xseg_pool_resume(pool), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 300.00 MiB requested, "
                 "minimum 400.00 MiB free; 600.00 MiB of 1000.00 MiB free; pool 1 is still paused, "
                 "free memory and resume it again");
    /* Idle memory is released first. */
    env_free(allocator, ptr);
    assert_ok(xseg_pool_resume(pool));
    assert_true(free_bytes(1000 * MIB) >= 400 * MIB);
    env_free(allocator, of_pool);
    assert_ok(xseg_pool_release(pool));
}

static void *alloc_from_driver(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)stream;
    return driver_alloc(device, bytes);
}

static void free_to_driver(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)bytes, (void)stream;
    driver_free(device, ptr);
}

TEST(pools_with_memory_functions_leave_the_minimum_free)
{
    struct xseg_allocator *allocator = env_open_mib(1000, "device_free_min_mb:400");
    const struct xseg_pool_options options = {sizeof(options),
                                              .memory = {alloc_from_driver, free_to_driver, NULL}};
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = NULL;

    driver_open(1, NULL);
    void *of_pool = env_alloc_in(allocator, pool, 590 * MIB, NULL);
    assert_error(env_try_alloc_in(allocator, pool, 20 * MIB, &ptr), LIMIT, "device_free_min_mb");
    env_free(allocator, of_pool);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_close(allocator));
    driver_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Queries. --- */

TEST_ON(only_growth_queries_the_free_memory, env_open_mib(1000, "device_free_min_mb:100"))
{
    void *first = env_alloc(allocator, 200 * MIB, NULL);
    uint64_t before = count_queries();

    for (unsigned i = 0; i < 100; i++)
        env_free(allocator, env_alloc(allocator, MIB, NULL));
    assert_int_equal(count_queries(), before + 1);
    env_free(allocator, first);
    before = count_queries();
    first = env_alloc(allocator, 200 * MIB, NULL);
    assert_int_equal(count_queries(), before);
    env_free(allocator, first);
    /* The page cache covers the growth. */
    assert_ok(xseg_config_set(allocator, "page_cache_mb:1000,unmap_on_free:True"));
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    before = count_queries();
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_int_equal(count_queries(), before);
    assert_ok(
        xseg_config_set(allocator, "page_cache_mb:0,unmap_on_free:False,device_free_min_mb:0"));
    before = count_queries();
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_int_equal(count_queries(), before);
}

/* If the query fails, no memory is allocated. */
TEST_ON(failed_query_denies_the_growth, env_open_mib(1000, "device_free_min_mb:100"))
{
    assert_ok(xseg_sim_fail("cuMemGetInfo", 1, 999)); /* CUDA_ERROR_UNKNOWN */
    assert_error(env_try_alloc(allocator, 200 * MIB, NULL), DRIVER, "cuMemGetInfo");
    assert_int_equal(xseg_sim_used(0), 0);
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
}

/* --- Integrated devices. --- */

/* 16 GiB that the device shares with the host, which uses 2 GiB and has 13 GiB of page cache: 1 GiB is free. */
static struct xseg_allocator *open_integrated(const char *config)
{
    return env_open_sim(config, .memory_bytes = 16 * GIB, .integrated = true, .host_bytes = 2 * GIB,
                        .page_cache_bytes = 13 * GIB);
}

static struct xseg_device_stats device_stats(struct xseg_allocator *allocator)
{
    struct xseg_device_stats stats = {0};

    assert_ok(xseg_device_stats_get(allocator, &stats, sizeof(stats), 1, NULL));
    return stats;
}

/* The page cache is free memory, and a sixteenth of the memory remains free by default. */
TEST_ON(page_cache_of_the_host_is_free_memory, open_integrated("page_size:small"))
{
    void *first = env_alloc(allocator, 12 * GIB, NULL);
    struct xseg_device_stats stats = device_stats(allocator);

    assert_true(stats.is_integrated);
    assert_int_equal(stats.free_min_bytes, GIB);
    assert_int_equal(stats.free_bytes, (16 - 2 - 12) * GIB);
    void *second = env_alloc(allocator, GIB, NULL);
    assert_error(env_try_alloc(allocator, 2 * MIB, NULL), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 2.00 MiB requested, minimum "
                 "1024.00 MiB free; 2.00 MiB needed from the driver, 1024.00 MiB of 16384.00 MiB "
                 "free, 2048.00 MiB used by others, 13312.00 MiB used by this allocator");
    assert_int_equal(count_queries(), 0);
    env_free(allocator, first, second);
}

/* The minimum is at least 512 MiB. */
TEST_ON(small_integrated_device_leaves_512_mib,
        env_open_sim(NULL, .memory_bytes = 4 * GIB, .integrated = true, .host_bytes = GIB))
{
    void *ptr = env_alloc(allocator, 5 * GIB / 2, NULL);

    assert_int_equal(device_stats(allocator).free_min_bytes, 512 * MIB);
    assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, "minimum 512.00 MiB free");
    env_free(allocator, ptr);
}

/* The host allocates memory while the allocator grows. */
TEST_ON(growing_host_is_respected, open_integrated("page_size:small"))
{
    void *first = env_alloc(allocator, 8 * GIB, NULL);

    /* 16 - 6 - 8 = 2 GiB are free, 1 GiB of them above the minimum. */
    assert_ok(xseg_sim_set_host_memory(6 * GIB, 2 * GIB));
    void *second = env_alloc(allocator, 900 * MIB, NULL);
    assert_error(env_try_alloc(allocator, 200 * MIB, NULL), LIMIT, "device_free_min_mb");
    /* Idle memory serves requests. */
    env_free(allocator, second);
    second = env_alloc(allocator, 800 * MIB, NULL);
    env_free(allocator, first, second);
}

/* A key overrides the default, and 0 disables it. */
TEST_ON(default_minimum_can_be_changed, open_integrated("page_size:small,device_free_min_mb:2048"))
{
    void *first = env_alloc(allocator, 12 * GIB, NULL);

    assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, "minimum 2048.00 MiB free");
    assert_ok(xseg_config_set(allocator, "device_free_min_mb:auto"));
    void *second = env_alloc(allocator, GIB, NULL);
    assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, "minimum 1024.00 MiB free");
    assert_ok(xseg_config_set(allocator, "device_free_min_mb:0"));
    assert_int_equal(device_stats(allocator).free_min_bytes, 0);
    void *third = env_alloc(allocator, GIB, NULL);
    env_free(allocator, first, second, third);
}

/* cuMemGetInfo counts the page cache as used: by this count decay would release all idle memory. */
TEST(decay_ignores_the_page_cache)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 16 * GIB,
                                               .integrated = true, .host_bytes = 2 * GIB,
                                               .page_cache_bytes = 13 * GIB};
    struct xseg_allocator *allocator = env_open_with_clock(
        &settings, "page_size:small,device_free_min_mb:4096,reclaim_us_per_s:1000000");

    env_free(allocator, env_alloc(allocator, 4 * GIB, NULL));
    for (unsigned i = 0; i < 10; i++) {
        xseg_sim_advance(1000000000);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    assert_int_equal(env_reserved(allocator), 4 * GIB);
    /* The host allocates memory: 16 - 9 - 4 = 3 GiB may stay reserved. */
    assert_ok(xseg_sim_set_host_memory(9 * GIB, 0));
    for (unsigned i = 0; i < 10; i++) {
        xseg_sim_advance(1000000000);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    assert_in_range(env_reserved(allocator), 3 * GIB - 20 * MIB, 3 * GIB);
    env_close(allocator);
}

/* By default an integrated device has no decay pass, so hits stay on the fast path. */
TEST_ON(default_minimum_does_not_affect_hits, open_integrated("page_size:small"))
{
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    const uint64_t before = xseg_sim_calls(NULL);
    for (unsigned i = 0; i < 100; i++)
        env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    assert_int_equal(xseg_sim_calls(NULL), before);
}

/* By the recorded minimum a replay of the snapshot on another device leaves as much memory free. */
TEST_ON(snapshot_has_the_default_minimum, open_integrated("history:all"))
{
    char path[] = "free-memory-XXXXXX", text[65536];
    int file = mkstemp(path);

    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_int_equal(env_try_alloc(allocator, 14 * GIB, NULL), XSEG_ERR_LIMIT);
    assert_ok(xseg_snapshot(allocator, path, NULL));
    file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = read(file, text, sizeof(text));
    assert_true(length > 0);
    assert_non_null(memmem(text, (size_t)length, "device_free_min_mb:1024", 23));
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(path), 0);
}

/* Saved contents need host memory before the pause releases the memory of the pool. */
TEST_ON(pause_to_the_host_needs_free_memory, open_integrated("page_size:small"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *of_pool = env_alloc_in(allocator, pool, 5 * GIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_pool_resume(pool));
    void *ptr = env_alloc(allocator, 4 * GIB, NULL);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), LIMIT,
                 "device_free_min_mb rejects the request on device 0, 5120.00 MiB requested, "
                 "minimum 1024.00 MiB free; 5120.00 MiB of 16384.00 MiB free");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, ptr, of_pool);
    assert_ok(xseg_pool_release(pool));
}

/* --- Another process. --- */

/* A process that allocates from the driver, as NCCL does for a communicator.  A failed allocation ends the process. */
static void run_nccl(int socket, const struct xseg_sim_settings *settings)
{
    void *buffer[64];
    unsigned count = 0;
    char command;

    if (xseg_sim_reset(settings) != XSEG_OK)
        _exit(1);
    driver_open(1, NULL);
    while (read(socket, &command, 1) == 1) {
        if (command == 'a')
            buffer[count++] = driver_alloc(0, 32 * MIB);
        else if (count > 0)
            driver_free(0, buffer[--count]);
        if (write(socket, "y", 1) != 1)
            _exit(2);
    }
    while (count > 0)
        driver_free(0, buffer[--count]);
    driver_close();
    _exit(xseg_sim_reset(NULL) == XSEG_OK ? 0 : 3);
}

static void call_process(const struct process *process, char command)
{
    assert_int_equal(write(process->socket, &command, 1), 1);
    assert_true(process_responds_yes(process));
}

/* The allocator grows as far as it can between the allocations of NCCL, which never fail. */
TEST(nccl_allocates_while_the_allocator_grows)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1000 * MIB};
    struct process process = {0};
    struct xseg_allocator *allocator = NULL;
    void *block[60];
    unsigned count = 0, buffers = 0;

    if (!process_start(&process, &settings, run_nccl))
        return;
    assert_ok(env_try_open("device_free_min_mb:256", &allocator));
    while (buffers < 4) {
        call_process(&process, 'a');
        buffers++;
        count += fill_device(allocator, &block[count], 5);
    }
    count += fill_device(allocator, &block[count], COUNT_OF(block) - count);
    /* 1000 - 4 x 32 - 256 = 616 MiB. */
    assert_int_equal(count, 30);
    while (buffers < 12) {
        char text[512];

        call_process(&process, 'a');
        buffers++;
        assert_int_equal(env_try_alloc(allocator, 20 * MIB, NULL), XSEG_ERR_LIMIT);
        (void)snprintf(text, sizeof(text),
                       "device_free_min_mb rejects the request on device 0, 20.00 MiB requested, "
                       "minimum 256.00 MiB free; 20.00 MiB needed from the driver, %u.00 MiB of "
                       "1000.00 MiB free, %u.00 MiB used by others",
                       1000 - 600 - 32 * buffers, 32 * buffers);
        assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, text);
    }
    /* The allocator cannot grow, but it still serves requests from its own memory. */
    env_free(allocator, block[--count]);
    block[count++] = env_alloc(allocator, 16 * MIB, NULL);
    for (; buffers > 0; buffers--)
        call_process(&process, 'f');
    block[count++] = env_alloc(allocator, 140 * MIB, NULL);
    free_blocks(allocator, block, count);
    (void)shutdown(process.socket, SHUT_WR);
    process_end(&process, allocator, &settings);
}
