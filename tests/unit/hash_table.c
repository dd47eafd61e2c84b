/* SPDX-License-Identifier: MIT */
/* A table of records by key: what was added is found and visited, while the table grows. */
#include <stdbool.h>
#include <string.h>

#include "src/base/hash_table.h"
#include "tests/support/test.h"

enum { COUNT = 20000 };

struct record {
    uint64_t key, value, untouched;
};

/* Keys that differ in their low bits, in their high bits, and the last ones. */
static uint64_t key_of(unsigned kind, uint64_t number)
{
    return kind == 0 ? number : kind == 1 ? number << 40 : UINT64_MAX - number;
}

TEST(added_records_are_found)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        struct xseg_hash_table table;

        xseg_hash_table_init(&table, sizeof(struct record));
        for (uint64_t number = 1; number <= COUNT; number++) {
            assert_null(xseg_hash_table_find(&table, key_of(kind, number)));
            struct record *record = xseg_hash_table_find_or_add(&table, key_of(kind, number));
            assert_true(record->key == key_of(kind, number) && record->value == 0);
            record->value = number;
        }
        for (uint64_t number = 1; number <= COUNT; number++) {
            const struct record *record = xseg_hash_table_find(&table, key_of(kind, number));

            assert_true(record->key == key_of(kind, number) && record->value == number &&
                        record->untouched == 0);
            assert_ptr_equal(xseg_hash_table_find_or_add(&table, key_of(kind, number)), record);
        }
        assert_int_equal(table.used, COUNT);
        xseg_hash_table_fini(&table);
    }
}

TEST(each_record_is_visited_once)
{
    static bool was_visited[COUNT + 1];
    struct xseg_hash_table table;
    unsigned count = 0;

    xseg_hash_table_init(&table, sizeof(struct record));
    assert_null(xseg_hash_table_next(&table, NULL));
    for (uint64_t number = 1; number <= COUNT; number++)
        assert_non_null(xseg_hash_table_find_or_add(&table, number));
    for (const struct record *record = xseg_hash_table_next(&table, NULL); record != NULL;
         record = xseg_hash_table_next(&table, record)) {
        assert_false(was_visited[record->key]);
        was_visited[record->key] = true;
        count++;
    }
    assert_int_equal(count, COUNT);
    xseg_hash_table_fini(&table);
}

TEST(destroyed_table_is_empty)
{
    struct xseg_hash_table table;

    xseg_hash_table_init(&table, sizeof(struct record));
    assert_null(xseg_hash_table_find(&table, 1));
    assert_non_null(xseg_hash_table_find_or_add(&table, 1));
    xseg_hash_table_fini(&table);
    assert_null(xseg_hash_table_find(&table, 1));
    assert_non_null(xseg_hash_table_find_or_add(&table, 1));
    xseg_hash_table_fini(&table);
}
