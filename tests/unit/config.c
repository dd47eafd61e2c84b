/* SPDX-License-Identifier: MIT */
/* The configuration: its string, limits of devices, and arithmetic of sizes. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/config/config.h"
#include "src/core/config/config_table.h"
#include "src/core/device/device.h"
#include "tests/support/env.h"

/* The configuration as a string, in alternating buffers. */
static const char *to_string(const struct xseg_config *config)
{
    static char buffer[2][4096];
    static unsigned current;
    struct xseg_strbuf text;

    current ^= 1;
    xseg_strbuf_init(&text, buffer[current], sizeof(buffer[current]));
    xseg_config_print(config, &text);
    assert_true(text.length < sizeof(buffer[current]));
    return buffer[current];
}

/* Expect equal strings, and equal values of the members that a string may omit. */
static void assert_same(const struct xseg_config *a, const struct xseg_config *b)
{
    assert_string_equal(to_string(a), to_string(b));
    assert_memory_equal(a->roundup_divisions, b->roundup_divisions, sizeof(a->roundup_divisions));
    assert_true(a->max_split_bytes == b->max_split_bytes);
    assert_true(a->max_non_split_rounding_bytes == b->max_non_split_rounding_bytes);
    assert_true(a->large_segment_bytes == b->large_segment_bytes);
    assert_memory_equal(&a->memory_fraction, &b->memory_fraction, sizeof(double));
}

static struct xseg_config parse(const char *text)
{
    struct xseg_config config;

    xseg_config_init(&config);
    if (xseg_config_parse(&config, text, NULL) != XSEG_OK)
        fail_msg("%s is rejected: %s", text, xseg_fail_detail());
    return config;
}

TEST(defaults_are_those_of_the_library)
{
    struct xseg_config config;

    xseg_config_init(&config);
    assert_true(config.expandable_segments);
    assert_int_equal(config.large_segment_bytes, 20 * XSEG_MIB);
    assert_true(config.max_split_bytes == UINT64_MAX);
    assert_int_equal(config.max_non_split_rounding_bytes, 20 * XSEG_MIB);
    assert_true(config.memory_fraction >= 1 && config.memory_fraction <= 1);
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++)
        assert_int_equal(config.roundup_divisions[i], 0);
}

static const struct {
    const char *text, *printed;
} accepted[] = {
    {"expandable_segments:False", "expandable_segments:False,"},
    {"expandable_segments:True", "expandable_segments:True,"},
    {"large_segment_size_mb:12", ",large_segment_size_mb:12,"},
    {"large_segment_size_mb:1048576", ",large_segment_size_mb:1048576,"},
    {"expandable_segments:False,large_segment_size_mb:11", ",large_segment_size_mb:11,"},
    {"max_split_size_mb:20", ",max_split_size_mb:20,"},
    {"max_split_size_mb:17592186044415", ",max_split_size_mb:17592186044415,"},
    {"max_non_split_rounding_mb:21", ",max_non_split_rounding_mb:21,"},
    {"roundup_power2_divisions:4", ",roundup_power2_divisions:[16384:4,>:4],"},
    {"per_process_memory_fraction:0", ",per_process_memory_fraction:0,"},
    {"per_process_memory_fraction:1.0", ",per_process_memory_fraction:1,"},
    {"per_process_memory_fraction:.25", ",per_process_memory_fraction:0.25,"},
    {"per_process_memory_fraction:5e-1", ",per_process_memory_fraction:0.5,"},
    {"budget_share:0.000001", ",budget_share:1e-06,"},
    {"budget_share:0.0", ",budget_share:0,"},
    {"budget_share:0e-9", ",budget_share:0,"},
    {"per_process_memory_fraction:0.30000000000000004",
     ",per_process_memory_fraction:0.30000000000000004,"},
    {"garbage_collection_threshold:0.8", ",garbage_collection_threshold:0.8,"},
    {"graph_capture_record_stream_reuse:True", ",graph_capture_record_stream_reuse:True,"},
    {"throw_on_cudamalloc_oom:True", ",throw_on_cudamalloc_oom:True,"},
    {"expandable_segments_reserve:0.5", ",expandable_segments_reserve:0.5,"},
    {"expandable_segments_reserve:40G", ",expandable_segments_reserve:40G,"},
    {"debug_fill:True", ",debug_fill:True,"},
    {"unmap_on_free:True", ",unmap_on_free:True,"},
    {"guard_page:True", ",guard_page:True,"},
    {"block_user:True", ",block_user:True,"},
};

TEST(values_are_printed_in_canonical_form)
{
    for (size_t i = 0; i < XSEG_COUNT_OF(accepted); i++) {
        const struct xseg_config config = parse(accepted[i].text);

        if (strstr(to_string(&config), accepted[i].printed) == NULL)
            fail_msg("%s is printed as %s", accepted[i].text, to_string(&config));
    }
}

/* Values that the error message quotes completely, and the end of the message. */
static const struct {
    const char *text, *reason;
} invalid[] = {
    {"max_split_size_mb:19", "; expected -1 (unlimited), or a whole number of MiB that is at least "
                             "large_segment_size_mb, which is 20"},
    {"max_split_size_mb:128MB", "; "},
    {"max_split_size_mb:-2", "; "},
    {"max_non_split_rounding_mb:-1", "; "},
    {"max_split_size_mb:12", "; "},
    {"max_non_split_rounding_mb:19", "; "},
    {"large_segment_size_mb:10", "; expected a whole number of MiB from 11 to 1048576"},
    {"large_segment_size_mb:1048577", "; "},
    {"large_segment_size_mb:13", "; expected an even number, because expandable_segments is True "
                                 "and page sizes are multiples of 2 MiB"},
    {"expandable_segments:true", "; expected True or False"},
    {"garbage_collection_threshold:0", "; expected a number above 0 and below 1"},
    {"garbage_collection_threshold:1.0", ""},
    {"garbage_collection_threshold:nan", ""},
    {"garbage_collection_threshold:0x.8", ""},
    {"garbage_collection_threshold:.", ""},
    {"garbage_collection_threshold:.5e", ""},
    {"per_process_memory_fraction:1.1", "; expected a number from 0 to 1"},
    {"per_process_memory_fraction:-0.1", ""},
    {"per_process_memory_fraction:1e999", ""},
    {"roundup_power2_divisions:0", "; expected a power of two"},
    {"roundup_power2_divisions:3", "; "},
    {"roundup_power2_divisions:4294967296", ""},
    {"expandable_segments_reserve:0", "; "},
    {"expandable_segments_reserve:G", "; "},
    {"expandable_segments_reserve:4M", "; "},
    {"budget_share:1e-9", "; expected 0, or a number from 0.000001 to 1"},
    {"budget_share:9.9e-7", "; expected 0, or a number from"},
    {"budget_share:0.1e-400", "; expected 0, or a number"},
    {"per_process_memory_fraction:1e-400", ""},
    {"expandable_segments_reserve_by_class:,", "; expected a value"},
    {"debug_fill:1", "; expected True or False"},
    {"page_size:20", "; expected fixed, auto or small"},
};

static const struct {
    const char *text, *message;
} rejected[] = {
    {"max_split_size_mb:\a", "invalid value of max_split_size_mb, '\\x07' at column 19; "},
    {"max_split_size_mb:128 8",
     "syntax error after max_split_size_mb, '8' at column 23; expected ','"},
    {"max_split_size_mb:", "invalid value of max_split_size_mb, end of string at column 19; "
                           "expected -1 (unlimited), or a whole"},
    {"max_split_size_mb",
     "syntax error after max_split_size_mb, end of string at column 18; expected ':'"},
    {"max_split_size_mb=128",
     "syntax error after max_split_size_mb, '=' at column 18; expected ':' between key and value"},
    {"max_split_size_mb =128",
     "syntax error after max_split_size_mb, '=' at column 19; expected ':' between key and value"},
    {"max_split_size_mb = 128",
     "syntax error after max_split_size_mb, '=' at column 19; expected ':' between key and value"},
    {"max_split_size=128",
     "unknown key, 'max_split_size' at column 1; did you mean max_split_size_mb?"},
    {"=128", "unknown key, '=128' at column 1; run `xseg config --keys`"},
    {"max_split_size_mb,128",
     "syntax error after max_split_size_mb, ',' at column 18; expected ':'"},
    {"max_split_size_mb:[128]", "invalid value of max_split_size_mb, '[' at column 19; "},
    {"expandable_segments:[True]", "invalid value of expandable_segments, '[' at column 21; "},
    {"expandable_segment:True",
     "unknown key, 'expandable_segment' at column 1; did you mean expandable_segments?"},
    {"Expandable_segments:True",
     "unknown key, 'Expandable_segments' at column 1; did you mean expandable_segments?"},
    {"backend:native,expandbale_segments:True",
     "unknown key, 'expandbale_segments' at column 16; did you mean expandable_segments?"},
    {"expandable:True", "unknown key, 'expandable' at column 1; did you mean expandable_segments?"},
    {"release_lock_on_hipmaloc:True", "unknown key, 'release_lock_on_hipmaloc' at column 1; did "
                                      "you mean release_lock_on_hipmalloc?"},
    {"foo:1", "unknown key, 'foo' at column 1; run `xseg config --keys` for a list"},
    {",expandable_segments:True", "unknown key, ',' at column 1; run `xseg config --keys`"},
    {"backend:native,,backend:native", "unknown key, ',' at column 16; run `xseg config --keys`"},
    {"\x01\xff:1", "unknown key, '\\x01\\xff' at column 1; run `xseg config --keys`"},
    {"garbage_collection_threshold:0,8", "unknown key, '8' at column 32"},
    {"roundup_power2_divisions:[]",
     "invalid value of roundup_power2_divisions, ']' at column 27; "},
    {"roundup_power2_divisions:[3:1]", "invalid value of roundup_power2_divisions, '3' at column "
                                       "27; expected the start of an interval"},
    {"roundup_power2_divisions:[4:3]",
     "invalid value of roundup_power2_divisions, '3' at column 29; "},
    {"roundup_power2_divisions:[4;3]",
     "invalid value of roundup_power2_divisions, '4;3' at column 27; "},
    {"roundup_power2_divisions:[4,3]",
     "syntax error after roundup_power2_divisions, ',' at column 28; "},
    {"roundup_power2_divisions:[4:2",
     "syntax error after roundup_power2_divisions, end of string at column 30; "},
    {"roundup_power2_divisions:[4:2,]",
     "invalid value of roundup_power2_divisions, ']' at column 31; "},
    {"roundup_power2_divisions:[4:2 8:2]",
     "syntax error after roundup_power2_divisions, '8' at column 31; "},
    {"roundup_power2_divisions:[>:2]", "invalid value of roundup_power2_divisions, '>' at column "
                                       "27; expected the start of an interval before '>'"},
    {"roundup_power2_divisions:[4:2,>:4,8:1]",
     "invalid value of roundup_power2_divisions, '8' at column 35"},
    {"expandable_segments_reserve_by_class:[a",
     "syntax error after expandable_segments_reserve_by_class, end of string at column 40; "
     "expected ']'"},
    {"backend", "syntax error after backend, end of string at column 8; expected ':'"},
    {"pinned_num_register_threads:3 4",
     "syntax error after pinned_num_register_threads, '4' at column 31; expected ','"},
};

/* Every rejection names the key, the value and its column, and changes nothing. */
static void expect_rejected(const char *string, const char *message)
{
    const struct xseg_config before = parse("max_split_size_mb:77,exportable:True");
    struct xseg_config config = before;
    char *text = strdup(string); /* on the heap, so that ASan detects a read past the end */
    uint64_t named = 12345;

    assert_non_null(text);
    if (xseg_config_parse(&config, text, &named) != XSEG_ERR_CONFIG)
        fail_msg("'%s' is accepted", string);
    free(text);
    if (strncmp(xseg_fail_detail(), message, strlen(message)) != 0)
        fail_msg("'%s' has the error: %s", string, xseg_fail_detail());
    assert_same(&config, &before);
    assert_int_equal(named, 12345);
}

TEST(invalid_strings_are_rejected_with_a_message)
{
    for (size_t i = 0; i < XSEG_COUNT_OF(invalid); i++) {
        const char *value = strchr(invalid[i].text, ':') + 1;
        const int key_end = (int)(value - invalid[i].text);
        char message[512];

        (void)snprintf(message, sizeof(message), "invalid value of %.*s, '%s' at column %d%s",
                       key_end - 1, invalid[i].text, value, key_end + 1, invalid[i].reason);
        expect_rejected(invalid[i].text, message);
    }
    for (size_t i = 0; i < XSEG_COUNT_OF(rejected); i++)
        expect_rejected(rejected[i].text, rejected[i].message);
    /* Valid keys before an invalid one change nothing. */
    expect_rejected("expandable_segments:False,large_segment_size_mb:40,"
                    "roundup_power2_divisions:[4:8],max_split_size_mb:x",
                    "invalid value of max_split_size_mb, 'x' at column 101");
}

TEST(a_string_changes_the_keys_that_it_names)
{
    /* Blanks and a trailing comma are valid, and the last of two values of a key applies. */
    struct xseg_config config = parse(" max_split_size_mb :\t32 ,max_split_size_mb:64,\n "
                                      "roundup_power2_divisions: [ 4 : 2 , > : 8 ] , ");

    for (unsigned i = 0; i < 4; i++) {
        static const char *const text[] = {"per_process_memory_fraction:0.5", "", "  "};
        const struct xseg_config before = config;

        assert_int_equal(config.max_split_bytes, 64 * XSEG_MIB);
        assert_int_equal(config.roundup_divisions[2], 2);
        assert_int_equal(config.roundup_divisions[3], 8);
        assert_int_equal(config.roundup_divisions[7], 8);
        if (i < COUNT_OF(text))
            assert_ok(xseg_config_parse(&config, text[i], NULL));
        if (i > 0)
            assert_same(&config, &before);
        assert_true(fabs(config.memory_fraction - 0.5) < 1e-12);
    }
    /* -1 is the value that PyTorch reports for an unlimited size. */
    assert_ok(xseg_config_parse(&config, "max_split_size_mb:-1", NULL));
    assert_true(config.max_split_bytes == UINT64_MAX);
}

TEST(huge_sizes_mean_unlimited)
{
    /* 17592186044416 MiB are 2^64 bytes. */
    const struct xseg_config config =
        parse("max_split_size_mb:17592186044416,"
              "max_non_split_rounding_mb:99999999999999999999999999999999999");

    assert_true(config.max_split_bytes == UINT64_MAX);
    assert_true(config.max_non_split_rounding_bytes == UINT64_MAX - XSEG_MIB + 1);
    assert_null(strstr(to_string(&config), "max_split_size_mb"));
}

TEST(the_large_segment_size_bounds_keys_on_either_side)
{
    struct xseg_config config = parse("max_split_size_mb:12,large_segment_size_mb:12");

    assert_int_equal(config.max_split_bytes, 12 * XSEG_MIB);
    assert_int_equal(
        xseg_config_parse(&config, "max_split_size_mb:39,large_segment_size_mb:40", NULL),
        XSEG_ERR_CONFIG);
    assert_non_null(strstr(xseg_fail_detail(), "'39' at column 19"));
    /* A limit that is already in effect applies as well. */
    assert_int_equal(xseg_config_parse(&config, "large_segment_size_mb:40", NULL), XSEG_ERR_CONFIG);
    assert_string_equal(xseg_fail_detail(),
                        "invalid value of large_segment_size_mb, '40' at column 23; expected at "
                        "most max_split_size_mb, which is 12");
}

TEST(rounding_follows_the_large_segment_size_unless_named)
{
    struct xseg_config config = parse("large_segment_size_mb:40");

    assert_int_equal(config.max_non_split_rounding_bytes, 40 * XSEG_MIB);
    config = parse("max_non_split_rounding_mb:64,large_segment_size_mb:40");
    assert_int_equal(config.max_non_split_rounding_bytes, 64 * XSEG_MIB);
}

TEST(unaligned_segments_conflict_with_pages)
{
    struct xseg_config config = parse("large_segment_size_mb:13,expandable_segments:False");

    assert_int_equal(config.large_segment_bytes, 13 * XSEG_MIB);
    assert_int_equal(xseg_config_parse(&config, "expandable_segments:True", NULL), XSEG_ERR_CONFIG);
    assert_string_equal(
        xseg_fail_detail(),
        "invalid value of expandable_segments, 'True' at column 21; expected False, "
        "because page sizes are multiples of 2 MiB and large_segment_size_mb is 13");
    assert_ok(
        xseg_config_parse(&config, "expandable_segments:True,large_segment_size_mb:14", NULL));
}

TEST(divisions_fill_their_intervals)
{
    static const struct {
        const char *text;
        uint32_t expected[XSEG_CONFIG_INTERVALS];
        const char *printed;
    } row[] = {
        {"8", {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, "[16384:8,>:8]"},
        {"[256:1,512:2,>:4]",
         {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4},
         "[256:1,512:2,>:4]"},
        {"[64:8,256:4,1024:4,>:1]",
         {8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 4, 1, 1, 1, 1, 1},
         "[64:8,128:0,256:4,512:0,1024:4,>:1]"},
        {"[1:2]", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "[1:2,>:0]"},
        {"[1:2,>:0]", {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "[1:2,>:0]"},
        {"[1:0,32768:16]", {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16}, "[16384:0,>:16]"},
        {"[1048576:2]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, "[16384:2,>:2]"},
        {"[1048576:2,>:4]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, "[16384:2,>:2]"},
        {"[4:4,2:8,>:16]",
         {4, 8, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16},
         "[1:4,2:8,>:16]"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(row); i++) {
        struct xseg_strbuf text;
        char buffer[256];

        (void)snprintf(buffer, sizeof(buffer), "roundup_power2_divisions:%s", row[i].text);
        const struct xseg_config config = parse(buffer);
        assert_memory_equal(config.roundup_divisions, row[i].expected, sizeof(row[i].expected));
        xseg_strbuf_init(&text, buffer, sizeof(buffer));
        assert_true(xseg_config_print_value(&config, XSEG_CONFIG_ROUNDUP_DIVISIONS, &text));
        assert_string_equal(buffer, row[i].printed);
    }
}

/* A path may contain the word `none`. */
TEST(none_is_not_a_budget_file_name)
{
    const struct xseg_config config = parse("budget_file:here,budget_file:none,oom_snapshot:none");

    assert_string_equal(config.budget_file, "");
    assert_string_equal(config.oom_snapshot, "none");
    assert_string_equal(parse("budget_file:./none").budget_file, "./none");
}

/* Each key, with a value other than the default. */
static const char *const changed_keys =
    "expandable_segments:False,large_segment_size_mb:41,max_split_size_mb:50,"
    "max_non_split_rounding_mb:60,roundup_power2_divisions:[2:4,16:8,64:0,>:32],"
    "per_process_memory_fraction:0.123456789012345,garbage_collection_threshold:0.9,"
    "graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True,"
    "expandable_segments_reserve:1e-3G,"
    "idle_ms:1000,keep_mb:5,keep_window_s:6,reclaim_us_per_s:7,soft_limit_mb:8,"
    "hard_limit_mb:10,device_free_min_mb:9,background_thread:True,page_cache_mb:11,"
    "exportable:True,rdma:True,publish:True,budget_file:here,budget_share:0.5,"
    "budget_min_mb:12,budget_wait_ms:13,page_size:auto,"
    "debug_fill:True,unmap_on_free:True,guard_page:True,block_user:True,"
    "history:all,history_stacks:alloc,history_events:1000,history_skip:[segment_map],"
    "oom_snapshot:there,oom_snapshot_ms:14,oom_snapshot_mb:15";

static bool has_key(const char *text, const char *name)
{
    const size_t length = strlen(name);

    for (const char *key = text; key != NULL; key = strchr(key, ','), key += key != NULL)
        if (strncmp(key, name, length) == 0 && key[length] == ':')
            return true;
    print_message("# the string has no %s\n", name);
    return false;
}

TEST(printed_configuration_parses_to_the_same_values)
{
    const struct xseg_config config = parse(changed_keys);
    const char *const text = to_string(&config);
    struct xseg_config reparsed;

    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        assert_true(has_key(changed_keys, xseg_config_table[key].name) &&
                    has_key(text, xseg_config_table[key].name));
    reparsed = parse(text);
    assert_same(&config, &reparsed);

    xseg_config_init(&reparsed);
    const struct xseg_config defaults = parse(to_string(&reparsed));
    assert_same(&defaults, &reparsed);
}

/* Locales that do not exist on this host are skipped; C always exists. */
TEST(numbers_have_a_point_in_every_locale)
{
    static const char *const name[] = {"C", "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "ru_RU.UTF-8"};

    for (size_t i = 0; i < XSEG_COUNT_OF(name); i++) {
        if (setlocale(LC_NUMERIC, name[i]) == NULL)
            continue;
        const struct xseg_config config = parse("per_process_memory_fraction:0.25");
        const bool is_point = strstr(to_string(&config), "fraction:0.25,") != NULL;
        (void)setlocale(LC_NUMERIC, "C");
        assert_true(config.memory_fraction > 0.2 && config.memory_fraction < 0.3);
        assert_true(is_point);
    }
}

/* `auto` is the default of the device. */
TEST(free_minimum_is_automatic)
{
    struct xseg_config config;

    xseg_config_init(&config);
    assert_int_equal(config.device_free_min_bytes, UINT64_MAX);
    xseg_config_derive(&config);
    assert_false(config.decays);
    config = parse("device_free_min_mb:7");
    assert_int_equal(config.device_free_min_bytes, 7 * XSEG_MIB);
    assert_int_equal(xseg_config_parse(&config, "device_free_min_mb:auto", NULL), XSEG_OK);
    assert_int_equal(config.device_free_min_bytes, UINT64_MAX);
    assert_int_equal(parse("device_free_min_mb:0").device_free_min_bytes, 0);
    assert_true(parse("device_free_min_mb:99999999999999").device_free_min_bytes < UINT64_MAX);
    config = parse("device_free_min_mb:1");
    xseg_config_derive(&config);
    assert_true(config.decays);
}

/* PyTorch checks the values of these keys.  The library only stores their strings, and does not print them. */
TEST(keys_of_pytorch_are_ignored)
{
    struct xseg_config config =
        parse("backend:whatever,expandable_segments_reserve_by_class:[ kv : 40G , rest:0.5 ],"
              "pinned_num_register_threads:3,release_lock_on_hipmalloc:True,max_split_size_mb:64");

    assert_int_equal(config.max_split_bytes, 64 * XSEG_MIB);
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        assert_null(strstr(to_string(&config), xseg_config_ignored[i]));
    assert_string_equal(xseg_config_ignored_value(&config, "backend"), "whatever");
    assert_string_equal(xseg_config_ignored_value(&config, "expandable_segments_reserve_by_class"),
                        "[ kv : 40G , rest:0.5 ]");
    assert_null(xseg_config_ignored_value(&config, "release_lock_on_cudamalloc"));
    assert_ok(xseg_config_parse(&config, "pinned_num_register_threads:8", NULL));
    assert_string_equal(xseg_config_ignored_value(&config, "pinned_num_register_threads"), "8");
}

TEST(long_values_of_ignored_keys_are_not_stored)
{
    static const char key[] = "expandable_segments_reserve_by_class:";
    char text[sizeof(key) + XSEG_CONFIG_IGNORED_BYTES];

    for (size_t length = XSEG_CONFIG_IGNORED_BYTES - 1; length <= XSEG_CONFIG_IGNORED_BYTES;
         length++) {
        memcpy(text, key, sizeof(key) - 1);
        memset(text + sizeof(key) - 1, 'x', length);
        text[sizeof(key) - 1 + length] = '\0';
        const struct xseg_config config = parse(text);
        const char *const value =
            xseg_config_ignored_value(&config, "expandable_segments_reserve_by_class");

        assert_int_equal(value != NULL, length < XSEG_CONFIG_IGNORED_BYTES);
        assert_true(value == NULL || strlen(value) == length);
    }
}

TEST(keys_that_were_set_are_reported)
{
    struct xseg_config config;
    uint64_t named = 0;

    xseg_config_init(&config);
    assert_ok(xseg_config_parse(&config,
                                "expandable_segments:True,backend:native,"
                                "pinned_free_catch_all:False,max_split_size_mb:20",
                                &named));
    assert_int_equal(named, UINT64_C(1) << XSEG_CONFIG_EXPANDABLE_SEGMENTS |
                                UINT64_C(1) << XSEG_CONFIG_KEYS /* backend */ |
                                UINT64_C(1) << (XSEG_CONFIG_KEYS + 2) /* pinned_free_catch_all */ |
                                UINT64_C(1) << XSEG_CONFIG_MAX_SPLIT_SIZE);
}

static void clear_environment(void)
{
    (void)unsetenv("XSEG_ALLOC_CONF");
    (void)unsetenv("PYTORCH_CUDA_ALLOC_CONF");
    (void)unsetenv("PYTORCH_ALLOC_CONF");
}

/* Load a configuration from an argument and three variables; NULL: not set. */
static struct xseg_config load(const char *argument, const char *xseg, const char *pytorch_cuda,
                               const char *pytorch, const char *expected_source)
{
    struct xseg_config config;
    const char *source = NULL;

    clear_environment();
    if (xseg != NULL)
        (void)setenv("XSEG_ALLOC_CONF", xseg, 1);
    if (pytorch_cuda != NULL)
        (void)setenv("PYTORCH_CUDA_ALLOC_CONF", pytorch_cuda, 1);
    if (pytorch != NULL)
        (void)setenv("PYTORCH_ALLOC_CONF", pytorch, 1);
    assert_ok(xseg_config_load(&config, argument, &source, NULL));
    assert_string_equal(source, expected_source);
    clear_environment();
    return config;
}

TEST(first_source_replaces_all_others)
{
    static const char *const source[] = {"argument", "XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                                         "PYTORCH_ALLOC_CONF"};
    const char *text[] = {"max_split_size_mb:21", "max_split_size_mb:22", "max_split_size_mb:23",
                          "max_split_size_mb:24"};

    for (unsigned i = 0; i < COUNT_OF(source); i++) {
        assert_int_equal(load(text[0], text[1], text[2], text[3], source[i]).max_split_bytes,
                         (21 + i) * XSEG_MIB);
        /* Sources are not merged, and an empty string is a source. */
        text[i] = "";
        assert_true(load(text[0], text[1], text[2], text[3], source[i]).max_split_bytes ==
                    UINT64_MAX);
        text[i] = NULL;
    }
}

TEST(expandable_segments_defaults_by_source)
{
    assert_true(load(NULL, NULL, NULL, NULL, "default").expandable_segments);
    assert_true(load("", NULL, NULL, NULL, "argument").expandable_segments);
    assert_true(load(NULL, "", NULL, NULL, "XSEG_ALLOC_CONF").expandable_segments);
    assert_false(load(NULL, NULL, "", NULL, "PYTORCH_CUDA_ALLOC_CONF").expandable_segments);
    assert_false(
        load(NULL, NULL, NULL, "max_split_size_mb:20", "PYTORCH_ALLOC_CONF").expandable_segments);
    assert_true(load(NULL, NULL, "expandable_segments:True", NULL, "PYTORCH_CUDA_ALLOC_CONF")
                    .expandable_segments);
    assert_false(
        load("expandable_segments:False", NULL, NULL, NULL, "argument").expandable_segments);
}

TEST(invalid_source_is_reported_and_not_skipped)
{
    struct xseg_config config = parse("max_split_size_mb:99");
    const char *source = "untouched";

    clear_environment();
    (void)setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:7", 1);
    (void)setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:70", 1);
    assert_int_equal(xseg_config_load(&config, NULL, &source, NULL), XSEG_ERR_CONFIG);
    clear_environment();
    assert_non_null(strstr(xseg_fail_detail(), "(source: PYTORCH_CUDA_ALLOC_CONF)"));
    assert_string_equal(source, "untouched");
    assert_int_equal(config.max_split_bytes, 99 * XSEG_MIB);
}

TEST(the_table_describes_every_key)
{
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        const struct xseg_config_row *row = &xseg_config_table[key];

        assert_non_null(row->name);
        assert_non_null(row->accepted);
        assert_non_null(row->description);
        for (unsigned earlier = 0; earlier < key; earlier++) {
            assert_string_not_equal(row->name, xseg_config_table[earlier].name);
            assert_int_not_equal(row->offset, xseg_config_table[earlier].offset);
        }
    }
}

/* --- Limits of a device. --- */

#define NONE UINT64_MAX

static struct xseg_device device;

static void expect_limits(uint64_t hard, uint64_t soft, uint64_t keep)
{
    struct xseg_limits now;

    xseg_device_limits_read(&device.limits, &now);
    assert_int_equal(now.hard_bytes, hard);
    assert_int_equal(now.soft_bytes, soft);
    assert_int_equal(now.keep_bytes, keep);
}

TEST(contradictory_limits_are_rejected)
{
    static const struct {
        uint64_t hard, soft, keep;
        bool is_consistent;
    } row[] = {
        {NONE, NONE, 0, true}, {0, 0, 0, true},     {9, 5, 5, true},  {5, 5, 5, true},
        {9, NONE, 9, true},    {NONE, 5, 4, true},  {4, 5, 0, false}, {9, 4, 5, false},
        {4, NONE, 5, false},   {0, NONE, 1, false},
    };
    struct xseg_config config;

    xseg_config_init(&config);
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const struct xseg_limits set = {sizeof(set), row[i].hard, row[i].soft, row[i].keep,
                                        1,           false,       1,           false};

        xseg_device_limits_init(&device.limits, &config);
        if (row[i].is_consistent) {
            assert_ok(xseg_device_limits_set(&device.limits, &set));
            expect_limits(row[i].hard, row[i].soft, row[i].keep);
        } else {
            assert_int_equal(xseg_device_limits_set(&device.limits, &set), XSEG_ERR_ARGUMENT);
            expect_limits(NONE, NONE, 0);
        }
    }
}

TEST(only_keys_that_were_set_apply)
{
    const uint64_t hard = (uint64_t)1 << XSEG_CONFIG_HARD_LIMIT,
                   soft = (uint64_t)1 << XSEG_CONFIG_SOFT_LIMIT,
                   keep = (uint64_t)1 << XSEG_CONFIG_KEEP;
    const struct xseg_limits limits = {sizeof(limits), 50, 40, 30, 1, false, 1, false};
    struct xseg_config config;

    xseg_config_init(&config);
    xseg_device_limits_init(&device.limits, &config);
    assert_ok(xseg_device_limits_set(&device.limits, &limits));
    config.hard_limit_bytes = 35;
    config.soft_limit_bytes = 33;
    config.keep_bytes = 5;
    assert_ok(xseg_device_limits_apply_config(&device, &config, 0, true));
    expect_limits(50, 40, 30);
    assert_error(xseg_device_limits_apply_config(&device, &config, hard, true), CONFIG,
                 "soft_bytes exceeds hard_bytes");
    expect_limits(50, 40, 30);
    assert_ok(xseg_device_limits_apply_config(&device, &config, hard | soft, false));
    expect_limits(50, 40, 30);
    assert_ok(xseg_device_limits_apply_config(&device, &config, hard | soft, true));
    expect_limits(35, 33, 30);
    assert_ok(xseg_device_limits_apply_config(&device, &config, keep, true));
    expect_limits(35, 33, 5);
}

/* --- Arithmetic of sizes, with PyTorch's own test vectors. --- */

/* Sizes are rounded up to one of `divisions` equal steps between two powers of two, and to multiples of 512 bytes. */
TEST(sizes_are_rounded)
{
    static const struct {
        uint32_t divisions;
        uint64_t bytes, rounded;
    } row[] = {
        {0, 1, 512},
        {0, 511, 512},
        {0, 512, 512},
        {0, 513, 1024},
        {1, 1200, 1536},
        {4, 1200, 1536},
        {4, 2048, 2048},
        {4, 5000, 5120},
        {4, 84 * MIB, 96 * MIB},
        {8, 84 * MIB, 88 * MIB},
        {2, 400 * MIB, 512 * MIB},
        {2, 64 * MIB, 64 * MIB},
        {16, 3 * GIB + 1, 3 * GIB + 128 * MIB},
        {8, MIB + 1, MIB + 128 * KIB},
    };

    for (unsigned i = 0; i < XSEG_COUNT_OF(row); i++) {
        struct xseg_config config;

        xseg_config_init(&config);
        for (unsigned interval = 0; interval < XSEG_CONFIG_INTERVALS; interval++)
            config.roundup_divisions[interval] = row[i].divisions;
        assert_int_equal(xseg_size_round(&config, row[i].bytes), row[i].rounded);
    }
}

TEST(requests_belong_to_intervals)
{
    struct xseg_config config;

    xseg_config_init(&config);
    config.roundup_divisions[0] = 2;  /* below 2 MiB */
    config.roundup_divisions[9] = 4;  /* from 512 MiB to 1 GiB */
    config.roundup_divisions[15] = 8; /* from 32 GiB */
    assert_int_equal(xseg_size_round(&config, 700 * KIB), 768 * KIB);
    assert_int_equal(xseg_size_round(&config, MIB + 1), MIB + 512 * KIB);
    assert_int_equal(xseg_size_round(&config, 3 * MIB + 1), 3 * MIB + 512);
    assert_int_equal(xseg_size_round(&config, 600 * MIB), 640 * MIB);
    assert_int_equal(xseg_size_round(&config, 100 * GIB), 104 * GIB);
}

TEST(segment_sizes_follow_the_request)
{
    struct xseg_config config;

    xseg_config_init(&config);
    assert_int_equal(xseg_size_segment(&config, 512), 2 * MIB);
    assert_int_equal(xseg_size_segment(&config, MIB), 2 * MIB);
    assert_int_equal(xseg_size_segment(&config, MIB + 512), 20 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB - 512), 20 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB), 10 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB + 512), 12 * MIB);
    config.large_segment_bytes = 64 * MIB;
    assert_int_equal(xseg_size_segment(&config, 2 * MIB), 64 * MIB);
    assert_true(MIB <= XSEG_SIZE_SMALL_MAX);
    assert_false(MIB + 512 <= XSEG_SIZE_SMALL_MAX);
}
