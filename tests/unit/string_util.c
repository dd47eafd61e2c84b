/* SPDX-License-Identifier: MIT */
/* The bounded string builder, and the closest match of a name. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/string_util.h"
#include "tests/support/test.h"

TEST(pieces_are_joined)
{
    char buffer[32] = "abc";
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    assert_string_equal(buffer, "");
    assert_int_equal(text.length, 0);
    xseg_strbuf_printf(&text, "%s=%d", "a", 1);
    xseg_strbuf_printf(&text, "%s", "");
    xseg_strbuf_printf(&text, ", %c", 'b');
    assert_string_equal(buffer, "a=1, b");
    assert_int_equal(text.length, strlen(buffer));
}

/* Expect the truncated text in the first bytes of a buffer that was filled with '#'. */
static void expect_truncated(const char buffer[48], size_t bytes, const char *complete)
{
    const size_t length = strlen(complete);

    for (size_t i = bytes; i < 48; i++)
        assert_int_equal(buffer[i], '#');
    if (bytes > 0) {
        assert_non_null(memchr(buffer, '\0', bytes));
        assert_memory_equal(buffer, complete, strlen(buffer));
        assert_int_equal(strlen(buffer), bytes - 1 < length ? bytes - 1 : length);
    }
}

/* Buffers of every size up to more than enough: omitted text is counted. */
TEST(no_buffer_size_is_exceeded)
{
    for (size_t bytes = 0; bytes < 24; bytes++) {
        char buffer[48];
        struct xseg_strbuf text;

        memset(buffer, '#', sizeof(buffer));
        xseg_strbuf_init(&text, bytes > 0 ? buffer : NULL, bytes);
        xseg_strbuf_printf(&text, "%s", "0123");
        xseg_strbuf_printf(&text, "456789");
        xseg_strbuf_printf(&text, "%s", "abcdef");
        assert_int_equal(text.length, strlen("0123456789abcdef"));
        expect_truncated(buffer, bytes, "0123456789abcdef");
    }
}

/* In buffers of every size, and only from an offset on. */
TEST(unprintable_bytes_are_escaped)
{
    static const char *const complete = "ab\tc\\xff~\\x7f \\x00";

    for (size_t bytes = 0; bytes < 40; bytes++) {
        char buffer[48];
        struct xseg_strbuf text;

        memset(buffer, '#', sizeof(buffer));
        xseg_strbuf_init(&text, buffer, bytes);
        xseg_strbuf_printf(&text, "ab\tc");
        const size_t from = text.length;
        xseg_strbuf_printf(&text, "\xff~\x7f \\x00");
        xseg_strbuf_escape(&text, from);
        expect_truncated(buffer, bytes, complete);
        if (bytes > strlen(complete))
            assert_int_equal(text.length, strlen(complete));
    }
}

TEST(mebibytes_are_one_unit)
{
    static const struct {
        uint64_t bytes;
        const char *expected;
    } rows[] = {
        {0, "0.00 MiB"},
        {1, "1 byte"},
        {512, "512 bytes"},
        {XSEG_MIB / 200, "5242 bytes"}, /* less than 0.005 MiB */
        {XSEG_MIB / 200 + 1, "0.01 MiB"},
        {XSEG_MIB / 2, "0.50 MiB"},
        {81 * XSEG_GIB, "82944.00 MiB"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(rows); i++) {
        char buffer[40];
        struct xseg_strbuf text;

        xseg_strbuf_init(&text, buffer, sizeof(buffer));
        xseg_strbuf_add_mib(&text, rows[i].bytes);
        assert_string_equal(buffer, rows[i].expected);
    }
}

/* --- The known name that is closest to a mistyped one. --- */

static const char *const known[] = {
    "expandable_segments", "garbage_collection_threshold",
    "hard_limit_mb",       "idle_ms",
    "max_split_size_mb",   "page_cache_mb",
    "page_size",           "per_process_memory_fraction",
    "soft_limit_mb",
};

/* The closest match of a word without a terminator. */
static const char *closest_to(const char *word)
{
    const size_t length = strlen(word);
    char *copy = malloc(length > 0 ? length : 1);
    struct xseg_closest_match match;

    assert_non_null(copy);
    memcpy(copy, word, length);
    xseg_closest_match_init(&match, copy, length);
    for (size_t i = 0; i < XSEG_COUNT_OF(known); i++)
        xseg_closest_match_consider(&match, known[i]);
    free(copy);
    return match.name;
}

TEST(mistyped_names_are_found)
{
    static const struct {
        const char *word, *expected;
    } rows[] = {
        {"expandable_segment", "expandable_segments"},   /* omitted */
        {"expandable_seggments", "expandable_segments"}, /* inserted */
        {"expendable_segments", "expandable_segments"},  /* replaced */
        {"expandable_segmenst", "expandable_segments"},  /* transposed */
        {"EXPANDABLE-SEGMENTS", "expandable_segments"},  /* other case and separator */
        {"expandable", "expandable_segments"},           /* a prefix */
        {"max_split_size", "max_split_size_mb"},
        {"max_splitsize_mb", "max_split_size_mb"},
        {"garbage_collect_threshold", "garbage_collection_threshold"},
        {"hard_limit", "hard_limit_mb"},
        {"pgae_size", "page_size"},
        {"page", "page_size"}, /* the shorter of two names with the prefix */
        {"page_size", "page_size"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(rows); i++)
        assert_string_equal(closest_to(rows[i].word), rows[i].expected);
}

TEST(unrelated_names_match_nothing)
{
    static const char *const word[] = {
        "",     "x",
        "pa",   "backend",
        "mb",   "segments_that_are_expandable",
        "True", "page_size_in_bytes_of_the_small_pool_and_of_the_large_one_and_more",
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(word); i++)
        if (closest_to(word[i]) != NULL)
            fail_msg("\"%s\" matches \"%s\"", word[i], closest_to(word[i]));
}

TEST(transposition_is_one_edit_and_ties_keep_their_order)
{
    struct xseg_closest_match match;

    xseg_closest_match_init(&match, "abdc", 4);
    xseg_closest_match_consider(&match, "abcd");
    assert_int_equal(match.distance, 1);
    xseg_closest_match_consider(&match, "abdx");
    assert_string_equal(match.name, "abcd");
    xseg_closest_match_consider(&match, "abd");
    assert_string_equal(match.name, "abd");
    xseg_closest_match_consider(&match, "abdc");
    assert_int_equal(match.distance, 0);
}

TEST(names_of_any_length_are_compared)
{
    char word[XSEG_CLOSEST_MATCH_MAX + 2], name[XSEG_CLOSEST_MATCH_MAX + 2];

    for (size_t length = 3; length <= XSEG_CLOSEST_MATCH_MAX + 1; length++) {
        struct xseg_closest_match match;

        memset(word, 'w', length);
        memset(name, 'w', length);
        name[length] = '\0';
        name[length / 2] = 'n';
        xseg_closest_match_init(&match, word, length);
        xseg_closest_match_consider(&match, name);
        assert_ptr_equal(match.name, length <= XSEG_CLOSEST_MATCH_MAX ? name : NULL);
    }
}
