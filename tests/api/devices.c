/* SPDX-License-Identifier: MIT */
/*
 * The figures of all devices at once: they are those of the other reports, and reading them asks nobody and waits for
 * nothing.
 */
#include "tests/support/env.h"
#include "tests/support/trim_due.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICES 4
#define MS      UINT64_C(1000000)

/* Of CUresult. */
#define ILLEGAL_ADDRESS 700

static struct xseg_allocator *open_on(size_t mib, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = DEVICES,
                                         .memory_bytes = mib * MIB};

    return env_open_with_clock(&settings, config);
}

static void *alloc_on(struct xseg_allocator *allocator, int device, size_t bytes)
{
    void *block = NULL;

    assert_ok(xseg_alloc(allocator, device, bytes, NULL, &block));
    return block;
}

static struct xseg_scope where_of(int device)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = device;
    return where;
}

static void limit(struct xseg_allocator *allocator, int device, uint64_t hard, double fraction)
{
    struct xseg_limits set = XSEG_LIMITS_INIT;
    const struct xseg_scope where = where_of(device);

    set.hard_bytes = hard;
    set.fraction = fraction;
    set.has_fraction = true;
    assert_ok(xseg_limits_set(allocator, &where, &set));
}

/* The counts of all driver calls, which the caller frees. */
static struct xseg_driver_call *counts_of(struct xseg_allocator *allocator, size_t *count)
{
    struct xseg_driver_call *calls;

    assert_ok(xseg_driver_calls(allocator, NULL, 0, count));
    calls = calloc(*count, sizeof(*calls));
    assert_non_null(calls);
    assert_ok(xseg_driver_calls(allocator, calls, *count, NULL));
    return calls;
}

/* Read all devices: no call of the driver is counted, neither by the library nor by the driver. */
static void look(struct xseg_allocator *allocator, struct xseg_device_stats *devices)
{
    const uint64_t made = xseg_sim_calls(NULL);
    size_t count = 0, calls = 0;
    struct xseg_driver_call *before = counts_of(allocator, &calls), *after;

    memset(devices, 0xa5, DEVICES * sizeof(*devices));
    assert_ok(xseg_device_stats_get(allocator, devices, sizeof(*devices), DEVICES, &count));
    assert_int_equal(count, DEVICES);
    after = counts_of(allocator, &calls);
    assert_memory_equal(before, after, calls * sizeof(*before));
    assert_int_equal(xseg_sim_calls(NULL), made);
    free(before);
    free(after);
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(devices[i].struct_size, sizeof(*devices));
        assert_int_equal(devices[i].device, i);
    }
}

static struct xseg_device_stats look_at(struct xseg_allocator *allocator, int device)
{
    struct xseg_device_stats devices[DEVICES];

    look(allocator, devices);
    return devices[device];
}

/* What the statistics of a device say, too; nothing happens on it meanwhile, and no pool is paused. */
static void expect_statistics(struct xseg_allocator *allocator,
                              const struct xseg_device_stats *device)
{
    struct xseg_statistics stats = {sizeof(stats)};
    const struct xseg_scope where = where_of(device->device);

    assert_ok(xseg_stats_get(allocator, &where, &stats));
    const uint64_t reserved = stats.reserved_bytes[XSEG_STAT_ALL].current;
    const uint64_t live = stats.allocated_bytes[XSEG_STAT_ALL].current;
    const uint64_t active = stats.active_bytes[XSEG_STAT_ALL].current;
    assert_true(device->is_open);
    assert_int_equal(device->total_bytes, stats.device_bytes);
    assert_int_equal(device->limit_bytes, stats.limit_bytes);
    assert_int_equal(device->physical_bytes, stats.physical_bytes);
    assert_int_equal(device->reserved_bytes, reserved);
    assert_int_equal(device->allocated_bytes, live);
    assert_int_equal(device->pending_bytes, active - live);
    assert_int_equal(device->idle_bytes, reserved - active + stats.idle_page_bytes);
}

static void expect_closed(const struct xseg_device_stats *device, int ordinal)
{
    const struct xseg_device_stats closed = {.struct_size = sizeof(closed), .device = ordinal};

    assert_memory_equal(device, &closed, sizeof(closed));
}

/* --- Arguments, and room. --- */

TEST(arguments_are_checked)
{
    struct xseg_allocator *allocator = open_on(4096, NULL);
    struct xseg_device_stats devices[DEVICES];
    size_t count = 77;

    env_expect_error(xseg_device_stats_get(NULL, devices, sizeof(devices[0]), DEVICES, &count),
                     XSEG_ERR_ARGUMENT, "allocator");
    env_expect_error(xseg_device_stats_get(allocator, NULL, sizeof(devices[0]), 1, &count),
                     XSEG_ERR_ARGUMENT, "devices is NULL");
    env_expect_error(xseg_device_stats_get(allocator, devices, 4, DEVICES, &count),
                     XSEG_ERR_ARGUMENT, "is unknown");
    env_expect_error(xseg_device_stats_get(allocator, devices, sizeof(devices[0]) + 1, 1, &count),
                     XSEG_ERR_ARGUMENT, "entry_bytes");
    env_expect_error(xseg_device_stats_get(allocator, devices, 5000, 1, &count), XSEG_ERR_ARGUMENT,
                     "struct xseg_device_stats");
    assert_int_equal(count, 77);
    assert_ok(xseg_device_stats_get(allocator, devices, sizeof(devices[0]), DEVICES, NULL));
    env_close(allocator);
}

TEST(an_array_is_filled_as_far_as_it_goes)
{
    struct xseg_allocator *allocator = open_on(4096, NULL);
    struct xseg_device_stats devices[DEVICES + 1];
    unsigned char behind[sizeof(devices[0])];

    memset(behind, 0xa5, sizeof(behind));
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
            assert_memory_equal(&devices[i], behind, sizeof(behind));
    }
    env_close(allocator);
}

/* A program that was built when the entries were shorter, and one that was built when they are longer. */
TEST(entries_of_other_versions_are_filled_as_far_as_both_go)
{
    enum { SHORT = offsetof(struct xseg_device_stats, total_bytes) };
    struct xseg_allocator *allocator = open_on(4096, NULL);
    struct {
        struct xseg_device_stats known;
        uint64_t more;
    } longer[DEVICES];
    unsigned char shorter[DEVICES][SHORT];

    env_free(allocator, alloc_on(allocator, 2, 4 * MIB));
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
        assert_int_equal(longer[i].more, UINT64_C(0xa5a5a5a5a5a5a5a5));
    }
    env_close(allocator);
}

/* --- What they say. --- */

TEST(looking_opens_no_device)
{
    struct xseg_allocator *allocator = open_on(4096, NULL);
    struct xseg_device_stats devices[DEVICES];

    for (unsigned round = 0; round < 2; round++) {
        look(allocator, devices);
        for (int i = 0; i < DEVICES; i++)
            expect_closed(&devices[i], i);
    }
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 0);
    env_close(allocator);
}

/* Device 0 is used, device 1 is lost, device 2 is full, device 3 nobody has used. */
TEST(each_device_has_its_own)
{
    struct xseg_allocator *allocator = open_on(512, "expandable_segments:True");
    const xseg_stream side = env_stream();
    struct xseg_device_stats devices[DEVICES];
    void *live = alloc_on(allocator, 0, 100 * MIB), *pending = alloc_on(allocator, 0, 60 * MIB);
    void *lost = alloc_on(allocator, 1, 40 * MIB), *full = alloc_on(allocator, 2, 500 * MIB);
    void *none = NULL;

    env_free(allocator, alloc_on(allocator, 0, 40 * MIB));
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, pending, side));
    env_free(allocator, pending);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 1, 100 * MIB, NULL, &none), XSEG_ERR_DEVICE_LOST);
    assert_int_equal(xseg_alloc(allocator, 2, 40 * MIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    look(allocator, devices);
    for (int i = 0; i < 3; i++) {
        expect_statistics(allocator, &devices[i]);
        assert_int_equal(devices[i].total_bytes, 512 * MIB);
        assert_int_equal(devices[i].limit_bytes, UINT64_MAX);
        assert_int_equal(devices[i].is_lost, i == 1);
    }
    assert_int_equal(devices[0].allocated_bytes, 100 * MIB);
    assert_int_equal(devices[0].pending_bytes, 60 * MIB);
    assert_int_equal(devices[0].idle_bytes, 40 * MIB);
    assert_int_equal(devices[0].free_bytes, UINT64_MAX);
    assert_int_equal(devices[0].free_age_ms, UINT64_MAX);
    assert_int_equal(devices[1].allocated_bytes, 40 * MIB);
    assert_int_equal(devices[2].physical_bytes, 500 * MIB);
    assert_int_equal(devices[2].idle_bytes, 0);
    assert_int_equal(devices[2].free_bytes, 12 * MIB);
    assert_int_equal(devices[2].free_age_ms, 0);
    expect_closed(&devices[3], 3);
    env_free(allocator, live, lost, full);
    assert_ok(xseg_close(allocator)); /* a lost device keeps its memory */
    env_stream_destroy(side);
}

/* What others have is as old as the driver's answer, what is taken here is of now. */
TEST(free_is_as_last_learned)
{
    struct xseg_allocator *allocator = open_on(100, "expandable_segments:False"), *other = NULL;
    void *block = NULL;

    assert_ok(env_try_open("expandable_segments:False", &other));
    void *theirs = env_alloc(other, 40 * MIB, NULL), *ours = alloc_on(allocator, 0, 20 * MIB);
    assert_int_equal(look_at(allocator, 0).free_bytes, UINT64_MAX);
    assert_int_equal(xseg_alloc(allocator, 0, 60 * MIB, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_int_equal(look_at(allocator, 0).free_bytes, 40 * MIB);
    xseg_sim_advance(3000 * MS);
    assert_int_equal(look_at(allocator, 0).free_age_ms, 3000);
    void *more = alloc_on(allocator, 0, 30 * MIB);
    assert_int_equal(look_at(allocator, 0).free_bytes, 10 * MIB);
    /* The others give theirs back, and nobody has asked since. */
    env_free(other, theirs);
    assert_ok(xseg_close(other));
    assert_int_equal(look_at(allocator, 0).free_bytes, 10 * MIB);
    /* More than was free then. */
    void *most = alloc_on(allocator, 0, 40 * MIB);
    assert_int_equal(look_at(allocator, 0).free_bytes, 0);
    assert_in_range(look_at(allocator, 0).free_age_ms, 3000, 3100);
    assert_int_equal(xseg_alloc(allocator, 0, 60 * MIB, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_int_equal(look_at(allocator, 0).free_bytes, 10 * MIB);
    assert_int_equal(look_at(allocator, 0).free_age_ms, 0);
    env_free(allocator, ours, more, most);
    env_close(allocator);
}

/* With device_free_min_mb each look of decay asks, so a scheduler that ticks has fresh figures. */
TEST(decay_learns_what_is_free)
{
    struct xseg_allocator *allocator = open_on(1024, "device_free_min_mb:1"), *other = NULL;

    env_free(allocator, alloc_on(allocator, 1, 100 * MIB));
    assert_ok(env_try_open(NULL, &other));
    void *theirs = alloc_on(other, 1, 200 * MIB);
    xseg_sim_advance(1000 * MS);
    assert_ok(trim_due(allocator, 1));
    xseg_sim_advance(20 * MS);
    const struct xseg_device_stats device = look_at(allocator, 1);
    assert_int_equal(device.free_bytes, 724 * MIB);
    assert_int_equal(device.free_age_ms, 20);
    expect_statistics(allocator, &device);
    env_free(other, theirs);
    assert_ok(xseg_close(other));
    env_close(allocator);
}

TEST(the_lowest_limit_counts)
{
    struct xseg_allocator *allocator = open_on(1024, NULL);
    struct xseg_device_stats devices[DEVICES];

    limit(allocator, 0, 300 * MIB, 1);
    limit(allocator, 1, 300 * MIB, 0.25);
    limit(allocator, 2, UINT64_MAX, 0.5);
    look(allocator, devices);
    assert_int_equal(devices[0].limit_bytes, 300 * MIB);
    assert_int_equal(devices[1].limit_bytes, 256 * MIB);
    assert_int_equal(devices[2].limit_bytes, 512 * MIB);
    expect_closed(&devices[3], 3);
    env_close(allocator);
}

TEST(pages_kept_for_reuse_are_idle)
{
    struct xseg_allocator *allocator = open_on(1024, "idle_ms:100,page_cache_mb:100");
    void *live = alloc_on(allocator, 0, 40 * MIB);

    env_free(allocator, alloc_on(allocator, 0, 200 * MIB));
    assert_int_equal(look_at(allocator, 0).idle_bytes, 200 * MIB);
    for (unsigned i = 0; i < 30; i++) {
        xseg_sim_advance(10 * MS);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    const struct xseg_device_stats device = look_at(allocator, 0);
    expect_statistics(allocator, &device);
    assert_int_equal(device.reserved_bytes, 40 * MIB);
    assert_int_equal(device.physical_bytes, 140 * MIB);
    assert_int_equal(device.idle_bytes, 100 * MIB);
    env_free(allocator, live);
    env_close(allocator);
}

/* Blocks of a paused pool are live, and have no memory: they take away nothing of what is idle elsewhere. */
TEST(a_paused_pool_takes_nothing_away)
{
    struct xseg_allocator *allocator = open_on(1024, "expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);

    env_free(allocator, alloc_on(allocator, 0, 60 * MIB));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    const struct xseg_device_stats device = look_at(allocator, 0);
    assert_int_equal(device.allocated_bytes, 100 * MIB);
    assert_int_equal(device.reserved_bytes, 60 * MIB);
    assert_int_equal(device.idle_bytes, 60 * MIB);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* Of all pools: one that is held, one that has ended. */
TEST(cached_memory_of_every_pool_is_idle)
{
    struct xseg_allocator *allocator = open_on(1024, "expandable_segments:True");
    struct xseg_pool *held = env_pool(allocator), *ended = env_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, held, 20 * MIB, NULL));
    env_free(allocator, env_alloc_in(allocator, ended, 40 * MIB, NULL));
    env_free(allocator, alloc_on(allocator, 0, 80 * MIB));
    assert_ok(xseg_pool_release(ended));
    const struct xseg_device_stats device = look_at(allocator, 0);
    expect_statistics(allocator, &device);
    assert_int_equal(device.idle_bytes, 140 * MIB);
    assert_ok(xseg_pool_release(held));
    env_close(allocator);
}

/* --- While something happens. --- */

/* Memory of a pool's own that comes when the test says so. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_waiting, is_open;
};

static void *come_late(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct gate *gate = context;
    void *memory = NULL;

    (void)device;
    (void)stream;
    (void)pthread_mutex_lock(&gate->lock);
    gate->is_waiting = true;
    (void)pthread_cond_broadcast(&gate->changed);
    while (!gate->is_open)
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    (void)pthread_mutex_unlock(&gate->lock);
    return posix_memalign(&memory, 512, bytes) == 0 ? memory : NULL;
}

static void take_back(void *context, void *memory, size_t bytes, int device, xseg_stream stream)
{
    (void)context;
    (void)bytes;
    (void)device;
    (void)stream;
    free(memory);
}

/* A thread that allocates from a pool. */
struct growth {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
};

static void *grow(void *self)
{
    const struct growth *growth = self;
    struct xseg_request request = {sizeof(request), .bytes = 20 * MIB, .pool = growth->pool};
    void *block = NULL;

    return xseg_alloc_with(growth->allocator, &request, &block) == XSEG_OK ? block : NULL;
}

/* A growth that waits for memory holds its device for itself; figures can be read, and are those before it. */
TEST(a_growth_that_waits_holds_up_nothing)
{
    struct xseg_allocator *allocator = open_on(1024, NULL);
    struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
    struct xseg_pool_options options = {sizeof(options)};
    struct growth growth = {allocator, NULL};
    void *block = NULL;
    pthread_t thread;

    options.memory = (struct xseg_pool_memory){come_late, take_back, &gate};
    assert_ok(xseg_pool_create(allocator, 0, &options, &growth.pool));
    assert_int_equal(pthread_create(&thread, NULL, grow, &growth), 0);
    (void)pthread_mutex_lock(&gate.lock);
    while (!gate.is_waiting)
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    (void)pthread_mutex_unlock(&gate.lock);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(look_at(allocator, 0).reserved_bytes, 0);
    (void)pthread_mutex_lock(&gate.lock);
    gate.is_open = true;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
    assert_int_equal(pthread_join(thread, &block), 0);
    assert_non_null(block);
    assert_int_equal(look_at(allocator, 0).allocated_bytes, 20 * MIB);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(growth.pool));
    env_close(allocator);
}

TEST(a_forked_child_is_refused)
{
    struct xseg_allocator *allocator = open_on(1024, NULL);
    int result = 0;

    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct xseg_device_stats device;

        _exit(xseg_device_stats_get(allocator, &device, sizeof(device), 1, NULL) == XSEG_ERR_FORKED
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    env_close(allocator);
}
