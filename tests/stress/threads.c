/* SPDX-License-Identifier: MIT */
/* Threads allocate, free each other's blocks, use them on other streams, trim, read statistics and reconfigure
 * concurrently.  Meant for ThreadSanitizer; in any build the counts are consistent. */
#include <sched.h>

#include "tests/stress/stress.h"

#define THREADS 4u
#define SLOTS   256u

/* Blocks that any thread may free, after it has claimed one by an exchange. */
struct shared {
    struct xseg_allocator *allocator;
    xseg_stream stream[THREADS];
    _Atomic(void *) slot[SLOTS];
    atomic_uint_fast64_t allocated, freed, failed;
    unsigned rounds;
};

struct worker {
    struct shared *shared;
    unsigned number;
    uint64_t random;
};

static size_t random_bytes(struct worker *worker)
{
    const uint64_t random = rng_next(&worker->random);

    return random % 4 != 0 ? 1 + random / 4 % (64 * KIB) : 1 + random / 4 % (8 * MIB);
}

static void free_block(struct shared *shared, void *ptr)
{
    if (ptr == NULL)
        return;
    CHECK_OK(xseg_free(shared->allocator, ptr));
    atomic_fetch_add(&shared->freed, 1);
}

static void alloc_block(struct worker *worker)
{
    struct shared *shared = worker->shared;
    void *ptr = NULL;
    const xseg_status status = xseg_alloc(shared->allocator, 0, random_bytes(worker),
                                          shared->stream[worker->number], &ptr);

    if (status == XSEG_ERR_NO_MEMORY) {
        atomic_fetch_add(&shared->failed, 1);
        return;
    }
    CHECK_OK(status);
    atomic_fetch_add(&shared->allocated, 1);
    if (rng_next(&worker->random) % 8 == 0)
        CHECK_OK(xseg_record_stream(shared->allocator, ptr,
                                    shared->stream[rng_next(&worker->random) % THREADS]));
    free_block(shared, atomic_exchange(&shared->slot[rng_next(&worker->random) % SLOTS], ptr));
}

static void *alloc_and_free(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned i = 0; i < shared->rounds; i++) {
        if (rng_next(&worker->random) % 8 < 5)
            alloc_block(worker);
        else
            free_block(shared,
                       atomic_exchange(&shared->slot[rng_next(&worker->random) % SLOTS], NULL));
    }
    return NULL;
}

/* Calls other than allocations and frees, and work on the streams. */
static void *make_other_calls(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;
    const struct xseg_scope scope = {sizeof(scope), .device = 0};

    for (unsigned i = 0; i < shared->rounds / 100; i++) {
        struct xseg_statistics stats = {sizeof(stats)};
        struct xseg_block_info info = {sizeof(info)};
        const struct xseg_trim_options trim = {sizeof(trim), .wait = i % 2 == 0};
        struct xseg_trim_result result = {sizeof(result)};
        char text[512];

        CHECK_OK(xseg_trim(shared->allocator, NULL, &trim, &result));
        CHECK_OK(xseg_stats_get(shared->allocator, &scope, &stats));
        CHECK(xseg_config_set(shared->allocator, i % 16 < 8
                                                     ? "expandable_segments:True"
                                                     : "expandable_segments:False") == XSEG_OK);
        CHECK_OK(xseg_config_get(shared->allocator, text, sizeof(text), NULL));
        /* No device has more than 8 GiB. */
        CHECK(result.released <= 8 * GIB && result.kept_fragmented <= 8 * GIB &&
              result.kept_busy <= 8 * GIB && result.kept_pending <= 8 * GIB &&
              result.kept_failed == 0);
        char *ptr = atomic_load(&shared->slot[rng_next(&worker->random) % SLOTS]);
        /* An address that begins no block is rejected while segments grow and are destroyed. */
        CHECK(ptr == NULL ||
              xseg_free(shared->allocator, ptr + 13 * MIB + 7) == XSEG_ERR_NOT_ALLOCATED);
        if (ptr != NULL) {
            const xseg_status status = xseg_block_query(shared->allocator, ptr, &info);

            CHECK(status == XSEG_OK || status == XSEG_ERR_NOT_ALLOCATED);
        }
        CHECK_OK(xseg_sim_launch(shared->stream[rng_next(&worker->random) % THREADS], 5000));
    }
    return NULL;
}

static void run_threads(const char *config, uint64_t memory, unsigned rounds)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory};
    struct shared *shared = calloc(1, sizeof(*shared));
    struct worker worker[THREADS + 1];
    pthread_t thread[THREADS + 1];

    assert_non_null(shared);
    shared->allocator = env_open_on(&settings, config);
    shared->rounds = rounds;
    for (unsigned i = 0; i < THREADS; i++)
        shared->stream[i] = env_stream();
    for (unsigned i = 0; i <= THREADS; i++)
        worker[i] = (struct worker){shared, i, 88172645463325252U + i * 1000003U};
    threads_start(thread, alloc_and_free, worker, THREADS);
    threads_start(thread + THREADS, make_other_calls, worker + THREADS, 1);
    threads_join(thread, THREADS + 1);
    for (unsigned i = 0; i < SLOTS; i++)
        free_block(shared, atomic_load(&shared->slot[i]));
    const struct xseg_statistics stats = expect_all_released(shared->allocator);
    assert_true(shared->allocated > rounds);
    assert_int_equal(shared->allocated, shared->freed);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, shared->allocated);
    assert_int_equal(stats.num_ooms, shared->failed);
    env_close(shared->allocator, shared->stream[0], shared->stream[1], shared->stream[2],
              shared->stream[3]);
    free(shared);
}

TEST(counts_are_exact_with_much_memory)
{
    run_threads("expandable_segments:True", 8 * GIB, 10000);
}

TEST(counts_are_exact_under_memory_pressure)
{
    run_threads("expandable_segments:True", 256 * MIB, 5000);
}

TEST(counts_are_exact_with_classic_segments)
{
    run_threads("expandable_segments:False", GIB, 5000);
}

/* Frees that fill, record events, wait for streams or unmap the block. */
TEST(counts_are_exact_with_debug_options)
{
    run_threads("debug_fill:True,history:all,history_stacks:all,history_events:64", GIB, 2000);
    run_threads("unmap_on_free:True,guard_page:True", 8 * GIB, 1000);
}

/* The time of each allocation and free is recorded in the block, which other threads may query. */
TEST(counts_are_exact_with_ages)
{
    run_threads("history:state", GIB, 5000);
}

/* --- Several allocators in a process share only the driver. --- */

static void *use_own_allocator(void *unused)
{
    struct xseg_allocator *allocator = NULL;
    void *ptr[32];

    (void)unused;
    for (unsigned round = 0; round < 5; round++) {
        CHECK_OK(env_try_open("expandable_segments:True", &allocator));
        for (unsigned i = 0; i < 32; i++)
            CHECK_OK(xseg_alloc(allocator, 0, (size_t)(i + 1) * 100 * KIB, NULL, &ptr[i]));
        for (unsigned i = 0; i < 32; i++)
            CHECK_OK(xseg_free(allocator, ptr[i]));
        CHECK_OK(xseg_close(allocator));
    }
    return NULL;
}

TEST(allocators_of_threads_are_independent)
{
    pthread_t thread[THREADS];

    assert_ok(xseg_sim_reset(NULL));
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use_own_allocator, NULL), 0);
    threads_join(thread, THREADS);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Statistics are read while pools are created, grow and are destroyed. --- */

struct reader {
    struct xseg_allocator *allocator;
    atomic_bool is_done;
};

static void *read_statistics(void *self)
{
    struct reader *reader = self;
    const struct xseg_scope scope = {sizeof(scope), .device = 0};

    while (!atomic_load(&reader->is_done)) {
        struct xseg_statistics stats = {sizeof(stats)};

        /* More than 1 GiB of host memory would be an underflow. */
        CHECK(xseg_stats_get(reader->allocator, &scope, &stats) == XSEG_OK &&
              stats.host_bytes <= GIB);
    }
    return NULL;
}

TEST(statistics_are_readable_while_pools_grow)
{
    struct reader reader = {.allocator = env_open("expandable_segments:True")};
    struct xseg_request request = {sizeof(request)};
    pthread_t thread;
    void *ptr[16];

    env_free(reader.allocator, env_alloc(reader.allocator, KIB, NULL));
    assert_int_equal(pthread_create(&thread, NULL, read_statistics, &reader), 0);
    for (unsigned round = 0; round < 100; round++) {
        request.pool = env_pool(reader.allocator);
        for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
            request.bytes = i % 4 == 0 ? 30 * MIB : MIB;
            assert_ok(xseg_alloc_with(reader.allocator, &request, &ptr[i]));
        }
        env_free_all(reader.allocator, ptr, sizeof(ptr));
        assert_ok(xseg_pool_release(request.pool));
        if (round % 2 == 0)
            env_empty_cache(reader.allocator);
    }
    atomic_store(&reader.is_done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    env_close(reader.allocator);
}

/* --- Two threads free the same block concurrently: one call fails. --- */

struct double_free {
    struct xseg_allocator *allocator;
    _Atomic(void *) ptr;
    atomic_uint round, begun, freed, failed;
};

static void free_once(struct double_free *double_free)
{
    const xseg_status status = xseg_free(double_free->allocator, atomic_load(&double_free->ptr));

    CHECK(status == XSEG_OK || status == XSEG_ERR_NOT_ALLOCATED);
    atomic_fetch_add(status == XSEG_OK ? &double_free->freed : &double_free->failed, 1);
}

static void *free_in_rounds(void *self)
{
    struct double_free *double_free = self;

    for (unsigned round = 1; atomic_load(&double_free->ptr) != NULL || round == 1; round++) {
        atomic_store(&double_free->begun, round);
        while (atomic_load(&double_free->round) < round)
            (void)sched_yield();
        if (atomic_load(&double_free->ptr) != NULL)
            free_once(double_free);
    }
    return NULL;
}

static void free_concurrently(struct double_free *double_free, void *ptr)
{
    const unsigned round = atomic_load(&double_free->round) + 1;

    while (atomic_load(&double_free->begun) != round)
        (void)sched_yield();
    atomic_store(&double_free->ptr, ptr);
    atomic_store(&double_free->round, round);
    if (ptr == NULL)
        return;
    free_once(double_free);
    while (atomic_load(&double_free->freed) + atomic_load(&double_free->failed) != 2 * round)
        (void)sched_yield();
    assert_int_equal(atomic_load(&double_free->freed), round);
}

TEST(one_of_two_concurrent_frees_is_rejected)
{
    static const size_t bytes[] = {8 * MIB, 600, 30 * MIB, MIB + 512};
    struct double_free double_free = {.allocator = env_open("expandable_segments:False")};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, free_in_rounds, &double_free), 0);
    for (unsigned i = 0; i < 2000; i++) {
        if (i % 100 == 0)
            assert_ok(xseg_config_set(double_free.allocator, i % 200 == 0
                                                                 ? "expandable_segments:False"
                                                                 : "expandable_segments:True"));
        free_concurrently(&double_free,
                          env_alloc(double_free.allocator, bytes[i % COUNT_OF(bytes)], NULL));
        if (i % 32 == 0)
            env_empty_cache(double_free.allocator);
    }
    free_concurrently(&double_free, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    env_close(double_free.allocator);
}
