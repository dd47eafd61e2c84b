/* SPDX-License-Identifier: MIT */
/* The nearest known name: what people mistype is found, and what is something else is not. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/string_util.h"
#include "tests/support/test.h"

static const char *const known[] = {
    "expandable_segments", "garbage_collection_threshold",
    "hard_limit_mb",       "idle_ms",
    "max_split_size_mb",   "page_cache_mb",
    "page_size",           "per_process_memory_fraction",
    "soft_limit_mb",
};

/* The nearest to exactly the word's characters: the copy has no terminator behind it. */
static const char *nearest_to(const char *word)
{
    const size_t length = strlen(word);
    char *copy = malloc(length > 0 ? length : 1);
    struct xseg_closest_match nearest;

    assert_non_null(copy);
    memcpy(copy, word, length);
    xseg_closest_match_init(&nearest, copy, length);
    for (size_t i = 0; i < XSEG_COUNT_OF(known); i++)
        xseg_closest_match_consider(&nearest, known[i]);
    free(copy);
    return nearest.name;
}

TEST(mistyped_names_are_found)
{
    static const struct {
        const char *word, *want;
    } row[] = {
        {"expandable_segment", "expandable_segments"},   /* left out */
        {"expandable_seggments", "expandable_segments"}, /* put in */
        {"expendable_segments", "expandable_segments"},  /* replaced */
        {"expandable_segmenst", "expandable_segments"},  /* swapped */
        {"EXPANDABLE-SEGMENTS", "expandable_segments"},  /* in other characters */
        {"expandable", "expandable_segments"},           /* begun */
        {"max_split_size", "max_split_size_mb"},
        {"max_splitsize_mb", "max_split_size_mb"},
        {"garbage_collect_threshold", "garbage_collection_threshold"},
        {"hard_limit", "hard_limit_mb"},
        {"pgae_size", "page_size"},
        {"page", "page_size"}, /* of two that begin so, the shortest */
        {"page_size", "page_size"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(row); i++)
        assert_string_equal(nearest_to(row[i].word), row[i].want);
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
        if (nearest_to(word[i]) != NULL)
            fail_msg("\"%s\" is taken for \"%s\"", word[i], nearest_to(word[i]));
}

TEST(a_swap_is_one_edit_and_equals_keep_their_order)
{
    struct xseg_closest_match nearest;

    xseg_closest_match_init(&nearest, "abdc", 4);
    xseg_closest_match_consider(&nearest, "abcd");
    assert_int_equal(nearest.distance, 1);
    xseg_closest_match_consider(&nearest, "abdx");
    assert_string_equal(nearest.name, "abcd");
    xseg_closest_match_consider(&nearest, "abd");
    assert_string_equal(nearest.name, "abd");
    xseg_closest_match_consider(&nearest, "abdc");
    assert_int_equal(nearest.distance, 0);
}

TEST(names_of_any_length_are_compared)
{
    char word[XSEG_CLOSEST_MATCH_MAX + 2], name[XSEG_CLOSEST_MATCH_MAX + 2];

    for (size_t length = 3; length <= XSEG_CLOSEST_MATCH_MAX + 1; length++) {
        struct xseg_closest_match nearest;

        memset(word, 'w', length);
        memset(name, 'w', length);
        name[length] = '\0';
        name[length / 2] = 'n';
        xseg_closest_match_init(&nearest, word, length);
        xseg_closest_match_consider(&nearest, name);
        assert_ptr_equal(nearest.name, length <= XSEG_CLOSEST_MATCH_MAX ? name : NULL);
    }
}
