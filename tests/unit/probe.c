/* SPDX-License-Identifier: MIT */
/* Measurement of driver costs: shares of the time, and the fit of a cost model. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/probe/probe_cost_model.h"
#include "src/tools/commands/probe/probe_measure.h"
#include "src/tools/replay/trace_clock.h"
#include "tests/support/test.h"

/* --- Time. --- */

#define SECOND UINT64_C(1000000000)

/* 1000 s for a weight of 10.  The bounds allow for the time that the test itself runs. */
TEST(shares_are_by_weight_and_have_two_halves)
{
    struct probe_budget budget;
    const uint64_t now = stopwatch_now();

    probe_budget_init(&budget, 1000, 10);
    struct probe_share first = probe_budget_share(&budget, 1);
    assert_in_range(first.first_half_end - now, 49 * SECOND, 60 * SECOND);
    assert_in_range(first.end - now, 99 * SECOND, 110 * SECOND);
    /* The unused time of the first call is shared by the following calls. */
    (void)probe_budget_share(&budget, 4);
    struct probe_share last = probe_budget_share(&budget, 5);
    assert_in_range(last.end - now, 990 * SECOND, 1010 * SECOND);
    assert_true(probe_share_has_time(&last, false, 1000));
}

TEST(exhausted_share_still_has_three_samples)
{
    const uint64_t now = stopwatch_now();
    const struct probe_share past_end = {
        .first_half_end = now - 2, .end = now - 1, .deadline = now + SECOND};
    const struct probe_share past_deadline = {
        .first_half_end = now - 3, .end = now - 2, .deadline = now - 1};
    const struct probe_share past_half = {
        .first_half_end = now - 1, .end = now + 100 * SECOND, .deadline = now + 100 * SECOND};
    struct probe_budget unlimited, exhausted = {.deadline = now - 1, .weight_remaining = 5};

    assert_true(probe_share_has_time(&past_end, false, 2));
    assert_false(probe_share_has_time(&past_end, false, 3));
    assert_false(probe_share_has_time(&past_end, true, 3));
    assert_false(probe_share_has_time(&past_deadline, true, 0));
    assert_false(probe_share_has_time(&past_half, false, 3));
    assert_true(probe_share_has_time(&past_half, true, 3));

    /* An unlimited budget always has time, and an exhausted one has nothing to share. */
    probe_budget_init(&unlimited, 0, 10);
    const struct probe_share unlimited_share = probe_budget_share(&unlimited, 10);
    assert_false(probe_budget_is_over(&unlimited));
    assert_true(probe_share_has_time(&unlimited_share, false, 1000));
    assert_true(probe_share_has_time(&unlimited_share, true, 1000));
    assert_true(probe_budget_is_over(&exhausted));
    const struct probe_share exhausted_share = probe_budget_share(&exhausted, 5);
    assert_false(probe_share_has_time(&exhausted_share, true, 0));
    assert_int_equal(exhausted.weight_remaining, 0);
}

/* --- Presets. --- */

static const unsigned sizes[] = {2, 4, 8, 20, 32, 64, 128, 256, 512};

#define SIZES (COUNT_OF(sizes))

static struct probe_costs costs;

FIXTURE(clear)
{
    memset(&costs, 0, sizeof(costs));
}

static void add_run(const char *call, uint64_t bytes, unsigned pages, unsigned calls, uint64_t time)
{
    costs.cost[costs.count++] = (struct probe_cost){
        .call = call,
        .bytes = bytes,
        .pages = pages,
        .calls = calls,
        .threads = 1,
        .idle = {.median = time, .low = time, .high = time, .samples = 21},
    };
}

static void add_cost(const char *call, uint64_t bytes, uint64_t time)
{
    add_run(call, bytes, 1, 1, time);
}

static struct probe_cost_model fit(void)
{
    struct probe_cost_model model;

    probe_cost_model_fit(&costs, &model);
    return model;
}

static void expect_sized(struct probe_sized sized, uint64_t base, uint64_t per_mib, uint64_t min)
{
    assert_int_equal(sized.base, base);
    assert_int_equal(sized.per_mib, per_mib);
    assert_int_equal(sized.min, min);
}

TEST_WITH(line_fit_ignores_one_outlier, clear, NULL)
{
    for (size_t i = 0; i < SIZES; i++)
        add_cost("cuMemCreate", sizes[i] * MIB, sizes[i] == 32 ? 90000 : 7000 + 150 * sizes[i]);
    expect_sized(fit().create, 7000, 150, 0);
}

TEST_WITH(minimum_time_is_detected, clear, NULL)
{
    add_cost("cuMemAlloc", 64 << 10, 60000);
    for (size_t i = 0; i < SIZES; i++)
        add_cost("cuMemAlloc", sizes[i] * MIB,
                 40000 + 180 * sizes[i] > 60000 ? 40000 + 180 * sizes[i] : 60000);
    expect_sized(fit().alloc, 40000, 180, 60000);
}

TEST_WITH(fit_has_no_negative_coefficients, clear, NULL)
{
    for (size_t i = 0; i < SIZES; i++) {
        add_cost("cuMemMap", sizes[i] * MIB, 5000 - sizes[i]);
        add_cost("cuMemRelease", sizes[i] * MIB, sizes[i] < 8 ? 100 : 300 * sizes[i] - 2000);
    }
    const struct probe_cost_model model = fit();
    assert_int_equal(model.map.per_mib, 0);
    assert_in_range(model.map.base, 5000 - 512, 5000 - 2);
    assert_int_equal(model.release.base, 0);
    assert_in_range(model.release.per_mib, 200, 300);
}

TEST_WITH(call_and_mapping_costs_are_separate, clear, NULL)
{
    static const unsigned pages[] = {10, PROBE_RUN_MAX};

    for (size_t i = 0; i < SIZES; i++) {
        const uint64_t mapping = 500 + 20 * sizes[i];

        add_cost("cuMemSetAccess", sizes[i] * MIB, 30000 + (sizes[i] > 128 ? 9000 : mapping));
        add_cost("cuMemUnmap", sizes[i] * MIB, 11500);
    }
    for (size_t i = 0; i < 2; i++) {
        add_run("cuMemSetAccess", 2 * MIB, pages[i], 1, 30000 + pages[i] * 540);
        add_run("cuMemSetAccess", 2 * MIB, pages[i], pages[i], pages[i] * 30540);
        add_run("cuMemUnmap", 2 * MIB, pages[i], 1, pages[i] * 11500);
    }
    const struct probe_cost_model model = fit();
    assert_int_equal(model.access_call, 30000);
    expect_sized(model.access, 500, 20, 0);
    expect_sized(model.access_wide, 9000, 0, 0);
    assert_int_equal(model.unmap, 0);
    expect_sized(model.unmap_mapping, 11500, 0, 0);
    for (unsigned i = 0; i < costs.count; i++)
        assert_int_equal(probe_cost_model_time(&model, &costs.cost[i]), costs.cost[i].idle.median);
}

/* Without runs, as with a driver that maps one page per call, the whole cost is the mapping's. */
TEST_WITH(unmeasured_costs_are_0, clear, NULL)
{
    add_cost("cuMemUnmap", 2 * MIB, 34000);
    add_cost("cuMemSetAccess", 2 * MIB, 38600);
    add_cost("cuMemSetAccess", 20 * MIB, 62000);
    /* Costs without samples, and of two threads, are not fitted. */
    costs.cost[costs.count++] = (struct probe_cost){
        .call = "cuMemFree", .bytes = 2 * MIB, .pages = 1, .calls = 1, .threads = 1};
    costs.cost[costs.count++] = (struct probe_cost){.call = "cuMemAlloc",
                                                    .bytes = 2 * MIB,
                                                    .pages = 1,
                                                    .calls = 1,
                                                    .threads = 2,
                                                    .idle = {.median = 7, .samples = 21}};
    const struct probe_cost_model model = fit();
    assert_int_equal(model.unmap, 0);
    expect_sized(model.unmap_mapping, 34000, 0, 0);
    /* The line through 38600 ns at 2 MiB and 62000 ns at 20 MiB. */
    expect_sized(model.access, 36000, 1300, 0);
    expect_sized(model.access_wide, 36000, 1300, 0);
    expect_sized(model.free, 0, 0, 0);
    expect_sized(model.alloc, 0, 0, 0);
    assert_int_equal(model.reserve, 0);
}

/* The printed cost file; the caller frees it. */
static char *print_model(const char *device)
{
    const struct probe_cost_model model = fit();
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    probe_cost_model_print(file, &model, &costs, device, "A test.");
    assert_int_equal(fclose(file), 0);
    return text;
}

TEST_WITH(gpu_name_is_valid_as_file_name_and_in_c, clear, NULL)
{
    static const struct {
        const char *device, *name, *c_row;
    } rows[] = {
        {"NVIDIA A100-SXM4-80GB", "\nname = NVIDIA A100-SXM4-80GB\n",
         "{.name = \"nvidia_a100_sxm4_80gb\", "},
        {"NVIDIA #1\n\xff", "\nname = NVIDIA _1__\n", "{.name = \"nvidia_1\", "},
        {"", "\nname = unknown\n", "{.name = \"\", "},
        {"0123456789012345678901234567890123456789012345678901234567890123456789",
         "\nname = 012345678901234567890123456789012345678901234567890123456789012\n",
         "{.name = \"0123"},
    };

    add_cost("cuMemAddressReserve", 64 << 10, 2000);
    add_cost("cuMemCreate", 2 * MIB, 1000);
    add_cost("cuMemCreate", 4 * MIB, 1000);
    add_cost("cuMemCreate", 8 * MIB, 2000);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char *text = print_model(rows[i].device);

        assert_non_null(strstr(text, "# A test.\n"));
        assert_non_null(strstr(text, rows[i].name));
        assert_non_null(strstr(text, rows[i].c_row));
        assert_non_null(strstr(text, "\nreserve = 2000\n"));
        assert_non_null(strstr(text, "# cuMemFree was not measured, so its cost is 0.\n"));
        assert_null(strstr(text, "# cuMemCreate was not measured"));
        assert_non_null(strstr(text, "# Largest deviation from a measurement: cuMemCreate, 1 x "));
        free(text);
    }
}
