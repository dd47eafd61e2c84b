/* SPDX-License-Identifier: MIT */
/* The streams of a device, and reuse of the entries of retired streams. */
#include <pthread.h>

#include "src/core/device/device.h"
#include "src/core/stream/streams.h"
#include "tests/support/device_context.h"

/* --- Handles that denote one stream, and handles that denote many. --- */

static const xseg_stream legacy = (xseg_stream)(uintptr_t)1;
static const xseg_stream per_thread = (xseg_stream)(uintptr_t)2;

static struct xseg_mutex table_lock;
static struct xseg_streams streams;

FIXTURE(set_up)
{
    context_open(NULL);
    xseg_mutex_init(&table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&streams, &context, &table_lock);
}

FIXTURE(tear_down)
{
    xseg_streams_fini(&streams);
    xseg_mutex_fini(&table_lock);
    context_close();
}

static struct xseg_known_stream *get(xseg_stream handle)
{
    struct xseg_known_stream *stream = NULL;

    assert_ok(xseg_streams_find_or_add(&streams, handle, &stream));
    assert_non_null(stream);
    return stream;
}

static bool can_name(const struct xseg_known_stream *stream)
{
    bool can = false;

    assert_ok(xseg_streams_can_use(&context, stream, &can));
    return can;
}

/* A hit makes no driver call; only the per-thread handle is resolved each time. */
TEST_WITH(known_stream_needs_no_driver_call, set_up, tear_down)
{
    const xseg_stream own = env_stream();
    struct xseg_known_stream *first = get(own);
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ptr_equal(get(own), first);
    assert_true(can_name(first));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    struct xseg_known_stream *mine = get(per_thread);
    assert_ptr_equal(get(per_thread), mine);
    assert_true(can_name(mine));
    assert_int_equal(xseg_sim_calls("cuStreamGetId"), 4);
    env_stream_destroy(own);
    /* The legacy stream has two handles. */
    assert_ptr_equal(get(NULL), get(legacy));
    assert_true(can_name(get(NULL)));
    assert_ptr_not_equal(get(NULL), mine);
}

struct visit {
    struct xseg_known_stream *theirs, *mine;
    bool can_name_theirs, can_name_mine;
};

static void *visit(void *argument)
{
    struct visit *visit = argument;

    if (xseg_streams_find_or_add(&streams, per_thread, &visit->mine) != XSEG_OK ||
        xseg_streams_can_use(&context, visit->theirs, &visit->can_name_theirs) != XSEG_OK ||
        xseg_streams_can_use(&context, visit->mine, &visit->can_name_mine) != XSEG_OK)
        visit->mine = NULL;
    return NULL;
}

TEST_WITH(the_per_thread_handle_is_another_stream_in_each_thread, set_up, tear_down)
{
    pthread_t thread;
    struct visit their = {.theirs = get(per_thread), .can_name_theirs = true};

    assert_int_equal(pthread_create(&thread, NULL, visit, &their), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_non_null(their.mine);
    assert_ptr_not_equal(their.mine, their.theirs);
    assert_false(their.can_name_theirs);
    assert_true(their.can_name_mine);
    assert_ptr_equal(get(per_thread), their.theirs);
    assert_false(can_name(their.mine));
}

TEST_WITH(failed_driver_query_is_an_error, set_up, tear_down)
{
    struct xseg_known_stream *stream = NULL;
    bool can = true;

    assert_ok(xseg_sim_fail("cuStreamGetId", 1, 400));
    assert_error(xseg_streams_find_or_add(&streams, NULL, &stream), DRIVER, "stream of device 0");
    assert_null(stream);
    stream = get(per_thread);
    assert_ok(xseg_sim_fail("cuStreamGetId", 1, 400));
    assert_int_equal(xseg_streams_can_use(&context, stream, &can), XSEG_ERR_DRIVER);
}

enum { MANY = 20000 };

/* Each entry is found, and a retired one is reused by the next stream. */
TEST_WITH(table_grows_with_the_streams, set_up, tear_down)
{
    static xseg_stream stream[MANY];

    for (unsigned i = 0; i < MANY; i++) {
        stream[i] = env_stream();
        (void)get(stream[i]);
    }
    const uint64_t bytes = xseg_streams_host_bytes(&streams);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned passed = 0;

        assert_ptr_equal(get(stream[i])->handle, stream[i]);
        for (const struct xseg_known_stream *at =
                 xseg_streams_chain(&streams, (uintptr_t)stream[i]);
             at != NULL && at->handle != stream[i]; at = atomic_load(&at->next))
            passed++;
        assert_true(passed < 20);
    }
    assert_in_range(bytes, MANY * sizeof(struct xseg_known_stream),
                    MANY * (sizeof(struct xseg_known_stream) + 4 * sizeof(void *)));
    for (unsigned i = 0; i < MANY; i++) {
        struct xseg_known_stream *known = get(stream[i]);

        xseg_streams_mark_retiring(&streams, known);
        assert_null(xseg_streams_find(&streams, stream[i]));
        xseg_streams_mark_retired(&streams, known);
        env_stream_destroy(stream[i]);
    }
    for (unsigned i = 0; i < MANY; i++) {
        stream[i] = env_stream();
        (void)get(stream[i]);
    }
    assert_int_equal(xseg_streams_host_bytes(&streams), bytes);
    for (unsigned i = 0; i < MANY; i++) {
        assert_ptr_equal(get(stream[i])->handle, stream[i]);
        env_stream_destroy(stream[i]);
    }
}

struct reading {
    xseg_stream stream;
    atomic_bool ends;
    unsigned wrong;
};

/* A lock-free lookup finds the stream's own entry or none; a lookup under the lock always finds it. */
static void *read_on(void *argument)
{
    struct reading *reading = argument;

    while (!atomic_load(&reading->ends)) {
        const struct xseg_known_stream *plain = xseg_streams_find_fast(&streams, reading->stream);
        const struct xseg_known_stream *known = xseg_streams_find(&streams, reading->stream);

        reading->wrong += known == NULL || known->handle != reading->stream;
        reading->wrong += plain != NULL && plain != known;
    }
    return NULL;
}

TEST_WITH(reader_finds_its_stream_during_changes, set_up, tear_down)
{
    pthread_t thread;
    static xseg_stream stream[2000];

    struct reading reading = {.stream = env_stream()};
    (void)get(reading.stream);
    assert_int_equal(pthread_create(&thread, NULL, read_on, &reading), 0);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            stream[i] = env_stream();
            (void)get(stream[i]);
        }
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            xseg_streams_mark_retired(&streams, get(stream[i]));
            env_stream_destroy(stream[i]);
        }
    }
    atomic_store(&reading.ends, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(reading.wrong, 0);
    env_stream_destroy(reading.stream);
}

/* --- Retired streams. --- */

static struct xseg_known_stream *known(struct xseg_allocator *allocator, xseg_stream stream)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);

    return xseg_streams_find(&device->streams, stream);
}

static void retire(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* Arenas belong to the entry; among several retired entries, one that had memory is reused first. */
TEST(next_stream_reuses_the_entry_of_a_retired_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream idle = env_stream(), busy = env_stream();
    void *shared = env_alloc(allocator, 3 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, shared, idle));
    env_free(allocator, shared);
    env_free(allocator, env_alloc(allocator, 3 * MIB, busy));
    struct xseg_known_stream *const of_idle = known(allocator, idle);
    struct xseg_known_stream *const of_busy = known(allocator, busy);
    struct xseg_arena *arena = atomic_load(&of_busy->arena[1]);
    retire(allocator, idle);
    retire(allocator, busy);

    const xseg_stream first = env_stream(), second = env_stream(), third = env_stream();
    void *a = env_alloc(allocator, 3 * MIB, first), *b = env_alloc(allocator, 3 * MIB, second);
    void *c = env_alloc(allocator, 3 * MIB, third);
    assert_ptr_equal(known(allocator, first), of_busy);
    assert_ptr_equal(atomic_load(&of_busy->arena[1]), arena);
    assert_ptr_equal(known(allocator, second), of_idle);
    assert_ptr_not_equal(known(allocator, third), of_busy);
    assert_ptr_equal(env_block(allocator, a).stream, first);
    assert_ptr_equal(env_block(allocator, b).stream, second);
    env_free(allocator, a, b, c);
    retire(allocator, first);
    retire(allocator, second);
    retire(allocator, third);
    env_close(allocator);
}

/* A block that the old stream used does not wait for work of the stream that reuses the entry. */
TEST(use_ends_with_its_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream old = env_stream();
    void *ptr = env_alloc(allocator, 3 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, old));
    struct xseg_known_stream *const entry = known(allocator, old);
    retire(allocator, old);
    const xseg_stream young = env_stream();
    void *other = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, other, young));
    assert_ptr_equal(known(allocator, young), entry);
    assert_ok(xseg_sim_launch(young, UINT64_MAX));
    env_free(allocator, other, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, other).state, XSEG_BLOCK_PENDING_FREE);

    /* The new stream's own uses of the same block are recorded as its own. */
    ptr = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, ptr, young));
    env_free(allocator, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(young));
    retire(allocator, young);
    env_empty_cache(allocator);
    env_close(allocator);
}

/* Many busy streams precede a completed one: it is found after a few more streams. */
TEST(busy_streams_delay_no_other_stream)
{
    enum { BUSY = 100 };
    struct xseg_allocator *allocator = env_open(NULL);
    xseg_stream busy[BUSY], met[BUSY];
    struct xseg_known_stream *passed;
    unsigned count = 0;

    for (unsigned i = 0; i < BUSY; i++) {
        busy[i] = env_stream();
        env_free(allocator, env_alloc(allocator, 512, busy[i]));
        assert_ok(xseg_sim_launch(busy[i], UINT64_MAX));
        assert_ok(xseg_stream_retire(allocator, 0, busy[i]));
    }
    const xseg_stream last = env_stream();
    env_free(allocator, env_alloc(allocator, 512, last));
    passed = known(allocator, last);
    retire(allocator, last);
    do {
        met[count] = env_stream();
        env_free(allocator, env_alloc(allocator, 512, met[count]));
    } while (known(allocator, met[count++]) != passed && count < BUSY / 10);
    assert_ptr_equal(known(allocator, met[count - 1]), passed);
    for (unsigned i = 0; i < BUSY; i++) {
        assert_ok(xseg_sim_finish(busy[i]));
        env_stream_destroy(busy[i]);
    }
    while (count > 0)
        retire(allocator, met[--count]);
    env_close(allocator);
}
