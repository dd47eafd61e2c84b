/* SPDX-License-Identifier: MIT */
/* Growth when virtual addresses run out: empty ranges are released for new segments. */
#include "src/core/grow/growth.h"
#include "src/core/device/device.h"
#include "tests/support/env.h"

/* Addresses for one range, which has 9/8 of the device memory in whole GiB: 2 GiB, or 1 GiB if the driver has no more. */
static struct xseg_allocator *open_with_few_addresses(void)
{
    return env_open_sim("expandable_segments:True", .memory_bytes = GIB,
                        .address_bytes = 5 * GIB / 2);
}

TEST(empty_range_is_released_for_a_new_range)
{
    struct xseg_allocator *allocator = open_with_few_addresses();
    const xseg_stream second_stream = env_stream();

    env_free(allocator, env_alloc(allocator, 64 * MIB, NULL));
    env_empty_cache(allocator);
    const uint64_t before = env_stats(allocator).address_bytes;
    assert_in_range(before, 3 * GIB / 2 + 1, 3 * GIB); /* less than 1 GiB of addresses remains */
    void *block = env_alloc(allocator, 64 * MIB, second_stream);
    assert_int_equal(env_stats(allocator).address_bytes, before);
    assert_int_equal(env_reserved(allocator), 80 * MIB); /* four pages of 20 MiB */
    env_free(allocator, block);
    env_empty_cache(allocator);
    env_stream_destroy(second_stream);
    env_close(allocator);
}

TEST(range_in_use_is_kept)
{
    struct xseg_allocator *allocator = open_with_few_addresses();
    const xseg_stream second_stream = env_stream();
    void *block = env_alloc(allocator, 64 * MIB, NULL), *neighbor, *failed = NULL;

    /* There are enough addresses for a small classic segment, and too few for a large one. */
    neighbor = env_alloc(allocator, 64 * MIB, second_stream);
    assert_false(env_block(allocator, neighbor).is_expandable);
    assert_true(env_block(allocator, block).is_expandable);
    assert_error(xseg_alloc(allocator, 0, 600 * MIB, second_stream, &failed), NO_ADDRESSES,
                 "cuMem");
    assert_null(failed);
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    env_free(allocator, neighbor, block);
    /* The range of the first block is released with its cached memory. */
    env_free(allocator, env_alloc(allocator, 64 * MIB, second_stream));
    env_empty_cache(allocator);
    env_stream_destroy(second_stream);
    env_close(allocator);
}

/* Between a miss and the growth another thread may free enough memory: 64 KiB remain cached before the unmapped block. */
TEST(memory_freed_concurrently_satisfies_the_request)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *held[] = {env_alloc(allocator, MIB, NULL), env_alloc(allocator, 960 * 1024, NULL)};
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    const struct xseg_alloc_params params = {.config = xseg_allocator_config(allocator),
                                             .requested = 1000,
                                             .bytes = 1024,
                                             .alignment = 512,
                                             .span = 1024,
                                             .segment_bytes = 2 * MIB,
                                             .is_small = true,
                                             .expandable = true};
    struct xseg_alloc_result result = {0};
    struct xseg_arena *arena = xseg_page_map_find(&allocator->page_map, (uintptr_t)held[0])->arena;

    xseg_mutex_lock(&device->memory_lock);
    assert_ok(xseg_growth_run(arena, &params, &result));
    xseg_mutex_unlock(&device->memory_lock);
    assert_int_equal(result.base, (uintptr_t)held[0] + MIB + 960 * 1024);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    env_free(allocator, (void *)(uintptr_t)result.base); /* NOLINT(performance-no-int-to-ptr) */
    env_free(allocator, held[0], held[1]);
    env_close(allocator);
}
