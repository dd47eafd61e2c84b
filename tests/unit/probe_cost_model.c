/* SPDX-License-Identifier: MIT */
/* Fitting of a cost model to measured costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/tools/commands/probe/probe_cost_model.h"

#define MIB ((uint64_t)1 << 20)

static const unsigned sizes[] = {2, 4, 8, 20, 32, 64, 128, 256, 512};

#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static struct probe_costs costs;

static int clear(void **state)
{
    (void)state;
    memset(&costs, 0, sizeof(costs));
    return 0;
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

static void add(const char *call, uint64_t bytes, uint64_t time)
{
    add_run(call, bytes, 1, 1, time);
}

static struct probe_cost_model fitted(void)
{
    struct probe_cost_model model;

    probe_cost_model_fit(&costs, &model);
    return model;
}

static void expect(struct probe_sized sized, uint64_t base, uint64_t per_mib, uint64_t min)
{
    assert_int_equal(sized.base, base);
    assert_int_equal(sized.per_mib, per_mib);
    assert_int_equal(sized.min, min);
}

static void a_line_is_met_and_one_size_that_is_off_moves_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        add("cuMemCreate", sizes[i] * MIB, sizes[i] == 32 ? 90000 : 7000 + 150 * sizes[i]);
    expect(fitted().create, 7000, 150, 0);
}

static void a_minimum_is_found(void **state)
{
    (void)state;
    add("cuMemAlloc", 64 << 10, 60000);
    for (size_t i = 0; i < SIZES; i++)
        add("cuMemAlloc", sizes[i] * MIB,
            40000 + 180 * sizes[i] > 60000 ? 40000 + 180 * sizes[i] : 60000);
    expect(fitted().alloc, 40000, 180, 60000);
}

static void what_falls_or_starts_below_nothing_has_no_negative_part(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        add("cuMemMap", sizes[i] * MIB, 5000 - sizes[i]);
        add("cuMemRelease", sizes[i] * MIB, sizes[i] < 8 ? 100 : 300 * sizes[i] - 2000);
    }
    const struct probe_cost_model model = fitted();
    assert_int_equal(model.map.per_mib, 0);
    assert_in_range(model.map.base, 4488, 4998);
    assert_int_equal(model.release.base, 0);
    assert_in_range(model.release.per_mib, 200, 300);
}

static void a_call_has_its_part_and_each_mapping_its_own(void **state)
{
    static const unsigned pages[] = {10, PROBE_RUN_MAX};

    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        const uint64_t mapping = 500 + 20 * sizes[i];

        add("cuMemSetAccess", sizes[i] * MIB, 30000 + (sizes[i] > 128 ? 9000 : mapping));
        add("cuMemUnmap", sizes[i] * MIB, 11500);
    }
    for (size_t i = 0; i < 2; i++) {
        add_run("cuMemSetAccess", 2 * MIB, pages[i], 1, 30000 + pages[i] * 540);
        add_run("cuMemSetAccess", 2 * MIB, pages[i], pages[i], pages[i] * 30540);
        add_run("cuMemUnmap", 2 * MIB, pages[i], 1, pages[i] * 11500);
    }
    const struct probe_cost_model model = fitted();
    assert_int_equal(model.access_call, 30000);
    expect(model.access, 500, 20, 0);
    expect(model.access_wide, 9000, 0, 0);
    assert_int_equal(model.unmap, 0);
    expect(model.unmap_mapping, 11500, 0, 0);
    for (unsigned i = 0; i < costs.count; i++)
        assert_int_equal(probe_cost_model_time(&model, &costs.cost[i]), costs.cost[i].idle.median);
}

/* Without runs, as where a driver takes one page a call, all of a call is its mapping's. */
static void what_was_not_measured_is_nothing(void **state)
{
    (void)state;
    add("cuMemUnmap", 2 * MIB, 34000);
    add("cuMemSetAccess", 2 * MIB, 38600);
    add("cuMemSetAccess", 20 * MIB, 62000);
    costs.cost[costs.count++] = (struct probe_cost){
        .call = "cuMemFree", .bytes = 2 * MIB, .pages = 1, .calls = 1, .threads = 1};
    costs.cost[costs.count++] = (struct probe_cost){.call = "cuMemAlloc",
                                                    .bytes = 2 * MIB,
                                                    .pages = 1,
                                                    .calls = 1,
                                                    .threads = 2,
                                                    .idle = {.median = 7, .samples = 21}};
    const struct probe_cost_model model = fitted();
    assert_int_equal(model.unmap, 0);
    expect(model.unmap_mapping, 34000, 0, 0);
    expect(model.access, 36000, 1300, 0);
    expect(model.access_wide, 36000, 1300, 0);
    expect(model.free, 0, 0, 0);
    expect(model.alloc, 0, 0, 0);
    assert_int_equal(model.reserve, 0);
}

static char *printed(const char *card)
{
    const struct probe_cost_model model = fitted();
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    probe_cost_model_print(file, &model, &costs, card, "A test.");
    assert_int_equal(fclose(file), 0);
    return text;
}

static void a_card_is_named_as_a_file_and_as_c_can(void **state)
{
    static const struct {
        const char *card, *name, *word;
    } row[] = {
        {"NVIDIA A100-SXM4-80GB", "\nname = NVIDIA A100-SXM4-80GB\n",
         "{.name = \"nvidia_a100_sxm4_80gb\", "},
        {"NVIDIA #1\n\xff", "\nname = NVIDIA _1__\n", "{.name = \"nvidia_1\", "},
        {"", "\nname = unknown\n", "{.name = \"\", "},
        {"0123456789012345678901234567890123456789012345678901234567890123456789",
         "\nname = 012345678901234567890123456789012345678901234567890123456789012\n",
         "{.name = \"0123"},
    };

    (void)state;
    add("cuMemAddressReserve", 64 << 10, 2000);
    add("cuMemCreate", 2 * MIB, 1000);
    add("cuMemCreate", 4 * MIB, 1000);
    add("cuMemCreate", 8 * MIB, 2000);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        char *text = printed(row[i].card);

        assert_non_null(strstr(text, "# A test.\n"));
        assert_non_null(strstr(text, row[i].name));
        assert_non_null(strstr(text, row[i].word));
        assert_non_null(strstr(text, "\nreserve = 2000\n"));
        assert_non_null(strstr(text, "# cuMemFree was not measured, so its cost is 0.\n"));
        assert_null(strstr(text, "# cuMemCreate was not measured"));
        assert_non_null(strstr(text, "# Largest deviation from a measurement: cuMemCreate, 1 x "));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_line_is_met_and_one_size_that_is_off_moves_nothing, clear),
        cmocka_unit_test_setup(a_minimum_is_found, clear),
        cmocka_unit_test_setup(what_falls_or_starts_below_nothing_has_no_negative_part, clear),
        cmocka_unit_test_setup(a_call_has_its_part_and_each_mapping_its_own, clear),
        cmocka_unit_test_setup(what_was_not_measured_is_nothing, clear),
        cmocka_unit_test_setup(a_card_is_named_as_a_file_and_as_c_can, clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
