/* SPDX-License-Identifier: MIT */
/*
 * A pool ends, and its segments become orphans, while a thread takes a pin of such memory back: a pin
 * belongs to the page, whichever pool has that.
 *
 * The thread that ends the pool is parked where a segment is in neither place.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "src/core/block/page_map.h"
#include "tests/support/scene.h"

/* So often the parked thread yields after the other one has begun: that one has come to wait by then, or
 * has returned; nothing depends on which. */
#define YIELDS 20000u

static struct {
    atomic_bool wanted, reached, begun, returned;
} gate;

/* NOLINTBEGIN(bugprone-reserved-identifier) */
void __real_xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent);
void __wrap_xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent);
/* NOLINTEND(bugprone-reserved-identifier) */

void __wrap_xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent)
{
    __real_xseg_page_map_remove(page_map, extent);
    if (!atomic_exchange(&gate.wanted, false))
        return;
    atomic_store(&gate.reached, true);
    while (!atomic_load(&gate.begun))
        (void)sched_yield();
    for (unsigned i = 0; i < YIELDS && !atomic_load(&gate.returned); i++)
        (void)sched_yield();
}

struct unpinning {
    struct xseg_allocator *allocator;
    const void *ptr;
    xseg_status status;
};

static void *unpin(void *self)
{
    struct unpinning *unpinning = self;

    while (!atomic_load(&gate.reached))
        (void)sched_yield();
    atomic_store(&gate.begun, true);
    unpinning->status = xseg_unpin(unpinning->allocator, unpinning->ptr, 100);
    atomic_store(&gate.returned, true);
    return NULL;
}

static void a_pin_is_taken_back_while_its_pool_ends(void **state)
{
    static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = scene_open(configs[i / 2]);
        struct xseg_pool *pool = scene_pool(allocator);
        void *ptr = scene_alloc_in(allocator, pool, i % 2 == 0 ? 1000 : 30 * MIB, NULL);
        struct unpinning unpinning = {allocator, ptr, XSEG_OK};
        pthread_t thread;

        assert_int_equal(xseg_pin(allocator, ptr, 100), XSEG_OK);
        scene_free(allocator, ptr);
        atomic_store(&gate.reached, false);
        atomic_store(&gate.begun, false);
        atomic_store(&gate.returned, false);
        atomic_store(&gate.wanted, true);
        assert_int_equal(pthread_create(&thread, NULL, unpin, &unpinning), 0);
        assert_int_equal(xseg_pool_release(pool), XSEG_OK);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(unpinning.status, XSEG_OK);
        scene_close(allocator);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pin_is_taken_back_while_its_pool_ends),
    };

    return cmocka_run_group_tests_name("orphans", tests, NULL, NULL);
}
