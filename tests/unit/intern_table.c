/* SPDX-License-Identifier: MIT */
/* A table of handles: what was added is found, while it grows and while others read. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "src/base/hash_table.h"
#include "src/base/intern.h"
#include "tests/support/test.h"

/* How many handles `table` has under a hash, and whether one of them is `handle`. */
static bool finds(const struct xseg_intern_table *table, uint32_t hash, uint32_t handle)
{
    struct xseg_intern_search search = xseg_intern_table_search(table, hash);

    for (uint32_t found = xseg_intern_table_next(&search); found != 0;
         found = xseg_intern_table_next(&search))
        if (found == handle)
            return true;
    return false;
}

static void assert_audit(const struct xseg_intern_table *table)
{
    struct xseg_violation violation = {0};

    if (!xseg_intern_table_audit(table, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

/* Hashes that spread, all the same one, and ones that begin at the last slot. */
static uint32_t hash_of(unsigned kind, uint32_t handle)
{
    return kind == 0   ? (uint32_t)xseg_hash_word(handle, 0)
           : kind == 1 ? 7
                       : UINT32_MAX - handle % 3;
}

TEST(added_handles_are_found)
{
    static const uint32_t counts[] = {20000, 600, 2000};

    for (unsigned kind = 0; kind < 3; kind++) {
        struct xseg_intern_table table;
        struct xseg_bump memory;

        assert_true(xseg_bump_init(&memory, (size_t)8 << 20));
        assert_true(xseg_intern_table_init(&table, &memory));
        assert_false(finds(&table, hash_of(kind, 1), 1));
        for (uint32_t handle = 1; handle <= counts[kind]; handle++) {
            assert_true(xseg_intern_table_add(&table, &memory, hash_of(kind, handle), handle));
            assert_true(finds(&table, hash_of(kind, handle), handle));
        }
        for (uint32_t handle = 1; handle <= counts[kind]; handle++)
            assert_true(finds(&table, hash_of(kind, handle), handle));
        assert_false(finds(&table, hash_of(kind, 1), counts[kind] + 1));
        assert_int_equal(table.used, counts[kind]);
        assert_audit(&table);
        xseg_bump_fini(&memory);
    }
}

static void note_visit(void *context, uint32_t handle)
{
    unsigned char *seen = context;

    seen[handle]++;
}

TEST(each_handle_is_visited_once)
{
    unsigned char seen[1001] = {0};
    struct xseg_intern_table table;
    struct xseg_bump memory;

    assert_true(xseg_bump_init(&memory, 1 << 20));
    assert_true(xseg_intern_table_init(&table, &memory));
    for (uint32_t handle = 1; handle <= 1000; handle++)
        assert_true(xseg_intern_table_add(&table, &memory, hash_of(0, handle), handle));
    xseg_intern_table_for_each(&table, note_visit, seen);
    for (uint32_t handle = 1; handle <= 1000; handle++)
        assert_int_equal(seen[handle], 1);
    xseg_bump_fini(&memory);
}

TEST(table_is_unchanged_on_host_allocation_failure)
{
    struct xseg_intern_table table;
    struct xseg_bump memory;
    uint32_t added = 0;

    assert_true(xseg_bump_init(&memory, 4096));
    assert_true(xseg_intern_table_init(&table, &memory));
    while (xseg_intern_table_add(&table, &memory, hash_of(0, added + 1), added + 1))
        added++;
    assert_int_equal(added, XSEG_INTERN_TABLE_FIRST / 2);
    for (uint32_t handle = 1; handle <= added; handle++)
        assert_true(finds(&table, hash_of(0, handle), handle));
    assert_audit(&table);
    assert_false(xseg_intern_table_init(&table, &memory));
    xseg_bump_fini(&memory);
}

/* A reader sees all handles up to the number that was announced to it, and what their records say. */
struct shared {
    struct xseg_intern_table table;
    struct xseg_bump memory;
    atomic_uint_fast32_t handles[5001];
    atomic_uint_fast32_t announced;
    atomic_uint_fast64_t missed;
};

static void *read_all(void *self)
{
    struct shared *shared = self;
    uint32_t announced = 0;

    while (announced < 5000) {
        announced = (uint32_t)atomic_load_explicit(&shared->announced, memory_order_acquire);
        for (uint32_t i = 1; i <= announced; i += 1 + announced / 64) {
            const uint32_t handle =
                (uint32_t)atomic_load_explicit(&shared->handles[i], memory_order_relaxed);

            if (!finds(&shared->table, hash_of(0, i), handle) ||
                *(const uint32_t *)xseg_bump_at(&shared->memory, handle) != i)
                atomic_fetch_add(&shared->missed, 1);
        }
    }
    return NULL;
}

TEST(readers_find_while_it_grows)
{
    struct shared *shared = calloc(1, sizeof(*shared));
    pthread_t thread[2];

    assert_non_null(shared);
    assert_true(xseg_bump_init(&shared->memory, (size_t)4 << 20));
    assert_true(xseg_intern_table_init(&shared->table, &shared->memory));
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_all, shared), 0);
    for (uint32_t i = 1; i <= 5000; i++) {
        uint32_t *record = xseg_bump_alloc(&shared->memory, sizeof(*record));

        assert_non_null(record);
        *record = i;
        const uint32_t handle = xseg_bump_handle(&shared->memory, record);
        assert_true(xseg_intern_table_add(&shared->table, &shared->memory, hash_of(0, i), handle));
        atomic_store_explicit(&shared->handles[i], handle, memory_order_relaxed);
        atomic_store_explicit(&shared->announced, i, memory_order_release);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(atomic_load(&shared->missed), 0);
    xseg_bump_fini(&shared->memory);
    free(shared);
}

/* Of words that differ in one bit, in their order or in their number, no two have the same hash. */
TEST(hashes_distinguish_words)
{
    enum { WORDS = 9, HASHES = WORDS * 64 + WORDS + 2 };
    static uint64_t hash[HASHES];
    uint64_t word[WORDS] = {0};
    unsigned count = 0;

    for (unsigned i = 0; i < WORDS; i++)
        for (unsigned bit = 0; bit < 64; bit++) {
            word[i] = (uint64_t)1 << bit;
            hash[count++] = xseg_hash_words(word, WORDS, 0);
            word[i] = 0;
        }
    for (unsigned words = 0; words <= WORDS; words++)
        hash[count++] = xseg_hash_words(word, words, 0);
    hash[count++] = xseg_hash_words(word, WORDS, 1);
    assert_int_equal(count, HASHES);
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < i; j++)
            assert_int_not_equal((uint32_t)hash[i], (uint32_t)hash[j]);
}

TEST(the_audit_names_the_broken_invariant)
{
    struct xseg_violation violation = {0};
    struct xseg_intern_table table;
    struct xseg_bump memory;

    assert_true(xseg_bump_init(&memory, 1 << 20));
    assert_true(xseg_intern_table_init(&table, &memory));
    for (uint32_t handle = 1; handle <= 3; handle++)
        assert_true(xseg_intern_table_add(&table, &memory, 7, handle));
    table.used++;
    assert_false(xseg_intern_table_audit(&table, &violation));
    assert_string_equal(violation.tag, "TABLE-1");
    table.used--;
    assert_audit(&table);
    table.slots->slot[8] = 0;
    assert_false(xseg_intern_table_audit(&table, &violation));
    assert_string_equal(violation.tag, "TABLE-2");
    xseg_bump_fini(&memory);
}
