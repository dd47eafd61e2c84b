/* SPDX-License-Identifier: MIT */
/* The index, and arrays that grow by one item: numbers are found by what they stand for, however many there are. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/array.h"
#include "src/tools/containers/index.h"
#include "tests/support/test.h"

#define COUNT 5000u

struct words {
    uint64_t *words; /* [count] */
    size_t count;
};

static bool is_word(const void *owner, uint32_t number, const void *what, size_t bytes)
{
    return memcmp(&((const struct words *)owner)->words[number], what, bytes) == 0;
}

/* Sums of `bits` bits: with few of them, many words have the same one. */
static void fill(struct index *index, struct words *words, unsigned bits)
{
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t word = i * i;
        const uint64_t sum = index_sum(&word, sizeof(word)) >> (64 - bits);

        assert_int_equal(index_find(index, sum, &word, sizeof(word), is_word, words), INDEX_NONE);
        assert_true(array_room((void **)&words->words, words->count, sizeof(word)));
        words->words[words->count] = word;
        assert_true(index_add(index, sum, (uint32_t)words->count++));
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t word = i * i;
        const uint64_t sum = index_sum(&word, sizeof(word)) >> (64 - bits);

        assert_int_equal(index_find(index, sum, &word, sizeof(word), is_word, words), i);
    }
}

TEST(each_number_is_found)
{
    static const unsigned bits[] = {64, 32, 6};

    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        struct words words = {NULL, 0};
        struct index index = {0};

        fill(&index, &words, bits[i]);
        index_fini(&index);
        assert_int_equal(index.room, 0);
        free(words.words);
    }
}

TEST(an_array_keeps_its_items)
{
    uint32_t *items = NULL;

    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(array_room((void **)&items, i, sizeof(*items)));
        items[i] = i;
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(items[i], i);
    /* What was taken away may be added again. */
    for (uint32_t i = 64; i < COUNT; i++) {
        assert_true(array_room((void **)&items, i, sizeof(*items)));
        items[i] = 2 * i;
    }
    assert_int_equal(items[63], 63);
    assert_int_equal(items[COUNT - 1], 2 * (COUNT - 1));
    free(items);
}
