/* SPDX-License-Identifier: MIT */
/* Elastic ranges: commits and decommits, their costs, and their errors. */
#include <string.h>

#include "tests/support/exported_handles.h"
#include "tests/support/ranges.h"
#include "xseg/observer.h"
#include "xseg/range.h"
#include "xseg/share.h"

#define GRANULES 64u

/* reserve_with(allocator, .limit_bytes = PAGE, ...): reserve a range of GRANULES granules with these options. */
#define reserve_with(allocator, ...)      \
    reserve_by(allocator, GRANULES *PAGE, \
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
    return reserve_by(allocator, GRANULES * PAGE, NULL);
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

/* Launch a kernel on granules; it runs until a call waits for it or the test finishes it. */
static void launch(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    const struct xseg_range_info state = info(range);

    env_launch_at(stream, (char *)state.base + first * PAGE, count * PAGE);
}

TEST_OF_RANGE(commits_map_and_decommits_unmap, env_open(NULL))
{
    assert_int_equal(xseg_sim_used(0), 0);
    commit(range, 3, 5, NULL);
    commit(range, 10, 1, NULL);
    launch(range, 3, 5, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 6 * PAGE);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 6 * PAGE);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    assert_int_equal(info(range).physical_bytes, 6 * PAGE);

    /* Decommitted granules that work uses are pending unmap. */
    decommit(range, 4, 2, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_int_equal(info(range).pending_unmap_bytes, 2 * PAGE);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 6 * PAGE);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current, 4 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    discard(range, NULL, {6, 2}, {10, 1});
    assert_int_equal(xseg_sim_used(0), 0);
}

TEST_OF_RANGE(recommit_makes_no_driver_call, env_open(NULL))
{
    xseg_stream second = env_stream();

    commit(range, 0, 8, NULL);
    launch(range, 0, 8, NULL);
    decommit(range, 0, 8, NULL);
    uint64_t calls = xseg_sim_calls(NULL);
    commit(range, 2, 3, NULL);
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(info(range).recommits, 3);
    /* Another stream waits on the device for the stream of the decommit. */
    calls = xseg_sim_calls("cuStreamWaitEvent");
    commit(range, 5, 3, second);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), calls + 1);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    xseg_sim_finish_all();
    launch(range, 2, 6, second);
    discard(range, second, {2, 6});
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
    struct xseg_range *range = NULL, *rejected = NULL;

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
    assert_error(xseg_range_reserve(allocator, 0, 20 * TIB, NULL, &rejected), NO_ADDRESSES,
                 "out of virtual addresses on device 0, 21990232555520 bytes requested");
    assert_ok(xseg_range_release(range));
    range = reserve(allocator);
    commit(range, 4, 4, NULL);
    const uint64_t calls = xseg_sim_calls(NULL);
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
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_ok(xseg_range_commit(range, 0, 0, NULL));
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    decommit(range, 4, 4, NULL);
    assert_error(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL), ARGUMENT, "offset");
    release(range);
    assert_error(xseg_range_commit(range, 0, PAGE, NULL), ARGUMENT, "released");
    assert_error(xseg_range_release(range), ARGUMENT, "released");
    assert_error(xseg_range_release(rejected), ARGUMENT, "NULL");
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
    /* 36 pages have 72 MiB. */
    assert_error(env_try_alloc(allocator, 20 * MIB, NULL), LIMIT, "72.00 MiB allocated");
    decommit(range, 0, 36, NULL);
    block = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, block);
    release(range);
}

/* Three mappings of a page are decommitted in one call, and a fourth one later: the page is charged until then. */
TEST_OF_RANGE(page_is_charged_until_its_last_mapping, env_open("page_cache_mb:1024"))
{
    xseg_stream stream = env_stream(), second = env_stream();

    commit(range, 2, 1, stream);
    alias(range, 1, range, 2);
    alias(range, 0, range, 2);
    alias(range, 5, range, 2);
    launch(range, 0, 3, stream);
    launch(range, 5, 1, second);
    decommit(range, 0, 3, stream);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current, PAGE);
    decommit(range, 5, 1, second);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_ok(xseg_sim_finish(stream));
    commit(range, 20, 1, stream);
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    assert_int_equal(info(range).physical_bytes, 2 * PAGE);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    discard(range, stream, {20, 1});
}

/* A commit in a range at its own limit waits for pending unmaps of the range.  At the limit of the device (five pages) it also
 * reclaims idle memory. */
TEST_ON(full_range_waits_for_its_pending_unmaps, env_open("hard_limit_mb:10"))
{
    struct xseg_range *second_range = reserve(allocator);
    struct xseg_range *range =
        reserve_with(allocator, .limit_bytes = 4 * PAGE, .pool = info(second_range).pool);
    xseg_stream stream = env_stream();

    commit(range, 0, 4, stream);
    /* The first page stays mapped in a held granule of another range, so the page cannot be reused. */
    assert_ok(xseg_range_alias(second_range, 0, PAGE, range, 0));
    assert_ok(xseg_range_hold(second_range, 0, PAGE));
    decommit(second_range, 0, 1, stream);
    /* The fifth page is idle. */
    env_free(allocator, env_alloc(allocator, MIB, stream));
    launch(range, 0, 1, stream);
    decommit(range, 0, 1, stream);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    commit(range, 8, 1, stream);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    assert_ok(xseg_range_unhold(second_range, 0, PAGE, stream));
    release(second_range);
    discard(range, stream, {1, 3}, {8, 1});
}

/* A commit that fails after it has created pages keeps only page_cache_mb of them. */
TEST_OF_RANGE(failed_commit_in_a_capture_keeps_no_pages, env_open(NULL))
{
    xseg_stream stream = env_stream(), second = env_stream();

    commit(range, 1, 1, stream);
    launch(range, 1, 1, stream);
    decommit(range, 1, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    assert_error(xseg_range_commit(range, 0, 3 * PAGE, second), BUSY, "capture");
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
    uint32_t *words = info(range).base;

    commit(range, 0, 3, NULL);
    commit(range, 5, 1, NULL);
    words[5 * PAGE / sizeof(*words)] = 7;
    assert_ok(xseg_range_hold(range, 5 * PAGE, PAGE));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    assert_error(xseg_range_commit(range, 9 * PAGE, PAGE, NULL), PAUSED, "paused");
    assert_error(xseg_range_decommit(range, 0, PAGE, NULL), PAUSED, "paused");
    assert_error(xseg_range_release(range), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(words[5 * PAGE / sizeof(*words)], 7);
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

/* Pinned and exported granules keep their pages after a decommit until the last pin or export is released.  Registered granules
 * do not, but the range cannot be released. */
TEST_ON(held_granules_stay_committed, env_open(NULL))
{
    struct xseg_range *range = reserve_with(allocator, .exportable = true);
    struct exported_handles exported;
    uint64_t id = 0;
    unsigned registered_runs = 0;

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
    struct xseg_registrar registrar = {sizeof(registrar), .context = &registered_runs,
                                       .enter = enter, .leave = leave};
    commit(range, 0, 1, NULL);
    assert_ok(xseg_register(allocator, base, 4 * PAGE, &registrar, &id));
    commit(range, 2, 1, NULL);
    assert_int_equal(registered_runs, 2);
    decommit(range, 0, 1, NULL);
    decommit(range, 2, 1, NULL);
    assert_int_equal(registered_runs, 0);
    assert_error(xseg_range_release(range), BUSY, "registered");
    assert_ok(xseg_unregister(allocator, id));
    release(range);
    assert_int_equal(xseg_sim_used(0), 0);
}

/* Unmapping waits for the streams of the decommit and of the unhold. */
TEST_OF_RANGE(decommit_waits_for_both_streams, env_open(NULL))
{
    xseg_stream stream = env_stream(), second = env_stream();

    commit(range, 0, 1, stream);
    assert_ok(xseg_range_hold(range, 0, PAGE));
    launch(range, 0, 1, stream);
    decommit(range, 0, 1, stream);
    assert_ok(xseg_range_unhold(range, 0, PAGE, second));
    decommit(range, 0, 0, second); /* polls pending unmaps */
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_sim_finish(stream));
    decommit(range, 0, 0, second);
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
}

/* Bytes of blocks by state, and the stream of pending memory. */
struct block_totals {
    uint64_t allocated, pending, unmapped;
    xseg_stream waits_for;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct block_totals *totals = context;

    totals->allocated += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
    totals->pending += block->state == XSEG_BLOCK_PENDING_FREE ? block->bytes : 0;
    totals->unmapped += block->state == XSEG_BLOCK_UNMAPPED ? block->bytes : 0;
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
    struct block_totals *totals = context;

    if (reason->kind == XSEG_REASON_PENDING && reason->has_waits_for)
        totals->waits_for = reason->waits_for;
    return true;
}

TEST_OF_RANGE(queries_report_ranges, env_open(NULL))
{
    struct xseg_explain_result sums = {sizeof(sums)};
    xseg_stream stream = env_stream();
    struct block_totals totals = {0, 0, 0, NULL};
    uint64_t mapped = 0;

    commit(range, 2, 6, stream);
    launch(range, 2, 6, stream);
    decommit(range, 4, 2, stream);
    assert_ok(xseg_for_each_block(allocator, NULL, add_block, &totals));
    assert_int_equal(totals.allocated, 4 * PAGE);
    assert_int_equal(totals.pending, 2 * PAGE);
    assert_int_equal(totals.unmapped, (GRANULES - 6) * PAGE);
    assert_ok(xseg_explain(allocator, NULL, record_reason, &totals, &sums));
    assert_ptr_equal(totals.waits_for, stream);
    assert_int_equal(sums.allocated, 4 * PAGE);
    assert_int_equal(sums.pending, 2 * PAGE);
    assert_int_equal(sums.reserved, 6 * PAGE);
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
    env_advance_and_trim(allocator, 5, 1000);
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    env_free(allocator, block);
    discard(range, NULL, {0, 3});
}

TEST_ON(quota_is_reserved, env_open_sim("hard_limit_mb:64", .memory_bytes = 64 * PAGE))
{
    struct xseg_range *first = reserve(allocator), *second = reserve(allocator);
    assert_ok(xseg_range_set_quota(first, 20 * PAGE));
    /* The limit is 32 pages, so 12 pages are not reserved. */
    assert_error(xseg_range_set_quota(second, 13 * PAGE), LIMIT,
                 "41943040 bytes reserved by quotas");
    assert_error(xseg_range_commit(second, 0, 13 * PAGE, NULL), LIMIT, "");
    commit(second, 0, 12, NULL);
    assert_error(env_try_alloc(allocator, MIB, NULL), LIMIT, "");
    commit(first, 0, 20, NULL);
    assert_int_equal(info(first).quota_bytes, 20 * PAGE);
    /* The decommitted part of the quota stays reserved. */
    decommit(first, 0, 10, NULL);
    assert_error(env_try_alloc(allocator, MIB, NULL), LIMIT, "");
    assert_ok(xseg_range_set_quota(first, 0));
    env_free(allocator, env_alloc(allocator, MIB, NULL));
    discard(first, NULL, {10, 10});
    discard(second, NULL, {0, 12});
}

/* Commit granule 0, and fail to alias its page at granule 4: the set-access fails, and so does each unmap from then on. */
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

/* A commit during a capture creates and maps pages.  Decommitted granules are unmapped after the end of the capture, and held
 * granules after the unhold. */
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
    /* The committed granules 0, 2 and 3, the held granule 4, and the granules 10 and 11. */
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
    launch(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_ok(xseg_range_prepare(range, 2 * PAGE));
}

TEST(lost_device_supports_host_operations)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator),
                      *second_range = reserve_by(allocator, PAGE, NULL);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 1, NULL);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 700));
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), DEVICE_LOST, "");
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), DEVICE_LOST, "");
    assert_error(xseg_range_alias(second_range, 0, PAGE, range, PAGE), DEVICE_LOST, "");
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
    struct xseg_range *second_range = reserve(allocator);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(second_range, 8, 4, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    release(range);
    discard(second_range, NULL, {8, 4});
}

static bool count_low_memory(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    ++*(unsigned *)context;
    return false;
}

/* At a limit, prepared pages serve the range and count towards its quota, without a call of on_low_memory(). */
TEST_OF_RANGE(prepared_pages_serve_their_range_at_a_limit, env_open("hard_limit_mb:32"))
{
    struct xseg_range *second_range = reserve(allocator);
    unsigned calls = 0;

    const uint64_t id =
        env_observe(allocator, .on_low_memory = count_low_memory, .context = &calls);
    assert_ok(xseg_range_set_quota(range, 8 * PAGE));
    commit(second_range, 0, 8, NULL);
    assert_ok(xseg_range_prepare(range, 8 * PAGE));
    assert_int_equal(xseg_sim_used(0), 16 * PAGE);
    assert_error(xseg_range_prepare(second_range, PAGE), LIMIT, "");
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(range, 0, 8, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(calls, 0);
    assert_ok(xseg_observer_remove(allocator, id));
    discard(range, NULL, {0, 8});
    discard(second_range, NULL, {0, 8});
}

/* Commits of an observer in the first map notification. */
struct nested_commits {
    struct xseg_range *range;
    xseg_status status[2];   /* of a commit beyond the limit, and of a commit up to the limit */
    uint64_t physical_bytes; /* of the range, before these commits */
    bool is_called;
};

static void commit_in_notification(void *context, const struct xseg_mapping *mapping)
{
    struct nested_commits *nested = context;

    (void)mapping;
    if (nested->is_called)
        return;
    nested->is_called = true;
    nested->physical_bytes = info(nested->range).physical_bytes;
    nested->status[0] = xseg_range_commit(nested->range, 8 * PAGE, 2 * PAGE, NULL);
    nested->status[1] = xseg_range_commit(nested->range, 8 * PAGE, PAGE, NULL);
}

/* Memory counts towards the limits before observers are notified, so commits of observers stay within the limits: four pages,
 * of the range or of the device. */
TEST_EACH(limits_hold_during_notifications, env_open(config), "hard_limit_mb:1024",
          "hard_limit_mb:8")
{
    static const uint64_t limit[] = {4 * PAGE, 0};
    struct nested_commits nested = {.range = reserve_with(allocator, .limit_bytes = limit[i])};

    const uint64_t id =
        env_observe(allocator, .context = &nested, .on_map = commit_in_notification);
    commit(nested.range, 0, 3, NULL);
    assert_int_equal(nested.physical_bytes, 3 * PAGE);
    assert_int_equal(nested.status[0], XSEG_ERR_LIMIT);
    assert_ok(nested.status[1]);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_ok(xseg_observer_remove(allocator, id));
    decommit(nested.range, 0, 3, NULL);
    decommit(nested.range, 8, 1, NULL);
    release(nested.range);
}

/* A range needs a pool of its device without memory functions, and the options of the pool apply to the range. */
TEST_ON(unsuitable_pools_are_rejected, env_open_sim(NULL, .devices = 2))
{
    const struct xseg_pool_options with_functions = {sizeof(with_functions),
                                                     .memory = env_no_memory};
    struct xseg_pool *pool = NULL, *custom = NULL;
    struct xseg_range *range = NULL;

    assert_ok(xseg_pool_create(allocator, 1, NULL, &pool));
    assert_ok(xseg_pool_create(allocator, 1, &with_functions, &custom));
#define OPTIONS(...)                                   \
    (const struct xseg_range_options)                  \
    {                                                  \
        sizeof(struct xseg_range_options), __VA_ARGS__ \
    }
    const struct {
        int device;
        struct xseg_range_options options;
        const char *words;
    } rows[] = {
        {0, OPTIONS(.pool = pool), "use a pool of device 0"},
        {1, OPTIONS(.pool = pool, .name = "cache"), "name is set together with pool"},
        {1, OPTIONS(.pool = pool, .exportable = true), "exportable is set together with pool"},
        {1, OPTIONS(.pool = pool, .rdma = true), "rdma is set together with pool"},
        {1, OPTIONS(.pool = custom), "memory functions"},
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++)
        assert_error(xseg_range_reserve(allocator, rows[i].device, PAGE, &rows[i].options, &range),
                     ARGUMENT, rows[i].words);
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

static void *release_in_thread(void *context)
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
    (void)env_run_thread(release_in_thread, range);
}

static void count_oom(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    ++*(unsigned *)context;
}

/* A range that is released while a failed commit is reported keeps its pool until the report is complete. */
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
    assert_int_equal(xseg_range_commit(range, 0, GRANULES * PAGE, NULL), XSEG_ERR_NO_MEMORY);
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

static uint32_t *word_at(struct xseg_range *range, unsigned granule)
{
    return (uint32_t *)(void *)((char *)info(range).base + granule * PAGE);
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
    *word_at(range, 8) = 7;
    *word_at(range, 2) = 8;
    pause_pool(range);
    assert_int_equal(xseg_sim_used(0), 0);
    resume_pool(range);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(info(range).mapped_bytes, 5 * PAGE);
    assert_int_equal(*word_at(range, 1), 7);
    assert_int_equal(*word_at(range, 2), 8);
    *word_at(range, 10) = 9;
    assert_int_equal(*word_at(range, 1), 9);
    assert_int_equal(*word_at(range, 8), 9);
    decommit(range, 0, 3, NULL);
    pause_pool(range);
    resume_pool(range);
    assert_int_equal(*word_at(range, 8), 9);
    assert_int_equal(xseg_sim_used(0), PAGE);
    discard(range, NULL, {8, 1}, {10, 1});
}

TEST_OF_RANGE(pending_work_blocks_a_pause, open_devices(NULL))
{
    xseg_stream stream = env_stream();

    commit(range, 0, 1, stream);
    env_launch_at(stream, word_at(range, 0), PAGE);
    assert_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), BUSY, "has pending work");
    assert_ok(xseg_sim_finish(stream));
    pause_pool(range);
    resume_pool(range);
    discard(range, stream, {0, 1});
}

/* Launch a kernel on a granule, expect that it blocks a pause, and finish it. */
static void expect_blocked_pause(struct xseg_range *range, unsigned granule, xseg_stream stream)
{
    env_launch_at(stream, word_at(range, granule), PAGE);
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
        expect_blocked_pause(range, i, stream[i]);
        decommit(range, i, 1, stream[i]);
        destroy_stream(allocator, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        stream[i] = env_stream();
        commit(range, i, 1, stream[i]);
        expect_blocked_pause(range, i, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        decommit(range, i, 1, stream[i]);
        destroy_stream(allocator, stream[i]);
    }
    release(range);
}

/* After a resume that fails, and whose rollback fails, the next resume maps one page at all granules. */
TEST_OF_RANGE(a_resume_maps_one_page_at_all_aliases, open_devices(NULL))
{
    commit(range, 0, 1, NULL);
    alias(range, 8, range, 0);
    *word_at(range, 0) = 7;
    pause_pool(range);
    static const char *const calls[] = {"cuMemSetAccess", "cuMemUnmap"};
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        env_fault(i, .call = calls[i], .address = (uintptr_t)word_at(range, 8), .bytes = PAGE,
                  .every = 1, .error = 999);
    assert_error(xseg_pool_resume(info(range).pool), DRIVER, "999");
    for (unsigned i = 0; i < COUNT_OF(calls); i++)
        assert_ok(xseg_sim_fault_set(i, NULL));
    resume_pool(range);
    assert_int_equal(*word_at(range, 8), 7);
    *word_at(range, 0) = 8;
    assert_int_equal(*word_at(range, 8), 8);
    assert_int_equal(xseg_sim_used(0), PAGE);
    discard(range, NULL, {0, 1}, {8, 1});
}

TEST_OF_RANGE(unmapped_alias_does_not_block_a_pause, open_devices(NULL))
{
    xseg_stream stream = env_stream();

    commit(range, 0, 2, stream);
    env_launch_at(stream, word_at(range, 0), PAGE);
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

/* The range that committed the page is released before the last mapping.  Ranges of other pools cannot alias the page. */
TEST_OF_RANGE(a_pool_is_charged_until_the_last_mapping, open_devices(NULL))
{
    struct xseg_range *second_range = reserve_in_pool_of(allocator, range),
                      *range_of_another_pool = reserve(allocator);
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = info(range).pool};

    commit(range, 0, 1, NULL);
    assert_error(xseg_range_alias(range_of_another_pool, 0, PAGE, range, 0), ARGUMENT, "pools");
    alias(second_range, 4, range, 0);
    *word_at(range, 0) = 7;
    discard(range, NULL, {0, 1});
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(*word_at(second_range, 4), 7);
    decommit(second_range, 4, 1, NULL);
    assert_ok(xseg_stats_get(allocator, &scope, &stats));
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    release(second_range);
    release(range_of_another_pool);
}

/* The range is charged while any of its granules maps the page.  Other ranges that alias the page are not charged. */
TEST_OF_RANGE(a_range_is_charged_while_it_maps_the_page, open_devices(NULL))
{
    struct xseg_range *second_range = reserve_in_pool_of(allocator, range);

    commit(range, 0, 1, NULL);
    alias(range, 2, range, 0);
    alias(second_range, 4, range, 0);
    decommit(range, 0, 1, NULL);
    assert_int_equal(info(range).physical_bytes, PAGE);
    assert_int_equal(info(second_range).physical_bytes, 0);
    assert_int_equal(info(second_range).mapped_bytes, PAGE);
    decommit(range, 2, 1, NULL);
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(second_range).physical_bytes, 0);
    assert_int_equal(xseg_sim_used(0), PAGE);
    alias(range, 0, second_range, 4);
    assert_int_equal(info(range).physical_bytes, 0);
    decommit(range, 0, 1, NULL);
    decommit(second_range, 4, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
    release(second_range);
}

/* A commit of a granule whose page is aliased waits for the work before the decommit, and gets another page. */
TEST_OF_RANGE(commit_replaces_an_alias_by_a_new_page, open_devices(NULL))
{
    struct xseg_range *second_range = reserve_in_pool_of(allocator, range);
    xseg_stream stream = env_stream();

    commit(range, 0, 3, stream);
    *word_at(range, 0) = 7;
    alias(range, 8, range, 0);
    alias(second_range, 0, range, 1);
    decommit(range, 1, 1, stream);
    env_launch_at(stream, word_at(range, 8), PAGE);
    decommit(range, 8, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    assert_error(xseg_range_commit(range, 8 * PAGE, PAGE, stream), BUSY, "page is aliased");
    assert_ok(xseg_capture_unmark(allocator, 0));
    commit(range, 8, 1, stream);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)word_at(second_range, 0), PAGE));
    decommit(second_range, 0, 1, stream);
    commit(second_range, 0, 1, stream);
    *word_at(range, 8) = 9;
    assert_int_equal(*word_at(range, 0), 7);
    assert_int_equal(info(range).recommits, 0);
    assert_int_equal(info(second_range).recommits, 1); /* the last mapping */
    assert_ok(xseg_range_hold(range, 10 * PAGE, PAGE));
    alias(range, 10, range, 0);
    decommit(range, 10, 1, stream);
    assert_error(xseg_range_commit(range, 10 * PAGE, PAGE, stream), BUSY, "held");
    assert_ok(xseg_range_unhold(range, 10 * PAGE, PAGE, stream));
    discard(range, stream, {8, 1}, {0, 1}, {2, 1});
    discard(second_range, stream, {0, 1});
}

/* A commit of granules whose pages are aliased and pending unmap on different streams. */
TEST_OF_RANGE(a_commit_waits_for_all_streams, open_devices(NULL))
{
    xseg_stream stream[2] = {env_stream(), env_stream()};

    commit(range, 0, 2, stream[0]);
    for (unsigned i = 0; i < 2; i++) {
        alias(range, 8 + i, range, i);
        env_launch_at(stream[i], word_at(range, 8 + i), PAGE);
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

/* Release a range in the first notification. */
static void release_in_notification(void *context, const struct xseg_mapping *mapping)
{
    struct xseg_range **to_release = context, *range = *to_release;

    (void)mapping;
    *to_release = NULL;
    if (range != NULL)
        release(range);
}

/* Make memory of `pending` pending unmap, and add an observer that releases *to_release when this memory is unmapped. */
static uint64_t observe_release(struct xseg_allocator *allocator, struct xseg_range **to_release,
                                struct xseg_range *pending, xseg_stream stream)
{
    commit(pending, 0, 1, stream);
    env_launch_at(stream, word_at(pending, 0), PAGE);
    decommit(pending, 0, 1, stream);
    return env_observe(allocator, .context = to_release, .on_unmap = release_in_notification);
}

/* The range is released in a notification while its commit (case 0) or its release (case 1) waits for pending unmaps. */
TEST_ON(release_during_a_call_is_safe, open_devices(NULL))
{
    struct xseg_range *pending = reserve(allocator);
    xseg_stream stream = env_stream(), first = env_stream();

    for (unsigned i = 0; i < 2; i++) {
        struct xseg_range *range = reserve(allocator), *to_release = range;

        commit(range, 0, 1, stream);
        alias(range, 8, range, 0);
        env_launch_at(stream, word_at(range, 0), PAGE);
        const uint64_t id = observe_release(allocator, &to_release, pending, first);
        decommit(range, 0, 1, stream);
        decommit(range, 8, 1, stream);
        assert_ok(xseg_sim_finish(first));
        assert_error(i == 0 ? xseg_range_commit(range, 8 * PAGE, PAGE, stream)
                            : xseg_range_release(range),
                     ARGUMENT, "released");
        assert_null(to_release);
        assert_ok(xseg_observer_remove(allocator, id));
        assert_int_equal(xseg_sim_used(0), 0);
    }
    release(pending);
}

/* Sets a quota of a range in a notification. */
struct quota_change {
    struct xseg_range *range;
    uint64_t bytes;
    xseg_status status;
    unsigned count;
};

static void set_quota_in_notification(void *context, const struct xseg_mapping *mapping)
{
    struct quota_change *change = context;

    (void)mapping;
    if (change->count++ == 0)
        change->status = xseg_range_set_quota(change->range, change->bytes);
}

/* A quota that an observer sets while another change of the quota reclaims idle memory. */
TEST_OF_RANGE(quota_of_an_observer_outlives_a_failed_change, open_devices("hard_limit_mb:32"))
{
    struct quota_change change = {range, 4 * PAGE, XSEG_OK, 0};
    struct xseg_range *second_range = reserve(allocator);

    /* The limit is 16 pages. */
    assert_ok(xseg_range_set_quota(second_range, 10 * PAGE));
    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    const uint64_t id =
        env_observe(allocator, .on_unmap = set_quota_in_notification, .context = &change);
    assert_error(xseg_range_set_quota(range, 7 * PAGE), LIMIT, "");
    assert_true(change.count > 0);
    assert_ok(change.status);
    assert_int_equal(info(range).quota_bytes, 4 * PAGE);
    /* An observer cannot set a quota that exceeds the limit either. */
    change = (struct quota_change){range, 7 * PAGE, XSEG_OK, 0};
    env_free(allocator, env_alloc(allocator, PAGE, NULL));
    assert_ok(xseg_range_set_quota(range, 6 * PAGE));
    assert_true(change.count > 0);
    assert_int_equal(change.status, XSEG_ERR_LIMIT);
    assert_int_equal(info(range).quota_bytes, 6 * PAGE);
    assert_ok(xseg_observer_remove(allocator, id));
    release(second_range);
}

/* The range is released in a notification while idle memory is reclaimed for its quota. */
TEST_OF_RANGE(release_during_a_quota_change_is_safe, open_devices("hard_limit_mb:32"))
{
    struct xseg_range *pending = reserve(allocator), *to_release = range;

    commit(pending, 4, 4, NULL);
    const uint64_t id = observe_release(allocator, &to_release, pending, NULL);
    xseg_sim_finish_all();
    assert_error(xseg_range_set_quota(range, 16 * PAGE), ARGUMENT, "released");
    assert_null(to_release);
    assert_ok(xseg_observer_remove(allocator, id));
    discard(pending, NULL, {4, 4});
}
