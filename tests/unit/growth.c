/* SPDX-License-Identifier: MIT */
/* Growth where addresses run short: ranges that hold nothing are given back for those that would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "src/core/device/device.h"
#include "src/core/grow/growth.h"
#include "tests/support/scene.h"

/* Addresses for one segment, not for two: the first reserves a little more than the device's memory,
 * in whole GiB, and the shortest range is one GiB. */
static struct xseg_allocator *open_with_few_addresses(void)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = GIB;
    settings.address_bytes = 5 * GIB / 2;
    return scene_open_on(&settings, "expandable_segments:True");
}

static void an_empty_range_makes_room_for_another(void **state)
{
    struct xseg_allocator *allocator = open_with_few_addresses();
    const xseg_stream other = scene_stream();

    (void)state;
    scene_free(allocator, scene_alloc(allocator, 64 * MIB, NULL));
    scene_empty_cache(allocator);
    const uint64_t before = scene_stats(allocator).address_bytes;
    assert_in_range(before, 3 * GIB / 2 + 1, 3 * GIB);
    void *block = scene_alloc(allocator, 64 * MIB, other);
    assert_int_equal(scene_stats(allocator).address_bytes, before);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 80 * MIB);
    scene_free(allocator, block);
    scene_empty_cache(allocator);
    scene_stream_destroy(other);
    scene_close(allocator);
}

static void a_range_in_use_stays(void **state)
{
    struct xseg_allocator *allocator = open_with_few_addresses();
    const xseg_stream other = scene_stream();
    void *block = scene_alloc(allocator, 64 * MIB, NULL), *beside, *refused = NULL;

    (void)state;
    /* A classic segment needs few addresses; for a large one there are none either. */
    beside = scene_alloc(allocator, 64 * MIB, other);
    assert_false(scene_block(allocator, beside).is_expandable);
    assert_true(scene_block(allocator, block).is_expandable);
    scene_expect_error(xseg_alloc(allocator, 0, 600 * MIB, other, &refused), XSEG_ERR_NO_ADDRESSES,
                       "cuMem");
    assert_null(refused);
    assert_int_equal(scene_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    scene_free(allocator, beside);
    scene_free(allocator, block);
    /* What is cached goes with its range. */
    scene_free(allocator, scene_alloc(allocator, 64 * MIB, other));
    scene_empty_cache(allocator);
    scene_stream_destroy(other);
    scene_close(allocator);
}

static void pick_small(struct xseg_arena **picked, struct xseg_arena *arena)
{
    if (arena->is_small)
        *picked = arena;
}

/* Between a miss and its growth another thread may free enough: a narrow cell before the hole. */
static void enough_that_was_freed_meanwhile_serves(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    void *held[] = {scene_alloc(allocator, MIB, NULL), scene_alloc(allocator, 960 * 1024, NULL)};
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    const struct xseg_alloc_params need = {.config = xseg_allocator_config(allocator),
                                           .requested = 1000,
                                           .bytes = 1024,
                                           .alignment = 512,
                                           .span = 1024,
                                           .segment_bytes = 2 * MIB,
                                           .is_small = true,
                                           .expandable = true};
    struct xseg_alloc_result grant = {.base = 0};
    struct xseg_arena *arena = NULL;

    (void)state;
    xseg_mutex_lock(&device->memory_lock);
    XSEG_DEVICE_FOR_ARENAS(each, device)
    {
        pick_small(&arena, each);
    }
    assert_non_null(arena);
    assert_int_equal(xseg_growth_run(arena, &need, &grant), XSEG_OK);
    xseg_mutex_unlock(&device->memory_lock);
    assert_int_equal(grant.base, (uintptr_t)held[0] + MIB + 960 * 1024);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 2 * MIB);
    scene_free(allocator, (void *)(uintptr_t)grant.base); /* NOLINT(performance-no-int-to-ptr) */
    for (size_t i = 0; i < COUNT_OF(held); i++)
        scene_free(allocator, held[i]);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_range_makes_room_for_another),
        cmocka_unit_test(a_range_in_use_stays),
        cmocka_unit_test(enough_that_was_freed_meanwhile_serves),
    };

    return cmocka_run_group_tests_name("growth", tests, NULL, NULL);
}
