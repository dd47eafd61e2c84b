/* SPDX-License-Identifier: MIT */
/* Origins of blocks: stamps, call stacks and user values by offset. */
#include "src/core/block/recorder.h"

#include <stdlib.h>
#include <string.h>

#include "src/core/device/device.h"
#include "tests/support/env.h"

/* The unit of stamps, and the time after which they wrap. */
#define TICK_NS (UINT64_C(1) << 24)
#define CYCLE   (TICK_NS << 32)

/* An extent of which only the origins are used. */
static struct xseg_extent *make_extent(bool has_starts, uint64_t bytes)
{
    struct xseg_extent *extent = aligned_alloc(_Alignof(struct xseg_extent), sizeof(*extent));

    assert_non_null(extent);
    memset(extent, 0, sizeof(*extent));
    extent->segment.base = UINT64_C(1) << 40;
    extent->segment.bytes = bytes;
    extent->has_starts = has_starts;
    return extent;
}

static void free_extent(struct xseg_extent *extent)
{
    xseg_origins_fini(extent);
    assert_int_equal(xseg_origins_host_bytes(extent), 0);
    free(extent);
}

static uint64_t age(const struct xseg_extent *extent, uint64_t offset, uint64_t now)
{
    return xseg_origins_age(extent, extent->segment.base + offset, now);
}

static uint64_t user(const struct xseg_extent *extent, uint64_t offset)
{
    return xseg_origins_user(extent, extent->segment.base + offset);
}

TEST(each_offset_has_a_stamp_and_a_user_value)
{
    static const uint64_t units[] = {MIB, 512};

    for (int small = 0; small < 2; small++) {
        struct xseg_extent *extent = make_extent(small != 0, 10000 * units[small]);
        /* Offsets in units: at both sides of the end of a chunk, and at the ends of the extent. */
        const uint64_t index[] = {0, 1, 4095, 4096, 9999}, base = extent->segment.base,
                       unit = units[small];

        for (size_t i = 0; i < COUNT_OF(index); i++) {
            assert_true(age(extent, index[i] * unit, TICK_NS) == XSEG_ORIGINS_UNKNOWN);
            assert_int_equal(user(extent, index[i] * unit), 0);
        }
        for (size_t i = 0; i < COUNT_OF(index); i++)
            xseg_origins_record_user(extent, base + index[i] * unit, UINT64_MAX - i);
        assert_true(age(extent, 0, TICK_NS) == XSEG_ORIGINS_UNKNOWN); /* user values set no stamp */
        for (size_t i = 0; i < COUNT_OF(index); i++)
            xseg_origins_record(extent, base + index[i] * unit, (i + 1) * 1000 * TICK_NS, NULL);
        for (size_t i = 0; i < COUNT_OF(index); i++) {
            /* The ages are in milliseconds. */
            assert_int_equal(age(extent, index[i] * unit, 6000 * TICK_NS),
                             (5 - i) * 1000 * TICK_NS / 1000000);
            assert_true(user(extent, index[i] * unit) == UINT64_MAX - i);
        }
        assert_true(age(extent, 2 * unit, 6000 * TICK_NS) == XSEG_ORIGINS_UNKNOWN);
        assert_int_equal(user(extent, 2 * unit), 0);
        /* A new block has a new age, and does not keep the user value of the previous block. */
        xseg_origins_record(extent, base, 3000 * TICK_NS, NULL);
        assert_int_equal(age(extent, 0, 4000 * TICK_NS), 1000 * TICK_NS / 1000000);
        assert_true(age(extent, 0, 0) == XSEG_ORIGINS_UNKNOWN); /* time 0 yields no age */
        xseg_origins_record_user(extent, base, 0);
        assert_int_equal(user(extent, 0), 0);
        assert_true(user(extent, unit) == UINT64_MAX - 1);
        free_extent(extent);
    }
}

/* A block that is allocated without a record does not get the origin of an earlier block. */
TEST(cleared_offset_has_no_origin)
{
    static const struct xseg_origin origin = {.stack = 3, .frames = 4, .label = 5};
    struct xseg_extent *extent = make_extent(true, 2 * MIB);

    assert_false(xseg_origins_clear(extent, extent->segment.base));
    assert_true(xseg_origins_record(extent, extent->segment.base, TICK_NS, &origin));
    assert_false(xseg_origins_record(extent, extent->segment.base, TICK_NS, &origin));
    const struct xseg_origin recorded = xseg_origins_of(extent, extent->segment.base);
    assert_memory_equal(&recorded, &origin, sizeof(recorded));
    assert_false(xseg_origins_clear(extent, extent->segment.base + 512));
    assert_true(xseg_origins_clear(extent, extent->segment.base));
    assert_false(xseg_origins_clear(extent, extent->segment.base));
    const struct xseg_origin none = xseg_origins_of(extent, extent->segment.base);
    assert_int_equal(none.stack | none.frames | none.label, 0);
    assert_true(age(extent, 0, TICK_NS) == XSEG_ORIGINS_UNKNOWN);
    assert_true(xseg_origins_record(extent, extent->segment.base, TICK_NS, NULL));
    free_extent(extent);
}

TEST(ages_are_correct_after_stamps_wrap)
{
    static const uint64_t allocated_at[] = {1, TICK_NS - 1, CYCLE - TICK_NS, CYCLE,
                                            7 * CYCLE + 5 * TICK_NS};
    static const uint64_t later[] = {0, 500, 1000000, UINT64_C(4000000000)};

    for (size_t i = 0; i < COUNT_OF(allocated_at); i++)
        for (size_t k = 0; k < COUNT_OF(later); k++) {
            struct xseg_extent *extent = make_extent(false, 20 * MIB);
            const uint64_t expected = later[k] * TICK_NS / 1000000;

            xseg_origins_record(extent, extent->segment.base + MIB, allocated_at[i], NULL);
            const uint64_t actual = age(extent, MIB, allocated_at[i] + later[k] * TICK_NS);
            /* Stamp 0 is stored as 1, because 0 means unknown, so an age may be too low by one tick: 16.8 ms. */
            assert_true(actual <= expected && actual + 17 >= expected);
            free_extent(extent);
        }
}

/* Another thread may write a stamp just after the reader has read the time. */
TEST(future_stamp_has_age_0)
{
    struct xseg_extent *extent = make_extent(false, 20 * MIB);

    xseg_origins_record(extent, extent->segment.base, 1000 * TICK_NS, NULL);
    assert_int_equal(age(extent, 0, 999 * TICK_NS), 0);
    free_extent(extent);
}

/* The user value 0 allocates no table, and user values alone allocate no stamps. */
TEST(host_bytes_include_the_tables)
{
    for (int users = 0; users < 2; users++) {
        struct xseg_extent *extent = make_extent(true, 8 * MIB);
        const uint64_t base = extent->segment.base;
        const uint64_t chunk =
            XSEG_ORIGINS_CHUNK * (users != 0 ? sizeof(uint64_t) : sizeof(uint32_t));
        uint64_t first_bytes = 0;

        xseg_origins_record_user(extent, base, 0);
        assert_int_equal(xseg_origins_host_bytes(extent), 0);
        for (uint64_t i = 0; i < 3; i++) {
            static const uint64_t offset[] = {0, 512, 2 * MIB};

            if (users != 0)
                xseg_origins_record_user(extent, base + offset[i], 1);
            else
                xseg_origins_record(extent, base + offset[i], TICK_NS, NULL);
            if (i == 0)
                first_bytes = xseg_origins_host_bytes(extent);
            assert_int_equal(xseg_origins_host_bytes(extent),
                             first_bytes + (i == 2 ? chunk : 0)); /* a chunk covers 2 MiB */
            xseg_origins_record_user(extent, base + 4 * MIB, 0);
        }
        /* In addition to the chunk, an array of chunks. */
        assert_true(first_bytes >= chunk && first_bytes < chunk + 1000);
        /* The stamps take less than 1 % of the memory: 4 bytes per 512 bytes. */
        assert_true(users != 0 || 2 * chunk * 100 <= 4 * MIB);
        free_extent(extent);
    }
}

TEST(user_values_and_stamps_are_cleared_separately)
{
    struct xseg_extent *extent = make_extent(false, 100 * MIB);
    struct xseg_arena arena;

    memset(&arena, 0, sizeof(arena));
    xseg_list_init(&arena.extents);
    xseg_list_insert(&arena.extents, &extent->link);
    xseg_origins_record(extent, extent->segment.base, TICK_NS, NULL);
    xseg_origins_record_user(extent, extent->segment.base, 5);
    assert_true(xseg_origins_clear(extent, extent->segment.base));
    assert_true(age(extent, 0, TICK_NS) == XSEG_ORIGINS_UNKNOWN);
    assert_int_equal(user(extent, 0), 5);
    xseg_origins_record(extent, extent->segment.base, TICK_NS, NULL);
    xseg_origins_discard_users(&arena);
    assert_int_equal(user(extent, 0), 0);
    assert_int_equal(age(extent, 0, TICK_NS), 0);
    free_extent(extent);
}

TEST(no_origin_is_recorded_without_the_history)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *ptr = env_alloc(allocator, 3000, NULL);
    const struct xseg_extent *extent =
        xseg_page_map_find(&allocator->page_map, (uint64_t)(uintptr_t)ptr);

    assert_int_equal(
        xseg_origins_now_if_enabled(&allocator->clock, xseg_allocator_config(allocator)), 0);
    assert_int_equal(xseg_origins_host_bytes(extent), 0);
    assert_ok(xseg_config_set(allocator, "history:state"));
    assert_true(xseg_origins_now_if_enabled(&allocator->clock, xseg_allocator_config(allocator)) >
                0);
    const uint64_t before = env_stats(allocator).host_bytes;
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 3000, NULL);
    assert_true(xseg_origins_host_bytes(extent) > 0);
    assert_int_equal(env_stats(allocator).host_bytes - before, xseg_origins_host_bytes(extent));
    env_free(allocator, ptr);
    env_close(allocator);
}

/* While the option is off, user values of requests are not recorded. */
TEST(user_values_use_no_memory_without_the_option)
{
    struct xseg_allocator *allocator = env_open("history:all");
    struct xseg_request request = {sizeof(request), .bytes = 3000};
    uint64_t host_bytes = 0;
    void *ptr = NULL;

    for (unsigned i = 0; i < 3; i++) {
        assert_ok(xseg_config_set(allocator, i < 2 ? "block_user:False" : "block_user:True"));
        request.user = i == 0 ? NULL : &request;
        assert_ok(xseg_alloc_with(allocator, &request, &ptr));
        const struct xseg_extent *extent =
            xseg_page_map_find(&allocator->page_map, (uint64_t)(uintptr_t)ptr);
        assert_true(i == 0 || xseg_origins_host_bytes(extent) - host_bytes ==
                                  (i == 1 ? 0 : XSEG_ORIGINS_CHUNK * sizeof(uint64_t)));
        assert_int_equal(extent->arena->ring->users != NULL, i == 2);
        host_bytes = xseg_origins_host_bytes(extent);
        env_free(allocator, ptr);
    }
    env_close(allocator);
}
