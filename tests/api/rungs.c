/* SPDX-License-Identifier: MIT */
/*
 * The ladder, rung by rung: a request that exactly this rung serves, and what the rungs behind it
 * would have done, which must not have happened.
 */
#include "tests/support/env.h"

#include <string.h>

static struct xseg_allocator *open_on(size_t mib, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = mib * MIB;
    return env_open_on(&settings, config);
}

static uint64_t reserved(struct xseg_allocator *allocator)
{
    return env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
}

/* What the rungs do to the driver and to the counts. */
struct traces {
    uint64_t creates, releases, unmaps, frees, event_waits, stream_waits, retries, syncs;
};

static struct traces look(struct xseg_allocator *allocator)
{
    const struct xseg_statistics stats = env_stats(allocator);

    return (struct traces){
        .creates = xseg_sim_calls("cuMemCreate"),
        .releases = xseg_sim_calls("cuMemRelease"),
        .unmaps = xseg_sim_calls("cuMemUnmap"),
        .frees = xseg_sim_calls("cuMemFree"),
        .event_waits = xseg_sim_calls("cuEventSynchronize"),
        .stream_waits = xseg_sim_calls("cuStreamSynchronize"),
        .retries = stats.num_alloc_retries,
        .syncs = stats.num_sync_all_streams,
    };
}

static void expect_no_flush(struct xseg_allocator *allocator, const struct traces *before)
{
    const struct traces now = look(allocator);

    assert_int_equal(now.retries, before->retries);
    assert_int_equal(now.syncs, before->syncs);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
}

static void expect_no_wait(struct xseg_allocator *allocator, const struct traces *before)
{
    expect_no_flush(allocator, before);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), before->event_waits);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), before->stream_waits);
}

/*
 * Finished: an event that completes between the look at the start of the allocation and the
 * refusal.  The growth makes pages, which takes time, until another process's memory stops it.
 */
static void finished_events_are_looked_at_again(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 100 * MIB, NULL), *again;

    (void)state;
    assert_int_equal(xseg_record_stream(allocator, ptr, stream), XSEG_OK);
    assert_int_equal(xseg_sim_launch(stream, 5000), XSEG_OK);
    assert_int_equal(xseg_sim_set_external_memory(0, 40 * MIB), XSEG_OK);
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    again = env_alloc(allocator, 100 * MIB, NULL);
    assert_ptr_equal(again, ptr);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    /* Three pages that went again, and one that was refused: nobody tried anything else. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 4);
    assert_int_equal(reserved(allocator), 100 * MIB);
    env_free(allocator, again);
    assert_int_equal(xseg_sim_set_external_memory(0, 0), XSEG_OK);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

static bool spare(void *context, const struct xseg_oom_info *shortage)
{
    void **block = context;

    assert_int_equal(shortage->attempt, 0);
    env_free(block[0], block[1]);
    return true;
}

/* Ask: only an observer can free what the request needs. */
static void what_an_observer_spares_is_used(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    struct xseg_observer observer = {sizeof(observer)};
    void *block[2] = {allocator, env_alloc(allocator, 200 * MIB, NULL)}, *ptr;
    uint64_t id = 0;

    (void)state;
    observer.context = block;
    observer.on_low_memory = spare;
    assert_int_equal(xseg_observer_add(allocator, &observer, &id), XSEG_OK);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(ptr, block[1]);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, ptr);
    env_close(allocator);
}

/*
 * Idle pages of the same pool's other segments.  The range of 240 MiB has 60 left at its end,
 * so the request gets another one; its pages come from the idle 60 MiB at the start of the first.
 */
static void pages_of_another_segment_move(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr;
    void *live = env_alloc(allocator, 120 * MIB, NULL);

    (void)state;
    env_free(allocator, idle);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 80 * MIB, NULL);
    assert_ptr_not_equal(env_block(allocator, ptr).segment_base,
                         env_block(allocator, live).segment_base);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    /* Of the four pages one was free; the other three moved. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 1);
    assert_int_equal(reserved(allocator), 200 * MIB);
    assert_int_equal(env_block(allocator, live).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr);
    env_free(allocator, live);
    env_close(allocator);
}

/* The arena's own idle pages go before those of another stream. */
static void own_pages_go_first(void **state)
{
    struct xseg_allocator *allocator = open_on(240, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *other = env_alloc(allocator, 60 * MIB, stream);
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr;
    void *live = env_alloc(allocator, 120 * MIB, NULL);

    (void)state;
    env_free(allocator, other);
    env_free(allocator, idle);
    ptr = env_alloc(allocator, 50 * MIB, NULL);
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 100 * MIB, NULL);
    /* Of the 100 MiB 60 were the arena's own. */
    assert_int_equal(env_block(allocator, other).segment_mapped, 20 * MIB);
    env_free(allocator, ptr);
    env_free(allocator, live);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* Idle pages of another stream: moved, not released and made anew; no more than is needed. */
static void pages_of_another_stream_move(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, stream);

    (void)state;
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_int_equal(env_block(allocator, ptr).segment_mapped, 60 * MIB);
    env_free(allocator, ptr);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* Once the device is full, nothing is created or released that a steal can bring: streams in turn. */
static void a_full_device_creates_nothing(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    const xseg_stream stream[] = {NULL, env_stream(), env_stream()};

    (void)state;
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    const struct traces before = look(allocator);
    for (unsigned i = 1; i < 30; i++) {
        void *first = env_alloc(allocator, (1 + i % 7) * 20 * MIB, stream[i % 3]);
        void *second = env_alloc(allocator, 60 * MIB, stream[(i + 1) % 3]);

        assert_int_equal(reserved(allocator), 200 * MIB);
        env_free(allocator, first);
        env_free(allocator, second);
    }
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(xseg_sim_calls("cuMemUnmap") > before.unmaps);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream[1]);
    env_stream_destroy(stream[2]);
}

/* Idle pages move from a private pool that nobody holds, and from a small pool to a large one. */
static void pages_of_other_pools_move(void **state)
{
    struct xseg_allocator *allocator = open_on(40, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    void *small[20], *ptr;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        small[i] = env_alloc_in(allocator, pool, MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        env_free(allocator, small[i]);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 30 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(reserved(allocator) <= 40 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* Waiting for the stream of idle pages: they are all on one that works. */
static void a_busy_stream_is_waited_for(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, stream);

    (void)state;
    assert_int_equal(xseg_sim_launch_on(stream, 1000000, (uintptr_t)ptr, 200 * MIB), XSEG_OK);
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize") - before.stream_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    env_free(allocator, ptr);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* Lend: all that is free is cached in a held pool that serves others when memory is short. */
static void a_pool_lends(void **state)
{
    struct xseg_allocator *allocator = open_on(100, "expandable_segments:True");
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    void *inside = NULL, *ptr;

    (void)state;
    options.use_on_oom = true;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    inside = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    env_free(allocator, inside);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(ptr, inside);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, ptr);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    env_close(allocator);
}

/* Pending: all that is free waits for another stream; waiting serves the request from the cache. */
static void pending_frees_are_waited_for(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, NULL), *again;

    (void)state;
    assert_int_equal(xseg_record_stream(allocator, ptr, stream), XSEG_OK);
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)ptr, 200 * MIB), XSEG_OK);
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    again = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(again, ptr);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize") - before.event_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, again);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* Oversize: one classic segment of max_split_size_mb or more makes room; the other stays. */
static void an_oversize_segment_goes(void **state)
{
    struct xseg_allocator *allocator =
        open_on(200, "expandable_segments:False,max_split_size_mb:40");
    void *large = env_alloc(allocator, 110 * MIB, NULL), *ptr;
    void *small = env_alloc(allocator, 80 * MIB, NULL);

    (void)state;
    env_free(allocator, large);
    env_free(allocator, small);
    const struct traces before = look(allocator);
    /* Both cached segments are too large to be used as they are. */
    ptr = env_alloc(allocator, 50 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemFree") - before.frees, 1);
    assert_int_equal(env_block(allocator, large).state, XSEG_BLOCK_CACHED);
    assert_int_equal(reserved(allocator), 160 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* Flush: classic segments of other sizes go all together, and that is a retry, as PyTorch counts. */
static void the_whole_cache_goes(void **state)
{
    struct xseg_allocator *allocator = open_on(200, "expandable_segments:False");
    void *ptr[4];

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, 50 * MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        env_free(allocator, ptr[i]);
    ptr[0] = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 1);
    assert_int_equal(xseg_sim_calls("cuMemFree"), 4);
    assert_int_equal(reserved(allocator), 120 * MIB);
    env_free(allocator, ptr[0]);
    env_close(allocator);
}

/* A capture ends that allocated a block, and with it the scene. */
static void end_capture(struct xseg_allocator *allocator, struct xseg_pool *pool,
                        xseg_stream stream, void *ptr)
{
    env_graph_destroy(env_capture_end_graph(pool, stream));
    env_free(allocator, ptr);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* During a capture: small pages where no full one fits, and nothing is taken or waited for. */
static void a_capture_gets_what_the_device_has(void **state)
{
    struct xseg_allocator *allocator = open_on(70, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 40 * MIB, NULL), *ptr, *none = NULL;

    (void)state;
    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 25 * MIB, stream);
    assert_int_equal(reserved(allocator), 66 * MIB);
    assert_int_equal(xseg_alloc(allocator, 0, 30 * MIB, stream, &none), XSEG_ERR_NO_MEMORY);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    assert_int_equal(env_block(allocator, idle).state, XSEG_BLOCK_CACHED);
    end_capture(allocator, pool, stream, ptr);
}

/* Where memory has been short, what is idle goes before a capture, which could not take it. */
static void a_capture_finds_room(void **state)
{
    struct xseg_allocator *allocator = open_on(100, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr, *none = NULL;

    (void)state;
    /* While memory lasts, nothing goes, and nothing is waited for. */
    env_free(allocator, idle);
    const struct traces before = look(allocator);
    env_capture_begin(pool, stream);
    expect_no_wait(allocator, &before);
    env_graph_destroy(env_capture_end_graph(pool, stream));
    assert_int_equal(reserved(allocator), 60 * MIB);
    idle = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_alloc(allocator, 0, 70 * MIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    assert_int_equal(reserved(allocator), 0);
    ptr = env_alloc(allocator, 90 * MIB, stream);
    end_capture(allocator, pool, stream, ptr);
}

/* What is not idle yet is waited for before a capture, which can wait for nothing: cached blocks of busy
 * streams, and blocks that other streams use. */
static void a_capture_waits_for_room(void **state)
{
    struct xseg_allocator *allocator = open_on(100, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream busy = env_stream(), stream = env_stream();
    void *cached = env_alloc(allocator, 40 * MIB, busy), *ptr, *none = NULL;
    void *pending = env_alloc(allocator, 40 * MIB, NULL);

    (void)state;
    assert_int_equal(xseg_alloc(allocator, 0, 70 * MIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    assert_int_equal(xseg_record_stream(allocator, pending, busy), XSEG_OK);
    assert_int_equal(xseg_sim_launch_on(busy, 1000000, (uintptr_t)cached, 40 * MIB), XSEG_OK);
    assert_int_equal(xseg_sim_launch_on(busy, 1000000, (uintptr_t)pending, 40 * MIB), XSEG_OK);
    env_free(allocator, cached);
    env_free(allocator, pending);
    env_capture_begin(pool, stream);
    assert_int_equal(reserved(allocator), 0);
    ptr = env_alloc(allocator, 90 * MIB, stream);
    end_capture(allocator, pool, stream, ptr);
    env_stream_destroy(busy);
}

/* The example E11: the increment in pages is what a limit counts. */
static void a_limit_counts_the_pages(void **state)
{
    struct xseg_allocator *allocator =
        open_on(1000, "expandable_segments:True,per_process_memory_fraction:0.12");
    void *first = env_alloc(allocator, 85 * MIB, NULL), *second, *none = NULL;

    (void)state;
    /* 100 MiB are mapped, of which 15 are the free tail; PyTorch refuses 100 + 30 > 120. */
    assert_int_equal(reserved(allocator), 100 * MIB);
    second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(reserved(allocator), 120 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, second);
    env_free(allocator, first);
    env_empty_cache(allocator);
    /* 130 MiB allowed, 100 mapped, no tail: PyTorch grants 30 and maps 40.  Two pages are refused
     * here; small ones do for 30 MiB, and for no more. */
    assert_int_equal(xseg_config_set(allocator, "per_process_memory_fraction:0.13"), XSEG_OK);
    first = env_alloc(allocator, 100 * MIB, NULL);
    env_expect_error(xseg_alloc(allocator, 0, 31 * MIB, NULL, &none), XSEG_ERR_LIMIT,
                     "per_process_memory_fraction");
    assert_int_equal(reserved(allocator), 100 * MIB);
    second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(reserved(allocator), 130 * MIB);
    env_free(allocator, second);
    env_free(allocator, first);
    env_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finished_events_are_looked_at_again),
        cmocka_unit_test(what_an_observer_spares_is_used),
        cmocka_unit_test(pages_of_another_segment_move),
        cmocka_unit_test(own_pages_go_first),
        cmocka_unit_test(pages_of_another_stream_move),
        cmocka_unit_test(a_full_device_creates_nothing),
        cmocka_unit_test(pages_of_other_pools_move),
        cmocka_unit_test(a_busy_stream_is_waited_for),
        cmocka_unit_test(a_pool_lends),
        cmocka_unit_test(pending_frees_are_waited_for),
        cmocka_unit_test(an_oversize_segment_goes),
        cmocka_unit_test(the_whole_cache_goes),
        cmocka_unit_test(a_capture_gets_what_the_device_has),
        cmocka_unit_test(a_capture_finds_room),
        cmocka_unit_test(a_capture_waits_for_room),
        cmocka_unit_test(a_limit_counts_the_pages),
    };

    return cmocka_run_group_tests_name("rungs", tests, NULL, NULL);
}
