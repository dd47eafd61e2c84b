/* SPDX-License-Identifier: MIT */
/* Aliases of pages of ranges: charges, pauses, and commits of granules that are pending unmap with an aliased page. */
#include <string.h>

#include "tests/support/ranges.h"
#include "xseg/observer.h"
#include "xseg/range.h"
#include "xseg/share.h"

#define GRANULES 16u

static struct xseg_range *reserve(struct xseg_allocator *allocator)
{
    struct xseg_range *range = NULL;

    assert_ok(xseg_range_reserve(allocator, 0, GRANULES * PAGE, NULL, &range));
    return range;
}

/* A range of the same pool. */
static struct xseg_range *reserve_beside(struct xseg_allocator *allocator, struct xseg_range *range)
{
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_range *other = NULL;

    options.pool = info(range).pool;
    assert_ok(xseg_range_reserve(allocator, 0, GRANULES * PAGE, &options, &other));
    return other;
}

static uint32_t *word(struct xseg_range *range, unsigned at)
{
    return (uint32_t *)(void *)((char *)info(range).base + at * PAGE);
}

static void pause(struct xseg_range *range)
{
    assert_ok(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(info(range).physical_bytes, 0);
    assert_int_equal(info(range).mapped_bytes, 0);
}

static void resume(struct xseg_range *range)
{
    assert_ok(xseg_pool_resume(info(range).pool));
}

/* A pause releases an aliased page once; a resume maps one page at all granules, with its contents. */
TEST(a_pause_unmaps_all_aliases)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);

    commit(range, 0, 3, NULL);
    alias(range, 8, range, 1);
    alias(range, 10, range, 1);
    *word(range, 8) = 7;
    *word(range, 2) = 8;
    pause(range);
    assert_int_equal(xseg_sim_used(0), 0);
    resume(range);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(info(range).mapped_bytes, 5 * PAGE);
    assert_int_equal(*word(range, 1), 7);
    assert_int_equal(*word(range, 2), 8);
    *word(range, 10) = 9;
    assert_int_equal(*word(range, 1), 9);
    assert_int_equal(*word(range, 8), 9);
    decommit(range, 0, 3, NULL);
    pause(range);
    resume(range);
    assert_int_equal(*word(range, 8), 9);
    assert_int_equal(xseg_sim_used(0), PAGE);
    decommit(range, 8, 1, NULL);
    decommit(range, 10, 1, NULL);
    release(range);
    env_close(allocator);
}

/* Work that may use the memory is in the way of a pause. */
TEST(work_is_in_the_way)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);
    xseg_stream stream = env_stream();

    commit(range, 0, 1, stream);
    env_launch_at(stream, word(range, 0), PAGE);
    env_expect_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY,
                     "has pending work");
    assert_ok(xseg_sim_finish(stream));
    pause(range);
    resume(range);
    decommit(range, 0, 1, stream);
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* Each stream for which granules were committed is in the way, however many there are, and whose entry it has. */
TEST(any_of_many_streams_is_in_the_way)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);
    xseg_stream stream[9];

    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        stream[i] = env_stream();
        commit(range, i, 1, stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        env_launch_at(stream[i], word(range, i), PAGE);
        env_expect_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY,
                         "has pending work");
        assert_ok(xseg_sim_finish(stream[i]));
        decommit(range, i, 1, stream[i]);
        assert_ok(xseg_stream_retire(allocator, 0, stream[i]));
        env_stream_destroy(stream[i]);
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        stream[i] = env_stream();
        commit(range, i, 1, stream[i]);
        env_launch_at(stream[i], word(range, i), PAGE);
        env_expect_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY,
                         "has pending work");
        assert_ok(xseg_sim_finish(stream[i]));
    }
    for (unsigned i = 0; i < COUNT_OF(stream); i++) {
        decommit(range, i, 1, stream[i]);
        assert_ok(xseg_stream_retire(allocator, 0, stream[i]));
        env_stream_destroy(stream[i]);
    }
    release(range);
    env_close(allocator);
}

/* Let calls about a granule fail. */
static void refuse(unsigned slot, const char *call, struct xseg_range *range, unsigned at)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.call = call;
    fault.address = (uintptr_t)word(range, at);
    fault.bytes = PAGE;
    fault.every = 1;
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(slot, &fault));
}

static void refuse_nothing(void)
{
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_ok(xseg_sim_fault_set(1, NULL));
}

/* After a resume that failed and could not be undone, the next one maps one page at all granules. */
TEST(a_resume_maps_one_page_at_all_aliases)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);

    commit(range, 0, 1, NULL);
    alias(range, 8, range, 0);
    *word(range, 0) = 7;
    pause(range);
    refuse(0, "cuMemSetAccess", range, 8);
    refuse(1, "cuMemUnmap", range, 8);
    env_expect_error(xseg_pool_resume(info(range).pool), XSEG_ERR_DRIVER, "999");
    refuse_nothing();
    resume(range);
    assert_int_equal(*word(range, 8), 7);
    *word(range, 0) = 8;
    assert_int_equal(*word(range, 8), 8);
    assert_int_equal(xseg_sim_used(0), PAGE);
    decommit(range, 0, 1, NULL);
    decommit(range, 8, 1, NULL);
    release(range);
    env_close(allocator);
}

/* Memory that leaves, and whose stream has passed, is in no pause's way: it goes. */
TEST(what_has_left_is_not_in_the_way)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);
    xseg_stream stream = env_stream();

    commit(range, 0, 2, stream);
    env_launch_at(stream, word(range, 0), PAGE);
    decommit(range, 0, 1, stream);
    assert_ok(xseg_sim_finish(stream));
    pause(range);
    assert_int_equal(info(range).pending_unmap_bytes, 0);
    resume(range);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_ok(xseg_range_hold(range, PAGE, PAGE));
    decommit(range, 1, 1, stream);
    env_expect_error(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY,
                     "held in a range");
    assert_ok(xseg_range_unhold(range, PAGE, PAGE, stream));
    release(range);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* The pool is charged until the last mapping is removed, whichever range committed the page; ranges of other pools have no
 * part in it. */
TEST(a_pool_is_charged_until_the_last_mapping)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator), *other = reserve_beside(allocator, range);
    struct xseg_range *third = reserve(allocator);
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.pool = info(range).pool;
    commit(range, 0, 1, NULL);
    env_expect_error(xseg_range_alias(third, 0, PAGE, range, 0), XSEG_ERR_ARGUMENT, "pools");
    alias(other, 4, range, 0);
    *word(range, 0) = 7;
    decommit(range, 0, 1, NULL);
    release(range);
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, PAGE);
    assert_int_equal(*word(other, 4), 7);
    decommit(other, 4, 1, NULL);
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    release(other);
    release(third);
    env_close(allocator);
}

/* The range that committed a page is charged for it as long as it maps the page, at whichever granule; ranges with aliases are
 * not. */
TEST(a_range_is_charged_while_it_maps_the_page)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator), *other = reserve_beside(allocator, range);

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
    env_close(allocator);
}

/* A granule that leaves with a page of others gets one of its own, behind the work that it left with. */
TEST(a_commit_gives_a_page_of_its_own)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator), *reader = reserve_beside(allocator, range);
    xseg_stream stream = env_stream();

    commit(range, 0, 3, stream);
    *word(range, 0) = 7;
    alias(range, 8, range, 0);
    alias(reader, 0, range, 1);
    decommit(range, 1, 1, stream);
    env_launch_at(stream, word(range, 8), PAGE);
    decommit(range, 8, 1, stream);
    assert_ok(xseg_capture_mark(allocator, 0));
    env_expect_error(xseg_range_commit(range, 8 * PAGE, PAGE, stream), XSEG_ERR_BUSY,
                     "page is aliased");
    assert_ok(xseg_capture_unmark(allocator, 0));
    commit(range, 8, 1, stream);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)word(reader, 0), PAGE));
    decommit(reader, 0, 1, stream);
    commit(reader, 0, 1, stream);
    *word(range, 8) = 9;
    assert_int_equal(*word(range, 0), 7);
    assert_int_equal(info(range).recommits, 0);
    assert_int_equal(info(reader).recommits, 1); /* no other mapping was left */
    assert_ok(xseg_range_hold(range, 10 * PAGE, PAGE));
    alias(range, 10, range, 0);
    decommit(range, 10, 1, stream);
    env_expect_error(xseg_range_commit(range, 10 * PAGE, PAGE, stream), XSEG_ERR_BUSY, "held");
    assert_ok(xseg_range_unhold(range, 10 * PAGE, PAGE, stream));
    decommit(range, 8, 1, stream);
    decommit(range, 0, 1, stream);
    decommit(range, 2, 1, stream);
    decommit(reader, 0, 1, stream);
    release(range);
    release(reader);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* So do several, whichever streams they leave with. */
TEST(a_commit_waits_for_all_streams)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *range = reserve(allocator);
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
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_stream_retire(allocator, 0, stream[i]));
        env_stream_destroy(stream[i]);
    }
    env_close(allocator);
}

/* A range that an observer ends, once, as soon as it is told of anything. */
static void end_range(void *context, const struct xseg_mapping *mapping)
{
    struct xseg_range **range = context, *ended = *range;

    (void)mapping;
    *range = NULL;
    if (ended != NULL)
        release(ended);
}

/* Let memory of a range leave behind work on a stream, and an observer that is told of that end another range. */
static uint64_t observe_the_end(struct xseg_allocator *allocator, struct xseg_range **ended,
                                struct xseg_range *other, xseg_stream stream)
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;

    commit(other, 0, 1, stream);
    env_launch_at(stream, word(other, 0), PAGE);
    decommit(other, 0, 1, stream);
    observer.context = ended;
    observer.on_unmap = end_range;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    return id;
}

/* A range may end while a call about it waits for what its granules leave with, and observers are told of others. */
TEST(a_range_ends_beneath_a_call)
{
    struct xseg_allocator *allocator = open_devices(NULL);
    struct xseg_range *other = reserve(allocator);
    xseg_stream stream = env_stream(), first = env_stream();

    for (unsigned i = 0; i < 2; i++) {
        struct xseg_range *range = reserve(allocator), *ended = range;

        commit(range, 0, 1, stream);
        alias(range, 8, range, 0);
        env_launch_at(stream, word(range, 0), PAGE);
        const uint64_t id = observe_the_end(allocator, &ended, other, first);
        decommit(range, 0, 1, stream);
        decommit(range, 8, 1, stream);
        assert_ok(xseg_sim_finish(first));
        env_expect_error(i == 0 ? xseg_range_commit(range, 8 * PAGE, PAGE, stream)
                                : xseg_range_release(range),
                         XSEG_ERR_ARGUMENT, "released");
        assert_null(ended);
        assert_ok(xseg_observer_remove(allocator, id));
        assert_int_equal(xseg_sim_used(0), 0);
    }
    release(other);
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    env_stream_destroy(stream, first);
    env_close(allocator);
}

/* Or while idle memory is given back for a quota. */
TEST(a_range_ends_beneath_a_quota)
{
    struct xseg_allocator *allocator = open_devices("hard_limit_mb:32");
    struct xseg_range *range = reserve(allocator), *other = reserve(allocator);
    struct xseg_range *ended = range;

    commit(other, 4, 4, NULL);
    const uint64_t id = observe_the_end(allocator, &ended, other, NULL);
    xseg_sim_finish_all();
    env_expect_error(xseg_range_set_quota(range, 16 * PAGE), XSEG_ERR_ARGUMENT, "released");
    assert_null(ended);
    assert_ok(xseg_observer_remove(allocator, id));
    decommit(other, 4, 4, NULL);
    release(other);
    env_close(allocator);
}
