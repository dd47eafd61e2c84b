/* SPDX-License-Identifier: MIT */
/* The page of zeros beneath granules without memory: what is read there, what it counts as, and what it costs. */
#include <string.h>

#include "tests/support/ranges.h"
#include "xseg/peer.h"
#include "xseg/range.h"

#define GRANULES 12u

static struct xseg_range *reserve(struct xseg_allocator *allocator)
{
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;
    struct xseg_range *range = NULL;

    options.zero_page = true;
    assert_int_equal(xseg_range_reserve(allocator, 0, GRANULES * PAGE, &options, &range), XSEG_OK);
    return range;
}

static uint32_t *word(struct xseg_range *range, unsigned at)
{
    return (uint32_t *)(void *)((char *)info(range).base + at * PAGE + PAGE / 2);
}

static unsigned right(struct xseg_range *range, unsigned at, int device)
{
    return right_at(word(range, at), device);
}

/* Each granule has its own memory, which can be written, or zeros. */
static void expect(struct xseg_range *range, const char *committed, unsigned zeros)
{
    for (unsigned at = 0; at < GRANULES; at++) {
        assert_int_equal(right(range, at, 0), committed[at] == 'c' ? WRITE : zeros);
        if (committed[at] != 'c')
            assert_int_equal(*word(range, at), 0);
    }
}

static void holes_read_as_zeros(void **state)
{
    struct xseg_allocator *allocator = open_devices(NULL, false);
    struct xseg_range *range = reserve(allocator);

    (void)state;
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_int_equal(scene_stats(allocator).allocated_bytes[0].current, PAGE);
    assert_int_equal(info(range).physical_bytes, PAGE);
    assert_int_equal(info(range).mapped_bytes, 0);
    expect(range, "............", READ);
    commit(range, 2, 3, NULL);
    for (unsigned at = 2; at < 5; at++)
        *word(range, at) = at;
    expect(range, "..ccc.......", READ);
    assert_int_equal(xseg_range_share(range, 8 * PAGE, 2 * PAGE, range, 3 * PAGE), XSEG_OK);
    assert_int_equal(*word(range, 9), 4);
    decommit(range, 2, 2, NULL);
    expect(range, "....c...cc..", READ);
    assert_int_equal(*word(range, 8), 3);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(xseg_peer_allow(allocator, 0, 1), XSEG_OK);
    commit(range, 0, 1, NULL);
    decommit(range, 0, 1, NULL);
    for (unsigned at = 0; at < GRANULES; at++)
        assert_int_equal(right(range, at, 1), at == 4 || at == 8 || at == 9 ? WRITE : READ);
    decommit(range, 4, 1, NULL);
    decommit(range, 8, 2, NULL);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(scene_stats(allocator).reserved_bytes[0].current, 0);
    scene_close(allocator);
}

/* Where the device has no read-only rights the zeros can be written; the range works all the same. */
static void a_device_without_such_rights_has_zeros(void **state)
{
    struct xseg_allocator *allocator = open_devices(NULL, true);
    struct xseg_range *range = reserve(allocator);

    (void)state;
    commit(range, 5, 2, NULL);
    expect(range, ".....cc.....", WRITE);
    decommit(range, 5, 2, NULL);
    expect(range, "............", WRITE);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    scene_close(allocator);
}

/* Zeros stay over a pause, and nothing is mapped or unmapped in a capture. */
static void pauses_and_captures(void **state)
{
    struct xseg_allocator *allocator = open_devices(NULL, false);
    struct xseg_range *range = reserve(allocator), *source = reserve(allocator), *third = NULL;
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;

    (void)state;
    options.zero_page = true;
    commit(range, 0, 2, NULL);
    commit(source, 0, 1, NULL);
    *word(range, 1) = 7;
    assert_int_equal(xseg_pool_pause(info(range).pool, XSEG_KEEP_HOST, NULL), XSEG_OK);
    assert_int_equal(xseg_sim_used(0), 3 * PAGE);
    assert_int_equal(info(range).physical_bytes, PAGE);
    assert_int_equal(*word(range, 3), 0);
    assert_int_equal(xseg_pool_resume(info(range).pool), XSEG_OK);
    assert_int_equal(*word(range, 1), 7);
    assert_int_equal(xseg_capture_mark(allocator, 0), XSEG_OK);
    const uint64_t calls = xseg_sim_calls("cuMemUnmap") + xseg_sim_calls("cuMemMap");
    scene_expect_error(xseg_range_commit(range, 4 * PAGE, PAGE, NULL), XSEG_ERR_BUSY, "zeros");
    scene_expect_error(xseg_range_share(range, 4 * PAGE, PAGE, source, 0), XSEG_ERR_BUSY, "zeros");
    scene_expect_error(xseg_range_reserve(allocator, 0, PAGE, &options, &third), XSEG_ERR_BUSY,
                       "zeros");
    assert_int_equal(xseg_sim_calls("cuMemUnmap") + xseg_sim_calls("cuMemMap"), calls);
    decommit(range, 0, 2, NULL);
    scene_expect_error(xseg_range_release(range), XSEG_ERR_BUSY, "capture");
    assert_int_equal(xseg_capture_unmark(allocator, 0), XSEG_OK);
    expect(source, "c...........", READ);
    decommit(source, 0, 1, NULL);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    assert_int_equal(xseg_range_release(source), XSEG_OK);
    scene_close(allocator);
}

/* A limit counts the page; a range that is refused leaves nothing behind. */
static void a_limit_counts_it(void **state)
{
    struct xseg_allocator *allocator = open_devices("hard_limit_mb:4", false);
    struct xseg_range *range = reserve(allocator), *other = NULL;
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;

    (void)state;
    options.zero_page = true;
    commit(range, 0, 1, NULL);
    scene_expect_error(xseg_range_commit(range, PAGE, PAGE, NULL), XSEG_ERR_LIMIT, "hard_limit_mb");
    expect(range, "c...........", READ);
    scene_expect_error(xseg_range_reserve(allocator, 0, PAGE, &options, &other), XSEG_ERR_LIMIT,
                       "limit");
    decommit(range, 0, 1, NULL);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    scene_close(allocator);
}

/* One unmap a run, one map a page, one set-access a run. */
static void calls_are_made_by_the_run(void **state)
{
    static const char *const name[] = {"cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemCreate"};
    static const uint64_t for_commit[] = {1, 4, 1, 4}, for_decommit[] = {1, 4, 1, 0};
    struct xseg_allocator *allocator = open_devices(NULL, false);
    struct xseg_range *range = reserve(allocator);
    uint64_t before[COUNT_OF(name)];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(name); i++)
        before[i] = xseg_sim_calls(name[i]);
    commit(range, 3, 4, NULL);
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        assert_int_equal(xseg_sim_calls(name[i]) - before[i], for_commit[i]);
        before[i] = xseg_sim_calls(name[i]);
    }
    decommit(range, 3, 4, NULL);
    for (size_t i = 0; i < COUNT_OF(name); i++)
        assert_int_equal(xseg_sim_calls(name[i]) - before[i], for_decommit[i]);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    scene_close(allocator);
}

/* What the driver refuses to cover is covered with the next granule, what a share has uncovered in vain at once; what the
 * driver keeps at the end is a leftover. */
static void refusals_lose_nothing(void **state)
{
    struct xseg_allocator *allocator = open_devices(NULL, false);
    struct xseg_range *range = reserve(allocator);
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;

    (void)state;
    commit(range, 3, 2, NULL);
    fault.call = "cuMemMap";
    fault.nth = 1;
    fault.error = 999;
    assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
    decommit(range, 3, 1, NULL);
    assert_int_equal(xseg_sim_fault_set(0, NULL), XSEG_OK);
    decommit(range, 4, 1, NULL);
    expect(range, "............", READ);
    commit(range, 0, 1, NULL);
    fault.call = "cuMemSetAccess";
    assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
    scene_expect_error(xseg_range_share(range, 6 * PAGE, PAGE, range, 0), XSEG_ERR_DRIVER, "999");
    expect(range, "c...........", READ);
    decommit(range, 0, 1, NULL);
    fault.call = "cuMemUnmap";
    fault.every = 1;
    assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    assert_int_equal(xseg_sim_fault_set(0, NULL), XSEG_OK);
    assert_int_equal(xseg_sim_used(0), PAGE);
    assert_int_equal(scene_stats(allocator).stuck_bytes, PAGE);
    assert_int_equal(xseg_trim(allocator, NULL, NULL, &done), XSEG_OK);
    assert_int_equal(xseg_sim_used(0), 0);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holes_read_as_zeros),
        cmocka_unit_test(a_device_without_such_rights_has_zeros),
        cmocka_unit_test(pauses_and_captures),
        cmocka_unit_test(a_limit_counts_it),
        cmocka_unit_test(calls_are_made_by_the_run),
        cmocka_unit_test(refusals_lose_nothing),
    };

    return cmocka_run_group_tests_name("range_zeros", tests, NULL, NULL);
}
