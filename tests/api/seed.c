/* SPDX-License-Identifier: MIT */
/*
 * The fragmentation example of NVIDIA's notes on CUDA graph memory, up to the capture, under the
 * three configurations for which they print a table (GB of 2^30, three decimals), and the facts
 * that they state about growing, splitting and empty_cache.
 */
#include "tests/support/scene.h"

#include <stdio.h>

struct row {
    const char *tag;
    const char *table; /* allocated, active, inactive split, reserved: as printed there */
};

/* Statistics of the large pool, as the notes print them. */
static void expect_row(struct xseg_allocator *allocator, const struct row *row)
{
    const struct xseg_stats stats = scene_stats(allocator);
    char text[96];

    (void)snprintf(text, sizeof(text), "%.3f %.3f %.3f %.3f",
                   (double)stats.allocated_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.active_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.inactive_split_bytes[XSEG_STAT_LARGE].current / (double)GIB,
                   (double)stats.reserved_bytes[XSEG_STAT_LARGE].current / (double)GIB);
    print_message("# %-18s %s\n", row->tag, text);
    assert_string_equal(text, row->table);
}

/* temp 8 GB, freed; small 1 GB; x 1 GB; empty_cache, which the capture begins with. */
static void expect_fragmentation(const char *config, const struct row rows[3])
{
    struct xseg_allocator *allocator = scene_open(config);
    void *temp = scene_alloc(allocator, 8 * GIB, NULL), *small, *x;

    scene_free(allocator, temp);
    expect_row(allocator, &rows[0]);
    small = scene_alloc(allocator, GIB, NULL);
    x = scene_alloc(allocator, GIB, NULL);
    expect_row(allocator, &rows[1]);
    scene_empty_cache(allocator);
    expect_row(allocator, &rows[2]);
    scene_free(allocator, small);
    scene_free(allocator, x);
    scene_close(allocator);
}

static void classic(void **state)
{
    static const struct row rows[] = {
        {"After del temp", "0.000 0.000 0.000 8.000"},
        {"After alloc x", "2.000 2.000 6.000 8.000"},
        {"After empty cache", "2.000 2.000 6.000 8.000"},
    };

    (void)state;
    expect_fragmentation("expandable_segments:False", rows);
}

static void expandable(void **state)
{
    static const struct row rows[] = {
        {"After del temp", "0.000 0.000 0.000 8.008"},
        {"After alloc x", "2.000 2.000 0.000 8.008"},
        {"After empty cache", "2.000 2.000 0.000 2.012"},
    };

    (void)state;
    expect_fragmentation("expandable_segments:True", rows);
}

static void max_split(void **state)
{
    static const struct row rows[] = {
        {"After del temp", "0.000 0.000 0.000 8.000"},
        {"After alloc x", "2.000 2.000 0.000 10.000"},
        {"After empty cache", "2.000 2.000 0.000 2.000"},
    };

    (void)state;
    expect_fragmentation("expandable_segments:False,max_split_size_mb:128", rows);
}

/* "Reserves a large virtual address space (up to 1 1/8 x total GPU memory)", without memory. */
static void addresses_are_reserved_without_memory(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    void *ptr = scene_alloc(allocator, 2 * MIB, NULL);
    const struct xseg_block_info info = scene_block(allocator, ptr);

    (void)state;
    assert_true(info.is_expandable);
    assert_in_range(info.segment_bytes, 90 * GIB, 90 * GIB + 20 * MIB);
    assert_int_equal(info.segment_mapped, 20 * MIB);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    scene_free(allocator, ptr);
    scene_close(allocator);
}

/* "Mapped in pages (2MB for small pool, 20MB for large pool) only when needed", growing in place. */
static void segments_grow_in_place(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    char *small = scene_alloc(allocator, 1000, NULL);
    char *first = scene_alloc(allocator, 30 * MIB, NULL), *second;

    (void)state;
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_SMALL].current, 2 * MIB);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_LARGE].current, 40 * MIB);
    second = scene_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(second, first + 30 * MIB);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_LARGE].current, 60 * MIB);
    /* The growth made one run of pages accessible each time, with one call. */
    assert_int_equal(scene_block(allocator, second).segment_mapped, 60 * MIB);
    scene_free(allocator, small);
    scene_free(allocator, first);
    scene_free(allocator, second);
    scene_close(allocator);
}

/* x2 of the first example: 1 GB from a cached 4 GB block splits it, and freeing merges again. */
static void splitting_and_merging(void **state)
{
    static const struct row rows[] = {
        {"After alloc x1", "4.000 4.000 0.000 4.000"},
        {"After del x1", "0.000 0.000 0.000 4.000"},
        {"After alloc x2", "1.000 1.000 3.000 4.000"},
        {"After del x2", "0.000 0.000 0.000 4.000"},
        {"After empty cache", "0.000 0.000 0.000 0.000"},
    };
    struct xseg_allocator *allocator = scene_open("expandable_segments:False");
    void *x = scene_alloc(allocator, 4 * GIB, NULL);

    (void)state;
    expect_row(allocator, &rows[0]);
    scene_free(allocator, x);
    expect_row(allocator, &rows[1]);
    x = scene_alloc(allocator, GIB, NULL);
    expect_row(allocator, &rows[2]);
    scene_free(allocator, x);
    expect_row(allocator, &rows[3]);
    scene_empty_cache(allocator);
    expect_row(allocator, &rows[4]);
    scene_close(allocator);
}

/* "Individually unmapped": only whole pages go, and the live block's page stays. */
static void empty_cache_unmaps_single_pages(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    void *before = scene_alloc(allocator, 25 * MIB, NULL);
    void *live = scene_alloc(allocator, 2 * MIB, NULL);
    void *after = scene_alloc(allocator, 33 * MIB, NULL);

    (void)state;
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 60 * MIB);
    scene_free(allocator, before);
    scene_free(allocator, after);
    scene_empty_cache(allocator);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    assert_int_equal(scene_stats(allocator).num_device_free, 2);
    assert_int_equal(scene_block(allocator, live).free_before, 5 * MIB);
    assert_int_equal(scene_block(allocator, live).free_after, 13 * MIB);
    scene_free(allocator, live);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classic),
        cmocka_unit_test(expandable),
        cmocka_unit_test(max_split),
        cmocka_unit_test(addresses_are_reserved_without_memory),
        cmocka_unit_test(segments_grow_in_place),
        cmocka_unit_test(splitting_and_merging),
        cmocka_unit_test(empty_cache_unmaps_single_pages),
    };

    return cmocka_run_group_tests_name("seed", tests, NULL, NULL);
}
