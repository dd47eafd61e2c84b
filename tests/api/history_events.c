/* SPDX-License-Identifier: MIT */
/* Which events there are of what happens to blocks and segments, and what they say. */
#include "tests/support/history_list.h"
#include "tests/support/trim_due.h"

#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static struct xseg_allocator *open_on(size_t mib, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = mib * MIB};

    return env_open_with_clock(&settings, config);
}

static uint64_t monotonic_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- A block. --- */

static void expect_block(const struct xseg_history_entry *entry,
                         const struct xseg_block_info *block, uint64_t began, uint64_t ended)
{
    assert_ptr_equal(entry->base, block->base);
    assert_int_equal(entry->bytes, block->bytes);
    assert_int_equal(entry->requested, block->requested);
    assert_ptr_equal(entry->stream, block->stream);
    assert_int_equal(entry->device, 0);
    assert_int_equal(entry->pool, 0);
    assert_false(entry->is_fallback);
    assert_int_equal(entry->thread, gettid());
    assert_int_equal(entry->stack, 0);
    assert_int_equal(entry->frames, 0);
    assert_null(entry->label);
    assert_int_equal(entry->order, 0);
    assert_in_range(entry->time_ns, began, ended);
}

/* Sizes: a cell, one that ends a chunk map, a large block, one that is longer than the request. */
TEST(events_say_what_the_block_was)
{
    static const size_t sizes[] = {1, 1000, MIB, MIB + 1, 30 * MIB, 31 * MIB - 100};
    static const char *const configs[] = {"history:all,expandable_segments:True",
                                          "history:all,expandable_segments:False"};

    for (size_t i = 0; i < COUNT_OF(sizes) * COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i / COUNT_OF(sizes)]);
        const xseg_stream stream = env_stream();
        /* The second of a kind is a hit. */
        for (unsigned round = 0; round < 2; round++) {
            const uint64_t began = monotonic_ns() - 20 * MS;
            void *ptr = env_alloc(allocator, sizes[i % COUNT_OF(sizes)], stream);
            const struct xseg_block_info block = env_block(allocator, ptr);
            env_free(allocator, ptr);
            const uint64_t ended = monotonic_ns() + 20 * MS;
            struct history_list recorded = history_read(allocator, 0);
            assert_int_equal(recorded.count, round == 0 ? 4 : 3);
            for (enum xseg_history_action action = XSEG_HISTORY_ALLOC;
                 action <= XSEG_HISTORY_FREE_COMPLETED; action++) {
                const struct xseg_history_entry entry = history_only(&recorded, action);

                expect_block(&entry, &block, began, ended);
            }
            free(recorded.entry);
            assert_ok(xseg_history_clear(allocator, 0));
        }
        env_close(allocator, stream);
    }
}

TEST(segments_come_and_go)
{
    struct xseg_allocator *allocator = env_open("history:all,expandable_segments:True");

    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    struct history_list recorded = history_read(allocator, 0);
    const struct xseg_history_entry map = history_only(&recorded, XSEG_HISTORY_SEGMENT_MAP);
    assert_ptr_equal(map.base, ptr);
    assert_int_equal(map.bytes, 40 * MIB);
    assert_int_equal(map.requested, 40 * MIB);
    assert_int_not_equal(map.order, 0);
    free(recorded.entry);
    history_expect(allocator, "map alloc");
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    recorded = history_read(allocator, 0);
    const struct xseg_history_entry trim = history_only(&recorded, XSEG_HISTORY_TRIM);
    const struct xseg_history_entry unmap = history_only(&recorded, XSEG_HISTORY_SEGMENT_UNMAP);
    assert_ptr_equal(trim.base, ptr);
    assert_ptr_equal(unmap.base, ptr);
    assert_int_equal(trim.bytes, 40 * MIB);
    assert_int_equal(unmap.bytes, 40 * MIB);
    assert_true(unmap.order > trim.order && trim.order > map.order);
    free(recorded.entry);
    history_expect(allocator, "free done trim unmap");
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    env_empty_cache(allocator);
    history_expect(allocator, "segment alloc free done trim end");
    env_close(allocator);
}

/* A freed block that another stream uses is pending, and completed when that has passed. */
TEST(a_pending_block_is_completed_later)
{
    struct xseg_allocator *allocator = env_open("history:all");
    const xseg_stream side = env_stream();
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, side));
    env_launch(allocator, side, ptr);
    env_free(allocator, ptr);
    history_expect(allocator, "map alloc free");
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    history_expect(allocator, "done alloc free done");
    env_close(allocator, side);
}

/* --- Memory that is short. --- */

TEST(a_steal_is_followed_by_what_it_takes)
{
    struct xseg_allocator *allocator = open_on(100, "history:all,expandable_segments:True");
    const xseg_stream side = env_stream();

    env_free(allocator, env_alloc(allocator, 80 * MIB, NULL));
    history_expect(allocator, "map alloc free done");
    void *ptr = env_alloc(allocator, 40 * MIB, side);
    struct history_list recorded = history_read(allocator, 0);
    const struct xseg_history_entry steal = history_only(&recorded, XSEG_HISTORY_REMAP);
    const struct xseg_history_entry unmap = history_only(&recorded, XSEG_HISTORY_SEGMENT_UNMAP);
    assert_null(steal.stream);
    assert_null(unmap.stream);
    assert_ptr_equal(steal.base, unmap.base);
    assert_int_equal(steal.bytes, unmap.bytes);
    assert_int_equal(unmap.bytes, 20 * MIB);
    free(recorded.entry);
    history_expect(allocator, "remap unmap map alloc");
    env_free(allocator, ptr);
    env_close(allocator, side);
}

TEST(a_refusal_says_what_was_asked_for)
{
    struct xseg_allocator *allocator = open_on(100, "history:all,history_stacks:all");
    const xseg_stream side = env_stream();
    void *ptr = NULL;

    assert_int_equal(xseg_alloc(allocator, 0, 120 * MIB + 1, side, &ptr), XSEG_ERR_NO_MEMORY);
    struct history_list recorded = history_read(allocator, 0);
    const struct xseg_history_entry oom = history_only(&recorded, XSEG_HISTORY_OOM);
    assert_null(oom.base);
    assert_int_equal(oom.bytes, 100 * MIB);
    assert_int_equal(oom.requested, 120 * MIB + 1);
    assert_ptr_equal(oom.stream, side);
    assert_int_not_equal(oom.stack, 0);
    free(recorded.entry);
    history_expect(allocator, "oom");
    env_close(allocator, side);
}

TEST(what_a_pool_lends_is_the_default_pools)
{
    struct xseg_allocator *allocator = open_on(40, "history:all");
    struct xseg_pool_options options = {sizeof(options), .use_on_oom = true};
    struct xseg_pool *other = env_pool(allocator), *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    struct history_list recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++) {
        assert_int_equal(recorded.entry[i].pool, 2);
        assert_false(recorded.entry[i].is_fallback);
    }
    free(recorded.entry);
    history_expect(allocator, "map alloc free done");
    void *large = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, large);
    recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++) {
        assert_int_equal(recorded.entry[i].pool, 2);
        assert_true(recorded.entry[i].is_fallback);
        assert_ptr_equal(recorded.entry[i].base, large);
    }
    free(recorded.entry);
    history_expect(allocator, "alloc free done");
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(other));
    env_close(allocator);
}

/* --- Memory that goes by itself, and pools. --- */

TEST(decay_is_followed_by_what_it_takes)
{
    struct xseg_allocator *allocator = open_on(1000, "history:all,idle_ms:100");

    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    history_expect(allocator, "map alloc free done");
    for (unsigned i = 0; i < 30; i++) {
        xseg_sim_advance(10 * MS);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    history_expect(allocator, "decay unmap");
    env_close(allocator);
}

TEST(a_paused_pool_has_no_memory)
{
    static const char *const configs[] = {"history:all,expandable_segments:True",
                                          "history:all,expandable_segments:False"};

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct xseg_pool *pool = env_pool(allocator);
        void *ptr = env_alloc_in(allocator, pool, 40 * MIB, NULL);
        const xseg_status status = xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL);

        history_expect(allocator, i == 0 ? "map alloc pause" : "segment alloc");
        assert_int_equal(status, i == 0 ? XSEG_OK : XSEG_ERR_UNSUPPORTED);
        if (status == XSEG_OK) {
            assert_ok(xseg_pool_resume(pool));
            struct history_list recorded = history_read(allocator, 0);
            const struct xseg_history_entry resume = history_only(&recorded, XSEG_HISTORY_RESUME);
            assert_ptr_equal(resume.base, ptr);
            assert_int_equal(resume.bytes, 40 * MIB);
            assert_int_equal(resume.pool, 1);
            free(recorded.entry);
            history_expect(allocator, "resume");
        }
        env_free(allocator, ptr);
        assert_ok(xseg_pool_release(pool));
        env_close(allocator);
    }
}

/* The memory of a pool that is gone goes back under its number. */
TEST(a_pool_keeps_its_number)
{
    static const char *const configs[] = {"history:all,expandable_segments:True",
                                          "history:all,expandable_segments:False"};

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct xseg_pool *first = env_pool(allocator), *second = env_pool(allocator);

        env_free(allocator, env_alloc_in(allocator, second, 40 * MIB, NULL));
        env_free(allocator, env_alloc_in(allocator, second, 1000, NULL));
        assert_ok(xseg_pool_release(second));
        /* Pools come and go, so that what is left of the second is looked at. */
        for (unsigned k = 0; k < 10; k++)
            assert_ok(xseg_pool_release(env_pool(allocator)));
        env_empty_cache(allocator);
        struct history_list recorded = history_read(allocator, 0);
        for (size_t k = 0; k < recorded.count; k++)
            assert_int_equal(recorded.entry[k].pool, 2);
        free(recorded.entry);
        history_expect(allocator,
                       i == 0
                           ? "map alloc free done map alloc free done trim unmap trim unmap"
                           : "segment alloc free done segment alloc free done trim end trim end");
        assert_ok(xseg_pool_release(first));
        env_close(allocator);
    }
}

TEST(a_restore_frees_and_revives)
{
    static const size_t sizes[] = {1000, 30 * MIB};

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct xseg_allocator *allocator = env_open("history:all");
        struct xseg_pool *pool = env_pool(allocator);
        struct xseg_checkpoint *checkpoint = NULL;
        void *kept = env_alloc_in(allocator, pool, sizes[i], NULL);

        assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
        history_expect(allocator, "map alloc");
        assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
        struct history_list recorded = history_read(allocator, 0);
        const struct xseg_history_entry again = history_only(&recorded, XSEG_HISTORY_ALLOC);
        assert_ptr_equal(again.base, kept);
        assert_int_equal(again.requested, sizes[i]);
        assert_int_equal(again.bytes, env_block(allocator, kept).bytes);
        free(recorded.entry);
        history_expect(allocator, "free done alloc");
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, kept);
        assert_ok(xseg_pool_release(pool));
        env_close(allocator);
    }
}

TEST(a_guarded_block_has_a_segment_of_its_own)
{
    struct xseg_allocator *allocator = env_open("history:all,guard_page:True");

    env_free(allocator, env_alloc(allocator, 1000, NULL));
    history_expect(allocator, "map alloc free done unmap");
    env_close(allocator);
}

/* Memory that is made ready is no block; a request that finds it is a hit. */
TEST(a_prewarm_maps)
{
    struct xseg_allocator *allocator = env_open("history:all");
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    assert_ok(xseg_prewarm(allocator, &where, 30 * MIB));
    history_expect(allocator, "map");
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    history_expect(allocator, "alloc free done");
    env_close(allocator);
}
