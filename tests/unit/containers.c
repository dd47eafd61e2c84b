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
#include "tests/support/test.h"

struct item {
    int number;
    struct xseg_list link;
};

/* The list holds exactly these numbers, forwards and backwards. */
static void assert_numbers(struct xseg_list *head, const int *want, size_t count)
{
    struct xseg_list *back = head->prev;
    size_t i = 0;

    XSEG_LIST_FOR(node, head)
    {
        assert_true(i < count);
        assert_int_equal(XSEG_CONTAINER(node, struct item, link)->number, want[i]);
        assert_ptr_equal(node->next->prev, node);
        i++;
    }
    assert_int_equal(i, count);
    for (; back != head; back = back->prev)
        assert_int_equal(XSEG_CONTAINER(back, struct item, link)->number, want[--i]);
    assert_int_equal(i, 0);
}

static void fill_list(struct xseg_list *head, struct item *item, size_t count)
{
    xseg_list_init(head);
    for (size_t i = 0; i < count; i++) {
        item[i].number = (int)i;
        xseg_list_insert(head, &item[i].link);
    }
}

TEST(a_new_list_is_empty)
{
    struct xseg_list head;

    xseg_list_init(&head);
    assert_true(xseg_list_is_empty(&head));
    assert_numbers(&head, NULL, 0);
}

TEST(inserting_before_the_head_appends)
{
    struct xseg_list head;
    struct item item[3];

    fill_list(&head, item, 3);
    assert_false(xseg_list_is_empty(&head));
    assert_numbers(&head, (const int[]){0, 1, 2}, 3);
    assert_ptr_equal(XSEG_LIST_FIRST(&head, struct item, link), &item[0]);
}

TEST(inserting_before_a_node_places_it_there)
{
    struct xseg_list head;
    struct item item[3], first = {.number = 10}, middle = {.number = 11};

    fill_list(&head, item, 3);
    xseg_list_insert(&item[0].link, &first.link);
    xseg_list_insert(&item[2].link, &middle.link);
    assert_numbers(&head, (const int[]){10, 0, 1, 11, 2}, 5);
}

TEST(removing_closes_the_ring)
{
    struct xseg_list head;
    struct item item[4];

    fill_list(&head, item, 4);
    xseg_list_remove(&item[0].link);
    assert_numbers(&head, (const int[]){1, 2, 3}, 3);
    xseg_list_remove(&item[2].link);
    assert_numbers(&head, (const int[]){1, 3}, 2);
    xseg_list_remove(&item[3].link);
    xseg_list_remove(&item[1].link);
    assert_true(xseg_list_is_empty(&head));
}

TEST(removing_twice_does_nothing)
{
    struct xseg_list head;
    struct item item[2];

    fill_list(&head, item, 2);
    xseg_list_remove(&item[0].link);
    assert_true(xseg_list_is_empty(&item[0].link));
    xseg_list_remove(&item[0].link);
    assert_numbers(&head, (const int[]){1}, 1);
    xseg_list_insert(&head, &item[0].link);
    assert_numbers(&head, (const int[]){1, 0}, 2);
}

TEST(a_safe_walk_survives_removal)
{
    struct xseg_list head, odd;
    struct item item[5];

    fill_list(&head, item, 5);
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
    xseg_hash_table_fini(&table);
}

TEST(destroyed_table_is_empty)
{
    struct xseg_hash_table table;

    xseg_hash_table_init(&table, sizeof(struct entry));
    assert_null(xseg_hash_table_find(&table, 1));
    assert_non_null(xseg_hash_table_find_or_add(&table, 1));
    xseg_hash_table_fini(&table);
    assert_null(xseg_hash_table_find(&table, 1));
    assert_non_null(xseg_hash_table_find_or_add(&table, 1));
    xseg_hash_table_fini(&table);
}

/* --- Bitmaps with summaries, compared with an array of flags. --- */

struct fixture {
    struct xseg_bitmap bits;
    uint64_t *storage;
    bool *flag; /* the expected members */
    uint64_t random;
};

/* xorshift with a fixed seed */
static uint32_t next_random(struct fixture *f, uint32_t below)
{
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return (uint32_t)(f->random % below);
}

static void setup(struct fixture *f, uint32_t count)
{
    f->storage = calloc(xseg_bitmap_words(count), sizeof(*f->storage));
    f->flag = calloc(count, sizeof(*f->flag));
    f->random = 88172645463325252u;
    assert_non_null(f->storage);
    assert_non_null(f->flag);
    xseg_bitmap_init(&f->bits, f->storage, count);
}

static void teardown(struct fixture *f)
{
    free(f->storage);
    free(f->flag);
}

static void add(struct fixture *f, uint32_t number)
{
    xseg_bitmap_set(&f->bits, number);
    f->flag[number] = true;
}

static uint32_t flag_next(const struct fixture *f, uint32_t from)
{
    for (uint32_t i = from; i < f->bits.count; i++)
        if (f->flag[i])
            return i;
    return XSEG_BITMAP_NONE;
}

static uint32_t flag_prev(const struct fixture *f, uint32_t below)
{
    for (uint32_t i = below < f->bits.count ? below : f->bits.count; i-- > 0;)
        if (f->flag[i])
            return i;
    return XSEG_BITMAP_NONE;
}

/* Check invariant BITS-1 for each member. */
static void assert_summaries(const struct fixture *f)
{
    const uint32_t words = (f->bits.count + 63) / 64;

    for (uint32_t i = 0; i < words; i++)
        assert_int_equal(f->bits.word[i] != 0, f->bits.summary[i / 64] >> (i % 64) & 1);
    for (uint32_t i = 0; i < (words + 63) / 64; i++)
        assert_int_equal(f->bits.summary[i] != 0, f->bits.top >> i & 1);
}

TEST(an_empty_set_has_no_members)
{
    struct fixture f;

    setup(&f, 70000);
    assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
    assert_int_equal(xseg_bitmap_next(&f.bits, 69999), XSEG_BITMAP_NONE);
    assert_int_equal(xseg_bitmap_prev(&f.bits, 70000), XSEG_BITMAP_NONE);
    assert_false(xseg_bitmap_test(&f.bits, 4096));
    teardown(&f);
}

/* A single member at each edge of a word and of a summary word is found from every start. */
TEST(a_lone_member_is_found_from_both_sides)
{
    static const uint32_t edge[] = {
        0,    1,    62,   63,   64,    65,    127,    4095,
        4096, 4097, 8191, 8192, 65535, 65536, 262080, XSEG_BITMAP_MAX - 1};

    for (size_t i = 0; i < XSEG_COUNT_OF(edge); i++) {
        struct fixture f;

        setup(&f, XSEG_BITMAP_MAX);
        add(&f, edge[i]);
        assert_true(xseg_bitmap_test(&f.bits, edge[i]));
        for (size_t j = 0; j < XSEG_COUNT_OF(edge); j++) {
            assert_int_equal(xseg_bitmap_next(&f.bits, edge[j]),
                             edge[j] <= edge[i] ? edge[i] : XSEG_BITMAP_NONE);
            assert_int_equal(xseg_bitmap_prev(&f.bits, edge[j]),
                             edge[j] > edge[i] ? edge[i] : XSEG_BITMAP_NONE);
        }
        assert_int_equal(xseg_bitmap_prev(&f.bits, UINT32_MAX), edge[i]);
        assert_int_equal(xseg_bitmap_next(&f.bits, UINT32_MAX), XSEG_BITMAP_NONE);
        xseg_bitmap_clear(&f.bits, edge[i]);
        assert_int_equal(f.bits.top, 0);
        assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
        teardown(&f);
    }
}

TEST(last_member_of_a_partial_word_is_found)
{
    static const uint32_t count[] = {1, 63, 64, 65, 4095, 4096, 4097, 100000};

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        struct fixture f;

        setup(&f, count[i]);
        add(&f, count[i] - 1);
        assert_int_equal(xseg_bitmap_next(&f.bits, 0), count[i] - 1);
        assert_int_equal(xseg_bitmap_next(&f.bits, count[i]), XSEG_BITMAP_NONE);
        assert_int_equal(xseg_bitmap_prev(&f.bits, count[i]), count[i] - 1);
        assert_summaries(&f);
        teardown(&f);
    }
}

TEST(random_members_equal_those_of_an_array)
{
    static const uint32_t count[] = {50, 64, 5000, 20000};

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        struct fixture f;

        setup(&f, count[i]);
        for (unsigned step = 0; step < 3000; step++) {
            const uint32_t number = next_random(&f, count[i]), at = next_random(&f, count[i] + 9);

            if (next_random(&f, 5) < 2) {
                add(&f, number);
            } else {
                xseg_bitmap_clear(&f.bits, number);
                f.flag[number] = false;
            }
            assert_int_equal(xseg_bitmap_test(&f.bits, number), f.flag[number]);
            assert_int_equal(xseg_bitmap_next(&f.bits, at), flag_next(&f, at));
            assert_int_equal(xseg_bitmap_prev(&f.bits, at), flag_prev(&f, at));
        }
        assert_summaries(&f);
        teardown(&f);
    }
}

TEST(adding_and_removing_twice_changes_nothing)
{
    struct fixture f;

    setup(&f, 200);
    add(&f, 70);
    add(&f, 70);
    xseg_bitmap_clear(&f.bits, 70);
    assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
    xseg_bitmap_clear(&f.bits, 70);
    assert_summaries(&f);
    teardown(&f);
}

/* --- Slabs. --- */

struct record {
    uint64_t link; /* of the free list, while the record is free */
    uint32_t number;
    unsigned char rest[92];
};

/* Add one batch to a slab. */
static void fill_slab(struct xseg_slab *slab)
{
    struct xseg_slab_batch *batch =
        xseg_slab_make_batch(slab->record_bytes, xseg_slab_next_records(slab));

    assert_non_null(batch);
    assert_true(xseg_slab_refill(slab, batch));
}

static void assert_audit(const struct xseg_slab *slab)
{
    struct xseg_violation violation = {0};

    if (!xseg_slab_audit(slab, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

static bool is_zero(const struct record *record)
{
    static const struct record zero;

    return record->link == 0 && record->number == 0 &&
           memcmp(record->rest, zero.rest, sizeof(zero.rest)) == 0;
}

TEST(a_new_slab_holds_nothing)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.total, 0);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(records_of_several_batches_do_not_overlap)
{
    enum { COUNT = 5 * XSEG_SLAB_BATCH };
    static struct record *taken[COUNT];
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (uint32_t i = 0; i < COUNT; i++) {
        if (slab.free_count == 0)
            fill_slab(&slab);
        taken[i] = xseg_slab_alloc(&slab);
        assert_true(is_zero(taken[i]));
        memset(taken[i]->rest, (int)i, sizeof(taken[i]->rest));
        taken[i]->number = i;
    }
    assert_int_equal(slab.total, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(taken[i]->number, i);
        assert_int_equal(taken[i]->rest[91], (unsigned char)i);
    }
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(freed_record_is_reused_zeroed)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill_slab(&slab);
    struct record *const record = xseg_slab_alloc(&slab);

    record->number = 7;
    memset(record->rest, 0xff, sizeof(record->rest));
    xseg_slab_free(&slab, record);
    assert_int_equal(slab.free_count, XSEG_SLAB_FIRST);
    /* Past the link, a free record keeps its contents. */
    assert_int_equal(record->number, 7);
    assert_int_equal(record->rest[91], 0xff);

    struct record *const again = xseg_slab_alloc(&slab);
    assert_ptr_equal(again, record);
    assert_true(is_zero(again));
    xseg_slab_fini(&slab);
}

TEST(records_do_not_move_when_batches_are_added)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill_slab(&slab);
    struct record *const record = xseg_slab_alloc(&slab);

    record->number = 99;
    for (unsigned i = 0; i < 100; i++)
        fill_slab(&slab);
    assert_int_equal(record->number, 99);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(allocations_and_frees_in_any_order_keep_count)
{
    enum { HELD = 700 };
    static struct record *held[HELD];
    struct xseg_slab slab;
    uint64_t random = 2463534242u;
    uint32_t live = 0;

    memset(held, 0, sizeof(held));
    xseg_slab_init(&slab, sizeof(struct record));
    for (uint32_t step = 1; step < 20000; step++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        struct record **slot = &held[random % HELD];

        if (*slot != NULL) {
            assert_int_equal((*slot)->rest[0], (unsigned char)(*slot)->number);
            xseg_slab_free(&slab, *slot);
            *slot = NULL;
            live--;
            continue;
        }
        if (slab.free_count == 0)
            fill_slab(&slab);
        *slot = xseg_slab_alloc(&slab);
        (*slot)->number = step;
        (*slot)->rest[0] = (unsigned char)step;
        live++;
    }
    assert_int_equal(slab.total - slab.free_count, live);
    /* No more batches than the peak number of records needs. */
    assert_true(slab.total <= HELD + XSEG_SLAB_BATCH);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(host_bytes_cover_every_record)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (unsigned i = 1; i <= 3; i++) {
        fill_slab(&slab);
        assert_int_equal(slab.host_bytes,
                         sizeof(struct record) * slab.total + i * sizeof(struct xseg_slab_batch));
    }
    xseg_slab_fini(&slab);
}

/* A slab with few records is small; one with many is refilled rarely. */
TEST(batches_grow_with_the_number_of_records)
{
    static const uint32_t records[] = {16, 16, 32, 64, 128, 256, 512, 512, 512};
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (unsigned i = 0; i < sizeof(records) / sizeof(records[0]); i++) {
        const uint32_t before = slab.total;

        fill_slab(&slab);
        assert_int_equal(slab.total - before, records[i]);
        assert_int_equal(slab.free_count, slab.total);
    }
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(more_records_than_can_be_counted_are_refused)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    slab.total = UINT32_MAX - 1;
    assert_false(xseg_slab_refill(&slab, xseg_slab_make_batch(sizeof(struct record), 2)));
    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.host_bytes, 0);
    assert_null(slab.batches);
    xseg_slab_fini(&slab);
}

TEST(the_audit_names_the_broken_invariant)
{
    struct xseg_violation violation = {0};
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill_slab(&slab);
    slab.free_count--;
    assert_false(xseg_slab_audit(&slab, &violation));
    assert_string_equal(violation.tag, "SLAB-1");
    slab.free_count++;
    assert_audit(&slab);
    slab.total--;
    assert_false(xseg_slab_audit(&slab, &violation));
    assert_string_equal(violation.tag, "SLAB-1");
    slab.total++;
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(records_in_memory_of_the_caller_outlive_the_slab)
{
    static struct record memory[4];
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    assert_true(xseg_slab_refill(&slab, xseg_slab_make_batch_at(memory, XSEG_COUNT_OF(memory))));
    assert_int_equal(slab.free_count, XSEG_COUNT_OF(memory));
    assert_audit(&slab);
    for (size_t i = 0; i < XSEG_COUNT_OF(memory); i++)
        assert_ptr_equal(xseg_slab_alloc_uninitialized(&slab), &memory[i]);
    memory[3].number = 5;
    xseg_slab_fini(&slab);
    assert_int_equal(memory[3].number, 5);
}
