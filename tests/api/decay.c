/* SPDX-License-Identifier: MIT */
/* Decay: idle memory is released along a curve, above a floor, below limits, and without waits. */
#include <time.h>

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

#define MS UINT64_C(1000000)

static unsigned clock_reads;

static uint64_t virtual_clock(void *context)
{
    (void)context;
    clock_reads++;
    return xseg_sim_clock();
}

/* The allocator of the test. */
static struct xseg_allocator *opened;

static struct xseg_allocator *open_device(const char *config)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 4 * GIB};
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .clock = virtual_clock};

    assert_ok(xseg_sim_reset(&settings));
    clock_reads = 0;
    assert_ok(xseg_open(config, &options, &opened));
    return opened;
}

static void trim_due_memory(void)
{
    assert_ok(trim_due(opened, UINT64_MAX));
}

/* Advance the clock in steps, each with a due trim. */
static void pass_time(unsigned milliseconds)
{
    env_advance_and_trim(opened, milliseconds / 10, 10);
}

/* Allocate and free; the trim sets the time that the free records. */
static void make_idle(size_t bytes, xseg_stream stream)
{
    trim_due_memory();
    env_free(opened, env_alloc(opened, bytes, stream));
}

static uint64_t count_waits(void)
{
    return xseg_sim_calls("cuStreamSynchronize") + xseg_sim_calls("cuCtxSynchronize") +
           xseg_sim_calls("cuEventSynchronize");
}

TEST_ON(idle_memory_decays_along_a_curve, open_device("idle_ms:1000"))
{
    uint64_t max = 0;

    make_idle(2000 * MIB, NULL);
    uint64_t before = env_reserved(allocator);
    assert_int_equal(before, 2000 * MIB);
    for (unsigned i = 1; i <= 105; i++) {
        pass_time(10);
        const uint64_t now = env_reserved(allocator);
        /* The curve is steepest in the middle: twice the mean. */
        max = before - now > max ? before - now : max;
        before = now;
        if (i == 25)
            assert_int_equal(now, 2000 * MIB); /* the curve begins at a quarter of idle_ms */
        if (i == 40)
            assert_in_range(now, 1740 * MIB, 1880 * MIB); /* 10 % are released */
        if (i == 62)
            assert_in_range(now, 920 * MIB, 1100 * MIB); /* half */
        if (i == 85)
            assert_in_range(now, 120 * MIB, 280 * MIB); /* 90 % */
    }
    assert_int_equal(before, 0);
    assert_in_range(max, 20 * MIB, 80 * MIB); /* the mean is 2000 MiB / 75 = 27 MiB */
    assert_int_equal(count_waits(), 0);
}

TEST_ON(allocations_and_frees_run_decay_passes, open_device("idle_ms:1000"))
{
    env_free(allocator, env_alloc(allocator, 1, NULL));
    env_free(allocator, env_alloc(allocator, 2000 * MIB, NULL));
    for (unsigned i = 0; i < 300; i++) {
        xseg_sim_advance(5 * MS);
        env_free(allocator, env_alloc(allocator, 1, NULL));
    }
    /* The last call used the page of the small blocks. */
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    assert_int_equal(count_waits(), 0);
}

TEST_ON(clock_is_not_read_without_decay, open_device("keep_mb:10,keep_window_s:5"))
{
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    xseg_sim_advance(100000 * MS);
    trim_due_memory();
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_reserved(allocator), 102 * MIB);
    assert_int_equal(clock_reads, 0);
    for (unsigned i = 0; i < 100; i++)
        env_free(allocator, env_alloc(allocator, i % 2 == 0 ? 1 : 100 * MIB, NULL));
    trim_due_memory();
    assert_int_equal(clock_reads, 0);
}

TEST_ON(reused_memory_does_not_decay, open_device("idle_ms:1000"))
{
    make_idle(400 * MIB, NULL);
    const uint64_t creates = xseg_sim_calls("cuMemCreate"), maps = xseg_sim_calls("cuMemMap");
    for (unsigned i = 0; i < 20; i++) {
        pass_time(100);
        env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    }
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(xseg_sim_calls("cuMemMap"), maps);
}

TEST_ON(negative_idle_time_disables_decay, open_device("idle_ms:1000"))
{
    make_idle(400 * MIB, NULL);
    pass_time(620);
    const uint64_t remaining = env_reserved(allocator);
    assert_in_range(remaining, 100 * MIB, 300 * MIB);
    assert_ok(xseg_config_set(allocator, "idle_ms:-1"));
    clock_reads = 0;
    pass_time(5000);
    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    assert_int_equal(env_reserved(allocator), remaining);
    assert_int_equal(clock_reads, 0);
}

/* The time budget of a pass suffices for a few pages: those that have been idle longest, of any stream. */
TEST_ON(oldest_memory_decays_first, open_device("idle_ms:100,reclaim_us_per_s:1"))
{
    const xseg_stream stream[] = {env_stream(), env_stream(), env_stream(), env_stream()};
    void *ptr[COUNT_OF(stream)];
    /* The order in which the streams become idle: neither that of their creation nor the reverse. */
    static const unsigned order[] = {2, 0, 3, 1};

    for (unsigned i = 0; i < COUNT_OF(stream); i++)
        ptr[i] = env_alloc(allocator, 100 * MIB, stream[i]);
    trim_due_memory();
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        env_free(allocator, ptr[order[i]]);
        xseg_sim_advance(1000 * MS);
        assert_ok(xseg_config_set(allocator, "keep_mb:1000"));
        trim_due_memory();
    }
    assert_ok(xseg_config_set(allocator, "keep_mb:0"));
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        for (unsigned k = i; k < COUNT_OF(stream); k++)
            assert_int_equal(env_block(allocator, ptr[order[k]]).state, XSEG_BLOCK_CACHED);
        while (env_reserved(allocator) > (COUNT_OF(stream) - 1 - i) * 100 * MIB) {
            xseg_sim_advance(MS);
            assert_ok(trim_due(allocator, 1));
        }
        assert_int_equal(env_block(allocator, ptr[order[i]]).state, XSEG_BLOCK_UNMAPPED);
    }
}

/* Expired memory that waits for its event and is allocated again remains mapped. */
TEST_ON(expired_memory_is_reused_until_its_event_completes, open_device("idle_ms:100"))
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap",     "cuMemSetAccess",
                                        "cuMemUnmap",  "cuMemRelease", "cuMemAddressReserve"};
    const xseg_stream stream = env_stream();
    uint64_t before[COUNT_OF(calls)];

    trim_due_memory();
    void *ptr = env_alloc(allocator, 400 * MIB, stream);
    assert_ok(xseg_sim_launch_on(stream, 1000 * MS, (uintptr_t)ptr, 400 * MIB));
    env_free(allocator, ptr);
    pass_time(500);
    /* All memory has expired, but an event is pending. */
    assert_true(xseg_sim_calls("cuEventRecord") > 0);
    assert_int_equal(env_reserved(allocator), 400 * MIB);
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        before[i] = xseg_sim_calls(calls[i]);
    const uint64_t all_calls = xseg_sim_calls(NULL);
    ptr = env_alloc(allocator, 400 * MIB, stream);
    assert_int_equal(xseg_sim_calls(NULL), all_calls);
    pass_time(1000);
    assert_int_equal(env_reserved(allocator), 400 * MIB);
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        assert_int_equal(xseg_sim_calls(calls[i]), before[i]);
    assert_int_equal(count_waits(), 0);
    env_free(allocator, ptr);
    pass_time(300);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(count_waits(), 0);
}

/* The stream always has queued work, which does not use the freed memory. */
TEST_ON(busy_stream_does_not_block_decay, open_device("idle_ms:100"))
{
    const xseg_stream stream = env_stream();
    void *allocated = env_alloc(allocator, 4 * MIB, stream);

    trim_due_memory();
    void *ptr = env_alloc(allocator, 400 * MIB, stream);
    assert_ok(xseg_sim_launch_on(stream, 300 * MS, (uintptr_t)ptr, 400 * MIB));
    env_free(allocator, ptr);
    for (unsigned i = 0; i < 60; i++) {
        assert_ok(xseg_sim_launch_on(stream, 10 * MS, (uintptr_t)allocated, 4 * MIB));
        pass_time(10);
        /* The work on the freed memory ends after 300 ms. */
        if (i < 29)
            assert_int_equal(env_reserved(allocator), 420 * MIB);
    }
    assert_int_equal(env_reserved(allocator), 20 * MIB);
    assert_int_equal(count_waits(), 0);
    xseg_sim_finish_all();
    env_free(allocator, allocated);
}

TEST_ON(a_floor_is_kept, open_device("idle_ms:100,keep_mb:500"))
{
    make_idle(1000 * MIB, NULL);
    pass_time(500);
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_ok(xseg_config_set(allocator, "keep_mb:0"));
    pass_time(500);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_ON(recent_peak_demand_is_retained, open_device("idle_ms:100,keep_window_s:8"))
{
    make_idle(1000 * MIB, NULL);
    for (unsigned i = 0; i < 40; i++) {
        pass_time(100);
        env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    }
    assert_int_equal(env_reserved(allocator), 1000 * MIB);
    for (unsigned i = 0; i < 50; i++) {
        pass_time(100);
        env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    }
    assert_int_equal(env_reserved(allocator), 300 * MIB);
    pass_time(9000);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_ON(soft_limit_reclaims_and_never_denies, open_device("soft_limit_mb:300"))
{
    make_idle(1000 * MIB, NULL);
    pass_time(10);
    assert_int_equal(env_reserved(allocator), 300 * MIB);
    pass_time(100000);
    assert_int_equal(env_reserved(allocator), 300 * MIB);
    void *ptr = env_alloc(allocator, 2000 * MIB, NULL);
    pass_time(100);
    assert_int_equal(env_reserved(allocator), 2000 * MIB);
    env_free(allocator, ptr);
    pass_time(10);
    assert_int_equal(env_reserved(allocator), 300 * MIB);
}

/* Another process allocates memory of the device. */
TEST_ON(decay_keeps_device_free_min_mb_free, open_device("device_free_min_mb:1000"))
{
    make_idle(2000 * MIB, NULL);
    pass_time(1000);
    assert_int_equal(env_reserved(allocator), 2000 * MIB);
    assert_ok(xseg_sim_set_external_memory(0, 2000 * MIB));
    pass_time(10);
    /* 4096 - 2000 - 1000 = 1096 MiB, less at most a page of 20 MiB. */
    assert_in_range(env_reserved(allocator), 1076 * MIB, 1096 * MIB);
}

TEST_ON(reclaim_us_per_s_limits_the_driver_time, open_device("idle_ms:100,reclaim_us_per_s:500"))
{
    env_free(allocator, env_alloc(allocator, 1, NULL));
    env_free(allocator, env_alloc(allocator, 2000 * MIB, NULL));
    uint64_t start = xseg_sim_driver_time();
    for (unsigned i = 0; i < 5000; i++) {
        xseg_sim_advance(MS);
        env_free(allocator, env_alloc(allocator, 1, NULL));
    }
    /* 500 us/s for 5 s are 2500 us. */
    assert_in_range(xseg_sim_driver_time() - start, 1500 * 1000, 4000 * 1000);
    assert_in_range(env_reserved(allocator), 1000 * MIB, 1900 * MIB);
    /* A due trim has a separate time budget, here 1000 us. */
    const uint64_t before = env_reserved(allocator);
    start = xseg_sim_driver_time();
    xseg_sim_advance(MS);
    assert_ok(trim_due(allocator, 1000));
    assert_in_range(xseg_sim_driver_time() - start, 300 * 1000, 1600 * 1000);
    assert_true(env_reserved(allocator) < before);
    pass_time(200);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_ON(zero_decay_releases_at_the_next_call, open_device("idle_ms:0,reclaim_us_per_s:1000000"))
{
    void *ptr = env_alloc(allocator, 60 * MIB, NULL), *small = env_alloc(allocator, 1, NULL);
    xseg_sim_advance(MS);
    env_free(allocator, ptr);
    for (unsigned i = 0; i < 3; i++) {
        xseg_sim_advance(MS);
        env_free(allocator, env_alloc(allocator, 1, NULL));
    }
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    env_free(allocator, small);
}

TEST_ON(classic_segments_decay, open_device("expandable_segments:False,idle_ms:100"))
{
    void *ptr[4];

    trim_due_memory();
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, 100 * MIB, NULL);
    env_free(allocator, ptr[1], ptr[2], ptr[3]);
    pass_time(200);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_free(allocator, ptr[0]);
}

TEST_ON(retained_pools_and_captures_keep_idle_memory, open_device("idle_ms:100"))
{
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    trim_due_memory();
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    pass_time(500);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    make_idle(60 * MIB, NULL);
    env_capture_begin(pool, stream);
    pass_time(500);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_capture_end(pool, stream);
    assert_ok(xseg_pool_release(pool));
    pass_time(500);
    assert_true(env_reserved(allocator) <= 40 * MIB);
}

/* The memory moves to an arena whose stream has completed an event; the work on the memory is newer than that event. */
TEST_ON(memory_of_a_released_pool_waits_for_its_own_work,
        open_device("expandable_segments:True,idle_ms:50"))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *released_first = env_pool(allocator), *pool = env_pool(allocator);
    const struct xseg_trim_options options = {sizeof(options), .idle_ms = 100000};

    xseg_sim_advance(1000 * MS);
    /* Only a trim that names the pool sets the time of the pool's arena. */
    env_free(allocator, env_alloc_in(allocator, pool, 8 * MIB, stream));
    assert_ok(xseg_trim(allocator, env_scope(.pool = pool), &options, NULL));
    /* For memory of another released pool an event is recorded on the busy stream, and completes. */
    env_free(allocator, env_alloc_in(allocator, released_first, 8 * MIB, stream));
    assert_ok(xseg_pool_release(released_first));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    pass_time(100);
    assert_ok(xseg_sim_finish(stream));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    trim_due_memory();
    /* Free memory of the pool that queued work uses, and release the pool. */
    void *ptr = env_alloc_in(allocator, pool, 8 * MIB, stream);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)ptr, 8 * MIB));
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    /* The simulator aborts if a page with queued work is unmapped. */
    pass_time(1000);
    assert_true(env_reserved(allocator) >= 8 * MIB);
    assert_ok(xseg_sim_finish(stream));
    pass_time(1000);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_ON(failed_unmap_is_retried, open_device("idle_ms:100"))
{
    make_idle(200 * MIB, NULL);
    env_fail_every("cuMemUnmap", 999); /* CUDA_ERROR_UNKNOWN */
    pass_time(200);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_true(xseg_sim_fault_count(0) > 0);
    assert_ok(xseg_sim_fault_set(0, NULL));
    pass_time(200);
    assert_int_equal(env_reserved(allocator), 0);
}

static void sleep_2_ms(void)
{
    assert_int_equal(nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL), 0);
}

/* The kernel may list a thread for some time after the thread was joined. */
static void expect_threads(unsigned count)
{
    for (unsigned tries = 0; env_threads() != count && tries < 10000; tries++)
        sleep_2_ms();
    assert_int_equal(env_threads(), count);
}

/* The allocator uses the system clock, and no call releases memory. */
TEST(background_thread_releases_idle_memory)
{
    const unsigned before = env_threads();
    struct xseg_allocator *allocator = env_open("idle_ms:20,background_thread:True");
    unsigned tries = 0;

    assert_int_equal(env_threads(), before + 1);
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    while (env_reserved(allocator) != 0 && tries++ < 10000)
        sleep_2_ms();
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(count_waits(), 0);
    assert_ok(xseg_config_set(allocator, "background_thread:False"));
    expect_threads(before);
    assert_ok(xseg_config_set(allocator, "background_thread:True"));
    assert_ok(xseg_config_set(allocator, "background_thread:True,idle_ms:30"));
    assert_int_equal(env_threads(), before + 1);
    /* The thread survives a close that fails. */
    void *ptr = env_alloc(allocator, 1, NULL);
    assert_int_equal(xseg_close(allocator), XSEG_ERR_BUSY);
    assert_int_equal(env_threads(), before + 1);
    env_free(allocator, ptr);
    env_close(allocator);
    expect_threads(before);
}

static struct xseg_trim_result trim_to(uint64_t target_bytes, uint64_t idle_ms)
{
    return env_trim_with(opened, NULL, .target_bytes = target_bytes, .idle_ms = idle_ms);
}

/* The result contains the released and the kept bytes, by reason. */
TEST_ON(trim_stops_at_its_target, open_device(NULL))
{
    const xseg_stream stream = env_stream();
    void *allocated = env_alloc(allocator, 205 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 400 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    struct xseg_trim_result result = trim_to(500 * MIB, 0);
    /* 820 MiB were reserved: 400 and 200 idle, 205 allocated, and 15 on the last page of the allocated block. */
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_int_equal(result.released, (820 - 500) * MIB);
    assert_int_equal(result.kept_by_options, 280 * MIB);
    assert_int_equal(result.kept_fragmented, 15 * MIB);
    result = trim_to(600 * MIB, 0);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_by_options, 280 * MIB);
    result = trim_to(1, 0);
    assert_int_equal(result.released, 280 * MIB);
    assert_int_equal(result.kept_by_options, 0);
    env_free(allocator, allocated);
}

TEST_ON(trim_by_age_releases_old_memory, open_device(NULL))
{
    const xseg_stream stream = env_stream();
    void *ptr[3];

    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, 100 * MIB, stream);
    assert_int_equal(trim_to(0, 1000).released, 0);
    for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
        env_free(allocator, ptr[i]);
        xseg_sim_advance(1000 * MS);
        assert_int_equal(trim_to(0, 10000).released, 0);
    }
    struct xseg_trim_result result = trim_to(0, 2500);
    assert_int_equal(result.released, 100 * MIB);
    assert_int_equal(result.kept_by_options, 200 * MIB);
    /* A target and an age. */
    result = trim_to(180 * MIB, 1);
    assert_int_equal(result.released, 20 * MIB);
    assert_int_equal(result.kept_by_options, 180 * MIB);
    /* The memory of a busy stream is kept until the work completes. */
    assert_ok(xseg_sim_launch_on(stream, 50 * MS, (uintptr_t)ptr[2], 20 * MIB));
    assert_int_equal(trim_to(0, 1).kept_busy, 180 * MIB);
    xseg_sim_advance(100 * MS);
    assert_int_equal(trim_to(0, 1).released, 180 * MIB);
}

TEST_ON(invalid_decay_keys_are_rejected, open_device("keep_mb:100,soft_limit_mb:200"))
{
    static const char *const cases[][2] = {
        {"keep_mb:201", "at most soft_limit_mb, which is 200"},
        {"soft_limit_mb:99", "at least keep_mb, which is 100"},
        {"idle_ms:-2", "or -1 (never)"},
        {"keep_window_s:-1", "-1"},
        {"reclaim_us_per_s:0", "from 1 to 1000000"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_error(xseg_config_set(allocator, cases[i][0]), CONFIG, cases[i][1]);
    assert_ok(xseg_config_set(allocator, "soft_limit_mb:300,keep_mb:300"));
    assert_error(trim_due(NULL, 1), ARGUMENT, "NULL");
}
