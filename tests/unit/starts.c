/* SPDX-License-Identifier: MIT */
/* The table of live starts against a plain array of slots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "src/core/block.h"
#include "src/core/starts.h"

/* A little over two chunks, so that the last one is a short one. */
#define SLOTS (2u * XSEG_STARTS_SLOTS + 100u)

/* Blocks that are only told apart. */
static struct xseg_block block[30001];

static struct xseg_block *slow_before(struct xseg_block *const *slot, unsigned number)
{
    for (unsigned i = number + 1; i-- > 0;)
        if (slot[i] != NULL)
            return slot[i];
    return NULL;
}

static void agrees_with_an_array(void **state)
{
    struct xseg_block **slot = calloc(SLOTS, sizeof(struct xseg_block *));
    struct xseg_starts starts;
    struct xseg_finding finding = {0};

    (void)state;
    assert_non_null(slot);
    srandom(11);
    assert_true(xseg_starts_init(&starts, (uint64_t)SLOTS << XSEG_STARTS_SHIFT));
    assert_null(xseg_starts_at(&starts, 5000));
    assert_true(xseg_starts_cover(&starts, 0, (uint64_t)SLOTS << XSEG_STARTS_SHIFT));
    for (unsigned step = 0; step < 30000; step++) {
        /* Sparse at first, so that whole chunks are empty. */
        const unsigned number = (unsigned)random() % (step < 200 ? SLOTS : 300);
        const uint64_t offset = ((uint64_t)number << XSEG_STARTS_SHIFT) + (uint64_t)random() % 512;

        if (slot[number] == NULL) {
            slot[number] = &block[step];
            xseg_starts_add(&starts, offset, &block[step]);
        } else {
            slot[number] = NULL;
            xseg_starts_remove(&starts, offset);
        }
        const unsigned asked = (unsigned)random() % SLOTS;
        assert_ptr_equal(xseg_starts_at(&starts, (uint64_t)asked << XSEG_STARTS_SHIFT),
                         slot[asked]);
        assert_ptr_equal(xseg_starts_before(&starts, (uint64_t)asked << XSEG_STARTS_SHIFT),
                         slow_before(slot, asked));
        if (step % 2000 == 0)
            assert_true(xseg_starts_audit(&starts, &finding));
    }
    xseg_starts_fini(&starts);
    free(slot);
}

/* Chunks that nothing was mapped in cost nothing and are searched all the same. */
static void uncovered_chunks_are_empty(void **state)
{
    struct xseg_starts starts;

    (void)state;
    assert_true(xseg_starts_init(&starts, 90 * XSEG_GIB));
    assert_true(xseg_starts_cover(&starts, 0, 2 * XSEG_MIB));
    xseg_starts_add(&starts, 3 * XSEG_MIB, &block[5]);
    assert_ptr_equal(xseg_starts_before(&starts, 89 * XSEG_GIB), &block[5]);
    assert_null(xseg_starts_before(&starts, 2 * XSEG_MIB));
    assert_null(xseg_starts_at(&starts, 45 * XSEG_GIB));
    assert_true(starts.host_bytes < XSEG_MIB);
    xseg_starts_fini(&starts);
    /* What is too long for the table is refused, not forgotten. */
    assert_false(xseg_starts_init(&starts, XSEG_STARTS_MAX + XSEG_MIB));
}

/* Every slot of the last chunk can be used, and there are no more: an odd extent ends in a slot of its own. */
static void the_last_chunk_is_as_long_as_the_extent(void **state)
{
    static const uint64_t lengths[] = {
        512, XSEG_MIB, 20 * XSEG_MIB, 21 * XSEG_MIB + 512, 4096 * XSEG_MIB, 4097 * XSEG_MIB};
    struct xseg_finding finding = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint64_t bytes = lengths[i], slots = (bytes + XSEG_MIB - 1) / XSEG_MIB;
        struct xseg_starts starts;

        assert_true(xseg_starts_init(&starts, bytes));
        assert_true(xseg_starts_cover(&starts, 0, bytes));
        assert_true(starts.host_bytes <= (slots + 4) * sizeof(struct xseg_block *));
        xseg_starts_add(&starts, bytes - 512, &block[i]);
        assert_ptr_equal(xseg_starts_at(&starts, bytes - 1), &block[i]);
        assert_ptr_equal(xseg_starts_before(&starts, bytes - 1), &block[i]);
        assert_true(xseg_starts_audit(&starts, &finding));
        xseg_starts_fini(&starts);
    }
}

static void the_audit_can_fail(void **state)
{
    struct xseg_starts starts;
    struct xseg_finding finding = {0};

    (void)state;
    assert_true(xseg_starts_init(&starts, 4 * XSEG_MIB));
    assert_true(xseg_starts_cover(&starts, 0, 4 * XSEG_MIB));
    xseg_starts_add(&starts, 1024, &block[9]);
    xseg_starts_chunk_at(&starts, 0)->count++;
    assert_false(xseg_starts_audit(&starts, &finding));
    assert_string_equal(finding.tag, "START-1");
    xseg_starts_fini(&starts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_an_array),
        cmocka_unit_test(uncovered_chunks_are_empty),
        cmocka_unit_test(the_last_chunk_is_as_long_as_the_extent),
        cmocka_unit_test(the_audit_can_fail),
    };

    return cmocka_run_group_tests_name("starts", tests, NULL, NULL);
}
