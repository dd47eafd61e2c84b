/* SPDX-License-Identifier: MIT */
/* Pairs of pool features.  docs/pools.md lists the pairs that exclude each other, always or temporarily. */
#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* --- The allocator of a pair, with a pool that has the options of the pair, and a stream. --- */

static struct xseg_allocator *allocator;
static struct xseg_pool *pool;
static xseg_stream stream;

/* The memory of the memory functions: two classic segments of 2 MiB. */
static struct {
    _Alignas(4096) unsigned char memory[2][2 * MIB];
    unsigned allocated, freed; /* number of segments */
} custom;

static void *custom_alloc(void *context, size_t bytes, int device, xseg_stream request_stream)
{
    (void)context, (void)device, (void)request_stream;
    assert_int_equal(bytes, 2 * MIB);
    return custom.allocated < 2 ? custom.memory[custom.allocated++] : NULL;
}

static void custom_free(void *context, void *ptr, size_t bytes, int device,
                        xseg_stream request_stream)
{
    (void)context, (void)ptr, (void)bytes, (void)device, (void)request_stream;
    custom.freed++;
}

static const struct xseg_pool_memory custom_memory = {custom_alloc, custom_free, NULL};

struct pair_setup {
    uint64_t mib; /* memory of the device */
    struct xseg_pool_options pool;
};

static bool free_allocated(void *context, const struct xseg_block_info *info)
{
    if (info->state == XSEG_BLOCK_ALLOCATED)
        env_free(context, info->base);
    return true;
}

static void run_pair(struct pair_setup setup, void (*check_pair)(void))
{
    custom.allocated = custom.freed = 0;
    setup.pool.struct_size = sizeof(setup.pool);
    allocator = env_open_mib(setup.mib, "expandable_segments:True");
    pool = env_pool_with(allocator, &setup.pool);
    stream = env_stream();
    check_pair();
    assert_ok(xseg_for_each_block(allocator, NULL, free_allocated, allocator));
    env_close(allocator, stream);
}

/* PAIR(feature, feature, whether both can be combined: yes, no, later; MiB of the device, .pool.option = value, ...) */
#define PAIR(first, second, combines, ...)                                        \
    static void check_##first##_and_##second(void);                               \
    TEST(first##_and_##second)                                                    \
    {                                                                             \
        run_pair((struct pair_setup){__VA_ARGS__}, check_##first##_and_##second); \
    }                                                                             \
    static void check_##first##_and_##second(void)

/* Allocate a fallback block from the pool, which has all memory of the device. */
static void *alloc_fallback(size_t bytes)
{
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    void *fallback = env_alloc(allocator, bytes, NULL);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
    return fallback;
}

/* Cache a block of 20 MiB, which only a pool with no_split uses whole for a smaller request. */
static void cache_block(void)
{
    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, NULL));
}

static void expect_whole(const void *ptr)
{
    assert_int_equal(env_block(allocator, ptr).bytes, 20 * MIB);
}

static void expect_rejected(struct xseg_pool *from, size_t bytes, xseg_status status)
{
    void *ptr = NULL;

    assert_int_equal(env_try_alloc_in(allocator, from, bytes, &ptr), status);
    assert_null(ptr);
}

static void pause_and_resume(void)
{
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
}

static void restore(struct xseg_checkpoint *checkpoint)
{
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    xseg_checkpoint_destroy(checkpoint);
}

/* Free a block, and restore the pool to a checkpoint with the block. */
static void free_and_restore(void *ptr)
{
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);

    env_free(allocator, ptr);
    restore(checkpoint);
}

static void export_once(void *ptr)
{
    assert_ok(export_and_close_handles(allocator, ptr));
}

PAIR(fallback, no_split, yes, 40, .pool.use_on_oom = true, .pool.no_split = true)
{
    void *fallback = alloc_fallback(20 * MIB);
    assert_int_equal(env_block(allocator, fallback).bytes, 40 * MIB);
}

PAIR(fallback, limit, yes, 40, .pool.use_on_oom = true, .pool.limit_bytes = 40 * MIB)
{
    void *fallback = alloc_fallback(30 * MIB);
    /* The fallback block counts towards the limit of the pool. */
    (void)env_alloc_in(allocator, pool, 10 * MIB, NULL);
    expect_rejected(pool, 2 * MIB, XSEG_ERR_LIMIT);
    env_free(allocator, fallback);
    (void)env_alloc_in(allocator, pool, 2 * MIB, NULL);
}

PAIR(fallback, custom_memory, yes, 2, .pool.use_on_oom = true, .pool.memory = custom_memory)
{
    /* Memory of the memory functions counts as memory of the device, so the device is full. */
    env_free(allocator, env_alloc_in(allocator, pool, MIB, NULL));
    void *fallback = env_alloc(allocator, MIB, NULL);
    assert_ptr_equal(fallback, custom.memory);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
}

PAIR(fallback, exportable, yes, 40, .pool.use_on_oom = true, .pool.exportable = true)
{
    void *fallback = alloc_fallback(20 * MIB);
    assert_int_equal(export_and_close_handles(allocator, fallback), XSEG_ERR_UNSUPPORTED);
    void *pool_block = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    export_once(pool_block);
    assert_ok(xseg_export_close(allocator, pool_block));
}

PAIR(fallback, pause, later, 40, .pool.use_on_oom = true)
{
    void *fallback = alloc_fallback(20 * MIB);

    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY,
                 "contains a block of the default pool");
    env_free(allocator, fallback);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    /* A paused pool is no fallback pool, but its device memory is free. */
    fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_null(env_block(allocator, fallback).fallback_pool);
    env_free(allocator, fallback);
    assert_ok(xseg_pool_resume(pool));
}

PAIR(fallback, checkpoint, yes, 40, .pool.use_on_oom = true)
{
    void *fallback = alloc_fallback(20 * MIB);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);

    restore(checkpoint);
    assert_int_equal(env_block(allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
}

PAIR(fallback, capture, no, 40, .pool.use_on_oom = true)
{
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    env_capture_begin(pool, stream);
    env_capture_end(pool, stream);
    expect_rejected(NULL, 20 * MIB, XSEG_ERR_NO_MEMORY);
}

PAIR(fallback, route, yes, 40, .pool.use_on_oom = true)
{
    struct xseg_pool *second_pool = env_pool(allocator);
    void *fallback = alloc_fallback(20 * MIB);

    env_free(allocator, fallback);
    /* A request that is routed to another pool does not use the fallback pool. */
    assert_ok(xseg_route_begin(second_pool, NULL, NULL));
    expect_rejected(NULL, 20 * MIB, XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_route_end(second_pool));
    /* A request that is routed to the fallback pool is a request of this pool. */
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ptr_equal(env_block(allocator, env_alloc(allocator, 20 * MIB, NULL)).pool, pool);
    assert_ok(xseg_route_end(pool));
    fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
}

PAIR(fallback, release, no, 40, .pool.use_on_oom = true)
{
    void *fallback = alloc_fallback(20 * MIB);

    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_block(allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    /* Cached memory of a released pool is reclaimed for any request. */
    assert_null(env_block(allocator, env_alloc(allocator, 20 * MIB, NULL)).fallback_pool);
}

PAIR(no_split, limit, yes, 100, .pool.no_split = true, .pool.limit_bytes = 20 * MIB)
{
    cache_block();
    expect_whole(env_alloc_in(allocator, pool, 2 * MIB, NULL));
    expect_rejected(pool, 2 * MIB, XSEG_ERR_LIMIT);
}

PAIR(no_split, custom_memory, yes, 100, .pool.no_split = true, .pool.memory = custom_memory)
{
    void *ptr = env_alloc_in(allocator, pool, 512, NULL);
    assert_int_equal(env_block(allocator, ptr).bytes, 2 * MIB);
}

PAIR(no_split, exportable, yes, 100, .pool.no_split = true, .pool.exportable = true)
{
    cache_block();
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    expect_whole(ptr);
    export_once(ptr);
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(no_split, pause, yes, 100, .pool.no_split = true)
{
    cache_block();
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    pause_and_resume();
    expect_whole(ptr);
}

PAIR(no_split, checkpoint, yes, 100, .pool.no_split = true)
{
    cache_block();
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    free_and_restore(ptr);
    expect_whole(ptr);
}

PAIR(no_split, capture, yes, 100, .pool.no_split = true)
{
    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, stream));
    env_capture_begin(pool, stream);
    expect_whole(env_alloc(allocator, 2 * MIB, stream));
    env_capture_end(pool, stream);
}

PAIR(no_split, route, yes, 100, .pool.no_split = true)
{
    cache_block();
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_whole(env_alloc(allocator, 2 * MIB, NULL));
    assert_ok(xseg_route_end(pool));
}

PAIR(no_split, release, yes, 100, .pool.no_split = true)
{
    cache_block();
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    assert_ok(xseg_pool_release(pool));
    expect_whole(ptr);
    env_free(allocator, ptr);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

PAIR(limit, custom_memory, yes, 100, .pool.limit_bytes = 2 * MIB, .pool.memory = custom_memory)
{
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    expect_rejected(pool, MIB, XSEG_ERR_LIMIT);
    assert_int_equal(custom.allocated, 1);
}

PAIR(limit, exportable, yes, 100, .pool.limit_bytes = 20 * MIB, .pool.exportable = true)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    export_once(ptr);
    expect_rejected(pool, 2 * MIB, XSEG_ERR_LIMIT);
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(limit, pause, yes, 100, .pool.limit_bytes = 40 * MIB)
{
    (void)env_alloc_in(allocator, pool, 40 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    env_set_hard_limit(allocator, pool, 20 * MIB);
    assert_int_equal(xseg_pool_resume(pool), XSEG_ERR_LIMIT);
    env_set_hard_limit(allocator, pool, 40 * MIB);
    assert_ok(xseg_pool_resume(pool));
}

PAIR(limit, checkpoint, yes, 100, .pool.limit_bytes = 20 * MIB)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    free_and_restore(ptr);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    expect_rejected(pool, 2 * MIB, XSEG_ERR_LIMIT);
}

PAIR(limit, capture, yes, 100, .pool.limit_bytes = 20 * MIB)
{
    env_capture_begin(pool, stream);
    (void)env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(env_try_alloc(allocator, 2 * MIB, stream), XSEG_ERR_LIMIT);
    env_capture_end(pool, stream);
}

PAIR(limit, route, yes, 100, .pool.limit_bytes = 20 * MIB)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    (void)env_alloc(allocator, 20 * MIB, NULL);
    expect_rejected(NULL, 2 * MIB, XSEG_ERR_LIMIT);
    assert_ok(xseg_route_end(pool));
    (void)env_alloc(allocator, 2 * MIB, NULL);
}

PAIR(limit, release, yes, 20, .pool.limit_bytes = 20 * MIB)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    env_free(allocator, ptr);
    /* The memory of a released pool serves every request, without the pool's limit. */
    (void)env_alloc(allocator, 20 * MIB, NULL);
}

PAIR(custom_memory, exportable, no, 100, .pool.memory = custom_memory)
{
    const struct xseg_pool_options options = {sizeof(options), .memory = custom_memory,
                                              .exportable = true};
    struct xseg_pool *rejected = NULL;

    assert_error(xseg_pool_create(allocator, 0, &options, &rejected), ARGUMENT, "exportable");
}

PAIR(custom_memory, pause, no, 100, .pool.memory = custom_memory)
{
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), UNSUPPORTED, "classic");
}

PAIR(custom_memory, checkpoint, yes, 100, .pool.memory = custom_memory)
{
    void *ptr = env_alloc_in(allocator, pool, MIB, NULL);
    free_and_restore(ptr);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
}

PAIR(custom_memory, capture, yes, 100, .pool.memory = custom_memory)
{
    env_capture_begin(pool, stream);
    assert_ptr_equal(env_alloc(allocator, MIB, stream), custom.memory);
    env_capture_end(pool, stream);
}

PAIR(custom_memory, route, yes, 100, .pool.memory = custom_memory)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ptr_equal(env_alloc(allocator, MIB, NULL), custom.memory);
    assert_ok(xseg_route_end(pool));
}

PAIR(custom_memory, release, yes, 100, .pool.memory = custom_memory)
{
    void *ptr = env_alloc_in(allocator, pool, MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(custom.freed, 0);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(custom.freed, 1);
}

PAIR(exportable, pause, later, 100, .pool.exportable = true)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    export_once(ptr);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "exported");
    assert_ok(xseg_export_close(allocator, ptr));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(export_and_close_handles(allocator, ptr), XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
    export_once(ptr);
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(exportable, checkpoint, yes, 100, .pool.exportable = true)
{
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    export_once(ptr);
    env_free(allocator, ptr);
    ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    env_free(allocator, ptr);
    restore(checkpoint);
    /* The export of the first block retains the pages, which the second block used as well. */
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(exportable, capture, yes, 100, .pool.exportable = true)
{
    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    export_once(ptr);
    env_capture_end(pool, stream);
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(exportable, route, yes, 100, .pool.exportable = true)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);
    export_once(ptr);
    assert_ok(xseg_export_close(allocator, ptr));
    assert_ok(xseg_route_end(pool));
}

PAIR(exportable, release, yes, 100, .pool.exportable = true)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    export_once(ptr);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_reserved_without_cache(allocator), 20 * MIB);
    assert_ok(xseg_export_close(allocator, ptr));
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* A block of 21 MiB is one page of 22 MiB; pools without single_page have no page of this size. */
static void expect_single(const void *ptr)
{
    assert_int_equal(env_block(allocator, ptr).bytes, 22 * MIB);
}

PAIR(fallback, single_page, yes, 40, .pool.use_on_oom = true, .pool.single_page = true)
{
    void *fallback = alloc_fallback(20 * MIB);
    assert_int_equal(env_block(allocator, fallback).bytes, 40 * MIB);
}

PAIR(no_split, single_page, yes, 100, .pool.no_split = true, .pool.single_page = true)
{
    expect_single(env_alloc_in(allocator, pool, 21 * MIB, NULL));
    void *small = env_alloc_in(allocator, pool, 512, NULL);
    assert_int_equal(env_block(allocator, small).bytes, 2 * MIB);
}

PAIR(limit, single_page, yes, 100, .pool.limit_bytes = 21 * MIB, .pool.single_page = true)
{
    expect_rejected(pool, 21 * MIB, XSEG_ERR_LIMIT);
    (void)env_alloc_in(allocator, pool, 20 * MIB, NULL);
}

PAIR(custom_memory, single_page, no, 100, .pool.memory = custom_memory)
{
    const struct xseg_pool_options options = {sizeof(options), .memory = custom_memory,
                                              .single_page = true};
    struct xseg_pool *rejected = NULL;

    assert_error(xseg_pool_create(allocator, 0, &options, &rejected), ARGUMENT, "single_page");
}

PAIR(exportable, single_page, yes, 100, .pool.exportable = true, .pool.single_page = true)
{
    struct exported_handles exported;

    void *ptr = env_alloc_in(allocator, pool, 21 * MIB, NULL);
    assert_ok(export_handles(allocator, ptr, XSEG_HANDLE_FD, &exported));
    assert_int_equal(exported.count, 1);
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, ptr));
}

PAIR(single_page, pause, yes, 100, .pool.single_page = true)
{
    void *ptr = env_alloc_in(allocator, pool, 21 * MIB, NULL);
    const uint64_t created = xseg_sim_calls("cuMemCreate");

    pause_and_resume();
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created + 1);
    expect_single(ptr);
}

PAIR(single_page, checkpoint, yes, 100, .pool.single_page = true)
{
    void *ptr = env_alloc_in(allocator, pool, 21 * MIB, NULL);
    free_and_restore(ptr);
    expect_single(ptr);
}

PAIR(single_page, capture, yes, 100, .pool.single_page = true)
{
    env_capture_begin(pool, stream);
    expect_single(env_alloc(allocator, 21 * MIB, stream));
    env_capture_end(pool, stream);
}

PAIR(single_page, route, yes, 100, .pool.single_page = true)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_single(env_alloc(allocator, 21 * MIB, NULL));
    assert_ok(xseg_route_end(pool));
}

PAIR(single_page, release, yes, 100, .pool.single_page = true)
{
    struct xseg_pool *second_pool = env_pool_of(allocator, .single_page = true);
    void *ptr = env_alloc_in(allocator, pool, 80 * MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    expect_rejected(second_pool, 80 * MIB, XSEG_ERR_NO_MEMORY);
    env_free(allocator, ptr);
    (void)env_alloc_in(allocator, second_pool, 80 * MIB, NULL);
}

PAIR(pause, checkpoint, later, 100)
{
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_PAUSED);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_resume(pool));
    restore(checkpoint);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
}

PAIR(pause, capture, later, 100)
{
    env_capture_begin(pool, stream);
    (void)env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
}

PAIR(pause, route, yes, 100)
{
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_rejected(NULL, MIB, XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
    (void)env_alloc(allocator, MIB, NULL);
    assert_ok(xseg_route_end(pool));
}

PAIR(pause, release, yes, 100)
{
    /* With a callback the handle stays valid after the release, as the pool has a block. */
    struct xseg_pool *observed = env_observed_pool(allocator);

    (void)env_alloc_in(allocator, observed, 20 * MIB, NULL);
    assert_ok(xseg_pool_pause(observed, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_pool_release(observed));
    env_empty_cache(allocator);
    assert_ok(xseg_pool_resume(observed));
    assert_int_equal(env_reserved(allocator), 20 * MIB);
}

PAIR(checkpoint, capture, later, 100)
{
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool), *rejected = NULL;

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(xseg_pool_checkpoint(pool, &rejected), XSEG_ERR_BUSY);
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    restore(checkpoint);
    assert_int_not_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    (void)env_alloc_in(allocator, pool, 20 * MIB, stream);
}

PAIR(checkpoint, route, yes, 100)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    void *ptr = env_alloc(allocator, MIB, NULL);
    free_and_restore(ptr);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    assert_ok(xseg_route_end(pool));
}

PAIR(checkpoint, release, no, 100)
{
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool), *rejected = NULL;

    assert_ok(xseg_pool_release(pool));
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_pool_checkpoint(pool, &rejected), XSEG_ERR_ARGUMENT);
    xseg_checkpoint_destroy(checkpoint);
}

PAIR(capture, route, no, 100)
{
    env_capture_begin(pool, stream);
    assert_int_equal(xseg_route_begin(pool, NULL, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_BUSY);
    assert_ok(xseg_route_end(pool));
}

PAIR(capture, release, yes, 100)
{
    env_capture_begin(pool, stream);
    assert_ok(xseg_pool_release(pool));
    /* The capture retains the pool until its end. */
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    env_capture_end(pool, stream);
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_ARGUMENT);
}

PAIR(route, release, yes, 100)
{
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ok(xseg_pool_release(pool));
    /* The route retains the pool until its end. */
    void *ptr = env_alloc(allocator, MIB, NULL);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    assert_ok(xseg_route_end(pool));
    assert_null(env_block(allocator, env_alloc(allocator, MIB, NULL)).pool);
}
