/* SPDX-License-Identifier: MIT */
/* Departure: what is handed over while the handle of a stream that is gone comes again. */
#include <pthread.h>
#include <sched.h>

#include "src/core/allocator.h"
#include "tests/support/scene.h"

struct newcomer {
    struct xseg_allocator *allocator;
    xseg_stream stream;
    void *ptr;
};

static void *come(void *argument)
{
    struct newcomer *newcomer = argument;

    newcomer->ptr = scene_alloc(newcomer->allocator, 3 * MIB, newcomer->stream);
    return NULL;
}

/* Whether another thread wants a latch that the caller holds. */
static bool is_wanted(struct xseg_latch *latch)
{
#if XSEG_LATCH_IS_MUTEX
    (void)latch;
    return true;
#else
    return latch->has_barrier ? atomic_load(&latch->owner) == XSEG_LATCH_NOBODYS
                              : atomic_load(&latch->sleepers) != 0;
#endif
}

/* A new stream is about to get the arena of one that is gone, whose handle comes again just then: the
 * arena is not the old stream's any more, but that of the stream which has its entry. */
static void an_arena_stays_with_a_handle_that_comes_again(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_known_stream *known = NULL;
    pthread_t thread;

    (void)state;
    /* Who wants a mutex cannot be seen. */
    if (XSEG_LATCH_IS_MUTEX)
        return;
    settings.recycles = true;
    struct xseg_allocator *allocator = scene_open_on(&settings, NULL);
    struct newcomer newcomer = {allocator, scene_stream(), NULL};
    const xseg_stream old = scene_stream();
    scene_free(allocator, scene_alloc(allocator, 3 * MIB, old));
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    known = xseg_streams_find(&device->streams, old);
    struct xseg_arena *arena = atomic_load(&known->arena[1]);
    assert_int_equal(xseg_stream_gone(allocator, 0, old), XSEG_OK);
    scene_stream_destroy(old);

    xseg_arena_lock(arena);
    assert_int_equal(pthread_create(&thread, NULL, come, &newcomer), 0);
    while (!is_wanted(&arena->lock))
        (void)sched_yield();
    const xseg_stream again = scene_stream();
    assert_ptr_equal(again, old);
    assert_int_equal(xseg_streams_get(&device->streams, again, &known), XSEG_OK);
    xseg_arena_unlock(arena);
    assert_int_equal(pthread_join(thread, NULL), 0);

    assert_ptr_equal(atomic_load(&known->arena[1]), arena);
    assert_ptr_equal(xseg_arena_stream(arena), known);
    assert_ptr_equal(scene_block(allocator, newcomer.ptr).stream, newcomer.stream);
    void *ptr = scene_alloc(allocator, 3 * MIB, again);
    assert_ptr_equal(scene_block(allocator, ptr).stream, again);
    scene_free(allocator, ptr);
    scene_free(allocator, newcomer.ptr);
    assert_int_equal(xseg_stream_gone(allocator, 0, again), XSEG_OK);
    assert_int_equal(xseg_stream_gone(allocator, 0, newcomer.stream), XSEG_OK);
    scene_stream_destroy(again);
    scene_stream_destroy(newcomer.stream);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_stays_with_a_handle_that_comes_again),
    };

    return cmocka_run_group_tests_name("departure", tests, NULL, NULL);
}
