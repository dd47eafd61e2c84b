/* SPDX-License-Identifier: MIT */
/* Interned records: a bump allocator in one reserved range, and a table of its handles. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/hash_table.h"
#include "src/base/intern.h"
#include "tests/support/test.h"

/* --- The host, as the test has it. --- */

static int mappings_left = -1,
           openings_left = -1; /* successful calls before one fails; negative: none fails */

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_mprotect(void *address, size_t bytes, int protection);
int __wrap_mprotect(void *address, size_t bytes, int protection);

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (mappings_left >= 0 && mappings_left-- == 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(address, bytes, protection, flags, file, offset);
}

/* The name in the C library with 64-bit file offsets. */
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return __wrap_mmap(address, bytes, protection, flags, file, offset);
}

int __wrap_mprotect(void *address, size_t bytes, int protection)
{
    if (openings_left >= 0 && openings_left-- == 0) {
        errno = ENOMEM;
        return -1;
    }
    return __real_mprotect(address, bytes, protection);
}

/* --- The cases. --- */

static void assert_bump_audit(const struct xseg_bump *bump)
{
    struct xseg_violation violation = {0};

    if (!xseg_bump_audit(bump, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

/* Records of many sizes, over several commits of memory. */
TEST(records_are_apart_and_zero)
{
    struct xseg_bump bump;
    unsigned char *before = NULL;
    size_t before_bytes = 0;

    assert_true(xseg_bump_init(&bump, (size_t)8 << 20));
    for (size_t bytes = 1; bytes < 3000; bytes++) {
        unsigned char *record = xseg_bump_alloc(&bump, bytes);

        assert_non_null(record);
        assert_int_equal((uintptr_t)record % XSEG_BUMP_UNIT, 0);
        assert_true(before == NULL || record >= before + before_bytes);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(record[i], 0);
        memset(record, 0xff, bytes);
        assert_ptr_equal(xseg_bump_at(&bump, xseg_bump_handle(&bump, record)), record);
        assert_int_not_equal(xseg_bump_handle(&bump, record), 0);
        before = record;
        before_bytes = bytes;
    }
    assert_bump_audit(&bump);
    assert_true(xseg_bump_resident(&bump) >= (size_t)2999 * 3000 / 2);
    assert_true(xseg_bump_resident(&bump) < (size_t)6 << 20);
    xseg_bump_fini(&bump);
}

TEST(records_that_do_not_fit_are_rejected)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct xseg_bump bump;

    assert_true(xseg_bump_init(&bump, 1));
    assert_int_equal(bump.reserved, page);
    assert_int_equal(xseg_bump_remaining(&bump), page - XSEG_BUMP_UNIT);
    assert_null(xseg_bump_alloc(&bump, page));
    assert_null(xseg_bump_alloc(&bump, SIZE_MAX));
    assert_true(bump.was_full);
    assert_non_null(xseg_bump_alloc(&bump, page - 2 * XSEG_BUMP_UNIT));
    assert_non_null(xseg_bump_alloc(&bump, XSEG_BUMP_UNIT - 1));
    assert_int_equal(xseg_bump_remaining(&bump), 0);
    assert_null(xseg_bump_alloc(&bump, 1));
    assert_bump_audit(&bump);
    xseg_bump_fini(&bump);
}

/* The allocator is not full: a later call may succeed. */
TEST(allocation_fails_cleanly_on_host_allocation_failure)
{
    struct xseg_bump bump;

    mappings_left = 0;
    assert_false(xseg_bump_init(&bump, 1 << 20));
    mappings_left = -1;
    assert_true(xseg_bump_init(&bump, (size_t)4 << 20));
    openings_left = 0;
    assert_null(xseg_bump_alloc(&bump, 100));
    openings_left = -1;
    assert_false(bump.was_full);
    assert_bump_audit(&bump);
    assert_non_null(xseg_bump_alloc(&bump, 100));
    assert_bump_audit(&bump);
    xseg_bump_fini(&bump);
}

TEST(bump_audit_names_the_broken_invariant)
{
    struct xseg_violation violation = {0};
    struct xseg_bump bump;

    assert_true(xseg_bump_init(&bump, 1 << 20));
    assert_non_null(xseg_bump_alloc(&bump, 100));
    bump.used = bump.committed + XSEG_BUMP_UNIT;
    assert_false(xseg_bump_audit(&bump, &violation));
    assert_string_equal(violation.tag, "BUMP-1");
    bump.used = 12;
    assert_false(xseg_bump_audit(&bump, &violation));
    xseg_bump_fini(&bump);
}

/* --- The table of handles. --- */

/* The number of handles with a hash in `table`, and whether `handle` is one of them. */
static bool finds(const struct xseg_intern_table *table, uint32_t hash, uint32_t handle)
{
    struct xseg_intern_search search = xseg_intern_table_search(table, hash);

    for (uint32_t found = xseg_intern_table_next(&search); found != 0;
         found = xseg_intern_table_next(&search))
        if (found == handle)
            return true;
    return false;
}

static void assert_table_audit(const struct xseg_intern_table *table)
{
    struct xseg_violation violation = {0};

    if (!xseg_intern_table_audit(table, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

/* Hashes that are spread, equal, or start at the last slot. */
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
        assert_table_audit(&table);
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
    /* Leave 4 KiB where a page of the host is larger. */
    const size_t rest = xseg_bump_remaining(&memory) - (4096 - XSEG_BUMP_UNIT);
    assert_true(rest == 0 || xseg_bump_alloc(&memory, rest) != NULL);
    assert_true(xseg_intern_table_init(&table, &memory));
    while (xseg_intern_table_add(&table, &memory, hash_of(0, added + 1), added + 1))
        added++;
    assert_int_equal(added, XSEG_INTERN_TABLE_FIRST / 2);
    for (uint32_t handle = 1; handle <= added; handle++)
        assert_true(finds(&table, hash_of(0, handle), handle));
    assert_table_audit(&table);
    assert_false(xseg_intern_table_init(&table, &memory));
    xseg_bump_fini(&memory);
}

/* A reader sees all handles up to the announced number, with the contents of their records. */
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

TEST(table_audit_names_the_broken_invariant)
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
    assert_table_audit(&table);
    table.slots->slot[8] = 0;
    assert_false(xseg_intern_table_audit(&table, &violation));
    assert_string_equal(violation.tag, "TABLE-2");
    xseg_bump_fini(&memory);
}
