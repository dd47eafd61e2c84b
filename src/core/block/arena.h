/* SPDX-License-Identifier: MIT */
/*
 * An arena: the extents and the free index of one pool on one stream in one size class (small or
 * large), with their lock and their counts.
 *
 * A hit locks one arena and nothing else, so threads on different streams share no lock.  The lock
 * is biased towards the thread that uses it (biased_lock.h).  An arena owns the data structures of
 * its blocks: the slabs of block records and stream uses, the free index of cached blocks and the
 * tree of unmapped blocks (free_index.h), the last remainder (best_fit.h), and the counts of
 * statistics (counts.h).
 *
 * Claims.  Growth and trim call the driver, which is not allowed under the lock.  They claim
 * blocks under the lock (state XSEG_BLOCK_CLAIMED), release the lock, call the driver, lock again
 * and settle the blocks.
 *
 * Free actions.  A free usually changes the counts, coalesces the block and does nothing else.
 * `free_actions` is 0 in that case, so the fast path tests one word.  Three features set bits:
 * suspended counts (counts.h), origins (recorder.h), and the slow path for frees of large blocks in
 * a guarded arena or in one with fallback blocks.  The low bits contain the time of the last decay
 * pass, with which a free stamps the granules that become idle (decay.h).
 *
 * Block flags.  Frees of blocks without a flag test one byte.  XSEG_BLOCK_OVERSIZE: the block is
 * counted as an oversize allocation.  XSEG_BLOCK_FALLBACK: the default pool allocated the block
 * from an arena of a private pool, after growth had failed (fallback_chain.h).  The arena counts a
 * fallback block with its other blocks, because totals of a device are sums over arenas, and once
 * more in `fallback`, because the statistics of the private pool exclude these blocks.
 *
 * Invariants, under the lock; xseg_arena_audit() checks each:
 *   ARENA-1  every cached block is in the free index, or is the last remainder, or is unindexed
 *            because of its size (best_fit.h); no other block is any of these.
 *   ARENA-2  every unmapped block is in the tree of unmapped blocks, and no other block is.
 *   ARENA-3  the counts of allocated and active blocks and bytes equal the sums over the blocks.
 *   ARENA-4  reserved plus evicted bytes equal the mapped bytes of the segments, while no block is
 *            claimed.
 *   ARENA-5  the counts of fallback blocks equal the sums over the blocks with that flag.
 *   ARENA-6  `origins` is the number of allocated and pending blocks that have an origin;
 *            XSEG_ARENA_ORIGINS is set if it is not 0.
 *
 * Locking: the lock has rank ARENA and guards all members whose comments do not state otherwise.
 * `device` and the kind of the arena never change.  `pool`, `next` and `stream` are also read
 * without the lock, and change only while no pool owns the arena (pool.h).
 */
#ifndef XSEG_CORE_ARENA_H
#define XSEG_CORE_ARENA_H

#include <stddef.h>

#include "src/base/biased_lock.h"
#include "src/core/block/block.h"
#include "src/core/block/free_index.h"
#include "src/core/block/page_map.h"
#include "src/core/config/config.h"
#include "src/core/stats/counts.h"
#include "src/core/stream/streams.h"

/* In free_actions: the fast path must not free large blocks, because the arena is guarded or has
 * fallback blocks. */
#define XSEG_ARENA_SLOW_PATH ((uint64_t)1 << 62)

/* In free_actions: a free clears the origin of its block, see recorder.h. */
#define XSEG_ARENA_ORIGINS ((uint64_t)1 << 61)

/* The bits of free_actions that are not part of the time. */
#define XSEG_ARENA_FREE_ACTIONS (XSEG_COUNTS_SUSPENDED | XSEG_ARENA_SLOW_PATH | XSEG_ARENA_ORIGINS)

struct xseg_device;
struct xseg_history;
struct xseg_history_ring;
struct xseg_page_map;
struct xseg_pool;

/* Sums over the fallback blocks that an arena has allocated and freed, by quantity; current values
 * are the differences.  Written under the lock of the arena, read without. */
struct xseg_fallback_counts {
    atomic_uint_fast64_t up[XSEG_COUNTS], down[XSEG_COUNTS];
};

struct xseg_arena {
    /* The first cache line rarely changes.  The second one contains the lock and the counts of
     * blocks and bytes, which every hit writes.  So if another thread locks the arena, one cache
     * line is transferred. */
    _Alignas(64) struct xseg_device *device;
    _Atomic(struct xseg_pool *) pool;  /* NULL: no pool owns the arena */
    _Atomic(struct xseg_arena *) next; /* in its pool, or in the list of unused arenas (pool.h) */
    /* Changes only with the pool, while the arena is in no pool's list.  Threads read it without a
     * lock. */
    _Atomic(struct xseg_known_stream *) stream;
    /* Additional work of a free; 0: none.  The high bits are XSEG_ARENA_FREE_ACTIONS, the low bits
     * the time of the last decay pass (decay.h), which is 0 before the first pass. */
    atomic_uint_fast64_t free_actions;
    bool is_small;
    bool is_private; /* of a private pool */
    bool is_guarded; /* each segment has one block, see segments.h */
    bool has_starts; /* the page map has starts, not slots, for its blocks (page_map.h) */
    bool is_paused;  /* allocations fail, see pause.h; guarded by the lock */

    struct xseg_biased_lock lock;
    struct xseg_counts counts;
    struct xseg_list extents;
    uint32_t unmapped_blocks; /* tree of unmapped blocks */
    /* Bytes of blocks whose pages are evicted, see pause.h; written under the lock, read
     * without. */
    atomic_uint_fast64_t evicted;
    /* A cache line that most hits write. */
    _Alignas(64) struct xseg_block *last_remainder; /* see best_fit.h; or the sentinel */
    struct xseg_slab blocks;                        /* struct xseg_block */
    /* A cache line that hits read. */
    _Alignas(64) struct xseg_page_map *page_map; /* the allocator's */
    char *records;                               /* base of block handles */
    uint64_t unindexed_max; /* cached blocks of at most this size are unindexed, see best_fit.h */
    uint64_t last_remainder_min; /* minimum size of a remainder that becomes the last remainder */
    atomic_uint
        *searches; /* of the device's default pool, while garbage collection by age is enabled */
    /* The sentinel: the neighbor of both ends of a segment, and the last remainder if there is
     * none. */
    _Alignas(64) struct xseg_block sentinel;
    struct xseg_free_index free_index;
    /* Guarded by the device memory lock: an event on the stream, or NULL, and when it was recorded.
     * No queued work uses blocks that were cached before `idle_before`. */
    xseg_event fence;
    uint64_t fence_time, idle_before;
    struct xseg_fallback_counts fallback;
    struct xseg_slab uses; /* struct xseg_stream_use */
    /* Number of xseg_arena_settle() calls.  Written under the lock, read without. */
    atomic_uint_fast64_t settles;
    uint32_t fills; /* new blocks that the debug fill writes or checks; guarded by the lock */
    uint32_t
        quarantined; /* of a guarded arena: freed segments; guarded by the device memory lock */
    struct xseg_arena
        *locked_next; /* see xseg_device_lock_arenas(); guarded by the device memory lock */
    /* Sums of the arena's increases and decreases when its pool acquired it from another one, or
     * when the pool's totals were reset; without those of fallback blocks.  Written under the lock,
     * read without. */
    atomic_uint_fast64_t up_before[XSEG_COUNTS], down_before[XSEG_COUNTS];
    uint64_t origins;               /* number of blocks that have an origin; guarded by the lock */
    struct xseg_history *history;   /* the device's */
    struct xseg_history_ring *ring; /* NULL before the first event; guarded by the lock */
    uint32_t pool_id;               /* ID of `pool` in the history; 0: the default pool */
};

#if !XSEG_BIASED_LOCK_IS_ATOMIC
_Static_assert((offsetof(struct xseg_arena, lock) + XSEG_BIASED_LOCK_SHARED_OFFSET) % 64 == 0 &&
                   offsetof(struct xseg_arena, counts.row[XSEG_COUNT_SEGMENT]) % 64 == 0 &&
                   offsetof(struct xseg_arena, counts.limit) % 64 == 0 &&
                   offsetof(struct xseg_arena, last_remainder) % 64 == 0,
               "members that a hit writes fill cache lines");
#endif

/* Records that one step of growth or trim needs at most: for a claim and the splits after it. */
#define XSEG_ARENA_RECORDS 4u

_Static_assert((XSEG_ARENA_SLOW_PATH & XSEG_COUNTS_SUSPENDED) == 0, "each action has a bit");
_Static_assert(XSEG_ARENA_RECORDS <= XSEG_SLAB_MIN_BATCH, "one batch is enough for a step");

/* The parameters of an allocation.  The entry point sets the request; alloc.h adds the rest. */
struct xseg_alloc_params {
    const struct xseg_config *config;
    struct xseg_pool *pool;   /* NULL: the pool that a route selects, or the default pool */
    struct xseg_arena *arena; /* the arena that the fast path has searched, or NULL */
    xseg_stream stream;
    uint64_t address;       /* required start of the block; 0: any */
    uint64_t requested;     /* argument of the caller */
    uint64_t bytes;         /* rounded */
    uint64_t alignment;     /* of the address; at least XSEG_SIZE_UNIT, a power of two */
    uint64_t span;          /* minimum size of a block that contains an aligned range of `bytes` */
    uint64_t segment_bytes; /* of a classic segment for the request */
    bool is_small;
    bool expandable;
    bool is_guarded;       /* allocate a guarded block, see segments.h */
    bool at_end;           /* guarded: the block ends at the end of the segment */
    bool zeroed;           /* the block must be filled with zeros */
    bool has_polled;       /* pending blocks were polled for this request */
    bool is_searched;      /* `arena` has no block for the request, unless one was freed since */
    bool collects_garbage; /* garbage collection by age precedes growth */
    bool counts_search;    /* the search advances the age of blocks, once per request */
    bool no_split;         /* allocate a cached block without a split */
    bool is_single;        /* allocate one page without a split (single_page of pool.h) */
    bool is_prewarm;       /* the selected block stays cached */
    bool is_fallback;      /* for the default pool, from an arena of a private pool */
};

/* The block that serves a request; none while `base` is 0. */
struct xseg_alloc_result {
    struct xseg_arena *arena;
    uint64_t base, bytes;
    uint64_t requested;
};

static inline struct xseg_known_stream *xseg_arena_stream(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->stream, memory_order_acquire);
}

/* A counter that increases when memory of an arena becomes cached: by a free, a completed pending
 * free, or a settled claim.  While it does not change, a search that failed fails again. */
static inline uint64_t xseg_arena_generation(const struct xseg_arena *arena)
{
    const struct xseg_counts_row *row = arena->counts.row;

    return atomic_load_explicit(&row[XSEG_COUNT_ALLOCATION].down, memory_order_relaxed) +
           atomic_load_explicit(&row[XSEG_COUNT_ACTIVE].down, memory_order_relaxed) +
           atomic_load_explicit(&arena->settles, memory_order_relaxed);
}

/* Whether an arena has pending blocks. */
static inline bool xseg_arena_has_pending(const struct xseg_arena *arena)
{
    return xseg_counts_read(&arena->counts, XSEG_COUNT_ACTIVE).current !=
           xseg_counts_read(&arena->counts, XSEG_COUNT_ALLOCATION).current;
}

/* Bytes of cached blocks.  Without the arena's lock the result is approximate, because two counters
 * are read. */
static inline uint64_t xseg_arena_cached_bytes(const struct xseg_arena *arena)
{
    const uint64_t reserved = xseg_counts_read(&arena->counts, XSEG_COUNT_RESERVED_BYTES).current;
    const uint64_t active = xseg_counts_read(&arena->counts, XSEG_COUNT_ACTIVE_BYTES).current;

    return reserved - xseg_min(reserved, active);
}

/* The arguments of xseg_arena_create(); members of an arena have the same names. */
struct xseg_arena_params {
    struct xseg_device *device;
    struct xseg_pool *pool;
    struct xseg_known_stream *stream;
    struct xseg_page_map *page_map;
    struct xseg_history *history;
    atomic_uint *searches;
    uint32_t pool_id;
    bool is_small, is_private, is_guarded;
};

/* Returns NULL on host allocation failure. */
struct xseg_arena *xseg_arena_create(const struct xseg_arena_params *params);

/* Destroy an arena, which must have no extent. */
void xseg_arena_destroy(struct xseg_arena *arena);

/* The slow path of xseg_arena_reserve_records(): the slab has too few records. */
bool xseg_arena_allocate_records(struct xseg_arena *arena, struct xseg_slab *slab, uint32_t count)
    XSEG_REQUIRES(arena->lock);

/*
 * Make sure that a slab of the arena has `count` free records.  May release the lock and lock it
 * again.  Returns false on host allocation failure; the lock is held in any case.
 */
static inline bool xseg_arena_reserve_records(struct xseg_arena *arena, struct xseg_slab *slab,
                                              uint32_t count) XSEG_REQUIRES(arena->lock)
{
    return __builtin_expect(slab->free_count >= count, 1) ||
           xseg_arena_allocate_records(arena, slab, count);
}

/* The status after xseg_arena_reserve_records() has failed for block records. */
xseg_status xseg_arena_fail_host_memory(void);

/* The time of the last decay pass; the arena's lock is held. */
static inline uint64_t xseg_arena_decay_time(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->free_actions, memory_order_relaxed) &
           ~XSEG_ARENA_FREE_ACTIONS;
}

/* Set the time of the last decay pass; the arena's lock is held. */
static inline void xseg_arena_set_decay_time(struct xseg_arena *arena, uint64_t time)
{
    XSEG_ASSERT((time & XSEG_ARENA_FREE_ACTIONS) == 0);
    (void)atomic_fetch_add(&arena->free_actions, time - xseg_arena_decay_time(arena));
}

/* Set whether large blocks are freed on the slow path; the arena's lock is held. */
static inline void xseg_arena_set_slow_path(struct xseg_arena *arena, bool is_slow)
{
    if (is_slow)
        (void)atomic_fetch_or(&arena->free_actions, XSEG_ARENA_SLOW_PATH);
    else
        (void)atomic_fetch_and(&arena->free_actions, ~XSEG_ARENA_SLOW_PATH);
}

/* The slow path of xseg_arena_run_free_actions(): the arena has free actions. */
void xseg_arena_run_free_actions_slow(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint64_t base, uint64_t bytes);

/* Run the free actions of an arena for the bytes of a freed block: resume suspended counts, clear
 * the origin, and stamp the granules that become idle. */
static inline void xseg_arena_run_free_actions(struct xseg_arena *arena, struct xseg_extent *extent,
                                               uint64_t base, uint64_t bytes)
{
    if (__builtin_expect(!xseg_single_writer_equals_relaxed(&arena->free_actions, 0), 0))
        xseg_arena_run_free_actions_slow(arena, extent, base, bytes);
}

static inline bool xseg_block_is_fallback(const struct xseg_block *block)
{
    return (block->flags & XSEG_BLOCK_FALLBACK) != 0;
}

/* Clear the flag of an oversize block that has no other flag, for the fast path of a free, which
 * resumes suspended counts itself. */
static inline void xseg_block_clear_oversize(struct xseg_counts *counts, struct xseg_block *block)
{
    XSEG_ASSERT(block->flags == XSEG_BLOCK_OVERSIZE);
    xseg_counts_decrease_only(counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    block->flags = 0;
}

/*
 * Find the extent of an address and lock its arena.  Returns NULL, and locks no arena, if no
 * segment contains the address.  An extent without allocated blocks may be destroyed at any time,
 * so the extent from the page map is checked again under the lock.
 */
static inline struct xseg_extent *xseg_arena_lock_at(struct xseg_page_map *page_map,
                                                     uint64_t address) XSEG_UNCHECKED
{
    for (;;) {
        struct xseg_extent *extent = xseg_page_map_find(page_map, address);

        if (__builtin_expect(extent == NULL, 0))
            return NULL;
        struct xseg_arena *arena = extent->arena;
        xseg_biased_lock_lock(&arena->lock);
        /* An extent that belongs to its arena and has blocks has not been destroyed. */
        if (__builtin_expect(extent->arena == arena && extent->first != NULL &&
                                 xseg_extent_contains(extent, address),
                             1))
            return extent;
        const bool is_free =
            extent == xseg_page_map_find(page_map, address) && extent->arena == arena;
        xseg_biased_lock_unlock(&arena->lock);
        if (is_free)
            return NULL;
    }
}

/* Audit an arena and its extents; the lock must be held. */
bool xseg_arena_audit(const struct xseg_arena *arena, struct xseg_violation *violation);

/* --- Operations on blocks. --- */

/*
 * The operations of an arena on its blocks: allocate, free, split, coalesce, claim, settle.
 *
 * Allocation and free.  The best fit in the free index serves a request (best_fit.h).  The head of
 * the block, or a range inside it if the alignment requires one, becomes allocated; the remainder
 * stays cached.  A free caches the block, or first makes it pending if other streams use it
 * (pending.h).  A cached block coalesces with adjacent cached blocks immediately.
 *
 * Claim and settle.  Growth, trim and pause remove cached and unmapped blocks from the free index
 * and the tree of unmapped blocks.  No other thread modifies, coalesces or allocates a claimed
 * block, so the claim remains valid while its owner calls the driver without the arena's lock.  A
 * settle makes the block cached or unmapped, depending on `mapped`, and coalesces it.
 *
 * Records.  A split needs a block record, and allocating records may release the lock.  So callers
 * reserve records with xseg_arena_reserve_records() before they choose a block; the operations here
 * then cannot fail.
 *
 * Locking: the caller holds the arena's lock, unless a function locks it itself.
 */

/*
 * Serve a request from the free index.  Locks the arena.  With `is_fallback` the block has
 * XSEG_BLOCK_FALLBACK.
 *
 * Returns: XSEG_OK, with *out unchanged for a miss and while the pool is paused;
 * XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             struct xseg_alloc_result *out);

/*
 * Allocate from a cached block, which is removed from the free index.  The part before the aligned
 * address stays cached, and so does the remainder if the block is split (best_fit.h).  Two block
 * records must be reserved.  If `is_prewarm` is set, the block stays cached.
 */
struct xseg_alloc_result xseg_arena_allocate_block(struct xseg_arena *arena,
                                                   struct xseg_block *block,
                                                   const struct xseg_alloc_params *params);

/* xseg_arena_allocate_block() at an address.  The cached block that covers the address must contain
 * all of the request; the part before the address stays cached. */
struct xseg_alloc_result xseg_arena_allocate_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params);

/* Set the requested size of the block that covers an address, if the block is cached. */
void xseg_arena_set_requested(struct xseg_extent *extent, uint64_t address, uint64_t requested);

/* Free an allocated block that no other stream uses: cache and coalesce it. */
void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block);

/* Count a freed block as pending; the block itself does not change. */
void xseg_arena_mark_pending(struct xseg_arena *arena, struct xseg_block *block);

/* Free a pending block whose streams have completed: cache and coalesce it. */
void xseg_arena_free_pending(struct xseg_arena *arena, struct xseg_block *block);

/* --- Claims, for growth and trim. --- */

/* Add an extent of one claimed block, which is not mapped if the extent is expandable.  A record
 * must be reserved. */
struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Remove an extent whose only block is claimed. */
void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent);

/* Claim a cached or unmapped block; returns the block. */
struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block);

/* Claim the first bytes of an unmapped block, and return them as a block; the remainder stays
 * unmapped.  A record must be reserved. */
struct xseg_block *xseg_arena_claim_head(struct xseg_arena *arena, struct xseg_block *unmapped,
                                         uint64_t bytes);

/* Split a block that is not indexed after `bytes`; returns the second block.  A record must be
 * reserved. */
struct xseg_block *xseg_arena_split_block(struct xseg_arena *arena, struct xseg_block *block,
                                          uint64_t bytes);

/* Settle a claimed block: cached if it is mapped, else unmapped.  Returns the coalesced block. */
struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block);

/* Get the host bytes of an arena without its extents. */
uint64_t xseg_arena_host_bytes(const struct xseg_arena *arena);

#endif
