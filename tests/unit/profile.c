/* SPDX-License-Identifier: MIT */
/* Profiles of small programs, their sums, and comparisons. */
#include <stdlib.h>

#include "src/tools/ranks/compare.h"
#include "tests/support/recording_builder.h"
#include "tests/support/test.h"

#define BASE UINT64_C(0x7f0000000000)

static void add_site(struct profile *profile, const char *name, uint64_t peak, uint64_t blocks)
{
    struct profile_site *sites =
        realloc(profile->sites, (profile->site_count + 1) * sizeof(*profile->sites));

    assert_non_null(sites);
    profile->sites = sites;
    sites[profile->site_count] = (struct profile_site){.name = strdup(name)};
    sites[profile->site_count].figures.of[PROFILE_PEAK_ALLOCATED] = peak;
    sites[profile->site_count].figures.of[PROFILE_BLOCKS] = blocks;
    profile->total.of[PROFILE_PEAK_ALLOCATED] += peak;
    assert_non_null(sites[profile->site_count++].name);
}

static struct profile profile_of(struct builder *builder, bool by_events)
{
    const struct profile_rules rules = {.depth = 1, .by_events = by_events};
    struct recording_stack no_stack = {0, 0};
    uint32_t offset = 0;
    char empty_text[] = "";
    struct profile profile;

    builder_end(builder);
    builder->recording.stacks = &no_stack;
    builder->recording.stack_count = 1;
    builder->recording.text = &offset;
    builder->recording.texts = empty_text;
    builder->recording.text_count = 1;
    assert_true(profile_init(&profile, &builder->recording, &builder->device, &rules));
    return profile;
}

/* A block of half a page is allocated during 1 of 3 intervals between events, or 90 of 100 us. */
TEST(averages_are_over_events_or_time)
{
    for (int by_events = 0; by_events < 2; by_events++) {
        struct builder *builder = builder_new();

        builder_map(builder, BASE, 4 * MIB, true);
        builder->now_us += 10;
        builder_alloc(builder, BASE, MIB, 0);
        builder->now_us += 90;
        builder_free(builder, BASE);
        struct profile profile = profile_of(builder, by_events);
        assert_int_equal(profile.site_count, 1);
        assert_string_equal(profile.sites[0].name, "(no stack)");
        assert_int_equal(profile.sites[0].figures.of[PROFILE_PEAK_ALLOCATED], MIB);
        assert_int_equal(profile.sites[0].figures.of[PROFILE_PEAK_CACHED], MIB);
        assert_int_equal(profile.sites[0].figures.of[PROFILE_BLOCKS], 1);
        assert_int_equal(profile.sites[0].figures.of[PROFILE_LIVED], by_events ? 1 : 90);
        assert_int_equal(profile.sites[0].figures.of[PROFILE_ALLOCATED],
                         by_events ? MIB / 3 : MIB * 90 / 100);
        assert_int_equal(profile.idle.of[PROFILE_PEAK_CACHED], 2 * MIB);
        assert_int_equal(profile.total.of[PROFILE_PEAK_ALLOCATED] +
                             profile.total.of[PROFILE_PEAK_CACHED],
                         4 * MIB);
        profile_fini(&profile);
        free(builder);
    }
}

/* Frames that differ in attributes outside their names, such as the module, are one site. */
TEST(sites_of_one_name_are_merged)
{
    const struct profile_rules rules = {.depth = 1};
    struct recording_frame frames[] = {{.name = 1, .module = 2}, {.name = 1}};
    struct recording_stack stacks[] = {{0, 0}, {0, 1}, {1, 1}};
    uint32_t text[] = {0, 1, 3}, stack_frames[] = {0, 1};
    char texts[] = "\0f\0m";
    struct builder *builder = builder_new();
    struct profile profile;

    builder->recording.frames = frames;
    builder->recording.frame_count = COUNT_OF(frames);
    builder->recording.stack_frames = stack_frames;
    builder->recording.stacks = stacks;
    builder->recording.stack_count = COUNT_OF(stacks);
    builder->recording.text = text;
    builder->recording.texts = texts;
    builder->recording.text_count = COUNT_OF(text);
    builder_map(builder, BASE, 4 * MIB, true);
    builder_alloc(builder, BASE, MIB, 1);
    builder_alloc(builder, BASE + MIB, 2 * MIB, 2);
    builder_end(builder);
    assert_true(profile_init(&profile, &builder->recording, &builder->device, &rules));
    assert_int_equal(profile.site_count, 1);
    assert_string_equal(profile.sites[0].name, "f");
    assert_int_equal(profile.sites[0].figures.of[PROFILE_PEAK_ALLOCATED], 3 * MIB);
    assert_int_equal(profile.sites[0].figures.of[PROFILE_BLOCKS], 2);
    profile_fini(&profile);
    free(builder);
}

TEST(sums_have_each_name_once_and_in_order)
{
    struct profile sum = {0}, first = {0}, second = {0};

    add_site(&first, "b", 1, 10);
    add_site(&first, "d", 2, 20);
    add_site(&second, "a", 4, 1);
    add_site(&second, "b", 8, 2);
    add_site(&second, "e", 16, 3);
    second.idle.of[PROFILE_CACHED] = 5;
    second.entries = 7;
    assert_true(profile_add(&sum, &first));
    assert_true(profile_add(&sum, &second));
    assert_true(profile_add(&sum, &second));
    assert_int_equal(sum.site_count, 4);
    for (size_t i = 0; i < 4; i++) {
        static const char *const names[] = {"a", "b", "d", "e"};
        static const uint64_t peaks[] = {8, 17, 2, 32}, blocks[] = {2, 14, 20, 6};

        assert_string_equal(sum.sites[i].name, names[i]);
        assert_int_equal(sum.sites[i].figures.of[PROFILE_PEAK_ALLOCATED], peaks[i]);
        assert_int_equal(sum.sites[i].figures.of[PROFILE_BLOCKS], blocks[i]);
    }
    assert_int_equal(sum.total.of[PROFILE_PEAK_ALLOCATED], (1 + 2) + 2 * (4 + 8 + 16));
    assert_int_equal(sum.idle.of[PROFILE_CACHED], 2 * 5);
    assert_int_equal(sum.entries, 2 * 7);
    profile_fini(&sum);
    profile_fini(&first);
    profile_fini(&second);
}

TEST(sums_saturate)
{
    struct profile sum = {0}, huge = {0}, small = {0};
    struct compare compare;

    add_site(&huge, "a", PROFILE_MAX, 1);
    add_site(&small, "b", 1, 1);
    assert_true(profile_add(&sum, &huge));
    assert_true(profile_add(&sum, &huge));
    assert_true(sum.sites[0].figures.of[PROFILE_PEAK_ALLOCATED] == PROFILE_MAX);
    assert_true(sum.total.of[PROFILE_PEAK_ALLOCATED] == PROFILE_MAX);
    assert_true(compare_init(&compare, &sum, &small, true));
    assert_true(compare_judge(&compare).result == COMPARE_TOTAL);
    assert_true(compare_judge(&compare).delta == 1 - INT64_MAX);
    compare_fini(&compare);
    profile_fini(&sum);
    profile_fini(&huge);
    profile_fini(&small);
}

/* The number of rows of sites if two profiles with these names are compared. */
static size_t rows_of(const char *const *names_a, const char *const *names_b, bool may_move)
{
    struct profile a = {0}, b = {0};
    struct compare compare;

    for (; *names_a; names_a++)
        add_site(&a, *names_a, MIB, 1);
    for (; *names_b; names_b++)
        add_site(&b, *names_b, MIB, 1);
    assert_true(compare_init(&compare, &a, &b, may_move));
    size_t rows = compare.row_count - 2; /* without the rows of pending and idle memory */
    compare_fini(&compare);
    profile_fini(&a);
    profile_fini(&b);
    return rows;
}

TEST(moved_lines_are_matched_where_unambiguous)
{
    static const char *const names[] = {"m.py:10 f", "m.py:9 f", "n.py:1 g < m.py:3 main", NULL};
    static const char *const moved[] = {"m.py:11 f", "m.py:12 f", "n.py:1 g < m.py:4 main", NULL};
    static const char *const ambiguous[] = {"m.py:11 f", "m.py:12 f", "m.py:13 f",
                                            "n.py:2 h < m.py:3 main", NULL};
    static const char *const unlike[] = {"m.py:10:f", "m.py:x f", "m.py:9 ff", NULL};
    static const char *const nameless[] = {"m.py:10", "n.py:1 g < m.py:3", NULL};
    static const char *const moved_nameless[] = {"m.py:8", "n.py:2 g < m.py:44", NULL};

    /* Equal and moved names share rows; any other name has a row of its own. */
    assert_int_equal(rows_of(names, names, true), 3);
    assert_int_equal(rows_of(names, moved, true), 3);
    assert_int_equal(rows_of(names, moved, false), 6);
    assert_int_equal(rows_of(names, ambiguous, true), 7);
    assert_int_equal(rows_of(names, unlike, true), 6);
    assert_int_equal(rows_of(nameless, moved_nameless, true), 2);
}
