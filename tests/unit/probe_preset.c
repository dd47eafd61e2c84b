/* SPDX-License-Identifier: MIT */
/* How a preset is fitted to what calls were measured to cost. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/probe/probe_preset.h"
#include "src/tools/commands/probe/probe_round.h"
#include "tests/support/test.h"

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

static struct probe_preset fitted(void)
{
    struct probe_preset preset;

    probe_preset_fit(&costs, &preset);
    return preset;
}

static void expect(struct probe_sized sized, uint64_t base, uint64_t per_mib, uint64_t least)
{
    assert_int_equal(sized.base, base);
    assert_int_equal(sized.per_mib, per_mib);
    assert_int_equal(sized.least, least);
}

TEST_WITH(line_fit_ignores_one_outlier, clear, NULL)
{
    for (size_t i = 0; i < SIZES; i++)
        add("cuMemCreate", sizes[i] * MIB, sizes[i] == 32 ? 90000 : 7000 + 150 * sizes[i]);
    expect(fitted().create, 7000, 150, 0);
}

TEST_WITH(minimum_time_is_detected, clear, NULL)
{
    add("cuMemAlloc", 64 << 10, 60000);
    for (size_t i = 0; i < SIZES; i++)
        add("cuMemAlloc", sizes[i] * MIB,
            40000 + 180 * sizes[i] > 60000 ? 40000 + 180 * sizes[i] : 60000);
    expect(fitted().alloc, 40000, 180, 60000);
}

TEST_WITH(fit_has_no_negative_coefficients, clear, NULL)
{
    for (size_t i = 0; i < SIZES; i++) {
        add("cuMemMap", sizes[i] * MIB, 5000 - sizes[i]);
        add("cuMemRelease", sizes[i] * MIB, sizes[i] < 8 ? 100 : 300 * sizes[i] - 2000);
    }
    const struct probe_preset preset = fitted();
    assert_int_equal(preset.map.per_mib, 0);
    assert_in_range(preset.map.base, 4488, 4998);
    assert_int_equal(preset.release.base, 0);
    assert_in_range(preset.release.per_mib, 200, 300);
}

TEST_WITH(call_and_mapping_costs_are_separate, clear, NULL)
{
    static const unsigned pages[] = {10, PROBE_RUN_MOST};

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
    const struct probe_preset preset = fitted();
    assert_int_equal(preset.access_call, 30000);
    expect(preset.access, 500, 20, 0);
    expect(preset.access_wide, 9000, 0, 0);
    assert_int_equal(preset.unmap, 0);
    expect(preset.unmap_mapping, 11500, 0, 0);
    for (unsigned i = 0; i < costs.count; i++)
        assert_int_equal(probe_preset_of(&preset, &costs.cost[i]), costs.cost[i].idle.median);
}

/* Without runs, as where a driver takes one page a call, all of a call is its mapping's. */
TEST_WITH(unmeasured_costs_are_0, clear, NULL)
{
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
    const struct probe_preset preset = fitted();
    assert_int_equal(preset.unmap, 0);
    expect(preset.unmap_mapping, 34000, 0, 0);
    expect(preset.access, 36000, 1300, 0);
    expect(preset.access_wide, 36000, 1300, 0);
    expect(preset.free, 0, 0, 0);
    expect(preset.alloc, 0, 0, 0);
    assert_int_equal(preset.reserve, 0);
}

static char *printed(const char *card)
{
    const struct probe_preset preset = fitted();
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    probe_preset_print(file, &preset, &costs, card, "A test.");
    assert_int_equal(fclose(file), 0);
    return text;
}

TEST_WITH(gpu_name_is_valid_as_file_name_and_in_c, clear, NULL)
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
        assert_non_null(strstr(text, "# cuMemFree was not measured: it costs nothing here.\n"));
        assert_null(strstr(text, "# cuMemCreate was not measured"));
        assert_non_null(strstr(text, "# Farthest from what it was fitted to: cuMemCreate, 1 x "));
        free(text);
    }
}
