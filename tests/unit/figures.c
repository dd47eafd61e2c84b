/* SPDX-License-Identifier: MIT */
/* Metrics are read without a lock that an allocation takes, and are written in full. */
#include <string.h>

#include "tests/support/scene.h"

#include "src/core/inspect/figures.h"
#include "src/core/metrics/metrics_text.h"

/* A lock that were taken again would be a failed check of ranks, or a test that hangs.  Only TABLE is taken. */
static void no_lock_of_an_allocation_is_taken(void **state) XSEG_UNCHECKED
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    struct xseg_pool *pool = scene_pool(allocator);
    void *a = scene_alloc(allocator, 3 * MIB, NULL),
         *b = scene_alloc_in(allocator, pool, 100, NULL);
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct xseg_figures figures;
    char text[16 << 10];
    size_t needed = 0;

    (void)state;
    assert_non_null(device);
    struct xseg_arena *large = atomic_load(&device->pool.arenas);
    struct xseg_arena *small = atomic_load(&pool->arenas);
    assert_non_null(large);
    assert_non_null(small);
    const uint64_t calls = xseg_sim_calls(NULL);
    xseg_lock_take(&allocator->open_lock);
    xseg_lock_take(&device->growth_lock);
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_arena *held = i == 0 ? large : small;

        xseg_arena_lock(held);
        assert_int_equal(xseg_figures_take(allocator, &figures), XSEG_OK);
        assert_int_equal(xseg_metrics_text_write(&figures, text, sizeof(text), &needed), XSEG_OK);
        xseg_arena_unlock(held);
        assert_int_equal(figures.devices, 1);
        assert_int_equal(figures.pools, 2);
        assert_int_equal(figures.pool[0].of, XSEG_POOL_FIGURES_DEFAULT);
        assert_int_equal(figures.pool[0].live, 3 * MIB);
        assert_int_equal(figures.pool[1].of, XSEG_POOL_FIGURES_PRIVATE);
        assert_int_equal(figures.pool[1].live, 512);
        xseg_figures_end(&figures);
        assert_in_range(needed, 1000, sizeof(text));
    }
    xseg_lock_give(&device->growth_lock);
    xseg_lock_give(&allocator->open_lock);
    assert_int_equal(xseg_sim_calls(NULL), calls);
    scene_free(allocator, a);
    scene_free(allocator, b);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* Nanoseconds are told as seconds with nine places. */
static void parts_of_a_second_keep_their_places(void **state)
{
    struct xseg_figures figures = {.calls = 1};
    char text[4096];
    size_t needed = 0;

    (void)state;
    figures.call[0] =
        (struct xseg_figures_call){.name = "f", .count = 1, .spent = UINT64_C(12000000305)};
    assert_int_equal(xseg_metrics_text_write(&figures, text, sizeof(text), &needed), XSEG_OK);
    assert_non_null(strstr(text, "{call=\"f\"} 12.000000305\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lock_of_an_allocation_is_taken),
        cmocka_unit_test(parts_of_a_second_keep_their_places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
