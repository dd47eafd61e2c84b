/* SPDX-License-Identifier: MIT */
/* How long blocks of a size live, as far as packing knows. */
#include "src/core/large/packing.h"

#include "src/core/device/allocator.h"
#include "tests/support/scene.h"

static struct xseg_arena *large_arena(struct xseg_allocator *allocator)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct xseg_arena *arena = atomic_load(&device->pool_body.arenas);

    while (arena != NULL && arena->is_small)
        arena = atomic_load(&arena->next);
    assert_non_null(arena);
    return arena;
}

static void lifetimes_follow_littles_law(void **state)
{
    struct xseg_allocator *allocator = scene_open("placement:pages");
    void *slow[10];

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(slow); i++)
        slow[i] = scene_alloc(allocator, 4 * MIB, NULL);
    /* Each round 20 allocations: one of a size that lives for 10 rounds, 19 that end at once. */
    for (unsigned round = 0; round < 200; round++) {
        scene_free(allocator, slow[round % COUNT_OF(slow)]);
        slow[round % COUNT_OF(slow)] = scene_alloc(allocator, 4 * MIB, NULL);
        for (unsigned i = 0; i < 19; i++)
            scene_free(allocator, scene_alloc(allocator, 7 * MIB, NULL));
    }
    struct xseg_packing *packing = large_arena(allocator)->packing;
    assert_non_null(packing);
    assert_in_range(xseg_packing_lifetime(packing, 4 * MIB), 180, 220);
    assert_in_range(xseg_packing_lifetime(packing, 7 * MIB), 0, 2);
    /* Of a size that nobody knows, the mean. */
    assert_in_range(xseg_packing_lifetime(packing, 9 * MIB), 5, 20);
    for (unsigned i = 0; i < COUNT_OF(slow); i++)
        scene_free(allocator, slow[i]);
    scene_close(allocator);
}

static void sizes_without_end_are_forgotten_not_lost(void **state)
{
    struct xseg_allocator *allocator = scene_open("placement:pages");
    void *keeps = scene_alloc(allocator, 2 * MIB, NULL);

    (void)state;
    for (size_t i = 0; i < 20000; i++)
        scene_free(allocator, scene_alloc(allocator, 2 * MIB + 512 * (i + 1), NULL));
    /* A size that has a block stays in the table. */
    assert_in_range(xseg_packing_lifetime(large_arena(allocator)->packing, 2 * MIB), 19000, 21000);
    scene_free(allocator, keeps);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifetimes_follow_littles_law),
        cmocka_unit_test(sizes_without_end_are_forgotten_not_lost),
    };

    return cmocka_run_group_tests_name("packing", tests, NULL, NULL);
}
