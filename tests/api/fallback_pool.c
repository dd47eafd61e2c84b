/* SPDX-License-Identifier: MIT */
/* Fallback blocks: blocks of the default pool in memory of a pool with use_on_oom. */
#include <stdio.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* A device whose memory is all in a fallback pool, in two blocks. */
struct env {
    size_t bytes; /* of each */
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    void *first, *second; /* the blocks; alloc_fallback() frees the second one */
};

/* A large block, and a small one. */
static const size_t sizes[] = {20 * MIB, 512 * KIB};
static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

static struct env open_env(size_t bytes, const char *config)
{
    struct env env = {.bytes = bytes};

    env_streams_discard();
    env.allocator = env_open_mib(bytes > MIB ? 2 * bytes / MIB : 2, config);
    env.pool = env_pool_of(env.allocator, .use_on_oom = true);
    env.first = env_alloc_in(env.allocator, env.pool, bytes, NULL);
    env.second = env_alloc_in(env.allocator, env.pool, bytes, NULL);
    return env;
}

/* Free the second block, and allocate its memory from the default pool. */
static void *alloc_fallback(struct env *env)
{
    env_free(env->allocator, env->second);
    void *fallback = env_alloc(env->allocator, env->bytes, NULL);
    assert_ptr_equal(fallback, env->second);
    return fallback;
}

static void close_env(const struct env *env)
{
    if (env->pool != NULL)
        assert_ok(xseg_pool_release(env->pool));
    env_close_with_streams(env->allocator);
}

/* A test for both sizes and both kinds of segments. */
#define TEST_IN_FALLBACK(name)                                                          \
    static void name##_in(struct env *env);                                             \
    TEST(name)                                                                          \
    {                                                                                   \
        for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {            \
            struct env env =                                                            \
                open_env(sizes[i / COUNT_OF(configs)], configs[i % COUNT_OF(configs)]); \
            name##_in(&env);                                                            \
            close_env(&env);                                                            \
        }                                                                               \
    }                                                                                   \
    static void name##_in(struct env *env)

struct moves {
    const void *fallback;
    unsigned freed, restored; /* other blocks that the restore has moved */
};

static void count_move(void *context, void *ptr, bool freed)
{
    struct moves *moves = context;

    assert_ptr_not_equal(ptr, moves->fallback);
    moves->freed += freed;
    moves->restored += !freed;
}

TEST_IN_FALLBACK(restore_keeps_a_fallback_block)
{
    bool exactly = false;

    env_free(env->allocator, env->second);
    struct xseg_checkpoint *checkpoint = env_checkpoint(env->pool);
    void *fallback = env_alloc(env->allocator, env->bytes, NULL);
    struct moves moves = {.fallback = fallback};
    env_free(env->allocator, env->first);
    assert_ok(xseg_pool_restore(env->pool, checkpoint, count_move, &moves));
    assert_int_equal(moves.freed, 0);
    assert_int_equal(moves.restored, 1);
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    assert_ok(xseg_pool_check_live(env->pool, &env->first, 1, &exactly));
    assert_true(exactly);
    xseg_checkpoint_destroy(checkpoint);
    env_free(env->allocator, fallback, env->first);
}

TEST_IN_FALLBACK(restore_over_a_fallback_block_is_rejected)
{
    struct xseg_checkpoint *checkpoint = env_checkpoint(env->pool);
    void *fallback = alloc_fallback(env);
    assert_error(xseg_pool_restore(env->pool, checkpoint, NULL, NULL), BUSY,
                 "contains a block of the default pool");
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(env_block(env->allocator, env->first).state, XSEG_BLOCK_ALLOCATED);
    env_free(env->allocator, fallback);
    assert_ok(xseg_pool_restore(env->pool, checkpoint, NULL, NULL));
    assert_int_equal(env_block(env->allocator, env->second).state, XSEG_BLOCK_ALLOCATED);
    xseg_checkpoint_destroy(checkpoint);
    env_free(env->allocator, env->second, env->first);
}

TEST_IN_FALLBACK(pending_fallback_block_is_kept)
{
    const xseg_stream stream = env_stream();
    struct xseg_checkpoint *before = NULL, *after = NULL;

    assert_ok(xseg_pool_checkpoint(env->pool, &before));
    void *fallback = alloc_fallback(env);
    assert_ok(xseg_record_stream(env->allocator, fallback, stream));
    assert_ok(xseg_pool_checkpoint(env->pool, &after));
    assert_ok(xseg_pool_restore(env->pool, after, NULL, NULL));
    env_launch(env->allocator, stream, fallback);
    env_free(env->allocator, fallback);
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_pool_restore(env->pool, after, NULL, NULL));
    assert_error(xseg_pool_restore(env->pool, before, NULL, NULL), BUSY,
                 "contains a block of the default pool");
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(stream));
    assert_ok(xseg_pool_restore(env->pool, before, NULL, NULL));
    xseg_checkpoint_destroy(before);
    xseg_checkpoint_destroy(after);
    env_free(env->allocator, env->second, env->first);
    env_empty_cache(env->allocator);
}

TEST_IN_FALLBACK(fallback_block_does_not_belong_to_the_pool)
{
    bool exactly = true;
    void *fallback = alloc_fallback(env);
    void *blocks[] = {env->first, fallback};

    assert_ok(xseg_pool_check_live(env->pool, blocks, 2, &exactly));
    assert_false(exactly);
    assert_ok(xseg_pool_check_live(env->pool, blocks, 1, &exactly));
    assert_true(exactly);
    /* A checkpoint without the fallback block can be restored after its memory has been reused. */
    struct xseg_checkpoint *checkpoint = env_checkpoint(env->pool);
    env_free(env->allocator, fallback);
    assert_ok(xseg_pool_restore(env->pool, checkpoint, NULL, NULL));
    assert_int_not_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    xseg_checkpoint_destroy(checkpoint);
    env_free(env->allocator, env->first);
}

TEST(pool_with_a_fallback_block_is_not_paused)
{
    static const enum xseg_keep keeps[] = {XSEG_KEEP_NOTHING, XSEG_KEEP_HOST, XSEG_KEEP_FILE};

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct env env = open_env(sizes[i], configs[0]);
        void *fallback = alloc_fallback(&env);
        char address[32];

        assert_true(snprintf(address, sizeof(address), "%p", fallback) > 0);
        for (unsigned k = 0; k < COUNT_OF(keeps); k++) {
            const char *file = keeps[k] == XSEG_KEEP_FILE ? "/nowhere/at/all" : NULL;

            assert_error(xseg_pool_pause(env.pool, keeps[k], file), BUSY, address);
            assert_error(xseg_pool_pause(env.pool, keeps[k], file), BUSY,
                         "contains a block of the default pool");
        }
        env_free(env.allocator, fallback);
        assert_ok(xseg_pool_pause(env.pool, XSEG_KEEP_NOTHING, NULL));
        assert_ok(xseg_pool_resume(env.pool));
        env_free(env.allocator, env.first);
        close_env(&env);
    }
}

/* The pool has this many blocks; a fallback block is not one of them. */
static void expect_stats(const struct env *env, unsigned count)
{
    const unsigned group = env->bytes > MIB ? XSEG_STAT_LARGE : XSEG_STAT_SMALL;
    const struct xseg_statistics stats = env_pool_stats(env->allocator, env->pool);

    assert_int_equal(stats.allocation[group].current, count);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, count * env->bytes);
    assert_int_equal(stats.requested_bytes[group].current, count * env->bytes);
    assert_int_equal(stats.active[group].current, count);
    assert_int_equal(stats.active_bytes[group].current, count * env->bytes);
    assert_int_equal(stats.reserved_bytes[group].current,
                     env->bytes > MIB ? 2 * env->bytes : 2 * MIB);
    assert_int_equal(stats.allocation[group].allocated - stats.allocation[group].freed, count);
    /* The fallback block never counts as allocated from the pool. */
    assert_int_equal(stats.allocation[group].allocated, 2);
}

TEST_IN_FALLBACK(fallback_block_counts_as_reserved_in_the_pool_and_allocated_outside)
{
    const xseg_stream stream = env_stream();
    const struct xseg_statistics before = env_stats(env->allocator);

    expect_stats(env, 2);
    void *fallback = alloc_fallback(env);
    expect_stats(env, 1);
    /* The statistics of the device include all blocks. */
    const struct xseg_statistics stats = env_stats(env->allocator);
    assert_memory_equal(&stats.reserved_bytes, &before.reserved_bytes,
                        sizeof(stats.reserved_bytes));
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 2 * env->bytes);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 3);
    env_free_in_use(env->allocator, fallback, stream);
    expect_stats(env, 1);
    assert_int_equal(env_stats(env->allocator).active[XSEG_STAT_ALL].current, 2);
    assert_ok(xseg_sim_finish(stream));
    env_empty_cache(env->allocator);
    assert_int_equal(env_stats(env->allocator).active[XSEG_STAT_ALL].current, 1);
    expect_stats(env, 1);
    env_free(env->allocator, env->first);
    expect_stats(env, 0);
}

TEST(oversize_counts_belong_to_the_default_pool)
{
    struct env env = open_env(sizes[0], "expandable_segments:False,max_split_size_mb:20");

    assert_int_equal(env_pool_stats(env.allocator, env.pool).oversize_allocations.current, 2);
    void *fallback = alloc_fallback(&env);
    assert_int_equal(env_pool_stats(env.allocator, env.pool).oversize_allocations.current, 1);
    assert_int_equal(env_stats(env.allocator).oversize_allocations.current, 2);
    env_free(env.allocator, fallback);
    assert_int_equal(env_pool_stats(env.allocator, env.pool).oversize_allocations.current, 1);
    assert_int_equal(env_stats(env.allocator).oversize_allocations.current, 1);
    env_free(env.allocator, env.first);
    close_env(&env);
}

TEST_IN_FALLBACK(fallback_block_reports_its_pool)
{
    void *fallback = alloc_fallback(env);
    struct xseg_block_info info = env_block(env->allocator, fallback);

    assert_null(info.pool);
    assert_ptr_equal(info.fallback_pool, env->pool);
    assert_int_equal(info.requested, env->bytes);
    info = env_block(env->allocator, env->first);
    assert_ptr_equal(info.pool, env->pool);
    assert_null(info.fallback_pool);
    env_free(env->allocator, fallback);
    info = env_block(env->allocator, fallback);
    assert_ptr_equal(info.pool, env->pool);
    assert_null(info.fallback_pool);
    /* The next block at this address belongs to the pool. */
    fallback = env_alloc_in(env->allocator, env->pool, env->bytes, NULL);
    assert_null(env_block(env->allocator, fallback).fallback_pool);
    env_free(env->allocator, fallback, env->first);
}

struct visits {
    const void *fallback;
    const struct xseg_pool *pool; /* whose memory the block is in */
    unsigned blocks, reasons;
};

static bool visit_block(void *context, const struct xseg_block_info *info)
{
    struct visits *visits = context;

    if (info->base == visits->fallback) {
        assert_null(info->pool);
        assert_ptr_equal(info->fallback_pool, visits->pool);
        visits->blocks++;
    }
    return true;
}

static bool visit_reason(void *context, const struct xseg_reason *reason)
{
    struct visits *visits = context;

    if (reason->block == visits->fallback) {
        assert_null(reason->pool);
        assert_ptr_equal(reason->fallback_pool, visits->pool);
        visits->reasons++;
    } else {
        assert_ptr_equal(reason->pool, visits->pool);
        assert_null(reason->fallback_pool);
    }
    return true;
}

TEST_IN_FALLBACK(explain_includes_fallback_blocks)
{
    const struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = env->pool};
    struct xseg_explain_result sums = {sizeof(sums)};

    void *fallback = alloc_fallback(env);
    struct visits visits = {.fallback = fallback, .pool = env->pool};
    /* A reason names the largest block of a page of small blocks. */
    if (env->bytes < MIB) {
        env_free(env->allocator, env->first);
        env->first = env_alloc_in(env->allocator, env->pool, 512, NULL);
    }
    assert_ok(xseg_for_each_block(env->allocator, &scope, visit_block, &visits));
    assert_int_equal(visits.blocks, 1);
    assert_ok(xseg_explain(env->allocator, &scope, visit_reason, &visits, &sums));
    assert_int_equal(visits.reasons, 1);
    assert_int_equal(sums.reserved,
                     env_pool_stats(env->allocator, env->pool).reserved_bytes[0].current);
    env_free(env->allocator, fallback, env->first);
}

static void count_by_pool(void *context, const struct xseg_trace_entry *entry)
{
    unsigned(*count)[2] = context; /* by action, and of the default pool or a private one */

    if (entry->action <= XSEG_TRACE_FREE_COMPLETED)
        count[entry->action][entry->pool != NULL]++;
}

TEST_IN_FALLBACK(history_records_the_pool_of_a_fallback_block)
{
    const xseg_stream stream = env_stream();
    unsigned count[3][2] = {{0}};
    /* Of the default pool: two fallback blocks.  Of the private pool: the frees of both blocks. */
    const unsigned expected[3][2] = {{2, 0}, {2, 2}, {2, 2}};

    const uint64_t id = env_observe(env->allocator, .context = count, .on_trace = count_by_pool);
    void *fallback = alloc_fallback(env);
    env_free(env->allocator, fallback);
    fallback = env_alloc(env->allocator, env->bytes, NULL);
    assert_ok(xseg_record_stream(env->allocator, fallback, stream));
    env_free(env->allocator, fallback);
    env_empty_cache(env->allocator);
    env_free(env->allocator, env->first);
    assert_memory_equal(count, expected, sizeof(count));
    assert_ok(xseg_observer_remove(env->allocator, id));
}

TEST_IN_FALLBACK(fallback_block_outlives_its_pool)
{
    void *fallback = alloc_fallback(env);

    env_free(env->allocator, env->first);
    assert_ok(xseg_pool_release(env->pool));
    env_empty_cache(env->allocator);
    const struct xseg_block_info info = env_block(env->allocator, fallback);
    assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
    assert_null(info.pool);
    assert_ptr_equal(info.fallback_pool, env->pool);
    env_free(env->allocator, fallback);
    assert_int_equal(env_reserved_without_cache(env->allocator), 0);
    env->pool = NULL; /* released */
}

/* The freed block coalesces with its neighbors. */
TEST(freed_fallback_block_returns_to_its_pool)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct env env = open_env(sizes[i], configs[0]);
        void *fallback = alloc_fallback(&env);

        env_free(env.allocator, env.first, fallback);
        assert_int_equal(env_block(env.allocator, fallback).base, env.first);
        fallback =
            env_alloc_in(env.allocator, env.pool, env.bytes > MIB ? 2 * env.bytes : MIB, NULL);
        assert_ptr_equal(fallback, env.first);
        env_free(env.allocator, fallback);
        close_env(&env);
    }
}

/* A graph may write to cached memory of its pool at any time. */
TEST_IN_FALLBACK(captured_pool_is_no_fallback)
{
    const xseg_stream stream = env_stream();
    void *ptr = NULL;

    /* An existing fallback block remains. */
    void *fallback = alloc_fallback(env);
    env_capture_begin(env->pool, stream);
    env_capture_end(env->pool, stream);
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
    env_free(env->allocator, fallback);
    assert_error(xseg_alloc(env->allocator, 0, env->bytes, NULL, &ptr), NO_MEMORY,
                 "out of memory on device 0");
    env_free(env->allocator, env->first);
}

TEST_IN_FALLBACK(fallback_block_is_deferred_in_a_capture)
{
    const xseg_stream stream = env_stream(), side = env_stream();
    struct xseg_pool *graph_pool = env_pool(env->allocator);

    void *fallback = alloc_fallback(env);
    env_capture_begin(graph_pool, stream);
    assert_ok(xseg_record_stream(env->allocator, fallback, side));
    env_free(env->allocator, fallback);
    const struct xseg_block_info info = env_block(env->allocator, fallback);
    assert_int_equal(info.state, XSEG_BLOCK_PENDING_FREE);
    assert_null(info.pool);
    assert_ptr_equal(info.fallback_pool, env->pool);
    expect_stats(env, 1);
    env_capture_end(graph_pool, stream);
    env_empty_cache(env->allocator);
    assert_int_equal(env_block(env->allocator, fallback).state, XSEG_BLOCK_CACHED);
    expect_stats(env, 1);
    env_free(env->allocator, env->first);
    assert_ok(xseg_pool_release(graph_pool));
}

/* Age, double free report and debug pattern. */
TEST(debug_features_cover_fallback_blocks)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct env env = open_env(sizes[i], "history:all,debug_fill:True");
        void *fallback = alloc_fallback(&env);

        assert_int_not_equal(env_block(env.allocator, fallback).age_ms, UINT64_MAX);
        env_free(env.allocator, fallback);
        assert_error(xseg_free(env.allocator, fallback), NOT_ALLOCATED, "freed");
        fallback = env_alloc_with(env.allocator, .bytes = env.bytes, .zeroed = true);
        assert_ptr_equal(env_block(env.allocator, fallback).fallback_pool, env.pool);
        assert_int_equal(env_stats(env.allocator).overwrites, 0);
        env_free(env.allocator, fallback, env.first);
        close_env(&env);
    }
}

TEST(fallback_block_can_be_pinned)
{
    struct env env = open_env(sizes[0], configs[0]);
    void *fallback = alloc_fallback(&env);

    assert_ok(xseg_pin(env.allocator, fallback, env.bytes));
    env_free(env.allocator, fallback);
    assert_int_equal(env_trim_pool(env.allocator, env.pool).kept_pinned, env.bytes);
    assert_ok(xseg_unpin(env.allocator, fallback, env.bytes));
    env_free(env.allocator, env.first);
    close_env(&env);
}

TEST_ON(fallback_block_is_not_exported, env_open_mib(40, NULL))
{
    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true, .exportable = true);
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);

    env_free(allocator, block);
    void *fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(fallback, block);
    assert_error(export_and_close_handles(allocator, fallback), UNSUPPORTED,
                 "memory is not exportable");
    env_free(allocator, fallback);
    block = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    assert_ok(export_and_close_handles(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

/* The cached memory of the pool is released, unless other blocks use its page or segment. */
TEST_IN_FALLBACK(released_pool_is_no_fallback)
{
    void *ptr = NULL;

    assert_ok(xseg_pool_release(env->pool));
    env_free(env->allocator, env->second);
    const xseg_status status = xseg_alloc(env->allocator, 0, env->bytes, NULL, &ptr);
    if (env->bytes > MIB) {
        assert_ok(status);
        assert_null(env_block(env->allocator, ptr).fallback_pool);
        env_free(env->allocator, ptr);
    } else {
        assert_error(status, NO_MEMORY, "out of memory on device 0");
    }
    env_free(env->allocator, env->first);
    env->pool = NULL; /* released */
}
