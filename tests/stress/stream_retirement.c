/* SPDX-License-Identifier: MIT */
/* Streams are retired, and later streams reuse their memory, while other threads free, trim and query that memory.
 * Two cases park a thread that holds no lock.  The signals between the threads are relaxed, so that only the library
 * orders their accesses.  Meant for ThreadSanitizer. */
#include <sched.h>

#include "src/core/pending/pending.h"
#include "tests/stress/stress.h"

/* --- The gate at which a thread parks. --- */

static struct {
    atomic_bool is_armed, reached, is_open;
} gate;

/* The first thread that arrives waits here once. */
static void stop_at_gate(void)
{
    if (!atomic_load_explicit(&gate.is_armed, memory_order_relaxed) ||
        !atomic_exchange_explicit(&gate.is_armed, false, memory_order_relaxed))
        return;
    atomic_store_explicit(&gate.reached, true, memory_order_relaxed);
    while (!atomic_load_explicit(&gate.is_open, memory_order_relaxed))
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

static void end_stream(struct xseg_allocator *allocator, xseg_stream stream)
{
    CHECK_OK(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* The next stream reuses the memory.  There is no free, which would acquire the next lock of the parked thread. */
static xseg_stream succeed(struct xseg_allocator *allocator, xseg_stream stream, const void *live,
                           void **first)
{
    end_stream(allocator, stream);
    const xseg_stream next = env_stream();
    *first = env_alloc(allocator, 1000, next);
    assert_ptr_equal(env_block(allocator, live).stream, next);
    return next;
}

/* As succeed(), while another thread is parked at the gate. */
static xseg_stream succeed_during(void *(*run)(void *), struct party *party, xseg_stream stream,
                                  const void *live, void **first)
{
    pthread_t thread;

    atomic_store(&gate.reached, false);
    atomic_store(&gate.is_open, false);
    atomic_store(&gate.is_armed, true);
    assert_int_equal(pthread_create(&thread, NULL, run, party), 0);
    while (!atomic_load_explicit(&gate.reached, memory_order_relaxed))
        (void)sched_yield();
    stream = succeed(party->allocator, stream, live, first);
    atomic_store_explicit(&gate.is_open, true, memory_order_relaxed);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return stream;
}

static void trace(void *context, const struct xseg_trace_entry *entry)
{
    (void)entry;
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void *free_one(void *self)
{
    const struct party *party = self;

    CHECK_OK(xseg_free(party->allocator, party->ptr));
    return NULL;
}

TEST(free_completes_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open("debug_fill:True,history:all");
    atomic_uint entries = 0;
    uint64_t id = 0;

    for (unsigned round = 0; round < 20; round++) {
        void *live[2], *first;
        xseg_stream stream = settle(allocator, live);
        struct party party = {allocator, live[round % 2]};

        if (round == 10)
            id = env_observe(allocator, .context = &entries, .on_trace = trace);
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

    CHECK_OK(xseg_trim(party->allocator, NULL, NULL, NULL));
    return NULL;
}

/* Several pages with a generation each are released together, and observers are notified of one after the other. */
TEST(memory_is_reported_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct party party = {allocator, NULL};
    atomic_uint notifications = 0;
    const uint64_t id = env_observe(allocator, .context = &notifications, .on_unmap = stop);

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
        CHECK_OK(xseg_record_stream(shared->allocator, ptr, shared->side));
    CHECK_OK(xseg_free(shared->allocator, ptr));
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
    CHECK_OK(xseg_alloc_with(shared->allocator, &request, &ptr));
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
        end_stream(shared->allocator, stream);
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

static bool touch_mapping(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->generation != 0;
}

static bool touch_block(void *context, const struct xseg_block_info *block)
{
    (void)context;
    return block->bytes != 0;
}

static void query_all(struct shared *shared, const struct xseg_scope *scope)
{
    struct xseg_explain_result explained = {sizeof(explained)};
    struct xseg_statistics stats = {sizeof(stats)};

    CHECK_OK(xseg_for_each_mapping(shared->allocator, scope, touch_mapping, NULL));
    CHECK_OK(xseg_for_each_block(shared->allocator, scope, touch_block, NULL));
    CHECK_OK(xseg_stats_get(shared->allocator, scope, &stats));
    CHECK_OK(xseg_explain(shared->allocator, scope, NULL, NULL, &explained));
}

static void *reconcile(void *self)
{
    struct shared *shared = self;
    struct xseg_scope scope = {sizeof(scope), .device = 0};

    for (unsigned i = 0; atomic_load(&shared->creators) > 0; i++) {
        struct xseg_block_info info = {sizeof(info)};
        void *ptr = atomic_load(&shared->slot[i % SLOTS]);

        scope.pool = i % 2 == 0 ? NULL : shared->pool;
        query_all(shared, &scope);
        /* Another thread may have freed and trimmed it. */
        if (ptr != NULL && xseg_block_query(shared->allocator, ptr, &info) != XSEG_OK)
            info.state = XSEG_BLOCK_UNMAPPED;
        if (i % 8 == 0)
            CHECK_OK(xseg_trim(shared->allocator, NULL, NULL, NULL));
    }
    return NULL;
}

static void count_notification(void *context, const struct xseg_mapping *mapping)
{
    (void)mapping;
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void run_threads(struct shared *shared)
{
    struct creator creator[2] = {{shared, 7}, {shared, 8}};
    pthread_t thread[4];

    atomic_store(&shared->creators, COUNT_OF(creator));
    threads_start(thread, create_and_retire, creator, COUNT_OF(creator));
    threads_start(thread + 2, free_blocks, shared, 1);
    threads_start(thread + 3, reconcile, shared, 1);
    threads_join(thread, COUNT_OF(thread));
}

static void play(const char *config, bool is_observed)
{
    struct shared *shared = calloc(1, sizeof(*shared));

    assert_non_null(shared);
    shared->allocator = env_open(config);
    shared->pool = env_pool(shared->allocator);
    shared->side = env_stream();
    if (is_observed) {
        (void)env_observe(shared->allocator, .context = &shared->entries, .on_trace = trace);
        (void)env_observe(shared->allocator, .context = &shared->notifications,
                          .on_unmap = count_notification, .on_map = count_notification);
    }
    run_threads(shared);
    for (unsigned i = 0; i < SLOTS; i++)
        env_free(shared->allocator, atomic_load(&shared->slot[i]));
    assert_ok(xseg_pool_release(shared->pool));
    (void)expect_nothing_left(shared->allocator);
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
