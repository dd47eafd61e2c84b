/* SPDX-License-Identifier: MIT */
/* Reported bugs of other allocators.  The name of a test begins with the project and the number of the issue. */
#include "tests/support/env.h"

/* Entry points of the driver, by their plain C types. */
int cuCtxGetCurrent(void **context);
int cuStreamQuery(xseg_stream stream);

static uint64_t active_blocks(struct xseg_allocator *allocator)
{
    return env_stats(allocator).active[XSEG_STAT_ALL].current;
}

/* empty_cache waited for stream 0 of the current device, which was another device, and unmapped memory in use. */
TEST_ON(pytorch_196258_another_device_is_current,
        env_open_sim("expandable_segments:True", .devices = 2))
{
    void *before = NULL, *after = NULL;

    void *ptr = env_alloc(allocator, 40 * MIB, NULL);
    env_launch_at(NULL, ptr, 40 * MIB);
    env_free(allocator, ptr);

    env_context_push(1);
    assert_int_equal(cuCtxGetCurrent(&before), 0);
    assert_int_equal(env_trim(allocator).kept_busy, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    assert_int_equal(cuCtxGetCurrent(&after), 0);
    assert_ptr_equal(before, after);
    env_context_pop(1);
}

/* Failures of a capture. */
enum failure { NEVER_BEGAN, INVALIDATED, ABANDONED, FAILURES };

static void fail_capture(struct xseg_allocator *allocator, xseg_stream stream, enum failure failure)
{
    struct xseg_pool *pool = env_pool(allocator);

    assert_ok(xseg_capture_begin(pool, stream));
    if (failure != NEVER_BEGAN)
        env_driver_capture_begin(stream);
    void *first = env_alloc(allocator, 30 * MIB, stream);
    if (failure == INVALIDATED) {
        env_context_push(0);
        assert_int_not_equal(cuStreamQuery(stream), 0);
        env_context_pop(0);
    }
    void *second = env_alloc(allocator, 1000, stream);
    if (failure != NEVER_BEGAN) {
        assert_ptr_equal(env_block(allocator, first).pool, pool);
        assert_ptr_equal(env_block(allocator, second).pool, pool);
    }
    /* As while an exception unwinds in PyTorch, the capture of the pool ends before that of the driver. */
    assert_ok(xseg_capture_end(pool));
    if (failure != NEVER_BEGAN)
        assert_int_equal(env_driver_capture_end(stream), failure == ABANDONED);
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, first, second);
}

/* The memory of the pool of a failed capture stayed reserved until the process exited. */
TEST_EACH(pytorch_190308_failed_capture_retains_no_memory, env_open(config), ENV_KINDS)
{
    const xseg_stream stream = env_stream();

    for (unsigned failure = 0; failure < FAILURES; failure++) {
        fail_capture(allocator, stream, (enum failure)failure);
        assert_int_equal(env_reserved_without_cache(allocator), 0);
        assert_int_equal(xseg_sim_used(0), 0);
    }
}

/* Memory was unmapped while kernels of a forward pass used it. */
TEST_ON(vllm_45615_memory_of_a_queued_kernel_stays_mapped, env_open("expandable_segments:True"))
{
    const xseg_stream stream = env_stream(), side = env_stream();
    void *stream_block = env_alloc(allocator, 60 * MIB, stream);
    void *shared_block = env_alloc(allocator, 40 * MIB, NULL);

    env_launch_at(stream, stream_block, 60 * MIB);
    env_launch_at(side, shared_block, 40 * MIB);
    assert_ok(xseg_record_stream(allocator, shared_block, side));
    env_free(allocator, stream_block, shared_block);
    struct xseg_trim_result result = env_trim(allocator);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_busy, 60 * MIB);
    assert_int_equal(result.kept_pending, 40 * MIB);
    assert_int_equal(xseg_sim_used(0), 100 * MIB);

    /* A trim releases memory whose work has completed; empty_cache waits for all work. */
    assert_ok(xseg_sim_finish(side));
    assert_int_equal(env_trim(allocator).released, 40 * MIB);
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* A failed map left entries without pages in the segment; in this test calls fail during a capture. */
TEST_IN_POOL(pytorch_188008_failed_map_in_a_capture_is_rolled_back,
             env_open("expandable_segments:True"))
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    const xseg_stream stream = env_stream();
    void *block[COUNT_OF(calls)][4] = {{NULL}};

    env_capture_begin(pool, stream);
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        /* A growth of 60 MiB creates and maps three pages, with one set-access. */
        for (unsigned nth = 1; nth <= (i == 2 ? 1 : 3); nth++) {
            const uint64_t before = env_reserved(allocator);
            void *ptr = NULL;

            assert_ok(xseg_sim_fail(calls[i], nth, 2));
            if (xseg_alloc(allocator, 0, 60 * MIB, stream, &ptr) != XSEG_OK) {
                assert_null(ptr);
                assert_int_equal(env_reserved(allocator), before);
                assert_int_equal(xseg_sim_used(0), before);
                ptr = env_alloc(allocator, 60 * MIB, stream);
            }
            assert_true(xseg_sim_failed());
            assert_int_equal(env_reserved(allocator), before + 60 * MIB);
            block[i][nth] = ptr;
        }
    env_capture_end(pool, stream);
    for (size_t i = 0; i < COUNT_OF(calls) * 4; i++) {
        void *ptr = block[i / 4][i % 4];

        if (ptr != NULL)
            env_launch_at(stream, ptr, 60 * MIB);
        env_free(allocator, ptr);
    }
}

/* On a full device the retry freed memory, which invalidated the capture; the request must fail with an out-of-memory error. */
static void expect_oom_in_a_capture(const char *config)
{
    struct xseg_allocator *allocator = env_open_mib(200, config);
    xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool(allocator);
    void *cached = env_alloc(allocator, 80 * MIB, NULL);
    void *pending = env_alloc(allocator, 20 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, pending, stream));
    env_free(allocator, cached, pending);
    env_capture_begin(pool, stream);
    uint64_t unsafe_calls = env_unsafe_calls();
    assert_error(env_try_alloc(allocator, 140 * MIB, stream), NO_MEMORY,
                 "100.00 MiB of 200.00 MiB free");
    void *ptr = env_alloc(allocator, 60 * MIB, stream);
    assert_int_equal(env_unsafe_calls(), unsafe_calls);
    assert_int_equal(env_reserved(allocator), 160 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_int_equal(active_blocks(allocator), 2);
    env_capture_end(pool, stream);

    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, env_alloc(allocator, 140 * MIB, stream));
    env_close(allocator, stream);
}

TEST(pytorch_159594_full_device_keeps_the_capture_valid)
{
    expect_oom_in_a_capture("expandable_segments:True");
    expect_oom_in_a_capture("expandable_segments:False");
    expect_oom_in_a_capture("expandable_segments:False,max_split_size_mb:64");
}

/* Routes were treated as captures, so freed memory was not reused. */
TEST_IN_POOL(pytorch_175015_a_route_is_no_capture, env_open(NULL))
{
    const xseg_stream side = env_stream();
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_free(allocator, ptr);
    assert_int_equal(active_blocks(allocator), 1);
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    assert_int_equal(active_blocks(allocator), 0);
    assert_int_equal(env_trim(allocator).released, 20 * MIB);
    assert_ok(xseg_route_end(pool));
}

/* After 300 GiB were allocated and freed on a device of 80 GiB, with about 50 GiB in use, a request of 132 MiB failed. */
static void run_churn(const char *config)
{
    struct xseg_allocator *allocator = env_open(config);
    xseg_stream streams[4] = {NULL};
    void *block[400] = {NULL};
    size_t bytes[400] = {0};
    uint64_t random = 1, in_use = 0, requested = 0;

    for (size_t i = 1; i < COUNT_OF(streams); i++)
        streams[i] = env_stream();
    while (requested < 300 * GIB) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t slot = (size_t)(random >> 33) % COUNT_OF(block);
        const size_t request = MIB + (size_t)(random >> 20) % (256 * MIB);

        env_free(allocator, block[slot]);
        in_use -= bytes[slot];
        block[slot] = NULL;
        bytes[slot] = 0;
        if (in_use + request > 53 * GIB)
            continue;
        block[slot] = env_alloc(allocator, request, streams[(random >> 60) % COUNT_OF(streams)]);
        bytes[slot] = request;
        in_use += request;
        requested += request;
    }
    assert_true(in_use > 40 * GIB);
    for (size_t i = 0; i < COUNT_OF(streams); i++)
        env_free(allocator, env_alloc(allocator, 132 * MIB, streams[i]));
    env_free_all(allocator, block, sizeof(block));
    assert_ok(xseg_close(allocator));
    for (size_t i = 1; i < COUNT_OF(streams); i++)
        env_stream_destroy(streams[i]);
}

TEST(rmm_1245_churn_leaves_room_for_132_mib)
{
    run_churn("expandable_segments:True");
    run_churn("expandable_segments:False");
}
