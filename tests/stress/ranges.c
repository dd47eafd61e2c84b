/* SPDX-License-Identifier: MIT */
/* Threads commit, decommit, hold, alias and pause elastic ranges of one device under memory pressure, while others trim,
 * advance the clock, prepare pages and set quotas.  Committed memory contains the words that its thread wrote.  Meant for
 * ThreadSanitizer. */
#include <sched.h>

#include "tests/stress/stress.h"
#include "tests/support/trim_due.h"
#include "xseg/range.h"

#define PAGE     (2 * MIB)
#define WORKERS  4u
#define GRANULES 16u
#define COMMON   4u /* granules of the range that all threads share */

struct shared {
    struct xseg_allocator *allocator;
    struct xseg_range *range[WORKERS], *common;
    xseg_stream stream[WORKERS];
    pthread_mutex_t lock; /* guards the state and contents of `common` */
    bool is_committed[COMMON];
    struct mappings mappings;
    atomic_uint commits, failed, busy, aliases, pauses, running;
    unsigned rounds;
};

struct worker {
    struct shared *shared;
    unsigned number;
    uint64_t random;
    uint64_t word[GRANULES];        /* expected word of the granule; 0: not committed */
    uint64_t common_word[GRANULES]; /* word of the last aliased page of `common`; 0: none */
    unsigned holds[GRANULES];
};

/* --- The threads. --- */

static struct xseg_range_info range_info(struct xseg_range *range)
{
    struct xseg_range_info info = {sizeof(info)};

    CHECK_OK(xseg_range_query(range, &info));
    return info;
}

static uint64_t *word_of(struct xseg_range *range, unsigned granule)
{
    return (uint64_t *)(void *)((char *)range_info(range).base + granule * PAGE);
}

/* Whether a call has succeeded; it may fail under memory pressure, or if another call has claimed the granules. */
static bool has_succeeded(struct shared *shared, xseg_status status)
{
    if (status == XSEG_ERR_BUSY)
        atomic_fetch_add(&shared->busy, 1);
    else if (status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT)
        atomic_fetch_add(&shared->failed, 1);
    else
        CHECK_OK(status);
    return status == XSEG_OK;
}

/* Write to a committed granule.  If the commit has recommitted an aliased page of `common`, other threads use the page too:
 * expect its contents instead. */
static void write_word(struct worker *worker, struct xseg_range *range, unsigned granule,
                       bool is_recommitted)
{
    if (is_recommitted && worker->common_word[granule] != 0) {
        worker->word[granule] = worker->common_word[granule];
        CHECK(*word_of(range, granule) == worker->word[granule]);
        return;
    }
    *word_of(range, granule) = worker->word[granule] = rng_next(&worker->random) | 1;
    worker->common_word[granule] = 0;
}

static void commit(struct worker *worker, unsigned first, unsigned count)
{
    struct shared *shared = worker->shared;
    struct xseg_range *range = shared->range[worker->number];
    const uint64_t recommits = range_info(range).recommits;

    /* Commit granules with an aliased page one by one: `recommits` then tells whether the granule kept the page. */
    for (unsigned granule = first + 1; granule < first + count; granule++)
        if (worker->common_word[first] != 0 || worker->common_word[granule] != 0)
            count = granule - first;
    if (!has_succeeded(shared, xseg_range_commit(range, first * PAGE, count * PAGE,
                                                 shared->stream[worker->number])))
        return;
    atomic_fetch_add(&shared->commits, 1);
    for (unsigned granule = first; granule < first + count; granule++)
        write_word(worker, range, granule, range_info(range).recommits != recommits);
    CHECK_OK(xseg_sim_launch_on(shared->stream[worker->number], below(worker, 2) * 100000,
                                (uint64_t)(uintptr_t)word_of(range, first), count * PAGE));
}

static void decommit(struct worker *worker, unsigned first, unsigned count)
{
    struct shared *shared = worker->shared;
    struct xseg_range *range = shared->range[worker->number];

    for (unsigned granule = first; granule < first + count; granule++) {
        CHECK(*word_of(range, granule) == worker->word[granule]);
        worker->word[granule] = 0;
    }
    CHECK_OK(
        xseg_range_decommit(range, first * PAGE, count * PAGE, shared->stream[worker->number]));
}

/* Alias a page of `common`, which another thread may decommit. */
static void alias(struct worker *worker, unsigned granule)
{
    struct shared *shared = worker->shared;
    struct xseg_range *range = shared->range[worker->number];
    const unsigned from = (unsigned)below(worker, COMMON);
    xseg_status status = XSEG_ERR_BUSY;

    CHECK(pthread_mutex_lock(&shared->lock) == 0);
    if (shared->is_committed[from]) {
        status = xseg_range_alias(range, granule * PAGE, PAGE, shared->common, from * PAGE);
        if (status == XSEG_OK)
            worker->word[granule] = worker->common_word[granule] = *word_of(range, granule);
        /* ARGUMENT: the granule of this range is pending unmap. */
        CHECK(status == XSEG_OK || status == XSEG_ERR_ARGUMENT || status == XSEG_ERR_BUSY);
    }
    CHECK(pthread_mutex_unlock(&shared->lock) == 0);
    atomic_fetch_add(&shared->aliases, status == XSEG_OK);
}

static void hold_or_unhold(struct worker *worker, unsigned granule)
{
    struct shared *shared = worker->shared;
    struct xseg_range *range = shared->range[worker->number];

    if (worker->holds[granule] == 0) {
        const xseg_status status = xseg_range_hold(range, granule * PAGE, PAGE);

        /* Another thread may unmap the granule. */
        CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY);
        worker->holds[granule] += status == XSEG_OK;
        return;
    }
    CHECK_OK(xseg_range_unhold(range, granule * PAGE, PAGE, shared->stream[worker->number]));
    worker->holds[granule]--;
}

/* The number of adjacent granules that are all committed, or all not committed, up to a maximum. */
static unsigned run_length(const struct worker *worker, unsigned first, unsigned max_count)
{
    unsigned count = 1;

    while (count < max_count && first + count < GRANULES &&
           (worker->word[first + count] != 0) == (worker->word[first] != 0))
        count++;
    return count;
}

/* Pause and resume the private pool of a range. */
static void pause_briefly(struct worker *worker)
{
    struct shared *shared = worker->shared;

    if (worker->number % 2 == 0)
        return;
    struct xseg_pool *pool = range_info(shared->range[worker->number]).pool;
    for (unsigned granule = 0; granule < GRANULES; granule++)
        if (worker->holds[granule] != 0)
            hold_or_unhold(worker, granule);
    CHECK_OK(xseg_sim_finish(shared->stream[worker->number]));
    if (!has_succeeded(shared, xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL)))
        return;
    atomic_fetch_add(&shared->pauses, 1);
    (void)sched_yield();
    while (!has_succeeded(shared, xseg_pool_resume(pool)))
        (void)sched_yield();
}

static void *make_random_calls(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    for (unsigned i = 0; i < shared->rounds; i++) {
        const unsigned granule = (unsigned)below(worker, GRANULES);
        const unsigned count = run_length(worker, granule, 1 + (unsigned)below(worker, 5));

        if (below(worker, 8) == 0)
            (void)sched_yield();
        if (below(worker, 64) == 0)
            pause_briefly(worker);
        if (below(worker, 12) == 0)
            hold_or_unhold(worker, granule);
        else if (worker->word[granule] != 0)
            decommit(worker, granule, count);
        else if (below(worker, 4) == 0)
            alias(worker, granule);
        else
            commit(worker, granule, count);
    }
    for (unsigned granule = 0; granule < GRANULES; granule++) {
        if (worker->word[granule] != 0)
            decommit(worker, granule, 1);
        if (worker->holds[granule] != 0)
            hold_or_unhold(worker, granule);
    }
    atomic_fetch_sub(&shared->running, 1);
    return NULL;
}

/* Commit and decommit granules of `common`, and allocate and free blocks. */
static void *replace_pages(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    while (atomic_load(&shared->running) > 0) {
        const unsigned granule = (unsigned)below(worker, COMMON);
        void *block = NULL;

        (void)sched_yield();
        CHECK(pthread_mutex_lock(&shared->lock) == 0);
        if (shared->is_committed[granule]) {
            CHECK_OK(xseg_range_decommit(shared->common, granule * PAGE, PAGE, NULL));
            shared->is_committed[granule] = false;
        } else if (has_succeeded(shared,
                                 xseg_range_commit(shared->common, granule * PAGE, PAGE, NULL))) {
            *word_of(shared->common, granule) = rng_next(&worker->random) | 1;
            shared->is_committed[granule] = true;
        }
        CHECK(pthread_mutex_unlock(&shared->lock) == 0);
        if (has_succeeded(
                shared, xseg_alloc(shared->allocator, 0, 1 + below(worker, 8 * MIB), NULL, &block)))
            CHECK_OK(xseg_free(shared->allocator, block));
    }
    return NULL;
}

static void *trim(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    while (atomic_load(&shared->running) > 0) {
        const struct xseg_trim_options options = {sizeof(options), .wait = below(worker, 4) == 0};
        const struct xseg_scope scope = {sizeof(scope), .device = 0};
        struct xseg_statistics stats = {sizeof(stats)};

        CHECK_OK(xseg_trim(shared->allocator, NULL, &options, NULL));
        xseg_sim_advance(below(worker, 2) * 50000);
        CHECK_OK(trim_due(shared->allocator, 1000));
        CHECK_OK(xseg_stats_get(shared->allocator, &scope, &stats));
        CHECK(stats.reserved_bytes[0].current <= stats.device_bytes);
        (void)sched_yield();
    }
    return NULL;
}

static void *prepare(void *self)
{
    struct worker *worker = self;
    struct shared *shared = worker->shared;

    while (atomic_load(&shared->running) > 0) {
        struct xseg_range *range = shared->range[below(worker, WORKERS)];

        if (below(worker, 2) == 0)
            (void)has_succeeded(shared, xseg_range_prepare(range, below(worker, 4) * PAGE));
        else
            (void)has_succeeded(shared, xseg_range_set_quota(range, below(worker, 4) * PAGE));
        const struct xseg_range_info info = range_info(range);
        CHECK(info.committed_bytes <= info.bytes && info.physical_bytes <= info.bytes);
        (void)sched_yield();
    }
    return NULL;
}

/* --- Running. --- */

static void reserve_all(struct shared *shared, struct xseg_pool *pool)
{
    struct xseg_range_options options = {sizeof(options)};

    /* Ranges of the same pool can alias pages of `common`. */
    options.pool = pool;
    assert_ok(xseg_range_reserve(shared->allocator, 0, COMMON * PAGE, &options, &shared->common));
    shared->mappings.origin = (uintptr_t)range_info(shared->common).base;
    for (unsigned i = 0; i < WORKERS; i++) {
        options.pool = i % 2 == 0 ? pool : NULL;
        assert_ok(
            xseg_range_reserve(shared->allocator, 0, GRANULES * PAGE, &options, &shared->range[i]));
        shared->stream[i] = env_stream();
    }
}

static void release_all(struct shared *shared)
{
    xseg_sim_finish_all();
    for (unsigned granule = 0; granule < COMMON; granule++)
        if (shared->is_committed[granule])
            assert_ok(xseg_range_decommit(shared->common, granule * PAGE, PAGE, NULL));
    assert_ok(xseg_range_release(shared->common));
    for (unsigned i = 0; i < WORKERS; i++)
        assert_ok(xseg_range_release(shared->range[i]));
    (void)expect_all_released(shared->allocator);
    assert_int_equal(xseg_sim_used(0), 0);
    mappings_expect_none(&shared->mappings);
}

static void run_threads(const char *config, uint64_t memory)
{
    static void *(*const functions[])(void *) = {
        make_random_calls, make_random_calls, make_random_calls,
        make_random_calls, replace_pages,     trim,
        prepare,
    };
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                               .real_bytes = true};
    struct shared *shared = calloc(1, sizeof(*shared));
    struct worker worker[COUNT_OF(functions)];
    pthread_t thread[COUNT_OF(functions)];

    assert_non_null(shared);
    shared->allocator = env_open_on(&settings, config);
    shared->rounds = ENV_IS_SANITIZED ? 1500 : 15000;
    shared->running = WORKERS;
    assert_int_equal(pthread_mutex_init(&shared->lock, NULL), 0);
    struct xseg_pool *pool = env_pool(shared->allocator);
    reserve_all(shared, pool);
    const uint64_t id = mappings_observe(shared->allocator, &shared->mappings);
    for (unsigned i = 0; i < COUNT_OF(functions); i++) {
        worker[i] = (struct worker){
            .shared = shared, .number = i, .random = UINT64_C(88172645463325252) + i * 1000003U};
        assert_int_equal(pthread_create(&thread[i], NULL, functions[i], &worker[i]), 0);
    }
    threads_join(thread, COUNT_OF(functions));
    release_all(shared);
    print_message("# %u commits, %u aliases, %u failed, %u busy, %u pauses, %u notifications\n",
                  shared->commits, shared->aliases, shared->failed, shared->busy, shared->pauses,
                  shared->mappings.notifications);
    assert_true(shared->commits > shared->rounds / 4 && shared->aliases > 10 &&
                shared->mappings.notifications > 100);
    assert_true(shared->pauses > shared->rounds / 400);
    assert_ok(xseg_observer_remove(shared->allocator, id));
    assert_ok(xseg_pool_release(pool));
    env_close(shared->allocator, shared->stream[0], shared->stream[1], shared->stream[2],
              shared->stream[3]);
    (void)pthread_mutex_destroy(&shared->lock);
    free(shared);
}

TEST(committed_granules_keep_their_contents)
{
    run_threads(NULL, GIB);
}

TEST(committed_granules_keep_their_contents_under_memory_pressure)
{
    run_threads("page_cache_mb:8", 64 * MIB);
}
