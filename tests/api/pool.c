/* SPDX-License-Identifier: MIT */
/* Private pools without a capture: routes, options, statistics, checkpoint and restore. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

static bool is_stream_of_context(void *context, xseg_stream stream)
{
    return stream == (xseg_stream)context;
}

/* Among the routes that accept the stream, the route that was begun last serves the request. */
TEST_ON(the_latest_route_that_accepts_serves, env_open(NULL))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *one_stream_pool = env_pool(allocator), *any_stream_pool = env_pool(allocator);
    void *ptr[4];

    /* Both routes accept requests of the stream, and the second route began last. */
    assert_ok(xseg_route_begin(any_stream_pool, NULL, NULL));
    assert_ok(xseg_route_begin(one_stream_pool, is_stream_of_context, stream));
    assert_error(xseg_route_begin(one_stream_pool, NULL, NULL), BUSY, "already");
    ptr[0] = env_alloc(allocator, 100, stream);
    ptr[1] = env_alloc(allocator, 100, NULL);
    ptr[2] = env_alloc_in(allocator, any_stream_pool, 100, NULL);
    assert_ok(xseg_route_end(any_stream_pool));
    assert_error(xseg_route_end(any_stream_pool), ARGUMENT, "route is not active");
    ptr[3] = env_alloc(allocator, 100, NULL);
    assert_ptr_equal(env_block(allocator, ptr[0]).pool, one_stream_pool);
    assert_ptr_equal(env_block(allocator, ptr[1]).pool, any_stream_pool);
    assert_ptr_equal(env_block(allocator, ptr[2]).pool, any_stream_pool);
    assert_null(env_block(allocator, ptr[3]).pool);
    /* A route retains its pool, and prevents a close. */
    assert_ok(xseg_pool_release(one_stream_pool));
    env_free(allocator, env_alloc(allocator, 100, stream));
    assert_error(xseg_close(allocator), BUSY, "route");
    assert_ok(xseg_route_end(one_stream_pool));
    assert_error(xseg_route_begin(one_stream_pool, NULL, NULL), ARGUMENT, "pool has been released");
    env_free_all(allocator, ptr, 4 * sizeof(*ptr));
    assert_ok(xseg_pool_release(any_stream_pool));
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
    void *default_block = env_alloc(allocator, 30 * MIB, NULL), *second = NULL;

    struct xseg_pool *pool = env_pool_of(allocator, .limit_bytes = 41 * MIB);
    env_free(allocator, default_block);
    void *first = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_error(env_try_alloc_in(allocator, pool, 11 * MIB, &second), LIMIT, "of pool 1");
    /* The pool serves requests that fit on its two pages of 20 MiB; no cached memory of other pools was released. */
    second = env_alloc_in(allocator, pool, 10 * MIB, NULL);
    const struct xseg_statistics stats = env_pool_stats(allocator, pool);
    assert_int_equal(stats.limit_bytes, 41 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].peak, 40 * MIB);
    assert_int_equal(stats.allocation[XSEG_STAT_LARGE].current, 2);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(env_reserved(allocator), (40 + 40) * MIB);
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    env_free(allocator, first, second);
}

TEST_ON(no_split_keeps_blocks_whole, env_open("expandable_segments:False"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .no_split = true);
    void *first = env_alloc_in(allocator, pool, 100, NULL);
    void *second = env_alloc_in(allocator, pool, 100, NULL);
    assert_int_equal(env_block(allocator, first).bytes, 2 * MIB);
    assert_ptr_not_equal(env_block(allocator, first).segment_base,
                         env_block(allocator, second).segment_base);
    env_free(allocator, first, second);
}

TEST_ON(fallback_pool_serves_under_memory_pressure, env_open_mib(64, NULL))
{
    struct xseg_request request = {sizeof(request)};

    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true), *second_pool;
    void *pool_block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    env_free(allocator, pool_block);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ptr_equal(ptr, pool_block);
    assert_null(env_block(allocator, ptr).pool);
    assert_ptr_equal(env_block(allocator, ptr).fallback_pool, pool);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, ptr);
    /* A request of a private pool does not use the fallback pool.  After the release of the fallback pool, its memory is
     * reclaimed for the default pool. */
    request.pool = second_pool = env_pool(allocator);
    request.bytes = 30 * MIB;
    assert_error(xseg_alloc_with(allocator, &request, &ptr), NO_MEMORY,
                 "out of memory on device 0");
    assert_ok(xseg_pool_release(pool));
    ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_null(env_block(allocator, ptr).pool);
    assert_null(env_block(allocator, ptr).fallback_pool);
    assert_ok(xseg_pool_release(second_pool));
    env_free(allocator, ptr);
}

/* Every message about a pool contains its name, which is copied, or the number of a pool without a name. */
TEST_ON(messages_name_the_pool, env_open(NULL))
{
    char name[XSEG_POOL_NAME_MAX + 1] = "kv cache";
    struct xseg_pool *named = env_pool_of(allocator, .name = name);
    struct xseg_pool *unnamed = env_pool_of(allocator, .name = ""),
                     *second_unnamed = env_pool(allocator);
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    void *ptr = NULL;

    memset(name, 'x', sizeof(name));
    assert_error(xseg_route_end(named), ARGUMENT, "route is not active, pool \"kv cache\"");
    assert_error(xseg_route_end(unnamed), ARGUMENT, "route is not active, pool 2");
    assert_error(xseg_capture_end(second_unnamed), ARGUMENT, "capture is not active, pool 3");
    assert_ok(xseg_route_begin(named, NULL, NULL));
    assert_error(xseg_route_begin(named, NULL, NULL), BUSY,
                 "route is already active, pool \"kv cache\"");
    assert_ok(xseg_route_end(named));
    struct xseg_checkpoint *checkpoint = env_checkpoint(named);
    assert_error(xseg_pool_restore(unnamed, checkpoint, NULL, NULL), ARGUMENT,
                 "checkpoint is of another pool, pool \"kv cache\"; restore pool 2");
    xseg_checkpoint_destroy(checkpoint);
    assert_error(xseg_pool_resume(named), ARGUMENT, "pool \"kv cache\" is not");
    assert_ok(xseg_pool_pause(named, XSEG_KEEP_NOTHING, NULL));
    assert_error(env_try_alloc_in(allocator, named, 1, &ptr), PAUSED,
                 "pool is paused, \"kv cache\"; ");
    assert_ok(xseg_pool_resume(named));
    limits.soft_bytes = limits.hard_bytes = MIB;
    assert_error(
        xseg_limits_set(allocator, env_scope(.device = -1, .pool = second_unnamed), &limits),
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
    /* For a caller that was compiled without the member `name`, the member is not read. */
    options.struct_size = offsetof(struct xseg_pool_options, name);
    memset(name, 'n', sizeof(name));
    pool = env_pool_with(allocator, &options);
    assert_error(xseg_pool_resume(pool), ARGUMENT, "pool 2 is not paused");
}

/* Memory functions that return host memory, always at the same address. */
struct custom_memory {
    unsigned char *memory;
    size_t allocated, freed; /* in bytes */
    size_t misalignment;     /* of the returned address */
    bool fails;              /* custom_alloc() returns NULL */
};

static void *custom_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct custom_memory *custom = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    if (custom->fails)
        return NULL;
    custom->allocated += bytes;
    return custom->memory + custom->misalignment;
}

static void custom_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct custom_memory *custom = context;

    assert_int_equal(device, 0);
    assert_null(stream);
    assert_ptr_equal(ptr, custom->memory + custom->misalignment);
    custom->freed += bytes;
}

TEST(custom_functions_supply_the_memory_of_a_pool)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct custom_memory custom = {.memory = aligned_alloc(4096, 4 * MIB)};
    void *ptr = NULL;

    assert_non_null(custom.memory);
    struct xseg_pool_options options = {
        sizeof(options), .memory = (struct xseg_pool_memory){custom_alloc, NULL, &custom}};
    struct xseg_pool *pool = NULL;
    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT, "free");
    options.memory.free = custom_free;
    pool = env_pool_with(allocator, &options);

    custom.fails = true;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &ptr), NO_MEMORY,
                 "memory functions of pool 1 returned no memory");
    custom.fails = false;
    custom.misalignment = 64;
    assert_error(env_try_alloc_in(allocator, pool, MIB, &ptr), ARGUMENT, "aligned");
    assert_int_equal(custom.allocated, custom.freed);
    custom.misalignment = 0;
    void *first = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    void *second = env_alloc_in(allocator, pool, 1 * MIB, NULL);
    assert_ptr_equal(first, custom.memory);
    assert_ptr_equal(second, custom.memory + MIB);
    assert_false(env_block(allocator, first).is_expandable);
    /* The function returns an address that is in use: two blocks would overlap. */
    assert_error(env_try_alloc_in(allocator, pool, MIB, &ptr), ARGUMENT, "in use");
    env_free(allocator, first);
    assert_ptr_equal(env_alloc_in(allocator, pool, MIB / 2, NULL), custom.memory);
    env_free(allocator, custom.memory);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(custom.allocated - custom.freed, 2 * MIB);
    env_free(allocator, second);
    env_empty_cache(allocator);
    assert_int_equal(custom.allocated, custom.freed);
    env_close(allocator);
    free(custom.memory);
}

/* Without memory pressure of the device, growth uses full pages, and a capture begins without a trim, also after a request of a
 * full pool has failed. */
static void expect_no_memory_pressure(const struct xseg_pool_options *options, xseg_status status)
{
    void *ptr = NULL;

    struct xseg_allocator *allocator = env_open_mib(200, NULL);
    struct xseg_pool *pool = env_pool_with(allocator, options), *captured = env_pool(allocator);
    const xseg_stream stream = env_stream();

    void *idle = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_try_alloc_in(allocator, pool, 30 * MIB, &ptr), status);
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    void *allocated = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 2); /* pages of 20 MiB */
    env_free(allocator, idle);
    env_capture_begin(captured, stream);
    env_capture_end(captured, stream);
    assert_int_equal(env_reserved(allocator), (120 + 40) * MIB);
    env_free(allocator, allocated);
    env_close(allocator, stream);
}

TEST(full_pool_is_no_memory_pressure)
{
    struct custom_memory custom = {.fails = true};
    const struct xseg_pool_options limited = {sizeof(limited), .limit_bytes = 20 * MIB};
    const struct xseg_pool_options with_functions = {
        sizeof(with_functions), .memory = {custom_alloc, custom_free, &custom}};

    expect_no_memory_pressure(&limited, XSEG_ERR_LIMIT);
    expect_no_memory_pressure(&with_functions, XSEG_ERR_NO_MEMORY);
}

/* Numbers of blocks that a restore freed, and allocated again. */
struct moved_blocks {
    unsigned freed, allocated;
};

static void count_moved(void *context, void *ptr, bool freed)
{
    struct moved_blocks *moved = context;

    assert_non_null(ptr);
    if (freed)
        moved->freed++;
    else
        moved->allocated++;
}

/* Blocks of a checkpoint, small and large in turn.  The blocks 1 and 2 are freed before the checkpoint. */
enum { BLOCKS = 6 };

static size_t requested_bytes(unsigned i)
{
    return (i % 2 != 0 ? 3 * MIB : 700) * (i + 1);
}

/* Expect that the blocks of the checkpoint have their requested sizes, with the sum `expected`. */
static void expect_requested(struct xseg_allocator *allocator, struct xseg_pool *pool,
                             void *const block[BLOCKS], uint64_t expected)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < BLOCKS; i++) {
        if (i == 1 || i == 2)
            continue;
        assert_int_equal(env_block(allocator, block[i]).requested, requested_bytes(i));
        sum += env_block(allocator, block[i]).requested;
    }
    assert_int_equal(sum, expected);
    assert_int_equal(env_pool_stats(allocator, pool).requested_bytes[XSEG_STAT_ALL].current,
                     expected);
}

TEST_EACH(pool_is_restored_to_a_checkpoint, env_open(config), ENV_KINDS)
{
    struct xseg_pool *pool = env_pool(allocator);
    struct moved_blocks moved = {0, 0};
    void *first[BLOCKS], *later[BLOCKS];
    bool is_exact = false;

    for (unsigned j = 0; j < BLOCKS; j++)
        first[j] = env_alloc_in(allocator, pool, requested_bytes(j), NULL);
    env_free(allocator, first[1], first[2]);
    /* The four allocated blocks, in any order; the last element is a duplicate. */
    void *const allocated[] = {first[5], first[0], first[3], first[4], first[0]};
    assert_ok(xseg_pool_check_live(pool, allocated, 5, &is_exact));
    assert_true(is_exact);
    assert_ok(xseg_pool_check_live(pool, allocated, 3, &is_exact));
    assert_false(is_exact);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    const struct xseg_statistics before = env_pool_stats(allocator, pool);

    /* Free blocks, and allocate blocks that overlap their addresses. */
    env_free(allocator, first[0], first[3]);
    for (unsigned j = 0; j < BLOCKS; j++)
        later[j] = env_alloc_in(allocator, pool, (j % 2 != 0 ? 5 * MIB : 90 * KIB) * (j + 1), NULL);
    env_free(allocator, later[2]);

    assert_ok(xseg_pool_restore(pool, checkpoint, count_moved, &moved));
    assert_int_equal(moved.freed, 2 + 5); /* the blocks 4 and 5, and later blocks */
    assert_int_equal(moved.allocated, 4); /* the blocks 0, 3, 4 and 5 */
    assert_ok(xseg_pool_check_live(pool, allocated, 4, &is_exact));
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
    assert_ok(xseg_pool_check_live(pool, allocated, 4, &is_exact));
    assert_true(is_exact);
    expect_requested(allocator, pool, first, before.requested_bytes[XSEG_STAT_ALL].current);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, first[0], first[3], first[4], first[5]);
    assert_ok(xseg_pool_release(pool));
}

TEST_IN_POOL(failed_restore_changes_nothing, env_open(NULL))
{
    const xseg_stream side = env_stream();
    struct xseg_pool *second_pool = env_pool(allocator);
    void *used = env_alloc_in(allocator, pool, 5 * MIB, NULL),
         *unused = env_alloc_in(allocator, pool, 5 * MIB, NULL);
    bool is_exact = false;

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_error(xseg_pool_restore(second_pool, checkpoint, NULL, NULL), ARGUMENT, "another pool");
    assert_error(xseg_pool_restore(pool, NULL, NULL, NULL), ARGUMENT, "NULL");
    env_use(allocator, used, side);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "used by");
    env_free(allocator, used);
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), BUSY, "pending free");
    struct xseg_checkpoint *second = NULL;
    assert_error(xseg_pool_checkpoint(pool, &second), BUSY, "pending free");
    assert_ok(xseg_pool_check_live(pool, &unused, 1, &is_exact));
    assert_true(is_exact);
    assert_ok(xseg_sim_finish(side));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    env_free(allocator, used, unused);
    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(NULL);
}

/* Of the three pages of a block of the checkpoint, only the first page is still mapped. */
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
    uint64_t bytes_before = 0;

    /* The simulator does not reuse addresses, so each pool has other addresses. */
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
            bytes_before = env_stats(allocator).host_bytes;
    }
    assert_true(env_stats(allocator).host_bytes < bytes_before + 4096);
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].allocated, 3000 * 2);
}

/* --- Costs of created and released pools, in host bytes and driver calls instead of time. --- */

/* Maximum host memory of a pool with one segment. */
#define POOL_BYTES ((uint64_t)128 << 10)

static uint64_t host_bytes(struct xseg_allocator *allocator)
{
    return env_stats(allocator).host_bytes;
}

static struct xseg_allocator *open_without_checks(const char *config, uint64_t memory)
{
    return env_open_sim(config, .memory_bytes = memory, .skip_checks = true);
}

/* Create a pool, allocate and free a block in it, and release the pool, which has cached memory then. */
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

/* Once released pools have used all memory of the device, host memory and driver calls do not grow with the number of pools. */
static void expect_constant_cost(const char *config, size_t bytes, unsigned count)
{
    struct xseg_allocator *allocator = open_without_checks(config, 256 * MIB);

    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    const uint64_t bytes_before = host_bytes(allocator);
    uint64_t calls = count_driver_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    const uint64_t calls_of_1000 = count_driver_calls() - calls;
    /* In total `count` pools, the last 1,000 of which are measured again. */
    for (unsigned i = 2000; i < count - 1000; i++)
        (void)use_pool(allocator, bytes);
    calls = count_driver_calls();
    for (unsigned i = 0; i < 1000; i++)
        (void)use_pool(allocator, bytes);
    /* The calls of 1,000 pools vary by one pass over the memory of the device. */
    assert_in_range(count_driver_calls() - calls, calls_of_1000 / 2, calls_of_1000 * 3 / 2);
    /* The number of segments on the device varies slightly. */
    assert_in_range(host_bytes(allocator), 0, bytes_before + bytes_before / 8);
    env_close(allocator);
}

TEST(destroyed_pools_leave_no_host_memory)
{
    expect_constant_cost(NULL, 1000, 20000);
    expect_constant_cost(NULL, 5 * MIB, 20000);
    expect_constant_cost("expandable_segments:False", 1000, 100000);
}

/* Unused pools, and pools whose memory is trimmed after each release. */
TEST_ON(empty_and_trimmed_pools_leave_no_host_memory, open_without_checks(NULL, 256 * MIB))
{
    env_free(allocator, env_alloc(allocator, 100, NULL));
    (void)use_pool(allocator, 1000);
    env_empty_cache(allocator);
    const uint64_t bytes_before = host_bytes(allocator);
    for (unsigned i = 0; i < 100000; i++)
        assert_ok(xseg_pool_release(env_pool(allocator)));
    for (unsigned i = 0; i < 2000; i++) {
        (void)use_pool(allocator, 1000);
        env_empty_cache(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, bytes_before + POOL_BYTES);
}

/* Released pools exist as long as they have cached memory, which remains reserved until memory is low. */
TEST(pools_with_cached_memory_are_not_destroyed)
{
    /* MALLOC_PERTURB_ of Meson fills the heap, which touches unused memory.  A sanitizer's heap has no such mode. */
    assert_true(mallopt(M_PERTURB, 0) == 1 || ENV_IS_SANITIZED);
    struct xseg_allocator *allocator = open_without_checks(NULL, 0);

    for (unsigned i = 0; i < 100; i++)
        (void)use_pool(allocator, 1000);
    const uint64_t bytes_before = host_bytes(allocator), resident = env_resident_bytes();
    for (unsigned i = 0; i < 3000; i++)
        (void)use_pool(allocator, 1000);
    assert_int_equal(env_reserved(allocator), (100 + 3000) * 2 * MIB);
    assert_in_range(host_bytes(allocator), 0, bytes_before + 3000 * POOL_BYTES);
    /* The resident bytes include the simulator's records, but few of its tables on a device of this size. */
    if (!ENV_IS_SANITIZED)
        assert_in_range(env_resident_bytes(), 0, resident + 3000 * POOL_BYTES);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    env_close(allocator);
}

/* A released pool with blocks is destroyed after its last block is freed, by later calls about other pools. */
TEST_ON(pools_released_before_their_blocks_are_destroyed, open_without_checks(NULL, 1024 * MIB))
{
    uint64_t bytes_before = 0;
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
            bytes_before = host_bytes(allocator);
    }
    assert_in_range(host_bytes(allocator), 0, bytes_before + bytes_before / 8);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* The memory of a pool that walks report, in bytes. */
struct pool_memory {
    const struct xseg_pool *pool;
    uint64_t cached, mapped;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct pool_memory *memory = context;

    assert_ptr_equal(block->pool, memory->pool);
    memory->cached += block->state == XSEG_BLOCK_CACHED ? block->bytes : 0;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct pool_memory *memory = context;

    assert_ptr_equal(mapping->pool, memory->pool);
    memory->mapped += mapping->bytes;
    return true;
}

TEST_ON(memory_of_a_released_pool_reports_its_pool, open_without_checks(NULL, 1024 * MIB))
{
    struct xseg_pool *small_pool = use_pool(allocator, 1000),
                     *large_pool = use_pool(allocator, 5 * MIB);
    struct xseg_explain_result sums = {sizeof(sums)};
    struct pool_memory memory = {.pool = large_pool};
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = large_pool};

    assert_ok(xseg_for_each_block(allocator, &scope, add_block, &memory));
    assert_ok(xseg_for_each_mapping(allocator, &scope, add_mapping, &memory));
    assert_int_equal(memory.cached, 20 * MIB);
    assert_int_equal(memory.mapped, 20 * MIB);
    assert_ok(xseg_explain(allocator, &scope, NULL, NULL, &sums));
    assert_int_equal(sums.reserved, 20 * MIB);
    const struct xseg_trim_result result = env_trim_pool(allocator, large_pool);
    assert_int_equal(result.released, 20 * MIB);
    assert_int_equal(result.remaining, 0);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
    assert_int_equal(env_trim_pool(allocator, small_pool).released, 2 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
}

/* The handle of a released pool with a callback can be used until the callback has returned. */
TEST_ON(a_released_pool_serves_no_requests, open_without_checks(NULL, 1024 * MIB))
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

/* Memory functions that return increasing addresses. */
struct counted_memory {
    char *next;
    uint64_t allocated, freed; /* in bytes */
};

static void *counted_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    struct counted_memory *counted = context;
    char *address = counted->next;

    (void)device, (void)stream;
    counted->next += bytes;
    counted->allocated += bytes;
    return address;
}

static void counted_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct counted_memory *counted = context;

    (void)ptr, (void)device, (void)stream;
    counted->freed += bytes;
}

/* A trim frees the memory of released pools by the functions of the pool that allocated it. */
TEST_ON(memory_returns_to_its_custom_functions, open_without_checks(NULL, 1024 * MIB))
{
    struct counted_memory counted[16];

    for (unsigned i = 0; i < 16; i++) {
        counted[i] = (struct counted_memory){(char *)((uintptr_t)(i + 1) << 30), 0, 0};
        struct xseg_pool *pool =
            env_pool_of(allocator, .memory = {counted_alloc, counted_free, &counted[i]});
        env_free(allocator, env_alloc_in(allocator, pool, 1000, NULL));
        env_free(allocator, env_alloc_in(allocator, pool, (i + 1) * MIB + 1, NULL));
        assert_ok(xseg_pool_release(pool));
    }
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(counted[i].freed, 0);
    env_empty_cache(allocator);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(counted[i].freed, counted[i].allocated);
}

/* The device is filled with memory of released pools (20 + 2 MiB in each round), and then with one block. */
TEST_ON(memory_of_destroyed_pools_is_reused, open_without_checks(NULL, 512 * MIB))
{
    while (env_reserved(allocator) + 22 * MIB <= 512 * MIB) {
        (void)use_pool(allocator, 1000);
        (void)use_pool(allocator, 5 * MIB);
    }
    env_free(allocator, env_alloc(allocator, 510 * MIB, NULL));
    assert_in_range(env_stats(allocator).address_bytes, 0, (uint64_t)2 << 30);
}

static void *address_at(void *base, size_t offset)
{
    return (char *)base + offset;
}

/* A block at an offset in a cached block. */
static const struct {
    size_t cached, offset, bytes;
} cases[] = {
    {40 * MIB, 0, 40 * MIB},       {40 * MIB, 0, 4 * MIB},     {40 * MIB, 10 * MIB, 4 * MIB},
    {40 * MIB, 36 * MIB, 4 * MIB}, {64 * KIB, 0, 4 * KIB},     {64 * KIB, 512, 512},
    {64 * KIB, 60 * KIB, 4 * KIB}, {64 * KIB, 30 * KIB, 1000},
};

/* The memory before and after the block stays cached, and coalesces when the block is freed. */
TEST_TIMES(block_is_allocated_at_its_address, 2 * COUNT_OF(cases),
           env_open(i % 2 == 0 ? "expandable_segments:True" : "expandable_segments:False"))
{
    const size_t row = i / 2;
    struct xseg_pool *pool = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, cases[row].cached, NULL), *ptr = NULL;
    void *address = address_at(base, cases[row].offset);
    const uint64_t growths = env_stats(allocator).num_device_alloc;

    env_free(allocator, base);
    assert_ok(xseg_alloc_at(pool, cases[row].bytes, NULL, address, &ptr));
    assert_ptr_equal(ptr, address);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(env_block(allocator, ptr).requested, cases[row].bytes);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    if (cases[row].offset > 0)
        assert_int_equal(env_block(allocator, base).bytes, cases[row].offset);
    assert_int_equal(env_stats(allocator).num_device_alloc, growths);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 2); /* with `base` */
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].peak, 1);
    env_free(allocator, ptr);
    assert_ptr_equal(env_alloc_in(allocator, pool, cases[row].cached, NULL), base);
    env_free(allocator, base);
}

TEST_EACH(address_without_a_cached_block_is_rejected, env_open(config), ENV_KINDS)
{
    const xseg_stream side = env_stream();
    struct xseg_pool *pool = env_pool(allocator), *second_pool = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, 40 * MIB, NULL), *ptr = NULL;
    void *pending = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    void *allocated = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    _Alignas(512) char host_memory[512];

    env_free(allocator, base);
    env_free_in_use(allocator, pending, side);
    const struct {
        struct xseg_pool *pool;
        size_t bytes;
        xseg_stream stream;
        void *address;
        xseg_status status;
        const char *words;
    } rows[] = {
        {pool, 4 * MIB, NULL, allocated, XSEG_ERR_BUSY, "in an allocated block"},
        {pool, 4 * MIB, NULL, pending, XSEG_ERR_BUSY, "another stream still uses"},
        {pool, 41 * MIB, NULL, base, XSEG_ERR_BUSY, "cached block is too short"},
        {pool, 4 * MIB, NULL, address_at(base, 38 * MIB), XSEG_ERR_BUSY,
         "cached block is too short"},
        {second_pool, 4 * MIB, NULL, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 4 * MIB, side, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 512, NULL, base, XSEG_ERR_BUSY, "another pool, stream or kind"},
        {pool, 4 * MIB, NULL, host_memory, XSEG_ERR_BUSY, "no segment"},
        {pool, 4 * MIB, NULL, address_at(base, 8), XSEG_ERR_ARGUMENT, "multiple of 512"},
        {pool, 4 * MIB, NULL, NULL, XSEG_ERR_ARGUMENT, "multiple of 512"},
        {NULL, 4 * MIB, NULL, base, XSEG_ERR_ARGUMENT, "NULL"},
    };

    for (size_t j = 0; j < COUNT_OF(rows); j++)
        env_expect_error(
            xseg_alloc_at(rows[j].pool, rows[j].bytes, rows[j].stream, rows[j].address, &ptr),
            rows[j].status, rows[j].words);
    assert_error(xseg_alloc_at(pool, 4 * MIB, NULL, base, NULL), ARGUMENT, "NULL");
    assert_null(ptr);
    ptr = base;
    assert_ok(xseg_alloc_at(pool, 0, NULL, base, &ptr));
    assert_null(ptr);
    /* The pending block is cached after its stream has completed. */
    assert_ok(xseg_sim_finish(side));
    assert_ok(xseg_alloc_at(pool, 4 * MIB, NULL, pending, &ptr));
    env_free(allocator, ptr, allocated);
    assert_ok(xseg_pool_release(second_pool));
    second_pool = env_observed_pool(allocator);
    allocated = env_alloc_in(allocator, second_pool, 4 * MIB, NULL);
    assert_ok(xseg_pool_release(second_pool));
    assert_error(xseg_alloc_at(second_pool, 4 * MIB, NULL, base, &ptr), ARGUMENT,
                 "pool has been released");
    env_free(allocator, allocated);
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
