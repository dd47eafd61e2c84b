/* SPDX-License-Identifier: MIT */
/* A block that a pool has lent is the default pool's: what that means for everything else. */
#include <stdio.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* A device whose memory is all in a fallback pool: the blocks `kept` and `fallback` to be. */
struct env {
    size_t bytes; /* of each */
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    void *kept, *inside;
};

/* Sizes of both kinds: 20 MiB has a record, 512 KiB is a cell. */
static const size_t sizes[] = {20 * MIB, 512 * KIB};
static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

static struct env open_env(size_t bytes, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_pool_options options = {sizeof(options), .use_on_oom = true};
    struct env env = {.bytes = bytes};

    settings.memory_bytes = bytes > MIB ? 2 * bytes : 2 * MIB;
    env.allocator = env_open_on(&settings, config);
    assert_ok(xseg_pool_create(env.allocator, 0, &options, &env.pool));
    env.kept = env_alloc_in(env.allocator, env.pool, bytes, NULL);
    env.inside = env_alloc_in(env.allocator, env.pool, bytes, NULL);
    return env;
}

/* The second block is freed, and its memory lent. */
static void *alloc_fallback(struct env *env)
{
    env_free(env->allocator, env->inside);
    void *fallback = env_alloc(env->allocator, env->bytes, NULL);
    assert_ptr_equal(fallback, env->inside);
    return fallback;
}

static void close_env(struct env *env)
{
    assert_ok(xseg_pool_release(env->pool));
    env_close(env->allocator);
}

#define FOR_ALL_SIZES(env)                                                                 \
    for (unsigned i_ = 0; i_ < COUNT_OF(sizes) * COUNT_OF(configs); i_++)                  \
        for (struct env env =                                                              \
                 open_env(sizes[i_ / COUNT_OF(configs)], configs[i_ % COUNT_OF(configs)]); \
             (env).allocator != NULL; close_env(&(env)), (env).allocator = NULL)

/* --- Checkpoint and restore. --- */

struct moves {
    const void *fallback;
    unsigned freed, revived;
};

static void note_move(void *context, void *ptr, bool freed)
{
    struct moves *moves = context;

    assert_ptr_not_equal(ptr, moves->fallback);
    moves->freed += freed;
    moves->revived += !freed;
}

TEST(restore_keeps_a_fallback_block)
{
    FOR_ALL_SIZES(env)
    {
        struct xseg_checkpoint *checkpoint = NULL;
        bool exactly = false;

        env_free(env.allocator, env.inside);
        assert_ok(xseg_pool_checkpoint(env.pool, &checkpoint));
        void *fallback = env_alloc(env.allocator, env.bytes, NULL);
        struct moves moves = {.fallback = fallback};
        env_free(env.allocator, env.kept);
        assert_ok(xseg_pool_restore(env.pool, checkpoint, note_move, &moves));
        assert_int_equal(moves.freed, 0);
        assert_int_equal(moves.revived, 1);
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
        assert_ok(xseg_pool_check_live(env.pool, &env.kept, 1, &exactly));
        assert_true(exactly);
        xseg_checkpoint_destroy(checkpoint);
        env_free(env.allocator, fallback, env.kept);
    }
}

TEST(restore_over_a_fallback_block_is_rejected)
{
    FOR_ALL_SIZES(env)
    {
        struct xseg_checkpoint *checkpoint = NULL;

        assert_ok(xseg_pool_checkpoint(env.pool, &checkpoint));
        void *fallback = alloc_fallback(&env);
        env_expect_error(xseg_pool_restore(env.pool, checkpoint, NULL, NULL), XSEG_ERR_BUSY,
                         "contains a block of the default pool");
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
        assert_int_equal(env_block(env.allocator, env.kept).state, XSEG_BLOCK_ALLOCATED);
        env_free(env.allocator, fallback);
        assert_ok(xseg_pool_restore(env.pool, checkpoint, NULL, NULL));
        assert_int_equal(env_block(env.allocator, env.inside).state, XSEG_BLOCK_ALLOCATED);
        xseg_checkpoint_destroy(checkpoint);
        env_free(env.allocator, env.inside, env.kept);
    }
}

TEST(pending_fallback_block_is_kept)
{
    FOR_ALL_SIZES(env)
    {
        const xseg_stream stream = env_stream();
        struct xseg_checkpoint *before = NULL, *after = NULL;

        assert_ok(xseg_pool_checkpoint(env.pool, &before));
        void *fallback = alloc_fallback(&env);
        assert_ok(xseg_record_stream(env.allocator, fallback, stream));
        assert_ok(xseg_pool_checkpoint(env.pool, &after));
        assert_ok(xseg_pool_restore(env.pool, after, NULL, NULL));
        env_launch(env.allocator, stream, fallback);
        env_free(env.allocator, fallback);
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_PENDING_FREE);
        assert_ok(xseg_pool_restore(env.pool, after, NULL, NULL));
        env_expect_error(xseg_pool_restore(env.pool, before, NULL, NULL), XSEG_ERR_BUSY,
                         "contains a block of the default pool");
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_PENDING_FREE);
        assert_ok(xseg_sim_finish(stream));
        assert_ok(xseg_pool_restore(env.pool, before, NULL, NULL));
        xseg_checkpoint_destroy(before);
        xseg_checkpoint_destroy(after);
        env_free(env.allocator, env.inside, env.kept);
        env_empty_cache(env.allocator);
        env_stream_destroy(stream);
    }
}

TEST(fallback_block_does_not_belong_to_the_pool)
{
    FOR_ALL_SIZES(env)
    {
        struct xseg_checkpoint *checkpoint = NULL;
        bool exactly = true;
        void *fallback = alloc_fallback(&env);
        void *both[] = {env.kept, fallback};

        assert_ok(xseg_pool_check_live(env.pool, both, 2, &exactly));
        assert_false(exactly);
        assert_ok(xseg_pool_check_live(env.pool, both, 1, &exactly));
        assert_true(exactly);
        /* A checkpoint without the fallback block can be restored after its memory has been reused. */
        assert_ok(xseg_pool_checkpoint(env.pool, &checkpoint));
        env_free(env.allocator, fallback);
        assert_ok(xseg_pool_restore(env.pool, checkpoint, NULL, NULL));
        assert_int_not_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
        xseg_checkpoint_destroy(checkpoint);
        env_free(env.allocator, env.kept);
    }
}

/* --- Pause. --- */

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

            env_expect_error(xseg_pool_pause(env.pool, keeps[k], file), XSEG_ERR_BUSY, address);
            env_expect_error(xseg_pool_pause(env.pool, keeps[k], file), XSEG_ERR_BUSY,
                             "contains a block of the default pool");
        }
        env_free(env.allocator, fallback);
        assert_ok(xseg_pool_pause(env.pool, XSEG_KEEP_NOTHING, NULL));
        assert_ok(xseg_pool_resume(env.pool));
        env_free(env.allocator, env.kept);
        close_env(&env);
    }
}

/* --- Statistics and reports. --- */

static struct xseg_statistics pool_stats(const struct env *env)
{
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = env->pool};
    struct xseg_statistics stats = {sizeof(stats)};

    assert_ok(xseg_stats_get(env->allocator, &where, &stats));
    return stats;
}

/* A pool has this many blocks, of which none or one is a fallback block. */
static void expect_stats(const struct env *env, unsigned live, unsigned active)
{
    const unsigned group = env->bytes > MIB ? XSEG_STAT_LARGE : XSEG_STAT_SMALL;
    const struct xseg_statistics stats = pool_stats(env);

    assert_int_equal(stats.allocation[group].current, live);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, live * env->bytes);
    assert_int_equal(stats.requested_bytes[group].current, active * env->bytes);
    assert_int_equal(stats.active[group].current, active);
    assert_int_equal(stats.active_bytes[group].current, active * env->bytes);
    assert_int_equal(stats.reserved_bytes[group].current,
                     env->bytes > MIB ? 2 * env->bytes : 2 * MIB);
    assert_int_equal(stats.allocation[group].allocated - stats.allocation[group].freed, live);
    /* The fallback block never counts as allocated from the pool. */
    assert_int_equal(stats.allocation[group].allocated, 2);
}

TEST(fallback_block_counts_as_reserved_in_the_pool_and_allocated_outside)
{
    FOR_ALL_SIZES(env)
    {
        const xseg_stream stream = env_stream();
        const struct xseg_statistics before = env_stats(env.allocator);

        expect_stats(&env, 2, 2);
        void *fallback = alloc_fallback(&env);
        expect_stats(&env, 1, 1);
        /* A device has all of it. */
        const struct xseg_statistics stats = env_stats(env.allocator);
        assert_memory_equal(&stats.reserved_bytes, &before.reserved_bytes,
                            sizeof(stats.reserved_bytes));
        assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 2 * env.bytes);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 3);
        assert_ok(xseg_record_stream(env.allocator, fallback, stream));
        env_launch(env.allocator, stream, fallback);
        env_free(env.allocator, fallback);
        expect_stats(&env, 1, 1);
        assert_int_equal(env_stats(env.allocator).active[XSEG_STAT_ALL].current, 2);
        assert_ok(xseg_sim_finish(stream));
        env_empty_cache(env.allocator);
        assert_int_equal(env_stats(env.allocator).active[XSEG_STAT_ALL].current, 1);
        expect_stats(&env, 1, 1);
        env_free(env.allocator, env.kept);
        expect_stats(&env, 0, 0);
        env_stream_destroy(stream);
    }
}

TEST(oversize_counts_belong_to_the_default_pool)
{
    struct env env = open_env(sizes[0], "expandable_segments:False,max_split_size_mb:20");

    assert_int_equal(pool_stats(&env).oversize_allocations.current, 2);
    void *fallback = alloc_fallback(&env);
    assert_int_equal(pool_stats(&env).oversize_allocations.current, 1);
    assert_int_equal(env_stats(env.allocator).oversize_allocations.current, 2);
    env_free(env.allocator, fallback);
    assert_int_equal(pool_stats(&env).oversize_allocations.current, 1);
    assert_int_equal(env_stats(env.allocator).oversize_allocations.current, 1);
    env_free(env.allocator, env.kept);
    close_env(&env);
}

TEST(fallback_block_reports_its_pool)
{
    FOR_ALL_SIZES(env)
    {
        void *fallback = alloc_fallback(&env);
        struct xseg_block_info info = env_block(env.allocator, fallback);

        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, env.pool);
        assert_int_equal(info.requested, env.bytes);
        info = env_block(env.allocator, env.kept);
        assert_ptr_equal(info.pool, env.pool);
        assert_null(info.fallback_pool);
        env_free(env.allocator, fallback);
        info = env_block(env.allocator, fallback);
        assert_ptr_equal(info.pool, env.pool);
        assert_null(info.fallback_pool);
        /* The next one there is the pool's own. */
        fallback = env_alloc_in(env.allocator, env.pool, env.bytes, NULL);
        assert_null(env_block(env.allocator, fallback).fallback_pool);
        env_free(env.allocator, fallback, env.kept);
    }
}

struct notified {
    const void *fallback;
    const struct xseg_pool *pool; /* that lent it */
    unsigned blocks, reasons;
};

static bool see_block(void *context, const struct xseg_block_info *info)
{
    struct notified *notified = context;

    if (info->base == notified->fallback) {
        assert_null(info->pool);
        assert_ptr_equal(info->fallback_pool, notified->pool);
        notified->blocks++;
    }
    return true;
}

static bool see_reason(void *context, const struct xseg_reason *reason)
{
    struct notified *notified = context;

    if (reason->block == notified->fallback) {
        assert_null(reason->pool);
        assert_ptr_equal(reason->fallback_pool, notified->pool);
        notified->reasons++;
    } else {
        assert_ptr_equal(reason->pool, notified->pool);
        assert_null(reason->fallback_pool);
    }
    return true;
}

TEST(explain_includes_fallback_blocks)
{
    FOR_ALL_SIZES(env)
    {
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_explain_result sums = {sizeof(sums)};

        void *fallback = alloc_fallback(&env);
        struct notified notified = {.fallback = fallback, .pool = env.pool};
        /* The lent one is the largest of the small ones' page. */
        if (env.bytes < MIB) {
            env_free(env.allocator, env.kept);
            env.kept = env_alloc_in(env.allocator, env.pool, 512, NULL);
        }
        where.pool = env.pool;
        assert_ok(xseg_for_each_block(env.allocator, &where, see_block, &notified));
        assert_int_equal(notified.blocks, 1);
        assert_ok(xseg_explain(env.allocator, &where, see_reason, &notified, &sums));
        assert_int_equal(notified.reasons, 1);
        assert_int_equal(sums.reserved, pool_stats(&env).reserved_bytes[0].current);
        env_free(env.allocator, fallback, env.kept);
    }
}

static void count_by_pool(void *context, const struct xseg_trace_entry *entry)
{
    unsigned(*count)[2] = context;

    if (entry->action <= XSEG_TRACE_FREE_COMPLETED)
        count[entry->action][entry->pool != NULL]++;
}

TEST(history_records_the_pool_of_a_fallback_block)
{
    FOR_ALL_SIZES(env)
    {
        const xseg_stream stream = env_stream();
        struct xseg_observer observer = {sizeof(observer)};
        unsigned count[3][2] = {{0}};
        uint64_t id = 0;

        observer.context = count;
        observer.on_trace = count_by_pool;
        assert_ok(xseg_observer_add(env.allocator, &observer, &id));
        void *fallback = alloc_fallback(&env);
        env_free(env.allocator, fallback);
        fallback = env_alloc(env.allocator, env.bytes, NULL);
        assert_ok(xseg_record_stream(env.allocator, fallback, stream));
        env_free(env.allocator, fallback);
        env_empty_cache(env.allocator);
        env_free(env.allocator, env.kept);
        const unsigned wanted[3][2] = {{2, 0}, {2, 2}, {2, 2}};
        assert_memory_equal(count, wanted, sizeof(count));
        assert_ok(xseg_observer_remove(env.allocator, id));
        env_stream_destroy(stream);
    }
}

/* --- Its life. --- */

TEST(fallback_block_outlives_its_pool)
{
    for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {
        struct env env = open_env(sizes[i / COUNT_OF(configs)], configs[i % COUNT_OF(configs)]);
        void *fallback = alloc_fallback(&env);

        env_free(env.allocator, env.kept);
        assert_ok(xseg_pool_release(env.pool));
        env_empty_cache(env.allocator);
        const struct xseg_block_info info = env_block(env.allocator, fallback);
        assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, env.pool);
        env_free(env.allocator, fallback);
        env_empty_cache(env.allocator);
        assert_int_equal(env_stats(env.allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
        env_close(env.allocator);
    }
}

/* The freed block coalesces with its neighbors. */
TEST(freed_fallback_block_returns_to_its_pool)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct env env = open_env(sizes[i], configs[0]);
        void *fallback = alloc_fallback(&env);

        env_free(env.allocator, env.kept, fallback);
        assert_int_equal(env_block(env.allocator, fallback).base, env.kept);
        fallback =
            env_alloc_in(env.allocator, env.pool, env.bytes > MIB ? 2 * env.bytes : MIB, NULL);
        assert_ptr_equal(fallback, env.kept);
        env_free(env.allocator, fallback);
        close_env(&env);
    }
}

/* A graph may write to cached memory of its pool at any time. */
TEST(captured_pool_is_no_fallback)
{
    FOR_ALL_SIZES(env)
    {
        const xseg_stream stream = env_stream();
        struct xseg_request request = {sizeof(request)};
        void *ptr = NULL;

        /* An existing fallback block remains. */
        void *fallback = alloc_fallback(&env);
        env_capture_begin(env.pool, stream);
        env_capture_end(env.pool, stream);
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_ALLOCATED);
        env_free(env.allocator, fallback);
        request.bytes = env.bytes;
        env_expect_error(xseg_alloc_with(env.allocator, &request, &ptr), XSEG_ERR_NO_MEMORY,
                         "out of memory on device 0");
        env_free(env.allocator, env.kept);
        env_stream_destroy(stream);
    }
}

TEST(fallback_block_is_deferred_in_a_capture)
{
    FOR_ALL_SIZES(env)
    {
        const xseg_stream stream = env_stream(), other = env_stream();
        struct xseg_pool *graphs = env_pool(env.allocator);

        void *fallback = alloc_fallback(&env);
        env_capture_begin(graphs, stream);
        assert_ok(xseg_record_stream(env.allocator, fallback, other));
        env_free(env.allocator, fallback);
        const struct xseg_block_info info = env_block(env.allocator, fallback);
        assert_int_equal(info.state, XSEG_BLOCK_PENDING_FREE);
        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, env.pool);
        expect_stats(&env, 1, 1);
        env_capture_end(graphs, stream);
        env_empty_cache(env.allocator);
        assert_int_equal(env_block(env.allocator, fallback).state, XSEG_BLOCK_CACHED);
        expect_stats(&env, 1, 1);
        env_free(env.allocator, env.kept);
        assert_ok(xseg_pool_release(graphs));
        env_stream_destroy(stream, other);
    }
}

/* Age, double free report and debug pattern. */
TEST(debug_features_cover_fallback_blocks)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct env env = open_env(sizes[i], "history:all,debug_fill:True");
        struct xseg_request request = {sizeof(request)};
        void *fallback = alloc_fallback(&env);

        assert_int_not_equal(env_block(env.allocator, fallback).age_ms, UINT64_MAX);
        env_free(env.allocator, fallback);
        env_expect_error(xseg_free(env.allocator, fallback), XSEG_ERR_NOT_ALLOCATED, "freed");
        request.bytes = env.bytes;
        request.zeroed = true;
        assert_ok(xseg_alloc_with(env.allocator, &request, &fallback));
        assert_ptr_equal(env_block(env.allocator, fallback).fallback_pool, env.pool);
        assert_int_equal(env_stats(env.allocator).overwrites, 0);
        env_free(env.allocator, fallback, env.kept);
        close_env(&env);
    }
}

TEST(fallback_block_can_be_pinned)
{
    struct env env = open_env(sizes[0], configs[0]);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    void *fallback = alloc_fallback(&env);

    assert_ok(xseg_pin(env.allocator, fallback, env.bytes));
    env_free(env.allocator, fallback);
    where.pool = env.pool;
    assert_ok(xseg_trim(env.allocator, &where, NULL, &done));
    assert_int_equal(done.kept_pinned, env.bytes);
    assert_ok(xseg_unpin(env.allocator, fallback, env.bytes));
    env_free(env.allocator, env.kept);
    close_env(&env);
}

TEST(fallback_block_is_not_exported)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    struct xseg_allocator *allocator = env_open_mib(40, NULL);
    options.use_on_oom = options.exportable = true;
    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    void *inside = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    env_free(allocator, inside);
    void *fallback = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(fallback, inside);
    env_expect_error(export_and_close_handles(allocator, fallback), XSEG_ERR_UNSUPPORTED,
                     "memory is not exportable");
    env_free(allocator, fallback);
    inside = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    assert_ok(export_and_close_handles(allocator, inside));
    assert_ok(xseg_export_close(allocator, inside));
    env_free(allocator, inside);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* Its cached memory is released instead, or stays where a page or a segment is in use. */
TEST(released_pool_is_no_fallback)
{
    for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {
        struct env env = open_env(sizes[i / COUNT_OF(configs)], configs[i % COUNT_OF(configs)]);
        void *ptr = NULL;

        assert_ok(xseg_pool_release(env.pool));
        env_free(env.allocator, env.inside);
        const xseg_status status = xseg_alloc(env.allocator, 0, env.bytes, NULL, &ptr);
        if (env.bytes > MIB) {
            assert_ok(status);
            assert_null(env_block(env.allocator, ptr).fallback_pool);
            env_free(env.allocator, ptr);
        } else {
            env_expect_error(status, XSEG_ERR_NO_MEMORY, "out of memory on device 0");
        }
        env_free(env.allocator, env.kept);
        env_close(env.allocator);
    }
}
