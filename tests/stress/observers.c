/* SPDX-License-Identifier: MIT */
/* Threads allocate, free, pin, pause and trim under memory pressure, and observers track the mappings: no granule is
 * mapped or unmapped twice, and no pinned granule is unmapped. Meant for ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/check.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

#define THREADS  4u
#define SLOTS    16u
#define GRANULE  (2 * MIB)
#define GRANULES ((size_t)1 << 17)

struct shared {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    uintptr_t origin;
    atomic_uchar mapped[GRANULES];
    atomic_uint pins[GRANULES];
    atomic_uint notifications, paused;
    unsigned rounds;
};

struct worker {
    struct shared *shared;
    uint64_t random;
    void *slot[SLOTS];
};

/* --- The record of mappings. --- */

static size_t place_of(const struct shared *shared, const void *base)
{
    const size_t place = ((uintptr_t)base - shared->origin) / GRANULE;

    CHECK((uintptr_t)base >= shared->origin && place < GRANULES);
    return place;
}

static void record(struct shared *shared, const struct xseg_mapping *mapping, unsigned char is)
{
    const size_t first = place_of(shared, mapping->base);

    for (size_t i = first; i < first + (mapping->bytes + GRANULE - 1) / GRANULE; i++) {
        CHECK(atomic_exchange(&shared->mapped[i], is) != is);
        CHECK(is != 0 || atomic_load(&shared->pins[i]) == 0);
    }
    atomic_fetch_add(&shared->notifications, 1);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    record(context, mapping, 0);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    record(context, mapping, 1);
}

static bool is_noted(void *context, const struct xseg_mapping *mapping)
{
    struct shared *shared = context;
    const size_t first = place_of(shared, mapping->base);

    for (size_t i = first; i < first + (mapping->bytes + GRANULE - 1) / GRANULE; i++)
        CHECK(atomic_exchange(&shared->mapped[i], 0) == 1);
    return true;
}

/* --- The threads. --- */

static void alloc_or_free(struct worker *worker, void **slot)
{
    struct shared *shared = worker->shared;
    struct xseg_request request = {sizeof(request)};

    if (*slot != NULL) {
        CHECK(xseg_free(shared->allocator, *slot) == XSEG_OK);
        *slot = NULL;
        return;
    }
    request.bytes =
        1 + rng_next(&worker->random) % (rng_next(&worker->random) % 3 == 0 ? MIB : 40 * MIB);
    request.pool = rng_next(&worker->random) % 4 == 0 ? shared->pool : NULL;
    const xseg_status status = xseg_alloc_with(shared->allocator, &request, slot);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_PAUSED);
}

/* The page of the block's first byte remains mapped until the pin is released, even if the block is freed. */
static void pin(struct worker *worker, void **slot)
{
    struct shared *shared = worker->shared;

    if (*slot == NULL || xseg_pin(shared->allocator, *slot, 1) != XSEG_OK)
        return;
    const size_t place = place_of(shared, *slot);
    atomic_fetch_add(&shared->pins[place], 1);
    void *ptr = *slot;
    alloc_or_free(worker, slot);
    alloc_or_free(worker, slot);
    atomic_fetch_sub(&shared->pins[place], 1);
    CHECK(xseg_unpin(shared->allocator, ptr, 1) == XSEG_OK);
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

static bool look(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->generation != 0;
}

static void *work(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned i = 0; i < shared->rounds; i++) {
        void **slot = &worker->slot[rng_next(&worker->random) % SLOTS];
        const uint64_t what = rng_next(&worker->random) % 64;

        if (what == 0)
            CHECK(xseg_trim(shared->allocator, NULL, NULL, NULL) == XSEG_OK);
        if (what == 1)
            pause_and_resume(shared);
        if (what == 2)
            CHECK(xseg_for_each_mapping(shared->allocator, NULL, look, NULL) == XSEG_OK);
        if (what >= 3 && what < 8)
            pin(worker, slot);
        if (what >= 8)
            alloc_or_free(worker, slot);
    }
    return NULL;
}

static void set_up(struct shared *shared, const char *config)
{
    const struct xseg_observer observer = {sizeof(observer), .context = shared,
                                           .on_unmap = on_unmap, .on_map = on_map};
    uint64_t id = 0;

    shared->allocator = env_open_mib(1024, config);
    shared->pool = env_pool(shared->allocator);
    /* No memory is mapped below the first block. */
    void *first = env_alloc(shared->allocator, 1, NULL);
    shared->origin = (uintptr_t)first / GIB * GIB;
    env_free(shared->allocator, first);
    env_empty_cache(shared->allocator);
    assert_ok(xseg_observer_add(shared->allocator, &observer, &id));
}

static void play(const char *config, unsigned rounds)
{
    struct shared *shared = calloc(1, sizeof(*shared));
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    assert_non_null(shared);
    set_up(shared, config);
    shared->rounds = rounds;
    for (unsigned i = 0; i < THREADS; i++) {
        worker[i] =
            (struct worker){.shared = shared, .random = UINT64_C(88172645463325252) + i * 1000003u};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < SLOTS; k++)
            env_free(shared->allocator, worker[i].slot[k]);
    (void)!xseg_pool_resume(shared->pool);
    /* The recorded mappings equal the actual ones. */
    assert_ok(xseg_for_each_mapping(shared->allocator, NULL, is_noted, shared));
    for (size_t i = 0; i < GRANULES; i++)
        assert_int_equal(shared->mapped[i], 0);
    assert_true(shared->notifications > 100);
    print_message("# %u notifications, %u pauses\n", shared->notifications, shared->paused);
    /* The comparison has consumed the records. */
    assert_ok(xseg_observer_remove(shared->allocator, 1));
    env_close(shared->allocator);
    free(shared);
}

TEST(mappings_are_reported_once_under_memory_pressure)
{
    play("expandable_segments:True", 4000);
}

TEST(mappings_are_reported_once_during_decay)
{
    play("expandable_segments:True,idle_ms:0", 2000);
}
