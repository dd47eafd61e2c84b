/* SPDX-License-Identifier: MIT */
/* Records from one reserved range: aligned, zeroed, named by handles, and refused where there is no more. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/intern.h"
#include "tests/support/test.h"

/* --- The host, as the test has it. --- */

static int mappings_left = -1, openings_left = -1; /* before one fails; below 0: none does */

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

/* As the C library names it where sizes of files have 64 bits. */
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

static void assert_audit(const struct xseg_bump *bump)
{
    struct xseg_violation violation = {0};

    if (!xseg_bump_audit(bump, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

/* Sizes of all kinds, over several steps of memory. */
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
    assert_audit(&bump);
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
    assert_audit(&bump);
    xseg_bump_fini(&bump);
}

/* Not full: what fails today may succeed tomorrow. */
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
    assert_audit(&bump);
    assert_non_null(xseg_bump_alloc(&bump, 100));
    assert_audit(&bump);
    xseg_bump_fini(&bump);
}

TEST(the_audit_names_the_broken_invariant)
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
