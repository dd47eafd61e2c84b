/* SPDX-License-Identifier: MIT */
/*
 * The ladder, rung by rung: a request that exactly this rung serves, and what the rungs behind it
 * would have done, which must not have happened.
 */
#include "tests/support/env.h"

#include <string.h>

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
TEST(finished_events_are_looked_at_again)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 100 * MIB, NULL), *again;

    assert_ok(xseg_record_stream(allocator, ptr, stream));
    assert_ok(xseg_sim_launch(stream, 5000));
    assert_ok(xseg_sim_set_external_memory(0, 40 * MIB));
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    again = env_alloc(allocator, 100 * MIB, NULL);
    assert_ptr_equal(again, ptr);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    /* Three pages that went again, and one that was refused: nobody tried anything else. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 4);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_free(allocator, again);
    assert_ok(xseg_sim_set_external_memory(0, 0));
    env_close(allocator, stream);
}

static bool spare(void *context, const struct xseg_oom_info *shortage)
{
    void **block = context;

    assert_int_equal(shortage->attempt, 0);
    env_free(block[0], block[1]);
    return true;
}

/* Ask: only an observer can free what the request needs. */
TEST(what_an_observer_spares_is_used)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    struct xseg_observer observer = {sizeof(observer), .on_low_memory = spare};
    void *block[2] = {allocator, env_alloc(allocator, 200 * MIB, NULL)}, *ptr;
    uint64_t id = 0;

    observer.context = block;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
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
TEST(pages_of_another_segment_move)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr;
    void *live = env_alloc(allocator, 120 * MIB, NULL);

    env_free(allocator, idle);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 80 * MIB, NULL);
    assert_ptr_not_equal(env_block(allocator, ptr).segment_base,
                         env_block(allocator, live).segment_base);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    /* Of the four pages one was free; the other three moved. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 1);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_int_equal(env_block(allocator, live).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr, live);
    env_close(allocator);
}

/* The arena's own idle pages go before those of another stream. */
TEST(own_pages_go_first)
{
    struct xseg_allocator *allocator = env_open_mib(240, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *other = env_alloc(allocator, 60 * MIB, stream);
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr;
    void *live = env_alloc(allocator, 120 * MIB, NULL);

    env_free(allocator, other, idle);
    ptr = env_alloc(allocator, 50 * MIB, NULL);
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 100 * MIB, NULL);
    /* Of the 100 MiB 60 were the arena's own. */
    assert_int_equal(env_block(allocator, other).segment_mapped, 20 * MIB);
    env_free(allocator, ptr, live);
    env_close(allocator, stream);
}

/* Idle pages of another stream: moved, not released and made anew; no more than is needed. */
TEST(pages_of_another_stream_move)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, stream);

    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_int_equal(env_block(allocator, ptr).segment_mapped, 60 * MIB);
    env_free(allocator, ptr);
    env_close(allocator, stream);
}

/* Once the device is full, nothing is created or released that a steal can bring: streams in turn. */
TEST(a_full_device_creates_nothing)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream[] = {NULL, env_stream(), env_stream()};

    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    const struct traces before = look(allocator);
    for (unsigned i = 1; i < 30; i++) {
        void *first = env_alloc(allocator, (1 + i % 7) * 20 * MIB, stream[i % 3]);
        void *second = env_alloc(allocator, 60 * MIB, stream[(i + 1) % 3]);

        assert_int_equal(env_reserved(allocator), 200 * MIB);
        env_free(allocator, first, second);
    }
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(xseg_sim_calls("cuMemUnmap") > before.unmaps);
    env_close(allocator, stream[1], stream[2]);
}

/* Idle pages move from a private pool that nobody holds, and from a small pool to a large one. */
TEST(pages_of_other_pools_move)
{
    struct xseg_allocator *allocator = env_open_mib(40, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    void *small[20], *ptr;

    for (unsigned i = 0; i < COUNT_OF(small); i++)
        small[i] = env_alloc_in(allocator, pool, MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        env_free(allocator, small[i]);
    assert_ok(xseg_pool_release(pool));
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 30 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(env_reserved(allocator) <= 40 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* Waiting for the stream of idle pages: they are all on one that works. */
TEST(a_busy_stream_is_waited_for)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, stream);

    assert_ok(xseg_sim_launch_on(stream, 1000000, (uintptr_t)ptr, 200 * MIB));
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize") - before.stream_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    env_free(allocator, ptr);
    env_close(allocator, stream);
}

/* Lend: all that is free is cached in a held pool that serves others when memory is short. */
TEST(a_pool_lends)
{
    struct xseg_allocator *allocator = env_open_mib(100, "expandable_segments:True");
    struct xseg_pool_options options = {sizeof(options), .use_on_oom = true};
    struct xseg_pool *pool = NULL;
    void *inside = NULL, *ptr;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    inside = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    env_free(allocator, inside);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(ptr, inside);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* Pending: all that is free waits for another stream; waiting serves the request from the cache. */
TEST(pending_frees_are_waited_for)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, NULL), *again;

    assert_ok(xseg_record_stream(allocator, ptr, stream));
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)ptr, 200 * MIB));
    env_free(allocator, ptr);
    const struct traces before = look(allocator);
    again = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(again, ptr);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize") - before.event_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, again);
    env_close(allocator, stream);
}

/* Oversize: one classic segment of max_split_size_mb or more makes room; the other stays. */
TEST(an_oversize_segment_goes)
{
    struct xseg_allocator *allocator =
        env_open_mib(200, "expandable_segments:False,max_split_size_mb:40");
    void *large = env_alloc(allocator, 110 * MIB, NULL), *ptr;
    void *small = env_alloc(allocator, 80 * MIB, NULL);

    env_free(allocator, large, small);
    const struct traces before = look(allocator);
    /* Both cached segments are too large to be used as they are. */
    ptr = env_alloc(allocator, 50 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemFree") - before.frees, 1);
    assert_int_equal(env_block(allocator, large).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_reserved(allocator), 160 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* Flush: classic segments of other sizes go all together, and that is a retry, as PyTorch counts. */
TEST(the_whole_cache_goes)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:False");
    void *ptr[4];

    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, 50 * MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        env_free(allocator, ptr[i]);
    ptr[0] = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 1);
    assert_int_equal(xseg_sim_calls("cuMemFree"), 4);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    env_free(allocator, ptr[0]);
    env_close(allocator);
}

/* End a capture that allocated a block, and close. */
static void end_capture(struct xseg_allocator *allocator, struct xseg_pool *pool,
                        xseg_stream stream, void *ptr)
{
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator, stream);
}

/* During a capture: small pages where no full one fits, and nothing is taken or waited for. */
TEST(a_capture_gets_what_the_device_has)
{
    struct xseg_allocator *allocator = env_open_mib(70, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 40 * MIB, NULL), *ptr, *none = NULL;

    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    const struct traces before = look(allocator);
    ptr = env_alloc(allocator, 25 * MIB, stream);
    assert_int_equal(env_reserved(allocator), 66 * MIB);
    assert_int_equal(xseg_alloc(allocator, 0, 30 * MIB, stream, &none), XSEG_ERR_NO_MEMORY);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    assert_int_equal(env_block(allocator, idle).state, XSEG_BLOCK_CACHED);
    end_capture(allocator, pool, stream, ptr);
}

/* Where memory has been short, what is idle goes before a capture, which could not take it. */
TEST(a_capture_finds_room)
{
    struct xseg_allocator *allocator = env_open_mib(100, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr, *none = NULL;

    /* While memory lasts, nothing goes, and nothing is waited for. */
    env_free(allocator, idle);
    const struct traces before = look(allocator);
    env_capture_begin(pool, stream);
    expect_no_wait(allocator, &before);
    env_capture_end(pool, stream);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    idle = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_alloc(allocator, 0, 70 * MIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    assert_int_equal(env_reserved(allocator), 0);
    ptr = env_alloc(allocator, 90 * MIB, stream);
    end_capture(allocator, pool, stream, ptr);
}

/* What is not idle yet is waited for before a capture, which can wait for nothing: cached blocks of busy
 * streams, and blocks that other streams use. */
TEST(a_capture_waits_for_room)
{
    struct xseg_allocator *allocator = env_open_mib(100, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream busy = env_stream(), stream = env_stream();
    void *cached = env_alloc(allocator, 40 * MIB, busy), *ptr, *none = NULL;
    void *pending = env_alloc(allocator, 40 * MIB, NULL);

    assert_int_equal(xseg_alloc(allocator, 0, 70 * MIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_record_stream(allocator, pending, busy));
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)cached, 40 * MIB));
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)pending, 40 * MIB));
    env_free(allocator, cached, pending);
    env_capture_begin(pool, stream);
    assert_int_equal(env_reserved(allocator), 0);
    ptr = env_alloc(allocator, 90 * MIB, stream);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator, stream, busy);
}

/* The example E11: the increment in pages is what a limit counts. */
TEST(a_limit_counts_the_pages)
{
    struct xseg_allocator *allocator =
        env_open_mib(1000, "expandable_segments:True,per_process_memory_fraction:0.12");
    void *first = env_alloc(allocator, 85 * MIB, NULL), *second, *none = NULL;

    /* 100 MiB are mapped, of which 15 are the free tail; PyTorch refuses 100 + 30 > 120. */
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, second, first);
    env_empty_cache(allocator);
    /* 130 MiB allowed, 100 mapped, no tail: PyTorch grants 30 and maps 40.  Two pages are refused
     * here; small ones do for 30 MiB, and for no more. */
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.13"));
    first = env_alloc(allocator, 100 * MIB, NULL);
    env_expect_error(xseg_alloc(allocator, 0, 31 * MIB, NULL, &none), XSEG_ERR_LIMIT,
                     "per_process_memory_fraction");
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 130 * MIB);
    env_free(allocator, second, first);
    env_close(allocator);
}
