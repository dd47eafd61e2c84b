/* SPDX-License-Identifier: MIT */
/* Interned records: a bump allocator in one reserved range, and a table of its handles. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "src/base/hash_table.h"
#include "src/base/intern.h"
#include "tests/support/audit.h"
#include "tests/support/failing_memory.h"

static struct xseg_bump memory;
static struct xseg_intern_table table;

static void expect_bump_audit(const char *tag)
{
    expect_audit(xseg_bump_audit(&memory, &violation), tag);
}

FIXTURE(free_memory)
{
    xseg_bump_fini(&memory);
}

/* Records of many sizes, over several commits of memory. */
TEST_WITH(records_are_disjoint_and_zeroed, NULL, free_memory)
{
    unsigned char *previous = NULL;
    size_t previous_bytes = 0;

    assert_true(xseg_bump_init(&memory, (size_t)8 << 20));
    for (size_t bytes = 1; bytes < 3000; bytes++) {
        unsigned char *record = xseg_bump_alloc(&memory, bytes);

        assert_non_null(record);
        assert_int_equal((uintptr_t)record % XSEG_BUMP_UNIT, 0);
        assert_true(previous == NULL || record >= previous + previous_bytes);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(record[i], 0);
        memset(record, 0xff, bytes);
        assert_ptr_equal(xseg_bump_at(&memory, xseg_bump_handle(&memory, record)), record);
        assert_int_not_equal(xseg_bump_handle(&memory, record), 0);
        previous = record;
        previous_bytes = bytes;
    }
    expect_bump_audit(NULL);
    /* The sum of the sizes from 1 to 2999. */
    assert_true(xseg_bump_resident(&memory) >= (size_t)2999 * 3000 / 2);
    assert_true(xseg_bump_resident(&memory) < (size_t)6 << 20);
}

TEST_WITH(records_that_do_not_fit_are_rejected, NULL, free_memory)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    assert_true(xseg_bump_init(&memory, 1));
    assert_int_equal(memory.reserved, page);
    assert_int_equal(xseg_bump_remaining(&memory), page - XSEG_BUMP_UNIT);
    assert_null(xseg_bump_alloc(&memory, page));
    assert_null(xseg_bump_alloc(&memory, SIZE_MAX));
    assert_true(memory.was_full);
    assert_non_null(xseg_bump_alloc(&memory, page - 2 * XSEG_BUMP_UNIT));
    assert_non_null(xseg_bump_alloc(&memory, XSEG_BUMP_UNIT - 1));
    assert_int_equal(xseg_bump_remaining(&memory), 0);
    assert_null(xseg_bump_alloc(&memory, 1));
    expect_bump_audit(NULL);
}

/* After a failed commit the allocator is not full, so a later call may succeed. */
TEST_WITH(allocation_fails_cleanly_on_host_allocation_failure, NULL, free_memory)
{
    memory_calls_until_failure = 0;
    assert_false(xseg_bump_init(&memory, 1 << 20));
    memory_calls_until_failure = -1;
    assert_true(xseg_bump_init(&memory, (size_t)4 << 20));
    memory_calls_until_failure = 0;
    assert_null(xseg_bump_alloc(&memory, 100));
    memory_calls_until_failure = -1;
    assert_false(memory.was_full);
    expect_bump_audit(NULL);
    assert_non_null(xseg_bump_alloc(&memory, 100));
    expect_bump_audit(NULL);
}

TEST_WITH(bump_audit_reports_the_violated_invariant, NULL, free_memory)
{
    assert_true(xseg_bump_init(&memory, 1 << 20));
    assert_non_null(xseg_bump_alloc(&memory, 100));
    WITH_VALUE(memory.used, memory.committed + XSEG_BUMP_UNIT, expect_bump_audit("BUMP-1"));
    WITH_VALUE(memory.used, 12, expect_bump_audit("BUMP-1"));
}

/* --- The table of handles. --- */

/* Whether the table has a handle with a hash. */
static bool is_found(uint32_t hash, uint32_t handle)
{
    struct xseg_intern_search search = xseg_intern_table_search(&table, hash);

    for (uint32_t found = xseg_intern_table_next(&search); found != 0;
         found = xseg_intern_table_next(&search))
        if (found == handle)
            return true;
    return false;
}

FIXTURE(make_table)
{
    assert_true(xseg_bump_init(&memory, (size_t)8 << 20));
    assert_true(xseg_intern_table_init(&table, &memory));
}

static void expect_table_audit(const char *tag)
{
    expect_audit(xseg_intern_table_audit(&table, &violation), tag);
}

/* Hashes that are distributed evenly, are equal, or select the last slots. */
static uint32_t hash_of(unsigned kind, uint32_t handle)
{
    return kind == 0   ? (uint32_t)xseg_hash_word(handle, 0)
           : kind == 1 ? 7
                       : UINT32_MAX - handle % 3;
}

static void record_visit(void *context, uint32_t handle)
{
    unsigned char *seen = context;

    seen[handle]++;
}

TEST(added_handles_are_found_and_visited_once)
{
    static const uint32_t counts[] = {20000, 600, 2000};
    static unsigned char seen[20001];

    for (unsigned kind = 0; kind < 3; kind++) {
        (void)make_table(NULL);
        assert_false(is_found(hash_of(kind, 1), 1));
        for (uint32_t handle = 1; handle <= counts[kind]; handle++) {
            assert_true(xseg_intern_table_add(&table, &memory, hash_of(kind, handle), handle));
            assert_true(is_found(hash_of(kind, handle), handle));
        }
        memset(seen, 0, sizeof(seen));
        xseg_intern_table_for_each(&table, record_visit, seen);
        for (uint32_t handle = 1; handle <= counts[kind]; handle++)
            assert_true(is_found(hash_of(kind, handle), handle) && seen[handle] == 1);
        assert_false(is_found(hash_of(kind, 1), counts[kind] + 1));
        assert_int_equal(table.used, counts[kind]);
        expect_table_audit(NULL);
        xseg_bump_fini(&memory);
    }
}

TEST_WITH(table_is_unchanged_if_its_memory_is_full, NULL, free_memory)
{
    uint32_t added = 0;

    assert_true(xseg_bump_init(&memory, 4096));
    /* Only 4 KiB remain, also if a page of the host is larger. */
    const size_t excess = xseg_bump_remaining(&memory) - (4096 - XSEG_BUMP_UNIT);
    assert_true(excess == 0 || xseg_bump_alloc(&memory, excess) != NULL);
    assert_true(xseg_intern_table_init(&table, &memory));
    while (xseg_intern_table_add(&table, &memory, hash_of(0, added + 1), added + 1))
        added++;
    /* A half full table needs one of twice the size, for which 4 KiB are not enough. */
    assert_int_equal(added, XSEG_INTERN_TABLE_FIRST / 2);
    for (uint32_t handle = 1; handle <= added; handle++)
        assert_true(is_found(hash_of(0, handle), handle));
    expect_table_audit(NULL);
    assert_false(xseg_intern_table_init(&table, &memory));
}

/* A reader finds all handles up to the announced number, and sees the contents of their records. */
static struct {
    atomic_uint_fast32_t handles[5001];
    atomic_uint_fast32_t announced;
    atomic_uint_fast64_t misses;
} shared;

static void *read_all(void *unused)
{
    uint32_t announced = 0;

    while (announced < 5000) {
        announced = (uint32_t)atomic_load_explicit(&shared.announced, memory_order_acquire);
        for (uint32_t i = 1; i <= announced; i += 1 + announced / 64) {
            const uint32_t handle =
                (uint32_t)atomic_load_explicit(&shared.handles[i], memory_order_relaxed);

            if (!is_found(hash_of(0, i), handle) ||
                *(const uint32_t *)xseg_bump_at(&memory, handle) != i)
                atomic_fetch_add(&shared.misses, 1);
        }
    }
    return unused;
}

TEST_WITH(readers_find_handles_during_growth, make_table, free_memory)
{
    pthread_t thread[2];

    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_all, NULL), 0);
    for (uint32_t i = 1; i <= 5000; i++) {
        uint32_t *record = xseg_bump_alloc(&memory, sizeof(*record));

        assert_non_null(record);
        *record = i;
        const uint32_t handle = xseg_bump_handle(&memory, record);
        assert_true(xseg_intern_table_add(&table, &memory, hash_of(0, i), handle));
        atomic_store_explicit(&shared.handles[i], handle, memory_order_relaxed);
        atomic_store_explicit(&shared.announced, i, memory_order_release);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(atomic_load(&shared.misses), 0);
}

/* Words that differ in one bit, in their order or in their number have different hashes. */
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

TEST_WITH(table_audit_reports_the_violated_invariant, make_table, free_memory)
{
    for (uint32_t handle = 1; handle <= 3; handle++)
        assert_true(xseg_intern_table_add(&table, &memory, 7, handle));
    WITH_VALUE(table.used, table.used + 1, expect_table_audit("TABLE-1"));
    expect_table_audit(NULL);
    table.slots->slot[8] = 0; /* the second of three slots from 7 on */
    expect_table_audit("TABLE-2");
}
