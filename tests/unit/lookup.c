/* SPDX-License-Identifier: MIT */
/* The look-up: every address leads to its extent, in whole GiB, in shared ones, in crooked ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/core/cache/lookup.h"

static struct xseg_extent classic(uint64_t base, uint64_t bytes)
{
    struct xseg_extent extent;

    memset(&extent, 0, sizeof(extent));
    extent.segment.base = base;
    atomic_init(&extent.base, base);
    extent.segment.bytes = bytes;
    return extent;
}

static struct xseg_extent expandable(uint64_t base, uint64_t bytes)
{
    struct xseg_extent extent = classic(base, bytes);

    extent.segment.page_bytes = 2 * XSEG_MIB;
    extent.segment.reserved_bytes = xseg_round_up(bytes, XSEG_GIB);
    return extent;
}

static void expect_leads(const struct xseg_lookup *lookup, const struct xseg_extent *extent)
{
    const uint64_t base = extent->segment.base, bytes = extent->segment.bytes;

    assert_ptr_equal(xseg_lookup_find(lookup, base), extent);
    assert_ptr_equal(xseg_lookup_find(lookup, base + 511), extent);
    assert_ptr_equal(xseg_lookup_find(lookup, base + bytes / 2), extent);
    assert_ptr_equal(xseg_lookup_find(lookup, base + bytes - 1), extent);
}

static void every_kind_of_extent(void **state)
{
    struct xseg_lookup lookup;
    struct xseg_extent extent[] = {
        expandable(8 * XSEG_GIB, 90 * XSEG_GIB),
        classic(200 * XSEG_GIB, 2 * XSEG_MIB),
        classic(200 * XSEG_GIB + 2 * XSEG_MIB, 20 * XSEG_MIB),
        /* At odd places, sharing units of 2 MiB at both ends, and across a GiB. */
        classic(201 * XSEG_GIB + XSEG_MIB, 2 * XSEG_MIB),
        classic(201 * XSEG_GIB + 3 * XSEG_MIB, 3 * XSEG_MIB),
        classic(203 * XSEG_GIB - 5 * XSEG_MIB, 30 * XSEG_MIB),
        /* A range that the driver did not align. */
        expandable(300 * XSEG_GIB + 2 * XSEG_MIB, 4 * XSEG_GIB),
    };

    (void)state;
    assert_true(xseg_lookup_init(&lookup));
    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        assert_true(xseg_lookup_insert(&lookup, &extent[i]));
    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        expect_leads(&lookup, &extent[i]);
    assert_null(xseg_lookup_find(&lookup, 0));
    assert_null(xseg_lookup_find(&lookup, 500 * XSEG_GIB));
    assert_null(xseg_lookup_find(&lookup, UINT64_MAX));
    assert_null(xseg_lookup_find(&lookup, 201 * XSEG_GIB));

    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i += 2) {
        xseg_lookup_remove(&lookup, &extent[i]);
        assert_ptr_not_equal(xseg_lookup_find(&lookup, extent[i].segment.base), &extent[i]);
    }
    for (unsigned i = 1; i < XSEG_COUNT_OF(extent); i += 2)
        expect_leads(&lookup, &extent[i]);
    xseg_lookup_fini(&lookup);
}

/* Addresses that come again: a range where classic segments were before. */
static void addresses_come_again(void **state)
{
    struct xseg_lookup lookup;
    struct xseg_extent first = classic(64 * XSEG_GIB + 8 * XSEG_MIB, 4 * XSEG_MIB);
    struct xseg_extent second = expandable(63 * XSEG_GIB, 3 * XSEG_GIB);

    (void)state;
    assert_true(xseg_lookup_init(&lookup));
    assert_true(xseg_lookup_insert(&lookup, &first));
    xseg_lookup_remove(&lookup, &first);
    assert_true(xseg_lookup_insert(&lookup, &second));
    expect_leads(&lookup, &second);
    assert_ptr_equal(xseg_lookup_find(&lookup, first.segment.base), &second);
    xseg_lookup_remove(&lookup, &second);
    assert_null(xseg_lookup_find(&lookup, first.segment.base));
    xseg_lookup_fini(&lookup);
}

static void addresses_out_of_reach_are_refused(void **state)
{
    struct xseg_lookup lookup;
    struct xseg_extent extent = classic((uint64_t)1 << 60, 2 * XSEG_MIB);

    (void)state;
    assert_true(xseg_lookup_init(&lookup));
    assert_false(xseg_lookup_insert(&lookup, &extent));
    xseg_lookup_fini(&lookup);
}

/* Also where the entries of many segments would share a set of the first cache. */
static void each_gib_has_an_entry_of_its_own(void **state)
{
    struct xseg_lookup lookup;
    bool *taken = calloc(XSEG_LOOKUP_ROOTS, sizeof(*taken));

    (void)state;
    assert_non_null(taken);
    assert_true(xseg_lookup_init(&lookup));
    for (uint64_t gib = 0; gib < XSEG_LOOKUP_ROOTS; gib++) {
        const ptrdiff_t place = xseg_lookup_entry(&lookup, gib) - lookup.root;

        assert_true(place >= 0 && (uint64_t)place < XSEG_LOOKUP_ROOTS && !taken[place]);
        taken[place] = true;
    }
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal((xseg_lookup_entry(&lookup, i * 512) - lookup.root) / 8 % 64, i);
    xseg_lookup_fini(&lookup);
    free(taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_extent),
        cmocka_unit_test(each_gib_has_an_entry_of_its_own),
        cmocka_unit_test(addresses_come_again),
        cmocka_unit_test(addresses_out_of_reach_are_refused),
    };

    return cmocka_run_group_tests_name("lookup", tests, NULL, NULL);
}
