/* SPDX-License-Identifier: MIT */
#include "src/core/cache/lookup.h"

#include <stdlib.h>

#include "src/base/fork.h"

#define UNIT_BYTES (2 * XSEG_MIB)
#define ROOT_BYTES (XSEG_LOOKUP_ROOTS * sizeof(atomic_uintptr_t))

bool xseg_lookup_init(struct xseg_lookup *lookup)
{
    bool is_wiped; /* a child asks no look-up: its frees are not plain */

    lookup->first = XSEG_LOOKUP_ROOTS;
    lookup->end = 0;
    lookup->spare = NULL;
    xseg_lock_init(&lookup->lock, XSEG_RANK_TABLE);
    lookup->root = xseg_fork_wiped(ROOT_BYTES, &is_wiped);
    return lookup->root != NULL;
}

static uintptr_t entry_at(const struct xseg_lookup *lookup, uint64_t gib)
{
    return atomic_load_explicit(xseg_lookup_entry(lookup, gib), memory_order_relaxed);
}

static struct xseg_lookup_leaf *leaf_at(const struct xseg_lookup *lookup, uint64_t gib)
{
    return xseg_lookup_leaf_of(entry_at(lookup, gib));
}

static void set_entry(struct xseg_lookup *lookup, uint64_t gib, uintptr_t entry)
{
    atomic_store_explicit(xseg_lookup_entry(lookup, gib), entry, memory_order_release);
}

void xseg_lookup_fini(struct xseg_lookup *lookup)
{
    struct xseg_lookup_leaf *leaf;

    for (uint64_t i = lookup->first; lookup->root != NULL && i < lookup->end; i++)
        free(leaf_at(lookup, i));
    while ((leaf = lookup->spare) != NULL) {
        lookup->spare = leaf->spare;
        free(leaf);
    }
    xseg_fork_unmap(lookup->root, ROOT_BYTES);
    lookup->root = NULL;
    xseg_lock_fini(&lookup->lock);
}

/* Whether the extent's addresses are whole GiB that no other segment can share. */
static bool owns_gib(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment) && extent->segment.base % XSEG_GIB == 0 &&
           extent->segment.reserved_bytes % XSEG_GIB == 0;
}

static uint64_t end_of(const struct xseg_extent *extent)
{
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

/* Let what of a GiB is the extent's lead to it, or no longer. */
static void set_leaf(struct xseg_lookup_leaf *leaf, uint64_t gib, struct xseg_extent *extent,
                     bool is_known)
{
    const uint64_t base = extent->segment.base;
    const uint64_t begin = xseg_max(base, gib << 30);
    const uint64_t end = xseg_min(end_of(extent), (gib + 1) << 30);

    for (uint64_t unit = begin / UNIT_BYTES; unit <= (end - 1) / UNIT_BYTES; unit++) {
        struct xseg_lookup_unit *at = &leaf->unit[unit % XSEG_LOOKUP_UNITS];

        atomic_store_explicit(unit * UNIT_BYTES < base ? &at->tail : &at->head,
                              is_known ? extent : NULL, memory_order_release);
    }
    for (uint64_t at = xseg_round_up(begin, XSEG_MIB); extent->has_cells && at + XSEG_MIB <= end;
         at += XSEG_MIB)
        xseg_start_set(xseg_lookup_start_in(leaf, at), is_known ? (uintptr_t)extent + 1 : 0);
}

/* An empty leaf, or NULL without host memory. */
static struct xseg_lookup_leaf *take_leaf(struct xseg_lookup *lookup)
{
    struct xseg_lookup_leaf *leaf = lookup->spare;

    if (leaf == NULL)
        return calloc(1, sizeof(*leaf));
    lookup->spare = leaf->spare;
    leaf->spare = NULL;
    return leaf;
}

/* The leaf of a GiB, made if there is none; NULL without host memory.  What a new one leads to is that of
 * the entry, if that is an extent. */
static struct xseg_lookup_leaf *make_leaf(struct xseg_lookup *lookup, uint64_t gib)
{
    struct xseg_lookup_leaf *leaf = leaf_at(lookup, gib);
    struct xseg_extent *extent = (struct xseg_extent *)entry_at(lookup, gib);

    if (leaf != NULL)
        return leaf;
    leaf = take_leaf(lookup);
    if (leaf == NULL)
        return NULL;
    if (extent != NULL)
        set_leaf(leaf, gib, extent, true);
    set_entry(lookup, gib, (uintptr_t)leaf + 1);
    return leaf;
}

static bool make_leaves(struct xseg_lookup *lookup, uint64_t first, uint64_t last)
{
    for (uint64_t gib = first; gib <= last; gib++)
        if (make_leaf(lookup, gib) == NULL)
            return false;
    return true;
}

static bool overlaps(const struct xseg_extent *extent, uint64_t first, uint64_t last)
{
    return extent != NULL && extent->segment.base <= last && end_of(extent) > first;
}

bool xseg_lookup_covers(const struct xseg_lookup *lookup, uint64_t first, uint64_t last)
{
    const uintptr_t entry = entry_at(lookup, first >> 30);
    const struct xseg_lookup_leaf *leaf = xseg_lookup_leaf_of(entry);

    if (leaf == NULL)
        return entry != 0;
    const struct xseg_lookup_unit *at = &leaf->unit[first / UNIT_BYTES % XSEG_LOOKUP_UNITS];
    return overlaps(atomic_load_explicit(&at->head, memory_order_relaxed), first, last) ||
           overlaps(atomic_load_explicit(&at->tail, memory_order_relaxed), first, last);
}

bool xseg_lookup_insert(struct xseg_lookup *lookup, struct xseg_extent *extent)
{
    if ((end_of(extent) - 1) >> XSEG_LOOKUP_ADDRESS_BITS != 0)
        return false;
    lookup->first = xseg_min(lookup->first, first_gib(extent));
    lookup->end = xseg_max(lookup->end, last_gib(extent) + 1);
    if (!owns_gib(extent) && !make_leaves(lookup, first_gib(extent), last_gib(extent)))
        return false;
    /* Addresses come again: where an extent owns the GiB, there may be a leaf of others that are gone. */
    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++) {
        struct xseg_lookup_leaf *leaf = leaf_at(lookup, gib);

        if (leaf == NULL)
            set_entry(lookup, gib, (uintptr_t)extent);
        else
            set_leaf(leaf, gib, extent, true);
    }
    return true;
}

/* Take the leaf of a GiB in which no segment has addresses any more out of the table. */
static void put_leaf(struct xseg_lookup *lookup, uint64_t gib, struct xseg_lookup_leaf *leaf)
{
    set_entry(lookup, gib, 0);
    leaf->spare = lookup->spare;
    lookup->spare = leaf;
}

void xseg_lookup_remove(struct xseg_lookup *lookup, struct xseg_extent *extent)
{
    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++) {
        struct xseg_lookup_leaf *leaf = leaf_at(lookup, gib);

        if (leaf == NULL) {
            set_entry(lookup, gib, 0);
            continue;
        }
        set_leaf(leaf, gib, extent, false);
        if (owns_gib(extent))
            put_leaf(lookup, gib, leaf);
    }
}

bool xseg_lookup_cover(struct xseg_lookup *lookup, struct xseg_extent *extent, uint64_t begin,
                       uint64_t end)
{
    return make_leaves(lookup, (extent->segment.base + begin) >> 30,
                       (extent->segment.base + end - 1) >> 30);
}

struct xseg_block *xseg_lookup_last_start(const struct xseg_lookup *lookup,
                                          const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t first = extent->segment.base >> XSEG_STARTS_SHIFT;

    for (uint64_t slot = (address >> XSEG_STARTS_SHIFT) + 1; slot-- > first;) {
        const xseg_start *start = xseg_lookup_start(lookup, slot << XSEG_STARTS_SHIFT);
        struct xseg_block *block = xseg_start_block_of(start, extent->arena);

        if (block != NULL && block->extent == extent)
            return block;
        /* Without a leaf, nothing begins in the GiB. */
        if (start == NULL)
            slot -= slot % XSEG_STARTS_SLOTS;
    }
    return NULL;
}

uint64_t xseg_lookup_host_bytes(const struct xseg_lookup *lookup, const struct xseg_extent *extent)
{
    uint64_t covered = 0;

    for (uint64_t gib = first_gib(extent); gib <= last_gib(extent); gib++)
        if (leaf_at(lookup, gib) != NULL)
            covered += xseg_min(end_of(extent), (gib + 1) << 30) -
                       xseg_max(extent->segment.base, gib << 30);
    return covered / XSEG_MIB * sizeof(struct xseg_lookup_leaf) / 1024;
}
