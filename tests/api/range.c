/* SPDX-License-Identifier: MIT */
/* Elastic ranges: what commits and decommits do, what they cost, and what is refused. */
#include "xseg/range.h"

#include <string.h>

#include "tests/support/scene.h"

#define PAGE  (2 * MIB)
#define PAGES 64u

static struct xseg_range *reserve(struct xseg_allocator *allocator, uint64_t bytes)
{
    struct xseg_range *range = NULL;

    assert_int_equal(xseg_range_reserve(allocator, 0, bytes, NULL, &range), XSEG_OK);
    return range;
}

static struct xseg_range_info info(struct xseg_range *range)
{
    struct xseg_range_info out = XSEG_RANGE_INFO_INIT;

    assert_int_equal(xseg_range_info(range, &out), XSEG_OK);
    return out;
}

static void commit(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    assert_int_equal(xseg_range_commit(range, first * PAGE, count * PAGE, stream), XSEG_OK);
}

static void decommit(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    assert_int_equal(xseg_range_decommit(range, first * PAGE, count * PAGE, stream), XSEG_OK);
}

/* Work on granules that lasts until somebody waits, or the test says so. */
static void work(struct xseg_range *range, unsigned first, unsigned count, xseg_stream stream)
{
    const struct xseg_range_info at = info(range);

    scene_work_at(stream, (char *)at.base + first * PAGE, count * PAGE);
}

/* Release a range, what leaves of it as well. */
static void release(struct xseg_range *range)
{
    assert_int_equal(xseg_range_release(range), XSEG_OK);
}

static void memory_comes_and_goes(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);

    (void)state;
    assert_int_equal(xseg_sim_used(0), 0);
    commit(range, 3, 5, NULL);
    commit(range, 10, 1, NULL);
    work(range, 3, 5, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    const struct xseg_statistics stats = scene_stats(allocator);
    assert_int_equal(stats.reserved_bytes[0].current, 6 * PAGE);
    assert_int_equal(stats.allocated_bytes[0].current, 6 * PAGE);
    assert_int_equal(stats.allocation[0].current, 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    assert_int_equal(info(range).physical_bytes, 6 * PAGE);

    decommit(range, 4, 2, NULL);
    assert_int_equal(xseg_sim_used(0), 6 * PAGE);
    assert_int_equal(info(range).leaving_bytes, 2 * PAGE);
    assert_int_equal(scene_stats(allocator).active_bytes[0].current, 6 * PAGE);
    assert_int_equal(scene_stats(allocator).allocated_bytes[0].current, 4 * PAGE);
    xseg_sim_finish_all();
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    decommit(range, 6, 2, NULL);
    decommit(range, 10, 1, NULL);
    release(range);
    assert_int_equal(xseg_sim_used(0), 0);
    scene_close(allocator);
}

/* How often the driver has been called, but for questions about events. */
static uint64_t calls(void)
{
    return xseg_sim_calls(NULL);
}

static void taking_back_costs_nothing(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    xseg_stream other = scene_stream();

    (void)state;
    commit(range, 0, 8, NULL);
    work(range, 0, 8, NULL);
    decommit(range, 0, 8, NULL);
    uint64_t before = calls();
    commit(range, 2, 3, NULL);
    assert_int_equal(calls(), before);
    assert_int_equal(info(range).retaken, 3);
    /* Another stream waits on the device for the one that they leave with. */
    before = xseg_sim_calls("cuStreamWaitEvent");
    commit(range, 5, 3, other);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), before + 1);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    assert_int_equal(info(range).committed_bytes, 6 * PAGE);
    xseg_sim_finish_all();
    work(range, 2, 6, other);
    decommit(range, 2, 6, other);
    release(range);
    assert_int_equal(xseg_stream_gone(allocator, 0, other), XSEG_OK);
    scene_stream_destroy(other);
    scene_close(allocator);
}

static void calls_are_made_by_the_run(void **state)
{
    struct xseg_allocator *allocator = scene_open("page_cache_mb:1024");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);

    (void)state;
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
    scene_close(allocator);
}

static void bad_input_changes_nothing(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_range_options odd = XSEG_RANGE_OPTIONS_INIT;
    struct xseg_range *range = NULL, *none = NULL;

    (void)state;
    scene_expect_error(xseg_range_reserve(allocator, 0, MIB, NULL, &range), XSEG_ERR_ARGUMENT,
                       "1048576");
    odd.page_bytes = 3 * MIB;
    scene_expect_error(xseg_range_reserve(allocator, 0, 6 * MIB, &odd, &range), XSEG_ERR_ARGUMENT,
                       "page_bytes 3145728");
    scene_expect_error(xseg_range_reserve(allocator, 0, UINT64_MAX - PAGE + 1, NULL, &range),
                       XSEG_ERR_NO_ADDRESSES, "range");
    range = reserve(allocator, PAGES * PAGE);
    commit(range, 4, 4, NULL);
    const uint64_t before = calls();
    scene_expect_error(xseg_range_commit(range, 6 * PAGE, 4 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                       "offset 12582912 is committed");
    scene_expect_error(xseg_range_commit(range, MIB, PAGE, NULL), XSEG_ERR_ARGUMENT, "multiples");
    scene_expect_error(xseg_range_commit(range, 0, PAGE + 512, NULL), XSEG_ERR_ARGUMENT,
                       "multiples");
    scene_expect_error(xseg_range_commit(range, 60 * PAGE, 5 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                       "the range has");
    scene_expect_error(xseg_range_commit(range, UINT64_MAX - PAGE + 1, PAGE, NULL),
                       XSEG_ERR_ARGUMENT, "the range has");
    scene_expect_error(xseg_range_decommit(range, 3 * PAGE, 2 * PAGE, NULL), XSEG_ERR_ARGUMENT,
                       "not committed");
    scene_expect_error(xseg_range_let_go(range, 4 * PAGE, PAGE, NULL), XSEG_ERR_ARGUMENT,
                       "not held");
    scene_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "8388608 bytes");
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "live");
    scene_expect_error(xseg_free(allocator, info(range).base), XSEG_ERR_NOT_LIVE, "range");
    assert_int_equal(calls(), before);
    assert_int_equal(xseg_range_commit(range, 0, 0, NULL), XSEG_OK);
    assert_int_equal(info(range).committed_bytes, 4 * PAGE);
    decommit(range, 4, 4, NULL);
    scene_expect_error(xseg_range_decommit(range, 4 * PAGE, PAGE, NULL), XSEG_ERR_ARGUMENT,
                       "offset");
    release(range);
    scene_expect_error(xseg_range_commit(range, 0, PAGE, NULL), XSEG_ERR_ARGUMENT, "released");
    scene_expect_error(xseg_range_release(range), XSEG_ERR_ARGUMENT, "released");
    scene_expect_error(xseg_range_release(none), XSEG_ERR_ARGUMENT, "NULL");
    scene_close(allocator);
}

/* What is committed stays within the limits of the device, of the pool and of the range, and moves when memory is short. */
static void limits_and_shortage(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;
    struct xseg_range *range = NULL;

    (void)state;
    settings.memory_bytes = 64 * PAGE;
    struct xseg_allocator *allocator = scene_open_on(&settings, "hard_limit_mb:80");
    options.limit_bytes = 36 * PAGE;
    assert_int_equal(xseg_range_reserve(allocator, 0, PAGES * PAGE, &options, &range), XSEG_OK);
    scene_expect_error(xseg_range_commit(range, 0, 37 * PAGE, NULL), XSEG_ERR_LIMIT,
                       "of the range");
    commit(range, 0, 10, NULL);
    void *block = scene_alloc(allocator, 20 * MIB, NULL);
    scene_expect_error(xseg_range_commit(range, 10 * PAGE, 21 * PAGE, NULL), XSEG_ERR_LIMIT,
                       "hard_limit_mb");
    assert_int_equal(info(range).committed_bytes, 10 * PAGE);
    /* A cached block of another pool and another page size makes room. */
    scene_free(allocator, block);
    commit(range, 10, 26, NULL);
    assert_int_equal(xseg_sim_used(0), 36 * PAGE);
    scene_expect_error(xseg_alloc(allocator, 0, 20 * MIB, NULL, &block), XSEG_ERR_LIMIT,
                       "live 72.00 MiB");
    decommit(range, 0, 36, NULL);
    block = scene_alloc(allocator, 20 * MIB, NULL);
    scene_free(allocator, block);
    release(range);
    scene_close(allocator);
}

/* Map the page of a granule at another one as well. */
static void share(struct xseg_range *range, unsigned to, unsigned from)
{
    assert_int_equal(xseg_range_share(range, to * PAGE, PAGE, range, from * PAGE), XSEG_OK);
}

/* Places of a page that are given up in one call, the younger ones before the older, and another one that stays: the
 * page is counted there, and goes with it. */
static void places_of_one_page_go_together(void **state)
{
    struct xseg_allocator *allocator = scene_open("page_cache_mb:1024");
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    xseg_stream stream = scene_stream(), other = scene_stream();

    (void)state;
    commit(range, 2, 1, stream);
    share(range, 1, 2);
    share(range, 0, 2);
    share(range, 5, 2);
    work(range, 0, 3, stream);
    work(range, 5, 1, other);
    decommit(range, 0, 3, stream);
    assert_int_equal(scene_stats(allocator).allocated_bytes[0].current, PAGE);
    decommit(range, 5, 1, other);
    assert_int_equal(scene_stats(allocator).allocated_bytes[0].current, 0);
    assert_int_equal(scene_stats(allocator).active_bytes[0].current, PAGE);
    assert_int_equal(xseg_sim_finish(stream), XSEG_OK);
    commit(range, 20, 1, stream);
    assert_int_equal(info(range).mapped_bytes, 2 * PAGE);
    assert_int_equal(info(range).physical_bytes, 2 * PAGE);
    assert_int_equal(xseg_sim_used(0), 2 * PAGE);
    decommit(range, 20, 1, stream);
    release(range);
    assert_int_equal(xseg_stream_gone(allocator, 0, stream), XSEG_OK);
    assert_int_equal(xseg_stream_gone(allocator, 0, other), XSEG_OK);
    scene_stream_destroy(stream);
    scene_stream_destroy(other);
    scene_close(allocator);
}

/* A range at its own limit waits for what leaves it.  If the device is full then, idle memory elsewhere is taken. */
static void a_full_range_on_a_full_device(void **state)
{
    struct xseg_allocator *allocator = scene_open("hard_limit_mb:10");
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;
    struct xseg_range *range = NULL, *other = reserve(allocator, PAGES * PAGE);
    xseg_stream stream = scene_stream();

    (void)state;
    options.limit_bytes = 4 * PAGE;
    assert_int_equal(xseg_range_reserve(allocator, 0, PAGES * PAGE, &options, &range), XSEG_OK);
    commit(range, 0, 4, stream);
    /* The page of the granule that leaves is held elsewhere, so it is of no use here. */
    assert_int_equal(xseg_range_share(other, 0, PAGE, range, 0), XSEG_OK);
    assert_int_equal(xseg_range_hold(other, 0, PAGE), XSEG_OK);
    decommit(other, 0, 1, stream);
    scene_free(allocator, scene_alloc(allocator, MIB, stream));
    work(range, 0, 1, stream);
    decommit(range, 0, 1, stream);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    commit(range, 8, 1, stream);
    assert_int_equal(info(range).physical_bytes, 4 * PAGE);
    assert_int_equal(xseg_sim_used(0), 5 * PAGE);
    assert_int_equal(xseg_range_let_go(other, 0, PAGE, stream), XSEG_OK);
    decommit(range, 1, 3, stream);
    decommit(range, 8, 1, stream);
    release(other);
    release(range);
    assert_int_equal(xseg_stream_gone(allocator, 0, stream), XSEG_OK);
    scene_stream_destroy(stream);
    scene_close(allocator);
}

/* Pages that a refused commit has made are not kept beyond page_cache_mb. */
static void a_refusal_in_a_capture_keeps_no_pages(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_range *range = reserve(allocator, PAGES * PAGE);
    xseg_stream stream = scene_stream(), other = scene_stream();

    (void)state;
    commit(range, 1, 1, stream);
    work(range, 1, 1, stream);
    decommit(range, 1, 1, stream);
    assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    scene_expect_error(xseg_range_commit(range, 0, 3 * PAGE, other), XSEG_ERR_BUSY, "capture");
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
    release(range);
    assert_int_equal(xseg_stream_gone(allocator, 0, stream), XSEG_OK);
    assert_int_equal(xseg_stream_gone(allocator, 0, other), XSEG_OK);
    scene_stream_destroy(stream);
    scene_stream_destroy(other);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_and_goes),
        cmocka_unit_test(taking_back_costs_nothing),
        cmocka_unit_test(calls_are_made_by_the_run),
        cmocka_unit_test(bad_input_changes_nothing),
        cmocka_unit_test(limits_and_shortage),
        cmocka_unit_test(places_of_one_page_go_together),
        cmocka_unit_test(a_full_range_on_a_full_device),
        cmocka_unit_test(a_refusal_in_a_capture_keeps_no_pages),
    };

    return cmocka_run_group_tests_name("range", tests, NULL, NULL);
}
