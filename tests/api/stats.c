/* SPDX-License-Identifier: MIT */
/* Statistics as users read and reset them, and the counters of driver calls. */
#include <stdio.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

/* What the process has, to the page; statm is behind. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    unsigned long kib = 0;
    char line[256];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "Rss: %lu", &kib) == 1)
            break;
    (void)fclose(file);
    return (uint64_t)kib * KIB;
}

/* The first test, before others leave memory in the heap.  Tables for a huge device are mostly address space: only what was touched counts, which the process has. */
TEST(host_bytes_are_no_more_than_the_process_got)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = (uint64_t)4096 * GIB};
    static void *block[20000];
    xseg_stream stream[10];

    const uint64_t without = resident_bytes();
    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:True");
    for (unsigned i = 0; i < COUNT_OF(stream); i++)
        stream[i] = env_stream();
    for (unsigned i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(allocator, i % 100 == 0 ? 4 * MIB : 4096, stream[i % 10]);
    const uint64_t host = env_stats(allocator).host_bytes;
    const uint64_t got = resident_bytes() - without;
    print_message("# host_bytes %zu, the process got %zu\n", (size_t)host, (size_t)got);
    assert_true(host >= MIB);
    /* Self-checks read all of the tables, which maps pages that nobody counts. */
    if (XSEG_CHECKS < 2)
        assert_true(host <= got);
    for (unsigned i = 0; i < COUNT_OF(block); i++)
        env_free(allocator, block[i]);
    assert_ok(xseg_close(allocator));
    for (unsigned i = 0; i < COUNT_OF(stream); i++)
        env_stream_destroy(stream[i]);
}

static struct xseg_scope device(int ordinal)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = ordinal;
    return where;
}

static void reset(struct xseg_allocator *allocator, unsigned what)
{
    const struct xseg_scope where = device(0);

    assert_ok(xseg_stats_reset(allocator, &where, what));
}

TEST(a_reset_of_the_peaks_leaves_the_rest)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *first = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 8 * MIB, NULL));
    const struct xseg_statistics before = env_stats(allocator);
    assert_int_equal(before.allocated_bytes[XSEG_STAT_ALL].peak, 12 * MIB);
    reset(allocator, XSEG_RESET_PEAK);
    const struct xseg_statistics after = env_stats(allocator);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].peak, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].allocated, 12 * MIB);
    assert_int_equal(after.num_device_alloc, before.num_device_alloc);
    env_free(allocator, first);
    env_close(allocator);
}

TEST(a_reset_of_the_totals_leaves_the_rest)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *first = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 8 * MIB, NULL));
    assert_int_not_equal(env_stats(allocator).num_device_alloc, 0);
    reset(allocator, XSEG_RESET_ACCUMULATED);
    const struct xseg_statistics after = env_stats(allocator);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].peak, 12 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].allocated, 0);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].freed, 0);
    assert_int_equal(after.num_device_alloc, 0);
    env_free(allocator, first);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].freed, 4 * MIB);
    env_close(allocator);
}

TEST(what_cannot_be_read_is_refused)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = device(0);

    env_expect_error(xseg_stats_reset(allocator, &where, 0), XSEG_ERR_ARGUMENT, "XSEG_RESET_");
    env_expect_error(xseg_stats_reset(allocator, &where, 1u << 20), XSEG_ERR_ARGUMENT, "0x100000");
    env_expect_error(xseg_stats_reset(NULL, &where, XSEG_RESET_PEAK), XSEG_ERR_ARGUMENT, "NULL");
    where.one_stream = true;
    assert_int_equal(xseg_stats_get(allocator, &where, &stats), XSEG_ERR_UNSUPPORTED);
    assert_int_equal(xseg_stats_reset(allocator, &where, XSEG_RESET_PEAK), XSEG_ERR_UNSUPPORTED);
    where = device(99);
    assert_int_equal(xseg_stats_get(allocator, &where, &stats), XSEG_ERR_ARGUMENT);
    where = device(0);
    stats.struct_size = sizeof(stats) + 1;
    assert_int_equal(xseg_stats_get(allocator, &where, &stats), XSEG_ERR_ARGUMENT);
    env_close(allocator);
}

/* A program that was built when the structure was shorter gets what it knows, and no more. */
TEST(an_older_structure_is_filled_as_far_as_it_goes)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    const struct xseg_scope where = device(0);
    struct xseg_statistics stats;
    void *block = env_alloc(allocator, 512, NULL);

    memset(&stats, 0xa5, sizeof(stats));
    stats.struct_size = offsetof(struct xseg_statistics, segment);
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
    for (size_t i = offsetof(struct xseg_statistics, segment); i < sizeof(stats); i++)
        assert_int_equal(((const unsigned char *)&stats)[i], 0xa5);
    env_free(allocator, block);
    env_close(allocator);
}

TEST(driver_calls_are_counted_by_name)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_driver_call calls[128];
    size_t count = 0, seen = 0;

    void *block = env_alloc(allocator, 4 * MIB, NULL);
    assert_ok(xseg_driver_calls(allocator, NULL, 0, &count));
    assert_in_range(count, 10, COUNT_OF(calls));
    assert_ok(xseg_driver_calls(allocator, calls, COUNT_OF(calls), NULL));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(calls[i].count, xseg_sim_calls(calls[i].name));
        seen += strcmp(calls[i].name, "cuMemMap") == 0 && calls[i].count > 0;
    }
    assert_int_equal(seen, 1);
    env_expect_error(xseg_driver_calls(allocator, NULL, 1, &count), XSEG_ERR_ARGUMENT, "calls");
    env_free(allocator, block);
    env_close(allocator);
}

/* A million live blocks of 4 KiB on average. Of the 2.25 % of the mapped memory, 0.78 % is a start
 * for each 512 bytes, and most of the rest a record of 64 bytes for each block. */
TEST(bookkeeping_takes_little_host_memory)
{
    enum { BLOCKS = 1000000 };
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void **blocks = calloc(BLOCKS, sizeof(*blocks));
    uint32_t seed = 1;

    assert_non_null(blocks);
    for (unsigned i = 0; i < BLOCKS; i++) {
        seed = seed * 1664525u + 1013904223u;
        blocks[i] = env_alloc(allocator, 1 + (seed >> 8) % (8 * KIB), NULL);
    }
    const struct xseg_statistics stats = env_stats(allocator);
    assert_in_range(stats.requested_bytes[XSEG_STAT_ALL].current / BLOCKS, 4000, 4200);
    const uint64_t reserved = stats.reserved_bytes[XSEG_STAT_ALL].current;
    print_message("# host_bytes: %.2f %% of the mapped memory\n",
                  100.0 * (double)stats.host_bytes / (double)reserved);
    assert_in_range(stats.host_bytes, MIB, reserved * 3 / 100);
    for (unsigned i = 0; i < BLOCKS; i++)
        env_free(allocator, blocks[i]);
    free(blocks);
    env_close(allocator);
}
