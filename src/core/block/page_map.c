/* SPDX-License-Identifier: MIT */
#include "src/core/block/page_map.h"

#include <stdlib.h>

#include "src/base/host_memory.h"

#define UNIT_BYTES (2 * XSEG_MIB)
#define ROOT_BYTES (XSEG_PAGE_MAP_ROOTS * sizeof(atomic_uintptr_t))

/* Page offsets of the first record and the first table; arenas begin at offset 0 (demand_zero.h). A
 * CPU mistakes a load for one that depends on an earlier store at the same offset of another page
 * (4 KiB aliasing). While record, start and arena lock were at one offset, an allocation and its
 * free took 10 ns more. */
#define FIRST_RECORD ((size_t)1024)
#define FIRST_TABLE  ((size_t)2048)

/* Reserve an address range, a smaller one if the process's limit requires it.
 * first: the offset of the first allocation */
static bool reserve_range(struct xseg_bump *bump, size_t first)
{
    for (size_t bytes = XSEG_PAGE_MAP_RESERVED; bytes >= XSEG_PAGE_MAP_RESERVED_MIN; bytes /= 2)
        if (xseg_bump_init(bump, bytes)) {
            xseg_bump_use_huge_pages(bump);
            return xseg_bump_alloc(bump, first - XSEG_BUMP_UNIT) != NULL;
        }
    return false;
}

bool xseg_page_map_init(struct xseg_page_map *page_map)
{
    bool is_wiped; /* unused, because frees in a forked child do not read the table */

    page_map->first = XSEG_PAGE_MAP_ROOTS;
    page_map->end = 0;
    page_map->free_leaves = NULL;
    atomic_init(&page_map->addresses, 0);
    xseg_mutex_init(&page_map->lock, XSEG_RANK_TABLE);
    page_map->records.base = page_map->starts.base = NULL;
    page_map->root = xseg_wipe_on_fork_alloc(ROOT_BYTES, &is_wiped);
    return page_map->root != NULL && reserve_range(&page_map->records, FIRST_RECORD) &&
           reserve_range(&page_map->starts, FIRST_TABLE);
}

struct xseg_slab_batch *xseg_page_map_allocate_records(struct xseg_page_map *page_map,
                                                       uint32_t count)
{
    struct xseg_slab_batch *batch = xseg_slab_create_batch_at(NULL, count);

    if (batch == NULL)
        return NULL;
    xseg_mutex_lock(&page_map->lock);
    batch->first = xseg_bump_alloc(&page_map->records, count * sizeof(struct xseg_block));
    xseg_mutex_unlock(&page_map->lock);
    if (batch->first != NULL)
        return batch;
    free(batch);
    return NULL;
}

/* An acquire load, because xseg_page_map_host_bytes() reads leaves without the TABLE lock. */
static uintptr_t load_entry(const struct xseg_page_map *page_map, uint64_t gib)
{
    return atomic_load_explicit(xseg_page_map_entry(page_map, gib), memory_order_acquire);
}

static struct xseg_page_map_leaf *load_leaf(const struct xseg_page_map *page_map, uint64_t gib)
{
    return xseg_page_map_leaf_of(load_entry(page_map, gib));
}

static void store_entry(struct xseg_page_map *page_map, uint64_t gib, uintptr_t entry)
{
    atomic_store_explicit(xseg_page_map_entry(page_map, gib), entry, memory_order_release);
}

void xseg_page_map_fini(struct xseg_page_map *page_map)
{
    struct xseg_page_map_leaf *leaf;

    for (uint64_t i = page_map->first; page_map->root != NULL && i < page_map->end; i++)
        free(load_leaf(page_map, i));
    while ((leaf = page_map->free_leaves) != NULL) {
        page_map->free_leaves = leaf->next_free;
        free(leaf);
    }
    xseg_bump_fini(&page_map->records);
    xseg_bump_fini(&page_map->starts);
    xseg_wipe_on_fork_free(page_map->root, ROOT_BYTES);
    page_map->root = NULL;
    xseg_mutex_fini(&page_map->lock);
}

/* Whether the extent's addresses are whole GiB that no other segment can share. */
static bool owns_whole_gibs(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment) && extent->segment.base % XSEG_GIB == 0 &&
           extent->segment.reserved_bytes % XSEG_GIB == 0;
}

static uint64_t extent_end(const struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->segment.bytes > 0);
    return extent->segment.base + extent->segment.bytes;
}

static uint64_t extent_first_gib(const struct xseg_extent *extent)
{
    return extent->segment.base >> 30;
}

static uint64_t extent_last_gib(const struct xseg_extent *extent)
{
    return (extent_end(extent) - 1) >> 30;
}

/* Set the entries of an extent's addresses in the leaf of a GiB, or clear them. */
static void set_extent_in_leaf(struct xseg_page_map_leaf *leaf, uint64_t gib,
                               struct xseg_extent *extent, bool is_present)
{
    const uint64_t base = extent->segment.base;
    const uint64_t begin = xseg_max(base, gib << 30);
    const uint64_t end = xseg_min(extent_end(extent), (gib + 1) << 30);

    XSEG_ASSERT(leaf != NULL && begin < end);
    for (uint64_t unit = begin / UNIT_BYTES; unit <= (end - 1) / UNIT_BYTES; unit++) {
        struct xseg_page_map_unit *extents = &leaf->unit[unit % XSEG_PAGE_MAP_UNITS];

        XSEG_ASSERT(unit * UNIT_BYTES >> 30 == gib);
        atomic_store_explicit(unit * UNIT_BYTES < base ? &extents->tail : &extents->head,
                              is_present ? extent : NULL, memory_order_release);
    }
}

/* Reuse or allocate an empty leaf; NULL on host allocation failure. */
static struct xseg_page_map_leaf *allocate_leaf(struct xseg_page_map *page_map)
{
    struct xseg_page_map_leaf *leaf = page_map->free_leaves;

    if (leaf == NULL)
        return calloc(1, sizeof(*leaf));
    page_map->free_leaves = leaf->next_free;
    leaf->next_free = NULL;
    return leaf;
}

/* Create the missing leaves of a range of GiB; false on host allocation failure. If an entry was an
 * extent, the new leaf leads to that extent. */
static bool ensure_leaves(struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    XSEG_ASSERT(first <= last && last < XSEG_PAGE_MAP_ROOTS);
    page_map->first = xseg_min(page_map->first, first);
    page_map->end = xseg_max(page_map->end, last + 1);
    for (uint64_t gib = first; gib <= last; gib++) {
        const uintptr_t entry = load_entry(page_map, gib);

        if (xseg_page_map_leaf_of(entry) != NULL)
            continue;
        struct xseg_page_map_leaf *leaf = allocate_leaf(page_map);
        if (leaf == NULL)
            return false;
        if (entry != 0)
            set_extent_in_leaf(leaf, gib, (struct xseg_extent *)entry,
                               true); /* NOLINT(performance-no-int-to-ptr) */
        store_entry(page_map, gib, (uintptr_t)leaf + 1);
    }
    return true;
}

static bool extent_overlaps(const struct xseg_extent *extent, uint64_t first, uint64_t last)
{
    return extent != NULL && extent->segment.base <= last && extent_end(extent) > first;
}

bool xseg_page_map_overlaps(const struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    XSEG_ASSERT(first <= last && first / UNIT_BYTES == last / UNIT_BYTES);
    const uintptr_t entry = load_entry(page_map, first >> 30);
    const struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(entry);

    if (leaf == NULL)
        return entry != 0;
    const struct xseg_page_map_unit *unit = &leaf->unit[first / UNIT_BYTES % XSEG_PAGE_MAP_UNITS];
    return extent_overlaps(atomic_load_explicit(&unit->head, memory_order_relaxed), first, last) ||
           extent_overlaps(atomic_load_explicit(&unit->tail, memory_order_relaxed), first, last);
}

bool xseg_page_map_insert(struct xseg_page_map *page_map, struct xseg_extent *extent)
{
    if ((extent_end(extent) - 1) >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return false;
    page_map->first = xseg_min(page_map->first, extent_first_gib(extent));
    page_map->end = xseg_max(page_map->end, extent_last_gib(extent) + 1);
    if (!owns_whole_gibs(extent) &&
        !ensure_leaves(page_map, extent_first_gib(extent), extent_last_gib(extent)))
        return false;
    /* Addresses are reused: a GiB that the extent owns may still have the leaf of released
     * extents. */
    for (uint64_t gib = extent_first_gib(extent); gib <= extent_last_gib(extent); gib++) {
        struct xseg_page_map_leaf *leaf = load_leaf(page_map, gib);

        if (leaf == NULL)
            store_entry(page_map, gib, (uintptr_t)extent);
        else
            set_extent_in_leaf(leaf, gib, extent, true);
    }
    return true;
}

/* Remove the leaf of a GiB that no extent overlaps, and keep the leaf for reuse. */
static void release_leaf(struct xseg_page_map *page_map, uint64_t gib,
                         struct xseg_page_map_leaf *leaf)
{
    XSEG_ASSERT(load_leaf(page_map, gib) == leaf && leaf->next_free == NULL);
    store_entry(page_map, gib, 0);
    leaf->next_free = page_map->free_leaves;
    page_map->free_leaves = leaf;
}

void xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent)
{
    for (uint64_t gib = extent_first_gib(extent); gib <= extent_last_gib(extent); gib++) {
        struct xseg_page_map_leaf *leaf = load_leaf(page_map, gib);

        if (leaf == NULL) {
            XSEG_ASSERT(load_entry(page_map, gib) == (uintptr_t)extent);
            store_entry(page_map, gib, 0);
            continue;
        }
        set_extent_in_leaf(leaf, gib, extent, false);
        if (owns_whole_gibs(extent))
            release_leaf(page_map, gib, leaf);
    }
}

/* Create the missing tables of starts for the addresses [first, last]. */
static bool ensure_start_tables(struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    for (uint64_t unit = first / UNIT_BYTES; unit <= last / UNIT_BYTES; unit++) {
        struct xseg_page_map_leaf *leaf = load_leaf(page_map, unit * UNIT_BYTES >> 30);
        _Atomic(xseg_start *) *entry = &leaf->starts[unit % XSEG_PAGE_MAP_UNITS];

        if (atomic_load_explicit(entry, memory_order_relaxed) != NULL)
            continue;
        xseg_start *table = xseg_bump_alloc(&page_map->starts, XSEG_STARTS * sizeof(*table));
        if (table == NULL)
            return false;
        atomic_store_explicit(entry, table, memory_order_release);
    }
    return true;
}

bool xseg_page_map_populate(struct xseg_page_map *page_map, struct xseg_extent *extent,
                            uint64_t begin, uint64_t end)
{
    const uint64_t first = extent->segment.base + begin, last = extent->segment.base + end - 1;

    XSEG_ASSERT(begin < end && end <= extent->segment.bytes);
    /* The insertion of a classic extent creates its leaves, which contain its slots. */
    if (!extent->has_starts && !xseg_extent_is_expandable(extent))
        return true;
    if (last >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return false;
    xseg_mutex_lock(&page_map->lock);
    const bool is_populated = ensure_leaves(page_map, first >> 30, last >> 30) &&
                              (!extent->has_starts || ensure_start_tables(page_map, first, last));
    xseg_mutex_unlock(&page_map->lock);
    return is_populated;
}

struct xseg_block *xseg_page_map_last_start(const struct xseg_page_map *page_map,
                                            const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t first = extent->segment.base >> XSEG_START_SHIFT;

    XSEG_ASSERT(address >= extent->segment.base);
    for (uint64_t index = (address >> XSEG_START_SHIFT) + 1; index-- > first;) {
        const xseg_start *start = xseg_page_map_start(page_map, index << XSEG_START_SHIFT);
        struct xseg_block *block = xseg_page_map_block(page_map, start);

        if (block != NULL && xseg_block_extent(block) == extent)
            return block;
        /* Without a table, no block begins in the unit; without a leaf, none in the GiB. */
        if (start == NULL)
            index -= index % (load_leaf(page_map, index >> (30 - XSEG_START_SHIFT)) == NULL
                                  ? XSEG_STARTS * XSEG_PAGE_MAP_UNITS
                                  : XSEG_STARTS);
    }
    return NULL;
}

struct xseg_block *xseg_page_map_last_slot(const struct xseg_page_map *page_map,
                                           const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t first = extent->segment.base >> XSEG_SLOT_SHIFT;

    XSEG_ASSERT(address >= extent->segment.base);
    for (uint64_t mib = (address >> XSEG_SLOT_SHIFT) + 1; mib-- > first;) {
        const xseg_slot *slot = xseg_page_map_slot(page_map, mib << XSEG_SLOT_SHIFT);
        struct xseg_block *block = xseg_slot_block_of(slot, extent->arena);

        if (block != NULL && block->extent == extent)
            return block;
        /* Without a leaf, no block begins in the GiB. */
        if (slot == NULL)
            mib -= mib % XSEG_SLOT_SLOTS;
    }
    return NULL;
}

/* The number of tables for the addresses [begin, end), which are in the GiB of a leaf. */
static uint64_t count_start_tables(const struct xseg_page_map_leaf *leaf, uint64_t begin,
                                   uint64_t end)
{
    uint64_t count = 0;

    for (uint64_t unit = begin / UNIT_BYTES; unit <= (end - 1) / UNIT_BYTES; unit++)
        count += atomic_load_explicit(&leaf->starts[unit % XSEG_PAGE_MAP_UNITS],
                                      memory_order_relaxed) != NULL;
    return count;
}

uint64_t xseg_page_map_host_bytes(const struct xseg_page_map *page_map,
                                  const struct xseg_extent *extent)
{
    uint64_t covered = 0, tables = 0;

    for (uint64_t gib = extent_first_gib(extent); gib <= extent_last_gib(extent); gib++) {
        const struct xseg_page_map_leaf *leaf = load_leaf(page_map, gib);
        const uint64_t begin = xseg_max(extent->segment.base, gib << 30);
        const uint64_t end = xseg_min(extent_end(extent), (gib + 1) << 30);

        if (leaf == NULL)
            continue;
        covered += end - begin;
        if (extent->has_starts)
            tables += count_start_tables(leaf, begin, end);
    }
    return covered / XSEG_MIB * sizeof(struct xseg_page_map_leaf) / 1024 +
           tables * XSEG_STARTS * sizeof(xseg_start);
}
