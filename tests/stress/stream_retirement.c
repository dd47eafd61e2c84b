/* SPDX-License-Identifier: MIT */
/*
 * Streams are retired, and later streams reuse their memory, while other threads free, trim and query that memory.
 * Meant for ThreadSanitizer.
 *
 * Two cases park a thread where it holds no lock, and retire the stream meanwhile. The signals between the threads are
 * relaxed, so that only the library orders their accesses.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "src/core/pending/pending.h"
#include "tests/support/check.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

/* --- Where a thread is parked. --- */

static struct {
    atomic_bool wanted, reached, left;
} gate;

/* The first thread that arrives waits here once. */
static void stop_at_gate(void)
{
    if (!atomic_load_explicit(&gate.wanted, memory_order_relaxed) ||
        !atomic_exchange_explicit(&gate.wanted, false, memory_order_relaxed))
        return;
    atomic_store_explicit(&gate.reached, true, memory_order_relaxed);
    while (!atomic_load_explicit(&gate.left, memory_order_relaxed))
        (void)sched_yield();
}

/* A free with a debug fill has released the lock of the arena, and has not cached the block yet. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void __real_xseg_debug_fill_claimed(struct xseg_block *block);
void __wrap_xseg_debug_fill_claimed(struct xseg_block *block);
/* NOLINTEND(bugprone-reserved-identifier) */

void __wrap_xseg_debug_fill_claimed(struct xseg_block *block)
{
    stop_at_gate();
    __real_xseg_debug_fill_claimed(block);
}

/* --- One thread, one retired stream. --- */

struct party {
    struct xseg_allocator *allocator;
    void *ptr;
};

/* A stream whose arenas have one allocated block each, and cached blocks that other threads do not use. */
static xseg_stream settle(struct xseg_allocator *allocator, void *live[2])
{
    const xseg_stream stream = env_stream();
    void *small = env_alloc(allocator, 1000, stream),
         *large = env_alloc(allocator, 3 * MIB, stream);

    live[0] = env_alloc(allocator, 1000, stream);
    live[1] = env_alloc(allocator, 3 * MIB, stream);
    env_free(allocator, small, large);
    return stream;
}

/* The stream is retired, and the next one gets its memory, starting with `first`. No call is a free, so that it does
 * not acquire the lock that the parked thread acquires next. */
static xseg_stream succeed(struct xseg_allocator *allocator, xseg_stream stream, const void *live,
                           void **first)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    const xseg_stream heir = env_stream();
    *first = env_alloc(allocator, 1000, heir);
    assert_ptr_equal(env_block(allocator, live).stream, heir);
    return heir;
}

/* The same, while another thread is parked at the gate. */
static xseg_stream succeed_during(void *(*run)(void *), struct party *party, xseg_stream stream,
                                  const void *live, void **first)
{
    pthread_t thread;

    atomic_store(&gate.reached, false);
    atomic_store(&gate.left, false);
    atomic_store(&gate.wanted, true);
    assert_int_equal(pthread_create(&thread, NULL, run, party), 0);
    while (!atomic_load_explicit(&gate.reached, memory_order_relaxed))
        (void)sched_yield();
    stream = succeed(party->allocator, stream, live, first);
    atomic_store_explicit(&gate.left, true, memory_order_relaxed);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return stream;
}

static void end_stream(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

static void trace(void *context, const struct xseg_trace_entry *entry)
{
    (void)entry;
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void *free_one(void *self)
{
    const struct party *party = self;

    CHECK(xseg_free(party->allocator, party->ptr) == XSEG_OK);
    return NULL;
}

TEST(free_completes_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open("debug_fill:True,history:all");
    atomic_uint entries = 0;
    const struct xseg_observer observer = {sizeof(observer), .context = &entries,
                                           .on_trace = trace};
    uint64_t id = 0;

    for (unsigned round = 0; round < 20; round++) {
        void *live[2], *first;
        xseg_stream stream = settle(allocator, live);
        struct party party = {allocator, live[round % 2]};

        if (round == 10)
            assert_ok(xseg_observer_add(allocator, &observer, &id));
        stream = succeed_during(free_one, &party, stream, live[!(round % 2)], &first);
        env_free(allocator, live[!(round % 2)], first);
        end_stream(allocator, stream);
    }
    assert_true(entries > 20);
    assert_ok(xseg_observer_remove(allocator, id));
    env_close(allocator);
}

static void stop(void *context, const struct xseg_mapping *mapping)
{
    (void)mapping;
    atomic_fetch_add((atomic_uint *)context, 1);
    stop_at_gate();
}

static void *trim_all(void *self)
{
    const struct party *party = self;

    CHECK(xseg_trim(party->allocator, NULL, NULL, NULL) == XSEG_OK);
    return NULL;
}

/* Several pages with a generation each are released together, and observers are notified of one after the other. */
TEST(memory_is_reported_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct party party = {allocator, NULL};
    atomic_uint notifications = 0;
    const struct xseg_observer observer = {sizeof(observer), .context = &notifications,
                                           .on_unmap = stop};
    uint64_t id = 0;

    assert_ok(xseg_observer_add(allocator, &observer, &id));
    for (unsigned round = 0; round < 20; round++) {
        void *live[2], *more[4], *first;
        xseg_stream stream = settle(allocator, live);
        const unsigned before = notifications;

        for (unsigned i = 0; i < COUNT_OF(more); i++)
            more[i] = env_alloc(allocator, 20 * MIB, stream);
        for (unsigned i = 0; i < COUNT_OF(more); i++)
            env_free(allocator, more[i]);
        stream = succeed_during(trim_all, &party, stream, live[1], &first);
        assert_true(notifications > before + 2);
        env_free(allocator, live[0], live[1], first);
        end_stream(allocator, stream);
    }
    assert_ok(xseg_observer_remove(allocator, id));
    env_close(allocator);
}

/* --- All threads. --- */

#define SLOTS  64u
#define ROUNDS 300u

struct shared {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    xseg_stream side;
    _Atomic(void *) slot[SLOTS]; /* blocks that any thread may free */
    atomic_uint creators;        /* threads that still create streams */
    atomic_uint entries, notifications;
};

struct creator {
    struct shared *shared;
    uint64_t random;
};

/* Free a block, sometimes on the slow path. */
static void free_block(struct shared *shared, void *ptr, bool is_used)
{
    if (ptr == NULL)
        return;
    if (is_used)
        CHECK(xseg_record_stream(shared->allocator, ptr, shared->side) == XSEG_OK);
    CHECK(xseg_free(shared->allocator, ptr) == XSEG_OK);
}

static void *make_block(struct creator *creator, xseg_stream stream)
{
    struct shared *shared = creator->shared;
    const uint64_t random = rng_next(&creator->random);
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    request.stream = stream;
    request.pool = random % 4 == 0 ? shared->pool : NULL;
    request.bytes = 1 + random / 8 % (random % 8 < 4 ? 64 * KIB : 30 * MIB);
    CHECK(xseg_alloc_with(shared->allocator, &request, &ptr) == XSEG_OK);
    return ptr;
}

/* Streams are created and retired; their blocks remain. */
static void *create_and_retire(void *self)
{
    struct creator *creator = self;
    struct shared *shared = creator->shared;

    for (unsigned round = 0; round < ROUNDS; round++) {
        const xseg_stream stream = env_stream();

        for (unsigned i = 0; i < 8; i++) {
            void *ptr = make_block(creator, stream);
            const uint64_t random = rng_next(&creator->random);

            free_block(shared, atomic_exchange(&shared->slot[random % SLOTS], ptr),
                       random / 64 % 2);
        }
        CHECK(xseg_stream_retire(shared->allocator, 0, stream) == XSEG_OK);
        env_stream_destroy(stream);
    }
    atomic_fetch_sub(&shared->creators, 1);
    return NULL;
}

static void *free_blocks(void *self)
{
    struct shared *shared = self;
    uint64_t random = 99;

    while (atomic_load(&shared->creators) > 0) {
        const uint64_t drawn = rng_next(&random);

        free_block(shared, atomic_exchange(&shared->slot[drawn % SLOTS], NULL), drawn / 64 % 2);
    }
    return NULL;
}

static bool see_mapping(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->generation != 0;
}

static bool see_block(void *context, const struct xseg_block_info *block)
{
    (void)context;
    return block->bytes != 0;
}

static void look_at_all(struct shared *shared, const struct xseg_scope *where)
{
    struct xseg_explain_result explained = {sizeof(explained)};
    struct xseg_statistics stats = {sizeof(stats)};

    CHECK(xseg_for_each_mapping(shared->allocator, where, see_mapping, NULL) == XSEG_OK);
    CHECK(xseg_for_each_block(shared->allocator, where, see_block, NULL) == XSEG_OK);
    CHECK(xseg_stats_get(shared->allocator, where, &stats) == XSEG_OK);
    CHECK(xseg_explain(shared->allocator, where, NULL, NULL, &explained) == XSEG_OK);
}

static void *reconcile(void *self)
{
    struct shared *shared = self;
    struct xseg_scope where = {sizeof(where), .device = 0};

    for (unsigned i = 0; atomic_load(&shared->creators) > 0; i++) {
        struct xseg_block_info info = {sizeof(info)};
        void *ptr = atomic_load(&shared->slot[i % SLOTS]);

        where.pool = i % 2 == 0 ? NULL : shared->pool;
        look_at_all(shared, &where);
        /* Another thread may have freed and trimmed it. */
        if (ptr != NULL && xseg_block_query(shared->allocator, ptr, &info) != XSEG_OK)
            info.state = XSEG_BLOCK_UNMAPPED;
        if (i % 8 == 0)
            CHECK(xseg_trim(shared->allocator, NULL, NULL, NULL) == XSEG_OK);
    }
    return NULL;
}

static void count_notice(void *context, const struct xseg_mapping *mapping)
{
    (void)mapping;
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void observe(struct shared *shared)
{
    const struct xseg_observer tracer = {sizeof(tracer), .context = &shared->entries,
                                         .on_trace = trace};
    const struct xseg_observer mapper = {sizeof(mapper), .context = &shared->notifications,
                                         .on_unmap = count_notice, .on_map = count_notice};
    uint64_t id = 0;

    assert_ok(xseg_observer_add(shared->allocator, &tracer, &id));
    assert_ok(xseg_observer_add(shared->allocator, &mapper, &id));
}

/* Two threads create streams, one frees, one queries. */
static void run_threads(struct shared *shared)
{
    struct creator creator[2] = {{shared, 7}, {shared, 8}};
    pthread_t thread[4];

    atomic_store(&shared->creators, COUNT_OF(creator));
    for (unsigned i = 0; i < COUNT_OF(creator); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, create_and_retire, &creator[i]), 0);
    assert_int_equal(pthread_create(&thread[2], NULL, free_blocks, shared), 0);
    assert_int_equal(pthread_create(&thread[3], NULL, reconcile, shared), 0);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

static void play(const char *config, bool is_observed)
{
    struct shared *shared = calloc(1, sizeof(*shared));

    assert_non_null(shared);
    shared->allocator = env_open(config);
    shared->pool = env_pool(shared->allocator);
    shared->side = env_stream();
    if (is_observed)
        observe(shared);
    run_threads(shared);
    for (unsigned i = 0; i < SLOTS; i++)
        env_free(shared->allocator, atomic_load(&shared->slot[i]));
    const struct xseg_statistics stats = env_stats(shared->allocator);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 0);
    /* The number of notifications depends on how often the trimming thread runs. */
    assert_true(!is_observed || (shared->entries > 1000 && shared->notifications > 0));
    env_close(shared->allocator, shared->side);
    free(shared);
}

TEST(streams_are_retired_during_other_calls)
{
    play(NULL, false);
    play("expandable_segments:False", false);
}

TEST(streams_are_retired_during_callbacks)
{
    play(NULL, true);
    play("history:all,idle_ms:0", true);
}
