/* SPDX-License-Identifier: MIT */
/* Two threads compete for the last pages of a device, write into every block, and compare the words before each free.
 * This detects memory that is allocated to both threads, and memory that is unmapped while it is allocated. */
#include "tests/stress/stress.h"

#define THREADS 2u
#define SLOTS   6u
#define STEP    (256 * KIB)

struct shared {
    struct xseg_allocator *allocator;
    unsigned rounds;
    atomic_uint_fast64_t served, failed, spared, traced;
    _Atomic(void *) spare; /* a block that on_low_memory frees */
};

struct worker {
    struct shared *shared;
    xseg_stream stream;
    uint64_t tag, random;
    void *ptr[SLOTS];
    size_t bytes[SLOTS];
};

static uint64_t *word_at(void *ptr, size_t offset)
{
    return (uint64_t *)(void *)((char *)ptr + offset);
}

static void write_words(const struct worker *worker, unsigned i)
{
    for (size_t at = 0; at < worker->bytes[i]; at += STEP)
        *word_at(worker->ptr[i], at) = (uintptr_t)worker->ptr[i] + at + worker->tag;
}

static void free_block(struct worker *worker, unsigned i)
{
    if (worker->ptr[i] == NULL)
        return;
    for (size_t at = 0; at < worker->bytes[i]; at += STEP)
        CHECK(*word_at(worker->ptr[i], at) == (uintptr_t)worker->ptr[i] + at + worker->tag);
    CHECK_OK(xseg_free(worker->shared->allocator, worker->ptr[i]));
    worker->ptr[i] = NULL;
}

/* Small blocks, blocks of a few pages, and occasionally a block of most of the device. */
static size_t random_bytes(struct worker *worker)
{
    const uint64_t random = rng_next(&worker->random);
    const size_t max_bytes = random % 8 == 0 ? 30 * MIB : random % 2 == 0 ? 6 * MIB : MIB;

    return (1 + random / 8 % max_bytes + 7) / 8 * 8;
}

static void alloc_block(struct worker *worker, unsigned i)
{
    struct shared *shared = worker->shared;

    worker->bytes[i] = random_bytes(worker);
    const xseg_status status =
        xseg_alloc(shared->allocator, 0, worker->bytes[i], worker->stream, &worker->ptr[i]);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    atomic_fetch_add(status == XSEG_OK ? &shared->served : &shared->failed, 1);
    if (status == XSEG_OK)
        write_words(worker, i);
}

static void *alloc_and_free(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned round = 0; round < shared->rounds; round++) {
        const unsigned i = (unsigned)(rng_next(&worker->random) % SLOTS);
        void *spare = NULL;

        free_block(worker, i);
        alloc_block(worker, i);
        if (round % 16 != 0 ||
            xseg_alloc(shared->allocator, 0, 3 * MIB, worker->stream, &spare) != XSEG_OK)
            continue;
        spare = atomic_exchange(&shared->spare, spare);
        CHECK(spare == NULL || xseg_free(shared->allocator, spare) == XSEG_OK);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        free_block(worker, i);
    return NULL;
}

static bool free_spare(void *context, const struct xseg_oom_info *oom)
{
    struct shared *shared = context;
    void *spare = atomic_exchange(&shared->spare, NULL);

    (void)oom;
    if (spare == NULL)
        return false;
    CHECK_OK(xseg_free(shared->allocator, spare));
    atomic_fetch_add(&shared->spared, 1);
    return true;
}

static void count_event(void *context, const struct xseg_trace_entry *entry)
{
    struct shared *shared = context;

    (void)entry;
    atomic_fetch_add(&shared->traced, 1);
}

static void run_threads(const char *config, bool is_observed, unsigned rounds)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 40 * MIB,
                                               .real_bytes = true};
    struct shared shared = {.allocator = env_open_on(&settings, config), .rounds = rounds};
    struct worker worker[THREADS];
    pthread_t thread[THREADS];
    uint64_t id = 0;

    if (is_observed)
        id = env_observe(shared.allocator, .context = &shared, .on_low_memory = free_spare,
                         .on_trace = count_event);
    for (unsigned i = 0; i < THREADS; i++)
        worker[i] = (struct worker){.shared = &shared,
                                    .stream = env_stream(),
                                    .tag = i + 1,
                                    .random = 88172645463325252U + i * 1000003U};
    threads_start(thread, alloc_and_free, worker, THREADS);
    threads_join(thread, THREADS);
    if (is_observed)
        assert_ok(xseg_observer_remove(shared.allocator, id));
    env_free(shared.allocator, atomic_load(&shared.spare));
    /* Which requests fail depends on timing; the total number of requests does not. */
    assert_true(shared.failed > 0 && shared.served > 0);
    assert_int_equal(shared.failed + shared.served, THREADS * rounds);
    assert_true(is_observed == (shared.traced > 0) && (!is_observed || shared.spared > 0));
    (void)expect_all_released(shared.allocator);
    env_close(shared.allocator, worker[0].stream, worker[1].stream);
}

TEST(threads_compete_for_expandable_segments)
{
    run_threads("expandable_segments:True", false, 3000);
}

TEST(threads_compete_for_classic_segments)
{
    run_threads("expandable_segments:False", false, 3000);
}

TEST(threads_compete_under_a_hard_limit)
{
    run_threads("expandable_segments:True,hard_limit_mb:36,max_split_size_mb:20", false, 1500);
}

TEST(low_memory_callbacks_free_blocks_of_competing_threads)
{
    run_threads("expandable_segments:True", true, 1500);
}
