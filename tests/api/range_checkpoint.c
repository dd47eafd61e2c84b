/* SPDX-License-Identifier: MIT */
/* Checkpoints of pools with ranges: recommits, decommits and errors of a restore. */
#include <string.h>

#include "tests/support/ranges.h"
#include "xseg/range.h"

#define PAGES  64u
#define SECOND UINT64_C(1000000000)
#define PIECES 64u

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

    assert_ok(xseg_range_reserve(env.allocator, 0, PAGES * PAGE, &options, &range));
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

static uint32_t *word_of(struct xseg_range *range, unsigned at)
{
    return (uint32_t *)(void *)((char *)info(range).base + at * PAGE);
}

/* Work on a granule that lasts for a second of the simulated clock. */
static void work(unsigned at, xseg_stream stream)
{
    assert_ok(xseg_sim_launch_on(stream, SECOND, (uintptr_t)word_of(env.range, at), PAGE));
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

/* The blocks of the pool, in bytes of each state and as a hash. */
struct seen {
    const struct xseg_pool *pool;
    uint64_t bytes[XSEG_BLOCK_UNMAPPED + 1], bases;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct seen *seen = context;

    if (block->pool == seen->pool) {
        seen->bytes[block->state] += block->bytes;
        seen->bases = seen->bases * 31 + (uintptr_t)block->base + block->state;
    }
    return true;
}

static struct seen list_blocks(void)
{
    struct seen seen = {.pool = env.pool};

    assert_ok(xseg_for_each_block(env.allocator, NULL, add_block, &seen));
    return seen;
}

/* Expect that a restore fails and changes nothing. */
static void expect_rejected(const char *word)
{
    const struct seen before = list_blocks();
    const struct xseg_statistics stats = env_stats(env.allocator);

    assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), BUSY, word);
    const struct seen after = list_blocks();
    const struct xseg_statistics now = env_stats(env.allocator);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_memory_equal(stats.allocated_bytes, now.allocated_bytes, sizeof(now.allocated_bytes));
    assert_memory_equal(stats.active_bytes, now.active_bytes, sizeof(now.active_bytes));
    assert_memory_equal(stats.reserved_bytes, now.reserved_bytes, sizeof(now.reserved_bytes));
}

TEST_WITH(restore_recovers_held_granules, open_real, close_env)
{
    struct xseg_range *range = env.range;

    commit(range, 2, 4, NULL);
    *word_of(range, 3) = 7;
    *word_of(range, 5) = 9;
    hold(range, 2, 4);
    checkpoint();
    const struct xseg_statistics then = env_stats(env.allocator);
    decommit(range, 3, 1, NULL);
    decommit(range, 5, 1, env.stream);
    assert_int_equal(info(range).committed_bytes, 2 * PAGE);
    const uint64_t calls = xseg_sim_calls(NULL), recommits = info(range).recommits;
    restore();
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 0);
    assert_int_equal(info(range).recommits, recommits + 2);
    assert_int_equal(*word_of(range, 3), 7);
    assert_int_equal(*word_of(range, 5), 9);
    const struct xseg_statistics now = env_stats(env.allocator);
    assert_int_equal(now.allocated_bytes[0].current, then.allocated_bytes[0].current);
    assert_int_equal(now.allocated_bytes[0].peak, then.allocated_bytes[0].peak);
    assert_int_equal(now.active_bytes[0].current, then.active_bytes[0].current);
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
    work(1, NULL);
    work(2, NULL);
    decommit(range, 1, 2, NULL);
    checkpoint();
    commit(range, 1, 1, NULL);
    commit(range, 8, 2, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 2 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 4 * PAGE);
    assert_int_equal(list_blocks().bytes[XSEG_BLOCK_ALLOCATED], 2 * PAGE);
    xseg_sim_advance(2 * SECOND);
    decommit(range, 0, 1, NULL);
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* Memory pending unmap is restored while the default stream works, but only after another stream has completed. */
TEST_WITH(restore_needs_a_completed_stream, open_real, close_env)
{
    struct xseg_range *range = env.range;
    void *block = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);

    commit(range, 0, 4, env.stream);
    *word_of(range, 2) = 5;
    checkpoint();
    work(0, NULL);
    decommit(range, 0, 1, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    work(2, env.stream);
    decommit(range, 2, 2, env.stream);
    commit(range, 6, 1, NULL);
    env_free(env.allocator, block);
    expect_rejected("synchronize the stream before the restore");
    const uint64_t waits = xseg_sim_calls("cuStreamWaitEvent");
    xseg_sim_advance(3 * SECOND);
    restore();
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), waits);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_int_equal(*word_of(range, 2), 5);
    assert_int_equal(env_block(env.allocator, block).state, XSEG_BLOCK_ALLOCATED);
    env_free(env.allocator, block);
    decommit(range, 0, 4, NULL);
}

static void record_block(void *context, void *ptr, bool freed)
{
    (void)ptr;
    ++((unsigned *)context)[freed];
}

/* A restore recovers blocks and ranges of a pool; later ranges have no committed granules. */
TEST_WITH(restore_covers_blocks_and_ranges, open_real, close_env)
{
    struct xseg_range *early = env.range, *twin = reserve(env.pool), *late = NULL;
    struct xseg_range *other = reserve(NULL);
    void *live = env_alloc_in(env.allocator, env.pool, 3 * MIB, NULL);
    unsigned moved[2] = {0, 0};
    bool exactly = false;

    hold(early, 0, PAGES);
    commit(early, 0, 2, NULL);
    commit(early, 10, 3, NULL);
    commit(twin, 5, 5, NULL);
    commit(other, 0, 2, NULL);
    checkpoint();
    const struct xseg_statistics then = env_stats(env.allocator);
    const struct seen before = list_blocks();
    late = reserve(env.pool);
    commit(late, 0, 3, NULL);
    commit(late, PAGES - 1, 1, env.stream);
    commit(early, 2, 8, NULL);
    decommit(early, 0, 1, NULL);
    decommit(early, 11, 2, NULL);
    commit(early, PAGES - 2, 2, NULL);
    commit(twin, 0, 5, NULL);
    commit(twin, 10, 1, NULL);
    decommit(other, 0, 1, NULL);
    void *added = env_alloc_in(env.allocator, env.pool, 5 * MIB, NULL);
    env_free(env.allocator, live);
    assert_ok(xseg_pool_restore(env.pool, env.checkpoint, record_block, moved));
    assert_int_equal(moved[true], 1);
    assert_int_equal(moved[false], 1);
    assert_ok(xseg_pool_check_live(env.pool, &live, 1, &exactly));
    assert_true(exactly);
    (void)added;
    assert_int_equal(info(late).committed_bytes, 0);
    assert_int_equal(info(late).mapped_bytes, 0);
    assert_int_equal(info(other).committed_bytes, PAGE);
    assert_int_equal(info(twin).mapped_bytes, 5 * PAGE);
    assert_int_equal(info(early).committed_bytes, 5 * PAGE);
    /* Held granules keep their memory, which becomes pending unmap. */
    assert_int_equal(info(early).pending_unmap_bytes, 10 * PAGE);
    const struct xseg_statistics now = env_stats(env.allocator);
    assert_int_equal(now.allocated_bytes[0].current, then.allocated_bytes[0].current - PAGE);
    assert_int_equal(now.allocation[0].current, then.allocation[0].current);
    assert_int_equal(list_blocks().bytes[XSEG_BLOCK_ALLOCATED], before.bytes[XSEG_BLOCK_ALLOCATED]);
    unhold(early, 0, PAGES);
    decommit(early, 0, 2, NULL);
    decommit(early, 10, 3, NULL);
    decommit(twin, 5, 5, NULL);
    decommit(other, 1, 1, NULL);
    env_free(env.allocator, live);
    release(twin);
    release(late);
    release(other);
}

TEST_WITH(restore_recovers_the_statistics, open_real, close_env)
{
    struct xseg_range *range = env.range;

    hold(range, 1, 1);
    commit(range, 0, 3, NULL);
    checkpoint();
    const struct xseg_statistics then = env_stats(env.allocator);
    decommit(range, 1, 1, NULL);
    commit(range, 3, 9, env.stream);
    env_stream_wait(NULL, env.stream);
    restore();
    const struct xseg_statistics now = env_stats(env.allocator);
    for (unsigned group = 0; group < COUNT_OF(now.reserved_bytes); group++) {
        assert_int_equal(now.reserved_bytes[group].current, then.reserved_bytes[group].current);
        assert_int_equal(now.allocated_bytes[group].current, then.allocated_bytes[group].current);
        assert_int_equal(now.active_bytes[group].current, then.active_bytes[group].current);
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
    /* Other memory at the granule is sufficient. */
    commit(range, 3, 1, NULL);
    restore();
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    env_free(env.allocator, block);
    decommit(range, 0, 4, NULL);
}

/* All free addresses of the driver.  While they are reserved, a new range reuses addresses that xseg has freed. */
struct free_addresses {
    unsigned long long address[PIECES];
    size_t bytes[PIECES];
    unsigned count;
};

static void reserve_addresses(struct free_addresses *addresses)
{
    addresses->count = 0;
    for (size_t bytes = (size_t)1 << 46; bytes >= GIB; bytes /= 2)
        while (cuMemAddressReserve(&addresses->address[addresses->count], bytes, GIB, 0, 0) == 0) {
            addresses->bytes[addresses->count++] = bytes;
            assert_true(addresses->count < PIECES);
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
    commit(env.range, 0, PAGES, NULL);
    expect_rejected("memory of the checkpoint has been released");
    decommit(env.range, 0, PAGES, NULL);
    free_addresses(&addresses);
    (void)close_env(NULL);
}

/* A decommitted page with an alias cannot be restored; a committed page with an alias can. */
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

/* A restore may decommit all mappings of a page. */
TEST_WITH(all_mappings_of_a_page_are_decommitted, open_real, close_env)
{
    struct xseg_range *range = env.range, *other = reserve(env.pool);

    commit(range, 0, 1, NULL);
    checkpoint();
    commit(range, 4, 1, NULL);
    alias(range, 8, range, 4);
    alias(other, 8, range, 4);
    work(8, NULL);
    restore();
    assert_int_equal(info(other).pending_unmap_bytes, PAGE);
    assert_int_equal(env_stats(env.allocator).active_bytes[0].current, 2 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 0, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
    release(other);
}

/* An observer that makes calls during a commit and counts them. */
static void call_during_commit(void *context, const struct xseg_mapping *mapping)
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
    unsigned rejected = 0;

    checkpoint();
    const uint64_t id =
        env_observe(env.allocator, .context = &rejected, .on_map = call_during_commit);
    commit(env.range, 3, 1, NULL);
    assert_int_equal(rejected, 1);
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
        const struct seen before = list_blocks();

        assert_ok(xseg_sim_fail("cuEventRecord", nth, 999));
        assert_error(xseg_pool_restore(env.pool, env.checkpoint, NULL, NULL), DRIVER, "999");
        const struct seen after = list_blocks();
        assert_memory_equal(&before, &after, sizeof(before));
    }
    restore();
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    env_free(env.allocator, block);
    unhold(range, 0, 1);
    decommit(range, 0, 2, NULL);
}
