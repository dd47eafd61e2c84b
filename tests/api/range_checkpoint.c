/* SPDX-License-Identifier: MIT */
/* Checkpoints of pools with ranges: recommits, decommits and errors of a restore. */
#include <string.h>

#include "tests/support/ranges.h"
#include "xseg/range.h"

#define GRANULES           64u
#define SECOND             UINT64_C(1000000000) /* in nanoseconds */
#define ADDRESS_RANGES_MAX 64u

/* Entry points of the driver, by their plain C types. */
int cuMemAddressReserve(unsigned long long *address, size_t bytes, size_t alignment,
                        unsigned long long hint, unsigned long long flags);
int cuMemAddressFree(unsigned long long address, size_t bytes);

/* A pool with a range, a checkpoint of it, and a second stream. */
static struct {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    struct xseg_range *range;
    struct xseg_checkpoint *checkpoint;
    xseg_stream stream;
} env;

static struct xseg_range *reserve(struct xseg_pool *pool)
{
    const struct xseg_range_options options = {sizeof(options), .pool = pool};
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(env.allocator, 0, GRANULES * PAGE, &options, &range));
    return range;
}

static void open_env(bool real_bytes, const char *config)
{
    memset(&env, 0, sizeof(env));
    env.allocator = env_open_sim(config, .memory_bytes = GIB, .real_bytes = real_bytes);
    env_context_push(0);
    env.pool = env_pool(env.allocator);
    env.range = reserve(env.pool);
    env.stream = env_stream();
}

static int open_real(void **state)
{
    (void)state;
    open_env(true, NULL);
    return 0;
}

/* Close the allocator, without committed granules. */
static int close_env(void **state)
{
    (void)state;
    xseg_checkpoint_destroy(env.checkpoint);
    xseg_sim_finish_all();
    if (env.range != NULL)
        release(env.range);
    assert_ok(xseg_pool_release(env.pool));
    env_context_pop(0);
    env_close(env.allocator, env.stream);
    return 0;
}

static void hold(struct xseg_range *range, unsigned first, unsigned count)
{
    assert_ok(xseg_range_hold(range, first * PAGE, count * PAGE));
}

static void unhold(struct xseg_range *range, unsigned first, unsigned count)
{
    assert_ok(xseg_range_unhold(range, first * PAGE, count * PAGE, NULL));
}

static uint32_t *word_at(struct xseg_range *range, unsigned granule)
{
    return (uint32_t *)(void *)((char *)info(range).base + granule * PAGE);
}

/* Launch a kernel on a granule; it runs for a second of the simulated clock. */
static void launch(unsigned granule, xseg_stream stream)
{
    assert_ok(xseg_sim_launch_on(stream, SECOND, (uintptr_t)word_at(env.range, granule), PAGE));
}

static void checkpoint(void)
{
    xseg_checkpoint_destroy(env.checkpoint);
    assert_ok(xseg_pool_checkpoint(env.pool, &env.checkpoint));
}

static void restore(void)
{
    assert_ok(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL));
}

/* The bytes of the blocks of the pool by state, and a hash of their addresses and states. */
struct block_summary {
    const struct xseg_pool *pool;
    uint64_t bytes[XSEG_BLOCK_UNMAPPED + 1], hash;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct block_summary *summary = context;

    if (block->pool == summary->pool) {
        summary->bytes[block->state] += block->bytes;
        summary->hash = summary->hash * 31 + (uintptr_t)block->base + block->state;
    }
    return true;
}

static struct block_summary summarize_blocks(void)
{
    struct block_summary summary = {.pool = env.pool};

    assert_ok(xseg_for_each_block(env.allocator, NULL, add_block, &summary));
    return summary;
}

/* Expect that a restore fails and changes nothing. */
static void expect_rejected(const char *words)
{
    const struct block_summary before = summarize_blocks();
    const struct xseg_statistics stats_before = env_stats(env.allocator);

    assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), BUSY, words);
    const struct block_summary after = summarize_blocks();
    const struct xseg_statistics stats_after = env_stats(env.allocator);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_memory_equal(stats_before.allocated_bytes, stats_after.allocated_bytes,
                        sizeof(stats_after.allocated_bytes));
    assert_memory_equal(stats_before.active_bytes, stats_after.active_bytes,
                        sizeof(stats_after.active_bytes));
    assert_memory_equal(stats_before.reserved_bytes, stats_after.reserved_bytes,
                        sizeof(stats_after.reserved_bytes));
}

TEST_WITH(restore_recovers_held_granules, open_real, close_env)
{
    struct xseg_range *range = env.range;

    commit(range, 2, 4, NULL);
    *word_at(range, 3) = 7;
    *word_at(range, 5) = 9;
    hold(range, 2, 4);
    checkpoint();
    const struct xseg_statistics before = env_stats(env.allocator);
    decommit(range, 3, 1, NULL);
    decommit(range, 5, 1, env.stream);
    assert_int_equal(info(range).committed_bytes, 2 * PAGE);
    const uint64_t calls = xseg_sim_calls(NULL), recommits = info(range).recommits;
    restore();
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 0);
    assert_int_equal(info(range).recommits, recommits + 2);
    assert_int_equal(*word_at(range, 3), 7);
    assert_int_equal(*word_at(range, 5), 9);
    const struct xseg_statistics after = env_stats(env.allocator);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].current,
                     before.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(after.allocated_bytes[XSEG_STAT_ALL].peak,
                     before.allocated_bytes[XSEG_STAT_ALL].peak);
    assert_int_equal(after.active_bytes[XSEG_STAT_ALL].current,
                     before.active_bytes[XSEG_STAT_ALL].current);
    /* A second restore of the unchanged state; the granules can be decommitted. */
    restore();
    unhold(range, 2, 4);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    decommit(range, 2, 4, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
}

TEST_WITH(granules_pending_unmap_are_not_reused, open_real, close_env)
{
    struct xseg_range *range = env.range;

    commit(range, 0, 4, NULL);
    launch(1, NULL);
    launch(2, NULL);
    decommit(range, 1, 2, NULL);
    checkpoint();
    commit(range, 1, 1, NULL);
    commit(range, 8, 2, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 2 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 4 * PAGE);
    assert_int_equal(summarize_blocks().bytes[XSEG_BLOCK_ALLOCATED], 2 * PAGE);
    xseg_sim_advance(2 * SECOND);
    decommit(range, 0, 1, NULL);
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* A restore recommits granules that are pending unmap: on the default stream while its work runs, on another stream only after
 * its work has completed. */
TEST_WITH(restore_needs_a_completed_stream, open_real, close_env)
{
    struct xseg_range *range = env.range;
    void *block = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);

    commit(range, 0, 4, env.stream);
    *word_at(range, 2) = 5;
    checkpoint();
    launch(0, NULL);
    decommit(range, 0, 1, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);

    launch(2, env.stream);
    decommit(range, 2, 2, env.stream);
    commit(range, 6, 1, NULL);
    env_free(env.allocator, block);
    expect_rejected("synchronize the stream before the restore");

    /* The restore does not wait for a stream. */
    const uint64_t waits = xseg_sim_calls("cuStreamWaitEvent");
    xseg_sim_advance(3 * SECOND);
    restore();
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), waits);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_int_equal(*word_at(range, 2), 5);
    assert_int_equal(env_block(env.allocator, block).state, XSEG_BLOCK_ALLOCATED);
    env_free(env.allocator, block);
    decommit(range, 0, 4, NULL);
}

static void count_moved(void *context, void *ptr, bool freed)
{
    (void)ptr;
    ++((unsigned *)context)[freed];
}

/* A restore covers the blocks and all ranges of the pool.  Ranges that were reserved since the checkpoint have no committed
 * granules afterwards. */
TEST_WITH(restore_covers_blocks_and_ranges, open_real, close_env)
{
    struct xseg_range *range = env.range, *second_range = reserve(env.pool), *later_range = NULL;
    struct xseg_range *range_of_another_pool = reserve(NULL);
    void *block = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);
    unsigned moved[2] = {0, 0};
    bool is_exact = false;

    hold(range, 0, GRANULES);
    commit(range, 0, 2, NULL);
    commit(range, 10, 3, NULL);
    commit(second_range, 5, 5, NULL);
    commit(range_of_another_pool, 0, 2, NULL);
    checkpoint();
    const struct xseg_statistics stats_before = env_stats(env.allocator);
    const struct block_summary blocks_before = summarize_blocks();
    later_range = reserve(env.pool);
    commit(later_range, 0, 3, NULL);
    commit(later_range, GRANULES - 1, 1, env.stream);
    commit(range, 2, 8, NULL);
    decommit(range, 0, 1, NULL);
    decommit(range, 11, 2, NULL);
    commit(range, GRANULES - 2, 2, NULL);
    commit(second_range, 0, 5, NULL);
    commit(second_range, 10, 1, NULL);
    decommit(range_of_another_pool, 0, 1, NULL);
    (void)env_alloc_in(env.allocator, env.pool, 5 * MIB, NULL);
    env_free(env.allocator, block);
    assert_ok(xseg_pool_restore(env.pool, env.checkpoint, count_moved, moved));
    assert_int_equal(moved[true], 1);
    assert_int_equal(moved[false], 1);
    assert_ok(xseg_pool_check_live(env.pool, &block, 1, &is_exact));
    assert_true(is_exact);
    assert_int_equal(info(later_range).committed_bytes, 0);
    assert_int_equal(info(later_range).mapped_bytes, 0);
    assert_int_equal(info(range_of_another_pool).committed_bytes, PAGE);
    assert_int_equal(info(second_range).mapped_bytes, 5 * PAGE);
    assert_int_equal(info(range).committed_bytes, 5 * PAGE);
    /* The held granules 2 to 9 and the last two granules keep their memory, which becomes pending unmap. */
    assert_int_equal(info(range).pending_unmap_bytes, 10 * PAGE);
    const struct xseg_statistics stats_after = env_stats(env.allocator);
    assert_int_equal(stats_after.allocated_bytes[XSEG_STAT_ALL].current,
                     stats_before.allocated_bytes[XSEG_STAT_ALL].current - PAGE);
    assert_int_equal(stats_after.allocation[XSEG_STAT_ALL].current,
                     stats_before.allocation[XSEG_STAT_ALL].current);
    assert_int_equal(summarize_blocks().bytes[XSEG_BLOCK_ALLOCATED],
                     blocks_before.bytes[XSEG_BLOCK_ALLOCATED]);
    unhold(range, 0, GRANULES);
    decommit(range, 0, 2, NULL);
    decommit(range, 10, 3, NULL);
    decommit(second_range, 5, 5, NULL);
    decommit(range_of_another_pool, 1, 1, NULL);
    env_free(env.allocator, block);
    release(second_range);
    release(later_range);
    release(range_of_another_pool);
}

TEST_WITH(restore_recovers_the_statistics, open_real, close_env)
{
    struct xseg_range *range = env.range;

    hold(range, 1, 1);
    commit(range, 0, 3, NULL);
    checkpoint();
    const struct xseg_statistics before = env_stats(env.allocator);
    decommit(range, 1, 1, NULL);
    commit(range, 3, 9, env.stream);
    env_stream_wait(NULL, env.stream);
    restore();
    const struct xseg_statistics after = env_stats(env.allocator);
    for (unsigned group = 0; group < COUNT_OF(after.reserved_bytes); group++) {
        assert_int_equal(after.reserved_bytes[group].current, before.reserved_bytes[group].current);
        assert_int_equal(after.allocated_bytes[group].current,
                         before.allocated_bytes[group].current);
        assert_int_equal(after.active_bytes[group].current, before.active_bytes[group].current);
    }
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    unhold(range, 1, 1);
    decommit(range, 0, 3, NULL);
}

/* The checkpoint of a paused pool can be restored after the resume. */
TEST_WITH(a_paused_pool_is_not_restored, open_real, close_env)
{
    struct xseg_range *range = env.range;

    commit(range, 0, 2, NULL);
    assert_ok(xseg_pool_pause(env.pool, XSEG_KEEP_HOST, NULL));
    checkpoint();
    assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), PAUSED, "paused");
    assert_ok(xseg_pool_resume(env.pool));
    commit(range, 2, 2, NULL);
    restore();
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    decommit(range, 0, 2, NULL);
}

TEST_WITH(released_memory_is_not_restored, open_real, close_env)
{
    struct xseg_range *range = env.range;
    void *block = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);

    commit(range, 0, 4, NULL);
    checkpoint();
    env_free(env.allocator, block);
    decommit(range, 3, 1, NULL);
    commit(range, 8, 1, NULL);
    expect_rejected("memory of the checkpoint has been released");
    /* Another page in the granule is sufficient. */
    commit(range, 3, 1, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    env_free(env.allocator, block);
    decommit(range, 0, 4, NULL);
}

/* Reservations of all free addresses of the driver.  Then a new range reuses addresses that xseg has freed. */
struct free_addresses {
    unsigned long long address[ADDRESS_RANGES_MAX];
    size_t bytes[ADDRESS_RANGES_MAX];
    unsigned count;
};

static void reserve_addresses(struct free_addresses *addresses)
{
    addresses->count = 0;
    for (size_t bytes = (size_t)1 << 46; bytes >= GIB; bytes /= 2)
        while (cuMemAddressReserve(&addresses->address[addresses->count], bytes, GIB, 0, 0) == 0) {
            addresses->bytes[addresses->count++] = bytes;
            assert_true(addresses->count < ADDRESS_RANGES_MAX);
        }
}

static void free_addresses(const struct free_addresses *addresses)
{
    for (unsigned i = 0; i < addresses->count; i++)
        assert_int_equal(cuMemAddressFree(addresses->address[i], addresses->bytes[i]), 0);
}

/* A new range at the addresses of a released range is not restored. */
TEST(released_range_is_not_restored)
{
    open_env(false, NULL);
    const void *base = info(env.range).base;
    struct free_addresses addresses;

    reserve_addresses(&addresses);
    checkpoint();
    commit(env.range, 0, 2, NULL);
    struct xseg_checkpoint *empty = env.checkpoint;
    env.checkpoint = NULL;
    checkpoint();
    decommit(env.range, 0, 2, NULL);
    release(env.range);
    expect_rejected("released");
    env.range = reserve(env.pool);
    assert_ptr_equal(info(env.range).base, base);
    commit(env.range, 0, 2, NULL);
    expect_rejected("released");
    /* The first checkpoint has no granule of the released range, so it can be restored. */
    assert_ok(xseg_pool_restore(env.pool, empty, NULL, NULL));
    assert_int_equal(info(env.range).mapped_bytes, 0);
    xseg_checkpoint_destroy(empty);
    free_addresses(&addresses);
    (void)close_env(NULL);
}

/* A range at the addresses of a released segment does not replace the memory of its blocks. */
TEST(range_does_not_replace_a_released_block)
{
    open_env(false, "expandable_segments:False");
    struct free_addresses addresses;

    release(env.range);
    char *block = env_alloc_in(env.allocator, env.pool, 30 * MIB, NULL);
    checkpoint();
    reserve_addresses(&addresses);
    env_free(env.allocator, block);
    (void)env_trim_pool(env.allocator, env.pool);
    env.range = reserve(env.pool);
    assert_ptr_equal(info(env.range).base, block);
    commit(env.range, 0, GRANULES, NULL);
    expect_rejected("memory of the checkpoint has been released");
    decommit(env.range, 0, GRANULES, NULL);
    free_addresses(&addresses);
    (void)close_env(NULL);
}

/* A granule that was decommitted cannot be recommitted while its page is aliased.  A committed granule can have an aliased
 * page. */
TEST_WITH(restore_keeps_aliased_pages, open_real, close_env)
{
    struct xseg_range *range = env.range;

    commit(range, 0, 2, NULL);
    checkpoint();
    hold(range, 0, 1);
    alias(range, 8, range, 0);
    alias(range, 9, range, 1);
    decommit(range, 0, 1, NULL);
    expect_rejected("page is aliased");
    decommit(range, 8, 1, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 2 * PAGE);
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    assert_int_equal(info(range).physical_bytes, 2 * PAGE);
    unhold(range, 0, 1);
    decommit(range, 0, 2, NULL);
}

/* A restore decommits all mappings of a page that was committed since the checkpoint, also those in other ranges. */
TEST_WITH(all_mappings_of_a_page_are_decommitted, open_real, close_env)
{
    struct xseg_range *range = env.range, *second_range = reserve(env.pool);

    commit(range, 0, 1, NULL);
    checkpoint();
    commit(range, 4, 1, NULL);
    alias(range, 8, range, 4);
    alias(second_range, 8, range, 4);
    launch(8, NULL);
    restore();
    assert_int_equal(info(second_range).pending_unmap_bytes, PAGE);
    assert_int_equal(env_stats(env.allocator).active_bytes[XSEG_STAT_ALL].current, 2 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 0, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
    release(second_range);
}

/* Expect in a notification that a commit in progress blocks a checkpoint and a restore, and count the notifications. */
static void expect_blocked_during_commit(void *context, const struct xseg_mapping *mapping)
{
    struct xseg_checkpoint *checkpoint = NULL;

    if (mapping->pool != env.pool)
        return;
    assert_error(xseg_pool_checkpoint(env.pool, &checkpoint), BUSY, "another call");
    assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), BUSY, "another call");
    ++*(unsigned *)context;
}

TEST_WITH(granule_of_an_active_commit_blocks_a_restore, open_real, close_env)
{
    unsigned notifications = 0;

    checkpoint();
    const uint64_t id = env_observe(env.allocator, .context = &notifications,
                                    .on_map = expect_blocked_during_commit);
    commit(env.range, 3, 1, NULL);
    assert_int_equal(notifications, 1);
    assert_ok(xseg_observer_remove(env.allocator, id));
    decommit(env.range, 3, 1, NULL);
}

/* An event cannot be recorded for the first or the third run of decommitted granules. */
TEST_WITH(failed_restore_changes_no_range, open_real, close_env)
{
    struct xseg_range *range = env.range;
    void *block = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);

    hold(range, 0, 1);
    commit(range, 0, 2, NULL);
    checkpoint();
    decommit(range, 0, 1, NULL);
    commit(range, 4, 1, NULL);
    commit(range, 6, 1, NULL);
    commit(range, 8, 1, NULL);
    env_free(env.allocator, block);
    for (unsigned nth = 1; nth <= 3; nth += 2) {
        const struct block_summary before = summarize_blocks();

        assert_ok(xseg_sim_fail("cuEventRecord", nth, 999));
        assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), DRIVER, "999");
        const struct block_summary after = summarize_blocks();
        assert_memory_equal(&before, &after, sizeof(before));
    }
    restore();
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    env_free(env.allocator, block);
    unhold(range, 0, 1);
    decommit(range, 0, 2, NULL);
}
