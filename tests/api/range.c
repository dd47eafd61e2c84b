/* SPDX-License-Identifier: MIT */
/* Elastic ranges: what commits and decommits do, what they cost, and what is refused. */
#include "xseg/range.h"
#include "tests/support/exported_handles.h"
#include "tests/support/trim_due.h"

#include <string.h>

#include "tests/support/ranges.h"

#define PAGES 64u

static struct xseg_range *reserve(struct xseg_allocator *allocator, uint64_t bytes)
{
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, bytes, NULL, &range));
    return range;
}

/* Work on granules that lasts until somebody waits, or the test says so. */
static void work(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    const struct xseg_range_info at = info(range);

    env_launch_at(stream, (char *)at.base + first * PAGE, count * PAGE);
}

TEST(memory_comes_and_goes)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);

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
    decommit(range, 6, 2, NULL);
    decommit(range, 10, 1, NULL);
    release(range);
    assert_int_equal(xseg_sim_used(0), 0);
    env_close(allocator);
}

/* How often the driver has been called, but for questions about events. */
static uint64_t calls(void)
{
    return xseg_sim_calls(NULL);
}

TEST(taking_back_costs_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    xseg_stream other = env_stream();

    commit(range, 0, 8, NULL);
    work(range, 0, 8, NULL);
    decommit(range, 0, 8, NULL);
    uint64_t before = calls();
    commit(range, 2, 3, NULL);
    assert_int_equal(calls(), before);
    assert_int_equal(info(range).recommits, 3);
    /* Another stream waits on the device for the one that they leave with. */
    before = xseg_sim_calls("cuStreamWaitEvent");
    commit(range, 5, 3, other);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), before + 1);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    xseg_sim_finish_all();
    work(range, 2, 6, other);
    decommit(range, 2, 6, other);
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, other));
    env_stream_destroy(other);
    env_close(allocator);
}

TEST(calls_are_made_by_the_run)
{
    struct xseg_allocator *allocator = env_open("page_cache_mb:1024");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);

    uint64_t access = xseg_sim_calls("cuMemSetAccess");
    commit(range, 0, 16, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") >= 16, true);
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
    decommit(range, 20, 16, NULL);
    release(range);
    env_close(allocator);
}

#define TIB ((uint64_t)1 << 40)

TEST(bad_input_changes_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range_options odd = {sizeof(odd)};
    struct xseg_range *range = NULL, *none = NULL;

    env_expect_error(xseg_range_reserve(allocator, 0, MIB, NULL, &range), XSEG_ERR_ARGUMENT,
                     "1048576");
    odd.page_bytes = 3 * MIB;
    env_expect_error(xseg_range_reserve(allocator, 0, 6 * MIB, &odd, &range), XSEG_ERR_ARGUMENT,
                     "page_bytes is not a multiple of the granularity of device 0, 3145728 bytes");
    /* Segments have addresses, too, so the reason is the limit and not what is reserved. */
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    env_expect_error(xseg_range_reserve(allocator, 0, UINT64_MAX - PAGE + 1, NULL, &range),
                     XSEG_ERR_NO_ADDRESSES, "reserve at most 35184372088832 bytes (32 TiB)");
    env_expect_error(xseg_range_reserve(allocator, 0, 32 * TIB + PAGE, NULL, &range),
                     XSEG_ERR_NO_ADDRESSES,
                     "size exceeds the virtual addresses of a device, 35184374185984 bytes");
    range = reserve(allocator, 20 * TIB);
    env_expect_error(xseg_range_reserve(allocator, 0, 20 * TIB, NULL, &none), XSEG_ERR_NO_ADDRESSES,
                     "out of virtual addresses on device 0, 21990232555520 bytes requested");
    assert_ok(xseg_range_release(range));
    range = reserve(allocator, PAGES * PAGE);
    commit(range, 4, 4, NULL);
    const uint64_t before = calls();
    env_expect_error(xseg_range_commit(range, 6 * PAGE, 4 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "granule is committed, offset 12582912");
    env_expect_error(xseg_range_commit(range, MIB, PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "not a multiple of the page size");
    env_expect_error(xseg_range_commit(range, 0, PAGE + 512, NULL), XSEG_ERR_ARGUMENT,
                     "not a multiple of the page size");
    env_expect_error(xseg_range_commit(range, 60 * PAGE, 5 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "the range has");
    env_expect_error(xseg_range_commit(range, UINT64_MAX - PAGE + 1, PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "the range has");
    env_expect_error(xseg_range_decommit(range, 3 * PAGE, 2 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "not committed");
    env_expect_error(xseg_range_decommit(range, 6 * PAGE, 3 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                     "granule is not committed, offset 16777216");
    env_expect_error(xseg_range_unhold(range, 4 * PAGE, PAGE, NULL), XSEG_ERR_ARGUMENT, "not held");
    env_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "8388608 bytes");
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "blocks are allocated");
    env_expect_error(xseg_free(allocator, info(range).base), XSEG_ERR_NOT_ALLOCATED, "range");
    assert_int_equal(calls(), before);
    assert_ok(xseg_range_commit(range, 0, 0, NULL));
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    decommit(range, 4, 4, NULL);
    env_expect_error(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL), XSEG_ERR_ARGUMENT, "offset");
    release(range);
    env_expect_error(xseg_range_commit(range, 0, PAGE, NULL), XSEG_ERR_ARGUMENT, "released");
    env_expect_error(xseg_range_release(range), XSEG_ERR_ARGUMENT, "released");
    env_expect_error(xseg_range_release(none), XSEG_ERR_ARGUMENT, "NULL");
    env_close(allocator);
}

/* What is committed stays within the limits of the device, of the pool and of the range, and moves when memory is short. */
TEST(limits_and_shortage)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 64 * PAGE};
    struct xseg_range_options options = {sizeof(options), .limit_bytes = 36 * PAGE};
    struct xseg_range *range = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, "hard_limit_mb:80");
    assert_ok(xseg_range_reserve(allocator, 0, PAGES * PAGE, &options, &range));
    assert_int_equal(info(range).limit_bytes, 36 * PAGE);
    env_expect_error(xseg_range_commit(range, 0, 37 * PAGE, NULL), XSEG_ERR_LIMIT, "of the range");
    commit(range, 0, 10, NULL);
    void *block = env_alloc(allocator, 20 * MIB, NULL);
    env_expect_error(xseg_range_commit(range, 10 * PAGE, 21 * PAGE, NULL), XSEG_ERR_LIMIT,
                     "hard_limit_mb");
    assert_int_equal(info(range).committed_bytes, 10 * PAGE);
    /* A cached block of another pool and another page size makes room. */
    env_free(allocator, block);
    commit(range, 10, 26, NULL);
    assert_int_equal(xseg_sim_used(0), 36 * PAGE);
    env_expect_error(xseg_alloc(allocator, 0, 20 * MIB, NULL, &block), XSEG_ERR_LIMIT,
                     "72.00 MiB allocated");
    decommit(range, 0, 36, NULL);
    block = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, block);
    release(range);
    env_close(allocator);
}

/* Three mappings of a page are decommitted in one call, and a fourth one later: the page is charged until then. */
TEST(mappings_of_one_page_go_together)
{
    struct xseg_allocator *allocator = env_open("page_cache_mb:1024");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
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
    decommit(range, 20, 1, stream);
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_stream_retire(allocator, 0, other));
    env_stream_destroy(stream, other);
    env_close(allocator);
}

/* A range at its own limit waits for what leaves it.  If the device is full then, idle memory elsewhere is taken. */
TEST(a_full_range_on_a_full_device)
{
    struct xseg_allocator *allocator = env_open("hard_limit_mb:10");
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_range *range = NULL, *other = reserve(allocator, PAGES * PAGE);
    xseg_stream stream = env_stream();

    options.limit_bytes = 4 * PAGE;
    options.pool = info(other).pool;
    assert_ok(xseg_range_reserve(allocator, 0, PAGES * PAGE, &options, &range));
    commit(range, 0, 4, stream);
    /* The page of the granule that leaves is held elsewhere, so it is of no use here. */
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
    decommit(range, 1, 3, stream);
    decommit(range, 8, 1, stream);
    release(other);
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* Pages that a refused commit has made are not kept beyond page_cache_mb. */
TEST(a_refusal_in_a_capture_keeps_no_pages)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    xseg_stream stream = env_stream(), other = env_stream();

    commit(range, 1, 1, stream);
    work(range, 1, 1, stream);
    decommit(range, 1, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    env_expect_error(xseg_range_commit(range, 0, 3 * PAGE, other), XSEG_ERR_BUSY, "capture");
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_capture_unmark(allocator, 0));
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_stream_retire(allocator, 0, other));
    env_stream_destroy(stream, other);
    env_close(allocator);
}

static struct xseg_allocator *open_with_bytes(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB, .real_bytes = true};

    return env_open_on(&settings, config);
}

/* A range is paused and resumed with its pool, contents and all; holds are no obstacle. */
TEST(a_pool_pauses_its_ranges)
{
    struct xseg_allocator *allocator = open_with_bytes(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
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
    env_expect_error(xseg_range_commit(range, 9 * PAGE, PAGE, NULL), XSEG_ERR_PAUSED, "paused");
    env_expect_error(xseg_range_decommit(range, 0, PAGE, NULL), XSEG_ERR_PAUSED, "paused");
    env_expect_error(xseg_range_release(range), XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(word[5 * PAGE / 4], 7);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    decommit(range, 0, 3, NULL);
    decommit(range, 5, 1, NULL);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_range_unhold(range, 5 * PAGE, PAGE, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    release(range);
    env_close(allocator);
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

/* A held granule keeps its page over a decommit, so the allocator cannot be closed before the hold is released. */
TEST(a_held_granule_keeps_the_allocator_open)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, PAGES * PAGE, NULL, &range));
    commit(range, 0, 3, NULL);
    assert_ok(xseg_range_hold(range, PAGE, 4 * PAGE));
    decommit(range, 0, 3, NULL);
    /* Granules 1 and 2 are held; granules 3 and 4 have no memory. */
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY,
                     "decommitted granules are held, 4194304 bytes on device 0; call "
                     "xseg_range_unhold() first");
    assert_ok(xseg_range_unhold(range, PAGE, 4 * PAGE, NULL));
    assert_ok(xseg_close(allocator));
}

/* Pinned and exported granules keep their page over a decommit, and go once they are let go of. */
TEST(what_is_held_stays)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range_options options = {sizeof(options), .exportable = true};
    struct xseg_registrar registrar = {sizeof(registrar)};
    struct exported_handles exported;
    struct xseg_range *range = NULL;
    uint64_t id = 0;
    unsigned runs = 0;

    assert_ok(xseg_range_reserve(allocator, 0, PAGES * PAGE, &options, &range));
    char *base = info(range).base;
    commit(range, 0, 4, NULL);
    assert_ok(xseg_pin(allocator, base + PAGE, 2 * PAGE));
    decommit(range, 0, 3, NULL);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    env_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "committed");
    assert_ok(xseg_unpin(allocator, base + PAGE, 2 * PAGE));
    assert_ok(export_handles(allocator, base + 3 * PAGE, XSEG_HANDLE_FD, &exported));
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), PAGE);
    env_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "exported");
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, base + 3 * PAGE));
    registrar.context = &runs;
    registrar.enter = enter;
    registrar.leave = leave;
    commit(range, 0, 1, NULL);
    assert_ok(xseg_register(allocator, base, 4 * PAGE, &registrar, &id));
    commit(range, 2, 1, NULL);
    assert_int_equal(runs, 2);
    decommit(range, 0, 1, NULL);
    decommit(range, 2, 1, NULL);
    assert_int_equal(runs, 0);
    env_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "registered");
    assert_ok(xseg_unregister(allocator, id));
    release(range);
    assert_int_equal(xseg_sim_used(0), 0);
    env_close(allocator);
}

/* What is let go of leaves with the stream that it was decommitted on as well as with the one that let go of it. */
TEST(what_is_let_go_of_waits_for_both_streams)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
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
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_stream_retire(allocator, 0, other));
    env_stream_destroy(stream, other);
    env_close(allocator);
}

struct seen {
    uint64_t live, pending, hole;
    xseg_stream waits_for;
};

static bool see_block(void *context, const struct xseg_block_info *block)
{
    struct seen *seen = context;

    seen->live += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
    seen->pending += block->state == XSEG_BLOCK_PENDING_FREE ? block->bytes : 0;
    seen->hole += block->state == XSEG_BLOCK_UNMAPPED ? block->bytes : 0;
    return true;
}

static bool see_mapping(void *context, const struct xseg_mapping *mapping)
{
    *(uint64_t *)context += mapping->bytes;
    return true;
}

/* The reason of what leaves names the stream that it leaves with. */
static bool see_reason(void *context, const struct xseg_reason *reason)
{
    struct seen *seen = context;

    if (reason->kind == XSEG_REASON_PENDING && reason->has_waits_for)
        seen->waits_for = reason->waits_for;
    return true;
}

TEST(questions_know_ranges)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    struct xseg_explain_result explained = {sizeof(explained)};
    xseg_stream stream = env_stream();
    struct seen seen = {0, 0, 0, NULL};
    uint64_t mapped = 0;

    commit(range, 2, 6, stream);
    work(range, 2, 6, stream);
    decommit(range, 4, 2, stream);
    assert_ok(xseg_for_each_block(allocator, NULL, see_block, &seen));
    assert_int_equal(seen.live, 4 * PAGE);
    assert_int_equal(seen.pending, 2 * PAGE);
    assert_int_equal(seen.hole, (PAGES - 6) * PAGE);
    assert_ok(xseg_explain(allocator, NULL, see_reason, &seen, &explained));
    assert_ptr_equal(seen.waits_for, stream);
    assert_int_equal(explained.allocated, 4 * PAGE);
    assert_int_equal(explained.pending, 2 * PAGE);
    assert_int_equal(explained.reserved, 6 * PAGE);
    assert_ok(xseg_for_each_mapping(allocator, NULL, see_mapping, &mapped));
    assert_int_equal(mapped, 6 * PAGE);
    assert_ok(xseg_snapshot(allocator, "/dev/null", NULL));
    const struct xseg_block_info block = env_block(allocator, (char *)info(range).base + 7 * PAGE);
    assert_ptr_equal(block.base, (char *)info(range).base + 6 * PAGE);
    assert_int_equal(block.bytes, 2 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 2, 2, NULL);
    decommit(range, 6, 2, NULL);
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* Prepared pages are left to their range, and go back after the time of idleness. */
TEST(prepared_pages_wait_for_their_range)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 64 * PAGE};

    struct xseg_allocator *allocator = env_open_with_clock(&settings, "idle_ms:1000");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    assert_ok(xseg_range_prepare(range, 8 * PAGE - 1));
    assert_int_equal(info(range).prepared_bytes, 8 * PAGE);
    void *block = env_alloc(allocator, MIB, NULL);
    assert_int_equal(info(range).prepared_bytes, 8 * PAGE);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    commit(range, 0, 3, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(info(range).prepared_bytes, 5 * PAGE);
    for (unsigned i = 0; i < 5; i++) {
        xseg_sim_advance(UINT64_C(1000000000));
        assert_ok(trim_due(allocator, 1000000));
    }
    assert_int_equal(info(range).prepared_bytes, 0);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    env_free(allocator, block);
    decommit(range, 0, 3, NULL);
    release(range);
    env_close(allocator);
}

/* A quota is kept from everything else, and cannot be promised twice. */
TEST(a_quota_is_kept)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 64 * PAGE};
    void *block = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, "hard_limit_mb:64");
    struct xseg_range *one = reserve(allocator, PAGES * PAGE),
                      *two = reserve(allocator, PAGES * PAGE);
    assert_ok(xseg_range_set_quota(one, 20 * PAGE));
    env_expect_error(xseg_range_set_quota(two, 13 * PAGE), XSEG_ERR_LIMIT,
                     "41943040 bytes reserved by quotas");
    env_expect_error(xseg_range_commit(two, 0, 13 * PAGE, NULL), XSEG_ERR_LIMIT, "");
    commit(two, 0, 12, NULL);
    env_expect_error(xseg_alloc(allocator, 0, MIB, NULL, &block), XSEG_ERR_LIMIT, "");
    commit(one, 0, 20, NULL);
    assert_int_equal(info(one).quota_bytes, 20 * PAGE);
    decommit(one, 0, 10, NULL);
    env_expect_error(xseg_alloc(allocator, 0, MIB, NULL, &block), XSEG_ERR_LIMIT, "");
    assert_ok(xseg_range_set_quota(one, 0));
    block = env_alloc(allocator, MIB, NULL);
    env_free(allocator, block);
    decommit(one, 10, 10, NULL);
    decommit(two, 0, 12, NULL);
    release(one);
    release(two);
    env_close(allocator);
}

/* A commit does not use the page of an alias that the driver did not unmap. */
TEST(a_stuck_alias_is_no_page_of_a_commit)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    struct xseg_sim_fault access = XSEG_SIM_FAULT_INIT, unmap = XSEG_SIM_FAULT_INIT;

    commit(range, 0, 1, NULL);
    access.call = "cuMemSetAccess";
    unmap.call = "cuMemUnmap";
    access.error = unmap.error = 999;
    unmap.every = 1;
    assert_ok(xseg_sim_fault_set(0, &access));
    assert_ok(xseg_sim_fault_set(1, &unmap));
    env_expect_error(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0), XSEG_ERR_DRIVER, "999");
    env_expect_error(xseg_range_commit(range, 3 * PAGE, 3 * PAGE, NULL), XSEG_ERR_DRIVER, "999");
    assert_int_equal(info(range).mapped_bytes, PAGE);
    assert_ok(xseg_sim_fault_set(1, NULL));
    commit(range, 3, 3, NULL);
    assert_int_equal(xseg_sim_used(0), 4 * PAGE);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    decommit(range, 0, 1, NULL);
    decommit(range, 3, 3, NULL);
    release(range);
    env_close(allocator);
}

/* Other granules of the range can be used. */
TEST(a_stuck_alias_blocks_no_other_granule)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    struct xseg_sim_fault access = XSEG_SIM_FAULT_INIT, unmap = XSEG_SIM_FAULT_INIT;

    commit(range, 0, 1, NULL);
    access.call = "cuMemSetAccess";
    unmap.call = "cuMemUnmap";
    access.error = unmap.error = 999;
    unmap.every = 1;
    assert_ok(xseg_sim_fault_set(0, &access));
    assert_ok(xseg_sim_fault_set(1, &unmap));
    env_expect_error(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0), XSEG_ERR_DRIVER, "999");
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    assert_ok(xseg_range_alias(range, 5 * PAGE, PAGE, range, 0));
    commit(range, 6, 1, NULL);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), unmaps);
    env_expect_error(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0), XSEG_ERR_DRIVER, "999");
    assert_ok(xseg_sim_fault_set(1, NULL));
    assert_ok(xseg_range_alias(range, 4 * PAGE, PAGE, range, 0));
    decommit(range, 0, 1, NULL);
    decommit(range, 4, 3, NULL);
    release(range);
    env_close(allocator);
}

/* A commit in a capture creates and maps; a decommit waits for its end, and a held granule longer. */
TEST(captures_see_ranges)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    struct xseg_pool *pool = env_pool(allocator);
    xseg_stream stream = env_stream();

    commit(range, 0, 4, stream);
    env_capture_begin(pool, stream);
    commit(range, 4, 2, stream);
    assert_ok(xseg_range_hold(range, 4 * PAGE, PAGE));
    decommit(range, 0, 2, stream);
    decommit(range, 4, 2, stream);
    commit(range, 0, 1, stream);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    env_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "committed");
    struct CUgraph_st *graph = env_capture_end_graph(pool, stream);
    /* The first look records the events, the next one finds them complete. */
    commit(range, 10, 1, stream);
    commit(range, 11, 1, stream);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE + PAGE + 2 * PAGE);
    assert_ok(xseg_range_unhold(range, 4 * PAGE, PAGE, stream));
    decommit(range, 10, 2, stream);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    env_graph_destroy(graph);
    decommit(range, 0, 1, stream);
    decommit(range, 2, 2, stream);
    release(range);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

TEST(a_range_without_memory_ends_with_the_allocator)
{
    struct xseg_allocator *allocator = env_open("page_cache_mb:100");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);

    commit(range, 0, 4, NULL);
    work(range, 0, 4, NULL);
    decommit(range, 0, 4, NULL);
    assert_ok(xseg_range_prepare(range, 2 * PAGE));
    env_close(allocator);
}

TEST(a_lost_device_keeps_its_host_side)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE), *other = reserve(allocator, PAGE);

    commit(range, 0, 4, NULL);
    decommit(range, 0, 1, NULL);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 700));
    env_expect_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), XSEG_ERR_DEVICE_LOST, "");
    env_expect_error(xseg_range_commit(range, 8 * PAGE, PAGE, NULL), XSEG_ERR_DEVICE_LOST, "");
    env_expect_error(xseg_range_alias(other, 0, PAGE, range, PAGE), XSEG_ERR_DEVICE_LOST, "");
    env_expect_error(xseg_range_prepare(range, PAGE), XSEG_ERR_DEVICE_LOST, "");
    decommit(range, 1, 3, NULL);
    release(range);
    assert_ok(xseg_close(allocator));
}
