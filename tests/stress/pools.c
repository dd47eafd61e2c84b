/* SPDX-License-Identifier: MIT */
/* Pools are destroyed while other threads use, route to, retain, query and trim them.  At the end every pool has been destroyed
 * once, and no memory is reserved. */
#include "tests/stress/stress.h"

#define MAKERS 2u
#define RECENT 8u
#define SLOTS  16u
#define ROUNDS 3000u

/* A pool, from its creation until its callback. */
struct entry {
    struct shared *shared;
    struct xseg_pool *pool;
    uint64_t recent_index; /* in shared.recent */
    bool is_retained;      /* by the thread that created it */
};

struct shared {
    struct xseg_allocator *allocator;
    pthread_mutex_t mutex;        /* recursive: a callback may run in a trim; guards the entries */
    struct entry *recent[RECENT]; /* pools that any thread may use; NULL: none */
    atomic_uint running_workers;
    atomic_uint_fast64_t served, failed, destroyed, queries;
};

struct worker {
    struct shared *shared;
    uint64_t random;
    void *block[SLOTS];
};

static size_t random_bytes(struct worker *worker)
{
    return below(worker, 4) == 0 ? MIB + (size_t)below(worker, 4 * MIB)
                                 : 16 + (size_t)below(worker, 100000);
}

/* Free the block in a slot, or NULL. */
static void free_slot(struct worker *worker, unsigned slot)
{
    block_check(worker->block[slot]);
    CHECK_OK(xseg_free(worker->shared->allocator, worker->block[slot]));
    worker->block[slot] = NULL;
}

/* Allocate a block for a random slot; pool: NULL for the default pool, or the target of a route. */
static void alloc_slot(struct worker *worker, struct xseg_pool *pool)
{
    const unsigned slot = (unsigned)below(worker, SLOTS);
    const size_t bytes = random_bytes(worker);
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .pool = pool};

    free_slot(worker, slot);
    const xseg_status status =
        xseg_alloc_with(worker->shared->allocator, &request, &worker->block[slot]);
    if (status != XSEG_OK) {
        CHECK(status == XSEG_ERR_NO_MEMORY);
        atomic_fetch_add(&worker->shared->failed, 1);
        return;
    }
    block_sign(worker->block[slot], bytes);
    atomic_fetch_add(&worker->shared->served, 1);
}

static void end_worker(struct worker *worker)
{
    for (unsigned i = 0; i < SLOTS; i++)
        free_slot(worker, i);
    atomic_fetch_sub(&worker->shared->running_workers, 1);
}

static void on_destroy(void *context, const struct xseg_statistics *last)
{
    struct entry *entry = context;
    struct shared *shared = entry->shared;

    CHECK(last->reserved_bytes[XSEG_STAT_ALL].current == 0);
    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    CHECK(!entry->is_retained);
    if (shared->recent[entry->recent_index] == entry)
        shared->recent[entry->recent_index] = NULL;
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    atomic_fetch_add(&shared->destroyed, 1);
    free(entry);
}

/* Create a pool, and enter it into the table. */
static struct entry *make_pool(struct worker *worker)
{
    struct shared *shared = worker->shared;
    struct entry *entry = malloc(sizeof(*entry));
    const struct xseg_pool_options options = {sizeof(options), .on_destroy = on_destroy,
                                              .on_destroy_context = entry};

    CHECK(entry != NULL);
    *entry = (struct entry){shared, NULL, below(worker, RECENT), true};
    CHECK_OK(xseg_pool_create(shared->allocator, 0, &options, &entry->pool));
    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    shared->recent[entry->recent_index] = entry;
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    return entry;
}

static void release_pool(struct shared *shared, struct entry *entry)
{
    struct xseg_pool *pool = entry->pool;

    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    entry->is_retained = false;
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    CHECK_OK(xseg_pool_release(pool));
}

static void *create_pools(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct entry *entry = make_pool(worker);
        struct xseg_pool *pool = entry->pool;
        const bool routes = below(worker, 3) == 0 && xseg_route_begin(pool, NULL, NULL) == XSEG_OK;
        for (uint64_t i = below(worker, 4); i > 0; i--)
            alloc_slot(worker, pool);
        for (unsigned i = 0; below(worker, 3) != 0 && i < SLOTS; i++)
            free_slot(worker, i);
        if (routes)
            CHECK_OK(xseg_route_end(pool));
        release_pool(shared, entry);
    }
    end_worker(worker);
    return NULL;
}

/* Retain a recent pool; NULL if its creator has released it. */
static struct xseg_pool *retain_recent_pool(struct worker *worker)
{
    struct shared *shared = worker->shared;
    struct xseg_pool *pool = NULL;

    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    const struct entry *entry = shared->recent[below(worker, RECENT)];
    if (entry != NULL && entry->is_retained) {
        pool = entry->pool;
        CHECK_OK(xseg_pool_retain(pool));
    }
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    return pool;
}

/* Whether makers still run, in addition to this number of other workers. */
static bool makers_run(const struct shared *shared, unsigned other_workers)
{
    return atomic_load(&shared->running_workers) > other_workers;
}

static void *allocate_until_done(void *self)
{
    struct worker *worker = self;

    while (makers_run(worker->shared, 2) || below(worker, 100) != 0) {
        struct xseg_pool *pool = below(worker, 2) == 0 ? retain_recent_pool(worker) : NULL;

        alloc_slot(worker, pool);
        if (pool != NULL)
            CHECK_OK(xseg_pool_release(pool));
    }
    end_worker(worker);
    return NULL;
}

static bool add_bytes(void *context, const struct xseg_block_info *block)
{
    uint64_t *bytes = context;

    *bytes += block->bytes;
    return true;
}

/* Query a recent pool, and sometimes trim it. The handle is valid: its callback locks the mutex. */
static void query_recent_pool(struct worker *worker)
{
    struct shared *shared = worker->shared;
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    const struct entry *entry = shared->recent[below(worker, RECENT)];
    if (entry != NULL) {
        scope.pool = entry->pool;
        CHECK_OK(xseg_stats_get(shared->allocator, &scope, &stats));
        CHECK(stats.allocation[0].current < 1000000);
        CHECK_OK(xseg_limits_get(shared->allocator, &scope, &limits));
        atomic_fetch_add(&shared->queries, 1);
        if (below(worker, 8) == 0)
            CHECK_OK(xseg_trim(shared->allocator, &scope, NULL, NULL));
    }
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
}

static void *query_until_done(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    while (makers_run(shared, 2)) {
        struct xseg_scope scope = XSEG_SCOPE_ALL;
        struct xseg_statistics stats = {sizeof(stats)};
        uint64_t bytes = 0;

        CHECK_OK(xseg_for_each_block(shared->allocator, &scope, add_bytes, &bytes));
        query_recent_pool(worker);
        scope.device = 0;
        CHECK_OK(xseg_stats_get(shared->allocator, &scope, &stats));
    }
    end_worker(worker);
    return NULL;
}

static void run_threads(const char *config, uint64_t memory)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                               .real_bytes = ENV_HAS_BYTES};
    struct shared shared = {.running_workers = MAKERS + 2};
    struct worker worker[MAKERS + 2];
    pthread_t thread[MAKERS + 2];
    pthread_mutexattr_t recursive;

    assert_int_equal(pthread_mutexattr_init(&recursive), 0);
    assert_int_equal(pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE), 0);
    assert_int_equal(pthread_mutex_init(&shared.mutex, &recursive), 0);
    assert_int_equal(pthread_mutexattr_destroy(&recursive), 0);
    shared.allocator = env_open_on(&settings, config);
    env_free(shared.allocator, env_alloc(shared.allocator, 100, NULL));
    for (unsigned i = 0; i < MAKERS + 2; i++)
        worker[i] = (struct worker){.shared = &shared, .random = i + 1};
    threads_start(thread, create_pools, worker, MAKERS);
    threads_start(thread + MAKERS, allocate_until_done, worker + MAKERS, 1);
    threads_start(thread + MAKERS + 1, query_until_done, worker + MAKERS + 1, 1);
    threads_join(thread, MAKERS + 2);
    print_message("# %" PRIu64 " served, %" PRIu64 " failed, %" PRIu64 " pools destroyed, %" PRIu64
                  " statistics\n",
                  shared.served, shared.failed, shared.destroyed, shared.queries);
    (void)expect_all_released(shared.allocator);
    env_close(shared.allocator);
    assert_int_equal(atomic_load(&shared.destroyed), MAKERS * ROUNDS);
    assert_int_equal(pthread_mutex_destroy(&shared.mutex), 0);
}

TEST(pools_are_destroyed_during_queries)
{
    run_threads(NULL, 1024 * MIB);
}

TEST(classic_pools_are_destroyed_during_queries)
{
    run_threads("expandable_segments:False", 1024 * MIB);
}

TEST(pools_are_destroyed_under_memory_pressure)
{
    run_threads(NULL, 64 * MIB);
}
