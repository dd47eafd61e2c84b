/* SPDX-License-Identifier: MIT */
/* The streams that a device knows: which handles are one stream, and which are many. */
#include <pthread.h>
#include <string.h>

#include "src/core/stream/streams.h"
#include "tests/support/env.h"
#include "vmm/context.h"

static const xseg_stream legacy = (xseg_stream)(uintptr_t)1;
static const xseg_stream per_thread = (xseg_stream)(uintptr_t)2;

struct fixture {
    struct xseg_driver *driver;
    struct xseg_context context;
    struct xseg_unreleased_list leftovers;
    struct xseg_mutex table_lock;
    struct xseg_streams streams;
};

static void set_up(struct fixture *f)
{
    char why[128];

    memset(f, 0, sizeof(*f));
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(xseg_driver_open(env_driver(), &f->driver), XSEG_OK);
    assert_int_equal(xseg_unreleased_init(&f->leftovers, &f->context), XSEG_OK);
    assert_int_equal(xseg_context_open(&f->context, f->driver, 0, &f->leftovers, why, sizeof(why)),
                     XSEG_OK);
    xseg_mutex_init(&f->table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&f->streams, &f->context, &f->table_lock);
}

static void tear_down(struct fixture *f)
{
    xseg_streams_fini(&f->streams);
    xseg_mutex_fini(&f->table_lock);
    assert_int_equal(xseg_driver_release_context(&f->context), XSEG_OK);
    xseg_unreleased_fini(&f->leftovers);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

static struct xseg_known_stream *get(struct fixture *f, xseg_stream handle)
{
    struct xseg_known_stream *stream = NULL;

    assert_int_equal(xseg_streams_find_or_add(&f->streams, handle, &stream), XSEG_OK);
    assert_non_null(stream);
    return stream;
}

static bool can_name(struct fixture *f, const struct xseg_known_stream *stream)
{
    bool can = false;

    assert_int_equal(xseg_streams_can_use(&f->context, stream, &can), XSEG_OK);
    return can;
}

TEST(the_legacy_stream_has_two_handles)
{
    struct fixture f;

    set_up(&f);
    assert_ptr_equal(get(&f, NULL), get(&f, legacy));
    assert_true(can_name(&f, get(&f, NULL)));
    assert_ptr_not_equal(get(&f, NULL), get(&f, per_thread));
    tear_down(&f);
}

/* A hit asks the driver nothing; only the per-thread handle has to be looked up each time. */
TEST(known_stream_needs_no_driver_call)
{
    struct fixture f;

    set_up(&f);
    const xseg_stream own = env_stream();
    struct xseg_known_stream *first = get(&f, own);
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ptr_equal(get(&f, own), first);
    assert_true(can_name(&f, first));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    struct xseg_known_stream *mine = get(&f, per_thread);
    assert_ptr_equal(get(&f, per_thread), mine);
    assert_true(can_name(&f, mine));
    assert_int_equal(xseg_sim_calls("cuStreamGetId"), 4);
    env_stream_destroy(own);
    tear_down(&f);
}

struct visit {
    struct fixture *f;
    struct xseg_known_stream *theirs, *mine;
    bool can_name_theirs, can_name_mine;
};

static void *visit(void *argument)
{
    struct visit *visit = argument;

    if (xseg_streams_find_or_add(&visit->f->streams, per_thread, &visit->mine) != XSEG_OK ||
        xseg_streams_can_use(&visit->f->context, visit->theirs, &visit->can_name_theirs) !=
            XSEG_OK ||
        xseg_streams_can_use(&visit->f->context, visit->mine, &visit->can_name_mine) != XSEG_OK)
        visit->mine = NULL;
    return NULL;
}

TEST(the_per_thread_handle_is_another_stream_in_each_thread)
{
    struct fixture f;
    pthread_t thread;

    set_up(&f);
    struct visit their = {.f = &f, .theirs = get(&f, per_thread), .can_name_theirs = true};
    assert_int_equal(pthread_create(&thread, NULL, visit, &their), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_non_null(their.mine);
    assert_ptr_not_equal(their.mine, their.theirs);
    assert_false(their.can_name_theirs);
    assert_true(their.can_name_mine);
    assert_ptr_equal(get(&f, per_thread), their.theirs);
    assert_false(can_name(&f, their.mine));
    tear_down(&f);
}

TEST(failed_driver_query_is_an_error)
{
    struct fixture f;
    struct xseg_known_stream *stream = NULL;
    bool can = true;

    set_up(&f);
    assert_int_equal(xseg_sim_fail("cuStreamGetId", 1, 400), XSEG_OK);
    env_expect_error(xseg_streams_find_or_add(&f.streams, NULL, &stream), XSEG_ERR_DRIVER,
                     "stream of device 0");
    assert_null(stream);
    stream = get(&f, per_thread);
    assert_int_equal(xseg_sim_fail("cuStreamGetId", 1, 400), XSEG_OK);
    assert_int_equal(xseg_streams_can_use(&f.context, stream, &can), XSEG_ERR_DRIVER);
    tear_down(&f);
}

enum { MANY = 20000 };

/* The table grows with the entries: each is found, and a gone one is the next one's. */
TEST(many_threads_find_streams_concurrently)
{
    static xseg_stream stream[MANY];
    struct fixture f;

    set_up(&f);
    for (unsigned i = 0; i < MANY; i++) {
        stream[i] = env_stream();
        (void)get(&f, stream[i]);
    }
    const uint64_t bytes = xseg_streams_host_bytes(&f.streams);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned passed = 0;

        assert_ptr_equal(get(&f, stream[i])->handle, stream[i]);
        for (const struct xseg_known_stream *at =
                 xseg_streams_chain(&f.streams, (uintptr_t)stream[i]);
             at != NULL && at->handle != stream[i]; at = atomic_load(&at->next))
            passed++;
        assert_true(passed < 20);
    }
    assert_in_range(bytes, MANY * sizeof(struct xseg_known_stream),
                    MANY * (sizeof(struct xseg_known_stream) + 4 * sizeof(void *)));
    for (unsigned i = 0; i < MANY; i++) {
        struct xseg_known_stream *known = get(&f, stream[i]);

        xseg_streams_mark_retiring(&f.streams, known);
        assert_null(xseg_streams_find(&f.streams, stream[i]));
        xseg_streams_mark_retired(&f.streams, known);
        env_stream_destroy(stream[i]);
    }
    for (unsigned i = 0; i < MANY; i++) {
        stream[i] = env_stream();
        (void)get(&f, stream[i]);
    }
    assert_int_equal(xseg_streams_host_bytes(&f.streams), bytes);
    for (unsigned i = 0; i < MANY; i++) {
        assert_ptr_equal(get(&f, stream[i])->handle, stream[i]);
        env_stream_destroy(stream[i]);
    }
    tear_down(&f);
}

struct reading {
    struct fixture *f;
    xseg_stream stream;
    atomic_bool ends;
    unsigned wrong;
};

/* What is found without a lock is the stream's own entry; with one, it is always found. */
static void *read_on(void *argument)
{
    struct reading *reading = argument;

    while (!atomic_load(&reading->ends)) {
        const struct xseg_known_stream *plain =
            xseg_streams_find_fast(&reading->f->streams, reading->stream);
        const struct xseg_known_stream *known =
            xseg_streams_find(&reading->f->streams, reading->stream);

        reading->wrong += known == NULL || known->handle != reading->stream;
        reading->wrong += plain != NULL && plain != known;
    }
    return NULL;
}

TEST(reader_finds_its_stream_during_changes)
{
    struct fixture f;
    pthread_t thread;
    static xseg_stream stream[2000];

    set_up(&f);
    struct reading reading = {.f = &f, .stream = env_stream()};
    (void)get(&f, reading.stream);
    assert_int_equal(pthread_create(&thread, NULL, read_on, &reading), 0);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            stream[i] = env_stream();
            (void)get(&f, stream[i]);
        }
        for (unsigned i = 0; i < COUNT_OF(stream); i++) {
            xseg_streams_mark_retired(&f.streams, get(&f, stream[i]));
            env_stream_destroy(stream[i]);
        }
    }
    atomic_store(&reading.ends, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(reading.wrong, 0);
    env_stream_destroy(reading.stream);
    tear_down(&f);
}
