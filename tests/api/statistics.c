/* SPDX-License-Identifier: MIT */
/* Queries and resets of statistics, and the counters of driver calls. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

/* The first test, since other tests leave memory in the heap.  Of the tables of a device of 4 TiB only touched pages count. */
TEST(host_bytes_do_not_exceed_resident_memory)
{
    static void *block[20000];
    xseg_stream stream[10];

    const uint64_t resident_before = env_resident_bytes();
    struct xseg_allocator *allocator = env_open_mib(4096 * KIB, "expandable_segments:True");
    for (unsigned i = 0; i < COUNT_OF(stream); i++)
        stream[i] = env_stream();
    for (unsigned i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(allocator, i % 100 == 0 ? 4 * MIB : 4096, stream[i % 10]);
    const uint64_t host_bytes = env_stats(allocator).host_bytes,
                   resident_growth = env_resident_bytes() - resident_before;
    print_message("# host_bytes %zu, growth of resident memory %zu\n", (size_t)host_bytes,
                  (size_t)resident_growth);
    assert_true(host_bytes >= MIB);
    /* Self-checks read all tables, so that more pages of them are resident than are counted. */
    if (XSEG_CHECKS < 2)
        assert_true(host_bytes <= resident_growth);
    env_free_all(allocator, block, sizeof(block));
    assert_ok(xseg_close(allocator));
    for (unsigned i = 0; i < COUNT_OF(stream); i++)
        env_stream_destroy(stream[i]);
}

static void reset(struct xseg_allocator *allocator, unsigned counters)
{
    assert_ok(xseg_stats_reset(allocator, env_scope(.device = 0), counters));
}

TEST_ON(peak_reset_keeps_other_statistics, env_open("expandable_segments:True"))
{
    void *allocated = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 8 * MIB, NULL));
    const struct xseg_statistics before = env_stats(allocator);
    assert_int_equal(before.allocated_bytes[XSEG_STAT_ALL].peak, 12 * MIB);
    reset(allocator, XSEG_RESET_PEAK);
    const struct xseg_statistics after = env_stats(allocator);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].peak, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].allocated, 12 * MIB);
    assert_int_equal(after.num_device_alloc, before.num_device_alloc);
    env_free(allocator, allocated);
}

TEST_ON(accumulated_reset_keeps_other_statistics, env_open("expandable_segments:True"))
{
    void *allocated = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 8 * MIB, NULL));
    assert_int_not_equal(env_stats(allocator).num_device_alloc, 0);
    reset(allocator, XSEG_RESET_ACCUMULATED);
    const struct xseg_statistics after = env_stats(allocator);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].peak, 12 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current, 4 * MIB);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].allocated, 0);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].freed, 0);
    assert_int_equal(after.num_device_alloc, 0);
    env_free(allocator, allocated);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].freed, 4 * MIB);
}

TEST_ON(invalid_scopes_are_rejected, env_open("expandable_segments:True"))
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = 0};

    assert_error(xseg_stats_reset(allocator, &scope, 0), ARGUMENT, "XSEG_RESET_");
    assert_error(xseg_stats_reset(allocator, &scope, 1u << 20), ARGUMENT, "0x100000");
    assert_error(xseg_stats_reset(NULL, &scope, XSEG_RESET_PEAK), ARGUMENT, "NULL");
    scope.one_stream = true;
    assert_int_equal(xseg_stats_get(allocator, &scope, &stats), XSEG_ERR_UNSUPPORTED);
    assert_int_equal(xseg_stats_reset(allocator, &scope, XSEG_RESET_PEAK), XSEG_ERR_UNSUPPORTED);
    assert_int_equal(xseg_stats_get(allocator, env_scope(.device = 99), &stats), XSEG_ERR_ARGUMENT);
    scope.one_stream = false;
    stats.struct_size = sizeof(stats) + 1;
    assert_int_equal(xseg_stats_get(allocator, &scope, &stats), XSEG_ERR_ARGUMENT);
}

/* Only the members of the structure of an older header are written. */
TEST_ON(older_structure_is_filled_up_to_its_size, env_open("expandable_segments:True"))
{
    const struct xseg_scope scope = {sizeof(scope), .device = 0};
    struct xseg_statistics stats;
    void *block = env_alloc(allocator, 512, NULL);

    memset(&stats, 0xa5, sizeof(stats));
    stats.struct_size = offsetof(struct xseg_statistics, segment);
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
    for (size_t i = offsetof(struct xseg_statistics, segment); i < sizeof(stats); i++)
        assert_int_equal(((const unsigned char *)&stats)[i], 0xa5);
    env_free(allocator, block);
}

TEST_ON(driver_calls_are_counted_by_name, env_open("expandable_segments:True"))
{
    struct xseg_driver_call calls[128];
    size_t count = 0, maps = 0;

    void *block = env_alloc(allocator, 4 * MIB, NULL);
    assert_ok(xseg_driver_calls(allocator, NULL, 0, &count));
    assert_in_range(count, 10, COUNT_OF(calls));
    assert_ok(xseg_driver_calls(allocator, calls, COUNT_OF(calls), NULL));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(calls[i].count, xseg_sim_calls(calls[i].name));
        maps += strcmp(calls[i].name, "cuMemMap") == 0 && calls[i].count > 0;
    }
    assert_int_equal(maps, 1);
    assert_error(xseg_driver_calls(allocator, NULL, 1, &count), ARGUMENT, "calls");
    env_free(allocator, block);
}

/* A million blocks of 4 KiB on average.  The metadata has about 2.25 % of the memory: 0.78 % for the table of block starts at
 * multiples of 512 bytes, and the rest mostly for records of 64 bytes per block. */
TEST_ON(metadata_uses_little_host_memory, env_open("expandable_segments:True"))
{
    enum { BLOCKS = 1000000 };
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
    env_free_all(allocator, blocks, BLOCKS * sizeof(*blocks));
    free(blocks);
}

/* --- Statistics of all devices: equal to the other reports, without driver calls and waits. --- */

#define DEVICES 4
#define MS      UINT64_C(1000000) /* in nanoseconds */

#define ILLEGAL_ADDRESS 700 /* of CUresult */

static struct xseg_allocator *open_four_devices(size_t mib, const char *config)
{
    return env_open_sim_with_clock(config, .devices = DEVICES, .memory_bytes = mib * MIB);
}

static void set_limits(struct xseg_allocator *allocator, int device, uint64_t hard_bytes,
                       double fraction)
{
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    limits.hard_bytes = hard_bytes;
    limits.fraction = fraction;
    limits.has_fraction = true;
    assert_ok(xseg_limits_set(allocator, env_scope(.device = device), &limits));
}

/* The counts of all driver calls, which the caller frees. */
static struct xseg_driver_call *read_call_counts(struct xseg_allocator *allocator, size_t *count)
{
    struct xseg_driver_call *calls;

    assert_ok(xseg_driver_calls(allocator, NULL, 0, count));
    calls = calloc(*count, sizeof(*calls));
    assert_non_null(calls);
    assert_ok(xseg_driver_calls(allocator, calls, *count, NULL));
    return calls;
}

/* Read all devices, without a driver call according to the counters of the library and of the simulator. */
static void read_devices(struct xseg_allocator *allocator, struct xseg_device_stats *devices)
{
    const uint64_t calls_before = xseg_sim_calls(NULL);
    size_t count = 0, calls = 0;
    struct xseg_driver_call *before = read_call_counts(allocator, &calls);

    memset(devices, 0xa5, DEVICES * sizeof(*devices));
    assert_ok(xseg_device_stats_get(allocator, devices, sizeof(*devices), DEVICES, &count));
    assert_int_equal(count, DEVICES);
    struct xseg_driver_call *after = read_call_counts(allocator, &calls);
    assert_memory_equal(before, after, calls * sizeof(*before));
    assert_int_equal(xseg_sim_calls(NULL), calls_before);
    free(before);
    free(after);
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(devices[i].struct_size, sizeof(*devices));
        assert_int_equal(devices[i].device, i);
    }
}

static struct xseg_device_stats read_device(struct xseg_allocator *allocator, int device)
{
    struct xseg_device_stats devices[DEVICES];

    read_devices(allocator, devices);
    return devices[device];
}

/* Expect that the statistics of xseg_stats_get() are equal, which requires that no pool is paused. */
static void expect_equal_statistics(struct xseg_allocator *allocator,
                                    const struct xseg_device_stats *device)
{
    const struct xseg_statistics stats = env_stats_on(allocator, device->device);
    const uint64_t reserved = stats.reserved_bytes[XSEG_STAT_ALL].current;
    const uint64_t allocated = stats.allocated_bytes[XSEG_STAT_ALL].current;
    const uint64_t active = stats.active_bytes[XSEG_STAT_ALL].current;
    assert_true(device->is_open);
    assert_int_equal(device->total_bytes, stats.device_bytes);
    assert_int_equal(device->limit_bytes, stats.limit_bytes);
    assert_int_equal(device->physical_bytes, stats.physical_bytes);
    assert_int_equal(device->reserved_bytes, reserved);
    assert_int_equal(device->allocated_bytes, allocated);
    assert_int_equal(device->pending_bytes, active - allocated);
    assert_int_equal(device->idle_bytes, reserved - active + stats.idle_page_bytes);
}

static void expect_closed(const struct xseg_device_stats *device, int ordinal)
{
    const struct xseg_device_stats closed = {.struct_size = sizeof(closed), .device = ordinal};

    assert_memory_equal(device, &closed, sizeof(closed));
}

TEST_ON(arguments_are_checked, open_four_devices(4096, NULL))
{
    struct xseg_device_stats devices[DEVICES];
    size_t count = 77;

    assert_error(xseg_device_stats_get(NULL, devices, sizeof(devices[0]), DEVICES, &count),
                 ARGUMENT, "allocator");
    assert_error(xseg_device_stats_get(allocator, NULL, sizeof(devices[0]), 1, &count), ARGUMENT,
                 "devices is NULL");
    assert_error(xseg_device_stats_get(allocator, devices, 4, DEVICES, &count), ARGUMENT,
                 "is unknown");
    assert_error(xseg_device_stats_get(allocator, devices, sizeof(devices[0]) + 1, 1, &count),
                 ARGUMENT, "entry_bytes");
    assert_error(xseg_device_stats_get(allocator, devices, 5000, 1, &count), ARGUMENT,
                 "struct xseg_device_stats");
    assert_int_equal(count, 77);
    assert_ok(xseg_device_stats_get(allocator, devices, sizeof(devices[0]), DEVICES, NULL));
}

TEST_ON(short_array_is_filled_up_to_its_length, open_four_devices(4096, NULL))
{
    struct xseg_device_stats devices[DEVICES + 1];
    unsigned char untouched[sizeof(devices[0])];

    memset(untouched, 0xa5, sizeof(untouched));
    for (size_t capacity = 0; capacity <= DEVICES + 1; capacity++) {
        const size_t filled = capacity < DEVICES ? capacity : DEVICES;
        size_t count = 0;

        memset(devices, 0xa5, sizeof(devices));
        assert_ok(xseg_device_stats_get(allocator, capacity == 0 ? NULL : devices,
                                        sizeof(devices[0]), capacity, &count));
        assert_int_equal(count, DEVICES);
        for (size_t i = 0; i < filled; i++)
            assert_int_equal(devices[i].device, i);
        for (size_t i = filled; i <= DEVICES; i++)
            assert_memory_equal(&devices[i], untouched, sizeof(untouched));
    }
}

/* A caller with an older header has shorter entries, and one with a newer header has longer entries. */
TEST_ON(entries_of_other_versions_are_filled_up_to_both_sizes, open_four_devices(4096, NULL))
{
    enum { SHORT = offsetof(struct xseg_device_stats, total_bytes) };
    struct {
        struct xseg_device_stats known;
        uint64_t unknown_member;
    } longer[DEVICES];
    unsigned char shorter[DEVICES][SHORT];

    env_free(allocator, env_alloc_on(allocator, 2, 4 * MIB));
    memset(longer, 0xa5, sizeof(longer));
    assert_ok(xseg_device_stats_get(allocator, &longer[0].known, sizeof(longer[0]), DEVICES, NULL));
    assert_ok(xseg_device_stats_get(allocator, (void *)shorter, sizeof(shorter[0]), DEVICES, NULL));
    for (int i = 0; i < DEVICES; i++) {
        struct xseg_device_stats known = {0};

        memcpy(&known, shorter[i], SHORT);
        assert_int_equal(known.struct_size, SHORT);
        assert_int_equal(known.device, i);
        assert_int_equal(known.is_open, i == 2);
        assert_int_equal(longer[i].known.struct_size, sizeof(known));
        assert_int_equal(longer[i].known.is_open, i == 2);
        assert_int_equal(longer[i].unknown_member, UINT64_C(0xa5a5a5a5a5a5a5a5));
    }
}

TEST_ON(statistics_open_no_device, open_four_devices(4096, NULL))
{
    struct xseg_device_stats devices[DEVICES];

    for (unsigned round = 0; round < 2; round++) {
        read_devices(allocator, devices);
        for (int i = 0; i < DEVICES; i++)
            expect_closed(&devices[i], i);
    }
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 0);
}

/* Device 0 is in use, device 1 is lost, device 2 is full, device 3 is unused. */
TEST(devices_have_separate_statistics)
{
    struct xseg_allocator *allocator = open_four_devices(512, "expandable_segments:True");
    const xseg_stream side = env_stream();
    struct xseg_device_stats devices[DEVICES];
    void *allocated = env_alloc_on(allocator, 0, 100 * MIB),
         *pending = env_alloc_on(allocator, 0, 60 * MIB);
    void *lost = env_alloc_on(allocator, 1, 40 * MIB),
         *full = env_alloc_on(allocator, 2, 500 * MIB);
    void *ptr = NULL;

    /* 40 MiB of device 0 are cached, and 60 MiB are pending. */
    env_free(allocator, env_alloc_on(allocator, 0, 40 * MIB));
    env_free_in_use(allocator, pending, side);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 1, 100 * MIB, NULL, &ptr), XSEG_ERR_DEVICE_LOST);
    assert_int_equal(xseg_alloc(allocator, 2, 40 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    read_devices(allocator, devices);
    for (int i = 0; i < 3; i++) {
        expect_equal_statistics(allocator, &devices[i]);
        assert_int_equal(devices[i].total_bytes, 512 * MIB);
        assert_int_equal(devices[i].limit_bytes, UINT64_MAX);
        assert_int_equal(devices[i].is_lost, i == 1);
    }
    assert_int_equal(devices[0].allocated_bytes, 100 * MIB);
    assert_int_equal(devices[0].pending_bytes, 60 * MIB);
    assert_int_equal(devices[0].idle_bytes, 40 * MIB);
    /* Only for the failed request of device 2 the free memory was queried. */
    assert_int_equal(devices[0].free_bytes, UINT64_MAX);
    assert_int_equal(devices[0].free_age_ms, UINT64_MAX);
    assert_int_equal(devices[1].allocated_bytes, 40 * MIB);
    assert_int_equal(devices[2].physical_bytes, 500 * MIB);
    assert_int_equal(devices[2].idle_bytes, 0);
    assert_int_equal(devices[2].free_bytes, 12 * MIB);
    assert_int_equal(devices[2].free_age_ms, 0);
    expect_closed(&devices[3], 3);
    env_free(allocator, allocated, lost, full);
    assert_ok(xseg_close(allocator)); /* a lost device keeps its memory */
    env_stream_destroy(side);
}

/* The memory of others is that of the last driver query, and the memory of this allocator is current. */
TEST_ON(external_memory_is_that_of_the_last_query,
        open_four_devices(100, "expandable_segments:False"))
{
    struct xseg_allocator *external_allocator = NULL;

    assert_ok(env_try_open("expandable_segments:False", &external_allocator));
    void *external = env_alloc(external_allocator, 40 * MIB, NULL),
         *first = env_alloc_on(allocator, 0, 20 * MIB);
    assert_int_equal(read_device(allocator, 0).free_bytes, UINT64_MAX);
    /* The request that fails queries the driver. */
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(read_device(allocator, 0).free_bytes, (100 - 40 - 20) * MIB);
    xseg_sim_advance(3000 * MS);
    assert_int_equal(read_device(allocator, 0).free_age_ms, 3000);
    void *second = env_alloc_on(allocator, 0, 30 * MIB);
    assert_int_equal(read_device(allocator, 0).free_bytes, 10 * MIB);
    /* The other allocator releases its memory, and there is no query afterwards. */
    env_free(external_allocator, external);
    assert_ok(xseg_close(external_allocator));
    assert_int_equal(read_device(allocator, 0).free_bytes, 10 * MIB);
    /* This block exceeds the last known free memory. */
    void *third = env_alloc_on(allocator, 0, 40 * MIB);
    assert_int_equal(read_device(allocator, 0).free_bytes, 0);
    assert_in_range(read_device(allocator, 0).free_age_ms, 3000, 3100);
    /* Another query. */
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(read_device(allocator, 0).free_bytes, (100 - 20 - 30 - 40) * MIB);
    assert_int_equal(read_device(allocator, 0).free_age_ms, 0);
    env_free(allocator, first, second, third);
}

/* With device_free_min_mb each decay pass queries the driver. */
TEST_ON(decay_updates_the_free_memory, open_four_devices(1024, "device_free_min_mb:1"))
{
    struct xseg_allocator *external_allocator = NULL;

    env_free(allocator, env_alloc_on(allocator, 1, 100 * MIB));
    assert_ok(env_try_open(NULL, &external_allocator));
    void *external = env_alloc_on(external_allocator, 1, 200 * MIB);
    xseg_sim_advance(1000 * MS);
    assert_ok(trim_due(allocator, 1));
    xseg_sim_advance(20 * MS);
    const struct xseg_device_stats device = read_device(allocator, 1);
    assert_int_equal(device.free_bytes, (1024 - 100 - 200) * MIB);
    assert_int_equal(device.free_age_ms, 20);
    expect_equal_statistics(allocator, &device);
    env_free(external_allocator, external);
    assert_ok(xseg_close(external_allocator));
}

TEST_ON(lowest_limit_is_reported, open_four_devices(1024, NULL))
{
    struct xseg_device_stats devices[DEVICES];

    set_limits(allocator, 0, 300 * MIB, 1);
    set_limits(allocator, 1, 300 * MIB, 0.25);
    set_limits(allocator, 2, UINT64_MAX, 0.5);
    read_devices(allocator, devices);
    assert_int_equal(devices[0].limit_bytes, 300 * MIB);
    assert_int_equal(devices[1].limit_bytes, 256 * MIB);
    assert_int_equal(devices[2].limit_bytes, 512 * MIB);
    expect_closed(&devices[3], 3);
}

TEST_ON(page_cache_is_idle_memory, open_four_devices(1024, "idle_ms:100,page_cache_mb:100"))
{
    void *allocated = env_alloc_on(allocator, 0, 40 * MIB);

    env_free(allocator, env_alloc_on(allocator, 0, 200 * MIB));
    assert_int_equal(read_device(allocator, 0).idle_bytes, 200 * MIB);
    env_advance_and_trim(allocator, 30, 10);
    const struct xseg_device_stats device = read_device(allocator, 0);
    expect_equal_statistics(allocator, &device);
    assert_int_equal(device.reserved_bytes, 40 * MIB);
    assert_int_equal(device.physical_bytes, (40 + 100) * MIB);
    assert_int_equal(device.idle_bytes, 100 * MIB);
    env_free(allocator, allocated);
}

TEST_IN_POOL(paused_blocks_do_not_reduce_idle_bytes,
             open_four_devices(1024, "expandable_segments:True"))
{
    void *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);

    env_free(allocator, env_alloc_on(allocator, 0, 60 * MIB));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    const struct xseg_device_stats device = read_device(allocator, 0);
    assert_int_equal(device.allocated_bytes, 100 * MIB);
    assert_int_equal(device.reserved_bytes, 60 * MIB);
    assert_int_equal(device.idle_bytes, 60 * MIB);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
}

/* The default pool, a retained pool and a released pool. */
TEST_ON(cached_memory_of_every_pool_is_idle, open_four_devices(1024, "expandable_segments:True"))
{
    struct xseg_pool *retained = env_pool(allocator), *released = env_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, retained, 20 * MIB, NULL));
    env_free(allocator, env_alloc_in(allocator, released, 40 * MIB, NULL));
    env_free(allocator, env_alloc_on(allocator, 0, 80 * MIB));
    assert_ok(xseg_pool_release(released));
    const struct xseg_device_stats device = read_device(allocator, 0);
    expect_equal_statistics(allocator, &device);
    assert_int_equal(device.idle_bytes, (20 + 40 + 80) * MIB);
    assert_ok(xseg_pool_release(retained));
}

/* A custom memory function that waits until the test opens the gate. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_waiting, is_open;
};

static void *alloc_after_gate(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct gate *gate = context;
    void *memory = NULL;

    (void)device, (void)stream;
    (void)pthread_mutex_lock(&gate->lock);
    gate->is_waiting = true;
    (void)pthread_cond_broadcast(&gate->changed);
    while (!gate->is_open)
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    (void)pthread_mutex_unlock(&gate->lock);
    return posix_memalign(&memory, 512, bytes) == 0 ? memory : NULL;
}

static void free_memory(void *context, void *memory, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)bytes, (void)device, (void)stream;
    free(memory);
}

/* A thread that allocates from a pool. */
struct growth {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
};

static void *grow(void *context)
{
    const struct growth *growth = context;
    struct xseg_request request = {sizeof(request), .bytes = 20 * MIB, .pool = growth->pool};
    void *block = NULL;

    return xseg_alloc_with(growth->allocator, &request, &block) == XSEG_OK ? block : NULL;
}

/* A growth holds the device memory lock while its memory function waits.  The statistics can be read, and do not include the
 * growth yet. */
TEST_ON(query_does_not_wait_for_growth, open_four_devices(1024, NULL))
{
    struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    struct growth growth = {allocator, NULL};
    void *block = NULL;
    pthread_t thread;

    growth.pool = env_pool_of(
        allocator, .memory = (struct xseg_pool_memory){alloc_after_gate, free_memory, &gate});
    assert_int_equal(pthread_create(&thread, NULL, grow, &growth), 0);
    (void)pthread_mutex_lock(&gate.lock);
    while (!gate.is_waiting)
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    (void)pthread_mutex_unlock(&gate.lock);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(read_device(allocator, 0).reserved_bytes, 0);
    (void)pthread_mutex_lock(&gate.lock);
    gate.is_open = true;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
    assert_int_equal(pthread_join(thread, &block), 0);
    assert_non_null(block);
    assert_int_equal(read_device(allocator, 0).allocated_bytes, 20 * MIB);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(growth.pool));
}

TEST_ON(calls_of_a_forked_child_fail, open_four_devices(1024, NULL))
{
    struct xseg_device_stats device;

    env_expect_forked(true, xseg_device_stats_get(allocator, &device, sizeof(device), 1, NULL));
}
