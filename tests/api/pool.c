/* SPDX-License-Identifier: MIT */
/* Private pools without a capture: routes, options, statistics, checkpoint and restore. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

static bool is_context(void *context, xseg_stream stream)
{
    return stream == (xseg_stream)context;
}

/* Among the routes that accept the stream, the route that was begun last serves the request. */
TEST_ON(the_latest_route_that_accepts_serves, env_open(NULL))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *one = env_pool(allocator), *all = env_pool(allocator);
    void *ptr[4];

    assert_ok(xseg_route_begin(all, NULL, NULL));
    assert_ok(xseg_route_begin(one, is_context, stream));
    assert_error(xseg_route_begin(one, NULL, NULL), BUSY, "already");
    ptr[0] = env_alloc(allocator, 100, stream);
    ptr[1] = env_alloc(allocator, 100, NULL);
    ptr[2] = env_alloc_in(allocator, all, 100, NULL);
    assert_ok(xseg_route_end(all));
    assert_error(xseg_route_end(all), ARGUMENT, "route is not active");
    ptr[3] = env_alloc(allocator, 100, NULL);
    assert_ptr_equal(env_block(allocator, ptr[0]).pool, one);
    assert_ptr_equal(env_block(allocator, ptr[1]).pool, all);
    assert_ptr_equal(env_block(allocator, ptr[2]).pool, all);
    assert_null(env_block(allocator, ptr[3]).pool);
    /* A route retains its pool, and prevents a close. */
    assert_ok(xseg_pool_release(one));
    env_free(allocator, env_alloc(allocator, 100, stream));
    assert_error(xseg_close(allocator), BUSY, "route");
    assert_ok(xseg_route_end(one));
    assert_error(xseg_route_begin(one, NULL, NULL), ARGUMENT, "pool has been released");
    env_free_all(allocator, ptr, 4 * sizeof(*ptr));
    assert_ok(xseg_pool_release(all));
}

/* A released pool serves no requests, so prewarming it would waste memory. */
TEST_EACH(a_released_pool_is_not_prewarmed, env_open(config), ENV_KINDS)
{
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = env_observed_pool(allocator)};

    assert_ok(xseg_prewarm(allocator, &scope, MIB));
    assert_ok(xseg_pool_release(scope.pool));
    assert_error(xseg_prewarm(allocator, &scope, MIB), ARGUMENT, "pool has been released");
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_ON(pool_limit_rejects_growth, env_open(NULL))
{
    void *outside = env_alloc(allocator, 30 * MIB, NULL), *b = NULL;

    struct xseg_pool *pool = env_pool_of(allocator, .limit_bytes = 41 * MIB);
    env_free(allocator, outside);
    void *a = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_error(env_try_alloc_in(allocator, pool, 11 * MIB, &b), LIMIT, "of pool 1");
    /* The pool serves requests that fit on its pages; no cached memory of other pools was released. */
    b = env_alloc_in(allocator, pool, 10 * MIB, NULL);
    const struct xseg_statistics stats = env_pool_stats(allocator, pool);
    assert_int_equal(stats.limit_bytes, 41 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].peak, 40 * MIB);
    assert_int_equal(stats.allocation[XSEG_STAT_LARGE].current, 2);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 80 * MIB);
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    env_free(allocator, a, b);
}

TEST_ON(no_split_keeps_blocks_whole, env_open("expandable_segments:False"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .no_split = true);
    void *a = env_alloc_in(allocator, pool, 100, NULL);
    void *b = env_alloc_in(allocator, pool, 100, NULL);
    assert_int_equal(env_block(allocator, a).bytes, 2 * MIB);
    assert_ptr_not_equal(env_block(allocator, a).segment_base,
                         env_block(allocator, b).segment_base);
    env_free(allocator, a, b);
}

TEST_ON(fallback_pool_serves_under_memory_pressure, env_open_mib(64, NULL))
{
    struct xseg_request request = {sizeof(request)};

    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true), *other;
    void *inside = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    env_free(allocator, inside);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ptr_equal(ptr, inside);
    assert_null(env_block(allocator, ptr).pool);
    assert_ptr_equal(env_block(allocator, ptr).fallback_pool, pool);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, ptr);
    /* Private pools do not use the fallback pool.  After its release its memory is released to the driver. */
    request.pool = other = env_pool(allocator);
    request.bytes = 30 * MIB;
    assert_error(xseg_alloc_with(allocator, &request, &ptr), NO_MEMORY,
                 "out of memory on device 0");
    assert_ok(xseg_pool_release(pool));
    ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_null(env_block(allocator, ptr).pool);
    assert_null(env_block(allocator, ptr).fallback_pool);
    assert_ok(xseg_pool_release(other));
    env_free(allocator, ptr);
}

/* A name is copied, and every message about the pool contains it, or the ID of a pool without a name. */
TEST_ON(messages_name_the_pool, env_open(NULL))
{
    char name[XSEG_POOL_NAME_MAX + 1] = "kv cache";
    struct xseg_pool *named = env_pool_of(allocator, .name = name);
    struct xseg_pool *other = env_pool_of(allocator, .name = ""), *third = env_pool(allocator);
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    void *ptr = NULL;

    memset(name, 'x', sizeof(name));
    assert_error(xseg_route_end(named), ARGUMENT, "route is not active, pool \"kv cache\"");
    assert_error(xseg_route_end(other), ARGUMENT, "route is not active, pool 2");
    assert_error(xseg_capture_end(third), ARGUMENT, "capture is not active, pool 3");
    assert_ok(xseg_route_begin(named, NULL, NULL));
    assert_error(xseg_route_begin(named, NULL, NULL), BUSY,
                 "route is already active, pool \"kv cache\"");
    assert_ok(xseg_route_end(named));
    struct xseg_checkpoint *checkpoint = env_checkpoint(named);
    assert_error(xseg_pool_restore(other, checkpoint, NULL, NULL), ARGUMENT,
                 "checkpoint is of another pool, pool \"kv cache\"; restore pool 2");
    xseg_checkpoint_destroy(checkpoint);
    assert_error(xseg_pool_resume(named), ARGUMENT, "pool \"kv cache\" is not");
    assert_ok(xseg_pool_pause(named, XSEG_KEEP_NOTHING, NULL));
    assert_error(env_try_alloc_in(allocator, named, 1, &ptr), PAUSED,
                 "pool is paused, \"kv cache\"; ");
    assert_ok(xseg_pool_resume(named));
    limits.soft_bytes = limits.hard_bytes = MIB;
    assert_error(xseg_limits_set(allocator, env_scope(.device = -1, .pool = third), &limits),
                 UNSUPPORTED, "pool 3 has no soft_bytes");
}

TEST_ON(pool_name_is_bounded, env_open(NULL))
{
    char name[XSEG_POOL_NAME_MAX + 2];
    struct xseg_pool *pool = NULL;

    memset(name, 'n', sizeof(name));
    struct xseg_pool_options options = {sizeof(options), .name = name};
    /* The name is not terminated, so at most XSEG_POOL_NAME_MAX + 1 bytes may be read. */
    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT, "at most 63 bytes");
    assert_null(pool);
    name[XSEG_POOL_NAME_MAX] = '\0';
    pool = env_pool_with(allocator, &options);
    assert_error(xseg_pool_resume(pool), ARGUMENT, "nnn\" is not paused");
    /* A caller that was compiled without the member `name`. */
    options.struct_size = offsetof(struct xseg_pool_options, name);
    memset(name, 'n', sizeof(name));
    pool = env_pool_with(allocator, &options);
    assert_error(xseg_pool_resume(pool), ARGUMENT, "pool 2 is not paused");
}

struct own {
    unsigned char *memory;
    size_t allocated, freed, misalignment;
    bool fails;
};

static void *own_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct own *own = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    if (own->fails)
        return NULL;
    own->allocated += bytes;
    return own->memory + own->misalignment;
}

static void own_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct own *own = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    assert_ptr_equal(ptr, own->memory + own->misalignment);
    own->freed += bytes;
}

TEST(custom_functions_supply_the_memory_of_a_pool)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct own own = {.memory = aligned_alloc(4096, 4 * MIB)};
    void *c = NULL;

    assert_non_null(own.memory);
    struct xseg_pool_options options = {sizeof(options),
                                        .memory = (struct xseg_pool_memory){own_alloc, NULL, &own}};
    struct xseg_pool *pool = NULL;
    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT, "free");
    options.memory.free = own_free;
    pool = env_pool_with(allocator, &options);

    own.fails = true;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), NO_MEMORY,
                 "memory functions of pool 1 returned no memory");
    own.fails = false;
    own.misalignment = 64;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), ARGUMENT, "aligned");
    assert_int_equal(own.allocated, own.freed);
    own.misalignment = 0;
    void *a = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    void *b = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    assert_ptr_equal(a, own.memory);
    assert_ptr_equal(b, own.memory + MIB);
    assert_false(env_block(allocator, a).is_expandable);
    /* The function returns an address that is in use: two blocks would overlap. */
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), ARGUMENT, "in use");
    env_free(allocator, a);
    assert_ptr_equal(env_alloc_in(allocator, pool, MIB / 2, NULL), own.memory);
    env_free(allocator, own.memory);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(own.allocated - own.freed, 2 * MIB);
    env_free(allocator, b);
    env_empty_cache(allocator);
    assert_int_equal(own.allocated, own.freed);
    env_close(allocator);
    free(own.memory);
}

/* After such a pool rejects a request, growth uses full pages, and a capture begins without a trim. */
static void expect_no_memory_pressure(const struct xseg_pool_options *options, xseg_status status)
{
    void *block = NULL;

    struct xseg_allocator *allocator = env_open_mib(200, NULL);
    struct xseg_pool *pool = env_pool_with(allocator, options), *captured = env_pool(allocator);
    const xseg_stream stream = env_stream();

    void *a = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_try_alloc_in(allocator, pool, 30 * MIB, &block), status);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    void *b = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 2);
    env_free(allocator, a);
    env_capture_begin(captured, stream);
    env_capture_end(captured, stream);
    assert_int_equal(env_reserved(allocator), 160 * MIB);
    env_free(allocator, b);
    env_close(allocator, stream);
}

TEST(full_pool_is_no_memory_pressure)
{
    struct own own = {.fails = true};
    const struct xseg_pool_options limited = {sizeof(limited), .limit_bytes = 20 * MIB};
    const struct xseg_pool_options owned = {sizeof(owned), .memory = {own_alloc, own_free, &own}};

    expect_no_memory_pressure(&limited, XSEG_ERR_LIMIT);
    expect_no_memory_pressure(&owned, XSEG_ERR_NO_MEMORY);
}

struct notified {
    unsigned freed, live;
};

static void record_block(void *context, void *ptr, bool freed)
{
    struct notified *notified = context;

    assert_non_null(ptr);
    if (freed)
        notified->freed++;
    else
        notified->live++;
}

/* Expect the requested sizes, not the rounded sizes. */
static void expect_requested(struct xseg_allocator *allocator, struct xseg_pool *pool,
                             void *const block[6], uint64_t expected)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < 6; i++) {
        if (i == 1 || i == 2)
            continue;
        assert_int_equal(env_block(allocator, block[i]).requested,
                         (i % 2 != 0 ? 3 * MIB : 700) * (i + 1));
        sum += env_block(allocator, block[i]).requested;
    }
    assert_int_equal(sum, expected);
    assert_int_equal(env_pool_stats(allocator, pool).requested_bytes[XSEG_STAT_ALL].current,
                     expected);
}

TEST_EACH(pool_is_restored_to_a_checkpoint, env_open(config), ENV_KINDS)
{
    struct xseg_pool *pool = env_pool(allocator);
    struct notified notified = {0, 0};
    void *first[6], *later[6];
    bool is_exact = false;

    for (unsigned k = 0; k < 6; k++)
        first[k] = env_alloc_in(allocator, pool, (k % 2 != 0 ? 3 * MIB : 700) * (k + 1), NULL);
    env_free(allocator, first[1], first[2]);
    void *const live[] = {first[5], first[0], first[3], first[4], first[0]};
    assert_ok(xseg_pool_check_live(pool, live, 5, &is_exact));
    assert_true(is_exact);
    assert_ok(xseg_pool_check_live(pool, live, 3, &is_exact));
    assert_false(is_exact);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    const struct xseg_statistics before = env_pool_stats(allocator, pool);

    /* Change the state: free blocks, and allocate blocks that overlap their addresses. */
    env_free(allocator, first[0], first[3]);
    for (unsigned k = 0; k < 6; k++)
        later[k] = env_alloc_in(allocator, pool, (k % 2 != 0 ? 5 * MIB : 90 * KIB) * (k + 1), NULL);
    env_free(allocator, later[2]);
    assert_ok(xseg_pool_restore(pool, checkpoint, record_block, &notified));
    assert_int_equal(notified.freed, 7);
    assert_int_equal(notified.live, 4);
    assert_ok(xseg_pool_check_live(pool, live, 4, &is_exact));
    assert_true(is_exact);
    const struct xseg_statistics after = env_pool_stats(allocator, pool);
    assert_int_equal(after.allocation[XSEG_STAT_ALL].current,
                     before.allocation[XSEG_STAT_ALL].current);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current,
                     before.allocated_bytes[XSEG_STAT_ALL].current);
    expect_requested(allocator, pool, first, before.requested_bytes[XSEG_STAT_ALL].current);
    assert_error(xseg_free(allocator, first[1]), NOT_ALLOCATED, "cached");
    /* The restore counts only the blocks that it allocated again. */
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].allocated, 6 + 6 + 4);

    /* A second restore, from an equal state. */
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_ok(xseg_pool_check_live(pool, live, 4, &is_exact));
    assert_true(is_exact);
    expect_requested(allocator, pool, first, before.requested_bytes[XSEG_STAT_ALL].current);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, first[0], first[3], first[4], first[5]);
    assert_ok(xseg_pool_release(pool));
}

TEST_IN_POOL(failed_restore_changes_nothing, env_open(NULL))
{
    const xseg_stream side = env_stream();
    struct xseg_pool *other = env_pool(allocator);
    void *a = env_alloc_in(allocator, pool, 5 * MIB, NULL),
         *b = env_alloc_in(allocator, pool, 5 * MIB, NULL);
    bool is_exact = false;

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_error(xseg_pool_restore(other, checkpoint, NULL, NULL), ARGUMENT, "another pool");
    assert_error(xseg_pool_restore(pool, NULL, NULL, NULL), ARGUMENT, "NULL");
    env_use(allocator, a, side);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "used by");
    env_free(allocator, a);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "pending free");
    struct xseg_checkpoint *second = NULL;
    assert_error(xseg_pool_checkpoint(pool, &second), BUSY, "pending free");
    assert_ok(xseg_pool_check_live(pool, &b, 1, &is_exact));
    assert_true(is_exact);
    assert_ok(xseg_sim_finish(side));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    env_free(allocator, a, b);
    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(NULL);
}

/* Only the first page of a block of the checkpoint is still mapped. */
TEST_IN_POOL(partly_released_memory_is_not_restored, env_open("expandable_segments:True"))
{
    void *block = env_alloc_in(allocator, pool, 60 * MIB, NULL);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    env_free(allocator, block);
    assert_ptr_equal(env_alloc_in(allocator, pool, 10 * MIB, NULL), block);
    assert_int_equal(env_trim_pool(allocator, pool).released, 40 * MIB);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY,
                 "memory of the checkpoint has been released");
    assert_int_equal(env_block(allocator, block).bytes, 10 * MIB);
    /* With memory at the same addresses the pool can be restored. */
    env_free(allocator, env_alloc_in(allocator, pool, 50 * MIB, NULL));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_int_equal(env_block(allocator, block).bytes, 60 * MIB);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, block);
}

/* A long-running service creates and releases many pools. */
TEST_ON(destroyed_pools_leave_no_memory, env_open_mib(1024, "expandable_segments:True"))
{
    uint64_t host = 0;

    /* The simulator does not reuse addresses. */
    for (unsigned i = 0; i < 3000; i++) {
        struct xseg_pool *pool = env_pool(allocator);
        void *small = env_alloc_in(allocator, pool, 1000, NULL);
        void *large = env_alloc_in(allocator, pool, 5 * MIB, NULL);

        /* The counters of a new pool begin at zero. */
        const struct xseg_statistics stats = env_pool_stats(allocator, pool);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 2);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 2);
        assert_int_equal(stats.allocated_bytes[XSEG_STAT_SMALL].allocated, 1024);
        assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].freed, 0);
        env_free(allocator, small, large);
        assert_ok(xseg_pool_release(pool));
        assert_ok(xseg_trim(allocator, NULL, NULL, NULL));
        if (i == 10)
            host = env_stats(allocator).host_bytes;
    }
    assert_true(env_stats(allocator).host_bytes < host + 4096);
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].allocated, 3000 * 2);
}

/* --- Costs of created and released pools, in host bytes and driver calls instead of time. --- */

/* Host memory of a pool with one segment. */
#define POOL_BYTES ((uint64_t)128 << 10)

static uint64_t host_bytes(struct xseg_allocator *allocator)
{
    return env_stats(allocator).host_bytes;
}

static struct xseg_allocator *open_small(const char *config, uint64_t memory)
{
    return env_open_sim(config, .memory_bytes = memory, .skip_checks = true);
}

/* Create a pool, use it and release it. */
static struct xseg_pool *use_pool(struct xseg_allocator *allocator, size_t bytes)
{
    struct xseg_pool *pool = env_observed_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, pool, bytes, NULL));
    assert_ok(xseg_pool_release(pool));
    return pool;
}

static uint64_t count_driver_calls(void)
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
static void expect_constant_cost(const char *config, size_t bytes, unsigned count)
{
    struct xseg_allocator *allocator = open_small(config, 256 * MIB);

    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    const uint64_t before = host_bytes(allocator);
    uint64_t calls = count_driver_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    const uint64_t calls_min = count_driver_calls() - calls;
    for (unsigned i = 2000; i < count - 1000; i++)
        (void)use_pool(allocator, bytes);
    calls = count_driver_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    /* The calls of 1,000 pools vary by one pass over the memory of the device. */
    assert_in_range(count_driver_calls() - calls, calls_min / 2, calls_min * 3 / 2);
    /* The number of segments on the device varies slightly. */
    assert_in_range(host_bytes(allocator), 0, before + before / 8);
    env_close(allocator);
}

TEST(destroyed_pools_leave_no_host_memory)
{
    expect_constant_cost(NULL, 1000, 20000);
    expect_constant_cost(NULL, 5 * MIB, 20000);
    expect_constant_cost("expandable_segments:False", 1000, 100000);
}

/* Unused pools, and pools whose memory is trimmed after each release. */
TEST_ON(empty_and_trimmed_pools_leave_no_host_memory, open_small(NULL, 256 * MIB))
{
    env_free(allocator, env_alloc(allocator, 100, NULL));
    (void)use_pool(allocator, 1000);
    env_empty_cache(allocator);
    const uint64_t before = host_bytes(allocator);
    for (unsigned i = 0; i < 100000; i++)
        assert_ok(xseg_pool_release(env_pool(allocator)));
    for (unsigned i = 0; i < 2000; i++) {
        (void)use_pool(allocator, 1000);
        env_empty_cache(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, before + POOL_BYTES);
}

/* Released pools exist as long as they have cached memory, which remains reserved until memory is low. */
TEST(pools_with_cached_memory_are_not_destroyed)
{
    /* MALLOC_PERTURB_ of Meson fills the heap, which touches unused memory.  A sanitizer's heap has no such mode. */
    assert_true(mallopt(M_PERTURB, 0) == 1 || ENV_IS_SANITIZED);
    struct xseg_allocator *allocator = open_small(NULL, 0);

    for (unsigned i = 0; i < 100; i++)
        (void)use_pool(allocator, 1000);
    const uint64_t before = host_bytes(allocator), resident = env_resident_bytes();
    for (unsigned i = 0; i < 3000; i++)
        (void)use_pool(allocator, 1000);
    assert_int_equal(env_reserved(allocator), 3100 * 2 * MIB);
    assert_in_range(host_bytes(allocator), 0, before + 3000 * POOL_BYTES);
    /* The resident bytes include the simulator's records, but few of its tables on a device of this size. */
    if (!ENV_IS_SANITIZED)
        assert_in_range(env_resident_bytes(), 0, resident + 3000 * POOL_BYTES);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    env_close(allocator);
}

/* A released pool with blocks is destroyed after its last block is freed, by later calls about other pools. */
TEST_ON(pools_released_before_their_blocks_are_destroyed, open_small(NULL, 1024 * MIB))
{
    uint64_t before = 0;
    void *ptr[200];

    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 200; i++) {
            struct xseg_pool *pool = env_pool(allocator);

            ptr[i] = env_alloc_in(allocator, pool, 1000, NULL);
            assert_ok(xseg_pool_release(pool));
            assert_ptr_equal(env_block(allocator, ptr[i]).pool, pool);
        }
        env_free_all(allocator, ptr, 200 * sizeof(*ptr));
        for (unsigned i = 0; i < 200; i++)
            assert_ok(xseg_pool_release(env_pool(allocator)));
        if (round == 4)
            before = host_bytes(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, before + before / 8);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

struct pool_memory {
    const struct xseg_pool *pool;
    uint64_t bytes, mapped;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct pool_memory *found = context;

    assert_ptr_equal(block->pool, found->pool);
    found->bytes += block->state == XSEG_BLOCK_CACHED ? block->bytes : 0;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct pool_memory *found = context;

    assert_ptr_equal(mapping->pool, found->pool);
    found->mapped += mapping->bytes;
    return true;
}

TEST_ON(cached_memory_reports_its_stream, open_small(NULL, 1024 * MIB))
{
    struct xseg_pool *one = use_pool(allocator, 1000), *two = use_pool(allocator, 5 * MIB);
    struct xseg_explain_result sums = {sizeof(sums)};
    struct pool_memory found = {.pool = two};
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = two};

    assert_ok(xseg_for_each_block(allocator, &scope, add_block, &found));
    assert_ok(xseg_for_each_mapping(allocator, &scope, add_mapping, &found));
    assert_int_equal(found.bytes, 20 * MIB);
    assert_int_equal(found.mapped, 20 * MIB);
    assert_ok(xseg_explain(allocator, &scope, NULL, NULL, &sums));
    assert_int_equal(sums.reserved, 20 * MIB);
    const struct xseg_trim_result done = env_trim_pool(allocator, two);
    assert_int_equal(done.released, 20 * MIB);
    assert_int_equal(done.remaining, 0);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    assert_int_equal(env_trim_pool(allocator, one).released, 2 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
}

/* The handle of a released pool with a callback can be used until the callback has returned. */
TEST_ON(a_released_pool_serves_no_requests, open_small(NULL, 1024 * MIB))
{
    struct xseg_pool *pool = use_pool(allocator, 1000);
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};
    struct xseg_checkpoint *checkpoint = NULL;
    void *ptr = NULL;

    struct xseg_statistics stats = {sizeof(stats)};
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_true(stats.physical_bytes > 0);
    assert_ok(xseg_limits_set(allocator, &scope, &limits));
    assert_error(xseg_pool_retain(pool), ARGUMENT, "pool has been released");
    assert_error(xseg_pool_release(pool), ARGUMENT, "pool has been released");
    assert_error(env_try_alloc_in(allocator, pool, 100, &ptr), ARGUMENT, "pool has been released");
    assert_error(xseg_route_begin(pool, NULL, NULL), ARGUMENT, "pool has been released");
    assert_error(xseg_route_end(pool), ARGUMENT, "route is not active");
    assert_error(xseg_pool_checkpoint(pool, &checkpoint), ARGUMENT, "pool has been released");
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), ARGUMENT,
                 "pool has been released");
    assert_error(xseg_pool_resume(pool), ARGUMENT, "not paused");
}

struct owner {
    char *next;
    uint64_t allocated, freed;
};

static void *counted_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;
    char *at = owner->next;

    (void)device, (void)stream;
    owner->next += bytes;
    owner->allocated += bytes;
    return at;
}

static void counted_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;

    (void)ptr, (void)device, (void)stream;
    owner->freed += bytes;
}

/* A trim returns the memory of destroyed pools to the functions that allocated it. */
TEST_ON(memory_returns_to_its_custom_functions, open_small(NULL, 1024 * MIB))
{
    struct owner owner[16];

    for (unsigned i = 0; i < 16; i++) {
        owner[i] = (struct owner){(char *)((uintptr_t)(i + 1) << 30), 0, 0};
        struct xseg_pool *pool =
            env_pool_of(allocator, .memory = {counted_alloc, counted_free, &owner[i]});
        env_free(allocator, env_alloc_in(allocator, pool, 1000, NULL));
        env_free(allocator, env_alloc_in(allocator, pool, (i + 1) * MIB + 1, NULL));
        assert_ok(xseg_pool_release(pool));
    }
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(owner[i].freed, 0);
    env_empty_cache(allocator);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(owner[i].freed, owner[i].allocated);
}

/* The device is filled with memory of destroyed pools, and then with one block. */
TEST_ON(memory_of_destroyed_pools_is_reused, open_small(NULL, 512 * MIB))
{
    while (env_reserved(allocator) + 22 * MIB <= 512 * MIB) {
        (void)use_pool(allocator, 1000);
        (void)use_pool(allocator, 5 * MIB);
    }
    env_free(allocator, env_alloc(allocator, 510 * MIB, NULL));
    assert_in_range(env_stats(allocator).address_bytes, 0, (uint64_t)2 << 30);
}

static void *at(void *base, size_t offset)
{
    return (char *)base + offset;
}

static const struct {
    size_t cached, offset, bytes;
} cases[] = {
    {40 * MIB, 0, 40 * MIB},       {40 * MIB, 0, 4 * MIB},     {40 * MIB, 10 * MIB, 4 * MIB},
    {40 * MIB, 36 * MIB, 4 * MIB}, {64 * KIB, 0, 4 * KIB},     {64 * KIB, 512, 512},
    {64 * KIB, 60 * KIB, 4 * KIB}, {64 * KIB, 30 * KIB, 1000},
};

/* The memory before and after the block stays cached. */
TEST_TIMES(block_is_allocated_at_its_address, 2 * COUNT_OF(cases),
           env_open(i % 2 == 0 ? "expandable_segments:True" : "expandable_segments:False"))
{
    const size_t number = i / 2;
    struct xseg_pool *pool = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, cases[number].cached, NULL), *ptr = NULL;
    void *address = at(base, cases[number].offset);
    const uint64_t grown = env_stats(allocator).num_device_alloc;

    env_free(allocator, base);
    assert_ok(xseg_alloc_at(pool, cases[number].bytes, NULL, address, &ptr));
    assert_ptr_equal(ptr, address);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(env_block(allocator, ptr).requested, cases[number].bytes);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    if (cases[number].offset > 0)
        assert_int_equal(env_block(allocator, base).bytes, cases[number].offset);
    assert_int_equal(env_stats(allocator).num_device_alloc, grown);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 2); /* with `base` */
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].peak, 1);
    env_free(allocator, ptr);
    assert_ptr_equal(env_alloc_in(allocator, pool, cases[number].cached, NULL), base);
    env_free(allocator, base);
}

TEST_EACH(address_without_a_cached_block_is_rejected, env_open(config), ENV_KINDS)
{
    const xseg_stream side = env_stream();
    struct xseg_pool *pool = env_pool(allocator), *other = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, 40 * MIB, NULL), *ptr = NULL;
    void *pending = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    void *live = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    _Alignas(512) char nowhere[512];

    env_free(allocator, base);
    env_free_in_use(allocator, pending, side);
    const struct {
        struct xseg_pool *pool;
        size_t bytes;
        xseg_stream stream;
        void *address;
        xseg_status status;
        const char *words;
    } row[] = {
        {pool, 4 * MIB, NULL, live, XSEG_ERR_BUSY, "in an allocated block"},
        {pool, 4 * MIB, NULL, pending, XSEG_ERR_BUSY, "another stream still uses"},
        {pool, 41 * MIB, NULL, base, XSEG_ERR_BUSY, "cached block is too short"},
        {pool, 4 * MIB, NULL, at(base, 38 * MIB), XSEG_ERR_BUSY, "cached block is too short"},
        {other, 4 * MIB, NULL, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 4 * MIB, side, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 512, NULL, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 4 * MIB, NULL, nowhere, XSEG_ERR_BUSY, "no segment"},
        {pool, 4 * MIB, NULL, at(base, 8), XSEG_ERR_ARGUMENT, "multiple of 512"},
        {pool, 4 * MIB, NULL, NULL, XSEG_ERR_ARGUMENT, "multiple of 512"},
        {NULL, 4 * MIB, NULL, base, XSEG_ERR_ARGUMENT, "NULL"},
    };

    for (size_t k = 0; k < COUNT_OF(row); k++)
        env_expect_error(
            xseg_alloc_at(row[k].pool, row[k].bytes, row[k].stream, row[k].address, &ptr),
            row[k].status, row[k].words);
    assert_error(xseg_alloc_at(pool, 4 * MIB, NULL, base, NULL), ARGUMENT, "NULL");
    assert_null(ptr);
    ptr = base;
    assert_ok(xseg_alloc_at(pool, 0, NULL, base, &ptr));
    assert_null(ptr);
    /* The pending block is cached after its stream has completed. */
    assert_ok(xseg_sim_finish(side));
    assert_ok(xseg_alloc_at(pool, 4 * MIB, NULL, pending, &ptr));
    env_free(allocator, ptr, live);
    assert_ok(xseg_pool_release(other));
    other = env_observed_pool(allocator);
    live = env_alloc_in(allocator, other, 4 * MIB, NULL);
    assert_ok(xseg_pool_release(other));
    assert_error(xseg_alloc_at(other, 4 * MIB, NULL, base, &ptr), ARGUMENT,
                 "pool has been released");
    env_free(allocator, live);
    env_empty_cache(allocator);
}

TEST_IN_POOL(paused_pool_rejects_addresses, env_open("expandable_segments:True"))
{
    void *base = env_alloc_in(allocator, pool, 40 * MIB, NULL), *ptr = NULL;

    env_free(allocator, base);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_error(xseg_alloc_at(pool, 4 * MIB, NULL, base, &ptr), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_ok(xseg_alloc_at(pool, 4 * MIB, NULL, base, &ptr));
    env_free(allocator, ptr);
}
