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

static struct xseg_known_stream *find_or_add(xseg_stream handle)
{
    struct xseg_known_stream *stream = NULL;

    assert_ok(xseg_streams_find_or_add(&streams, handle, &stream));
    assert_non_null(stream);
    return stream;
}

static bool can_use(const struct xseg_known_stream *stream)
{
    bool result = false;

    assert_ok(xseg_streams_can_use(&context, stream, &result));
    return result;
}

/* A hit makes no driver call; only the per-thread handle is resolved each time. */
TEST_WITH(known_stream_needs_no_driver_call, set_up, tear_down)
{
    const xseg_stream stream = env_stream();
    struct xseg_known_stream *first = find_or_add(stream);
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ptr_equal(find_or_add(stream), first);
    assert_true(can_use(first));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    struct xseg_known_stream *default_stream = find_or_add(per_thread);
    assert_ptr_equal(find_or_add(per_thread), default_stream);
    assert_true(can_use(default_stream));
    /* One for the new stream, two for the lookups of the per-thread handle, one for can_use(). */
    assert_int_equal(xseg_sim_calls("cuStreamGetId"), 1 + 2 + 1);
    env_stream_destroy(stream);
    /* The legacy stream has two handles. */
    assert_ptr_equal(find_or_add(NULL), find_or_add(legacy));
    assert_true(can_use(find_or_add(NULL)));
    assert_ptr_not_equal(find_or_add(NULL), default_stream);
}

/* The streams of the per-thread handle in two threads, from the view of the second. */
struct thread_streams {
    struct xseg_known_stream *foreign, *own;
    bool can_use_foreign, can_use_own;
};

static void *find_in_thread(void *argument)
{
    struct thread_streams *result = argument;

    if (xseg_streams_find_or_add(&streams, per_thread, &result->own) != XSEG_OK ||
        xseg_streams_can_use(&context, result->foreign, &result->can_use_foreign) != XSEG_OK ||
        xseg_streams_can_use(&context, result->own, &result->can_use_own) != XSEG_OK)
        result->own = NULL;
    return NULL;
}

TEST_WITH(the_per_thread_handle_is_another_stream_in_each_thread, set_up, tear_down)
{
    pthread_t thread;
    struct thread_streams second = {.foreign = find_or_add(per_thread), .can_use_foreign = true};

    assert_int_equal(pthread_create(&thread, NULL, find_in_thread, &second), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_non_null(second.own);
    assert_ptr_not_equal(second.own, second.foreign);
    assert_false(second.can_use_foreign);
    assert_true(second.can_use_own);
    assert_ptr_equal(find_or_add(per_thread), second.foreign);
    assert_false(can_use(second.own));
}

TEST_WITH(failed_driver_query_is_an_error, set_up, tear_down)
{
    struct xseg_known_stream *stream = NULL;
    bool can_use_stream = true;

    assert_ok(xseg_sim_fail("cuStreamGetId", 1, 400));
    assert_error(xseg_streams_find_or_add(&streams, NULL, &stream), DRIVER, "stream of device 0");
    assert_null(stream);
    stream = find_or_add(per_thread);
    assert_ok(xseg_sim_fail("cuStreamGetId", 1, 400));
    assert_int_equal(xseg_streams_can_use(&context, stream, &can_use_stream), XSEG_ERR_DRIVER);
}

enum { STREAMS = 20000 };

/* Each entry is found, and a retired one is reused by the next stream. */
TEST_WITH(table_grows_with_the_streams, set_up, tear_down)
{
    static xseg_stream stream[STREAMS];

    for (unsigned i = 0; i < STREAMS; i++) {
        stream[i] = env_stream();
        (void)find_or_add(stream[i]);
    }
    const uint64_t bytes = xseg_streams_host_bytes(&streams);
    for (unsigned i = 0; i < STREAMS; i++) {
        unsigned steps = 0;

        assert_ptr_equal(find_or_add(stream[i])->handle, stream[i]);
        for (const struct xseg_known_stream *entry =
                 xseg_streams_chain(&streams, (uintptr_t)stream[i]);
             entry != NULL && entry->handle != stream[i]; entry = atomic_load(&entry->next))
            steps++;
        assert_true(steps < 20);
    }
    assert_in_range(bytes, STREAMS * sizeof(struct xseg_known_stream),
                    STREAMS * (sizeof(struct xseg_known_stream) + 4 * sizeof(void *)));
    for (unsigned i = 0; i < STREAMS; i++) {
        struct xseg_known_stream *known = find_or_add(stream[i]);

        xseg_streams_mark_retiring(&streams, known);
        assert_null(xseg_streams_find(&streams, stream[i]));
        xseg_streams_mark_retired(&streams, known);
        env_stream_destroy(stream[i]);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        stream[i] = env_stream();
        (void)find_or_add(stream[i]);
    }
    assert_int_equal(xseg_streams_host_bytes(&streams), bytes);
    for (unsigned i = 0; i < STREAMS; i++) {
        assert_ptr_equal(find_or_add(stream[i])->handle, stream[i]);
        env_stream_destroy(stream[i]);
    }
}

struct reader {
    xseg_stream stream;
    atomic_bool stop;
    unsigned errors;
};

/* A lock-free lookup finds the entry of the stream or none; a lookup under the lock always finds the entry. */
static void *find_until_stopped(void *argument)
{
    struct reader *reader = argument;

    while (!atomic_load(&reader->stop)) {
        const struct xseg_known_stream *fast = xseg_streams_find_fast(&streams, reader->stream);
        const struct xseg_known_stream *known = xseg_streams_find(&streams, reader->stream);

        reader->errors += known == NULL || known->handle != reader->stream;
        reader->errors += fast != NULL && fast != known;
    }
    return NULL;
}

TEST_WITH(reader_finds_its_stream_during_changes, set_up, tear_down)
{
    pthread_t thread;
    static xseg_stream stream[2000];

    struct reader reader = {.stream = env_stream()};
    (void)find_or_add(reader.stream);
    assert_int_equal(pthread_create(&thread, NULL, find_until_stopped, &reader), 0);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            stream[i] = env_stream();
            (void)find_or_add(stream[i]);
        }
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            xseg_streams_mark_retired(&streams, find_or_add(stream[i]));
            env_stream_destroy(stream[i]);
        }
    }
    atomic_store(&reader.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(reader.errors, 0);
    env_stream_destroy(reader.stream);
}

/* --- Retired streams. --- */

static struct xseg_known_stream *find_known(struct xseg_allocator *allocator, xseg_stream stream)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);

    return xseg_streams_find(&device->streams, stream);
}

static void retire(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* Arenas belong to the entry; an entry that had memory is reused before other retired entries. */
TEST(next_stream_reuses_the_entry_of_a_retired_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream idle = env_stream(), busy = env_stream();
    void *shared = env_alloc(allocator, 3 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, shared, idle));
    env_free(allocator, shared);
    env_free(allocator, env_alloc(allocator, 3 * MIB, busy));
    struct xseg_known_stream *const of_idle = find_known(allocator, idle);
    struct xseg_known_stream *const of_busy = find_known(allocator, busy);
    struct xseg_arena *arena = atomic_load(&of_busy->arena[1]);
    retire(allocator, idle);
    retire(allocator, busy);

    const xseg_stream first = env_stream(), second = env_stream(), third = env_stream();
    void *a = env_alloc(allocator, 3 * MIB, first), *b = env_alloc(allocator, 3 * MIB, second);
    void *c = env_alloc(allocator, 3 * MIB, third);
    assert_ptr_equal(find_known(allocator, first), of_busy);
    assert_ptr_equal(atomic_load(&of_busy->arena[1]), arena);
    assert_ptr_equal(find_known(allocator, second), of_idle);
    assert_ptr_not_equal(find_known(allocator, third), of_busy);
    assert_ptr_equal(env_block(allocator, a).stream, first);
    assert_ptr_equal(env_block(allocator, b).stream, second);
    env_free(allocator, a, b, c);
    retire(allocator, first);
    retire(allocator, second);
    retire(allocator, third);
    env_close(allocator);
}

/* A block that the retired stream used does not wait for work of the stream that reuses the entry. */
TEST(use_ends_with_its_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream retired = env_stream();
    void *ptr = env_alloc(allocator, 3 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, retired));
    struct xseg_known_stream *const entry = find_known(allocator, retired);
    retire(allocator, retired);
    const xseg_stream successor = env_stream();
    void *second = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, second, successor));
    assert_ptr_equal(find_known(allocator, successor), entry);
    assert_ok(xseg_sim_launch(successor, UINT64_MAX));
    env_free(allocator, second, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, second).state, XSEG_BLOCK_PENDING_FREE);

    /* A use of the same block by the new stream is recorded. */
    ptr = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, ptr, successor));
    env_free(allocator, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(successor));
    retire(allocator, successor);
    env_empty_cache(allocator);
    env_close(allocator);
}

/* Many busy retired streams precede a completed one, whose entry is reused within the next BUSY / 10 streams. */
TEST(busy_streams_delay_no_other_stream)
{
    enum { BUSY = 100 };
    struct xseg_allocator *allocator = env_open(NULL);
    xseg_stream busy[BUSY], created[BUSY];
    struct xseg_known_stream *completed;
    unsigned count = 0;

    for (unsigned i = 0; i < BUSY; i++) {
        busy[i] = env_stream();
        env_free(allocator, env_alloc(allocator, 512, busy[i]));
        assert_ok(xseg_sim_launch(busy[i], UINT64_MAX));
        assert_ok(xseg_stream_retire(allocator, 0, busy[i]));
    }
    const xseg_stream last = env_stream();
    env_free(allocator, env_alloc(allocator, 512, last));
    completed = find_known(allocator, last);
    retire(allocator, last);
    do {
        created[count] = env_stream();
        env_free(allocator, env_alloc(allocator, 512, created[count]));
    } while (find_known(allocator, created[count++]) != completed && count < BUSY / 10);
    assert_ptr_equal(find_known(allocator, created[count - 1]), completed);
    for (unsigned i = 0; i < BUSY; i++) {
        assert_ok(xseg_sim_finish(busy[i]));
        env_stream_destroy(busy[i]);
    }
    while (count > 0)
        retire(allocator, created[--count]);
    env_close(allocator);
}
