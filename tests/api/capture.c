/* SPDX-License-Identifier: MIT */
/*
 * Captures, and what they must leave alone: events, uses, released pools, other devices.  Most of it
 * goes wrong in PyTorch's own allocator, as was found by running it.
 */
#include "tests/support/capture.h"

#include <pthread.h>

static uint64_t reserved(struct xseg_allocator *allocator)
{
    return scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
}

static uint64_t active(struct xseg_allocator *allocator)
{
    return scene_stats(allocator).active[XSEG_STAT_ALL].current;
}

static struct xseg_trim_result trim(struct xseg_allocator *allocator)
{
    struct xseg_trim_result done = {sizeof(done)};

    assert_int_equal(xseg_trim(allocator, NULL, NULL, &done), XSEG_OK);
    return done;
}

static void *alloc_in_thread(void *allocator)
{
    return scene_alloc(allocator, 3 * MIB, NULL);
}

/* While the thread's current stream is another than the captured one, events are polled there. */
static void nothing_is_asked_in_a_capture(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *before = scene_alloc(allocator, 5 * MIB, NULL);
    void *across = scene_alloc(allocator, 5 * MIB, NULL), *inside, *other = NULL;
    pthread_t thread;
    uint64_t calls;

    (void)state;
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, side));
    assert_int_equal(xseg_record_stream(allocator, before, side), XSEG_OK);
    scene_free(allocator, before);
    capture_begin(pool, stream);
    calls = capture_disturbances();
    inside = scene_alloc(allocator, 5 * MIB, stream);
    assert_int_equal(xseg_record_stream(allocator, across, stream), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, inside, side), XSEG_OK);
    scene_free(allocator, across);
    scene_free(allocator, inside);
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, NULL));
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, side));
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, stream));
    assert_int_equal(pthread_create(&thread, NULL, alloc_in_thread, allocator), 0);
    assert_int_equal(pthread_join(thread, &other), 0);
    scene_free(allocator, other);
    assert_int_equal(active(allocator), 3);
    assert_int_equal(capture_disturbances(), calls);
    capture_end(pool, stream);

    /* The first look after it finds that all streams have passed. */
    scene_free(allocator, scene_alloc(allocator, 5 * MIB, NULL));
    assert_int_equal(active(allocator), 0);
    capture_close(allocator, stream, side);
}

/* A graph's output outlives the graph, whose pool was destroyed under it: 3 pages of one growth are
 * given back in two pieces, around a live block. */
static void a_released_pool_keeps_its_live_blocks(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    const xseg_stream stream = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *first, *output, *last;

    (void)state;
    capture_begin(pool, stream);
    first = scene_alloc(allocator, 25 * MIB, stream);
    output = scene_alloc(allocator, 2 * MIB, stream);
    last = scene_alloc(allocator, 33 * MIB, stream);
    capture_end(pool, stream);
    scene_free(allocator, first);
    scene_free(allocator, last);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    for (unsigned i = 0; i < 2; i++) {
        scene_empty_cache(allocator);
        assert_int_equal(reserved(allocator), 20 * MIB);
        assert_int_equal(scene_block(allocator, output).state, XSEG_BLOCK_ALLOCATED);
        capture_launch_on(stream, output, 2 * MIB);
    }
    scene_free(allocator, output);
    scene_empty_cache(allocator);
    assert_int_equal(reserved(allocator), 0);
    assert_int_equal(scene_stats(allocator).address_bytes, 0);
    capture_close(allocator, stream, NULL);
}

/* Uses in a capture were remembered for the next block at the same place, whose real use was then
 * taken for one of the capture's. */
static void uses_in_a_capture_end_with_the_block(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *ptr = scene_alloc(allocator, 20 * MIB, NULL), *other;

    (void)state;
    capture_begin(pool, side);
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    capture_end(pool, side);
    scene_free(allocator, ptr);
    assert_ptr_equal(scene_alloc(allocator, 20 * MIB, NULL), ptr);

    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    capture_launch_on(side, ptr, 20 * MIB);
    capture_begin(pool, stream);
    scene_free(allocator, ptr);
    capture_end(pool, stream);
    other = scene_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_not_equal(other, ptr);
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    assert_ptr_equal(scene_alloc(allocator, 20 * MIB, NULL), ptr);
    scene_free(allocator, ptr);
    scene_free(allocator, other);
    capture_close(allocator, stream, side);
}

/* What a capture used waits for nobody after it: the capture ran nothing. */
static void uses_in_a_capture_end_with_it(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    const xseg_stream stream = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *ptr = scene_alloc(allocator, 20 * MIB, NULL);

    (void)state;
    assert_int_equal(xseg_sim_launch(stream, UINT64_MAX), XSEG_OK);
    capture_begin(pool, stream);
    assert_int_equal(xseg_record_stream(allocator, ptr, stream), XSEG_OK);
    scene_free(allocator, ptr);
    capture_end(pool, stream);
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ptr_equal(scene_alloc(allocator, 20 * MIB, NULL), ptr);
    scene_free(allocator, ptr);
    capture_close(allocator, stream, NULL);
}

static const char *const reuse_or_not[] = {
    "graph_capture_record_stream_reuse:False",
    "graph_capture_record_stream_reuse:True",
};

/* A use by a stream before its capture was forgotten together with the one in it. */
static void a_use_before_a_capture_outlives_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(reuse_or_not); i++) {
        struct xseg_allocator *allocator = scene_open(reuse_or_not[i]);
        const xseg_stream side = scene_stream();
        struct xseg_pool *pool = scene_pool(allocator);
        void *ptr = scene_alloc(allocator, 20 * MIB, NULL), *other;

        assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
        capture_launch_on(side, ptr, 20 * MIB);
        capture_begin(pool, side);
        assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
        scene_free(allocator, ptr);
        capture_end(pool, side);
        other = scene_alloc(allocator, 20 * MIB, NULL);
        assert_ptr_not_equal(other, ptr);
        assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_int_equal(xseg_sim_finish(side), XSEG_OK);
        assert_ptr_equal(scene_alloc(allocator, 20 * MIB, NULL), ptr);
        scene_free(allocator, ptr);
        scene_free(allocator, other);
        capture_close(allocator, side, NULL);
    }
}

/* Free a block of the graph's pool in a capture, after a use by a stream that joined it: may the
 * block serve the same capture again, once the streams are joined? */
static void expect_reuse_after_join(bool used_before)
{
    struct xseg_allocator *allocator = scene_open("graph_capture_record_stream_reuse:True");
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *ptr = scene_alloc_in(allocator, pool, 20 * MIB, stream), *next;

    if (used_before) {
        assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
        capture_launch_on(side, ptr, 20 * MIB);
    }
    capture_begin(pool, stream);
    capture_wait(side, stream);
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    assert_int_equal(xseg_sim_launch(side, 1000), XSEG_OK);
    scene_free(allocator, ptr);
    capture_wait(stream, side);
    next = scene_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(next == ptr, !used_before);
    capture_end(pool, stream);

    if (used_before) {
        assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_int_equal(xseg_sim_finish(side), XSEG_OK);
        assert_ptr_equal(scene_alloc_in(allocator, pool, 20 * MIB, stream), ptr);
        scene_free(allocator, ptr);
    }
    scene_free(allocator, next);
    capture_close(allocator, stream, side);
}

/* Reuse by the graph's order forgot uses from before the capture, whose work still ran. */
static void reuse_in_a_capture_minds_uses_before_it(void **state)
{
    (void)state;
    expect_reuse_after_join(false);
    expect_reuse_after_join(true);
}

/* Streams of two captures have used a block.  No graph orders both uses, so the block waits until both
 * captures are over, even when a stream has come from one capture into the other, behind all that the
 * other did. */
static void a_block_of_two_captures_waits_for_both(void **state)
{
    struct xseg_allocator *allocator = scene_open("graph_capture_record_stream_reuse:True");
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator), *other = scene_pool(allocator);
    void *ptr = scene_alloc(allocator, 20 * MIB, stream);

    (void)state;
    capture_begin(pool, stream);
    capture_begin(other, side);
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    assert_int_equal(xseg_sim_launch(side, 1000), XSEG_OK);
    scene_free(allocator, ptr);
    capture_end(pool, stream);
    capture_wait(stream, side);
    scene_free(allocator, scene_alloc(allocator, 20 * MIB, stream));
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    capture_wait(side, stream);
    capture_end(other, side);
    assert_ptr_equal(scene_alloc(allocator, 20 * MIB, stream), ptr);
    scene_free(allocator, ptr);
    assert_int_equal(xseg_pool_release(other), XSEG_OK);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    capture_close(allocator, stream, side);
}

/* The first allocation on a stream that joined a capture threw with the reuse option on. */
static void joined_streams_allocate_from_the_graphs_pool(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(reuse_or_not); i++) {
        struct xseg_allocator *allocator = scene_open(reuse_or_not[i]);
        const xseg_stream stream = scene_stream(), side = scene_stream();
        struct xseg_pool *pool = scene_pool(allocator);
        void *waiting = scene_alloc(allocator, 20 * MIB, stream), *ptr, *outside;

        capture_begin(pool, stream);
        capture_wait(side, stream);
        assert_int_equal(xseg_record_stream(allocator, waiting, side), XSEG_OK);
        scene_free(allocator, waiting);
        ptr = scene_alloc(allocator, 20 * MIB, side);
        assert_ptr_equal(scene_block(allocator, ptr).pool, pool);
        assert_ptr_equal(scene_block(allocator, ptr).stream, side);
        capture_wait(stream, side);
        capture_end(pool, stream);
        outside = scene_alloc(allocator, 20 * MIB, side);
        assert_null(scene_block(allocator, outside).pool);
        scene_free(allocator, ptr);
        scene_free(allocator, outside);
        capture_close(allocator, stream, side);
    }
}

/* empty_cache in a capture unmapped what pools had that nobody holds any more. */
static void empty_cache_waits_for_the_end_of_a_capture(void **state)
{
    static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = scene_open(configs[i]);
        const xseg_stream stream = scene_stream();
        struct xseg_pool *old = scene_pool(allocator), *pool = scene_pool(allocator);
        uint64_t calls;

        void *ptr = scene_alloc(allocator, 20 * MIB, NULL);

        scene_free(allocator, scene_alloc_in(allocator, old, 40 * MIB, NULL));
        assert_int_equal(xseg_pool_release(old), XSEG_OK);
        scene_free(allocator, scene_alloc(allocator, 20 * MIB, stream));
        assert_int_equal(xseg_record_stream(allocator, ptr, stream), XSEG_OK);
        scene_free(allocator, ptr);
        capture_begin(pool, stream);
        calls = capture_disturbances();
        scene_empty_cache(allocator);
        assert_int_equal(trim(allocator).kept_capture, 60 * MIB);
        assert_int_equal(trim(allocator).kept_pending, 20 * MIB);
        assert_int_equal(capture_disturbances(), calls);
        assert_int_equal(scene_stats(allocator).num_sync_all_streams, 0);
        assert_int_equal(reserved(allocator), 80 * MIB);
        capture_end(pool, stream);
        scene_empty_cache(allocator);
        assert_int_equal(reserved(allocator), 0);
        capture_close(allocator, stream, NULL);
    }
}

/* What is asked, waited for and freed on one device spoiled a capture on another. */
static void expect_undisturbed(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;
    struct xseg_pool *pool = NULL;
    xseg_stream stream, side, leaving;
    void *ptr, *other;

    settings.devices = 2;
    allocator = scene_open_on(&settings, config);
    side = scene_stream();
    leaving = scene_stream();
    stream = capture_stream(1);
    ptr = scene_alloc(allocator, 40 * MIB, NULL);
    other = scene_alloc(allocator, 20 * MIB, leaving);
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    scene_free(allocator, scene_alloc(allocator, 60 * MIB, side));
    assert_int_equal(xseg_pool_create(allocator, 1, NULL, &pool), XSEG_OK);
    capture_begin(pool, stream);
    capture_launch_on(side, ptr, 40 * MIB);
    capture_launch_on(leaving, other, 20 * MIB);
    scene_free(allocator, ptr);
    scene_free(allocator, other);
    assert_int_equal(xseg_stream_retire(allocator, 0, leaving), XSEG_OK);
    scene_free(allocator, scene_alloc(allocator, 512, NULL));
    assert_int_equal(trim(allocator).kept_busy, 80 * MIB);
    assert_int_equal(scene_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    scene_empty_cache(allocator);
    assert_int_equal(reserved(allocator), 0);
    capture_end(pool, stream);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    capture_stream_destroy(1, stream);
    scene_stream_destroy(leaving);
    scene_stream_destroy(side);
}

static void a_capture_on_another_device_goes_on(void **state)
{
    (void)state;
    expect_undisturbed("expandable_segments:True");
    expect_undisturbed("expandable_segments:False");
}

/* A graph may have work of several devices: each has a pool for it, and is left alone. */
static void a_capture_of_two_devices_is_begun_on_both(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;
    struct xseg_pool *pool, *second = NULL;
    xseg_stream stream, joined;
    void *used = NULL, *ptr = NULL;
    uint64_t calls;

    (void)state;
    settings.devices = 2;
    allocator = scene_open_on(&settings, NULL);
    stream = scene_stream();
    joined = capture_stream(1);
    pool = scene_pool(allocator);
    assert_int_equal(xseg_pool_create(allocator, 1, NULL, &second), XSEG_OK);
    assert_int_equal(xseg_alloc(allocator, 1, 20 * MIB, NULL, &used), XSEG_OK);
    assert_int_equal(xseg_capture_begin(second, joined), XSEG_OK);
    capture_begin(pool, stream);
    capture_wait(joined, stream);
    calls = capture_disturbances();
    assert_int_equal(xseg_record_stream(allocator, used, joined), XSEG_OK);
    scene_free(allocator, used);
    assert_int_equal(xseg_alloc(allocator, 1, 20 * MIB, joined, &ptr), XSEG_OK);
    assert_ptr_equal(scene_block(allocator, ptr).pool, second);
    assert_int_equal(trim(allocator).kept_pending, 20 * MIB);
    assert_int_equal(capture_disturbances(), calls);
    capture_wait(stream, joined);
    capture_end(pool, stream);
    assert_int_equal(xseg_capture_end(second), XSEG_OK);
    scene_free(allocator, ptr);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    capture_stream_destroy(1, joined);
    scene_stream_destroy(stream);
}

/* An event that a capture records never completes, and whatever waited for it never came back (PyTorch
 * #193982). */
static void a_capture_that_was_not_told_holds_nothing_up(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    const xseg_stream side = scene_stream();
    void *ptr = scene_alloc(allocator, 20 * MIB, NULL), *next = scene_alloc(allocator, MIB, NULL);

    (void)state;
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, next, side), XSEG_OK);
    capture_launch_on(side, ptr, 20 * MIB);
    capture_start(side);
    scene_free(allocator, ptr);
    scene_expect_error(xseg_stream_retire(allocator, 0, side), XSEG_ERR_BUSY, "being captured");
    assert_true(capture_stop(side));
    scene_free(allocator, next);

    /* What ran before the capture is waited for all the same. */
    scene_free(allocator, scene_alloc(allocator, 512, NULL));
    scene_free(allocator, scene_alloc(allocator, 512, NULL));
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    scene_free(allocator, scene_alloc(allocator, 512, NULL));
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(active(allocator), 0);
    capture_close(allocator, side, NULL);
}

/* After a capture that was not told, the next thing to happen is a trim that waits, or a close. */
static void a_wait_ends_after_a_capture_that_was_not_told(void **state)
{
    (void)state;
    for (unsigned closes = 0; closes < 2; closes++) {
        struct xseg_allocator *allocator = scene_open(NULL);
        const xseg_stream side = scene_stream();
        void *ptr[4];

        for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
            ptr[i] = scene_alloc(allocator, 20 * MIB, NULL);
            assert_int_equal(xseg_record_stream(allocator, ptr[i], side), XSEG_OK);
            capture_launch_on(side, ptr[i], 20 * MIB);
        }
        scene_free(allocator, ptr[0]);
        capture_start(side);
        for (unsigned i = 1; i < COUNT_OF(ptr); i++)
            scene_free(allocator, ptr[i]);
        assert_true(capture_stop(side));
        if (closes == 0)
            scene_empty_cache(allocator);
        if (closes == 0)
            assert_int_equal(reserved(allocator), 0);
        capture_close(allocator, side, NULL);
    }
}

static bool is_context(void *context, xseg_stream stream)
{
    return stream == context;
}

/* PyTorch marks after the driver's begin, and its routes end before the capture does. */
static void a_marked_device_is_left_alone(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *ptr = scene_alloc(allocator, 20 * MIB, NULL), *inside;
    uint64_t calls;

    (void)state;
    scene_free(allocator, scene_alloc(allocator, 20 * MIB, side));
    assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
    capture_start(stream);
    calls = capture_disturbances();
    assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    scene_free(allocator, ptr);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(xseg_route_begin(pool, is_context, stream), XSEG_OK);
        inside = scene_alloc(allocator, 3 * MIB, stream);
        assert_ptr_equal(scene_block(allocator, inside).pool, pool);
        scene_free(allocator, inside);
        assert_int_equal(xseg_route_end(pool), XSEG_OK);
        inside = scene_alloc(allocator, 512, stream);
        assert_null(scene_block(allocator, inside).pool);
        scene_free(allocator, inside);
        scene_empty_cache(allocator);
        assert_int_equal(trim(allocator).kept_pending, 20 * MIB);
        assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        /* The first of two marks that are taken back changes nothing. */
        assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
        if (i == 0)
            assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    }
    assert_int_equal(capture_disturbances(), calls);
    assert_true(capture_stop(stream));
    assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
    scene_expect_error(xseg_capture_unmark(allocator, 0), XSEG_ERR_ARGUMENT,
                       "no capture is marked on device");
    scene_empty_cache(allocator);
    assert_int_equal(scene_block(allocator, ptr).state, XSEG_BLOCK_UNMAPPED);
    capture_close(allocator, stream, side);
}

/* A graph may write to what a pool that was routed to meanwhile has cached. */
static void a_route_in_a_marked_time_makes_a_pool_the_graphs(void **state)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_result done = {sizeof(done)};

    (void)state;
    for (unsigned when = 0; when < 4; when++) {
        struct xseg_allocator *allocator = scene_open(NULL);
        struct xseg_pool *pool = where.pool = scene_pool(allocator);
        const bool is_inside = when == 1 || when == 2;

        scene_free(allocator, scene_alloc_in(allocator, pool, 20 * MIB, NULL));
        if (when == 1)
            assert_int_equal(xseg_route_begin(pool, NULL, NULL), XSEG_OK);
        assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
        if (when == 2)
            assert_int_equal(xseg_route_begin(pool, NULL, NULL), XSEG_OK);
        assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
        if (when == 3)
            assert_int_equal(xseg_route_begin(pool, NULL, NULL), XSEG_OK);
        if (when != 0)
            assert_int_equal(xseg_route_end(pool), XSEG_OK);
        assert_int_equal(xseg_trim(allocator, &where, NULL, &done), XSEG_OK);
        assert_int_equal(done.kept_pool, is_inside ? 20 * MIB : 0);
        assert_int_equal(done.released, is_inside ? 0 : 20 * MIB);
        scene_close(allocator);
    }
}

/* With the reuse option PyTorch records events when the route ends, as the marks do not say which pool. */
static void the_end_of_a_route_settles_its_blocks(void **state)
{
    struct xseg_allocator *allocator = scene_open("graph_capture_record_stream_reuse:True");
    const xseg_stream stream = scene_stream(), side = scene_stream();
    struct xseg_pool *pool = scene_pool(allocator);
    void *mine, *other = scene_alloc(allocator, 3 * MIB, NULL);

    (void)state;
    assert_int_equal(xseg_route_begin(pool, is_context, stream), XSEG_OK);
    capture_start(stream);
    assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    mine = scene_alloc(allocator, 3 * MIB, stream);
    assert_int_equal(xseg_record_stream(allocator, mine, side), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, other, side), XSEG_OK);
    scene_free(allocator, mine);
    scene_free(allocator, other);
    assert_true(capture_stop(stream));
    const uint64_t records = xseg_sim_calls("cuEventRecord");
    assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
    assert_int_equal(xseg_sim_calls("cuEventRecord"), records);
    assert_int_equal(xseg_route_end(pool), XSEG_OK);
    assert_int_equal(xseg_sim_calls("cuEventRecord"), records + 1);
    scene_free(allocator, scene_alloc(allocator, 512, NULL));
    assert_int_equal(active(allocator), 0);
    capture_close(allocator, stream, side);
}

static void marks_are_refused_in_words(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;

    (void)state;
    settings.devices = 2;
    allocator = scene_open_on(&settings, NULL);
    assert_int_equal(xseg_capture_mark(NULL, 0), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_capture_unmark(NULL, 0), XSEG_ERR_ARGUMENT);
    scene_expect_error(xseg_capture_mark(allocator, 2), XSEG_ERR_ARGUMENT,
                       "device 2 does not exist");
    scene_expect_error(xseg_capture_unmark(allocator, -1), XSEG_ERR_ARGUMENT, "device -1");
    scene_expect_error(xseg_capture_unmark(allocator, 1), XSEG_ERR_ARGUMENT,
                       "no capture is marked on device");
    /* A capture that was begun is no mark. */
    struct xseg_pool *pool = scene_pool(allocator);
    const xseg_stream stream = scene_stream();
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_OK);
    scene_expect_error(xseg_capture_unmark(allocator, 0), XSEG_ERR_ARGUMENT,
                       "no capture is marked on device");
    assert_int_equal(xseg_capture_end(pool), XSEG_OK);
    assert_int_equal(xseg_capture_mark(allocator, 1), XSEG_OK);
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "capture is active on device 1");
    assert_int_equal(xseg_capture_unmark(allocator, 1), XSEG_OK);
    capture_close(allocator, stream, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_asked_in_a_capture),
        cmocka_unit_test(a_released_pool_keeps_its_live_blocks),
        cmocka_unit_test(uses_in_a_capture_end_with_the_block),
        cmocka_unit_test(uses_in_a_capture_end_with_it),
        cmocka_unit_test(a_use_before_a_capture_outlives_it),
        cmocka_unit_test(reuse_in_a_capture_minds_uses_before_it),
        cmocka_unit_test(a_block_of_two_captures_waits_for_both),
        cmocka_unit_test(joined_streams_allocate_from_the_graphs_pool),
        cmocka_unit_test(empty_cache_waits_for_the_end_of_a_capture),
        cmocka_unit_test(a_capture_on_another_device_goes_on),
        cmocka_unit_test(a_capture_of_two_devices_is_begun_on_both),
        cmocka_unit_test(a_capture_that_was_not_told_holds_nothing_up),
        cmocka_unit_test(a_wait_ends_after_a_capture_that_was_not_told),
        cmocka_unit_test(a_marked_device_is_left_alone),
        cmocka_unit_test(a_route_in_a_marked_time_makes_a_pool_the_graphs),
        cmocka_unit_test(the_end_of_a_route_settles_its_blocks),
        cmocka_unit_test(marks_are_refused_in_words),
    };

    return cmocka_run_group_tests_name("capture", tests, NULL, NULL);
}
