/* SPDX-License-Identifier: MIT */
/* Elastic ranges: commits and decommits, their costs, and their errors. */
#include <string.h>

#include "tests/support/exported_handles.h"
#include "tests/support/ranges.h"
#include "xseg/observer.h"
#include "xseg/range.h"
#include "xseg/share.h"

#define PAGES 64u

/* reserve_with(allocator, .limit_bytes = PAGE, ...): reserve a range of PAGES granules with these options. */
#define reserve_with(allocator, ...)   \
    reserve_by(allocator, PAGES *PAGE, \
               &(struct xseg_range_options){sizeof(struct xseg_range_options), __VA_ARGS__})

static struct xseg_range *reserve_by(struct xseg_allocator *allocator, uint64_t bytes,
                                     const struct xseg_range_options *options)
{
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, bytes, options, &range));
    return range;
}

static struct xseg_range *reserve(struct xseg_allocator *allocator)
{
    return reserve_by(allocator, PAGES * PAGE, NULL);
}

/* A test with an allocator and a range. */
#define TEST_OF_RANGE(name, open)                                                      \
    static void name##_of(struct xseg_allocator *allocator, struct xseg_range *range); \
    TEST_ON(name, open)                                                                \
    {                                                                                  \
        name##_of(allocator, reserve(allocator));                                      \
    }                                                                                  \
    static void name##_of(__attribute__((unused)) struct xseg_allocator *allocator,    \
                          __attribute__((unused)) struct xseg_range *range)

/* Work on granules that runs until a call waits for it or the test ends it. */
static void work(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    const struct xseg_range_info at = info(range);

    env_launch_at(stream, (char *)at.base + first * PAGE, count * PAGE);
}

TEST_OF_RANGE(commits_map_and_decommits_unmap, env_open(NULL))
{
    assert_int_equal(xseg_sim_used(0), 0);
    commit(range, 3, 5, NULL);
    commit(range, 10, 1, NULL);
    work(range, 3, 5, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.reserved_bytes[0].current, 6 * PAGE);
    assert_int_equal(stats.allocated_bytes[0].current, 6 * PAGE);
    assert_int_equal(stats.allocation[0].current, 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    assert_int_equal(info(range).physical_bytes, 6 * PAGE);

    decommit(range, 4, 2, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 2 * PAGE);
    assert_int_equal(env_stats(allocator).active_bytes[0].current, 6 * PAGE);
    assert_int_equal(env_stats(allocator).allocated_bytes[0].current, 4 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    discard(range, NULL, {6, 2}, {10, 1});
    assert_int_equal(xseg_sim_used(0), 0);
}

TEST_OF_RANGE(recommit_makes_no_driver_call, env_open(NULL))
{
    xseg_stream other = env_stream();

    commit(range, 0, 8, NULL);
    work(range, 0, 8, NULL);
    decommit(range, 0, 8, NULL);
    uint64_t before = xseg_sim_calls(NULL);
    commit(range, 2, 3, NULL);
    assert_int_equal(xseg_sim_calls(NULL), before);
    assert_int_equal(info(range).recommits, 3);
    /* Another stream waits on the device for the stream of the decommit. */
    before = xseg_sim_calls("cuStreamWaitEvent");
    commit(range, 5, 3, other);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), before + 1);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    xseg_sim_finish_all();
    work(range, 2, 6, other);
    discard(range, other, {2, 6});
}

TEST_OF_RANGE(runs_are_mapped_and_unmapped_in_one_call, env_open("page_cache_mb:1024"))
{
    uint64_t access = xseg_sim_calls("cuMemSetAccess");
    commit(range, 0, 16, NULL);
    assert_true(xseg_sim_calls("cuMemCreate") >= 16);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), access + 1);
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap"), creates = xseg_sim_calls("cuMemCreate"),
                   releases = xseg_sim_calls("cuMemRelease"), maps = xseg_sim_calls("cuMemMap");
    decommit(range, 0, 16, NULL);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), unmaps + 1);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), releases);
    access = xseg_sim_calls("cuMemSetAccess");
    commit(range, 20, 16, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(xseg_sim_calls("cuMemMap"), maps + 16);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess"), access + 1);
    discard(range, NULL, {20, 16});
}

#define TIB ((uint64_t)1 << 40)

TEST_ON(invalid_calls_change_nothing, env_open(NULL))
{
    struct xseg_range *range = NULL, *failed = NULL;

    assert_error(xseg_range_reserve(allocator, 0, MIB, NULL, &range), ARGUMENT, "1048576");
    struct xseg_range_options invalid = {sizeof(invalid), .page_bytes = 3 * MIB};
    assert_error(xseg_range_reserve(allocator, 0, 6 * MIB, &invalid, &range), ARGUMENT,
                 "page_bytes is not a multiple of the granularity of device 0, 3145728 bytes");
    /* The device has reserved addresses for segments; the error still reports the limit. */
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    assert_error(xseg_range_reserve(allocator, 0, UINT64_MAX - PAGE + 1, NULL, &range),
                 NO_ADDRESSES, "reserve at most 35184372088832 bytes (32 TiB)");
    assert_error(xseg_range_reserve(allocator, 0, 32 * TIB + PAGE, NULL, &range), NO_ADDRESSES,
                 "size exceeds the virtual addresses of a device, 35184374185984 bytes");
    range = reserve_by(allocator, 20 * TIB, NULL);
    assert_error(xseg_range_reserve(allocator, 0, 20 * TIB, NULL, &failed), NO_ADDRESSES,
                 "out of virtual addresses on device 0, 21990232555520 bytes requested");
    assert_ok(xseg_range_release(range));
    range = reserve(allocator);
    commit(range, 4, 4, NULL);
    const uint64_t before = xseg_sim_calls(NULL);
    assert_error(xseg_range_commit(range, 6 * PAGE, 4 * PAGE, NULL), ARGUMENT,
                 "granule is committed, offset 12582912");
    assert_error(xseg_range_commit(range, MIB, PAGE, NULL), ARGUMENT,
                 "not a multiple of the page size");
    assert_error(xseg_range_commit(range, 0, PAGE + 512, NULL), ARGUMENT,
                 "not a multiple of the page size");
    assert_error(xseg_range_commit(range, 60 * PAGE, 5 * PAGE, NULL), ARGUMENT, "the range has");
    assert_error(xseg_range_commit(range, UINT64_MAX - PAGE + 1, PAGE, NULL), ARGUMENT,
                 "the range has");
    assert_error(xseg_range_decommit(range, 3 * PAGE, 2 * PAGE, NULL), ARGUMENT, "not committed");
    assert_error(xseg_range_decommit(range, 6 * PAGE, 3 * PAGE, NULL), ARGUMENT,
                 "granule is not committed, offset 16777216");
    assert_error(xseg_range_unhold(range, 4 * PAGE, PAGE, NULL), ARGUMENT, "not held");
    assert_error(xseg_range_release(range), BUSY, "8388608 bytes");
    assert_error(xseg_close(allocator), BUSY, "blocks are allocated");
    assert_error(xseg_free(allocator, info(range).base), NOT_ALLOCATED, "range");
    assert_int_equal(xseg_sim_calls(NULL), before);
    assert_ok(xseg_range_commit(range, 0, 0, NULL));
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    decommit(range, 4, 4, NULL);
    assert_error(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL), ARGUMENT, "offset");
    release(range);
    assert_error(xseg_range_commit(range, 0, PAGE, NULL), ARGUMENT, "released");
    assert_error(xseg_range_release(range), ARGUMENT, "released");
    assert_error(xseg_range_release(failed), ARGUMENT, "NULL");
}

/* Committed memory counts towards the limits of device, pool and range, and is reclaimed from other memory. */
TEST_ON(committed_memory_counts_towards_limits,
        env_open_sim("hard_limit_mb:80", .memory_bytes = 64 * PAGE))
{
    struct xseg_range *range = reserve_with(allocator, .limit_bytes = 36 * PAGE);

    assert_int_equal(info(range).limit_bytes, 36 * PAGE);
    assert_error(xseg_range_commit(range, 0, 37 * PAGE, NULL), LIMIT, "of the range");
    commit(range, 0, 10, NULL);
    void *block = env_alloc(allocator, 20 * MIB, NULL);
    assert_error(xseg_range_commit(range, 10 * PAGE, 21 * PAGE, NULL), LIMIT, "hard_limit_mb");
    assert_int_equal(info(range).committed_bytes, 10 * PAGE);
    /* A cached block of another pool and another page size is reclaimed. */
    env_free(allocator, block);
    commit(range, 10, 26, NULL);
    assert_int_equal(xseg_sim_used(0), 36 * PAGE);
    assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, "72.00 MiB allocated");
    decommit(range, 0, 36, NULL);
    block = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, block);
    release(range);
}

/* Three mappings of a page are decommitted in one call, and a fourth one later: the page is charged until then. */
TEST_OF_RANGE(page_is_charged_until_its_last_mapping, env_open("page_cache_mb:1024"))
{
    xseg_stream stream = env_stream(), other = env_stream();

    commit(range, 2, 1, stream);
    alias(range, 1, range, 2);
    alias(range, 0, range, 2);
    alias(range, 5, range, 2);
    work(range, 0, 3, stream);
    work(range, 5, 1, other);
    decommit(range, 0, 3, stream);
    assert_int_equal(env_stats(allocator).allocated_bytes[0].current, PAGE);
    decommit(range, 5, 1, other);
    assert_int_equal(env_stats(allocator).allocated_bytes[0].current, 0);
    assert_int_equal(env_stats(allocator).active_bytes[0].current, PAGE);
    assert_ok(xseg_sim_finish(stream));
    commit(range, 20, 1, stream);
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    assert_int_equal(info(range).physical_bytes, 2 * PAGE);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    discard(range, stream, {20, 1});
}

/* A range at its own limit waits for its pending unmaps.  If the device is full as well, idle memory is reclaimed. */
TEST_ON(full_range_waits_for_its_pending_unmaps, env_open("hard_limit_mb:10"))
{
    struct xseg_range *other = reserve(allocator);
    struct xseg_range *range =
        reserve_with(allocator, .limit_bytes = 4 * PAGE, .pool = info(other).pool);
    xseg_stream stream = env_stream();

    commit(range, 0, 4, stream);
    /* Another range holds the page of a pending unmap, so this page cannot be reused. */
    assert_ok(xseg_range_alias(other, 0, PAGE, range, 0));
    assert_ok(xseg_range_hold(other, 0, PAGE));
    decommit(other, 0, 1, stream);
    env_free(allocator, env_alloc(allocator, MIB, stream));
    work(range, 0, 1, stream);
    decommit(range, 0, 1, stream);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    commit(range, 8, 1, stream);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    assert_ok(xseg_range_unhold(other, 0, PAGE, stream));
    release(other);
    discard(range, stream, {1, 3}, {8, 1});
}

/* A failed commit does not keep created pages beyond page_cache_mb. */
TEST_OF_RANGE(failed_commit_in_a_capture_keeps_no_pages, env_open(NULL))
{
    xseg_stream stream = env_stream(), other = env_stream();

    commit(range, 1, 1, stream);
    work(range, 1, 1, stream);
    decommit(range, 1, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    assert_error(xseg_range_commit(range, 0, 3 * PAGE, other), BUSY, "capture");
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_capture_unmark(allocator, 0));
    release(range);
}

static struct xseg_allocator *open_with_bytes(const char *config)
{
    return env_open_sim(config, .memory_bytes = GIB, .real_bytes = true);
}

/* A pause and a resume of the pool keep the contents of the range, including held granules. */
TEST_OF_RANGE(pause_includes_ranges, open_with_bytes(NULL))
{
    struct xseg_pool *pool = info(range).pool;
    uint32_t *word = info(range).base;

    commit(range, 0, 3, NULL);
    commit(range, 5, 1, NULL);
    word[5 * PAGE / 4] = 7;
    assert_ok(xseg_range_hold(range, 5 * PAGE, PAGE));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_error(xseg_range_commit(range, 9 * PAGE, PAGE, NULL), PAUSED, "paused");
    assert_error(xseg_range_decommit(range, 0, PAGE, NULL), PAUSED, "paused");
    assert_error(xseg_range_release(range), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(word[5 * PAGE / 4], 7);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    decommit(range, 0, 3, NULL);
    decommit(range, 5, 1, NULL);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_range_unhold(range, 5 * PAGE, PAGE, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
}

static bool enter(void *context, struct xseg_registered *run)
{
    (void)run;
    ++*(unsigned *)context;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)run;
    --*(unsigned *)context;
}

TEST(a_held_granule_keeps_the_allocator_open)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator);

    commit(range, 0, 3, NULL);
    assert_ok(xseg_range_hold(range, PAGE, 4 * PAGE));
    decommit(range, 0, 3, NULL);
    /* Granules 1 and 2 are held; granules 3 and 4 have no memory. */
    assert_error(xseg_close(allocator), BUSY,
                 "decommitted granules are held, 4194304 bytes on device 0; call "
                 "xseg_range_unhold() first");
    assert_ok(xseg_range_unhold(range, PAGE, 4 * PAGE, NULL));
    assert_ok(xseg_close(allocator));
}

/* Pinned and exported granules keep their page over a decommit until the release. */
TEST_ON(held_granules_stay_committed, env_open(NULL))
{
    struct xseg_range *range = reserve_with(allocator, .exportable = true);
    struct exported_handles exported;
    uint64_t id = 0;
    unsigned runs = 0;

    char *base = info(range).base;
    commit(range, 0, 4, NULL);
    assert_ok(xseg_pin(allocator, base + PAGE, 2 * PAGE));
    decommit(range, 0, 3, NULL);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_error(xseg_range_release(range), BUSY, "committed");
    assert_ok(xseg_unpin(allocator, base + PAGE, 2 * PAGE));
    assert_ok(export_handles(allocator, base + 3 * PAGE, XSEG_HANDLE_FD, &exported));
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_error(xseg_range_release(range), BUSY, "exported");
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, base + 3 * PAGE));
    struct xseg_registrar registrar = {sizeof(registrar), .context = &runs, .enter = enter,
                                       .leave = leave};
    commit(range, 0, 1, NULL);
    assert_ok(xseg_register(allocator, base, 4 * PAGE, &registrar, &id));
    commit(range, 2, 1, NULL);
    assert_int_equal(runs, 2);
    decommit(range, 0, 1, NULL);
    decommit(range, 2, 1, NULL);
    assert_int_equal(runs, 0);
    assert_error(xseg_range_release(range), BUSY, "registered");
    assert_ok(xseg_unregister(allocator, id));
    release(range);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* Unmapping waits for the streams of the decommit and of the unhold. */
TEST_OF_RANGE(decommit_waits_for_both_streams, env_open(NULL))
{
    xseg_stream stream = env_stream(), other = env_stream();

    commit(range, 0, 1, stream);
    assert_ok(xseg_range_hold(range, 0, PAGE));
    work(range, 0, 1, stream);
    decommit(range, 0, 1, stream);
    assert_ok(xseg_range_unhold(range, 0, PAGE, other));
    decommit(range, 0, 0, other);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_sim_finish(stream));
    decommit(range, 0, 0, other);
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
}

struct seen {
    uint64_t live, pending, unmapped;
    xseg_stream waits_for;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct seen *seen = context;

    seen->live += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
    seen->pending += block->state == XSEG_BLOCK_PENDING_FREE ? block->bytes : 0;
    seen->unmapped += block->state == XSEG_BLOCK_UNMAPPED ? block->bytes : 0;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    *(uint64_t *)context += mapping->bytes;
    return true;
}

/* The reason of pending memory has the stream of the decommit. */
static bool record_reason(void *context, const struct xseg_reason *reason)
{
    struct seen *seen = context;

    if (reason->kind == XSEG_REASON_PENDING && reason->has_waits_for)
        seen->waits_for = reason->waits_for;
    return true;
}

TEST_OF_RANGE(queries_report_ranges, env_open(NULL))
{
    struct xseg_explain_result explained = {sizeof(explained)};
    xseg_stream stream = env_stream();
    struct seen seen = {0, 0, 0, NULL};
    uint64_t mapped = 0;

    commit(range, 2, 6, stream);
    work(range, 2, 6, stream);
    decommit(range, 4, 2, stream);
    assert_ok(xseg_for_each_block(allocator, NULL, add_block, &seen));
    assert_int_equal(seen.live, 4 * PAGE);
    assert_int_equal(seen.pending, 2 * PAGE);
    assert_int_equal(seen.unmapped, (PAGES - 6) * PAGE);
    assert_ok(xseg_explain(allocator, NULL, record_reason, &seen, &explained));
    assert_ptr_equal(seen.waits_for, stream);
    assert_int_equal(explained.allocated, 4 * PAGE);
    assert_int_equal(explained.pending, 2 * PAGE);
    assert_int_equal(explained.reserved, 6 * PAGE);
    assert_ok(xseg_for_each_mapping(allocator, NULL, add_mapping, &mapped));
    assert_int_equal(mapped, 6 * PAGE);
    assert_ok(xseg_snapshot(allocator, "/dev/null", NULL));
    const struct xseg_block_info block = env_block(allocator, (char *)info(range).base + 7 * PAGE);
    assert_ptr_equal(block.base, (char *)info(range).base + 6 * PAGE);
    assert_int_equal(block.bytes, 2 * PAGE);
    xseg_sim_finish_all();
    discard(range, NULL, {2, 2}, {6, 2});
}

/* Prepared pages are reserved for their range, and released after the idle time. */
TEST_OF_RANGE(prepared_pages_wait_for_their_range,
              env_open_sim_with_clock("idle_ms:1000", .memory_bytes = 64 * PAGE))
{
    assert_ok(xseg_range_prepare(range, 8 * PAGE - 1));
    assert_int_equal(info(range).prepared_bytes, 8 * PAGE);
    void *block = env_alloc(allocator, MIB, NULL);
    assert_int_equal(info(range).prepared_bytes, 8 * PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(range, 0, 3, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(info(range).prepared_bytes, 5 * PAGE);
    env_pass_time(allocator, 5, 1000);
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    env_free(allocator, block);
    discard(range, NULL, {0, 3});
}

TEST_ON(quota_is_reserved, env_open_sim("hard_limit_mb:64", .memory_bytes = 64 * PAGE))
{
    struct xseg_range *first = reserve(allocator), *second = reserve(allocator);
    assert_ok(xseg_range_set_quota(first, 20 * PAGE));
    assert_error(xseg_range_set_quota(second, 13 * PAGE), LIMIT,
                 "41943040 bytes reserved by quotas");
    assert_error(xseg_range_commit(second, 0, 13 * PAGE, NULL), LIMIT, "");
    commit(second, 0, 12, NULL);
    assert_error(env_try_alloc(allocator, MIB, NULL), LIMIT, "");
    commit(first, 0, 20, NULL);
    assert_int_equal(info(first).quota_bytes, 20 * PAGE);
    decommit(first, 0, 10, NULL);
    assert_error(env_try_alloc(allocator, MIB, NULL), LIMIT, "");
    assert_ok(xseg_range_set_quota(first, 0));
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    discard(first, NULL, {10, 10});
    discard(second, NULL, {0, 12});
}

/* Commit granule 0, and fail to alias its page at granule 4: the driver denies access, and from then on every unmap. */
static void fail_alias(struct xseg_range *range)
{
    commit(range, 0, 1, NULL);
    env_fault(0, .call = "cuMemSetAccess", .error = 999);
    env_fault(1, .call = "cuMemUnmap", .every = 1, .error = 999);
    assert_error(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0), DRIVER, "999");
}

/* A commit does not use the page of an alias that the driver did not unmap. */
TEST_OF_RANGE(commit_does_not_use_a_page_in_unknown_state, env_open(NULL))
{
    fail_alias(range);
    assert_error(xseg_range_commit(range, 3 * PAGE, 3 * PAGE, NULL), DRIVER, "999");
    assert_int_equal(info(range).mapped_bytes, PAGE);
    assert_ok(xseg_sim_fault_set(1, NULL));
    commit(range, 3, 3, NULL);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    discard(range, NULL, {0, 1}, {3, 3});
}

TEST_OF_RANGE(page_in_unknown_state_blocks_no_other_granule, env_open(NULL))
{
    fail_alias(range);
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    assert_ok(xseg_range_alias(range, 5 * PAGE, PAGE, range, 0));
    commit(range, 6, 1, NULL);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), unmaps);
    assert_error(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0), DRIVER, "999");
    assert_ok(xseg_sim_fault_set(1, NULL));
    assert_ok(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0));
    discard(range, NULL, {0, 1}, {4, 3});
}

/* A commit in a capture creates and maps; a decommit waits for its end, and a held granule longer. */
TEST_IN_POOL(decommit_waits_for_the_end_of_a_capture, env_open(NULL))
{
    struct xseg_range *range = reserve(allocator);
    xseg_stream stream = env_stream();

    commit(range, 0, 4, stream);
    env_capture_begin(pool, stream);
    commit(range, 4, 2, stream);
    assert_ok(xseg_range_hold(range, 4 * PAGE, PAGE));
    decommit(range, 0, 2, stream);
    decommit(range, 4, 2, stream);
    commit(range, 0, 1, stream);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_error(xseg_range_release(range), BUSY, "committed");
    struct CUgraph_st *graph = env_capture_end_graph(pool, stream);
    /* The first poll records the events, and the next poll finds them completed. */
    commit(range, 10, 1, stream);
    commit(range, 11, 1, stream);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE + PAGE + 2 * PAGE);
    assert_ok(xseg_range_unhold(range, 4 * PAGE, PAGE, stream));
    decommit(range, 10, 2, stream);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    env_graph_destroy(graph);
    discard(range, stream, {0, 1}, {2, 2});
}

TEST_OF_RANGE(close_releases_ranges_without_memory, env_open("page_cache_mb:100"))
{
    commit(range, 0, 4, NULL);
    work(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_ok(xseg_range_prepare(range, 2 * PAGE));
}

TEST(lost_device_supports_host_operations)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator), *other = reserve_by(allocator, PAGE, NULL);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 1, NULL);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 700));
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), DEVICE_LOST, "");
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), DEVICE_LOST, "");
    assert_error(xseg_range_alias(other, 0, PAGE, range, PAGE), DEVICE_LOST, "");
    assert_error(xseg_range_prepare(range, PAGE), DEVICE_LOST, "");
    discard(range, NULL, {1, 3});
    assert_ok(xseg_close(allocator));
}

/* --- Page sources of ranges, quotas, failed commits, and pools that can have ranges. --- */

TEST_OF_RANGE(failed_commit_changes_nothing, env_open(NULL))
{
    commit(range, 1, 1, NULL);
    env_launch_at(NULL, (char *)info(range).base + PAGE, PAGE);
    decommit(range, 1, 1, NULL);
    assert_ok(xseg_sim_fail("cuMemCreate", 2, 999));
    assert_error(xseg_range_commit(range, 0, 3 * PAGE, NULL), DRIVER, "999");
    assert_int_equal(info(range).mapped_bytes, PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, PAGE);
    commit(range, 0, 3, NULL);
    assert_int_equal(info(range).recommits, 1);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    discard(range, NULL, {0, 3});
}

/* Idle pages of one pool serve a range of another. */
TEST_OF_RANGE(idle_pages_serve_other_ranges, env_open("page_cache_mb:1024"))
{
    struct xseg_range *other = reserve(allocator);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(other, 8, 4, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    release(range);
    discard(other, NULL, {8, 4});
}

static bool count_low_memory(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    ++*(unsigned *)context;
    return false;
}

/* At a limit, prepared pages serve the range and count towards its quota, without requests to others. */
TEST_OF_RANGE(prepared_pages_serve_their_range_at_a_limit, env_open("hard_limit_mb:32"))
{
    struct xseg_range *other = reserve(allocator);
    unsigned calls = 0;

    const uint64_t id =
        env_observe(allocator, .on_low_memory = count_low_memory, .context = &calls);
    assert_ok(xseg_range_set_quota(range, 8 * PAGE));
    commit(other, 0, 8, NULL);
    assert_ok(xseg_range_prepare(range, 8 * PAGE));
    assert_int_equal(xseg_sim_used(0), 16 * PAGE);
    assert_error(xseg_range_prepare(other, PAGE), LIMIT, "");
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(range, 0, 8, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(calls, 0);
    assert_ok(xseg_observer_remove(allocator, id));
    discard(range, NULL, {0, 8});
    discard(other, NULL, {0, 8});
}

/* The memory that an observer commits in a map notification. */
struct greedy {
    struct xseg_range *range;
    xseg_status status[2]; /* at the limit of the range, and below it */
    uint64_t committed;
    bool is_called;
};

static void commit_more(void *context, const struct xseg_mapping *mapping)
{
    struct greedy *greedy = context;

    (void)mapping;
    if (greedy->is_called)
        return;
    greedy->is_called = true;
    greedy->committed = info(greedy->range).physical_bytes;
    greedy->status[0] = xseg_range_commit(greedy->range, 8 * PAGE, 2 * PAGE, NULL);
    greedy->status[1] = xseg_range_commit(greedy->range, 8 * PAGE, PAGE, NULL);
}

/* Commits in a notification stay within the limits, since the new memory counts already. */
TEST_EACH(limits_hold_during_notifications, env_open(config), "hard_limit_mb:1024",
          "hard_limit_mb:8")
{
    static const uint64_t limit[] = {4 * PAGE, 0};
    struct greedy greedy = {.range = reserve_with(allocator, .limit_bytes = limit[i])};

    const uint64_t id = env_observe(allocator, .context = &greedy, .on_map = commit_more);
    commit(greedy.range, 0, 3, NULL);
    assert_int_equal(greedy.committed, 3 * PAGE);
    assert_int_equal(greedy.status[0], XSEG_ERR_LIMIT);
    assert_ok(greedy.status[1]);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_ok(xseg_observer_remove(allocator, id));
    decommit(greedy.range, 0, 3, NULL);
    decommit(greedy.range, 8, 1, NULL);
    release(greedy.range);
}

/* A range needs a pool of its device without memory functions, and the options of the pool apply to the range. */
TEST_ON(unsuitable_pools_are_rejected, env_open_sim(NULL, .devices = 2))
{
    const struct xseg_pool_options own = {sizeof(own), .memory = env_no_memory};
    struct xseg_pool *pool = NULL, *custom = NULL;
    struct xseg_range *range = NULL;

    assert_ok(xseg_pool_create(allocator, 1, NULL, &pool));
    assert_ok(xseg_pool_create(allocator, 1, &own, &custom));
#define OPTIONS(...)                                   \
    (const struct xseg_range_options)                  \
    {                                                  \
        sizeof(struct xseg_range_options), __VA_ARGS__ \
    }
    const struct {
        int device;
        struct xseg_range_options options;
        const char *words;
    } row[] = {
        {0, OPTIONS(.pool = pool), "use a pool of device 0"},
        {1, OPTIONS(.pool = pool, .name = "cache"), "name is set together with pool"},
        {1, OPTIONS(.pool = pool, .exportable = true), "exportable is set together with pool"},
        {1, OPTIONS(.pool = pool, .rdma = true), "rdma is set together with pool"},
        {1, OPTIONS(.pool = custom), "memory functions"},
    };

    for (unsigned i = 0; i < COUNT_OF(row); i++)
        assert_error(xseg_range_reserve(allocator, row[i].device, PAGE, &row[i].options, &range),
                     ARGUMENT, row[i].words);
    assert_ok(xseg_pool_release(custom));
    assert_ok(xseg_range_reserve(allocator, 1, PAGE, &OPTIONS(.pool = pool), &range));
#undef OPTIONS
    assert_ptr_equal(info(range).pool, pool);
    assert_int_equal(info(range).device, 1);
    /* The range retains the pool. */
    assert_ok(xseg_pool_release(pool));
    commit(range, 0, 1, NULL);
    discard(range, NULL, {0, 1});
}

static void *release_range(void *context)
{
    struct xseg_range **range = context;

    assert_ok(xseg_range_release(*range));
    *range = NULL;
    return NULL;
}

/* Release a range in another thread, during the log line that no snapshot could be written. */
static void release_on_log_line(void *context, enum xseg_log_level level, const char *line)
{
    struct xseg_range **range = context;

    if (level == XSEG_LOG_INFO || strstr(line, "snapshot") == NULL || *range == NULL)
        return;
    (void)env_run_thread(release_range, range);
}

static void count_oom(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    ++*(unsigned *)context;
}

/* The pool of a range exists until the report of a failed commit is complete. */
TEST(range_is_released_in_an_out_of_memory_callback)
{
    struct xseg_allocator *allocator = NULL;
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 4 * PAGE};
    struct xseg_range *range, *to_release = NULL;
    unsigned count = 0;

    assert_ok(xseg_sim_reset(&settings));
    struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                   .log = release_on_log_line, .log_context = &to_release};
    assert_ok(xseg_open("oom_snapshot:/dev/null", &options, &allocator));
    (void)env_observe(allocator, .context = &count, .on_out_of_memory = count_oom);
    range = to_release = reserve(allocator);
    assert_int_equal(xseg_range_commit(range, 0, PAGES * PAGE, NULL), XSEG_ERR_NO_MEMORY);
    assert_null(to_release);
    assert_int_equal(count, 1);
    env_close(allocator);
}

/* --- Aliases of pages: charges, pauses, and commits of granules that are pending unmap with an aliased page. --- */

/* A range of the same pool. */
static struct xseg_range *reserve_in_pool_of(struct xseg_allocator *allocator,
                                             struct xseg_range *range)
{
    return reserve_with(allocator, .pool = info(range).pool);
}

static uint32_t *word(struct xseg_range *range, unsigned at)
{
    return (uint32_t *)(void *)((char *)info(range).base + at * PAGE);
}

static void pause_pool(struct xseg_range *range)
{
    assert_ok(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(range).mapped_bytes, 0);
}

static void resume_pool(struct xseg_range *range)
{
    assert_ok(xseg_pool_resume(info(range).pool));
}

/* A pause releases an aliased page once; a resume maps one page at all granules, with its contents. */
TEST_OF_RANGE(a_pause_unmaps_all_aliases, open_devices(NULL))
{
    commit(range, 0, 3, NULL);
    alias(range, 8, range, 1);
    alias(range, 10, range, 1);
    *word(range, 8) = 7;
    *word(range, 2) = 8;
    pause_pool(range);
    assert_int_equal(xseg_sim_used(0), 0);
    resume_pool(range);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(info(range).mapped_bytes, 5 * PAGE);
    assert_int_equal(*word(range, 1), 7);
    assert_int_equal(*word(range, 2), 8);
    *word(range, 10) = 9;
    assert_int_equal(*word(range, 1), 9);
    assert_int_equal(*word(range, 8), 9);
    decommit(range, 0, 3, NULL);
    pause_pool(range);
    resume_pool(range);
    assert_int_equal(*word(range, 8), 9);
    assert_int_equal(xseg_sim_used(0), PAGE);
    discard(range, NULL, {8, 1}, {10, 1});
}

TEST_OF_RANGE(pending_work_blocks_a_pause, open_devices(NULL))
{
    xseg_stream stream = env_stream();

    commit(range, 0, 1, stream);
    env_launch_at(stream, word(range, 0), PAGE);
    assert_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), BUSY, "has pending work");
    assert_ok(xseg_sim_finish(stream));
    pause_pool(range);
    resume_pool(range);
    discard(range, stream, {0, 1});
}

/* Expect that a pause fails until the work on a granule has ended. */
static void expect_blocked(struct xseg_range *range, unsigned at, xseg_stream stream)
{
    env_launch_at(stream, word(range, at), PAGE);
    assert_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_NOTHING, NULL), BUSY,
                 "has pending work");
    assert_ok(xseg_sim_finish(stream));
}

static void destroy_stream(struct xseg_allocator *allocator, xseg_stream stream)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* Each stream with committed granules blocks the pause, for any number of streams. */
TEST_OF_RANGE(work_on_any_stream_blocks_a_pause, open_devices(NULL))
{
    xseg_stream stream[9];

    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        stream[i] = env_stream();
        commit(range, i, 1, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        expect_blocked(range, i, stream[i]);
        decommit(range, i, 1, stream[i]);
        destroy_stream(allocator, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        stream[i] = env_stream();
        commit(range, i, 1, stream[i]);
        expect_blocked(range, i, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        decommit(range, i, 1, stream[i]);
        destroy_stream(allocator, stream[i]);
    }
    release(range);
}

/* After a failed resume without rollback, the next resume maps one page at all granules. */
TEST_OF_RANGE(a_resume_maps_one_page_at_all_aliases, open_devices(NULL))
{
    commit(range, 0, 1, NULL);
    alias(range, 8, range, 0);
    *word(range, 0) = 7;
    pause_pool(range);
    static const char *const calls[] = {"cuMemSetAccess", "cuMemUnmap"};
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        env_fault(i, .call = calls[i], .address = (uintptr_t)word(range, 8), .bytes = PAGE,
                  .every = 1, .error = 999);
    assert_error(xseg_pool_resume(info(range).pool), DRIVER, "999");
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        assert_ok(xseg_sim_fault_set(i, NULL));
    resume_pool(range);
    assert_int_equal(*word(range, 8), 7);
    *word(range, 0) = 8;
    assert_int_equal(*word(range, 8), 8);
    assert_int_equal(xseg_sim_used(0), PAGE);
    discard(range, NULL, {0, 1}, {8, 1});
}

TEST_OF_RANGE(unmapped_alias_does_not_block_a_pause, open_devices(NULL))
{
    xseg_stream stream = env_stream();

    commit(range, 0, 2, stream);
    env_launch_at(stream, word(range, 0), PAGE);
    decommit(range, 0, 1, stream);
    assert_ok(xseg_sim_finish(stream));
    pause_pool(range);
    assert_int_equal(info(range).pending_unmap_bytes, 0);
    resume_pool(range);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_range_hold(range, PAGE, PAGE));
    decommit(range, 1, 1, stream);
    assert_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), BUSY, "held in a range");
    assert_ok(xseg_range_unhold(range, PAGE, PAGE, stream));
    release(range);
}

/* Each range of the pool may have committed the page.  Ranges of other pools cannot alias it. */
TEST_OF_RANGE(a_pool_is_charged_until_the_last_mapping, open_devices(NULL))
{
    struct xseg_range *other = reserve_in_pool_of(allocator, range), *third = reserve(allocator);
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = info(range).pool};

    commit(range, 0, 1, NULL);
    assert_error(xseg_range_alias(third, 0, PAGE, range, 0), ARGUMENT, "pools");
    alias(other, 4, range, 0);
    *word(range, 0) = 7;
    discard(range, NULL, {0, 1});
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(*word(other, 4), 7);
    decommit(other, 4, 1, NULL);
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    release(other);
    release(third);
}

/* The charge does not depend on the granule.  Other ranges that alias the page are not charged. */
TEST_OF_RANGE(a_range_is_charged_while_it_maps_the_page, open_devices(NULL))
{
    struct xseg_range *other = reserve_in_pool_of(allocator, range);

    commit(range, 0, 1, NULL);
    alias(range, 2, range, 0);
    alias(other, 4, range, 0);
    decommit(range, 0, 1, NULL);
    assert_int_equal(info(range).physical_bytes, PAGE);
    assert_int_equal(info(other).physical_bytes, 0);
    assert_int_equal(info(other).mapped_bytes, PAGE);
    decommit(range, 2, 1, NULL);
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(other).physical_bytes, 0);
    assert_int_equal(xseg_sim_used(0), PAGE);
    alias(range, 0, other, 4);
    assert_int_equal(info(range).physical_bytes, 0);
    decommit(range, 0, 1, NULL);
    decommit(other, 4, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
    release(other);
}

/* The new page waits for the work of the decommit. */
TEST_OF_RANGE(commit_replaces_an_alias_by_a_new_page, open_devices(NULL))
{
    struct xseg_range *reader = reserve_in_pool_of(allocator, range);
    xseg_stream stream = env_stream();

    commit(range, 0, 3, stream);
    *word(range, 0) = 7;
    alias(range, 8, range, 0);
    alias(reader, 0, range, 1);
    decommit(range, 1, 1, stream);
    env_launch_at(stream, word(range, 8), PAGE);
    decommit(range, 8, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, stream), BUSY, "page is aliased");
    assert_ok(xseg_capture_unmark(allocator, 0));
    commit(range, 8, 1, stream);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)word(reader, 0), PAGE));
    decommit(reader, 0, 1, stream);
    commit(reader, 0, 1, stream);
    *word(range, 8) = 9;
    assert_int_equal(*word(range, 0), 7);
    assert_int_equal(info(range).recommits, 0);
    assert_int_equal(info(reader).recommits, 1); /* the last mapping */
    assert_ok(xseg_range_hold(range, 10 * PAGE, PAGE));
    alias(range, 10, range, 0);
    decommit(range, 10, 1, stream);
    assert_error(xseg_range_commit(range, 10 * PAGE, PAGE, stream), BUSY, "held");
    assert_ok(xseg_range_unhold(range, 10 * PAGE, PAGE, stream));
    discard(range, stream, {8, 1}, {0, 1}, {2, 1});
    discard(reader, stream, {0, 1});
}

/* Commit of several granules whose pages are aliased and pending unmap on different streams. */
TEST_OF_RANGE(a_commit_waits_for_all_streams, open_devices(NULL))
{
    xseg_stream stream[2] = {env_stream(), env_stream()};

    commit(range, 0, 2, stream[0]);
    for (unsigned i = 0; i < 2; i++) {
        alias(range, 8 + i, range, i);
        env_launch_at(stream[i], word(range, 8 + i), PAGE);
        decommit(range, 8 + i, 1, stream[i]);
    }
    commit(range, 8, 2, stream[0]);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    decommit(range, 0, 2, stream[0]);
    decommit(range, 8, 2, stream[0]);
    release(range);
    for (unsigned i = 0; i < 2; i++)
        destroy_stream(allocator, stream[i]);
}

/* A range that an observer releases once, at its first notification. */
static void end_range(void *context, const struct xseg_mapping *mapping)
{
    struct xseg_range **range = context, *ended = *range;

    (void)mapping;
    *range = NULL;
    if (ended != NULL)
        release(ended);
}

/* Make memory of one range pending unmap, and let an observer release another range. */
static uint64_t observe_release(struct xseg_allocator *allocator, struct xseg_range **ended,
                                struct xseg_range *other, xseg_stream stream)
{
    commit(other, 0, 1, stream);
    env_launch_at(stream, word(other, 0), PAGE);
    decommit(other, 0, 1, stream);
    return env_observe(allocator, .context = ended, .on_unmap = end_range);
}

/* The call waits for pending unmaps while observers are notified. */
TEST_ON(release_during_a_call_is_safe, open_devices(NULL))
{
    struct xseg_range *other = reserve(allocator);
    xseg_stream stream = env_stream(), first = env_stream();

    for (unsigned i = 0; i < 2; i++) {
        struct xseg_range *range = reserve(allocator), *ended = range;

        commit(range, 0, 1, stream);
        alias(range, 8, range, 0);
        env_launch_at(stream, word(range, 0), PAGE);
        const uint64_t id = observe_release(allocator, &ended, other, first);
        decommit(range, 0, 1, stream);
        decommit(range, 8, 1, stream);
        assert_ok(xseg_sim_finish(first));
        assert_error(i == 0 ? xseg_range_commit(range, 8 * PAGE, PAGE, stream)
                            : xseg_range_release(range),
                     ARGUMENT, "released");
        assert_null(ended);
        assert_ok(xseg_observer_remove(allocator, id));
        assert_int_equal(xseg_sim_used(0), 0);
    }
    release(other);
}

/* The release runs while idle memory is reclaimed for a quota. */
TEST_OF_RANGE(release_during_a_quota_change_is_safe, open_devices("hard_limit_mb:32"))
{
    struct xseg_range *other = reserve(allocator), *ended = range;

    commit(other, 4, 4, NULL);
    const uint64_t id = observe_release(allocator, &ended, other, NULL);
    xseg_sim_finish_all();
    assert_error(xseg_range_set_quota(range, 16 * PAGE), ARGUMENT, "released");
    assert_null(ended);
    assert_ok(xseg_observer_remove(allocator, id));
    discard(other, NULL, {4, 4});
}
