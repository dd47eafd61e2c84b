/* SPDX-License-Identifier: MIT */
/* Captures, and calls that the library must not make in them.  Most tests reproduce defects of PyTorch's allocator. */
#include "tests/support/driver_calls.h"
#include "tests/support/env.h"

/* The allocator of a test, two streams, and a pool for captures of `stream`. */
static struct xseg_allocator *opened;
static xseg_stream stream, side;
static struct xseg_pool *pool;

static struct xseg_allocator *open_capture(const char *config)
{
    opened = env_open(config);
    stream = env_stream();
    side = env_stream();
    pool = env_pool(opened);
    return opened;
}

static uint64_t active_blocks(void)
{
    return env_stats(opened).active[XSEG_STAT_ALL].current;
}

static void *alloc_in_thread(void *context)
{
    (void)context;
    return env_alloc(opened, 3 * MIB, NULL);
}

/* Work is pending on other streams, whose events are polled after the capture. */
TEST_ON(capture_makes_no_unsafe_calls, open_capture(NULL))
{
    void *before = env_alloc(allocator, 5 * MIB, NULL);
    void *across = env_alloc(allocator, 5 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 5 * MIB, side));
    assert_ok(xseg_record_stream(allocator, before, side));
    env_free(allocator, before);
    env_capture_begin(pool, stream);
    uint64_t calls = env_unsafe_calls();
    void *inside = env_alloc(allocator, 5 * MIB, stream);
    assert_ok(xseg_record_stream(allocator, across, stream));
    assert_ok(xseg_record_stream(allocator, inside, side));
    env_free(allocator, across, inside);
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 5 * MIB, side));
    env_free(allocator, env_alloc(allocator, 5 * MIB, stream));
    env_free(allocator, env_run_thread(alloc_in_thread, NULL));
    /* `before`, `across` and `inside` are pending. */
    assert_int_equal(active_blocks(), 3);
    assert_int_equal(env_unsafe_calls(), calls);
    env_capture_end(pool, stream);

    /* The first poll after the capture completes all events. */
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    assert_int_equal(active_blocks(), 0);
}

/* The output of a graph outlives the pool.  Of the 3 pages of one growth, the first and the last are released. */
TEST_ON(released_pool_keeps_its_allocated_blocks, open_capture(NULL))
{
    env_capture_begin(pool, stream);
    void *first = env_alloc(allocator, 25 * MIB, stream);
    void *output = env_alloc(allocator, 2 * MIB, stream);
    void *last = env_alloc(allocator, 33 * MIB, stream);
    env_capture_end(pool, stream);
    env_free(allocator, first, last);
    assert_ok(xseg_pool_release(pool));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(env_reserved_without_cache(allocator), 20 * MIB);
        assert_int_equal(env_block(allocator, output).state, XSEG_BLOCK_ALLOCATED);
        env_launch_at(stream, output, 2 * MIB);
    }
    env_free(allocator, output);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
}

/* Expect that a freed block of 20 MiB is reused only after the work of a stream. */
static void expect_pending_until_finished(void *ptr, xseg_stream using_stream)
{
    void *next = env_alloc(opened, 20 * MIB, NULL);

    assert_ptr_not_equal(next, ptr);
    assert_int_equal(env_block(opened, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(using_stream));
    assert_ptr_equal(env_alloc(opened, 20 * MIB, NULL), ptr);
    env_free(opened, ptr, next);
}

/* PyTorch kept uses in a capture for the next block at the same address. */
TEST_ON(uses_in_a_capture_end_with_the_block, open_capture(NULL))
{
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);

    env_capture_begin(pool, side);
    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_capture_end(pool, side);
    env_free(allocator, ptr);
    assert_ptr_equal(env_alloc(allocator, 20 * MIB, NULL), ptr);

    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_launch_at(side, ptr, 20 * MIB);
    env_capture_begin(pool, stream);
    env_free(allocator, ptr);
    env_capture_end(pool, stream);
    expect_pending_until_finished(ptr, side);
}

TEST_ON(uses_in_a_capture_end_with_the_capture, open_capture(NULL))
{
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);

    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_capture_begin(pool, stream);
    assert_ok(xseg_record_stream(allocator, ptr, stream));
    env_free(allocator, ptr);
    env_capture_end(pool, stream);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ptr_equal(env_alloc(allocator, 20 * MIB, NULL), ptr);
    env_free(allocator, ptr);
}

static const char *const segment_configs[] = {"expandable_segments:True",
                                              "expandable_segments:False"};
static const char *const reuse_configs[] = {
    "graph_capture_record_stream_reuse:False",
    "graph_capture_record_stream_reuse:True",
};

TEST_TIMES(use_before_a_capture_is_awaited_after_it, COUNT_OF(reuse_configs),
           open_capture(reuse_configs[i]))
{
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_launch_at(side, ptr, 20 * MIB);
    env_capture_begin(pool, side);
    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_free(allocator, ptr);
    env_capture_end(pool, side);
    expect_pending_until_finished(ptr, side);
}

/* The capture reuses a block that a joined stream uses after a join, unless the block was used before the capture.
 * PyTorch ignored earlier uses. */
TEST_TIMES(reuse_in_a_capture_respects_earlier_uses, 2,
           open_capture("graph_capture_record_stream_reuse:True"))
{
    const bool used_before = i != 0;
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, stream);

    if (used_before) {
        assert_ok(xseg_record_stream(allocator, ptr, side));
        env_launch_at(side, ptr, 20 * MIB);
    }
    env_capture_begin(pool, stream);
    env_stream_wait(side, stream);
    assert_ok(xseg_record_stream(allocator, ptr, side));
    assert_ok(xseg_sim_launch(side, 1000));
    env_free(allocator, ptr);
    env_stream_wait(stream, side);
    void *next = env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(next == ptr, !used_before);
    env_capture_end(pool, stream);

    if (used_before) {
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_ok(xseg_sim_finish(side));
        assert_ptr_equal(env_alloc_in(allocator, pool, 20 * MIB, stream), ptr);
        env_free(allocator, ptr);
    }
    env_free(allocator, next);
}

/* No graph orders the uses of two captures, so the block waits for both, even if a stream of one joins the other. */
TEST_ON(block_of_two_captures_waits_for_both,
        open_capture("graph_capture_record_stream_reuse:True"))
{
    struct xseg_pool *second_pool = env_pool(allocator);
    void *ptr = env_alloc(allocator, 20 * MIB, stream);

    env_capture_begin(pool, stream);
    env_capture_begin(second_pool, side);
    assert_ok(xseg_record_stream(allocator, ptr, side));
    assert_ok(xseg_sim_launch(side, 1000));
    env_free(allocator, ptr);
    env_capture_end(pool, stream);
    env_stream_wait(stream, side);
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    env_stream_wait(side, stream);
    env_capture_end(second_pool, side);
    assert_ptr_equal(env_alloc(allocator, 20 * MIB, stream), ptr);
    env_free(allocator, ptr);
}

/* In PyTorch, the first allocation on a joined stream failed with graph_capture_record_stream_reuse. */
TEST_TIMES(joined_streams_allocate_from_the_graphs_pool, COUNT_OF(reuse_configs),
           open_capture(reuse_configs[i]))
{
    void *pending = env_alloc(allocator, 20 * MIB, stream);

    env_capture_begin(pool, stream);
    env_stream_wait(side, stream);
    assert_ok(xseg_record_stream(allocator, pending, side));
    env_free(allocator, pending);
    void *ptr = env_alloc(allocator, 20 * MIB, side);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    assert_ptr_equal(env_block(allocator, ptr).stream, side);
    env_stream_wait(stream, side);
    env_capture_end(pool, stream);
    void *outside = env_alloc(allocator, 20 * MIB, side);
    assert_null(env_block(allocator, outside).pool);
    env_free(allocator, ptr, outside);
}

TEST_TIMES(empty_cache_waits_for_the_end_of_a_capture, COUNT_OF(segment_configs),
           open_capture(segment_configs[i]))
{
    struct xseg_pool *released = env_pool(allocator);
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);

    env_free(allocator, env_alloc_in(allocator, released, 40 * MIB, NULL));
    assert_ok(xseg_pool_release(released));
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    assert_ok(xseg_record_stream(allocator, ptr, stream));
    env_free(allocator, ptr);
    env_capture_begin(pool, stream);
    const uint64_t calls = env_unsafe_calls();
    env_empty_cache(allocator);
    /* The released pool and `stream` have 40 + 20 MiB, and the pending block has 20 MiB. */
    assert_int_equal(env_trim(allocator).kept_capture, (40 + 20) * MIB);
    assert_int_equal(env_trim(allocator).kept_pending, 20 * MIB);
    assert_int_equal(env_unsafe_calls(), calls);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 0);
    assert_int_equal(env_reserved(allocator), (40 + 20 + 20) * MIB);
    env_capture_end(pool, stream);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* In PyTorch, queries, waits and frees on one device invalidated a capture on another. */
TEST_EACH(capture_on_another_device_stays_valid, env_open_sim(config, .devices = 2), ENV_KINDS)
{
    const xseg_stream retired = env_stream();
    side = env_stream();
    stream = env_stream_on(1);
    void *ptr = env_alloc(allocator, 40 * MIB, NULL);
    void *of_retired = env_alloc(allocator, 20 * MIB, retired);
    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_free(allocator, env_alloc(allocator, 60 * MIB, side));
    assert_ok(xseg_pool_create(allocator, 1, NULL, &pool));
    env_capture_begin(pool, stream);
    env_launch_at(side, ptr, 40 * MIB);
    env_launch_at(retired, of_retired, 20 * MIB);
    env_free(allocator, ptr, of_retired);
    assert_ok(xseg_stream_retire(allocator, 0, retired));
    env_free(allocator, env_alloc(allocator, 512, NULL));
    /* The cached memory of `side` and of `retired`; the block of 40 MiB is pending. */
    assert_int_equal(env_trim(allocator).kept_busy, (60 + 20) * MIB);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    env_capture_end(pool, stream);
}

TEST_ON(capture_of_two_devices_is_begun_on_both, env_open_sim(NULL, .devices = 2))
{
    struct xseg_pool *second = NULL;
    void *ptr = NULL;

    const xseg_stream joined = env_stream_on(1);
    stream = env_stream();
    pool = env_pool(allocator);
    assert_ok(xseg_pool_create(allocator, 1, NULL, &second));
    void *used = env_alloc_on(allocator, 1, 20 * MIB);
    assert_ok(xseg_capture_begin(second, joined));
    env_capture_begin(pool, stream);
    env_stream_wait(joined, stream);
    uint64_t calls = env_unsafe_calls();
    assert_ok(xseg_record_stream(allocator, used, joined));
    env_free(allocator, used);
    assert_ok(xseg_alloc(allocator, 1, 20 * MIB, joined, &ptr));
    assert_ptr_equal(env_block(allocator, ptr).pool, second);
    assert_int_equal(env_trim(allocator).kept_pending, 20 * MIB);
    assert_int_equal(env_unsafe_calls(), calls);
    env_stream_wait(stream, joined);
    env_capture_end(pool, stream);
    assert_ok(xseg_capture_end(second));
    env_free(allocator, ptr);
}

/* An event recorded in a capture never completes, so memory that waited for it was never reused (PyTorch #193982). */
TEST_ON(unannounced_capture_does_not_block_reuse, open_capture(NULL))
{
    void *ptr = env_alloc(allocator, 20 * MIB, NULL), *next = env_alloc(allocator, MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, side));
    assert_ok(xseg_record_stream(allocator, next, side));
    env_launch_at(side, ptr, 20 * MIB);
    env_driver_capture_begin(side);
    env_free(allocator, ptr);
    assert_error(xseg_stream_retire(allocator, 0, side), BUSY, "being captured");
    assert_true(env_driver_capture_end(side));
    env_free(allocator, next);

    /* Work from before the capture is still awaited. */
    env_free(allocator, env_alloc(allocator, 512, NULL));
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(active_blocks(), 0);
}

/* The wait of a trim (i is 0), or of a close. */
TEST_TIMES(wait_ends_after_an_unannounced_capture, 2, open_capture(NULL))
{
    void *ptr[4];

    for (unsigned k = 0; k < COUNT_OF(ptr); k++) {
        ptr[k] = env_alloc(allocator, 20 * MIB, NULL);
        assert_ok(xseg_record_stream(allocator, ptr[k], side));
        env_launch_at(side, ptr[k], 20 * MIB);
    }
    env_free(allocator, ptr[0]);
    env_driver_capture_begin(side);
    for (unsigned k = 1; k < COUNT_OF(ptr); k++)
        env_free(allocator, ptr[k]);
    assert_true(env_driver_capture_end(side));
    if (i == 0) {
        assert_int_equal(env_reserved_without_cache(allocator), 0);
    }
}

static bool accepts_stream(void *context, xseg_stream requested)
{
    return requested == context;
}

/* As in the adapter for PyTorch, the mark follows the driver's begin, and routes end before the capture. */
TEST_ON(marked_device_makes_no_unsafe_calls, open_capture(NULL))
{
    void *ptr = env_alloc(allocator, 20 * MIB, NULL), *inside;

    env_free(allocator, env_alloc(allocator, 20 * MIB, side));
    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_driver_capture_begin(stream);
    uint64_t calls = env_unsafe_calls();
    assert_ok(xseg_capture_mark(allocator, 0));
    assert_ok(xseg_capture_mark(allocator, 0));
    env_free(allocator, ptr);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_route_begin(pool, accepts_stream, stream));
        inside = env_alloc(allocator, 3 * MIB, stream);
        assert_ptr_equal(env_block(allocator, inside).pool, pool);
        env_free(allocator, inside);
        assert_ok(xseg_route_end(pool));
        inside = env_alloc(allocator, 512, stream);
        assert_null(env_block(allocator, inside).pool);
        env_free(allocator, inside);
        env_empty_cache(allocator);
        assert_int_equal(env_trim(allocator).kept_pending, 20 * MIB);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        /* The device remains marked until the last mark is removed. */
        assert_ok(xseg_capture_unmark(allocator, 0));
        if (i == 0)
            assert_ok(xseg_capture_mark(allocator, 0));
    }
    assert_int_equal(env_unsafe_calls(), calls);
    assert_true(env_driver_capture_end(stream));
    assert_ok(xseg_capture_unmark(allocator, 0));
    assert_error(xseg_capture_unmark(allocator, 0), ARGUMENT, "no capture is marked on device");
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_UNMAPPED);
}

/* A graph may write to cached memory of a pool that a route used while the device was marked. */
TEST_TIMES(route_while_the_device_is_marked_retains_the_pool, 4, open_capture(NULL))
{
    /* Run 0 has no route; in runs 1 to 3 the route begins before, during and after the mark. */
    const bool is_inside = i == 1 || i == 2;

    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, NULL));
    if (i == 1)
        assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ok(xseg_capture_mark(allocator, 0));
    if (i == 2)
        assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ok(xseg_capture_unmark(allocator, 0));
    if (i == 3)
        assert_ok(xseg_route_begin(pool, NULL, NULL));
    if (i != 0)
        assert_ok(xseg_route_end(pool));
    const struct xseg_trim_result result = env_trim_pool(allocator, pool);
    assert_int_equal(result.kept_pool, is_inside ? 20 * MIB : 0);
    assert_int_equal(result.released, is_inside ? 0 : 20 * MIB);
}

/* As PyTorch with graph_capture_record_stream_reuse: a mark names no pool, so the end of the route records the events. */
TEST_ON(end_of_a_route_records_the_events_of_its_blocks,
        open_capture("graph_capture_record_stream_reuse:True"))
{
    void *of_default_pool = env_alloc(allocator, 3 * MIB, NULL);

    assert_ok(xseg_route_begin(pool, accepts_stream, stream));
    env_driver_capture_begin(stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    void *of_pool = env_alloc(allocator, 3 * MIB, stream);
    assert_ok(xseg_record_stream(allocator, of_pool, side));
    assert_ok(xseg_record_stream(allocator, of_default_pool, side));
    env_free(allocator, of_pool, of_default_pool);
    assert_true(env_driver_capture_end(stream));
    const uint64_t records = xseg_sim_calls("cuEventRecord");
    assert_ok(xseg_capture_unmark(allocator, 0));
    assert_int_equal(xseg_sim_calls("cuEventRecord"), records);
    assert_ok(xseg_route_end(pool));
    /* One event on `side` for both blocks. */
    assert_int_equal(xseg_sim_calls("cuEventRecord"), records + 1);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(active_blocks(), 0);
}

TEST_ON(invalid_marks_are_rejected, env_open_sim(NULL, .devices = 2))
{
    assert_int_equal(xseg_capture_mark(NULL, 0), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_capture_unmark(NULL, 0), XSEG_ERR_ARGUMENT);
    assert_error(xseg_capture_mark(allocator, 2), ARGUMENT, "device 2 does not exist");
    assert_error(xseg_capture_unmark(allocator, -1), ARGUMENT, "device -1");
    assert_error(xseg_capture_unmark(allocator, 1), ARGUMENT, "no capture is marked on device");
    /* The begin of a capture is not a mark. */
    pool = env_pool(allocator);
    assert_ok(xseg_capture_begin(pool, env_stream()));
    assert_error(xseg_capture_unmark(allocator, 0), ARGUMENT, "no capture is marked on device");
    assert_ok(xseg_capture_end(pool));
    assert_ok(xseg_capture_mark(allocator, 1));
    assert_error(xseg_close(allocator), BUSY, "capture is active on device 1");
    assert_ok(xseg_capture_unmark(allocator, 1));
}

/* --- Calls for a device use the context of the device, and restore the context and the capture of the thread. --- */

/* The primary contexts of both devices. */
static void *context[2];

static struct xseg_allocator *open_two_devices(const char *config)
{
    opened = env_open_sim(config, .devices = 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRetain(&context[i], i), 0);
    return opened;
}

static void release_contexts(void)
{
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(i), 0);
}

static uint64_t trim_device(int device, bool wait)
{
    const struct xseg_trim_options options = {sizeof(options), .wait = wait};
    struct xseg_trim_result result = {sizeof(result)};

    assert_ok(xseg_trim(opened, env_scope(.device = device), &options, &result));
    return result.released;
}

/* The simulator aborts if pages are unmapped in another device's context while work of unknown addresses is queued. */
TEST_ON(pages_are_unmapped_in_their_own_context, open_two_devices("expandable_segments:True"))
{
    const xseg_stream busy = env_stream();
    void *current = NULL;

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
    assert_ok(xseg_sim_launch(busy, UINT64_MAX));
    assert_int_equal(cuCtxSetCurrent(context[1]), 0);
    assert_int_equal(trim_device(0, false), 40 * MIB);
    assert_int_equal(cuCtxGetCurrent(&current), 0);
    assert_ptr_equal(current, context[1]);
    xseg_sim_finish_all();
    release_contexts();
}

/* Free a block of device 1 that work of the per-thread stream uses; then begin a capture on device 0. */
static void free_and_capture(void *ptr, xseg_stream captured)
{
    const xseg_stream per_thread = (xseg_stream)(uintptr_t)2;

    assert_int_equal(cuCtxSetCurrent(context[1]), 0);
    assert_ok(xseg_sim_launch(per_thread, UINT64_MAX));
    assert_ok(xseg_record_stream(opened, ptr, per_thread));
    env_free(opened, ptr);
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
    env_driver_capture_begin(captured);
}

/* In global mode a query or a wait of the capturing thread invalidates the capture. */
TEST_TIMES(trim_keeps_the_capture_of_another_device_valid, 2 * COUNT_OF(segment_configs),
           open_two_devices(segment_configs[i / 2]))
{
    const xseg_stream captured = env_stream();
    void *ptr = env_alloc_on(allocator, 1, 3 * MIB);

    env_free(allocator, env_alloc_on(allocator, 1, 90 * MIB));
    free_and_capture(ptr, captured);
    assert_true(trim_device(1, i % 2 == 0) > 0);
    assert_true(env_driver_capture_end(captured));
    xseg_sim_finish_all();
    release_contexts();
}

/* A pool at its own limit waits for its pending blocks without a trim. */
TEST_ON(full_pool_keeps_the_capture_of_another_device_valid,
        open_two_devices("expandable_segments:True"))
{
    const struct xseg_pool_options options = {sizeof(options), .limit_bytes = 20 * MIB};
    const xseg_stream captured = env_stream();

    assert_ok(xseg_pool_create(allocator, 1, &options, &pool));
    void *ptr = env_alloc_in(allocator, pool, 15 * MIB, NULL);
    free_and_capture(ptr, captured);
    assert_ptr_equal(env_alloc_in(allocator, pool, 15 * MIB, NULL), ptr);
    assert_true(env_driver_capture_end(captured));
    env_free(allocator, ptr);
    release_contexts();
}
