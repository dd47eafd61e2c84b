/* SPDX-License-Identifier: MIT */
#include "src/core/block/page_map.h"

#include <stdlib.h>

#include "src/base/host_memory.h"

#define UNIT_BYTES (2 * XSEG_MIB)
#define ROOT_BYTES (XSEG_PAGE_MAP_ROOTS * sizeof(atomic_uintptr_t))

/* Where the first record and the first table begin in their pages. Arenas begin at 0 (demand_zero.h): a
 * processor takes a load for one of an earlier store at the same place of another page, and one
 * block that is allocated and freed took 10 ns more while its record, its start and its arena's
 * lock were at one place. */
#define FIRST_RECORD ((size_t)1024)
#define FIRST_TABLE  ((size_t)2048)

/* Reserve addresses, fewer where the process may not have so many. */
static bool reserve(struct xseg_bump *bump, size_t first)
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
    bool is_wiped; /* not needed: a child does not use the table, since its frees are not plain */

    page_map->first = XSEG_PAGE_MAP_ROOTS;
    page_map->end = 0;
    page_map->spare = NULL;
    xseg_mutex_init(&page_map->lock, XSEG_RANK_TABLE);
    page_map->records.base = page_map->starts.base = NULL;
    page_map->root = xseg_wipe_on_fork_alloc(ROOT_BYTES, &is_wiped);
    return page_map->root != NULL && reserve(&page_map->records, FIRST_RECORD) &&
           reserve(&page_map->starts, FIRST_TABLE);
}

struct xseg_slab_batch *xseg_page_map_make_records(struct xseg_page_map *page_map, uint32_t count)
{
    struct xseg_slab_batch *batch = xseg_slab_make_batch_at(NULL, count);

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

static uintptr_t entry_at(const struct xseg_page_map *page_map, uint64_t gib)
{
    return atomic_load_explicit(xseg_page_map_entry(page_map, gib), memory_order_relaxed);
}

static struct xseg_page_map_leaf *leaf_at(const struct xseg_page_map *page_map, uint64_t gib)
{
    return xseg_page_map_leaf_of(entry_at(page_map, gib));
}

static void set_entry(struct xseg_page_map *page_map, uint64_t gib, uintptr_t entry)
{
    atomic_store_explicit(xseg_page_map_entry(page_map, gib), entry, memory_order_release);
}

void xseg_page_map_fini(struct xseg_page_map *page_map)
{
    struct xseg_page_map_leaf *leaf;

    for (uint64_t i = page_map->first; page_map->root != NULL && i < page_map->end; i++)
        free(leaf_at(page_map, i));
    while ((leaf = page_map->spare) != NULL) {
        page_map->spare = leaf->spare;
        free(leaf);
    }
    xseg_bump_fini(&page_map->records);
    xseg_bump_fini(&page_map->starts);
    xseg_wipe_on_fork_free(page_map->root, ROOT_BYTES);
    page_map->root = NULL;
    xseg_mutex_fini(&page_map->lock);
}

/* Whether the extent's addresses are whole GiB that no other segment can share. */
static bool owns_gib(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment) && extent->segment.base % XSEG_GIB == 0 &&
           extent->segment.reserved_bytes % XSEG_GIB == 0;
}

static uint64_t end_of(const struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->segment.bytes > 0);
    return extent->segment.base + extent->segment.bytes;
}

static uint64_t first_gib(const struct xseg_extent *extent)
{
    return extent->segment.base >> 30;
}

static uint64_t last_gib(const struct xseg_extent *extent)
{
    return (end_of(extent) - 1) >> 30;
}

/* Let an extent's addresses in a GiB lead to it, or to nothing. */
static void set_leaf(struct xseg_page_map_leaf *leaf, uint64_t gib, struct xseg_extent *extent,
                     bool is_known)
{
    const uint64_t base = extent->segment.base;
    const uint64_t begin = xseg_max(base, gib << 30);
    const uint64_t end = xseg_min(end_of(extent), (gib + 1) << 30);

    XSEG_ASSERT(leaf != NULL && begin < end);
    for (uint64_t unit = begin / UNIT_BYTES; unit <= (end - 1) / UNIT_BYTES; unit++) {
        struct xseg_page_map_unit *at = &leaf->unit[unit % XSEG_PAGE_MAP_UNITS];

        XSEG_ASSERT(unit * UNIT_BYTES >> 30 == gib);
        atomic_store_explicit(unit * UNIT_BYTES < base ? &at->tail : &at->head,
                              is_known ? extent : NULL, memory_order_release);
    }
}

/* An empty leaf, or NULL without host memory. */
static struct xseg_page_map_leaf *take_leaf(struct xseg_page_map *page_map)
{
    struct xseg_page_map_leaf *leaf = page_map->spare;

    if (leaf == NULL)
        return calloc(1, sizeof(*leaf));
    page_map->spare = leaf->spare;
    leaf->spare = NULL;
    return leaf;
}

/* The leaf of a GiB, made if there is none; NULL without host memory.  If the entry was an extent, a new leaf leads
 * to that. */
static struct xseg_page_map_leaf *make_leaf(struct xseg_page_map *page_map, uint64_t gib)
{
    struct xseg_page_map_leaf *leaf = leaf_at(page_map, gib);
    struct xseg_extent *extent = (struct xseg_extent *)entry_at(page_map, gib);

    if (leaf != NULL)
        return leaf;
    leaf = take_leaf(page_map);
    if (leaf == NULL)
        return NULL;
    if (extent != NULL)
        set_leaf(leaf, gib, extent, true);
    set_entry(page_map, gib, (uintptr_t)leaf + 1);
    return leaf;
}

static bool make_leaves(struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    XSEG_ASSERT(first <= last && last < XSEG_PAGE_MAP_ROOTS);
    for (uint64_t gib = first; gib <= last; gib++)
        if (make_leaf(page_map, gib) == NULL)
            return false;
    return true;
}

static bool overlaps(const struct xseg_extent *extent, uint64_t first, uint64_t last)
{
    return extent != NULL && extent->segment.base <= last && end_of(extent) > first;
}

bool xseg_page_map_covers(const struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    XSEG_ASSERT(first <= last && first / UNIT_BYTES == last / UNIT_BYTES);
    const uintptr_t entry = entry_at(page_map, first >> 30);
    const struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(entry);

    if (leaf == NULL)
        return entry != 0;
    const struct xseg_page_map_unit *at = &leaf->unit[first / UNIT_BYTES % XSEG_PAGE_MAP_UNITS];
    return overlaps(atomic_load_explicit(&at->head, memory_order_relaxed), first, last) ||
           overlaps(atomic_load_explicit(&at->tail, memory_order_relaxed), first, last);
}

bool xseg_page_map_insert(struct xseg_page_map *page_map, struct xseg_extent *extent)
{
    if ((end_of(extent) - 1) >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return false;
    page_map->first = xseg_min(page_map->first, first_gib(extent));
    page_map->end = xseg_max(page_map->end, last_gib(extent) + 1);
    if (!owns_gib(extent) && !make_leaves(page_map, first_gib(extent), last_gib(extent)))
        return false;
    /* Addresses are reused: a GiB that the extent owns may have the leaf of extents that ended. */
    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++) {
        struct xseg_page_map_leaf *leaf = leaf_at(page_map, gib);

        if (leaf == NULL)
            set_entry(page_map, gib, (uintptr_t)extent);
        else
            set_leaf(leaf, gib, extent, true);
    }
    return true;
}

/* Take the leaf of a GiB in which no segment has addresses any more out of the table. */
static void put_leaf(struct xseg_page_map *page_map, uint64_t gib, struct xseg_page_map_leaf *leaf)
{
    XSEG_ASSERT(leaf_at(page_map, gib) == leaf && leaf->spare == NULL);
    set_entry(page_map, gib, 0);
    leaf->spare = page_map->spare;
    page_map->spare = leaf;
}

void xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent)
{
    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++) {
        struct xseg_page_map_leaf *leaf = leaf_at(page_map, gib);

        if (leaf == NULL) {
            XSEG_ASSERT(entry_at(page_map, gib) == (uintptr_t)extent);
            set_entry(page_map, gib, 0);
            continue;
        }
        set_leaf(leaf, gib, extent, false);
        if (owns_gib(extent))
            put_leaf(page_map, gib, leaf);
    }
}

/* Make the missing tables of starts for addresses. */
static bool make_tables(struct xseg_page_map *page_map, uint64_t first, uint64_t last)
{
    for (uint64_t unit = first / UNIT_BYTES; unit <= last / UNIT_BYTES; unit++) {
        struct xseg_page_map_leaf *leaf = leaf_at(page_map, unit * UNIT_BYTES >> 30);
        _Atomic(xseg_start *) *place = &leaf->starts[unit % XSEG_PAGE_MAP_UNITS];

        if (atomic_load_explicit(place, memory_order_relaxed) != NULL)
            continue;
        xseg_start *table = xseg_bump_alloc(&page_map->starts, XSEG_STARTS * sizeof(*table));
        if (table == NULL)
            return false;
        atomic_store_explicit(place, table, memory_order_release);
    }
    return true;
}

bool xseg_page_map_cover(struct xseg_page_map *page_map, struct xseg_extent *extent, uint64_t begin,
                         uint64_t end)
{
    const uint64_t first = extent->segment.base + begin, last = extent->segment.base + end - 1;

    XSEG_ASSERT(begin < end && end <= extent->segment.bytes);
    return make_leaves(page_map, first >> 30, last >> 30) &&
           (!extent->has_starts || make_tables(page_map, first, last));
}

struct xseg_block *xseg_page_map_last_start(const struct xseg_page_map *page_map,
                                            const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t first = extent->segment.base >> XSEG_START_SHIFT;

    XSEG_ASSERT(address >= extent->segment.base);
    for (uint64_t at = (address >> XSEG_START_SHIFT) + 1; at-- > first;) {
        const xseg_start *start = xseg_page_map_start(page_map, at << XSEG_START_SHIFT);
        struct xseg_block *block = xseg_page_map_block(page_map, start);

        if (block != NULL && xseg_block_extent(block) == extent)
            return block;
        /* Without a table, no block begins in the unit; without a leaf, none in the GiB. */
        if (start == NULL)
            at -= at % (leaf_at(page_map, at >> (30 - XSEG_START_SHIFT)) == NULL
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

/* Number of tables for the addresses of an extent in a GiB. */
static uint64_t count_tables(const struct xseg_page_map_leaf *leaf, uint64_t begin, uint64_t end)
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

    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++) {
        const struct xseg_page_map_leaf *leaf = leaf_at(page_map, gib);
        const uint64_t begin = xseg_max(extent->segment.base, gib << 30);
        const uint64_t end = xseg_min(end_of(extent), (gib + 1) << 30);

        if (leaf == NULL)
            continue;
        covered += end - begin;
        if (extent->has_starts)
            tables += count_tables(leaf, begin, end);
    }
    return covered / XSEG_MIB * sizeof(struct xseg_page_map_leaf) / 1024 +
           tables * XSEG_STARTS * sizeof(xseg_start);
}
