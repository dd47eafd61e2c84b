/* SPDX-License-Identifier: MIT */
/* Pools that come and go, by what is counted: host bytes and driver calls, not time. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/env.h"

#define MIB ((size_t)1 << 20)

/* Host memory of a pool with one segment. */
#define POOL_BYTES ((uint64_t)128 << 10)

static uint64_t host_bytes(struct xseg_allocator *allocator)
{
    return env_stats(allocator).host_bytes;
}

static uint64_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    assert_int_equal(fclose(file), 0);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct xseg_allocator *open_small(const char *config, uint64_t memory)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                         .skip_checks = true};

    return env_open_on(&settings, config);
}

/* Create a pool, use it and release it. */
static struct xseg_pool *pass(struct xseg_allocator *allocator, size_t bytes)
{
    struct xseg_pool *pool = env_observed_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, bytes, NULL);

    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    return pool;
}

static uint64_t all_calls(void)
{
    static const char *const names[] = {
        "cuMemCreate",    "cuMemRelease",        "cuMemMap",           "cuMemUnmap",
        "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree",   "cuMemAlloc",
        "cuMemFree",      "cuStreamQuery",       "cuStreamSynchronize"};
    uint64_t calls = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        calls += xseg_sim_calls(names[i]);
    return calls;
}

/* Host memory does not grow with the number of pools, once they have used all of the device's memory. */
static void expect_flat(const char *config, size_t bytes, unsigned count)
{
    struct xseg_allocator *allocator = open_small(config, 256 * MIB);

    for (unsigned i = 0; i < 1000; i++)
        (void)pass(allocator, bytes);
    const uint64_t before = host_bytes(allocator);
    uint64_t calls = all_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)pass(allocator, bytes);
    const uint64_t least = all_calls() - calls;
    for (unsigned i = 2000; i < count - 1000; i++)
        (void)pass(allocator, bytes);
    calls = all_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)pass(allocator, bytes);
    /* A thousand pools may take one round of the device's memory more or less. */
    assert_in_range(all_calls() - calls, least / 2, least * 3 / 2);
    /* As many segments fit on the device as before, but for a few. */
    assert_in_range(host_bytes(allocator), 0, before + before / 8);
    env_close(allocator);
}

TEST(small_ones_leave_nothing)
{
    expect_flat(NULL, 1000, 20000);
}

TEST(large_ones_do_as_well)
{
    expect_flat(NULL, 5 * MIB, 20000);
}

TEST(classic_ones_do_as_well)
{
    expect_flat("expandable_segments:False", 1000, 100000);
}

/* Pools that are never used, or trimmed each time. */
TEST(empty_ones_do_as_well)
{
    struct xseg_allocator *allocator = open_small(NULL, 256 * MIB);

    env_free(allocator, env_alloc(allocator, 100, NULL));
    (void)pass(allocator, 1000);
    env_empty_cache(allocator);
    const uint64_t before = host_bytes(allocator);
    for (unsigned i = 0; i < 100000; i++)
        assert_ok(xseg_pool_release(env_pool(allocator)));
    for (unsigned i = 0; i < 2000; i++) {
        (void)pass(allocator, 1000);
        env_empty_cache(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, before + POOL_BYTES);
    env_close(allocator);
}

/* Until memory is low, the cached memory of released pools remains reserved, and the pools stay. */
TEST(pools_with_cached_memory_stay)
{
    /* Meson has the heap filled, which touches what nobody would.  A sanitizer's heap knows no such mode. */
    assert_true(mallopt(M_PERTURB, 0) == 1 || ENV_IS_SANITIZED);
    struct xseg_allocator *allocator = open_small(NULL, 0);

    for (unsigned i = 0; i < 100; i++)
        (void)pass(allocator, 1000);
    const uint64_t before = host_bytes(allocator);
    const uint64_t resident = resident_bytes();
    for (unsigned i = 0; i < 3000; i++)
        (void)pass(allocator, 1000);
    assert_int_equal(env_reserved(allocator), 3100 * 2 * MIB);
    assert_in_range(host_bytes(allocator), 0, before + 3000 * POOL_BYTES);
    /* The simulator's records are in there as well, but little of its tables on a device that large. */
    if (!ENV_IS_SANITIZED)
        assert_in_range(resident_bytes(), 0, resident + 3000 * POOL_BYTES);
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    env_close(allocator);
}

/* Blocks keep a pool; when they are gone, others that come and go see to it. */
TEST(pools_that_are_released_first_end_as_well)
{
    struct xseg_allocator *allocator = open_small(NULL, 1024 * MIB);
    uint64_t before = 0;
    void *ptr[200];

    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 200; i++) {
            struct xseg_pool *pool = env_pool(allocator);

            ptr[i] = env_alloc_in(allocator, pool, 1000, NULL);
            assert_ok(xseg_pool_release(pool));
            assert_ptr_equal(env_block(allocator, ptr[i]).pool, pool);
        }
        for (unsigned i = 0; i < 200; i++)
            env_free(allocator, ptr[i]);
        for (unsigned i = 0; i < 200; i++)
            assert_ok(xseg_pool_release(env_pool(allocator)));
        if (round == 4)
            before = host_bytes(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, before + before / 8);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 0);
    env_close(allocator);
}

/* --- What is left of them. --- */

struct found {
    const struct xseg_pool *pool;
    uint64_t bytes, mapped;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct found *found = context;

    assert_ptr_equal(block->pool, found->pool);
    found->bytes += block->state == XSEG_BLOCK_CACHED ? block->bytes : 0;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct found *found = context;

    assert_ptr_equal(mapping->pool, found->pool);
    found->mapped += mapping->bytes;
    return true;
}

TEST(cached_memory_says_whose_it_was)
{
    struct xseg_allocator *allocator = open_small(NULL, 1024 * MIB);
    struct xseg_pool *one = pass(allocator, 1000), *two = pass(allocator, 5 * MIB);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_explain_result sums = {sizeof(sums)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct found found = {.pool = two};

    where.pool = two;
    assert_ok(xseg_for_each_block(allocator, &where, add_block, &found));
    assert_ok(xseg_for_each_mapping(allocator, &where, add_mapping, &found));
    assert_int_equal(found.bytes, 20 * MIB);
    assert_int_equal(found.mapped, 20 * MIB);
    assert_ok(xseg_explain(allocator, &where, NULL, NULL, &sums));
    assert_int_equal(sums.reserved, 20 * MIB);
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.released, 20 * MIB);
    assert_int_equal(done.remaining, 0);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    where.pool = one;
    done = (struct xseg_trim_result){.struct_size = sizeof(struct xseg_trim_result)};
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.released, 2 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
    env_close(allocator);
}

/* The handle of a released pool with a callback can be used until the callback has returned. */
TEST(a_released_pool_serves_no_requests)
{
    struct xseg_allocator *allocator = open_small(NULL, 1024 * MIB);
    struct xseg_pool *pool = pass(allocator, 1000);
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_checkpoint *checkpoint = NULL;
    void *ptr = NULL;

    where.pool = pool;
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_true(stats.physical_bytes > 0);
    assert_ok(xseg_limits_set(allocator, &where, &limits));
    env_expect_error(xseg_pool_retain(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_expect_error(xseg_pool_release(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_expect_error(env_try_alloc_in(allocator, pool, 100, &ptr), XSEG_ERR_ARGUMENT,
                     "pool has been released");
    env_expect_error(xseg_route_begin(pool, NULL, NULL), XSEG_ERR_ARGUMENT,
                     "pool has been released");
    env_expect_error(xseg_route_end(pool), XSEG_ERR_ARGUMENT, "route is not active");
    env_expect_error(xseg_pool_checkpoint(pool, &checkpoint), XSEG_ERR_ARGUMENT,
                     "pool has been released");
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_ARGUMENT,
                     "pool has been released");
    env_expect_error(xseg_pool_resume(pool), XSEG_ERR_ARGUMENT, "not paused");
    env_close(allocator);
}

/* --- Memory of users' functions. --- */

struct owner {
    char *next;
    uint64_t given, taken;
};

static void *own_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;
    char *at = owner->next;

    (void)device;
    (void)stream;
    owner->next += bytes;
    owner->given += bytes;
    return at;
}

static void own_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;

    (void)ptr;
    (void)device;
    (void)stream;
    owner->taken += bytes;
}

/* Each owner gets back what is its own, when the pools are long gone. */
TEST(owners_get_their_memory_back)
{
    struct xseg_allocator *allocator = open_small(NULL, 1024 * MIB);
    struct xseg_pool_options options = {sizeof(options)};
    struct owner owner[16];

    for (unsigned i = 0; i < 16; i++) {
        struct xseg_pool *pool = NULL;

        owner[i] = (struct owner){(char *)((uintptr_t)(i + 1) << 30), 0, 0};
        options.memory = (struct xseg_pool_memory){own_alloc, own_free, &owner[i]};
        assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
        env_free(allocator, env_alloc_in(allocator, pool, 1000, NULL));
        env_free(allocator, env_alloc_in(allocator, pool, (i + 1) * MIB + 1, NULL));
        assert_ok(xseg_pool_release(pool));
    }
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(owner[i].taken, 0);
    env_empty_cache(allocator);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(owner[i].taken, owner[i].given);
    env_close(allocator);
}

/* --- Under shortage. --- */

/* What nobody holds is found: the device is filled with it, and then with one block. */
TEST(memory_of_ended_pools_is_taken)
{
    struct xseg_allocator *allocator = open_small(NULL, 512 * MIB);

    while (env_reserved(allocator) + 22 * MIB <= 512 * MIB) {
        (void)pass(allocator, 1000);
        (void)pass(allocator, 5 * MIB);
    }
    void *ptr = env_alloc(allocator, 510 * MIB, NULL);
    env_free(allocator, ptr);
    assert_in_range(env_stats(allocator).address_bytes, 0, (uint64_t)2 << 30);
    env_close(allocator);
}
