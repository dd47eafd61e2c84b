/* SPDX-License-Identifier: MIT */
/* A block that a pool has lent is the default pool's: what that means for everything else. */
#include <stdio.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* A machine whose memory is all in a pool that lends: the blocks `kept` and `lent` to be. */
struct lender {
    size_t bytes; /* of each */
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    void *kept, *inside;
};

/* Sizes of both kinds: 20 MiB has a record, 512 KiB is a cell. */
static const size_t sizes[] = {20 * MIB, 512 * KIB};
static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

static struct lender open_lender(size_t bytes, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_pool_options options = {sizeof(options), .use_on_oom = true};
    struct lender lender = {.bytes = bytes};

    settings.memory_bytes = bytes > MIB ? 2 * bytes : 2 * MIB;
    lender.allocator = env_open_on(&settings, config);
    assert_ok(xseg_pool_create(lender.allocator, 0, &options, &lender.pool));
    lender.kept = env_alloc_in(lender.allocator, lender.pool, bytes, NULL);
    lender.inside = env_alloc_in(lender.allocator, lender.pool, bytes, NULL);
    return lender;
}

/* The second block is freed, and its memory lent. */
static void *lend(struct lender *lender)
{
    env_free(lender->allocator, lender->inside);
    void *lent = env_alloc(lender->allocator, lender->bytes, NULL);
    assert_ptr_equal(lent, lender->inside);
    return lent;
}

static void close_lender(struct lender *lender)
{
    assert_ok(xseg_pool_release(lender->pool));
    env_close(lender->allocator);
}

#define FOR_ALL_LENDERS(lender)                                                               \
    for (unsigned i_ = 0; i_ < COUNT_OF(sizes) * COUNT_OF(configs); i_++)                     \
        for (struct lender lender =                                                           \
                 open_lender(sizes[i_ / COUNT_OF(configs)], configs[i_ % COUNT_OF(configs)]); \
             (lender).allocator != NULL; close_lender(&(lender)), (lender).allocator = NULL)

/* --- Checkpoint and restore. --- */

struct moves {
    const void *lent;
    unsigned freed, revived;
};

static void note_move(void *context, void *ptr, bool freed)
{
    struct moves *moves = context;

    assert_ptr_not_equal(ptr, moves->lent);
    moves->freed += freed;
    moves->revived += !freed;
}

TEST(restore_keeps_a_fallback_block)
{
    FOR_ALL_LENDERS(lender)
    {
        struct xseg_checkpoint *checkpoint = NULL;
        bool exactly = false;

        env_free(lender.allocator, lender.inside);
        assert_ok(xseg_pool_checkpoint(lender.pool, &checkpoint));
        void *lent = env_alloc(lender.allocator, lender.bytes, NULL);
        struct moves moves = {.lent = lent};
        env_free(lender.allocator, lender.kept);
        assert_ok(xseg_pool_restore(lender.pool, checkpoint, note_move, &moves));
        assert_int_equal(moves.freed, 0);
        assert_int_equal(moves.revived, 1);
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_ALLOCATED);
        assert_ok(xseg_pool_check_live(lender.pool, &lender.kept, 1, &exactly));
        assert_true(exactly);
        xseg_checkpoint_destroy(checkpoint);
        env_free(lender.allocator, lent, lender.kept);
    }
}

TEST(restore_over_a_fallback_block_is_rejected)
{
    FOR_ALL_LENDERS(lender)
    {
        struct xseg_checkpoint *checkpoint = NULL;

        assert_ok(xseg_pool_checkpoint(lender.pool, &checkpoint));
        void *lent = lend(&lender);
        env_expect_error(xseg_pool_restore(lender.pool, checkpoint, NULL, NULL), XSEG_ERR_BUSY,
                         "contains a block of the default pool");
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_ALLOCATED);
        assert_int_equal(env_block(lender.allocator, lender.kept).state, XSEG_BLOCK_ALLOCATED);
        env_free(lender.allocator, lent);
        assert_ok(xseg_pool_restore(lender.pool, checkpoint, NULL, NULL));
        assert_int_equal(env_block(lender.allocator, lender.inside).state, XSEG_BLOCK_ALLOCATED);
        xseg_checkpoint_destroy(checkpoint);
        env_free(lender.allocator, lender.inside, lender.kept);
    }
}

/* A lent block that was freed while a stream uses it waits in the same place, and no restore of its
 * lender takes it. */
TEST(pending_fallback_block_is_kept)
{
    FOR_ALL_LENDERS(lender)
    {
        const xseg_stream stream = env_stream();
        struct xseg_checkpoint *before = NULL, *after = NULL;

        assert_ok(xseg_pool_checkpoint(lender.pool, &before));
        void *lent = lend(&lender);
        assert_ok(xseg_record_stream(lender.allocator, lent, stream));
        assert_ok(xseg_pool_checkpoint(lender.pool, &after));
        assert_ok(xseg_pool_restore(lender.pool, after, NULL, NULL));
        env_launch(lender.allocator, stream, lent);
        env_free(lender.allocator, lent);
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_PENDING_FREE);
        assert_ok(xseg_pool_restore(lender.pool, after, NULL, NULL));
        env_expect_error(xseg_pool_restore(lender.pool, before, NULL, NULL), XSEG_ERR_BUSY,
                         "contains a block of the default pool");
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_PENDING_FREE);
        assert_ok(xseg_sim_finish(stream));
        assert_ok(xseg_pool_restore(lender.pool, before, NULL, NULL));
        xseg_checkpoint_destroy(before);
        xseg_checkpoint_destroy(after);
        env_free(lender.allocator, lender.inside, lender.kept);
        env_empty_cache(lender.allocator);
        env_stream_destroy(stream);
    }
}

TEST(fallback_block_does_not_belong_to_the_pool)
{
    FOR_ALL_LENDERS(lender)
    {
        struct xseg_checkpoint *checkpoint = NULL;
        bool exactly = true;
        void *lent = lend(&lender);
        void *both[] = {lender.kept, lent};

        assert_ok(xseg_pool_check_live(lender.pool, both, 2, &exactly));
        assert_false(exactly);
        assert_ok(xseg_pool_check_live(lender.pool, both, 1, &exactly));
        assert_true(exactly);
        /* A checkpoint without it can be restored once its memory is somebody else's. */
        assert_ok(xseg_pool_checkpoint(lender.pool, &checkpoint));
        env_free(lender.allocator, lent);
        assert_ok(xseg_pool_restore(lender.pool, checkpoint, NULL, NULL));
        assert_int_not_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_ALLOCATED);
        xseg_checkpoint_destroy(checkpoint);
        env_free(lender.allocator, lender.kept);
    }
}

/* --- Pause. --- */

TEST(pool_with_a_fallback_block_is_not_paused)
{
    static const enum xseg_keep keeps[] = {XSEG_KEEP_NOTHING, XSEG_KEEP_HOST, XSEG_KEEP_FILE};

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct lender lender = open_lender(sizes[i], configs[0]);
        void *lent = lend(&lender);
        char address[32];

        assert_true(snprintf(address, sizeof(address), "%p", lent) > 0);
        for (unsigned k = 0; k < COUNT_OF(keeps); k++) {
            const char *file = keeps[k] == XSEG_KEEP_FILE ? "/nowhere/at/all" : NULL;

            env_expect_error(xseg_pool_pause(lender.pool, keeps[k], file), XSEG_ERR_BUSY, address);
            env_expect_error(xseg_pool_pause(lender.pool, keeps[k], file), XSEG_ERR_BUSY,
                             "contains a block of the default pool");
        }
        env_free(lender.allocator, lent);
        assert_ok(xseg_pool_pause(lender.pool, XSEG_KEEP_NOTHING, NULL));
        assert_ok(xseg_pool_resume(lender.pool));
        env_free(lender.allocator, lender.kept);
        close_lender(&lender);
    }
}

/* --- What is told. --- */

static struct xseg_statistics pool_stats(const struct lender *lender)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    where.pool = lender->pool;
    assert_ok(xseg_stats_get(lender->allocator, &where, &stats));
    return stats;
}

/* What a pool has: so many of its own blocks, of which it has lent none or one. */
static void expect_stats(const struct lender *lender, unsigned live, unsigned active)
{
    const unsigned group = lender->bytes > MIB ? XSEG_STAT_LARGE : XSEG_STAT_SMALL;
    const struct xseg_statistics stats = pool_stats(lender);

    assert_int_equal(stats.allocation[group].current, live);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, live * lender->bytes);
    assert_int_equal(stats.requested_bytes[group].current, active * lender->bytes);
    assert_int_equal(stats.active[group].current, active);
    assert_int_equal(stats.active_bytes[group].current, active * lender->bytes);
    assert_int_equal(stats.reserved_bytes[group].current,
                     lender->bytes > MIB ? 2 * lender->bytes : 2 * MIB);
    assert_int_equal(stats.allocation[group].allocated - stats.allocation[group].freed, live);
    /* What it lent was never allocated from it. */
    assert_int_equal(stats.allocation[group].allocated, 2);
}

TEST(fallback_block_counts_as_reserved_in_the_pool_and_allocated_outside)
{
    FOR_ALL_LENDERS(lender)
    {
        const xseg_stream stream = env_stream();
        const struct xseg_statistics before = env_stats(lender.allocator);

        expect_stats(&lender, 2, 2);
        void *lent = lend(&lender);
        expect_stats(&lender, 1, 1);
        /* A device has all of it. */
        const struct xseg_statistics stats = env_stats(lender.allocator);
        assert_memory_equal(&stats.reserved_bytes, &before.reserved_bytes,
                            sizeof(stats.reserved_bytes));
        assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 2 * lender.bytes);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 3);
        assert_ok(xseg_record_stream(lender.allocator, lent, stream));
        env_launch(lender.allocator, stream, lent);
        env_free(lender.allocator, lent);
        expect_stats(&lender, 1, 1);
        assert_int_equal(env_stats(lender.allocator).active[XSEG_STAT_ALL].current, 2);
        assert_ok(xseg_sim_finish(stream));
        env_empty_cache(lender.allocator);
        assert_int_equal(env_stats(lender.allocator).active[XSEG_STAT_ALL].current, 1);
        expect_stats(&lender, 1, 1);
        env_free(lender.allocator, lender.kept);
        expect_stats(&lender, 0, 0);
        env_stream_destroy(stream);
    }
}

/* Oversize blocks are counted apart, and so they are when they are lent. */
TEST(oversize_counts_belong_to_the_default_pool)
{
    struct lender lender = open_lender(sizes[0], "expandable_segments:False,max_split_size_mb:20");

    assert_int_equal(pool_stats(&lender).oversize_allocations.current, 2);
    void *lent = lend(&lender);
    assert_int_equal(pool_stats(&lender).oversize_allocations.current, 1);
    assert_int_equal(env_stats(lender.allocator).oversize_allocations.current, 2);
    env_free(lender.allocator, lent);
    assert_int_equal(pool_stats(&lender).oversize_allocations.current, 1);
    assert_int_equal(env_stats(lender.allocator).oversize_allocations.current, 1);
    env_free(lender.allocator, lender.kept);
    close_lender(&lender);
}

TEST(fallback_block_reports_its_pool)
{
    FOR_ALL_LENDERS(lender)
    {
        void *lent = lend(&lender);
        struct xseg_block_info info = env_block(lender.allocator, lent);

        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, lender.pool);
        assert_int_equal(info.requested, lender.bytes);
        info = env_block(lender.allocator, lender.kept);
        assert_ptr_equal(info.pool, lender.pool);
        assert_null(info.fallback_pool);
        env_free(lender.allocator, lent);
        info = env_block(lender.allocator, lent);
        assert_ptr_equal(info.pool, lender.pool);
        assert_null(info.fallback_pool);
        /* The next one there is the pool's own. */
        lent = env_alloc_in(lender.allocator, lender.pool, lender.bytes, NULL);
        assert_null(env_block(lender.allocator, lent).fallback_pool);
        env_free(lender.allocator, lent, lender.kept);
    }
}

struct told {
    const void *lent;
    const struct xseg_pool *pool; /* that lent it */
    unsigned blocks, reasons;
};

static bool see_block(void *context, const struct xseg_block_info *info)
{
    struct told *told = context;

    if (info->base == told->lent) {
        assert_null(info->pool);
        assert_ptr_equal(info->fallback_pool, told->pool);
        told->blocks++;
    }
    return true;
}

static bool see_reason(void *context, const struct xseg_reason *reason)
{
    struct told *told = context;

    if (reason->block == told->lent) {
        assert_null(reason->pool);
        assert_ptr_equal(reason->fallback_pool, told->pool);
        told->reasons++;
    } else {
        assert_ptr_equal(reason->pool, told->pool);
        assert_null(reason->fallback_pool);
    }
    return true;
}

/* To ask about a pool is to ask about its memory: what is reserved adds up, lent or not. */
TEST(explain_includes_fallback_blocks)
{
    FOR_ALL_LENDERS(lender)
    {
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_explain_result sums = {sizeof(sums)};

        void *lent = lend(&lender);
        struct told told = {.lent = lent, .pool = lender.pool};
        /* The lent one is the largest of the small ones' page. */
        if (lender.bytes < MIB) {
            env_free(lender.allocator, lender.kept);
            lender.kept = env_alloc_in(lender.allocator, lender.pool, 512, NULL);
        }
        where.pool = lender.pool;
        assert_ok(xseg_for_each_block(lender.allocator, &where, see_block, &told));
        assert_int_equal(told.blocks, 1);
        assert_ok(xseg_explain(lender.allocator, &where, see_reason, &told, &sums));
        assert_int_equal(told.reasons, 1);
        assert_int_equal(sums.reserved, pool_stats(&lender).reserved_bytes[0].current);
        env_free(lender.allocator, lent, lender.kept);
    }
}

static void count_by_pool(void *context, const struct xseg_trace_entry *entry)
{
    unsigned(*count)[2] = context;

    if (entry->action <= XSEG_TRACE_FREE_COMPLETED)
        count[entry->action][entry->pool != NULL]++;
}

/* An observer that adds up by pool what is handed out and freed comes to what the pools hold. */
TEST(history_records_the_pool_of_a_fallback_block)
{
    FOR_ALL_LENDERS(lender)
    {
        const xseg_stream stream = env_stream();
        struct xseg_observer observer = {sizeof(observer)};
        unsigned count[3][2] = {{0}};
        uint64_t id = 0;

        observer.context = count;
        observer.on_trace = count_by_pool;
        assert_ok(xseg_observer_add(lender.allocator, &observer, &id));
        void *lent = lend(&lender);
        env_free(lender.allocator, lent);
        lent = env_alloc(lender.allocator, lender.bytes, NULL);
        assert_ok(xseg_record_stream(lender.allocator, lent, stream));
        env_free(lender.allocator, lent);
        env_empty_cache(lender.allocator);
        env_free(lender.allocator, lender.kept);
        const unsigned wanted[3][2] = {{2, 0}, {2, 2}, {2, 2}};
        assert_memory_equal(count, wanted, sizeof(count));
        assert_ok(xseg_observer_remove(lender.allocator, id));
        env_stream_destroy(stream);
    }
}

/* --- Its life. --- */

/* A block whose lender nobody holds any more goes on, and says where it lies. */
TEST(fallback_block_outlives_its_pool)
{
    for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {
        struct lender lender =
            open_lender(sizes[i / COUNT_OF(configs)], configs[i % COUNT_OF(configs)]);
        void *lent = lend(&lender);

        env_free(lender.allocator, lender.kept);
        assert_ok(xseg_pool_release(lender.pool));
        env_empty_cache(lender.allocator);
        const struct xseg_block_info info = env_block(lender.allocator, lent);
        assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, lender.pool);
        env_free(lender.allocator, lent);
        env_empty_cache(lender.allocator);
        assert_int_equal(env_stats(lender.allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
        env_close(lender.allocator);
    }
}

/* What is freed goes back into the lender's cache, whole: it merges with what lies beside it. */
TEST(freed_fallback_block_returns_to_its_pool)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct lender lender = open_lender(sizes[i], configs[0]);
        void *lent = lend(&lender);

        env_free(lender.allocator, lender.kept, lent);
        assert_int_equal(env_block(lender.allocator, lent).base, lender.kept);
        lent = env_alloc_in(lender.allocator, lender.pool,
                            lender.bytes > MIB ? 2 * lender.bytes : MIB, NULL);
        assert_ptr_equal(lent, lender.kept);
        env_free(lender.allocator, lent);
        close_lender(&lender);
    }
}

/* A graph may write to what is cached in its pool whenever it runs. */
TEST(captured_pool_is_no_fallback)
{
    FOR_ALL_LENDERS(lender)
    {
        const xseg_stream stream = env_stream();
        struct xseg_request request = {sizeof(request)};
        void *ptr = NULL;

        /* What is lent already stays. */
        void *lent = lend(&lender);
        env_capture_begin(lender.pool, stream);
        env_capture_end(lender.pool, stream);
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_ALLOCATED);
        env_free(lender.allocator, lent);
        request.bytes = lender.bytes;
        env_expect_error(xseg_alloc_with(lender.allocator, &request, &ptr), XSEG_ERR_NO_MEMORY,
                         "out of memory on device 0");
        env_free(lender.allocator, lender.kept);
        env_stream_destroy(stream);
    }
}

/* Freed in somebody's capture, it is deferred like any block of the default pool. */
TEST(fallback_block_is_deferred_in_a_capture)
{
    FOR_ALL_LENDERS(lender)
    {
        const xseg_stream stream = env_stream(), other = env_stream();
        struct xseg_pool *graphs = env_pool(lender.allocator);

        void *lent = lend(&lender);
        env_capture_begin(graphs, stream);
        assert_ok(xseg_record_stream(lender.allocator, lent, other));
        env_free(lender.allocator, lent);
        const struct xseg_block_info info = env_block(lender.allocator, lent);
        assert_int_equal(info.state, XSEG_BLOCK_PENDING_FREE);
        assert_null(info.pool);
        assert_ptr_equal(info.fallback_pool, lender.pool);
        expect_stats(&lender, 1, 1);
        env_capture_end(graphs, stream);
        env_empty_cache(lender.allocator);
        assert_int_equal(env_block(lender.allocator, lent).state, XSEG_BLOCK_CACHED);
        expect_stats(&lender, 1, 1);
        env_free(lender.allocator, lender.kept);
        assert_ok(xseg_pool_release(graphs));
        env_stream_destroy(stream, other);
    }
}

/* What is known of other blocks is known of it: its age, who freed it, that it was cleared. */
TEST(debug_features_cover_fallback_blocks)
{
    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        struct lender lender = open_lender(sizes[i], "history:all,debug_fill:True");
        struct xseg_request request = {sizeof(request)};
        void *lent = lend(&lender);

        assert_int_not_equal(env_block(lender.allocator, lent).age_ms, UINT64_MAX);
        env_free(lender.allocator, lent);
        env_expect_error(xseg_free(lender.allocator, lent), XSEG_ERR_NOT_ALLOCATED, "freed");
        request.bytes = lender.bytes;
        request.zeroed = true;
        assert_ok(xseg_alloc_with(lender.allocator, &request, &lent));
        assert_ptr_equal(env_block(lender.allocator, lent).fallback_pool, lender.pool);
        assert_int_equal(env_stats(lender.allocator).overwrites, 0);
        env_free(lender.allocator, lent, lender.kept);
        close_lender(&lender);
    }
}

/* A pin holds the pages beneath it, then as ever. */
TEST(fallback_block_can_be_pinned)
{
    struct lender lender = open_lender(sizes[0], configs[0]);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    void *lent = lend(&lender);

    assert_ok(xseg_pin(lender.allocator, lent, lender.bytes));
    env_free(lender.allocator, lent);
    where.pool = lender.pool;
    assert_ok(xseg_trim(lender.allocator, &where, NULL, &done));
    assert_int_equal(done.kept_pinned, lender.bytes);
    assert_ok(xseg_unpin(lender.allocator, lent, lender.bytes));
    env_free(lender.allocator, lender.kept);
    close_lender(&lender);
}

/* Only blocks of exportable pools can be exported, and this is none. */
TEST(fallback_block_is_not_exported)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 40 * MIB};
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    options.use_on_oom = options.exportable = true;
    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    void *inside = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    env_free(allocator, inside);
    void *lent = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(lent, inside);
    env_expect_error(export_and_close_handles(allocator, lent), XSEG_ERR_UNSUPPORTED,
                     "memory is not exportable");
    env_free(allocator, lent);
    inside = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    assert_ok(export_and_close_handles(allocator, inside));
    assert_ok(xseg_export_close(allocator, inside));
    env_free(allocator, inside);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* What it has cached goes back instead, or stays where a page or a segment of it is in use. */
TEST(released_pool_is_no_fallback)
{
    for (unsigned i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {
        struct lender lender =
            open_lender(sizes[i / COUNT_OF(configs)], configs[i % COUNT_OF(configs)]);
        void *ptr = NULL;

        assert_ok(xseg_pool_release(lender.pool));
        env_free(lender.allocator, lender.inside);
        const xseg_status status = xseg_alloc(lender.allocator, 0, lender.bytes, NULL, &ptr);
        if (lender.bytes > MIB) {
            assert_ok(status);
            assert_null(env_block(lender.allocator, ptr).fallback_pool);
            env_free(lender.allocator, ptr);
        } else {
            env_expect_error(status, XSEG_ERR_NO_MEMORY, "out of memory on device 0");
        }
        env_free(lender.allocator, lender.kept);
        env_close(lender.allocator);
    }
}
