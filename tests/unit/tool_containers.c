/* SPDX-License-Identifier: MIT */
/* Containers of the tool: arrays, heap, index. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"
#include "tests/support/test.h"

#define ITEMS 2000u

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

TEST(items_are_removed_in_order_of_their_keys)
{
    double keys[ITEMS], sorted[ITEMS];
    struct heap heap = {0};

    for (uint32_t i = 0; i < ITEMS; i++) {
        keys[i] = sorted[i] = (double)(i * 7919u % 977u);
        assert_true(heap_add(&heap, keys[i], i));
    }
    qsort(sorted, ITEMS, sizeof(sorted[0]), compare_doubles);
    for (uint32_t i = 0; i < ITEMS; i++) {
        const struct heap_item item = heap_take(&heap);

        assert_true(item.key >= sorted[i] && item.key <= sorted[i]);
        assert_true(keys[item.number] >= item.key && keys[item.number] <= item.key);
        keys[item.number] = -1; /* each is removed once */
    }
    assert_int_equal(heap.count, 0);
    heap_fini(&heap);
}

TEST(first_item_is_replaced)
{
    struct heap heap = {0};

    for (uint32_t i = 0; i < 100; i++)
        assert_true(heap_add(&heap, i, i));
    for (uint32_t i = 100; i < 1000; i++)
        heap_replace(&heap, i, i);
    for (uint32_t i = 900; i < 1000; i++)
        assert_int_equal(heap_take(&heap).number, i);
    heap_fini(&heap);
}

/* --- The index, and arrays that grow by one item. --- */

#define COUNT 5000u

struct words {
    uint64_t *words; /* [count] */
    size_t count;
};

static bool is_word(const void *owner, uint32_t number, const void *word, size_t bytes)
{
    return memcmp(&((const struct words *)owner)->words[number], word, bytes) == 0;
}

/* Hashes of `bits` bits: with few bits many words share a hash. */
static void fill(struct index *index, struct words *words, unsigned bits)
{
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t word = i * i, hash = index_hash(&word, sizeof(word)) >> (64 - bits);

        assert_int_equal(index_find(index, hash, &word, sizeof(word), is_word, words), INDEX_NONE);
        assert_true(array_reserve((void **)&words->words, words->count, sizeof(word)));
        words->words[words->count] = word;
        assert_true(index_add(index, hash, (uint32_t)words->count++));
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t word = i * i, hash = index_hash(&word, sizeof(word)) >> (64 - bits);

        assert_int_equal(index_find(index, hash, &word, sizeof(word), is_word, words), i);
    }
}

TEST(each_number_is_found)
{
    static const unsigned bits[] = {64, 32, 6};

    for (size_t i = 0; i < COUNT_OF(bits); i++) {
        struct words words = {NULL, 0};
        struct index index = {0};

        fill(&index, &words, bits[i]);
        index_fini(&index);
        assert_int_equal(index.capacity, 0);
        free(words.words);
    }
}

TEST(an_array_keeps_its_items)
{
    uint32_t *items = NULL;

    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(array_reserve((void **)&items, i, sizeof(*items)));
        items[i] = i;
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(items[i], i);
    /* The array may be filled again from the middle. */
    for (uint32_t i = 64; i < COUNT; i++) {
        assert_true(array_reserve((void **)&items, i, sizeof(*items)));
        items[i] = 2 * i;
    }
    assert_int_equal(items[63], 63);
    assert_int_equal(items[COUNT - 1], 2 * (COUNT - 1));
    free(items);
}
