/* SPDX-License-Identifier: MIT */
/* Private pools without a capture: routes, options, statistics, checkpoint and restore. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

static bool is_this(void *context, xseg_stream stream)
{
    return stream == (xseg_stream)context;
}

/* The route that was begun last, and accepts the stream, serves it. */
TEST_ON(the_latest_route_that_accepts_serves, env_open(NULL))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *one = env_pool(allocator), *all = env_pool(allocator);
    void *ptr[4];

    assert_ok(xseg_route_begin(all, NULL, NULL));
    assert_ok(xseg_route_begin(one, is_this, stream));
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

/* A released pool is not found any more, so memory that it got would serve no request. */
TEST_EACH(a_released_pool_is_not_prewarmed, env_open(config), ENV_KINDS)
{
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = env_observed_pool(allocator)};

    assert_ok(xseg_prewarm(allocator, &where, MIB));
    assert_ok(xseg_pool_release(where.pool));
    assert_error(xseg_prewarm(allocator, &where, MIB), ARGUMENT, "pool has been released");
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_ON(a_pool_has_a_limit_of_its_own, env_open(NULL))
{
    void *outside = env_alloc(allocator, 30 * MIB, NULL), *b = NULL;

    struct xseg_pool *pool = env_pool_of(allocator, .limit_bytes = 41 * MIB);
    env_free(allocator, outside);
    void *a = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_error(env_try_alloc_in(allocator, pool, 11 * MIB, &b), LIMIT, "of pool 1");
    /* Requests that fit on its pages are served; no other cache was released. */
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
    /* No memory for private pools, and none after the release: then its memory is released. */
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
    struct xseg_pool *other = env_pool_of(allocator, .name = "");
    struct xseg_pool *third = env_pool(allocator);
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

TEST_ON(a_name_has_an_end, env_open(NULL))
{
    char name[XSEG_POOL_NAME_MAX + 2];
    struct xseg_pool *pool = NULL;

    memset(name, 'n', sizeof(name));
    struct xseg_pool_options options = {sizeof(options), .name = name};
    /* Not terminated: at most the limit is read. */
    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT, "at most 63 bytes");
    assert_null(pool);
    name[XSEG_POOL_NAME_MAX] = '\0';
    pool = env_pool_with(allocator, &options);
    assert_error(xseg_pool_resume(pool), ARGUMENT, "nnn\" is not paused");
    /* A caller that knows no names. */
    options.struct_size = offsetof(struct xseg_pool_options, name);
    memset(name, 'n', sizeof(name));
    pool = env_pool_with(allocator, &options);
    assert_error(xseg_pool_resume(pool), ARGUMENT, "pool 2 is not paused");
}

struct own {
    unsigned char *memory;
    size_t given, taken, skew;
    bool refuses;
};

static void *own_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct own *own = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    if (own->refuses)
        return NULL;
    own->given += bytes;
    return own->memory + own->skew;
}

static void own_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct own *own = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    assert_ptr_equal(ptr, own->memory + own->skew);
    own->taken += bytes;
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

    own.refuses = true;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), NO_MEMORY,
                 "memory functions of pool 1 returned no memory");
    own.refuses = false;
    own.skew = 64;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), ARGUMENT, "aligned");
    assert_int_equal(own.given, own.taken);
    own.skew = 0;
    void *a = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    void *b = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    assert_ptr_equal(a, own.memory);
    assert_ptr_equal(b, own.memory + MIB);
    assert_false(env_block(allocator, a).is_expandable);
    /* The function gives an address that is in use: that would be two blocks in one place. */
    assert_error(env_try_alloc_in(allocator, pool, MIB, &c), ARGUMENT, "in use");
    env_free(allocator, a);
    assert_ptr_equal(env_alloc_in(allocator, pool, MIB / 2, NULL), own.memory);
    env_free(allocator, own.memory);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(own.given - own.taken, 2 * MIB);
    env_free(allocator, b);
    env_empty_cache(allocator);
    assert_int_equal(own.given, own.taken);
    env_close(allocator);
    free(own.memory);
}

/* After a refusal in such a pool: pages stay full, and nothing goes before a capture. */
static void expect_no_shortage(const struct xseg_pool_options *options, xseg_status status)
{
    void *none = NULL;

    struct xseg_allocator *allocator = env_open_mib(200, NULL);
    struct xseg_pool *pool = env_pool_with(allocator, options), *captured = env_pool(allocator);
    const xseg_stream stream = env_stream();

    void *a = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_try_alloc_in(allocator, pool, 30 * MIB, &none), status);
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

TEST(a_full_pool_is_no_shortage)
{
    struct own own = {.refuses = true};
    const struct xseg_pool_options limited = {sizeof(limited), .limit_bytes = 20 * MIB};
    const struct xseg_pool_options owned = {sizeof(owned), .memory = {own_alloc, own_free, &own}};

    expect_no_shortage(&limited, XSEG_ERR_LIMIT);
    expect_no_shortage(&owned, XSEG_ERR_NO_MEMORY);
}

struct notified {
    unsigned freed, live;
};

static void note_moved(void *context, void *ptr, bool freed)
{
    struct notified *notified = context;

    assert_non_null(ptr);
    if (freed)
        notified->freed++;
    else
        notified->live++;
}

/* The requested size, not the rounded one. */
static void expect_requested(struct xseg_allocator *allocator, struct xseg_pool *pool,
                             void *const block[6], uint64_t want)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < 6; i++) {
        if (i == 1 || i == 2)
            continue;
        assert_int_equal(env_block(allocator, block[i]).requested,
                         (i % 2 != 0 ? 3 * MIB : 700) * (i + 1));
        sum += env_block(allocator, block[i]).requested;
    }
    assert_int_equal(sum, want);
    assert_int_equal(env_pool_stats(allocator, pool).requested_bytes[XSEG_STAT_ALL].current, want);
}

TEST_EACH(pool_is_restored_to_a_checkpoint, env_open(config), ENV_KINDS)
{
    struct xseg_pool *pool = env_pool(allocator);
    struct notified notified = {0, 0};
    void *first[6], *later[6];
    bool exactly = false;

    for (unsigned k = 0; k < 6; k++)
        first[k] = env_alloc_in(allocator, pool, (k % 2 != 0 ? 3 * MIB : 700) * (k + 1), NULL);
    env_free(allocator, first[1], first[2]);
    void *const live[] = {first[5], first[0], first[3], first[4], first[0]};
    assert_ok(xseg_pool_check_live(pool, live, 5, &exactly));
    assert_true(exactly);
    assert_ok(xseg_pool_check_live(pool, live, 3, &exactly));
    assert_false(exactly);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    const struct xseg_statistics then = env_pool_stats(allocator, pool);

    /* Another state: blocks freed, others allocated across the places of the first. */
    env_free(allocator, first[0], first[3]);
    for (unsigned k = 0; k < 6; k++)
        later[k] = env_alloc_in(allocator, pool, (k % 2 != 0 ? 5 * MIB : 90 * KIB) * (k + 1), NULL);
    env_free(allocator, later[2]);
    assert_ok(xseg_pool_restore(pool, checkpoint, note_moved, &notified));
    assert_int_equal(notified.freed, 7);
    assert_int_equal(notified.live, 4);
    assert_ok(xseg_pool_check_live(pool, live, 4, &exactly));
    assert_true(exactly);
    const struct xseg_statistics now = env_pool_stats(allocator, pool);
    assert_int_equal(now.allocation[XSEG_STAT_ALL].current, then.allocation[XSEG_STAT_ALL].current);
    assert_int_equal(now.allocated_bytes[XSEG_STAT_ALL].current,
                     then.allocated_bytes[XSEG_STAT_ALL].current);
    expect_requested(allocator, pool, first, then.requested_bytes[XSEG_STAT_ALL].current);
    assert_error(xseg_free(allocator, first[1]), NOT_ALLOCATED, "cached");
    /* Of the restore, the blocks that are live again count as allocated, and no others. */
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].allocated, 6 + 6 + 4);

    /* Again, from a state that equals it. */
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_ok(xseg_pool_check_live(pool, live, 4, &exactly));
    assert_true(exactly);
    expect_requested(allocator, pool, first, then.requested_bytes[XSEG_STAT_ALL].current);
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
    bool exactly = false;

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_error(xseg_pool_restore(other, checkpoint, NULL, NULL), ARGUMENT, "another pool");
    assert_error(xseg_pool_restore(pool, NULL, NULL, NULL), ARGUMENT, "NULL");
    env_use(allocator, a, side);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "used by");
    env_free(allocator, a);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "pending free");
    struct xseg_checkpoint *second = NULL;
    assert_error(xseg_pool_checkpoint(pool, &second), BUSY, "pending free");
    assert_ok(xseg_pool_check_live(pool, &b, 1, &exactly));
    assert_true(exactly);
    assert_ok(xseg_sim_finish(side));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    env_free(allocator, a, b);
    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(NULL);
}

/* A block of a checkpoint of which only the first page is left. */
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
    /* With memory in the same place it can be restored. */
    env_free(allocator, env_alloc_in(allocator, pool, 50 * MIB, NULL));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_int_equal(env_block(allocator, block).bytes, 60 * MIB);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, block);
}

/* A service makes and releases pools for months. */
TEST_ON(destroyed_pools_leave_no_memory, env_open_mib(1024, "expandable_segments:True"))
{
    uint64_t host = 0;

    /* The simulator does not reuse addresses. */
    for (unsigned i = 0; i < 3000; i++) {
        struct xseg_pool *pool = env_pool(allocator);
        void *small = env_alloc_in(allocator, pool, 1000, NULL);
        void *large = env_alloc_in(allocator, pool, 5 * MIB, NULL);

        /* Counters of an earlier pool do not continue. */
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

/* --- Pools that come and go, by what is counted: host bytes and driver calls, not time. --- */

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
static struct xseg_pool *pass(struct xseg_allocator *allocator, size_t bytes)
{
    struct xseg_pool *pool = env_observed_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, pool, bytes, NULL));
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

TEST(destroyed_pools_leave_no_host_memory)
{
    expect_flat(NULL, 1000, 20000);
    expect_flat(NULL, 5 * MIB, 20000);
    expect_flat("expandable_segments:False", 1000, 100000);
}

/* Pools that are never used, or trimmed each time. */
TEST_ON(empty_and_trimmed_pools_leave_no_host_memory, open_small(NULL, 256 * MIB))
{
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
}

/* Until memory is low, the cached memory of released pools remains reserved, and the pools stay. */
TEST(pools_with_cached_memory_stay)
{
    /* MALLOC_PERTURB_ of Meson fills the heap, which touches unused memory.  A sanitizer's heap has no such mode. */
    assert_true(mallopt(M_PERTURB, 0) == 1 || ENV_IS_SANITIZED);
    struct xseg_allocator *allocator = open_small(NULL, 0);

    for (unsigned i = 0; i < 100; i++)
        (void)pass(allocator, 1000);
    const uint64_t before = host_bytes(allocator);
    const uint64_t resident = env_resident_bytes();
    for (unsigned i = 0; i < 3000; i++)
        (void)pass(allocator, 1000);
    assert_int_equal(env_reserved(allocator), 3100 * 2 * MIB);
    assert_in_range(host_bytes(allocator), 0, before + 3000 * POOL_BYTES);
    /* The simulator's records are in there as well, but little of its tables on a device that large. */
    if (!ENV_IS_SANITIZED)
        assert_in_range(env_resident_bytes(), 0, resident + 3000 * POOL_BYTES);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    env_close(allocator);
}

/* Blocks keep a pool; when they are gone, others that come and go see to it. */
TEST_ON(pools_that_are_released_first_end_as_well, open_small(NULL, 1024 * MIB))
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

TEST_ON(cached_memory_reports_its_stream, open_small(NULL, 1024 * MIB))
{
    struct xseg_pool *one = pass(allocator, 1000), *two = pass(allocator, 5 * MIB);
    struct xseg_explain_result sums = {sizeof(sums)};
    struct found found = {.pool = two};
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = two};

    assert_ok(xseg_for_each_block(allocator, &where, add_block, &found));
    assert_ok(xseg_for_each_mapping(allocator, &where, add_mapping, &found));
    assert_int_equal(found.bytes, 20 * MIB);
    assert_int_equal(found.mapped, 20 * MIB);
    assert_ok(xseg_explain(allocator, &where, NULL, NULL, &sums));
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
    struct xseg_pool *pool = pass(allocator, 1000);
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = pool};
    struct xseg_checkpoint *checkpoint = NULL;
    void *ptr = NULL;

    struct xseg_statistics stats = {sizeof(stats)};
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_true(stats.physical_bytes > 0);
    assert_ok(xseg_limits_set(allocator, &where, &limits));
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
    uint64_t given, taken;
};

static void *counted_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;
    char *at = owner->next;

    (void)device;
    (void)stream;
    owner->next += bytes;
    owner->given += bytes;
    return at;
}

static void counted_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct owner *owner = context;

    (void)ptr, (void)device, (void)stream;
    owner->taken += bytes;
}

/* Each owner gets back what is its own, when the pools are long gone. */
TEST_ON(owners_get_their_memory_back, open_small(NULL, 1024 * MIB))
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
        assert_int_equal(owner[i].taken, 0);
    env_empty_cache(allocator);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(owner[i].taken, owner[i].given);
}

/* The device is filled with memory of destroyed pools, and then with one block. */
TEST_ON(memory_of_destroyed_pools_is_reused, open_small(NULL, 512 * MIB))
{
    while (env_reserved(allocator) + 22 * MIB <= 512 * MIB) {
        (void)pass(allocator, 1000);
        (void)pass(allocator, 5 * MIB);
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

/* In front of the block, and behind it, the memory stays cached. */
TEST_TIMES(block_is_allocated_at_its_address, 2 * COUNT_OF(cases),
           env_open(i % 2 == 0 ? "expandable_segments:True" : "expandable_segments:False"))
{
    const size_t number = i / 2;
    struct xseg_pool *pool = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, cases[number].cached, NULL), *ptr = NULL;
    void *wanted = at(base, cases[number].offset);
    const uint64_t grown = env_stats(allocator).num_device_alloc;

    env_free(allocator, base);
    assert_ok(xseg_alloc_at(pool, cases[number].bytes, NULL, wanted, &ptr));
    assert_ptr_equal(ptr, wanted);
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
    /* A pending block has come back once its stream has passed. */
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
