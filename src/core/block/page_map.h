/* SPDX-License-Identifier: MIT */
/*
 * The page map: a radix tree from device addresses to extents, and from the first address of an
 * allocated block to its record. Lookups are O(1) and lock-free.
 *
 * The root has an entry for each GiB of the address space. An expandable extent owns whole GiB, so
 * the entry of a GiB in which nothing was mapped yet names the extent itself. Any other entry names
 * a leaf. For each 2 MiB, a leaf has
 *
 *   - two extents: the one that covers the first byte, and the one that begins after that byte.
 *     Classic segments share a GiB; they have at least 2 MiB, so two are enough;
 *   - two *slots* for large blocks, one for each MiB: a pointer to the block that begins there.
 *     Large blocks have more than 1 MiB, and a smaller block of a large arena is alone in its
 *     segment, so no two blocks begin in one MiB;
 *   - a table of *starts*, if the extent is one of small blocks: the handle of the block that
 *     begins there, for each 512 bytes. A table takes 0.8 % of the memory that it describes.
 *
 * So a free reads the entry, the leaf, the slot or start, and the record.
 *
 * The page map also owns the memory of all block records: one reserved range of addresses, so that
 * 32-bit handles name records. Records, leaves and tables are not freed before the allocator
 * closes, so lock-free readers never read freed memory; but each of them may be reused for other
 * addresses. Therefore a thread that found a block locks the arena that the block's extent names,
 * and then checks that the slot or start still leads to the record, and the record to the arena
 * (xseg_slot_is_current(), xseg_start_is_current()). From then on neither can change. A thread that
 * found an extent repeats the lookup under the lock of the arena (xseg_arena_lock_at()).
 *
 * Invariants; xseg_extent_audit() checks START-1 and START-2:
 *   LOOK-1   An address inside an extent leads to the extent; any other address leads to no extent,
 *            or to one that does not contain the address.
 *   START-1  The slot or start of an allocated or pending block leads to the block.
 *   START-2  A slot or start that leads to a block leads to one that begins there, and is
 *            allocated, pending or claimed.
 *
 * Locking: insertion and removal of extents need TABLE and the lock of the extent's arena; the
 * creation of leaves and tables for an extent, TABLE and the device memory lock; changes
 * of slots and starts, the lock of the arena that owns the memory. Lookups need no lock.
 */
#ifndef XSEG_CORE_PAGE_MAP_H
#define XSEG_CORE_PAGE_MAP_H

#include <stdatomic.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/mutex.h"
#include "src/core/block/block.h"

/* --- Slots and starts. --- */

#define XSEG_SLOT_SLOTS 1024u /* in a GiB */
#define XSEG_SLOT_SHIFT 20u

#define XSEG_STARTS_UNIT_SHIFT 21u /* of the addresses that a table of starts describes */
#define XSEG_START_SHIFT       9u
#define XSEG_STARTS            (1u << (XSEG_STARTS_UNIT_SHIFT - XSEG_START_SHIFT)) /* in a table */

/* The maximum size of an expandable extent of small blocks. */
#define XSEG_STARTS_MAX ((uint64_t)512 << 30)

/* A pointer to a block, or 0. */
typedef atomic_uintptr_t xseg_slot;

/* The handle of a block, or 0. */
typedef atomic_uint_least32_t xseg_start;

_Static_assert((uint64_t)XSEG_SLOT_SLOTS << XSEG_SLOT_SHIFT == XSEG_GIB, "slots tile a GiB");
_Static_assert(sizeof(xseg_start) == 4,
               "a table of starts takes 0.8 % of the memory that it describes");

static inline void xseg_start_set(xseg_start *start, uint32_t handle)
{
    XSEG_ASSERT(start != NULL &&
                (handle == 0 || atomic_load_explicit(start, memory_order_acquire) == 0));
    atomic_store_explicit(start, handle, memory_order_release);
}

/* The arena of a block that was found without a lock. */
static inline struct xseg_arena *xseg_block_load_arena(const struct xseg_block *block)
{
    return atomic_load_explicit(&xseg_block_extent(block)->arena, memory_order_relaxed);
}

/* Whether a start still leads to a block, and the block to the arena, which the caller has locked
 * since the lookup. */
static inline bool xseg_start_is_current(const xseg_start *start, uint32_t handle,
                                         const struct xseg_block *block,
                                         const struct xseg_arena *arena)
{
    return __builtin_expect(atomic_load_explicit(start, memory_order_acquire) == handle &&
                                xseg_block_load_arena(block) == arena,
                            1);
}

static inline struct xseg_block *xseg_slot_block(uintptr_t value)
{
    XSEG_ASSERT(value != 0);
    return (struct xseg_block *)value; /* NOLINT(performance-no-int-to-ptr) */
}

/* The arena whose lock guards a slot that is not empty.
 * value: of the slot */
static inline struct xseg_arena *xseg_slot_arena(uintptr_t value)
{
    return xseg_block_load_arena(xseg_slot_block(value));
}

/* Whether a slot still leads to a block, and the block to the arena, which the caller has locked
 * since the lookup. */
static inline bool xseg_slot_is_current(const xseg_slot *slot, uintptr_t value,
                                        const struct xseg_arena *arena)
{
    return __builtin_expect(atomic_load_explicit(slot, memory_order_acquire) == value &&
                                xseg_slot_arena(value) == arena,
                            1);
}

static inline void xseg_slot_set(xseg_slot *slot, uintptr_t value)
{
    XSEG_ASSERT(slot != NULL);
    atomic_store_explicit(slot, value, memory_order_release);
}

/* Set a slot, which must be empty, to a block. */
static inline void xseg_slot_add(xseg_slot *slot, struct xseg_block *block)
{
    XSEG_ASSERT(slot != NULL && atomic_load_explicit(slot, memory_order_acquire) == 0);
    XSEG_ASSERT(block != NULL);
    xseg_slot_set(slot, (uintptr_t)block);
}

/* Clear a slot. */
static inline void xseg_slot_remove(xseg_slot *slot)
{
    XSEG_ASSERT(slot != NULL);
    atomic_store_explicit(slot, 0, memory_order_relaxed);
}

/* The block of a slot if the block belongs to an arena, whose lock the caller holds; else NULL.
 * slot: NULL if there is no slot */
static inline struct xseg_block *xseg_slot_block_of(const xseg_slot *slot,
                                                    const struct xseg_arena *arena)
{
    const uintptr_t value = slot == NULL ? 0 : atomic_load_explicit(slot, memory_order_acquire);

    return value == 0 || xseg_slot_arena(value) != arena ? NULL : xseg_slot_block(value);
}

/* --- The page map. --- */

/* Device addresses fit in 49 bits on every GPU so far; other addresses lead to no extent. */
#define XSEG_PAGE_MAP_ADDRESS_BITS 49
#define XSEG_PAGE_MAP_ROOTS        ((uint64_t)1 << (XSEG_PAGE_MAP_ADDRESS_BITS - 30))
#define XSEG_PAGE_MAP_UNITS        512u /* of 2 MiB in a GiB */
/* The maximum size of an extent: larger than the memory of any device. */
#define XSEG_PAGE_MAP_EXTENT_MAX ((uint64_t)1 << (XSEG_PAGE_MAP_ADDRESS_BITS - 1))

/* The extents of 2 MiB; adjacent, because a lookup reads both. */
struct xseg_page_map_unit {
    _Atomic(struct xseg_extent *) head; /* covers the unit's first byte */
    _Atomic(struct xseg_extent *) tail; /* begins after that byte */
};

/* A leaf is freed with the page map, because other threads may read the leaf. An empty leaf may be
 * reused for another GiB, so a reader compares addresses. */
struct xseg_page_map_leaf {
    xseg_slot slot[XSEG_SLOT_SLOTS];
    struct xseg_page_map_unit unit[XSEG_PAGE_MAP_UNITS];
    _Atomic(xseg_start *) starts[XSEG_PAGE_MAP_UNITS]; /* [XSEG_STARTS], or NULL */
    struct xseg_page_map_leaf *next_free;              /* guarded by TABLE */
};

/* An entry is an extent that owns the GiB, or a leaf with the lowest bit set. */
struct xseg_page_map {
    atomic_uintptr_t *root; /* [XSEG_PAGE_MAP_ROOTS] */
    uint64_t first, end;    /* range of the entries that were ever set; guarded by TABLE */
    struct xseg_page_map_leaf *free_leaves; /* guarded by TABLE */
    struct xseg_bump records;               /* struct xseg_block; guarded by TABLE */
    struct xseg_bump starts;                /* tables of starts; guarded by TABLE */
    struct xseg_mutex lock;                 /* TABLE */
    atomic_uint_fast64_t addresses;         /* bytes of virtual address ranges of all devices */
};

_Static_assert((XSEG_PAGE_MAP_ROOTS & (XSEG_PAGE_MAP_ROOTS - 1)) == 0 &&
                   XSEG_PAGE_MAP_ROOTS > 0x1F8,
               "the permutation of entries stays within the table");
_Static_assert(XSEG_PAGE_MAP_UNITS << 21 == XSEG_GIB, "units tile a GiB");
_Static_assert(_Alignof(struct xseg_page_map_leaf) > 1, "the lowest bit of an entry is free");

/* The entry of a GiB. Entries are permuted: in order, those of segments at a distance of a multiple
 * of 512 GiB would be in one set of the L1 cache, and each free of eight streams in turn would miss
 * the cache. */
static inline atomic_uintptr_t *xseg_page_map_entry(const struct xseg_page_map *page_map,
                                                    uint64_t gib)
{
    XSEG_ASSERT(gib < XSEG_PAGE_MAP_ROOTS);
    return &page_map->root[gib ^ (gib >> 6 & 0x1F8)];
}

/* Size of the address ranges that are reserved for records and for tables of starts, and the
 * minimum. */
#define XSEG_PAGE_MAP_RESERVED     ((size_t)16 << 30)
#define XSEG_PAGE_MAP_RESERVED_MIN ((size_t)64 << 20)

/* Returns false on host allocation failure. */
bool xseg_page_map_init(struct xseg_page_map *page_map);
void xseg_page_map_fini(struct xseg_page_map *page_map);

/* Map the addresses of an extent to the extent. Returns false, without a change, on host allocation
 * failure or if the addresses have too many bits. */
bool xseg_page_map_insert(struct xseg_page_map *page_map, struct xseg_extent *extent);
/* Remove an extent, which was inserted. */
void xseg_page_map_remove(struct xseg_page_map *page_map, struct xseg_extent *extent);

/* Allocate a batch of block records for the slab of an arena; NULL on host allocation failure.
 * Locks TABLE. */
struct xseg_slab_batch *xseg_page_map_allocate_records(struct xseg_page_map *page_map,
                                                       uint32_t count);

/* Whether any extent overlaps the addresses [first, last], which must be in one 2 MiB unit. */
bool xseg_page_map_overlaps(const struct xseg_page_map *page_map, uint64_t first, uint64_t last);

/* Create the missing leaves for the offsets [begin, end) of an extent, and tables of starts if its
 * blocks are small. The extent need not be inserted yet if it is classic. Locks TABLE. Returns
 * false on host allocation failure. */
bool xseg_page_map_populate(struct xseg_page_map *page_map, struct xseg_extent *extent,
                            uint64_t begin, uint64_t end);

/* The last block of an extent that begins at or before an address, by starts or by slots; NULL if
 * there is none. The caller holds the lock of the extent's arena. */
struct xseg_block *xseg_page_map_last_start(const struct xseg_page_map *page_map,
                                            const struct xseg_extent *extent, uint64_t address);
struct xseg_block *xseg_page_map_last_slot(const struct xseg_page_map *page_map,
                                           const struct xseg_extent *extent, uint64_t address);

/* Host bytes of an extent's tables, and its share of the host bytes of its leaves. */
uint64_t xseg_page_map_host_bytes(const struct xseg_page_map *page_map,
                                  const struct xseg_extent *extent);

/* The leaf of an entry, or NULL. */
static inline struct xseg_page_map_leaf *xseg_page_map_leaf_of(uintptr_t entry)
{
    return (entry & 1) == 0 ? NULL : (struct xseg_page_map_leaf *)(entry - 1);
}

/* The leaf of an address, or NULL. */
static inline struct xseg_page_map_leaf *xseg_page_map_leaf(const struct xseg_page_map *page_map,
                                                            uint64_t address)
{
    if (address >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return NULL;
    const uintptr_t entry =
        atomic_load_explicit(xseg_page_map_entry(page_map, address >> 30), memory_order_acquire);
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
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf(page_map, address);

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
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf(page_map, address);

    return __builtin_expect(leaf == NULL, 0) ? NULL : xseg_page_map_start_in(leaf, address);
}

/* The block of a start, or NULL.
 * start: NULL if there is no table */
static inline struct xseg_block *xseg_page_map_block(const struct xseg_page_map *page_map,
                                                     const xseg_start *start)
{
    const uint32_t handle = start == NULL ? 0 : atomic_load_explicit(start, memory_order_acquire);

    return handle == 0 ? NULL : xseg_block_at(page_map->records.base, handle);
}

/* The extent that may contain an address, or NULL. The caller checks the bounds. */
static inline struct xseg_extent *xseg_page_map_find(const struct xseg_page_map *page_map,
                                                     uint64_t address)
{
    if (address >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return NULL;
    const uintptr_t entry =
        atomic_load_explicit(xseg_page_map_entry(page_map, address >> 30), memory_order_acquire);
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
