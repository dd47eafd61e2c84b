/* SPDX-License-Identifier: MIT */
/* The page map: every address leads to its extent, in whole GiB, in shared ones, in crooked ones. */
#include <stdlib.h>
#include <string.h>

#include "src/core/block/page_map.h"
#include "tests/support/test.h"

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

static void expect_leads(const struct xseg_page_map *page_map, const struct xseg_extent *extent)
{
    const uint64_t base = extent->segment.base, bytes = extent->segment.bytes;

    assert_ptr_equal(xseg_page_map_find(page_map, base), extent);
    assert_ptr_equal(xseg_page_map_find(page_map, base + 511), extent);
    assert_ptr_equal(xseg_page_map_find(page_map, base + bytes / 2), extent);
    assert_ptr_equal(xseg_page_map_find(page_map, base + bytes - 1), extent);
}

TEST(every_kind_of_extent_is_found)
{
    struct xseg_page_map page_map;
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

    assert_true(xseg_page_map_init(&page_map));
    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        assert_true(xseg_page_map_insert(&page_map, &extent[i]));
    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        expect_leads(&page_map, &extent[i]);
    assert_null(xseg_page_map_find(&page_map, 0));
    assert_null(xseg_page_map_find(&page_map, 500 * XSEG_GIB));
    assert_null(xseg_page_map_find(&page_map, UINT64_MAX));
    assert_null(xseg_page_map_find(&page_map, 201 * XSEG_GIB));

    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i += 2) {
        xseg_page_map_remove(&page_map, &extent[i]);
        assert_ptr_not_equal(xseg_page_map_find(&page_map, extent[i].segment.base), &extent[i]);
    }
    for (unsigned i = 1; i < XSEG_COUNT_OF(extent); i += 2)
        expect_leads(&page_map, &extent[i]);
    xseg_page_map_fini(&page_map);
}

/* Addresses that come again: a range where classic segments were before. */
TEST(addresses_can_be_reused)
{
    struct xseg_page_map page_map;
    struct xseg_extent first = classic(64 * XSEG_GIB + 8 * XSEG_MIB, 4 * XSEG_MIB);
    struct xseg_extent second = expandable(63 * XSEG_GIB, 3 * XSEG_GIB);

    assert_true(xseg_page_map_init(&page_map));
    assert_true(xseg_page_map_insert(&page_map, &first));
    xseg_page_map_remove(&page_map, &first);
    assert_true(xseg_page_map_insert(&page_map, &second));
    expect_leads(&page_map, &second);
    assert_ptr_equal(xseg_page_map_find(&page_map, first.segment.base), &second);
    xseg_page_map_remove(&page_map, &second);
    assert_null(xseg_page_map_find(&page_map, first.segment.base));
    xseg_page_map_fini(&page_map);
}

TEST(addresses_out_of_reach_are_refused)
{
    struct xseg_page_map page_map;
    struct xseg_extent extent = classic((uint64_t)1 << 60, 2 * XSEG_MIB);

    assert_true(xseg_page_map_init(&page_map));
    assert_false(xseg_page_map_insert(&page_map, &extent));
    xseg_page_map_fini(&page_map);
}

/* Each GiB has an entry of its own, although entries are spread over the sets of the L1 cache. */
TEST(each_gib_has_an_entry_of_its_own)
{
    struct xseg_page_map page_map;
    bool *taken = calloc(XSEG_PAGE_MAP_ROOTS, sizeof(*taken));

    assert_non_null(taken);
    assert_true(xseg_page_map_init(&page_map));
    for (uint64_t gib = 0; gib < XSEG_PAGE_MAP_ROOTS; gib++) {
        const ptrdiff_t place = xseg_page_map_entry(&page_map, gib) - page_map.root;

        assert_true(place >= 0 && (uint64_t)place < XSEG_PAGE_MAP_ROOTS && !taken[place]);
        taken[place] = true;
    }
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal((xseg_page_map_entry(&page_map, i * 512) - page_map.root) / 8 % 64, i);
    xseg_page_map_fini(&page_map);
    free(taken);
}
