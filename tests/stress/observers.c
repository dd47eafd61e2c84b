/* SPDX-License-Identifier: MIT */
/* Threads allocate, free, pin, pause and trim under memory pressure, and observers track the mappings: no granule is
 * mapped or unmapped twice, and no pinned granule is unmapped. Meant for ThreadSanitizer. */
#include "tests/stress/stress.h"

#define THREADS 4u
#define SLOTS   16u

struct shared {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    struct mappings mappings;
    atomic_uint paused;
    unsigned rounds;
};

struct worker {
    struct shared *shared;
    uint64_t random;
    void *slot[SLOTS];
};

/* Expect that an existing mapping is recorded, and clear the record. */
static bool clear_record(void *context, const struct xseg_mapping *mapping)
{
    mappings_on_unmap(context, mapping);
    return true;
}

static void alloc_or_free(struct worker *worker, void **slot)
{
    struct shared *shared = worker->shared;
    struct xseg_request request = {sizeof(request)};

    if (*slot != NULL) {
        CHECK_OK(xseg_free(shared->allocator, *slot));
        *slot = NULL;
        return;
    }
    request.bytes =
        1 + rng_next(&worker->random) % (rng_next(&worker->random) % 3 == 0 ? MIB : 40 * MIB);
    request.pool = rng_next(&worker->random) % 4 == 0 ? shared->pool : NULL;
    const xseg_status status = xseg_alloc_with(shared->allocator, &request, slot);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_PAUSED);
}

/* Pin the first page of a block, free the block and allocate another one: the page remains mapped until the unpin. */
static void pin(struct worker *worker, void **slot)
{
    struct shared *shared = worker->shared;

    if (*slot == NULL || xseg_pin(shared->allocator, *slot, 1) != XSEG_OK)
        return;
    const size_t index = mappings_index(&shared->mappings, *slot);
    atomic_fetch_add(&shared->mappings.pins[index], 1);
    void *ptr = *slot;
    alloc_or_free(worker, slot);
    alloc_or_free(worker, slot);
    atomic_fetch_sub(&shared->mappings.pins[index], 1);
    CHECK_OK(xseg_unpin(shared->allocator, ptr, 1));
}

static void pause_and_resume(struct shared *shared)
{
    xseg_status status = xseg_pool_pause(shared->pool, XSEG_KEEP_NOTHING, NULL);

    if (status == XSEG_OK)
        atomic_fetch_add(&shared->paused, 1);
    else
        CHECK(status == XSEG_ERR_BUSY || status == XSEG_ERR_PAUSED);
    status = xseg_pool_resume(shared->pool);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_ARGUMENT ||
          status == XSEG_ERR_PAUSED);
}

static bool read_mapping(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->generation != 0;
}

static void *make_random_calls(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned i = 0; i < shared->rounds; i++) {
        void **slot = &worker->slot[rng_next(&worker->random) % SLOTS];
        const uint64_t action = rng_next(&worker->random) % 64;

        if (action == 0)
            CHECK_OK(xseg_trim(shared->allocator, NULL, NULL, NULL));
        if (action == 1)
            pause_and_resume(shared);
        if (action == 2)
            CHECK_OK(xseg_for_each_mapping(shared->allocator, NULL, read_mapping, NULL));
        if (action >= 3 && action < 8)
            pin(worker, slot);
        if (action >= 8)
            alloc_or_free(worker, slot);
    }
    return NULL;
}

static void open_observed(struct shared *shared, const char *config)
{
    shared->allocator = env_open_mib(1024, config);
    shared->pool = env_pool(shared->allocator);
    /* The first block has the lowest address; the simulator returns increasing addresses. */
    void *first = env_alloc(shared->allocator, 1, NULL);
    shared->mappings.origin = (uintptr_t)first / GIB * GIB;
    env_free(shared->allocator, first);
    env_empty_cache(shared->allocator);
    (void)mappings_observe(shared->allocator, &shared->mappings);
}

static void run_threads(const char *config, unsigned rounds)
{
    struct shared *shared = calloc(1, sizeof(*shared));
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    assert_non_null(shared);
    open_observed(shared, config);
    shared->rounds = rounds;
    for (unsigned i = 0; i < THREADS; i++)
        worker[i] =
            (struct worker){.shared = shared, .random = UINT64_C(88172645463325252) + i * 1000003u};
    threads_start(thread, make_random_calls, worker, THREADS);
    threads_join(thread, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < SLOTS; k++)
            env_free(shared->allocator, worker[i].slot[k]);
    (void)!xseg_pool_resume(shared->pool);
    /* The recorded mappings equal the actual ones. */
    assert_ok(xseg_for_each_mapping(shared->allocator, NULL, clear_record, &shared->mappings));
    mappings_expect_none(&shared->mappings);
    assert_true(shared->mappings.notifications > 100);
    print_message("# %u notifications, %u pauses\n", shared->mappings.notifications,
                  shared->paused);
    /* The comparison has cleared the records, so the observer, whose ID is 1, must not be notified any more. */
    assert_ok(xseg_observer_remove(shared->allocator, 1));
    env_close(shared->allocator);
    free(shared);
}

TEST(mappings_are_reported_once_under_memory_pressure)
{
    run_threads("expandable_segments:True", 4000);
}

TEST(mappings_are_reported_once_during_decay)
{
    run_threads("expandable_segments:True,idle_ms:0", 2000);
}
