/* SPDX-License-Identifier: MIT */
/* Departure: what becomes of the entry of a stream that is gone. */
#include "src/core/device/allocator.h"
#include "tests/support/env.h"

static struct xseg_known_stream *known(struct xseg_allocator *allocator, xseg_stream stream)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);

    return xseg_streams_find(&device->streams, stream);
}

static void leave(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_int_equal(xseg_stream_retire(allocator, 0, stream), XSEG_OK);
    env_stream_destroy(stream);
}

/* With the entry come the arenas; of several that are gone, one that had memory comes first. */
TEST(next_stream_reuses_the_entry_of_a_retired_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream idle = env_stream(), busy = env_stream();
    void *shared = env_alloc(allocator, 3 * MIB, NULL);

    assert_int_equal(xseg_record_stream(allocator, shared, idle), XSEG_OK);
    env_free(allocator, shared);
    env_free(allocator, env_alloc(allocator, 3 * MIB, busy));
    struct xseg_known_stream *const of_idle = known(allocator, idle);
    struct xseg_known_stream *const of_busy = known(allocator, busy);
    struct xseg_arena *arena = atomic_load(&of_busy->arena[1]);
    leave(allocator, idle);
    leave(allocator, busy);

    const xseg_stream first = env_stream(), second = env_stream(), third = env_stream();
    void *a = env_alloc(allocator, 3 * MIB, first), *b = env_alloc(allocator, 3 * MIB, second);
    void *c = env_alloc(allocator, 3 * MIB, third);
    assert_ptr_equal(known(allocator, first), of_busy);
    assert_ptr_equal(atomic_load(&of_busy->arena[1]), arena);
    assert_ptr_equal(known(allocator, second), of_idle);
    assert_ptr_not_equal(known(allocator, third), of_busy);
    assert_ptr_equal(env_block(allocator, a).stream, first);
    assert_ptr_equal(env_block(allocator, b).stream, second);
    env_free(allocator, a);
    env_free(allocator, b);
    env_free(allocator, c);
    leave(allocator, first);
    leave(allocator, second);
    leave(allocator, third);
    env_close(allocator);
}

/* A block that the old stream used does not wait for the work of the one that has its entry. */
TEST(a_use_ends_with_its_stream)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream old = env_stream();
    void *ptr = env_alloc(allocator, 3 * MIB, NULL);

    assert_int_equal(xseg_record_stream(allocator, ptr, old), XSEG_OK);
    struct xseg_known_stream *const entry = known(allocator, old);
    leave(allocator, old);
    const xseg_stream young = env_stream();
    void *other = env_alloc(allocator, 3 * MIB, NULL);
    assert_int_equal(xseg_record_stream(allocator, other, young), XSEG_OK);
    assert_ptr_equal(known(allocator, young), entry);
    assert_int_equal(xseg_sim_launch(young, UINT64_MAX), XSEG_OK);
    env_free(allocator, other);
    env_free(allocator, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, other).state, XSEG_BLOCK_PENDING_FREE);

    /* The new stream's own uses of the same block are noted as such. */
    ptr = env_alloc(allocator, 3 * MIB, NULL);
    assert_int_equal(xseg_record_stream(allocator, ptr, young), XSEG_OK);
    env_free(allocator, ptr);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_int_equal(xseg_sim_finish(young), XSEG_OK);
    leave(allocator, young);
    env_empty_cache(allocator);
    env_close(allocator);
}

/* Many that still work stand in front of one that has passed: it is found after a few more streams. */
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
        assert_int_equal(xseg_sim_launch(busy[i], UINT64_MAX), XSEG_OK);
        assert_int_equal(xseg_stream_retire(allocator, 0, busy[i]), XSEG_OK);
    }
    const xseg_stream last = env_stream();
    env_free(allocator, env_alloc(allocator, 512, last));
    passed = known(allocator, last);
    leave(allocator, last);
    do {
        met[count] = env_stream();
        env_free(allocator, env_alloc(allocator, 512, met[count]));
    } while (known(allocator, met[count++]) != passed && count < BUSY / 10);
    assert_ptr_equal(known(allocator, met[count - 1]), passed);
    for (unsigned i = 0; i < BUSY; i++) {
        assert_int_equal(xseg_sim_finish(busy[i]), XSEG_OK);
        env_stream_destroy(busy[i]);
    }
    while (count > 0)
        leave(allocator, met[--count]);
    env_close(allocator);
}
