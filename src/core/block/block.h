/* SPDX-License-Identifier: MIT */
/*
 * Blocks: the unit of allocation, and the main data structure of this module.
 *
 * A block is a range of addresses inside one segment, and the record that describes it. The blocks
 * of a segment form a doubly linked chain by address, without gaps. The chain belongs to the
 * extent, which is the arena's view of a segment; the arena (arena.h) owns the extents of one pool
 * on one stream.
 *
 *     extent->first
 *       |
 *      [ allocated ][ cached ][ unmapped .... ][ allocated ][ pending ][ cached ][ unmapped ... ]
 *          <-- prev / next: the neighbors by address -->
 *
 * States are those of the public enum xseg_block_state:
 *
 *   allocated   in use by the application.
 *   pending     freed, but events of other streams that used the block have not completed
 *               (pending.h).
 *   cached      free and mapped; an allocation may use the block. Only cached blocks coalesce with
 *               cached neighbors, and unmapped blocks with unmapped ones.
 *   unmapped    addresses of an expandable segment without physical pages.
 *   claimed     reserved by an operation that works without the lock of the arena: a growth, a
 *               trim, or a free that records events. A claimed block is in no index and coalesces
 *               with no other block, so the operation may call the driver. Then it locks the arena
 *               and settles the block, which becomes cached, unmapped or pending.
 *
 * Three indexes lead to blocks:
 *
 *   - The page map (page_map.h) leads from the first address of an allocated or pending block to
 *     its record, lock-free.
 *   - The free index (free_index.h) contains the cached blocks in the order of best fit. Two kinds
 *     of cached blocks are not in it, the last remainder and unindexed blocks (best_fit.h).
 *   - The tree of unmapped blocks (free_index.h) is ordered by position, because growth maps
 *     memory at the lowest position.
 *
 * A record is one cache line; with records of 96 bytes, traces of 10^4 allocated large blocks were
 * 3 to 9 % slower. To fit, links in trees are 32-bit handles: the records of all arenas are in one
 * reserved range of addresses (page_map.h), and a handle is the distance from its beginning.
 * Members that are used only in some states share storage. On the fast path a split gives the new
 * record to the head of a cached block, and coalescing keeps the record of a cached neighbor
 * (hit.c), so that the free index changes less often.  Therefore a record may change its base.
 *
 * Invariants; xseg_extent_audit() checks them:
 *   BLK-1  The next block begins where this one ends, and its `prev` is this block.
 *   BLK-2  No two cached blocks are adjacent, and no two unmapped blocks are.
 *   BLK-3  Sizes are multiples of 512 bytes, and not 0.
 *   BLK-4  Allocated, pending and cached blocks are mapped, unmapped ones are not; a claimed block
 *          may be either.
 *   BLK-6  A block with flags is allocated, pending or claimed.
 *
 * Locking: the lock of the arena that owns the extent (rank ARENA). Only `extent` is also read
 * without the lock.
 */
#ifndef XSEG_CORE_BLOCK_H
#define XSEG_CORE_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/align.h"
#include "src/base/intern.h"
#include "src/base/list.h"
#include "src/base/slab.h"
#include "vmm/segment.h"
#include "xseg/allocator.h"

struct xseg_extent;
struct xseg_stream_use;
struct xseg_known_stream;

#define XSEG_BLOCK_OVERSIZE 1u
#define XSEG_BLOCK_FALLBACK 2u

struct xseg_block {
    uint64_t base; /* in a free record, the link of the slab */
    uint64_t bytes;
    /* The requested size, by PyTorch's rules: a cached or unmapped block keeps it, the remainder of
     * a split inherits it, and coalescing keeps that of the block that changes its state. If a part
     * is unmapped, the remaining block has 0. */
    uint64_t requested;
    /* Also read without the lock, by threads that found the record in the page map. So a free
     * record keeps its last extent. */
    _Atomic(struct xseg_extent *) extent;
    struct xseg_block *prev, *next;
    union {
        struct {
            uint32_t left, right; /* cached, unmapped: handles of children (free_index.h) */
        };
        uint32_t link[2]; /* `left`, `right` */
        /* allocated, pending, claimed: uses by other streams */
        struct xseg_stream_use *uses;
        struct xseg_block *chain; /* claimed, without uses: the next block of the claim */
    };
    uint8_t state; /* enum xseg_block_state */
    bool mapped;
    uint8_t flags; /* allocated, pending, claimed: XSEG_BLOCK_* (arena.h) */
    uint8_t spare; /* 0; written together with the three members before it as one word */
    union {
        uint32_t waits; /* pending: number of events that have not completed */
        /* cached: number of searches of the pool before the block was cached */
        uint32_t gc_count_base;
    };
};

_Static_assert(sizeof(struct xseg_block) == 64, "a record is one cache line");

/* A use of a block by a stream other than the block's stream (pending.h). */
struct xseg_stream_use {
    bool outside, captured;       /* recorded outside a capture of the stream; during one */
    bool is_shared;               /* the event is the last one of a retired stream */
    struct xseg_stream_use *next; /* of the same block */
    struct xseg_known_stream *stream;
    uint64_t stream_id; /* ID of `stream`; if the entry has another ID, the use has ended */
    struct xseg_block *block;
    xseg_event event;      /* recorded when the block is freed */
    struct xseg_list link; /* in the stream's queue, after the free */
};

static inline uint64_t xseg_block_end(const struct xseg_block *block)
{
    return block->base + block->bytes;
}

/* Whether the segment has other blocks. The OR needs one unpredictable branch instead of two. */
static inline bool xseg_block_is_split(const struct xseg_block *block)
{
    return ((uintptr_t)block->prev | (uintptr_t)block->next) != 0;
}

/* Whether an unmapped (or claimed and not mapped) block follows. */
static inline bool xseg_block_can_grow(const struct xseg_block *block)
{
    return block->next != NULL && !block->next->mapped;
}

/* block->extent with relaxed order, for the fast path. */
static inline struct xseg_extent *xseg_block_extent(const struct xseg_block *block)
{
    return atomic_load_explicit(&block->extent, memory_order_relaxed);
}

/* --- Handles.  0: no block. --- */

static inline uint32_t xseg_block_handle(const char *records, const struct xseg_block *block)
{
    XSEG_ASSERT((const char *)block > records);
    return (uint32_t)((size_t)((const char *)block - records) / XSEG_BUMP_UNIT);
}

/* The block of a handle that is not 0. */
static inline struct xseg_block *xseg_block_at(char *records, uint32_t handle)
{
    XSEG_ASSERT(handle != 0);
    return (struct xseg_block *)(void *)(records + (size_t)handle * XSEG_BUMP_UNIT);
}

/* --- Extents. --- */

/*
 * An extent: the arena's view of a segment, with the chain of blocks that covers its addresses
 * without gaps.
 *
 * The segment (vmm/segment.h) describes the memory: the reserved range, or the allocation of a
 * classic segment, and the state of each granule.  The extent adds the state of the allocator: the
 * arena that owns the memory, the first block of the chain, and the position of the segment among
 * all segments of the device.
 *
 * Lookup.  The page map (page_map.h) leads from an address to the extent, and from the first
 * address of an allocated or pending block to its record: through a start per 512 bytes in an
 * extent of small blocks, through a slot per MiB in an extent of large blocks (page_map.h).
 * xseg_extent_block_over() finds the block that covers any other address.  It begins at the nearest
 * start or slot below the address and follows the chain.
 *
 * Enumeration.  A block view is a copy of one block's description, so a reader does not depend on
 * how an arena stores its blocks.  An elastic extent has a single claimed block.  Its
 * views are the runs of granules with the same use.
 *
 *     XSEG_EXTENT_FOR_EACH(view, extent)
 *         bytes += view.state == XSEG_BLOCK_ALLOCATED ? view.bytes : 0;
 *
 * Explain, snapshots and the out-of-memory report enumerate the blocks of whole devices
 * (xseg_device_walk(), heap_copy.h).
 *
 * Invariants, which xseg_extent_audit() checks in addition to those of the chain:
 *   START-1  the start or slot of an allocated or pending block leads to its record.
 *   START-2  every start or slot leads to no block, or to an allocated, pending or claimed block
 *            that begins there.
 *
 * Locking: the arena lock of the extent's arena guards the blocks and is held from the first view
 * to the last.  The device memory lock guards the segment.
 */

struct xseg_arena;
struct xseg_elastic;
struct xseg_origins;

/* Members that the fast path reads come first: a process has many classic segments, and each cache
 * line of one is a miss. */
struct xseg_extent {
    /* A lookup may read a record that is being reused, so `arena` and `base` are atomic. */
    _Alignas(XSEG_CACHE_LINE) _Atomic(struct xseg_arena *) arena;
    atomic_uint_fast64_t base; /* of the segment, once the extent is published */
    struct xseg_block *first;
    bool has_starts;   /* starts lead to its blocks (page_map.h), as in its arena */
    bool oversize;     /* counted as an oversize segment */
    uint64_t position; /* of the segment's first byte; see xseg_extent_position() */
    struct xseg_segment segment;
    struct xseg_list link; /* in its arena */
    uint32_t
        registered; /* registrations that retain its addresses; guarded by the device memory lock */
    struct xseg_elastic *elastic;           /* of an elastic extent; else NULL */
    _Atomic(struct xseg_origins *) origins; /* NULL before the first one, see recorder.h */
};

/* The description of one block, or of one run of granules of an elastic extent. */
struct xseg_block_view {
    const struct xseg_extent *extent; /* NULL: past the last block */
    uint64_t base, bytes;
    uint64_t requested; /* requested size; 0 for an unmapped range */
    enum xseg_block_state state;
    bool has_uses;    /* the block is allocated and has uses of other streams */
    bool is_fallback; /* the block has XSEG_BLOCK_FALLBACK (arena.h) */
    const struct xseg_block *record;
};

/*
 * The position of an address of a segment: the rank of the address among all addresses of the
 * device, in units of 512 bytes, when segments are ordered by registration.  Of blocks of equal
 * size, the block at the lowest position serves a request, which is PyTorch's rule: processes that
 * make the same requests choose the same blocks, independent of the addresses that the driver
 * returns.  Growth also maps memory at the lowest position.
 */
static inline uint64_t xseg_extent_position(const struct xseg_extent *extent, uint64_t address)
{
    /* `base` is in the cache line of `position`, which segment.base is not. */
    const uint64_t base = atomic_load_explicit(&extent->base, memory_order_relaxed);

    XSEG_ASSERT(base == extent->segment.base && address - base <= extent->segment.bytes);
    return extent->position + ((address - base) >> 9);
}

static inline uint64_t xseg_block_position(const struct xseg_block *block)
{
    return xseg_extent_position(xseg_block_extent(block), block->base);
}

/* Whether a block covers its entire segment. */
static inline bool xseg_block_is_whole(const struct xseg_block *block)
{
    const struct xseg_extent *extent = xseg_block_extent(block);

    XSEG_ASSERT(extent != NULL && block->bytes <= extent->segment.bytes);
    return block->bytes == extent->segment.bytes;
}

static inline bool xseg_extent_is_expandable(const struct xseg_extent *extent)
{
    return extent->segment.page_bytes != 0;
}

/* Whether an address is in an extent, whose arena's lock is held. */
static inline bool xseg_extent_contains(const struct xseg_extent *extent, uint64_t address)
{
    return address - extent->segment.base < extent->segment.bytes;
}

/* Initialize an extent before it is published.  Returns false if its blocks are small and the
 * segment exceeds XSEG_STARTS_MAX. */
bool xseg_extent_init(struct xseg_extent *extent);

/* Free the tables of an extent whose blocks are no longer used. */
void xseg_extent_fini(struct xseg_extent *extent);

/* Get the host bytes of the tables of an extent. */
uint64_t xseg_extent_host_bytes(const struct xseg_extent *extent);

/* The allocated or pending block whose first byte is at `address`, which is in the extent; or
 * NULL. */
struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent, uint64_t address);

/* The block that covers `address`, which is in the extent. */
struct xseg_block *xseg_extent_block_over(const struct xseg_extent *extent, uint64_t address);

bool xseg_extent_audit(const struct xseg_extent *extent, struct xseg_violation *violation);

/* --- Enumeration. --- */

/* The first block of an extent, and the block after another one by address. */
struct xseg_block_view xseg_extent_first_view(const struct xseg_extent *extent);
struct xseg_block_view xseg_extent_next_view(const struct xseg_block_view *view);

/* The block that covers an address, which is in the extent. */
struct xseg_block_view xseg_extent_view_at(const struct xseg_extent *extent, uint64_t address);

#define XSEG_EXTENT_FOR_EACH(view, extent_)                                                    \
    for (struct xseg_block_view view = xseg_extent_first_view(extent_); (view).extent != NULL; \
         (view) = xseg_extent_next_view(&(view)))

/* Called for each block of an enumeration. */
typedef void xseg_block_visitor(void *self, const struct xseg_block_view *view);

/* Visit every block of an arena. */
void xseg_arena_for_each_block(const struct xseg_arena *arena, xseg_block_visitor *visit,
                               void *self);

static inline uint64_t xseg_block_view_end(const struct xseg_block_view *view)
{
    XSEG_ASSERT(view->extent != NULL);
    return view->base + view->bytes;
}

/* --- Elastic extents. --- */

/*
 * Elastic extents: virtual address ranges of users that commit and decommit memory by the granule
 * (range.h).
 *
 *     granule      0       1       2       3         4        5        6
 *     use     [  alloc][  alloc][  empty][unmapping][unmapping][  empty][  alloc] ...
 *
 * Allocated granules are committed.  Unmapping granules were decommitted, but a stream may still
 * use their memory.
 *
 * An elastic extent has one block for all of its addresses, which stays claimed: the arena never
 * splits the block, and no trim reads it.  The `use` array has the use of each granule.  Views of
 * the extent present runs of granules as blocks: allocated, pending, claimed, or unmapped.
 *
 * Each page of the segment is one granule long.
 *
 * Charged bytes are those of the physical pages that count against the range.  The part of a quota
 * that is neither charged nor being committed is unused; the device does not use that memory for
 * other allocations.
 *
 * Invariants, while no granule is claimed; xseg_arena_audit() checks them:
 *   ELASTIC-1  a granule is allocated or unmapping exactly if it is mapped or evicted.
 *   ELASTIC-2  a granule has a batch exactly if it is unmapping.
 *   ELASTIC-3  `allocated` and `pending_unmaps` are the numbers of granules in those uses;
 *              `charged` is their bytes minus `alias_bytes` of the segment.
 *
 * Locking: the device memory lock, and the arena lock of the extent's arena as well for changes of
 * `use`; either suffices for reads.
 */

struct xseg_range_state;

enum xseg_elastic_use {
    XSEG_ELASTIC_EMPTY,     /* not committed */
    XSEG_ELASTIC_ALLOCATED, /* committed */
    XSEG_ELASTIC_UNMAPPING, /* decommitted; unmapped once its stream has completed */
    XSEG_ELASTIC_CLAIMED    /* in use by a call that releases the locks during its work */
};

struct xseg_elastic {
    struct xseg_range_state *range;
    uint8_t *use;                       /* [granules] */
    uint32_t *batch;                    /* [granules]: ID of the batch of pending unmaps; 0: none */
    uint32_t *holds;                    /* [granules]: number of holds by captures */
    uint32_t allocated, pending_unmaps; /* granules in these uses */
    uint64_t charged;                   /* bytes of physical pages that count against the range */
    uint64_t committing;                /* bytes that a commit allocates */
    uint64_t quota, unused_quota;       /* see xseg_elastic_set_bytes() */
    /* Batches whose granules are all held, pinned or exported, and the link of this extent in the
     * list of extents with such batches (pending_unmap.h). */
    struct xseg_list retained, retained_link;
    uint64_t retained_at; /* count of released references when the first batch was queued here */
};

/*
 * Set the charged bytes and the bytes that a commit allocates.  The remainder of the quota is
 * unused, and not available to other allocations of the device.
 *
 * device_unused_quota: sum of the unused quotas on the device, which is updated
 */
static inline void xseg_elastic_set_bytes(struct xseg_elastic *elastic, uint64_t charged,
                                          uint64_t committing, uint64_t *device_unused_quota)
{
    const uint64_t used = charged + committing;
    const uint64_t unused_quota = elastic->quota - xseg_min(elastic->quota, used);

    elastic->charged = charged;
    elastic->committing = committing;
    *device_unused_quota += unused_quota - elastic->unused_quota;
    elastic->unused_quota = unused_quota;
}

/* Set the use of granules of an elastic extent; their counts are not updated.  Locks the arena. */
void xseg_elastic_set_use(struct xseg_extent *extent, uint32_t first, uint32_t count,
                          enum xseg_elastic_use use);

/* Host bytes of the tables per granule. */
#define XSEG_ELASTIC_BYTES (2 * sizeof(uint32_t) + sizeof(uint8_t))

#endif
