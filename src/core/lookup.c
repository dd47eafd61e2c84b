/* SPDX-License-Identifier: MIT */
#include "src/core/lookup.h"

#include <stdlib.h>

#include "src/base/fork.h"

#define UNIT_BYTES (2 * XSEG_MIB)
#define ROOT_BYTES (XSEG_LOOKUP_ROOTS * sizeof(atomic_uintptr_t))

bool xseg_lookup_init(struct xseg_lookup *lookup)
{
    lookup->first = XSEG_LOOKUP_ROOTS;
    lookup->end = 0;
    lookup->root = xseg_fork_wiped(ROOT_BYTES, &lookup->is_wiped);
    return lookup->root != NULL;
}

static struct xseg_lookup_leaf *leaf_of(uintptr_t entry)
{
    return (entry & 1) == 0 ? NULL : (struct xseg_lookup_leaf *)(entry - 1);
}

void xseg_lookup_fini(struct xseg_lookup *lookup)
{
    for (uint64_t i = lookup->first; lookup->root != NULL && i < lookup->end; i++)
        free(leaf_of(atomic_load_explicit(xseg_lookup_entry(lookup, i), memory_order_relaxed)));
    xseg_fork_unmap(lookup->root, ROOT_BYTES);
    lookup->root = NULL;
}

/* Whether the extent's addresses are whole GiB that no other segment can share. */
static bool owns_gib(const struct xseg_extent *extent)
{
    return xseg_extent_is_expandable(extent) && extent->segment.base % XSEG_GIB == 0 &&
           extent->segment.reserved_bytes % XSEG_GIB == 0;
}

static uint64_t end_of(const struct xseg_extent *extent)
{
    return extent->segment.base + extent->segment.bytes;
}

/* Leaves for every GiB that the extent touches; they stay, whether it is inserted or not. */
static bool make_leaves(struct xseg_lookup *lookup, const struct xseg_extent *extent)
{
    for (uint64_t i = extent->segment.base >> 30; i <= (end_of(extent) - 1) >> 30; i++) {
        if (leaf_of(atomic_load_explicit(xseg_lookup_entry(lookup, i), memory_order_relaxed)) !=
            NULL)
            continue;
        struct xseg_lookup_leaf *leaf = calloc(1, sizeof(*leaf));
        if (leaf == NULL)
            return false;
        atomic_store_explicit(xseg_lookup_entry(lookup, i), (uintptr_t)leaf + 1,
                              memory_order_release);
    }
    return true;
}

/* Put `value` wherever the extent stands in the leaves. */
static void set_units(struct xseg_lookup *lookup, const struct xseg_extent *extent,
                      struct xseg_extent *value)
{
    const uint64_t base = extent->segment.base;

    for (uint64_t unit = base / UNIT_BYTES; unit <= (end_of(extent) - 1) / UNIT_BYTES; unit++) {
        struct xseg_lookup_leaf *leaf = leaf_of(atomic_load_explicit(
            xseg_lookup_entry(lookup, unit / XSEG_LOOKUP_UNITS), memory_order_relaxed));
        struct xseg_lookup_unit *at = &leaf->unit[unit % XSEG_LOOKUP_UNITS];

        atomic_store_explicit(unit * UNIT_BYTES < base ? &at->tail : &at->head, value,
                              memory_order_release);
    }
}

static bool overlaps(const struct xseg_extent *extent, uint64_t first, uint64_t last)
{
    return extent != NULL && extent->segment.base <= last && end_of(extent) > first;
}

bool xseg_lookup_covers(const struct xseg_lookup *lookup, uint64_t first, uint64_t last)
{
    const uintptr_t entry =
        atomic_load_explicit(xseg_lookup_entry(lookup, first >> 30), memory_order_relaxed);
    const struct xseg_lookup_leaf *leaf = leaf_of(entry);

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
    lookup->first = xseg_min(lookup->first, extent->segment.base >> 30);
    lookup->end = xseg_max(lookup->end, ((end_of(extent) - 1) >> 30) + 1);
    if (!owns_gib(extent)) {
        if (!make_leaves(lookup, extent))
            return false;
        set_units(lookup, extent, extent);
        return true;
    }
    for (uint64_t i = extent->segment.base >> 30; i <= (end_of(extent) - 1) >> 30; i++) {
        /* Addresses come again: a leaf of classic segments that are gone may stand here, and other
         * threads may be reading it.  The extent goes into it like a classic one. */
        if (leaf_of(atomic_load_explicit(xseg_lookup_entry(lookup, i), memory_order_relaxed)) ==
            NULL)
            continue;
        if (!make_leaves(lookup, extent))
            return false;
        set_units(lookup, extent, extent);
        return true;
    }
    for (uint64_t i = extent->segment.base >> 30; i <= (end_of(extent) - 1) >> 30; i++)
        atomic_store_explicit(xseg_lookup_entry(lookup, i), (uintptr_t)extent,
                              memory_order_release);
    return true;
}

void xseg_lookup_remove(struct xseg_lookup *lookup, const struct xseg_extent *extent)
{
    const uint64_t first = extent->segment.base >> 30, last = (end_of(extent) - 1) >> 30;

    if (leaf_of(atomic_load_explicit(xseg_lookup_entry(lookup, first), memory_order_relaxed)) !=
        NULL) {
        set_units(lookup, extent, NULL);
        return;
    }
    for (uint64_t i = first; i <= last; i++)
        atomic_store_explicit(xseg_lookup_entry(lookup, i), 0, memory_order_release);
}
