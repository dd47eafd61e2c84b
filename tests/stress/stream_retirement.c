/* SPDX-License-Identifier: MIT */
/* Streams are retired, and later streams reuse their memory, while other threads free, trim and query that memory.
 * Two tests park a thread that holds no lock.  The flags between the threads are relaxed, so that only the library
 * orders their accesses.  Meant for ThreadSanitizer. */
#include <sched.h>

#include "src/core/pending/pending.h"
#include "tests/stress/stress.h"

/* --- The gate at which a thread parks. --- */

static struct {
    atomic_bool is_armed, reached, is_open;
} gate;

/* The first thread that arrives after the gate is armed waits until the gate is open. */
static void stop_at_gate(void)
{
    if (!atomic_load_explicit(&gate.is_armed, memory_order_relaxed) ||
        !atomic_exchange_explicit(&gate.is_armed, false, memory_order_relaxed))
        return;
    atomic_store_explicit(&gate.reached, true, memory_order_relaxed);
    while (!atomic_load_explicit(&gate.is_open, memory_order_relaxed))
        (void)sched_yield();
}

/* Called by a free with a debug fill, which has released the lock of the arena, and has not cached the block yet. */
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

/* The call of the parked thread. */
struct call {
    struct xseg_allocator *allocator;
    void *ptr; /* block to free; NULL: trim */
};

/* A stream whose two arenas (small, large) have one allocated block each, and cached blocks. */
static xseg_stream make_stream(struct xseg_allocator *allocator, void *allocated[2])
{
    const xseg_stream stream = env_stream();
    void *small = env_alloc(allocator, 1000, stream),
         *large = env_alloc(allocator, 3 * MIB, stream);

    allocated[0] = env_alloc(allocator, 1000, stream);
    allocated[1] = env_alloc(allocator, 3 * MIB, stream);
    env_free(allocator, small, large);
    return stream;
}

static void retire_stream(struct xseg_allocator *allocator, xseg_stream stream)
{
    CHECK_OK(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* Retire a stream, and allocate on a new one, which reuses the arena of an allocated block.  There is no free, which
 * would acquire the next lock of the parked thread. */
static xseg_stream replace_stream(struct xseg_allocator *allocator, xseg_stream stream,
                                  const void *allocated, void **new_block)
{
    retire_stream(allocator, stream);
    const xseg_stream next = env_stream();
    *new_block = env_alloc(allocator, 1000, next);
    assert_ptr_equal(env_block(allocator, allocated).stream, next);
    return next;
}

/* As replace_stream(), while another thread is parked at the gate. */
static xseg_stream replace_stream_during(void *(*run)(void *), struct call *call,
                                         xseg_stream stream, const void *allocated,
                                         void **new_block)
{
    pthread_t thread;

    atomic_store(&gate.reached, false);
    atomic_store(&gate.is_open, false);
    atomic_store(&gate.is_armed, true);
    assert_int_equal(pthread_create(&thread, NULL, run, call), 0);
    while (!atomic_load_explicit(&gate.reached, memory_order_relaxed))
        (void)sched_yield();
    stream = replace_stream(call->allocator, stream, allocated, new_block);
    atomic_store_explicit(&gate.is_open, true, memory_order_relaxed);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return stream;
}

static void count_entry(void *context, const struct xseg_trace_entry *entry)
{
    (void)entry;
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void *free_parked(void *self)
{
    const struct call *call = self;

    CHECK_OK(xseg_free(call->allocator, call->ptr));
    return NULL;
}

TEST(free_completes_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open("debug_fill:True,history:all");
    atomic_uint entries = 0;
    uint64_t id = 0;

    for (unsigned round = 0; round < 20; round++) {
        void *allocated[2], *new_block;
        xseg_stream stream = make_stream(allocator, allocated);
        struct call call = {allocator, allocated[round % 2]};

        if (round == 10)
            id = env_observe(allocator, .context = &entries, .on_trace = count_entry);
        stream =
            replace_stream_during(free_parked, &call, stream, allocated[!(round % 2)], &new_block);
        env_free(allocator, allocated[!(round % 2)], new_block);
        retire_stream(allocator, stream);
    }
    assert_true(entries >
                20); /* the observer exists during 10 rounds, each with more than two events */
    assert_ok(xseg_observer_remove(allocator, id));
    env_close(allocator);
}

static void count_and_stop(void *context, const struct xseg_mapping *mapping)
{
    (void)mapping;
    atomic_fetch_add((atomic_uint *)context, 1);
    stop_at_gate();
}

static void *trim_all(void *self)
{
    const struct call *call = self;

    CHECK_OK(xseg_trim(call->allocator, NULL, NULL, NULL));
    return NULL;
}

/* Four pages with a generation each are released together, and the observer is notified of one after the other. */
TEST(memory_is_reported_while_its_stream_is_retired)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct call call = {allocator, NULL};
    atomic_uint notifications = 0;
    const uint64_t id =
        env_observe(allocator, .context = &notifications, .on_unmap = count_and_stop);

    for (unsigned round = 0; round < 20; round++) {
        void *allocated[2], *large_blocks[4], *new_block;
        xseg_stream stream = make_stream(allocator, allocated);
        const unsigned before = notifications;

        for (unsigned i = 0; i < COUNT_OF(large_blocks); i++)
            large_blocks[i] = env_alloc(allocator, 20 * MIB, stream);
        for (unsigned i = 0; i < COUNT_OF(large_blocks); i++)
            env_free(allocator, large_blocks[i]);
        stream = replace_stream_during(trim_all, &call, stream, allocated[1], &new_block);
        assert_true(notifications > before + 2);
        env_free(allocator, allocated[0], allocated[1], new_block);
        retire_stream(allocator, stream);
    }
    assert_ok(xseg_observer_remove(allocator, id));
    env_close(allocator);
}

/* --- Four threads create, retire, free, query and trim. --- */

#define SLOTS  64u
#define ROUNDS 300u

struct shared {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    xseg_stream other_stream;
    _Atomic(void *) slot[SLOTS]; /* blocks that any thread may free */
    atomic_uint creators;        /* number of threads that still create streams */
    atomic_uint entries, notifications;
};

struct creator {
    struct shared *shared;
    uint64_t random;
};

/* Free a block, after a use of another stream if `is_recorded`: on the slow path. */
static void free_block(struct shared *shared, void *ptr, bool is_recorded)
{
    if (ptr == NULL)
        return;
    if (is_recorded)
        CHECK_OK(xseg_record_stream(shared->allocator, ptr, shared->other_stream));
    CHECK_OK(xseg_free(shared->allocator, ptr));
}

static void *alloc_block(struct creator *creator, xseg_stream stream)
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

/* Create and retire streams; the blocks of a retired stream remain allocated. */
static void *create_and_retire(void *self)
{
    struct creator *creator = self;
    struct shared *shared = creator->shared;

    for (unsigned round = 0; round < ROUNDS; round++) {
        const xseg_stream stream = env_stream();

        for (unsigned i = 0; i < 8; i++) {
            void *ptr = alloc_block(creator, stream);
            const uint64_t random = rng_next(&creator->random);

            free_block(shared, atomic_exchange(&shared->slot[random % SLOTS], ptr),
                       random / 64 % 2);
        }
        retire_stream(shared->allocator, stream);
    }
    atomic_fetch_sub(&shared->creators, 1);
    return NULL;
}

static void *free_blocks(void *self)
{
    struct shared *shared = self;
    uint64_t random = 99;

    while (atomic_load(&shared->creators) > 0) {
        const uint64_t number = rng_next(&random);

        free_block(shared, atomic_exchange(&shared->slot[number % SLOTS], NULL), number / 64 % 2);
    }
    return NULL;
}

/* The visitors read the result of the library, which ThreadSanitizer checks. */
static bool read_mapping(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    return mapping->generation != 0;
}

static bool read_block(void *context, const struct xseg_block_info *block)
{
    (void)context;
    return block->bytes != 0;
}

static void query_all(struct shared *shared, const struct xseg_scope *scope)
{
    struct xseg_explain_result result = {sizeof(result)};
    struct xseg_statistics stats = {sizeof(stats)};

    CHECK_OK(xseg_for_each_mapping(shared->allocator, scope, read_mapping, NULL));
    CHECK_OK(xseg_for_each_block(shared->allocator, scope, read_block, NULL));
    CHECK_OK(xseg_stats_get(shared->allocator, scope, &stats));
    CHECK_OK(xseg_explain(shared->allocator, scope, NULL, NULL, &result));
}

static void *query_and_trim(void *self)
{
    struct shared *shared = self;
    struct xseg_scope scope = {sizeof(scope), .device = 0};

    for (unsigned i = 0; atomic_load(&shared->creators) > 0; i++) {
        struct xseg_block_info info = {sizeof(info)};
        void *ptr = atomic_load(&shared->slot[i % SLOTS]);

        scope.pool = i % 2 == 0 ? NULL : shared->pool;
        query_all(shared, &scope);
        /* The query fails if another thread has freed and trimmed the block. */
        if (ptr != NULL)
            (void)xseg_block_query(shared->allocator, ptr, &info);
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
    threads_start(thread + 3, query_and_trim, shared, 1);
    threads_join(thread, COUNT_OF(thread));
}

static void stress_streams(const char *config, bool is_observed)
{
    struct shared *shared = calloc(1, sizeof(*shared));

    assert_non_null(shared);
    shared->allocator = env_open(config);
    shared->pool = env_pool(shared->allocator);
    shared->other_stream = env_stream();
    if (is_observed) {
        (void)env_observe(shared->allocator, .context = &shared->entries, .on_trace = count_entry);
        (void)env_observe(shared->allocator, .context = &shared->notifications,
                          .on_unmap = count_notification, .on_map = count_notification);
    }
    run_threads(shared);
    for (unsigned i = 0; i < SLOTS; i++)
        env_free(shared->allocator, atomic_load(&shared->slot[i]));
    assert_ok(xseg_pool_release(shared->pool));
    (void)expect_all_released(shared->allocator);
    /* 2 threads x 300 streams x 8 allocations.  The number of notifications depends on how often trims run. */
    assert_true(!is_observed || (shared->entries > 1000 && shared->notifications > 0));
    env_close(shared->allocator, shared->other_stream);
    free(shared);
}

TEST(streams_are_retired_during_other_calls)
{
    stress_streams(NULL, false);
    stress_streams("expandable_segments:False", false);
}

TEST(streams_are_retired_during_callbacks)
{
    stress_streams(NULL, true);
    stress_streams("history:all,idle_ms:0", true);
}
