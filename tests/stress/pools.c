/* SPDX-License-Identifier: MIT */
/*
 * Pools end while others look at them.  Two threads make pools, use them, route to them, and release
 * them, now and then before their blocks are freed.  Another thread allocates where it is routed to, and
 * from pools that may be released at that moment.  Another one reads statistics of such pools, walks, and
 * trims them.  Each block holds its own address and size until it is freed, so no other may reach into
 * it.  At the end nothing is left.
 */
#include "tests/support/draw.h"
#include "tests/support/scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ThreadSanitizer bears no memory at most addresses of the simulated machine, so there is none then. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_BYTES false
#endif
#elif defined(__SANITIZE_THREAD__)
#define HAS_BYTES false
#endif
#ifndef HAS_BYTES
#define HAS_BYTES true
#endif

#define MIB    ((size_t)1 << 20)
#define MAKERS 2u
#define RECENT 8u
#define HELD   16u
#define ROUNDS 3000u

struct shared {
    struct xseg_allocator *allocator;
    _Atomic(struct xseg_pool *) recent[RECENT]; /* that may be released by now */
    atomic_uint working;
    atomic_uint_fast64_t served, refused, over, read;
};

struct worker {
    struct shared *shared;
    uint64_t random;
    struct {
        uint64_t *ptr;
        size_t bytes;
    } held[HELD];
};

static void require(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t below(struct worker *worker, uint64_t bound)
{
    return (draw_next(&worker->random) >> 16) % bound;
}

static size_t any_bytes(struct worker *worker)
{
    return below(worker, 4) == 0 ? MIB + (size_t)below(worker, 4 * MIB)
                                 : 16 + (size_t)below(worker, 100000);
}

/* Free what lies in a place, which is the thread's own. */
static void let_go(struct worker *worker, unsigned place)
{
    uint64_t *ptr = worker->held[place].ptr;

    if (ptr == NULL)
        return;
    if (HAS_BYTES)
        require(ptr[0] == (uintptr_t)ptr && ptr[1] == worker->held[place].bytes);
    require(xseg_free(worker->shared->allocator, ptr) == XSEG_OK);
    worker->held[place].ptr = NULL;
}

/* A block in some place; pool: NULL for where routes lead. */
static void take(struct worker *worker, struct xseg_pool *pool)
{
    const unsigned place = (unsigned)below(worker, HELD);
    const size_t bytes = any_bytes(worker);
    struct xseg_request request = XSEG_REQUEST_INIT;
    void *ptr = NULL;

    let_go(worker, place);
    request.device = 0;
    request.bytes = bytes;
    request.pool = pool;
    const xseg_status status = xseg_alloc_with(worker->shared->allocator, &request, &ptr);
    if (status != XSEG_OK) {
        require((pool != NULL && status == XSEG_ERR_ARGUMENT) || status == XSEG_ERR_NO_MEMORY);
        atomic_fetch_add(
            status == XSEG_ERR_ARGUMENT ? &worker->shared->over : &worker->shared->refused, 1);
        return;
    }
    worker->held[place].ptr = ptr;
    worker->held[place].bytes = bytes;
    if (HAS_BYTES) {
        worker->held[place].ptr[0] = (uintptr_t)ptr;
        worker->held[place].ptr[1] = bytes;
    }
    atomic_fetch_add(&worker->shared->served, 1);
}

static void end(struct worker *worker)
{
    for (unsigned i = 0; i < HELD; i++)
        let_go(worker, i);
    atomic_fetch_sub(&worker->shared->working, 1);
}

static void *make(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct xseg_pool *pool = NULL;

        require(xseg_pool_create(shared->allocator, 0, NULL, &pool) == XSEG_OK);
        atomic_store(&shared->recent[below(worker, RECENT)], pool);
        const bool routes = below(worker, 3) == 0 && xseg_route_begin(pool, NULL, NULL) == XSEG_OK;
        for (uint64_t i = below(worker, 4); i > 0; i--)
            take(worker, pool);
        for (unsigned i = 0; below(worker, 3) != 0 && i < HELD; i++)
            let_go(worker, i);
        if (routes)
            require(xseg_route_end(pool) == XSEG_OK);
        require(xseg_pool_release(pool) == XSEG_OK);
    }
    end(worker);
    return NULL;
}

static struct xseg_pool *any_recent(struct worker *worker)
{
    return atomic_load(&worker->shared->recent[below(worker, RECENT)]);
}

static bool makers_work(const struct shared *shared, unsigned others)
{
    return atomic_load(&shared->working) > others;
}

static void *allocate(void *self)
{
    struct worker *worker = self;

    while (makers_work(worker->shared, 2) || below(worker, 100) != 0)
        take(worker, below(worker, 2) == 0 ? any_recent(worker) : NULL);
    end(worker);
    return NULL;
}

static bool count(void *context, const struct xseg_block_info *block)
{
    uint64_t *bytes = context;

    *bytes += block->bytes;
    return true;
}

static void *look(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    while (makers_work(shared, 2)) {
        struct xseg_where where = XSEG_WHERE_ANY;
        struct xseg_statistics stats = XSEG_STATISTICS_INIT;
        struct xseg_limit_values limits = XSEG_LIMIT_VALUES_INIT;
        uint64_t bytes = 0;

        require(xseg_walk(shared->allocator, &where, count, &bytes) == XSEG_OK);
        where.pool = any_recent(worker);
        if (where.pool == NULL)
            continue;
        const xseg_status status = xseg_stats(shared->allocator, &where, &stats);
        require(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
        require(stats.allocation[0].current < 1000000);
        atomic_fetch_add(&shared->read, status == XSEG_OK);
        const xseg_status told = xseg_limits(shared->allocator, &where, NULL, &limits);
        require(told == XSEG_OK || told == XSEG_ERR_ARGUMENT);
        if (below(worker, 8) == 0)
            require(xseg_trim(shared->allocator, &where, NULL, NULL) == XSEG_OK);
        where = (struct xseg_where)XSEG_WHERE_ANY;
        where.device = 0;
        require(xseg_stats(shared->allocator, &where, &stats) == XSEG_OK);
    }
    end(worker);
    return NULL;
}

static void run(const char *config, uint64_t memory)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct shared shared = {.working = MAKERS + 2};
    struct worker worker[MAKERS + 2];
    pthread_t thread[MAKERS + 2];

    settings.memory_bytes = memory;
    settings.real_bytes = HAS_BYTES;
    shared.allocator = scene_open_on(&settings, config);
    scene_free(shared.allocator, scene_alloc(shared.allocator, 100, NULL));
    for (unsigned i = 0; i < MAKERS + 2; i++) {
        worker[i] = (struct worker){.shared = &shared, .random = i + 1};
        assert_int_equal(pthread_create(&thread[i], NULL,
                                        i < MAKERS    ? make
                                        : i == MAKERS ? allocate
                                                      : look,
                                        &worker[i]),
                         0);
    }
    for (unsigned i = 0; i < MAKERS + 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    print_message("# %llu served, %llu refused, %llu of pools that were over, %llu statistics\n",
                  (unsigned long long)atomic_load(&shared.served),
                  (unsigned long long)atomic_load(&shared.refused),
                  (unsigned long long)atomic_load(&shared.over),
                  (unsigned long long)atomic_load(&shared.read));
    assert_int_equal(scene_stats(shared.allocator).active[XSEG_STAT_ALL].current, 0);
    scene_empty_cache(shared.allocator);
    assert_int_equal(scene_stats(shared.allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    scene_close(shared.allocator);
}

static void pools_end_while_others_look(void **state)
{
    (void)state;
    run(NULL, 1024 * MIB);
}

static void classic_pools_do_as_well(void **state)
{
    (void)state;
    run("expandable_segments:False", 1024 * MIB);
}

static void so_they_do_while_memory_is_short(void **state)
{
    (void)state;
    run(NULL, 64 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_end_while_others_look),
        cmocka_unit_test(classic_pools_do_as_well),
        cmocka_unit_test(so_they_do_while_memory_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
