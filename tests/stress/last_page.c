/* SPDX-License-Identifier: MIT */
/* Two threads compete for the last pages of a device, write into every block, and compare their words before each
 * free.  This detects memory that two threads hold, and memory that is unmapped while it is held. */
#include "tests/stress/stress.h"

#define THREADS 2u
#define HELD    6u
#define STEP    (256 * KIB)

struct shared {
    struct xseg_allocator *allocator;
    unsigned rounds;
    atomic_uint_fast64_t served, failed, spared, traced;
    _Atomic(void *) spare; /* that an observer may free */
};

struct worker {
    struct shared *shared;
    xseg_stream stream;
    uint64_t number, random;
    void *ptr[HELD];
    size_t bytes[HELD];
};

static uint64_t *word_at(void *ptr, size_t offset)
{
    return (uint64_t *)(void *)((char *)ptr + offset);
}

static void mark(const struct worker *worker, unsigned i)
{
    for (size_t at = 0; at < worker->bytes[i]; at += STEP)
        *word_at(worker->ptr[i], at) = (uintptr_t)worker->ptr[i] + at + worker->number;
}

static void free_block(struct worker *worker, unsigned i)
{
    if (worker->ptr[i] == NULL)
        return;
    for (size_t at = 0; at < worker->bytes[i]; at += STEP)
        CHECK(*word_at(worker->ptr[i], at) == (uintptr_t)worker->ptr[i] + at + worker->number);
    CHECK_OK(xseg_free(worker->shared->allocator, worker->ptr[i]));
    worker->ptr[i] = NULL;
}

/* Small blocks, blocks of a few pages, and occasionally one of most of the device. */
static size_t choose_bytes(struct worker *worker)
{
    const uint64_t random = rng_next(&worker->random);
    const size_t most = random % 8 == 0 ? 30 * MIB : random % 2 == 0 ? 6 * MIB : MIB;

    return (1 + random / 8 % most + 7) / 8 * 8;
}

static void alloc_block(struct worker *worker, unsigned i)
{
    struct shared *shared = worker->shared;

    worker->bytes[i] = choose_bytes(worker);
    const xseg_status status =
        xseg_alloc(shared->allocator, 0, worker->bytes[i], worker->stream, &worker->ptr[i]);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    atomic_fetch_add(status == XSEG_OK ? &shared->served : &shared->failed, 1);
    if (status == XSEG_OK)
        mark(worker, i);
}

static void *run(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned round = 0; round < shared->rounds; round++) {
        const unsigned i = (unsigned)(rng_next(&worker->random) % HELD);
        void *spare = NULL;

        free_block(worker, i);
        alloc_block(worker, i);
        if (round % 16 != 0 ||
            xseg_alloc(shared->allocator, 0, 3 * MIB, worker->stream, &spare) != XSEG_OK)
            continue;
        spare = atomic_exchange(&shared->spare, spare);
        CHECK(spare == NULL || xseg_free(shared->allocator, spare) == XSEG_OK);
    }
    for (unsigned i = 0; i < HELD; i++)
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

static void count(void *context, const struct xseg_trace_entry *entry)
{
    struct shared *shared = context;

    (void)entry;
    atomic_fetch_add(&shared->traced, 1);
}

static void play(const char *config, bool observed, unsigned rounds)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 40 * MIB,
                                               .real_bytes = true};
    struct shared shared = {.allocator = env_open_on(&settings, config), .rounds = rounds};
    struct worker worker[THREADS];
    pthread_t thread[THREADS];
    uint64_t id = 0;

    if (observed)
        id = env_observe(shared.allocator, .context = &shared, .on_low_memory = free_spare,
                         .on_trace = count);
    for (unsigned i = 0; i < THREADS; i++)
        worker[i] = (struct worker){.shared = &shared,
                                    .stream = env_stream(),
                                    .number = i + 1,
                                    .random = 88172645463325252U + i * 1000003U};
    threads_start(thread, run, worker, THREADS);
    threads_join(thread, THREADS);
    if (observed)
        assert_ok(xseg_observer_remove(shared.allocator, id));
    env_free(shared.allocator, atomic_load(&shared.spare));
    /* The bytes of each thread depend on timing; the total number of requests does not. */
    assert_true(shared.failed > 0 && shared.served > 0);
    assert_int_equal(shared.failed + shared.served, THREADS * rounds);
    assert_true(observed == (shared.traced > 0) && (!observed || shared.spared > 0));
    (void)expect_nothing_left(shared.allocator);
    env_close(shared.allocator, worker[0].stream, worker[1].stream);
}

TEST(threads_compete_for_expandable_segments)
{
    play("expandable_segments:True", false, 3000);
}

TEST(threads_compete_for_classic_segments)
{
    play("expandable_segments:False", false, 3000);
}

TEST(threads_compete_under_a_hard_limit)
{
    play("expandable_segments:True,hard_limit_mb:36,max_split_size_mb:20", false, 1500);
}

TEST(low_memory_callbacks_free_blocks_of_competing_threads)
{
    play("expandable_segments:True", true, 1500);
}
