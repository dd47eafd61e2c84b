/* SPDX-License-Identifier: MIT */
/*
 * The page map: from any device address to its extent, and from the first address of a live block
 * to its record, in O(1) and without a lock.
 *
 * A flat table has an entry for each GiB of addresses. An expandable extent owns whole GiB, so an
 * entry without a leaf names the extent.  Other entries name a leaf.  A leaf has, for each 2 MiB,
 *
 *   - two extents: the one that covers the first byte, and the one that starts further in. Classic
 *     segments share a GiB; they are at least 2 MiB long, so two are enough;
 *   - two slots for large blocks (slot.h), one for each MiB: no two large blocks start in one MiB;
 *   - a table of starts for small blocks, if there are any: the handle of the block that starts
 *     there, for each 512 bytes. A table takes 0.8 % of the memory that it describes.
 *
 * So a free reads the entry, the leaf, the slot or start, and the record. An expandable extent has
 * a leaf for each GiB in which memory was mapped.
 *
 * The page map owns the memory of the records of all blocks: one reserved range of addresses, in
 * which handles of 32 bits name them. Records, leaves and tables stay until the allocator closes,
 * so a thread may read them without a lock.
 *
 * Invariants:
 *   LOOK-1  an address inside an extent leads to it; any other leads to nothing, or to an extent
 *           that it lies outside of.
 *
 * Locking: insert and remove are covered by TABLE, and by the lock of the extent's arena; making
 * leaves and tables for an extent that was inserted, by TABLE and the device memory lock; slots and starts by the
 * lock of the arena whose memory they describe; finding needs no lock. An extent that was found may
 * be about to end if the address is not that of a live block: look again under the arena's lock.
 */
#ifndef XSEG_CORE_PAGE_MAP_H
#define XSEG_CORE_PAGE_MAP_H

#include <stdatomic.h>

#include "src/base/align.h"
#include "src/base/mutex.h"
#include "src/core/block/slot.h"

/* Device addresses fit in 49 bits on every GPU so far; other addresses lead to no extent. */
#define XSEG_PAGE_MAP_ADDRESS_BITS 49
#define XSEG_PAGE_MAP_ROOTS        ((uint64_t)1 << (XSEG_PAGE_MAP_ADDRESS_BITS - 30))
#define XSEG_PAGE_MAP_UNITS        512u /* of 2 MiB in a GiB */
/* The longest extent: larger than the memory of any device. */
#define XSEG_PAGE_MAP_EXTENT_MAX ((uint64_t)1 << (XSEG_PAGE_MAP_ADDRESS_BITS - 1))

/* The places of 2 MiB; side by side, since a lookup reads both. */
struct xseg_page_map_unit {
    _Atomic(struct xseg_extent *) head; /* covers the unit's first byte */
    _Atomic(struct xseg_extent *) tail; /* starts behind that byte */
};

/* A leaf is not freed before the table is, because other threads may be reading it.  An empty leaf may be reused
 * for another GiB, so a reader compares addresses. */
struct xseg_page_map_leaf {
    xseg_slot slot[XSEG_SLOT_SLOTS];
    struct xseg_page_map_unit unit[XSEG_PAGE_MAP_UNITS];
    _Atomic(xseg_start *) starts[XSEG_PAGE_MAP_UNITS]; /* [XSEG_STARTS], or NULL */
    struct xseg_page_map_leaf *spare;                  /* the next one; guarded by TABLE */
};

/* An entry is an extent that owns the GiB, or a leaf with the lowest bit set. */
struct xseg_page_map {
    atomic_uintptr_t *root; /* [XSEG_PAGE_MAP_ROOTS] */
    uint64_t first, end;    /* the range of entries that were ever set; guarded by TABLE */
    struct xseg_page_map_leaf *spare; /* leaves for reuse; guarded by TABLE */
    struct xseg_bump records;         /* struct xseg_block; guarded by TABLE */
    struct xseg_bump starts;          /* tables of starts; guarded by TABLE */
    struct xseg_mutex lock;           /* TABLE */
};

_Static_assert((XSEG_PAGE_MAP_ROOTS & (XSEG_PAGE_MAP_ROOTS - 1)) == 0 &&
                   XSEG_PAGE_MAP_ROOTS > 0x1F8,
               "entries change places within the table");
_Static_assert(XSEG_PAGE_MAP_UNITS << 21 == XSEG_GIB, "units tile a GiB");
_Static_assert(_Alignof(struct xseg_page_map_leaf) > 1, "the lowest bit of an entry is free");

/* The entry of a GiB.  Entries are not in order: those of segments a multiple of 512 GiB apart would share a set of
 * the first cache, which each free then missed with eight streams in turn. */
static inline atomic_uintptr_t *xseg_page_map_entry(const struct xseg_page_map *page_map,
                                                    uint64_t gib)
{
    XSEG_ASSERT(gib < XSEG_PAGE_MAP_ROOTS);
    return &page_map->root[gib ^ (gib >> 6 & 0x1F8)];
}

/* Addresses that are reserved for records, and for tables of starts, and the least that will do. */
#define XSEG_PAGE_MAP_RESERVED     ((size_t)16 << 30)
#define XSEG_PAGE_MAP_RESERVED_MIN ((size_t)64 << 20)

/* Returns false without host memory. */
bool xseg_page_map_init(struct xseg_page_map *page_map);
void xseg_page_map_fini(struct xseg_page_map *page_map);

/* Let the addresses of an extent lead to it.  Returns false without host memory, or for addresses out of reach; then
 * nothing has changed. */
bool xseg_page_map_insert(struct xseg_page_map *page_map, struct xseg_extent *extent);
/* Let the addresses of an extent, which was inserted, lead to nothing. */
void xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent);

/* A batch of block records, for the slab of an arena; NULL on host allocation failure. Takes TABLE.
 * */
struct xseg_slab_batch *xseg_page_map_make_records(struct xseg_page_map *page_map, uint32_t count);

/* Whether an extent has any of the addresses [first, last], which lie in one 2 MiB unit. */
bool xseg_page_map_covers(const struct xseg_page_map *page_map, uint64_t first, uint64_t last);

/* Have leaves for the offsets [begin, end) of an extent, which was inserted, and tables of starts
 * if its blocks are small. Returns false on host allocation failure. */
bool xseg_page_map_cover(struct xseg_page_map *page_map, struct xseg_extent *extent, uint64_t begin,
                         uint64_t end);

/* The last block of an extent to which a slot up to that of an address leads, or a start; NULL if
 * there is none. The lock of the extent's arena is held. */
struct xseg_block *xseg_page_map_last_start(const struct xseg_page_map *page_map,
                                            const struct xseg_extent *extent, uint64_t address);
struct xseg_block *xseg_page_map_last_slot(const struct xseg_page_map *page_map,
                                           const struct xseg_extent *extent, uint64_t address);

/* An extent's share of the host bytes of its leaves, and those of its tables. */
uint64_t xseg_page_map_host_bytes(const struct xseg_page_map *page_map,
                                  const struct xseg_extent *extent);

/* The entry of an address: an extent; or a leaf, and 1; or 0. */
static inline uintptr_t xseg_page_map_at(const struct xseg_page_map *page_map, uint64_t address)
{
    if (address >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return 0;
    return atomic_load_explicit(xseg_page_map_entry(page_map, address >> 30), memory_order_acquire);
}

/* The leaf that an entry leads to; NULL if there is none. */
static inline struct xseg_page_map_leaf *xseg_page_map_leaf_of(uintptr_t entry)
{
    return (entry & 1) == 0 ? NULL : (struct xseg_page_map_leaf *)(entry - 1);
}

/* The slot of an address in a leaf. */
static inline xseg_slot *xseg_page_map_slot_in(struct xseg_page_map_leaf *leaf, uint64_t address)
{
    XSEG_ASSERT(leaf != NULL);
    return &leaf->slot[(address >> XSEG_SLOT_SHIFT) % XSEG_SLOT_SLOTS];
}

/* The slot of an address; NULL where no block can begin. */
static inline xseg_slot *xseg_page_map_slot(const struct xseg_page_map *page_map, uint64_t address)
{
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(xseg_page_map_at(page_map, address));

    return leaf == NULL ? NULL : xseg_page_map_slot_in(leaf, address);
}

/* The start of an address in a leaf; NULL where there is no table. */
static inline xseg_start *xseg_page_map_start_in(struct xseg_page_map_leaf *leaf, uint64_t address)
{
    xseg_start *table = atomic_load_explicit(
        &leaf->starts[(address >> XSEG_STARTS_UNIT_SHIFT) % XSEG_PAGE_MAP_UNITS],
        memory_order_acquire);

    return __builtin_expect(table == NULL, 0) ? NULL
                                              : &table[(address >> XSEG_START_SHIFT) % XSEG_STARTS];
}

/* The start of an address; NULL where no small block can begin. */
static inline xseg_start *xseg_page_map_start(const struct xseg_page_map *page_map,
                                              uint64_t address)
{
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(xseg_page_map_at(page_map, address));

    return __builtin_expect(leaf == NULL, 0) ? NULL : xseg_page_map_start_in(leaf, address);
}

/* The block that a start leads to, or NULL.
 * start: NULL if there is none */
static inline struct xseg_block *xseg_page_map_block(const struct xseg_page_map *page_map,
                                                     const xseg_start *start)
{
    const uint32_t handle = start == NULL ? 0 : xseg_start_read(start);

    return handle == 0 ? NULL : xseg_block_at(page_map->records.base, handle);
}

/* The extent that an address may lie in; NULL if the address lies in none.  The caller checks the bounds. */
static inline struct xseg_extent *xseg_page_map_find(const struct xseg_page_map *page_map,
                                                     uint64_t address)
{
    const uintptr_t entry = xseg_page_map_at(page_map, address);
    const struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(entry);

    if (leaf == NULL)
        return (struct xseg_extent *)entry; /* NOLINT(performance-no-int-to-ptr) */
    const struct xseg_page_map_unit *unit = &leaf->unit[(address >> 21) % XSEG_PAGE_MAP_UNITS];
    struct xseg_extent *tail = atomic_load_explicit(&unit->tail, memory_order_acquire);
    if (tail != NULL && address >= atomic_load_explicit(&tail->base, memory_order_relaxed))
        return tail;
    return atomic_load_explicit(&unit->head, memory_order_acquire);
}

#endif
