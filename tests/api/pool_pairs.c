/* SPDX-License-Identifier: MIT */
/*
 * The features of pools in pairs: a case for each row of the table in docs/pools.md.
 */
#include <stdlib.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* --- What most cases need. --- */

/* Memory of the custom functions: two pieces of 2 MiB. */
static struct {
    unsigned char *memory;
    unsigned given, taken;
} own;

static void *own_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)device, (void)stream;
    assert_int_equal(bytes, 2 * MIB);
    return own.given < 2 ? own.memory + 2 * MIB * own.given++ : NULL;
}

static void own_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)ptr, (void)bytes, (void)device, (void)stream;
    own.taken++;
}

static int set_up(void **state)
{
    (void)state;
    own.given = own.taken = 0;
    own.memory = aligned_alloc(4096, 4 * MIB);
    return own.memory == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    free(own.memory);
    return 0;
}

static const struct xseg_pool_memory own_memory = {own_alloc, own_free, NULL};

static struct xseg_allocator *open_on(size_t mib)
{
    return env_open_mib(mib, "expandable_segments:True");
}

static bool free_live(void *context, const struct xseg_block_info *info)
{
    if (info->state == XSEG_BLOCK_ALLOCATED)
        env_free(context, info->base);
    return true;
}

/* Free all that lives, and close; then the stream goes, if there is one. */
static void finish(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_ok(xseg_for_each_block(allocator, NULL, free_live, allocator));
    if (stream == NULL) {
        env_close(allocator);
        return;
    }
    env_close(allocator, stream);
}

/* Allocate a fallback block from a pool that has all memory of the device. */
static void *alloc_fallback(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes)
{
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    void *fallback = env_alloc(allocator, bytes, NULL);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
    return fallback;
}

/* A cached block of 20 MiB that only a request of all of it, or a pool that does not split, gets whole. */
static void cache_one(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, NULL));
}

static void expect_whole(struct xseg_allocator *allocator, const void *ptr)
{
    assert_int_equal(env_block(allocator, ptr).bytes, 20 * MIB);
}

static void expect_rejected(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                            xseg_status status)
{
    void *ptr = NULL;

    assert_int_equal(env_try_alloc_in(allocator, pool, bytes, &ptr), status);
    assert_null(ptr);
}

static void pause_and_resume(struct xseg_pool *pool)
{
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
}

static struct xseg_checkpoint *checkpoint_of(struct xseg_pool *pool)
{
    struct xseg_checkpoint *checkpoint = NULL;

    assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
    return checkpoint;
}

static void restore(struct xseg_pool *pool, struct xseg_checkpoint *checkpoint)
{
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    xseg_checkpoint_destroy(checkpoint);
}

static void share_once(struct xseg_allocator *allocator, void *ptr)
{
    assert_ok(export_and_close_handles(allocator, ptr));
}

#define OPTIONS(member, value)                            \
    struct xseg_pool_options options = {sizeof(options)}; \
    options.member = (value);                             \
    (void)state

/* --- Fallback pools. --- */

#define PAIR(one, other, verdict) TEST_WITH(one##_and_##other, set_up, tear_down)

PAIR(fallback, no_split, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);

    options.no_split = true;
    void *fallback = alloc_fallback(allocator, env_pool_with(allocator, &options), 20 * MIB);
    assert_int_equal(env_block(allocator, fallback).bytes, 40 * MIB);
    finish(allocator, NULL);
}

PAIR(fallback, limit, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);

    options.limit_bytes = 40 * MIB;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *fallback = alloc_fallback(allocator, pool, 30 * MIB);
    /* The fallback block counts towards the limit. */
    (void)env_alloc_in(allocator, pool, 10 * MIB, NULL);
    expect_rejected(allocator, pool, 2 * MIB, XSEG_ERR_LIMIT);
    env_free(allocator, fallback);
    (void)env_alloc_in(allocator, pool, 2 * MIB, NULL);
    finish(allocator, NULL);
}

PAIR(fallback, own_memory, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(2);

    options.memory = own_memory;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    /* Memory of custom functions counts as the device's. */
    env_free(allocator, env_alloc_in(allocator, pool, MIB, NULL));
    void *fallback = env_alloc(allocator, MIB, NULL);
    assert_ptr_equal(fallback, own.memory);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
    finish(allocator, NULL);
}

PAIR(fallback, exportable, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);

    options.exportable = true;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *fallback = alloc_fallback(allocator, pool, 20 * MIB);
    assert_int_equal(export_and_close_handles(allocator, fallback), XSEG_ERR_UNSUPPORTED);
    void *inside = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    share_once(allocator, inside);
    assert_ok(xseg_export_close(allocator, inside));
    finish(allocator, NULL);
}

PAIR(fallback, pause, later)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *fallback = alloc_fallback(allocator, pool, 20 * MIB);

    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY,
                     "contains a block of the default pool");
    env_free(allocator, fallback);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    /* A paused pool is no fallback; the device has free memory then. */
    fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_null(env_block(allocator, fallback).fallback_pool);
    env_free(allocator, fallback);
    assert_ok(xseg_pool_resume(pool));
    finish(allocator, NULL);
}

PAIR(fallback, checkpoint, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *fallback = alloc_fallback(allocator, pool, 20 * MIB);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);

    restore(pool, checkpoint);
    assert_int_equal(env_block(allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    finish(allocator, NULL);
}

PAIR(fallback, capture, no)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    env_capture_begin(pool, stream);
    env_capture_end(pool, stream);
    expect_rejected(allocator, NULL, 20 * MIB, XSEG_ERR_NO_MEMORY);
    finish(allocator, stream);
}

PAIR(fallback, route, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);
    struct xseg_pool *env = env_pool_with(allocator, &options), *other = env_pool(allocator);
    void *fallback = alloc_fallback(allocator, env, 20 * MIB);

    env_free(allocator, fallback);
    /* Routed elsewhere, it is no request of the default pool. */
    assert_ok(xseg_route_begin(other, NULL, NULL));
    expect_rejected(allocator, NULL, 20 * MIB, XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_route_end(other));
    /* Routed to, the pool serves it as its own. */
    assert_ok(xseg_route_begin(env, NULL, NULL));
    assert_ptr_equal(env_block(allocator, env_alloc(allocator, 20 * MIB, NULL)).pool, env);
    assert_ok(xseg_route_end(env));
    fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, fallback).fallback_pool, env);
    finish(allocator, NULL);
}

PAIR(fallback, release, no)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *fallback = alloc_fallback(allocator, pool, 20 * MIB);

    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_block(allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    /* The rest of the pool is not lent: as all idle memory, it goes to the request that needs it. */
    assert_null(env_block(allocator, env_alloc(allocator, 20 * MIB, NULL)).fallback_pool);
    finish(allocator, NULL);
}

/* --- no_split. --- */

PAIR(no_split, limit, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);

    options.limit_bytes = 20 * MIB;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    cache_one(allocator, pool);
    expect_whole(allocator, env_alloc_in(allocator, pool, 2 * MIB, NULL));
    expect_rejected(allocator, pool, 2 * MIB, XSEG_ERR_LIMIT);
    finish(allocator, NULL);
}

PAIR(no_split, own_memory, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);

    options.memory = own_memory;
    void *ptr = env_alloc_in(allocator, env_pool_with(allocator, &options), 512, NULL);
    assert_int_equal(env_block(allocator, ptr).bytes, 2 * MIB);
    finish(allocator, NULL);
}

PAIR(no_split, exportable, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);

    options.exportable = true;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    cache_one(allocator, pool);
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    expect_whole(allocator, ptr);
    share_once(allocator, ptr);
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, NULL);
}

PAIR(no_split, pause, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    cache_one(allocator, pool);
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    pause_and_resume(pool);
    expect_whole(allocator, ptr);
    finish(allocator, NULL);
}

PAIR(no_split, checkpoint, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    cache_one(allocator, pool);
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);
    env_free(allocator, ptr);
    restore(pool, checkpoint);
    expect_whole(allocator, ptr);
    finish(allocator, NULL);
}

PAIR(no_split, capture, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, stream));
    env_capture_begin(pool, stream);
    expect_whole(allocator, env_alloc(allocator, 2 * MIB, stream));
    env_capture_end(pool, stream);
    finish(allocator, stream);
}

PAIR(no_split, route, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    cache_one(allocator, pool);
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_whole(allocator, env_alloc(allocator, 2 * MIB, NULL));
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(no_split, release, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    cache_one(allocator, pool);
    void *ptr = env_alloc_in(allocator, pool, 2 * MIB, NULL);
    assert_ok(xseg_pool_release(pool));
    expect_whole(allocator, ptr);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 0);
    finish(allocator, NULL);
}

/* --- Limits. --- */

PAIR(limit, own_memory, yes)
{
    OPTIONS(limit_bytes, 2 * MIB);
    struct xseg_allocator *allocator = open_on(100);

    options.memory = own_memory;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    expect_rejected(allocator, pool, MIB, XSEG_ERR_LIMIT);
    assert_int_equal(own.given, 1);
    finish(allocator, NULL);
}

PAIR(limit, exportable, yes)
{
    OPTIONS(limit_bytes, 20 * MIB);
    struct xseg_allocator *allocator = open_on(100);

    options.exportable = true;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    share_once(allocator, ptr);
    expect_rejected(allocator, pool, 2 * MIB, XSEG_ERR_LIMIT);
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, NULL);
}

PAIR(limit, pause, yes)
{
    OPTIONS(limit_bytes, 40 * MIB);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    (void)env_alloc_in(allocator, pool, 40 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = pool};
    limits.hard_bytes = 20 * MIB;
    assert_ok(xseg_limits_set(allocator, &where, &limits));
    assert_int_equal(xseg_pool_resume(pool), XSEG_ERR_LIMIT);
    limits.hard_bytes = 40 * MIB;
    assert_ok(xseg_limits_set(allocator, &where, &limits));
    assert_ok(xseg_pool_resume(pool));
    finish(allocator, NULL);
}

PAIR(limit, checkpoint, yes)
{
    OPTIONS(limit_bytes, 20 * MIB);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);

    env_free(allocator, ptr);
    restore(pool, checkpoint);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    expect_rejected(allocator, pool, 2 * MIB, XSEG_ERR_LIMIT);
    finish(allocator, NULL);
}

PAIR(limit, capture, yes)
{
    OPTIONS(limit_bytes, 20 * MIB);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();
    void *ptr = NULL;

    env_capture_begin(pool, stream);
    (void)env_alloc(allocator, 20 * MIB, stream);
    struct xseg_request request = {sizeof(request), .bytes = 2 * MIB, .stream = stream};
    assert_int_equal(xseg_alloc_with(allocator, &request, &ptr), XSEG_ERR_LIMIT);
    env_capture_end(pool, stream);
    finish(allocator, stream);
}

PAIR(limit, route, yes)
{
    OPTIONS(limit_bytes, 20 * MIB);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    (void)env_alloc(allocator, 20 * MIB, NULL);
    expect_rejected(allocator, NULL, 2 * MIB, XSEG_ERR_LIMIT);
    assert_ok(xseg_route_end(pool));
    (void)env_alloc(allocator, 2 * MIB, NULL);
    finish(allocator, NULL);
}

PAIR(limit, release, yes)
{
    OPTIONS(limit_bytes, 20 * MIB);
    struct xseg_allocator *allocator = open_on(20);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    env_free(allocator, ptr);
    /* The memory of a released pool serves every request, without the pool's limit. */
    (void)env_alloc(allocator, 20 * MIB, NULL);
    finish(allocator, NULL);
}

/* --- Custom memory functions. --- */

PAIR(own_memory, exportable, no)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = NULL;

    options.exportable = true;
    env_expect_error(xseg_pool_create(allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
                     "exportable");
    finish(allocator, NULL);
}

PAIR(own_memory, pause, no)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    (void)env_alloc_in(allocator, pool, MIB, NULL);
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_UNSUPPORTED,
                     "classic");
    finish(allocator, NULL);
}

PAIR(own_memory, checkpoint, yes)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);

    env_free(allocator, ptr);
    restore(pool, checkpoint);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    finish(allocator, NULL);
}

PAIR(own_memory, capture, yes)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    assert_ptr_equal(env_alloc(allocator, MIB, stream), own.memory);
    env_capture_end(pool, stream);
    finish(allocator, stream);
}

PAIR(own_memory, route, yes)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ptr_equal(env_alloc(allocator, MIB, NULL), own.memory);
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(own_memory, release, yes)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(own.taken, 0);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(own.taken, 1);
    finish(allocator, NULL);
}

/* --- Exportable pools. --- */

PAIR(exportable, pause, later)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    share_once(allocator, ptr);
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY, "exported");
    assert_ok(xseg_export_close(allocator, ptr));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(export_and_close_handles(allocator, ptr), XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
    share_once(allocator, ptr);
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, NULL);
}

PAIR(exportable, checkpoint, yes)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    share_once(allocator, ptr);
    env_free(allocator, ptr);
    ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    env_free(allocator, ptr);
    restore(pool, checkpoint);
    /* The export holds the pages, whichever block lies on them. */
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, NULL);
}

PAIR(exportable, capture, yes)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    share_once(allocator, ptr);
    env_capture_end(pool, stream);
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, stream);
}

PAIR(exportable, route, yes)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);
    share_once(allocator, ptr);
    assert_ok(xseg_export_close(allocator, ptr));
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(exportable, release, yes)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    share_once(allocator, ptr);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 20 * MIB);
    assert_ok(xseg_export_close(allocator, ptr));
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 0);
    finish(allocator, NULL);
}

/* --- A pool of single pages. --- */

/* A block of 21 MiB is a page of 22 MiB, as no other pool has one. */
static void expect_single(struct xseg_allocator *allocator, const void *ptr)
{
    assert_int_equal(env_block(allocator, ptr).bytes, 22 * MIB);
}

PAIR(fallback, single_page, yes)
{
    OPTIONS(use_on_oom, true);
    struct xseg_allocator *allocator = open_on(40);

    options.single_page = true;
    void *fallback = alloc_fallback(allocator, env_pool_with(allocator, &options), 20 * MIB);
    assert_int_equal(env_block(allocator, fallback).bytes, 40 * MIB);
    finish(allocator, NULL);
}

PAIR(no_split, single_page, yes)
{
    OPTIONS(no_split, true);
    struct xseg_allocator *allocator = open_on(100);

    options.single_page = true;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    expect_single(allocator, env_alloc_in(allocator, pool, 21 * MIB, NULL));
    void *small = env_alloc_in(allocator, pool, 512, NULL);
    assert_int_equal(env_block(allocator, small).bytes, 2 * MIB);
    finish(allocator, NULL);
}

PAIR(limit, single_page, yes)
{
    OPTIONS(limit_bytes, 21 * MIB);
    struct xseg_allocator *allocator = open_on(100);

    options.single_page = true;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    expect_rejected(allocator, pool, 21 * MIB, XSEG_ERR_LIMIT);
    (void)env_alloc_in(allocator, pool, 20 * MIB, NULL);
    finish(allocator, NULL);
}

PAIR(own_memory, single_page, no)
{
    OPTIONS(memory, own_memory);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = NULL;

    options.single_page = true;
    env_expect_error(xseg_pool_create(allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
                     "single_page");
    finish(allocator, NULL);
}

PAIR(exportable, single_page, yes)
{
    OPTIONS(exportable, true);
    struct xseg_allocator *allocator = open_on(100);
    struct exported_handles exported;

    options.single_page = true;
    void *ptr = env_alloc_in(allocator, env_pool_with(allocator, &options), 21 * MIB, NULL);
    assert_ok(export_handles(allocator, ptr, XSEG_HANDLE_FD, &exported));
    assert_int_equal(exported.count, 1);
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, ptr));
    finish(allocator, NULL);
}

PAIR(single_page, pause, yes)
{
    OPTIONS(single_page, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 21 * MIB, NULL);
    const uint64_t created = xseg_sim_calls("cuMemCreate");

    pause_and_resume(pool);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created + 1);
    expect_single(allocator, ptr);
    finish(allocator, NULL);
}

PAIR(single_page, checkpoint, yes)
{
    OPTIONS(single_page, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 21 * MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);

    env_free(allocator, ptr);
    restore(pool, checkpoint);
    expect_single(allocator, ptr);
    finish(allocator, NULL);
}

PAIR(single_page, capture, yes)
{
    OPTIONS(single_page, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    expect_single(allocator, env_alloc(allocator, 21 * MIB, stream));
    env_capture_end(pool, stream);
    finish(allocator, stream);
}

PAIR(single_page, route, yes)
{
    OPTIONS(single_page, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_single(allocator, env_alloc(allocator, 21 * MIB, NULL));
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(single_page, release, yes)
{
    OPTIONS(single_page, true);
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool_with(allocator, &options),
                     *other = env_pool_with(allocator, &options);
    void *ptr = env_alloc_in(allocator, pool, 80 * MIB, NULL);

    assert_ok(xseg_pool_release(pool));
    expect_rejected(allocator, other, 80 * MIB, XSEG_ERR_NO_MEMORY);
    env_free(allocator, ptr);
    (void)env_alloc_in(allocator, other, 80 * MIB, NULL);
    finish(allocator, NULL);
}

/* --- Paused pools. --- */

PAIR(pause, checkpoint, later)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_PAUSED);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_resume(pool));
    restore(pool, checkpoint);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    finish(allocator, NULL);
}

PAIR(pause, capture, later)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    (void)env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
    finish(allocator, stream);
}

PAIR(pause, route, yes)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_rejected(allocator, NULL, MIB, XSEG_ERR_PAUSED);
    assert_ok(xseg_pool_resume(pool));
    (void)env_alloc(allocator, MIB, NULL);
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(pause, release, yes)
{
    struct xseg_allocator *allocator = open_on(100);
    /* With a callback the handle stays valid after the release, as the pool has a block. */
    struct xseg_pool *pool = env_observed_pool(allocator);
    (void)env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(env_reserved(allocator), 20 * MIB);
    finish(allocator, NULL);
}

/* --- Checkpoints, captures, routes and releases. --- */

PAIR(checkpoint, capture, later)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool), *other = NULL;
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    assert_int_equal(xseg_pool_checkpoint(pool, &other), XSEG_ERR_BUSY);
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    restore(pool, checkpoint);
    assert_int_not_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    (void)env_alloc_in(allocator, pool, 20 * MIB, stream);
    finish(allocator, stream);
}

PAIR(checkpoint, route, yes)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    void *ptr = env_alloc(allocator, MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool);
    env_free(allocator, ptr);
    restore(pool, checkpoint);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    assert_ok(xseg_route_end(pool));
    finish(allocator, NULL);
}

PAIR(checkpoint, release, no)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    (void)env_alloc_in(allocator, pool, MIB, NULL);
    struct xseg_checkpoint *checkpoint = checkpoint_of(pool), *other = NULL;

    assert_ok(xseg_pool_release(pool));
    assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_pool_checkpoint(pool, &other), XSEG_ERR_ARGUMENT);
    xseg_checkpoint_destroy(checkpoint);
    finish(allocator, NULL);
}

PAIR(capture, route, no)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    assert_int_equal(xseg_route_begin(pool, NULL, NULL), XSEG_ERR_BUSY);
    env_capture_end(pool, stream);
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_BUSY);
    assert_ok(xseg_route_end(pool));
    finish(allocator, stream);
}

PAIR(capture, release, yes)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    assert_ok(xseg_pool_release(pool));
    /* The capture holds it until its end. */
    void *ptr = env_alloc(allocator, 20 * MIB, stream);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    env_capture_end(pool, stream);
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_ERR_ARGUMENT);
    finish(allocator, stream);
}

PAIR(route, release, yes)
{
    struct xseg_allocator *allocator = open_on(100);
    struct xseg_pool *pool = env_pool(allocator);

    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_ok(xseg_pool_release(pool));
    /* The route holds it until its end. */
    void *ptr = env_alloc(allocator, MIB, NULL);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    assert_ok(xseg_route_end(pool));
    assert_null(env_block(allocator, env_alloc(allocator, MIB, NULL)).pool);
    finish(allocator, NULL);
}

/* verdict: of docs/pools.md */
