/* SPDX-License-Identifier: MIT */
/* Lists, hash tables, bitmaps and slabs. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/bitmap.h"
#include "src/base/hash_table.h"
#include "src/base/list.h"
#include "src/base/slab.h"
#include "tests/support/audit.h"
#include "tests/support/rng.h"

struct item {
    int number;
    struct xseg_list link;
};

static struct xseg_list head;
static struct item item[5];

/* Expect exactly these numbers in the list, in both directions. */
static void assert_numbers(struct xseg_list *list, const int *expected, size_t count)
{
    size_t i = 0;

    XSEG_LIST_FOR(node, list)
    {
        assert_true(i < count);
        assert_int_equal(XSEG_CONTAINER(node, struct item, link)->number, expected[i]);
        assert_ptr_equal(node->next->prev, node);
        i++;
    }
    assert_int_equal(i, count);
    for (struct xseg_list *back = list->prev; back != list; back = back->prev)
        assert_int_equal(XSEG_CONTAINER(back, struct item, link)->number, expected[--i]);
    assert_int_equal(i, 0);
}

static void fill_list(size_t count)
{
    xseg_list_init(&head);
    for (size_t i = 0; i < count; i++) {
        item[i].number = (int)i;
        xseg_list_insert(&head, &item[i].link);
    }
}

TEST(node_is_inserted_before_another)
{
    struct item first = {.number = 10}, middle = {.number = 11};

    fill_list(0);
    assert_true(xseg_list_is_empty(&head));
    assert_numbers(&head, NULL, 0);
    fill_list(3);
    assert_false(xseg_list_is_empty(&head));
    assert_numbers(&head, (const int[]){0, 1, 2}, 3);
    assert_ptr_equal(XSEG_LIST_FIRST(&head, struct item, link), &item[0]);
    xseg_list_insert(&item[0].link, &first.link);
    xseg_list_insert(&item[2].link, &middle.link);
    assert_numbers(&head, (const int[]){10, 0, 1, 11, 2}, 5);
}

TEST(removal_keeps_the_list_linked)
{
    fill_list(4);
    for (unsigned i = 0; i < 2; i++) { /* a second removal has no effect */
        xseg_list_remove(&item[0].link);
        assert_true(xseg_list_is_empty(&item[0].link));
        assert_numbers(&head, (const int[]){1, 2, 3}, 3);
    }
    xseg_list_remove(&item[2].link);
    assert_numbers(&head, (const int[]){1, 3}, 2);
    xseg_list_insert(&head, &item[0].link);
    assert_numbers(&head, (const int[]){1, 3, 0}, 3);
    xseg_list_remove(&item[3].link);
    xseg_list_remove(&item[1].link);
    xseg_list_remove(&item[0].link);
    assert_true(xseg_list_is_empty(&head));
}

TEST(safe_iteration_permits_removal)
{
    struct xseg_list odd;

    fill_list(5);
    xseg_list_init(&odd);
    XSEG_LIST_FOR_SAFE(node, &head)
    {
        if (XSEG_CONTAINER(node, struct item, link)->number % 2 == 0)
            continue;
        xseg_list_remove(node);
        xseg_list_insert(&odd, node);
    }
    assert_numbers(&head, (const int[]){0, 2, 4}, 3);
    assert_numbers(&odd, (const int[]){1, 3}, 2);
}

/* --- Hash tables. --- */

enum { ENTRIES = 20000 };

struct entry {
    uint64_t key, value, untouched;
};

/* Keys that differ in their low bits, in their high bits, and the largest keys. */
static uint64_t key_of(unsigned kind, uint64_t number)
{
    return kind == 0 ? number : kind == 1 ? number << 40 : UINT64_MAX - number;
}

TEST(added_records_are_found)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        struct xseg_hash_table table;

        xseg_hash_table_init(&table, sizeof(struct entry));
        for (uint64_t number = 1; number <= ENTRIES; number++) {
            assert_null(xseg_hash_table_find(&table, key_of(kind, number)));
            struct entry *entry = xseg_hash_table_find_or_add(&table, key_of(kind, number));
            assert_true(entry->key == key_of(kind, number) && entry->value == 0);
            entry->value = number;
        }
        for (uint64_t number = 1; number <= ENTRIES; number++) {
            const struct entry *entry = xseg_hash_table_find(&table, key_of(kind, number));

            assert_true(entry->key == key_of(kind, number) && entry->value == number &&
                        entry->untouched == 0);
            assert_ptr_equal(xseg_hash_table_find_or_add(&table, key_of(kind, number)), entry);
        }
        assert_int_equal(table.used, ENTRIES);
        xseg_hash_table_fini(&table);
    }
}

TEST(each_record_is_visited_once)
{
    static bool was_visited[ENTRIES + 1];
    struct xseg_hash_table table;
    unsigned count = 0;

    xseg_hash_table_init(&table, sizeof(struct entry));
    assert_null(xseg_hash_table_next(&table, NULL));
    for (uint64_t number = 1; number <= ENTRIES; number++)
        assert_non_null(xseg_hash_table_find_or_add(&table, number));
    for (const struct entry *entry = xseg_hash_table_next(&table, NULL); entry != NULL;
         entry = xseg_hash_table_next(&table, entry)) {
        assert_false(was_visited[entry->key]);
        was_visited[entry->key] = true;
        count++;
    }
    assert_int_equal(count, ENTRIES);
    /* A destroyed table is empty, and can be used again. */
    xseg_hash_table_fini(&table);
    assert_null(xseg_hash_table_find(&table, 1));
    assert_non_null(xseg_hash_table_find_or_add(&table, 1));
    xseg_hash_table_fini(&table);
}

/* --- Bitmaps with summaries, compared with an array of flags. --- */

static struct xseg_bitmap bits;
static uint64_t *storage;
static bool *expected; /* whether a number is a member */

static void make_bitmap(uint32_t count)
{
    storage = calloc(xseg_bitmap_words(count), sizeof(*storage));
    expected = calloc(count, sizeof(*expected));
    assert_non_null(storage);
    assert_non_null(expected);
    xseg_bitmap_init(&bits, storage, count);
}

static void free_bitmap(void)
{
    free(storage);
    free(expected);
}

static void set_member(uint32_t number)
{
    xseg_bitmap_set(&bits, number);
    expected[number] = true;
}

static uint32_t expected_next(uint32_t from)
{
    for (uint32_t i = from; i < bits.count; i++)
        if (expected[i])
            return i;
    return XSEG_BITMAP_NONE;
}

static uint32_t expected_prev(uint32_t below)
{
    for (uint32_t i = below < bits.count ? below : bits.count; i-- > 0;)
        if (expected[i])
            return i;
    return XSEG_BITMAP_NONE;
}

/* Check invariant BITS-1 for each member. */
static void assert_summaries(void)
{
    const uint32_t words = (bits.count + 63) / 64;

    for (uint32_t i = 0; i < words; i++)
        assert_int_equal(bits.word[i] != 0, bits.summary[i / 64] >> (i % 64) & 1);
    for (uint32_t i = 0; i < (words + 63) / 64; i++)
        assert_int_equal(bits.summary[i] != 0, bits.top >> i & 1);
}

TEST(single_member_is_found_from_both_sides)
{
    /* At both sides of the limits of words (64) and of words of the summary (4096). */
    static const uint32_t member[] = {
        0,    1,    62,   63,   64,    65,    127,    4095,
        4096, 4097, 8191, 8192, 65535, 65536, 262080, XSEG_BITMAP_MAX - 1};

    for (size_t i = 0; i < XSEG_COUNT_OF(member); i++) {
        make_bitmap(XSEG_BITMAP_MAX);
        set_member(member[i]);
        assert_true(xseg_bitmap_test(&bits, member[i]));
        for (size_t j = 0; j < XSEG_COUNT_OF(member); j++) {
            assert_int_equal(xseg_bitmap_next(&bits, member[j]),
                             member[j] <= member[i] ? member[i] : XSEG_BITMAP_NONE);
            assert_int_equal(xseg_bitmap_prev(&bits, member[j]),
                             member[j] > member[i] ? member[i] : XSEG_BITMAP_NONE);
        }
        assert_int_equal(xseg_bitmap_prev(&bits, UINT32_MAX), member[i]);
        assert_int_equal(xseg_bitmap_next(&bits, UINT32_MAX), XSEG_BITMAP_NONE);
        xseg_bitmap_clear(&bits, member[i]);
        assert_int_equal(bits.top, 0);
        assert_int_equal(xseg_bitmap_next(&bits, 0), XSEG_BITMAP_NONE);
        free_bitmap();
    }
}

TEST(last_member_of_a_partial_word_is_found)
{
    static const uint32_t count[] = {1, 63, 64, 65, 4095, 4096, 4097, 100000};

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        const uint32_t last = count[i] - 1;

        make_bitmap(count[i]);
        for (unsigned round = 0; round < 2; round++) { /* a second addition changes nothing */
            assert_int_equal(xseg_bitmap_test(&bits, last), round != 0);
            set_member(last);
        }
        assert_int_equal(xseg_bitmap_next(&bits, 0), last);
        assert_int_equal(xseg_bitmap_next(&bits, count[i]), XSEG_BITMAP_NONE);
        assert_int_equal(xseg_bitmap_prev(&bits, count[i]), last);
        assert_summaries();
        for (unsigned round = 0; round < 2; round++) {
            xseg_bitmap_clear(&bits, last);
            assert_int_equal(xseg_bitmap_next(&bits, 0), XSEG_BITMAP_NONE);
            assert_int_equal(xseg_bitmap_next(&bits, last), XSEG_BITMAP_NONE);
            assert_int_equal(xseg_bitmap_prev(&bits, count[i]), XSEG_BITMAP_NONE);
            assert_summaries();
        }
        free_bitmap();
    }
}

TEST(random_members_equal_those_of_an_array)
{
    static const uint32_t count[] = {50, 64, 5000, 20000};
    uint64_t random = 1;

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        make_bitmap(count[i]);
        for (unsigned step = 0; step < 3000; step++) {
            const uint32_t number = (uint32_t)(rng_next(&random) % count[i]),
                           start = (uint32_t)(rng_next(&random) % (count[i] + 9));

            if (rng_next(&random) % 5 < 2) {
                set_member(number);
            } else {
                xseg_bitmap_clear(&bits, number);
                expected[number] = false;
            }
            assert_int_equal(xseg_bitmap_test(&bits, number), expected[number]);
            assert_int_equal(xseg_bitmap_next(&bits, start), expected_next(start));
            assert_int_equal(xseg_bitmap_prev(&bits, start), expected_prev(start));
        }
        assert_summaries();
        free_bitmap();
    }
}

/* --- Slabs. --- */

enum { PAYLOAD = 92 };

struct record {
    uint64_t link; /* of the free list, while the record is free */
    uint32_t number;
    unsigned char payload[PAYLOAD];
};

static struct xseg_slab slab;

FIXTURE(open_slab)
{
    xseg_slab_init(&slab, sizeof(struct record));
}

FIXTURE(close_slab)
{
    expect_audit(xseg_slab_audit(&slab, &violation), NULL);
    xseg_slab_fini(&slab);
}

static void add_batch(void)
{
    struct xseg_slab_batch *batch =
        xseg_slab_create_batch(slab.record_bytes, xseg_slab_next_records(&slab));

    assert_non_null(batch);
    assert_true(xseg_slab_refill(&slab, batch));
}

static bool is_zero(const struct record *record)
{
    static const struct record zero;

    return record->link == 0 && record->number == 0 &&
           memcmp(record->payload, zero.payload, sizeof(zero.payload)) == 0;
}

TEST_WITH(records_of_several_batches_do_not_overlap, open_slab, close_slab)
{
    enum { COUNT = 5 * XSEG_SLAB_MAX_BATCH };
    static struct record *allocated[COUNT];

    for (uint32_t i = 0; i < COUNT; i++) {
        if (slab.free_count == 0)
            add_batch();
        allocated[i] = xseg_slab_alloc(&slab);
        assert_true(is_zero(allocated[i]));
        memset(allocated[i]->payload, (int)i, sizeof(allocated[i]->payload));
        allocated[i]->number = i;
    }
    assert_int_equal(slab.total, COUNT);
    for (unsigned i = 0; i < 100; i++)
        add_batch();
    /* The records have not moved. */
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(allocated[i]->number, i);
        assert_int_equal(allocated[i]->payload[PAYLOAD - 1], (unsigned char)i);
    }
}

TEST_WITH(freed_record_is_reused_zeroed, open_slab, close_slab)
{
    add_batch();
    struct record *const record = xseg_slab_alloc(&slab);

    record->number = 7;
    memset(record->payload, 0xff, sizeof(record->payload));
    xseg_slab_free(&slab, record);
    assert_int_equal(slab.free_count, XSEG_SLAB_MIN_BATCH);
    /* Past the link, a free record keeps its contents. */
    assert_int_equal(record->number, 7);
    assert_int_equal(record->payload[PAYLOAD - 1], 0xff);

    struct record *const reused = xseg_slab_alloc(&slab);
    assert_ptr_equal(reused, record);
    assert_true(is_zero(reused));
}

TEST_WITH(random_allocations_and_frees_are_counted, open_slab, close_slab)
{
    enum { HELD = 700 };
    static struct record *held[HELD];
    uint64_t random = 1;
    uint32_t allocated = 0;

    for (uint32_t step = 1; step < 20000; step++) {
        struct record **slot = &held[rng_next(&random) % HELD];

        if (*slot != NULL) {
            assert_int_equal((*slot)->payload[0], (unsigned char)(*slot)->number);
            xseg_slab_free(&slab, *slot);
            *slot = NULL;
            allocated--;
            continue;
        }
        if (slab.free_count == 0)
            add_batch();
        *slot = xseg_slab_alloc(&slab);
        (*slot)->number = step;
        (*slot)->payload[0] = (unsigned char)step;
        allocated++;
    }
    assert_int_equal(slab.total - slab.free_count, allocated);
    /* No more batches than the peak number of records needs. */
    assert_true(slab.total <= HELD + XSEG_SLAB_MAX_BATCH);
}

/* A slab with few records is small, and a slab with many records is refilled rarely. */
TEST_WITH(batches_grow_with_the_number_of_records, open_slab, close_slab)
{
    static const uint32_t records[] = {16, 16, 32, 64, 128, 256, 512, 512, 512};

    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.total, 0);
    for (unsigned i = 0; i < XSEG_COUNT_OF(records); i++) {
        const uint32_t before = slab.total;

        add_batch();
        assert_int_equal(slab.total - before, records[i]);
        assert_int_equal(slab.free_count, slab.total);
        assert_int_equal(slab.host_bytes, sizeof(struct record) * slab.total +
                                              (i + 1) * sizeof(struct xseg_slab_batch));
    }
}

TEST_WITH(excess_records_are_rejected, open_slab, close_slab)
{
    slab.total = UINT32_MAX - 1;
    assert_false(xseg_slab_refill(&slab, xseg_slab_create_batch(sizeof(struct record), 2)));
    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.host_bytes, 0);
    assert_null(slab.batches);
    slab.total = 0;
}

TEST_WITH(audit_reports_the_violated_invariant, open_slab, close_slab)
{
    add_batch();
    WITH_VALUE(slab.free_count, slab.free_count - 1,
               expect_audit(xseg_slab_audit(&slab, &violation), "SLAB-1"));
    expect_audit(xseg_slab_audit(&slab, &violation), NULL);
    WITH_VALUE(slab.total, slab.total - 1,
               expect_audit(xseg_slab_audit(&slab, &violation), "SLAB-1"));
}

TEST(records_in_memory_of_the_caller_outlive_the_slab)
{
    static struct record memory[4];

    xseg_slab_init(&slab, sizeof(struct record));
    assert_true(xseg_slab_refill(&slab, xseg_slab_create_batch_at(memory, XSEG_COUNT_OF(memory))));
    assert_int_equal(slab.free_count, XSEG_COUNT_OF(memory));
    expect_audit(xseg_slab_audit(&slab, &violation), NULL);
    for (size_t i = 0; i < XSEG_COUNT_OF(memory); i++)
        assert_ptr_equal(xseg_slab_alloc_uninitialized(&slab), &memory[i]);
    memory[3].number = 5;
    xseg_slab_fini(&slab);
    assert_int_equal(memory[3].number, 5);
}
