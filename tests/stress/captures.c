/* SPDX-License-Identifier: MIT */
/* Two threads, each with its own streams and pool, allocate, use and free each other's blocks, capture graphs into their pools
 * and replace streams.  The strict simulator ends the process if memory is unmapped under queued work. */
#include "tests/stress/stress.h"
#include "tests/support/driver.h"

#define THREADS 2u
#define STREAMS 2u
#define SLOTS   48u

/* Blocks that either thread may free, after it has claimed one by an exchange. */
struct shared {
    struct xseg_allocator *allocator;
    _Atomic(void *) slot[SLOTS];
    atomic_uint_fast64_t allocated, failed, captures, invalidated;
    unsigned rounds;
};

struct worker {
    struct shared *shared;
    struct xseg_pool *pool;
    xseg_stream stream[STREAMS];
    uint64_t random;
};

/* --- Blocks. --- */

static void *alloc_on(struct worker *worker, xseg_stream stream, struct xseg_pool *pool,
                      size_t *bytes)
{
    void *ptr = NULL;

    *bytes = 1 + (below(worker, 3) != 0 ? below(worker, 256 * KIB) : below(worker, 12 * MIB));
    const struct xseg_request request = {sizeof(request), .bytes = *bytes, .stream = stream,
                                         .pool = pool};
    const xseg_status status = xseg_alloc_with(worker->shared->allocator, &request, &ptr);
    if (status == XSEG_ERR_NO_MEMORY) {
        atomic_fetch_add(&worker->shared->failed, 1);
        return NULL;
    }
    CHECK_OK(status);
    block_sign(ptr, *bytes);
    atomic_fetch_add(&worker->shared->allocated, 1);
    return ptr;
}

static void free_block(struct worker *worker, void *ptr)
{
    block_check(ptr);
    CHECK_OK(xseg_free(worker->shared->allocator, ptr));
}

static _Atomic(void *) *any_slot(struct worker *worker)
{
    return &worker->shared->slot[below(worker, SLOTS)];
}

/* Store a block in a slot, for either thread, and free the previous block of the slot. */
static void put_block(struct worker *worker, void *ptr)
{
    free_block(worker, atomic_exchange(any_slot(worker), ptr));
}

/* Allocate a block, queue work on it on some streams of this thread, and store it for either thread. */
static void use_block(struct worker *worker)
{
    const unsigned stream_index = (unsigned)below(worker, STREAMS);
    size_t bytes = 0;
    void *ptr = alloc_on(worker, worker->stream[stream_index],
                         below(worker, 4) == 0 ? worker->pool : NULL, &bytes);

    for (unsigned i = 0; ptr != NULL && i < STREAMS; i++) {
        if (below(worker, 2) == 0)
            continue;
        CHECK_OK(xseg_record_stream(worker->shared->allocator, ptr, worker->stream[i]));
        CHECK(xseg_sim_launch_on(worker->stream[i], below(worker, 8) == 0 ? UINT64_MAX : 20000,
                                 (uint64_t)(uintptr_t)ptr, bytes) == XSEG_OK);
    }
    put_block(worker, ptr);
}

static void free_after_event(struct worker *worker)
{
    void *ptr = atomic_exchange(any_slot(worker), NULL);
    const xseg_event event = driver_event(0, worker->stream[below(worker, STREAMS)]);

    block_check(ptr);
    const xseg_status status = xseg_free_after(worker->shared->allocator, ptr, &event, 1);
    driver_event_destroy(event);
    /* The call is rejected while the other thread captures. */
    if (status == XSEG_ERR_BUSY)
        free_block(worker, ptr);
    else
        CHECK_OK(status);
}

/* --- Captures. --- */

/* Capture work on both streams, each of which uses blocks of the other stream. */
static void fill_capture(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->shared->allocator;

    for (unsigned i = 0; i < 12; i++) {
        const xseg_stream stream = worker->stream[i % STREAMS];
        const xseg_stream next = worker->stream[(i + 1) % STREAMS];
        struct xseg_block_info info = {sizeof(info)};
        size_t bytes = 0;
        void *ptr = alloc_on(worker, stream, NULL, &bytes);

        CHECK_OK(xseg_sim_launch(stream, 1000));
        driver_wait(0, next, stream);
        if (ptr == NULL)
            continue;
        CHECK_OK(xseg_block_query(allocator, ptr, &info));
        CHECK(info.pool == worker->pool && info.stream == stream);
        CHECK_OK(xseg_record_stream(allocator, ptr, next));
        CHECK_OK(xseg_sim_launch(next, 1000));
        if (i % 3 == 0)
            put_block(worker, ptr);
        else
            free_block(worker, ptr);
    }
}

static void capture(struct worker *worker)
{
    CHECK_OK(xseg_capture_begin(worker->pool, worker->stream[0]));
    /* Thread-local: the strictest mode that permits calls of the other thread. */
    driver_capture_begin(0, worker->stream[0], DRIVER_THREAD_LOCAL);
    driver_wait(0, worker->stream[1], worker->stream[0]);
    fill_capture(worker);
    driver_wait(0, worker->stream[0], worker->stream[1]);
    atomic_fetch_add(&worker->shared->invalidated, !driver_capture_end(0, worker->stream[0]));
    CHECK_OK(xseg_capture_end(worker->pool));
    atomic_fetch_add(&worker->shared->captures, 1);
}

/* --- Other operations. --- */

static void change_stream(struct worker *worker)
{
    xseg_stream *stream = &worker->stream[below(worker, STREAMS)];

    CHECK_OK(xseg_stream_retire(worker->shared->allocator, 0, *stream));
    driver_stream_destroy(0, *stream);
    *stream = driver_stream(0, false);
}

static void change_pool(struct worker *worker)
{
    CHECK_OK(xseg_pool_release(worker->pool));
    CHECK_OK(xseg_pool_create(worker->shared->allocator, 0, NULL, &worker->pool));
}

static void trim(struct worker *worker)
{
    struct xseg_trim_result result = {sizeof(result)};
    const struct xseg_trim_options options = {sizeof(options), .wait = below(worker, 2) == 0};

    CHECK_OK(xseg_trim(worker->shared->allocator, NULL, &options, &result));
    CHECK(result.kept_failed == 0);
}

static void *make_random_calls(void *self)
{
    struct worker *worker = self;

    driver_set_current(0);
    for (unsigned i = 0; i < STREAMS; i++)
        worker->stream[i] = driver_stream(0, false);
    for (unsigned round = 0; round < worker->shared->rounds; round++) {
        const uint64_t action = below(worker, 200);

        if (action < 120)
            use_block(worker);
        else if (action < 160)
            put_block(worker, NULL);
        else if (action < 175)
            free_after_event(worker);
        else if (action < 183)
            CHECK_OK(xseg_sim_finish(worker->stream[below(worker, STREAMS)]));
        else if (action < 188)
            trim(worker);
        else if (action < 191)
            change_stream(worker);
        else if (action < 193)
            change_pool(worker);
        else
            capture(worker);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        CHECK_OK(xseg_stream_retire(worker->shared->allocator, 0, worker->stream[i]));
        driver_stream_destroy(0, worker->stream[i]);
    }
    CHECK_OK(xseg_pool_release(worker->pool));
    return NULL;
}

/* Compare the remaining blocks with the counts. */
static void expect_remaining_blocks(const struct shared *shared)
{
    const struct xseg_statistics stats = env_stats(shared->allocator);
    uint64_t blocks = 0, bytes = 0, requested = 0;

    for (unsigned i = 0; i < SLOTS; i++) {
        void *ptr = atomic_load(&shared->slot[i]);

        if (ptr == NULL)
            continue;
        const struct xseg_block_info info = env_block(shared->allocator, ptr);
        assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
        assert_ptr_equal(info.base, ptr);
        block_check(ptr);
        if (ENV_HAS_BYTES)
            assert_int_equal(info.requested, *(uint64_t *)ptr);
        blocks++;
        bytes += info.bytes;
        requested += info.requested;
    }
    assert_true(blocks > 0);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, blocks);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, bytes);
    assert_true(stats.requested_bytes[XSEG_STAT_ALL].current >= requested);
}

static void expect_exact_counts(const struct shared *shared)
{
    const struct xseg_statistics stats = expect_all_released(shared->allocator);

    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, shared->allocated);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].freed, shared->allocated);
    assert_int_equal(stats.num_ooms, shared->failed);
    /* No minimum of served requests: a thread that is preempted in a capture can keep the memory of the device. */
    assert_true(shared->allocated > 0 && shared->captures > 0);
    assert_int_equal(shared->invalidated, 0);
}

static void run_threads(const char *config, uint64_t memory, unsigned rounds)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                               .real_bytes = ENV_HAS_BYTES};
    struct shared *shared = calloc(1, sizeof(*shared));
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    assert_non_null(shared);
    shared->allocator = env_open_on(&settings, config);
    shared->rounds = rounds;
    driver_open(1, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        worker[i] = (struct worker){.shared = shared,
                                    .pool = env_pool(shared->allocator),
                                    .random = 88172645463325252U + UINT64_C(1000003) * i};
    threads_start(thread, make_random_calls, worker, THREADS);
    threads_join(thread, THREADS);
    expect_remaining_blocks(shared);
    for (unsigned i = 0; i < SLOTS; i++)
        env_free(shared->allocator, atomic_load(&shared->slot[i]));
    expect_exact_counts(shared);
    driver_close();
    env_close(shared->allocator);
    free(shared);
}

/* Programs with ThreadSanitizer have 512 GiB of addresses, which are not reused.  With this memory segments reserve the
 * minimum, 1 GiB. */
#define DEVICE_BYTES (512 * MIB)
#define ROUNDS       3000u

TEST(captures_keep_their_memory_on_expandable_segments)
{
    run_threads("expandable_segments:True", DEVICE_BYTES, ROUNDS);
    run_threads("expandable_segments:True,graph_capture_record_stream_reuse:True", DEVICE_BYTES,
                ROUNDS);
}

TEST(captures_keep_their_memory_on_classic_segments)
{
    run_threads("expandable_segments:False", DEVICE_BYTES, ROUNDS);
    run_threads("expandable_segments:False,graph_capture_record_stream_reuse:True", DEVICE_BYTES,
                ROUNDS);
}

TEST(captures_keep_their_memory_under_memory_pressure)
{
    run_threads("expandable_segments:True", 192 * MIB, ROUNDS);
    run_threads("expandable_segments:True,graph_capture_record_stream_reuse:True", 192 * MIB,
                ROUNDS);
    run_threads("expandable_segments:False", 192 * MIB, ROUNDS);
}
