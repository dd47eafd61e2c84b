/* SPDX-License-Identifier: MIT */
/* The page map: extents of addresses, and slots and start bits of blocks. */
#include <stdlib.h>
#include <string.h>

#include "src/core/block/block.h"
#include "src/core/block/page_map.h"
#include "src/core/device/device.h"
#include "tests/support/audit.h"
#include "tests/support/env.h"

static struct xseg_page_map page_map;

FIXTURE(set_up)
{
    assert_true(xseg_page_map_init(&page_map));
}

FIXTURE(tear_down)
{
    xseg_page_map_fini(&page_map);
}

/* Arenas; only their addresses are compared. */
static char arenas[2];

static struct xseg_arena *arena_at(unsigned index)
{
    return (struct xseg_arena *)(void *)&arenas[index];
}

static struct xseg_extent classic(uint64_t base, uint64_t bytes)
{
    struct xseg_extent extent;

    memset(&extent, 0, sizeof(extent));
    extent.segment.base = base;
    atomic_init(&extent.base, base);
    extent.segment.bytes = bytes;
    extent.arena = arena_at(0);
    return extent;
}

static struct xseg_extent expandable(uint64_t base, uint64_t bytes)
{
    struct xseg_extent extent = classic(base, bytes);

    extent.segment.page_bytes = 2 * XSEG_MIB;
    extent.segment.reserved_bytes = xseg_round_up(bytes, XSEG_GIB);
    return extent;
}

static void expect_found(const struct xseg_extent *extent)
{
    const uint64_t base = extent->segment.base, bytes = extent->segment.bytes;

    assert_ptr_equal(xseg_page_map_find(&page_map, base), extent);
    assert_ptr_equal(xseg_page_map_find(&page_map, base + 511), extent);
    assert_ptr_equal(xseg_page_map_find(&page_map, base + bytes / 2), extent);
    assert_ptr_equal(xseg_page_map_find(&page_map, base + bytes - 1), extent);
}

TEST_WITH(every_kind_of_extent_is_found, set_up, tear_down)
{
    struct xseg_extent extent[] = {
        expandable(8 * XSEG_GIB, 90 * XSEG_GIB),
        classic(200 * XSEG_GIB, 2 * XSEG_MIB),
        classic(200 * XSEG_GIB + 2 * XSEG_MIB, 20 * XSEG_MIB),
        /* At unaligned addresses, sharing units of 2 MiB at both ends, and across a GiB. */
        classic(201 * XSEG_GIB + XSEG_MIB, 2 * XSEG_MIB),
        classic(201 * XSEG_GIB + 3 * XSEG_MIB, 3 * XSEG_MIB),
        classic(203 * XSEG_GIB - 5 * XSEG_MIB, 30 * XSEG_MIB),
        /* A range that the driver did not align. */
        expandable(300 * XSEG_GIB + 2 * XSEG_MIB, 4 * XSEG_GIB),
    };

    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        assert_true(xseg_page_map_insert(&page_map, &extent[i]));
    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i++)
        expect_found(&extent[i]);
    assert_null(xseg_page_map_find(&page_map, 0));
    assert_null(xseg_page_map_find(&page_map, 500 * XSEG_GIB));
    assert_null(xseg_page_map_find(&page_map, UINT64_MAX));
    assert_null(xseg_page_map_find(&page_map, 201 * XSEG_GIB));
    /* The address has more than XSEG_PAGE_MAP_ADDRESS_BITS bits. */
    struct xseg_extent out_of_range = classic((uint64_t)1 << 60, 2 * XSEG_MIB);
    assert_false(xseg_page_map_insert(&page_map, &out_of_range));

    for (unsigned i = 0; i < XSEG_COUNT_OF(extent); i += 2) {
        xseg_page_map_remove(&page_map, &extent[i]);
        assert_ptr_not_equal(xseg_page_map_find(&page_map, extent[i].segment.base), &extent[i]);
    }
    for (unsigned i = 1; i < XSEG_COUNT_OF(extent); i += 2)
        expect_found(&extent[i]);
}

/* An expandable extent contains the addresses of a removed classic one. */
TEST_WITH(addresses_can_be_reused, set_up, tear_down)
{
    struct xseg_extent removed = classic(64 * XSEG_GIB + 8 * XSEG_MIB, 4 * XSEG_MIB);
    struct xseg_extent extent = expandable(63 * XSEG_GIB, 3 * XSEG_GIB);

    assert_true(xseg_page_map_insert(&page_map, &removed));
    xseg_page_map_remove(&page_map, &removed);
    assert_true(xseg_page_map_insert(&page_map, &extent));
    expect_found(&extent);
    assert_ptr_equal(xseg_page_map_find(&page_map, removed.segment.base), &extent);
    xseg_page_map_remove(&page_map, &extent);
    assert_null(xseg_page_map_find(&page_map, removed.segment.base));
}

/* Each GiB has a separate entry, although entries are spread over the sets of the L1 cache. */
TEST_WITH(each_gib_has_a_separate_entry, set_up, tear_down)
{
    bool *is_used = calloc(XSEG_PAGE_MAP_ROOTS, sizeof(*is_used));

    assert_non_null(is_used);
    for (uint64_t gib = 0; gib < XSEG_PAGE_MAP_ROOTS; gib++) {
        const ptrdiff_t entry = xseg_page_map_entry(&page_map, gib) - page_map.root;

        assert_true(entry >= 0 && (uint64_t)entry < XSEG_PAGE_MAP_ROOTS && !is_used[entry]);
        is_used[entry] = true;
    }
    /* A cache line has 8 entries and the cache 64 sets, so segments at a distance of 512 GiB are in different sets. */
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal((xseg_page_map_entry(&page_map, i * 512) - page_map.root) / 8 % 64, i);
    free(is_used);
}

/* --- Slots and start bits, compared with an array of allocated blocks. --- */

/* Slightly more than two GiB. */
#define SLOTS (2u * XSEG_SLOT_SLOTS + 100u)
#define BASE  (8 * XSEG_GIB)

/* Blocks; only their extents are set. */
static struct xseg_block block[30001];

static struct xseg_block *make_block(unsigned index, struct xseg_extent *extent)
{
    block[index].extent = extent;
    return &block[index];
}

/* The block at an index, or the nearest one before it. */
static struct xseg_block *last_in_array(struct xseg_block *const *slot, unsigned index)
{
    for (unsigned i = index + 1; i-- > 0;)
        if (slot[i] != NULL)
            return slot[i];
    return NULL;
}

/* The block of the slot that contains an address. */
static struct xseg_block *block_of_slot(uint64_t address)
{
    return xseg_slot_block_of(xseg_page_map_slot(&page_map, address), arena_at(0));
}

TEST_WITH(slots_agree_with_an_array, set_up, tear_down)
{
    struct xseg_block **slot = calloc(SLOTS, sizeof(struct xseg_block *));
    struct xseg_extent extent = expandable(BASE, SLOTS * XSEG_MIB);

    assert_non_null(slot);
    srandom(11);
    assert_true(xseg_page_map_insert(&page_map, &extent));
    assert_null(xseg_page_map_slot(&page_map, BASE + 5000));
    assert_true(xseg_page_map_populate(&page_map, &extent, 0, SLOTS * XSEG_MIB));
    assert_ptr_equal(xseg_page_map_find(&page_map, BASE + 5000), &extent);
    for (unsigned step = 0; step < 30000; step++) {
        /* Sparse at first, so that whole GiB are empty. */
        const unsigned index = (unsigned)random() % (step < 200 ? SLOTS : 300);
        const uint64_t base = BASE + index * XSEG_MIB + (uint64_t)random() % 512;

        if (slot[index] == NULL) {
            slot[index] = make_block(step, &extent);
            xseg_slot_add(xseg_page_map_slot(&page_map, base), slot[index]);
        } else {
            slot[index] = NULL;
            xseg_slot_remove(xseg_page_map_slot(&page_map, base));
        }
        const unsigned queried = (unsigned)random() % SLOTS;
        assert_ptr_equal(block_of_slot(BASE + queried * XSEG_MIB + 511), slot[queried]);
        assert_ptr_equal(xseg_page_map_last_slot(&page_map, &extent, BASE + queried * XSEG_MIB),
                         last_in_array(slot, queried));
    }
    free(slot);
}

/* A GiB without mapped memory has no leaf; a search for the last block continues in earlier GiB. */
TEST_WITH(uncovered_gib_are_empty, set_up, tear_down)
{
    struct xseg_extent extent = expandable(BASE, 90 * XSEG_GIB);

    assert_true(xseg_page_map_insert(&page_map, &extent));
    assert_int_equal(xseg_page_map_host_bytes(&page_map, &extent), 0);
    assert_true(xseg_page_map_populate(&page_map, &extent, XSEG_GIB, XSEG_GIB + 2 * XSEG_MIB));
    assert_int_equal(xseg_page_map_host_bytes(&page_map, &extent),
                     sizeof(struct xseg_page_map_leaf));
    xseg_slot_add(xseg_page_map_slot(&page_map, BASE + XSEG_GIB + 3 * XSEG_MIB),
                  make_block(5, &extent));
    assert_ptr_equal(xseg_page_map_last_slot(&page_map, &extent, BASE + 89 * XSEG_GIB), &block[5]);
    assert_null(xseg_page_map_last_slot(&page_map, &extent, BASE + XSEG_GIB + 2 * XSEG_MIB));
    assert_null(xseg_page_map_last_slot(&page_map, &extent, BASE + 512));
    assert_null(xseg_page_map_slot(&page_map, BASE + 45 * XSEG_GIB));
    for (uint64_t gib = 0; gib < 90; gib++)
        assert_ptr_equal(xseg_page_map_find(&page_map, BASE + gib * XSEG_GIB + 4096), &extent);
    xseg_page_map_remove(&page_map, &extent);
    for (uint64_t gib = 0; gib < 90; gib++)
        assert_null(xseg_page_map_find(&page_map, BASE + gib * XSEG_GIB + 4096));
}

/* The driver may return any address to a classic segment, whose starts are populated before it is inserted. */
TEST_WITH(addresses_beyond_the_map_are_rejected, set_up, tear_down)
{
    struct xseg_extent extent = classic(UINT64_C(1) << XSEG_PAGE_MAP_ADDRESS_BITS, 2 * XSEG_MIB);

    extent.has_starts = true;
    assert_false(xseg_page_map_populate(&page_map, &extent, 0, 2 * XSEG_MIB));
    assert_false(xseg_page_map_insert(&page_map, &extent));
    assert_null(xseg_page_map_find(&page_map, extent.segment.base));
}

/* Slots of other arenas are ignored, including those of an earlier arena at the address. */
TEST_WITH(a_slot_is_of_one_arena, set_up, tear_down)
{
    struct xseg_extent first = classic(BASE, 3 * XSEG_MIB);
    struct xseg_extent second = classic(BASE + 3 * XSEG_MIB, 3 * XSEG_MIB);

    second.arena = arena_at(1);
    assert_true(xseg_page_map_insert(&page_map, &first) &&
                xseg_page_map_insert(&page_map, &second));
    xseg_slot *start = xseg_page_map_slot(&page_map, BASE);
    assert_int_equal(atomic_load_explicit(start, memory_order_acquire), 0);
    xseg_slot_add(start, make_block(1, &first));
    xseg_slot_add(xseg_page_map_slot(&page_map, BASE + 3 * XSEG_MIB), make_block(2, &second));
    assert_ptr_equal(xseg_slot_arena(atomic_load_explicit(start, memory_order_acquire)),
                     arena_at(0));
    assert_ptr_equal(xseg_slot_block_of(start, arena_at(0)), &block[1]);
    assert_null(xseg_slot_block_of(start, arena_at(1)));
    assert_ptr_equal(xseg_page_map_last_slot(&page_map, &second, BASE + 5 * XSEG_MIB), &block[2]);
    assert_ptr_equal(xseg_page_map_last_slot(&page_map, &first, BASE + 3 * XSEG_MIB), &block[1]);

    /* A value that was read before the block of the slot was removed is no longer current. */
    const uintptr_t removed = atomic_load_explicit(start, memory_order_acquire);
    xseg_slot_remove(start);
    assert_false(xseg_slot_is_current(start, removed, arena_at(0)));
    xseg_slot_add(start, &block[2]);
    assert_false(xseg_slot_is_current(start, removed, arena_at(0)));
    assert_null(xseg_slot_block_of(start, arena_at(0)));
    assert_ptr_equal(xseg_slot_block_of(start, arena_at(1)), &block[2]);
}

/* Small blocks start at multiples of 512 bytes in mapped memory. */
TEST_WITH(start_bits_locate_small_blocks, set_up, tear_down)
{
    const uint64_t unit = (uint64_t)1 << XSEG_STARTS_UNIT_SHIFT;
    struct xseg_extent extent = expandable(BASE, 5 * XSEG_GIB);

    extent.has_starts = true;
    assert_true(xseg_page_map_insert(&page_map, &extent));
    struct xseg_slab_batch *batch = xseg_page_map_allocate_records(&page_map, 2);
    assert_non_null(batch);
    assert_int_equal((uintptr_t)batch->first % sizeof(struct xseg_block), 0);
    struct xseg_block *record = batch->first;
    assert_null(xseg_page_map_start(&page_map, BASE));
    assert_null(xseg_page_map_last_start(&page_map, &extent, BASE + 5 * XSEG_GIB - 1));
    assert_true(xseg_page_map_populate(&page_map, &extent, 3 * unit, 4 * unit));
    assert_true(
        xseg_page_map_populate(&page_map, &extent, 2 * XSEG_GIB - unit, 2 * XSEG_GIB + unit));
    assert_null(xseg_page_map_start(&page_map, BASE + 2 * unit));
    assert_null(xseg_page_map_start(&page_map, BASE + 4 * unit));
    assert_int_equal(xseg_page_map_host_bytes(&page_map, &extent),
                     3 * sizeof(struct xseg_page_map_leaf) + 3 * XSEG_STARTS * sizeof(xseg_start));
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t address = BASE + (i == 0 ? 3 * unit + 512 : 2 * XSEG_GIB);
        xseg_start *start = xseg_page_map_start(&page_map, address);

        atomic_init(&record[i].extent, &extent);
        record[i].base = address;
        assert_null(xseg_page_map_block(&page_map, start));
        xseg_start_set(start, xseg_block_handle(page_map.records.base, &record[i]));
        assert_ptr_equal(xseg_page_map_block(&page_map, start), &record[i]);
        assert_ptr_equal(xseg_block_load_arena(&record[i]), arena_at(0));
    }
    assert_null(xseg_page_map_last_start(&page_map, &extent, BASE + 3 * unit + 511));
    assert_ptr_equal(xseg_page_map_last_start(&page_map, &extent, BASE + 3 * unit + 512), record);
    assert_ptr_equal(xseg_page_map_last_start(&page_map, &extent, BASE + 2 * XSEG_GIB - 1), record);
    assert_ptr_equal(xseg_page_map_last_start(&page_map, &extent, BASE + 2 * XSEG_GIB), record + 1);
    assert_ptr_equal(xseg_page_map_last_start(&page_map, &extent, BASE + 5 * XSEG_GIB - 1),
                     record + 1);
    free(batch);
}

TEST_WITH(leaves_are_reused, set_up, tear_down)
{
    struct xseg_extent first = expandable(BASE, 2 * XSEG_GIB);
    struct xseg_extent second = classic(BASE + 7 * XSEG_MIB, 20 * XSEG_MIB);

    assert_true(xseg_page_map_insert(&page_map, &first));
    assert_true(xseg_page_map_populate(&page_map, &first, 0, XSEG_MIB));
    xseg_page_map_remove(&page_map, &first);
    assert_null(xseg_page_map_find(&page_map, BASE));
    assert_null(xseg_page_map_find(&page_map, BASE + XSEG_GIB));
    assert_true(xseg_page_map_insert(&page_map, &second));
    assert_null(xseg_page_map_find(&page_map, BASE));
    assert_ptr_equal(xseg_page_map_find(&page_map, BASE + 7 * XSEG_MIB), &second);
    assert_int_equal(xseg_page_map_host_bytes(&page_map, &second),
                     20 * sizeof(struct xseg_page_map_leaf) / 1024); /* 20 MiB of a GiB */
}

/* Corrupt the slots of a large block, and expect the tag of the violated invariant; then restore the slots. */
static void expect_violation(const char *tag, void (*corrupt)(xseg_slot *start))
{
    struct xseg_allocator *allocator = env_open("");
    void *ptr = env_alloc(allocator, 8 * XSEG_MIB, NULL);
    struct xseg_extent *extent = xseg_page_map_find(&allocator->page_map, (uintptr_t)ptr);
    xseg_slot *start = xseg_page_map_slot(&allocator->page_map, (uintptr_t)ptr);
    const uintptr_t original = atomic_load_explicit(start, memory_order_acquire);

    expect_audit(xseg_extent_audit(extent, &violation), NULL);
    corrupt(start);
    expect_audit(xseg_extent_audit(extent, &violation), tag);
    xseg_slot_set(start, original);
    xseg_slot_remove(start + 2);
    expect_audit(xseg_extent_audit(extent, &violation), NULL);
    env_free(allocator, ptr);
    env_close(allocator);
}

static void clear_slot(xseg_slot *start)
{
    xseg_slot_remove(start);
}

static void duplicate_slot(xseg_slot *start)
{
    xseg_slot_set(start + 2, atomic_load_explicit(start, memory_order_acquire));
}

TEST(audit_reports_the_corrupted_slot)
{
    expect_violation("START-1", clear_slot);
    expect_violation("START-2", duplicate_slot);
}
