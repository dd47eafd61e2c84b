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

static void *work(void *self)
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

/* All activities in addition to the work of a service. */
static void *disturb(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;
    const struct xseg_scope scope = {sizeof(scope), .device = 0};

    for (unsigned i = 0; i < shared->rounds / 100; i++) {
        struct xseg_statistics stats = {sizeof(stats)};
        struct xseg_block_info info = {sizeof(info)};
        const struct xseg_trim_options trim = {sizeof(trim), .wait = i % 2 == 0};
        struct xseg_trim_result done = {sizeof(done)};
        char text[512];

        CHECK_OK(xseg_trim(shared->allocator, NULL, &trim, &done));
        CHECK_OK(xseg_stats_get(shared->allocator, &scope, &stats));
        CHECK(xseg_config_set(shared->allocator, i % 16 < 8
                                                     ? "expandable_segments:True"
                                                     : "expandable_segments:False") == XSEG_OK);
        CHECK_OK(xseg_config_get(shared->allocator, text, sizeof(text), NULL));
        CHECK(done.released <= 8 * GIB && done.kept_fragmented <= 8 * GIB &&
              done.kept_busy <= 8 * GIB && done.kept_pending <= 8 * GIB && done.kept_failed == 0);
        char *ptr = atomic_load(&shared->slot[rng_next(&worker->random) % SLOTS]);
        /* An address inside a block: looked up and rejected while segments grow and are destroyed. */
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

static void play(const char *config, uint64_t memory, unsigned rounds)
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
    threads_start(thread, work, worker, THREADS);
    threads_start(thread + THREADS, disturb, worker + THREADS, 1);
    threads_join(thread, THREADS + 1);
    for (unsigned i = 0; i < SLOTS; i++)
        free_block(shared, atomic_load(&shared->slot[i]));
    const struct xseg_statistics stats = expect_nothing_left(shared->allocator);
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
    play("expandable_segments:True", 8 * GIB, 10000);
}

TEST(counts_are_exact_under_memory_pressure)
{
    play("expandable_segments:True", 256 * MIB, 5000);
}

TEST(counts_are_exact_with_classic_segments)
{
    play("expandable_segments:False", GIB, 5000);
}

/* Frees with debug fill, history, waits and unmapping. */
TEST(counts_are_exact_with_debug_options)
{
    play("debug_fill:True,history:all,history_stacks:all,history_events:64", GIB, 2000);
    play("unmap_on_free:True,guard_page:True", 8 * GIB, 1000);
}

/* Every block is stamped, while another thread may read. */
TEST(counts_are_exact_with_ages)
{
    play("history:state", GIB, 5000);
}

/* --- Several allocators in a process share nothing but the driver. --- */

static void *own_allocator(void *unused)
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
        assert_int_equal(pthread_create(&thread[i], NULL, own_allocator, NULL), 0);
    threads_join(thread, THREADS);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* --- Statistics are read while pools are created, grow and are destroyed. --- */

struct growing {
    struct xseg_allocator *allocator;
    atomic_bool is_over;
};

static void *read_all_the_time(void *self)
{
    struct growing *growing = self;
    const struct xseg_scope scope = {sizeof(scope), .device = 0};

    while (!atomic_load(&growing->is_over)) {
        struct xseg_statistics stats = {sizeof(stats)};

        CHECK(xseg_stats_get(growing->allocator, &scope, &stats) == XSEG_OK &&
              stats.host_bytes <= GIB);
    }
    return NULL;
}

TEST(statistics_are_readable_while_pools_grow)
{
    struct growing growing = {.allocator = env_open("expandable_segments:True")};
    struct xseg_request request = {sizeof(request)};
    pthread_t thread;
    void *ptr[16];

    env_free(growing.allocator, env_alloc(growing.allocator, KIB, NULL));
    assert_int_equal(pthread_create(&thread, NULL, read_all_the_time, &growing), 0);
    for (unsigned round = 0; round < 100; round++) {
        request.pool = env_pool(growing.allocator);
        for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
            request.bytes = i % 4 == 0 ? 30 * MIB : MIB;
            assert_ok(xseg_alloc_with(growing.allocator, &request, &ptr[i]));
        }
        env_free_all(growing.allocator, ptr, sizeof(ptr));
        assert_ok(xseg_pool_release(request.pool));
        if (round % 2 == 0)
            env_empty_cache(growing.allocator);
    }
    atomic_store(&growing.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    env_close(growing.allocator);
}

/* --- Two threads free the same block at the same time: one call fails. --- */

struct twice {
    struct xseg_allocator *allocator;
    _Atomic(void *) ptr;
    atomic_uint round, begun, freed, failed;
};

static void free_once(struct twice *twice)
{
    const xseg_status status = xseg_free(twice->allocator, atomic_load(&twice->ptr));

    CHECK(status == XSEG_OK || status == XSEG_ERR_NOT_ALLOCATED);
    atomic_fetch_add(status == XSEG_OK ? &twice->freed : &twice->failed, 1);
}

static void *free_in_rounds(void *self)
{
    struct twice *twice = self;

    for (unsigned round = 1; atomic_load(&twice->ptr) != NULL || round == 1; round++) {
        atomic_store(&twice->begun, round);
        while (atomic_load(&twice->round) < round)
            (void)sched_yield();
        if (atomic_load(&twice->ptr) != NULL)
            free_once(twice);
    }
    return NULL;
}

static void free_concurrently(struct twice *twice, void *ptr)
{
    const unsigned round = atomic_load(&twice->round) + 1;

    while (atomic_load(&twice->begun) != round)
        (void)sched_yield();
    atomic_store(&twice->ptr, ptr);
    atomic_store(&twice->round, round);
    if (ptr == NULL)
        return;
    free_once(twice);
    while (atomic_load(&twice->freed) + atomic_load(&twice->failed) != 2 * round)
        (void)sched_yield();
    assert_int_equal(atomic_load(&twice->freed), round);
}

TEST(one_of_two_concurrent_frees_is_rejected)
{
    static const size_t bytes[] = {8 * MIB, 600, 30 * MIB, MIB + 512};
    struct twice twice = {.allocator = env_open("expandable_segments:False")};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, free_in_rounds, &twice), 0);
    for (unsigned i = 0; i < 2000; i++) {
        if (i % 100 == 0)
            assert_ok(xseg_config_set(twice.allocator, i % 200 == 0 ? "expandable_segments:False"
                                                                    : "expandable_segments:True"));
        free_concurrently(&twice, env_alloc(twice.allocator, bytes[i % COUNT_OF(bytes)], NULL));
        if (i % 32 == 0)
            env_empty_cache(twice.allocator);
    }
    free_concurrently(&twice, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    env_close(twice.allocator);
}
