/* SPDX-License-Identifier: MIT */
/*
 * An arena: the segments and the free index of one pool on one stream, small or large, with their lock
 * and their counts.
 *
 * A hit takes the lock of one arena and no other, so threads on different streams share no
 * lock.  Growth and trims need the driver: they claim blocks (state BUSY), let go of the lock, call the
 * driver, and settle the blocks again.
 *
 * Invariants, under the lock; xseg_arena_audit() checks each:
 *   ARENA-1  every cached block of its extents is in the free index, or is the victim, or is a scrap; no other
 *            block is any of these.
 *   ARENA-2  every hole of its extents is in the tree of holes, and no other block is.
 *   ARENA-3  the counts of live and active blocks and bytes are those of the blocks.
 *   ARENA-4  reserved and evicted bytes together are the mapped bytes of the segments, while no block is busy.
 *   ARENA-5  the counts of lent blocks are those of the blocks that have that flag.
 *   ARENA-6  the arena counts the live and pending blocks that have an origin; the notes say whether there are any.
 *
 * Locking: ARENA.  `device` and the kind of the arena do not change; `pool`, `next` and `stream` are also read without
 * the lock, and change only while the arena is free (pool.h).
 */
#ifndef XSEG_CORE_ARENA_H
#define XSEG_CORE_ARENA_H

#include <stddef.h>

#include "src/base/biased_lock.h"
#include "src/core/block/extent.h"
#include "src/core/block/flags.h"
#include "src/core/block/free_index.h"
#include "src/core/block/slot.h"
#include "src/core/block/tree.h"
#include "src/core/config/config.h"
#include "src/core/stats/counts.h"
#include "src/core/stream/streams.h"

/* In the notes of an arena: large.h must not free large blocks, since the arena is guarded or has lent blocks. */
#define XSEG_ARENA_SLOW_PATH ((uint64_t)1 << 62)

/* In the notes of an arena: a free clears the origin of its block, see origins.h. */
#define XSEG_ARENA_ORIGINS ((uint64_t)1 << 61)

/* The bits of the notes that are no clock. */
#define XSEG_ARENA_FLAGS (XSEG_COUNTS_SUSPENDED | XSEG_ARENA_SLOW_PATH | XSEG_ARENA_ORIGINS)

struct xseg_device;
struct xseg_history;
struct xseg_history_ring;
struct xseg_page_map;
struct xseg_pool;

struct xseg_arena {
    /* The first cache line hardly ever changes.  The second has the lock and the counts of blocks and bytes, which
     * every hit writes: threads that take the lock in turn get all of these at once. */
    _Alignas(64) struct xseg_device *device;
    _Atomic(struct xseg_pool *) pool;  /* NULL: the arena is free */
    _Atomic(struct xseg_arena *) next; /* in its pool, or in the list of free arenas (pool.h) */
    /* Changes only with the pool, while the arena is in no pool's list.  Threads read it without a lock. */
    _Atomic(struct xseg_known_stream *) stream;
    /* The notes that a free has to make, 0 for none.  The low bits have the clock of the last look at idle memory (idle.h),
     * 0 before the first; the high bits are XSEG_ARENA_FLAGS. */
    atomic_uint_fast64_t notes;
    bool is_small;
    bool is_private; /* of pools that users have made */
    bool is_guarded; /* each segment has one block, see guarded.h */
    bool has_starts; /* its blocks are small, so they are found through starts (slot.h) */
    bool is_paused;  /* no block is handed out, see pause.h; guarded by the lock */

    struct xseg_biased_lock lock;
    struct xseg_counts counts;
    struct xseg_list extents;
    uint32_t unmapped_blocks; /* tree of unmapped blocks */
    /* Bytes of blocks whose pages are evicted, see pause.h; written under the lock, read without. */
    atomic_uint_fast64_t evicted;
    /* A cache line that most hits write. */
    _Alignas(64) struct xseg_block *last_remainder; /* see cached.h; or the sentinel */
    struct xseg_slab blocks;                        /* struct xseg_block */
    /* A cache line that hits read. */
    _Alignas(64) struct xseg_page_map *page_map; /* the allocator's */
    char *records;                               /* base of block handles */
    uint64_t unindexed_max; /* cached blocks of at most this size are unindexed, see cached.h */
    uint64_t last_remainder_min; /* minimum size of a remainder that becomes the last remainder */
    atomic_uint *searches; /* of the device's default pool, while garbage is collected by age */
    /* The sentinel: the neighbor of both ends of a segment, and the last remainder if there is none. */
    _Alignas(64) struct xseg_block sentinel;
    struct xseg_free_index free_index;
    /* Guarded by the device memory lock: an event on the stream, or NULL, and when it was recorded.  Blocks that were cached before
     * `passed` have no queued work any more. */
    xseg_event fence;
    uint64_t fenced, passed;
    struct xseg_fallback_counts fallback;
    struct xseg_slab uses; /* struct xseg_stream_use */
    /* Number of xseg_arena_settle() calls.  Written under the lock, read without. */
    atomic_uint_fast64_t settles;
    uint32_t fills; /* new blocks that are being written or checked; guarded by the lock */
    uint32_t
        quarantined; /* of a guarded arena: segments that ended; guarded by the device memory lock */
    struct xseg_arena
        *locked_next; /* see xseg_device_lock_arenas(); guarded by the device memory lock */
    /* Sums of the arena's increases and decreases when it came to its pool from another one, or when the pool's
     * totals were reset; without those of lent blocks.  Written under the lock, read without. */
    atomic_uint_fast64_t up_before[XSEG_COUNTS], down_before[XSEG_COUNTS];
    uint64_t origins;               /* number of blocks that have an origin; guarded by the lock */
    struct xseg_history *history;   /* the device's */
    struct xseg_history_ring *ring; /* NULL before the first event; guarded by the lock */
    uint32_t pool_number;           /* of `pool`, for notes; 0: the default pool */
};

#if !XSEG_BIASED_LOCK_IS_ATOMIC
_Static_assert((offsetof(struct xseg_arena, lock) + XSEG_BIASED_LOCK_SHARED_OFFSET) % 64 == 0 &&
                   offsetof(struct xseg_arena, counts.row[XSEG_COUNT_SEGMENT]) % 64 == 0 &&
                   offsetof(struct xseg_arena, counts.limit) % 64 == 0 &&
                   offsetof(struct xseg_arena, last_remainder) % 64 == 0,
               "members that a hit writes fill cache lines");
#endif

/* Records that one step of a growth or a trim may take: a claim, and the cuts after it. */
#define XSEG_ARENA_RECORDS 4u

_Static_assert((XSEG_ARENA_SLOW_PATH & XSEG_COUNTS_SUSPENDED) == 0, "each note has a bit");
_Static_assert(XSEG_ARENA_RECORDS <= XSEG_SLAB_FIRST, "one batch is enough for a step");

/* The parameters of an allocation.  The entry point sets the request; slow_path.h adds the rest. */
struct xseg_alloc_params {
    const struct xseg_config *config;
    struct xseg_pool *pool;   /* NULL: the pool that a route selects, or the default pool */
    struct xseg_arena *arena; /* the arena that the fast path has searched, or NULL */
    xseg_stream stream;
    uint64_t address;       /* where the block has to begin; 0: anywhere */
    uint64_t requested;     /* as the user said */
    uint64_t bytes;         /* rounded */
    uint64_t alignment;     /* of the address; at least XSEG_SIZE_UNIT, a power of two */
    uint64_t span;          /* bytes that a block must have for the alignment to fit in it */
    uint64_t segment_bytes; /* of a classic segment for it */
    bool is_small;
    bool expandable;
    bool is_guarded;       /* in a segment of its own */
    bool at_end;           /* of that */
    bool zeroed;           /* the block is to be zeroed */
    bool has_polled;       /* pending blocks were polled for this request, which happens once */
    bool is_searched;      /* `arena` has no block for the request, unless one was freed since */
    bool collects_garbage; /* garbage is collected by age before the arena grows */
    bool counts_search;    /* the search counts on the clock of these ages, once for a request */
    bool no_split;         /* a block that is found is handed out whole */
    bool is_single;        /* one page alone, which is handed out whole (single_page of pool.h) */
    bool keep; /* memory is to be ready, not handed out: a block that is found stays cached */
    bool is_fallback; /* the block is lent to the default pool, see flags.h */
};

/* The block that serves a request; none while `base` is 0. */
struct xseg_alloc_result {
    struct xseg_arena *arena;
    uint64_t base, bytes;
    uint64_t requested;
    bool fallback; /* the block is lent to the default pool, see flags.h */
};

static inline struct xseg_known_stream *xseg_arena_stream(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->stream, memory_order_acquire);
}

/* A number that changes when memory of an arena becomes cached: by a free, by the end of a pending free, or by a settle.  As
 * long as it is the same, a search that found no block finds none. */
static inline uint64_t xseg_arena_generation(const struct xseg_arena *arena)
{
    const struct xseg_counts_row *row = arena->counts.row;

    return atomic_load_explicit(&row[XSEG_COUNT_ALLOCATION].down, memory_order_relaxed) +
           atomic_load_explicit(&row[XSEG_COUNT_ACTIVE].down, memory_order_relaxed) +
           atomic_load_explicit(&arena->settles, memory_order_relaxed);
}

/* Whether freed blocks of an arena wait for other streams. */
static inline bool xseg_arena_has_pending(const struct xseg_arena *arena)
{
    return xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE) !=
           xseg_counts_current(&arena->counts, XSEG_COUNT_ALLOCATION);
}

/* Bytes of cached blocks, as far as they are counted.  Without the arena's lock the sums may be of two moments. */
static inline uint64_t xseg_arena_cached_bytes(const struct xseg_arena *arena)
{
    const uint64_t reserved = xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES);
    const uint64_t active = xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES);

    return reserved - xseg_min(reserved, active);
}

/* The arguments of xseg_arena_create(): an arena has members of these names. */
struct xseg_arena_plan {
    struct xseg_device *device;
    struct xseg_pool *pool;
    struct xseg_known_stream *stream;
    struct xseg_page_map *page_map;
    struct xseg_history *history;
    atomic_uint *searches;
    uint32_t pool_number;
    bool is_small, is_private, is_guarded;
};

/* Returns NULL without host memory. */
struct xseg_arena *xseg_arena_create(const struct xseg_arena_plan *plan);
/* Free an arena, which must have no extent. */
void xseg_arena_destroy(struct xseg_arena *arena);

static inline void xseg_arena_lock(struct xseg_arena *arena) XSEG_ACQUIRES(arena->lock)
{
    xseg_biased_lock_lock(&arena->lock);
}

static inline void xseg_arena_unlock(struct xseg_arena *arena) XSEG_RELEASES(arena->lock)
{
    xseg_biased_lock_unlock(&arena->lock);
}

/* xseg_arena_reserve_records() for a slab that has too few records. */
bool xseg_arena_allocate_records(struct xseg_arena *arena, struct xseg_slab *slab, uint32_t count)
    XSEG_REQUIRES(arena->lock);

/*
 * Make sure that a slab of the arena has `count` free records.  May release the lock and lock it again.  Returns false on host
 * allocation failure; the lock is held in any case.
 */
static inline bool xseg_arena_reserve_records(struct xseg_arena *arena, struct xseg_slab *slab,
                                              uint32_t count) XSEG_REQUIRES(arena->lock)
{
    return __builtin_expect(slab->free_count >= count, 1) ||
           xseg_arena_allocate_records(arena, slab, count);
}

/* Fail because xseg_arena_reserve_records() has returned false for block records. */
xseg_status xseg_arena_fail_host_memory(void);

/* Insert an unmapped block into the tree of unmapped blocks, or remove it; the arena's lock is
 * held. */
static inline void xseg_arena_insert_unmapped(struct xseg_arena *arena, struct xseg_block *block)
{
    const struct xseg_tree_key key = xseg_tree_key_of(block, false);

    xseg_tree_insert(arena->records, &arena->unmapped_blocks, block, &key);
}

static inline void xseg_arena_remove_unmapped(struct xseg_arena *arena, struct xseg_block *block)
{
    const struct xseg_tree_key key = xseg_tree_key_of(block, false);

    xseg_tree_remove(arena->records, &arena->unmapped_blocks, block, &key);
}

/* Whether a free has notes to make. */
static inline bool xseg_arena_has_flags(const struct xseg_arena *arena)
{
    return !xseg_single_writer_equals_relaxed(&arena->notes, 0);
}

/* The clock of the last look at idle memory; the arena's lock is held. */
static inline uint64_t xseg_arena_now(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->notes, memory_order_relaxed) & ~XSEG_ARENA_FLAGS;
}

/* Set that clock; the arena's lock is held. */
static inline void xseg_arena_set_now(struct xseg_arena *arena, uint64_t now)
{
    XSEG_ASSERT((now & XSEG_ARENA_FLAGS) == 0);
    (void)atomic_fetch_add(&arena->notes, now - xseg_arena_now(arena));
}

/* Set whether large blocks are freed in the general path; the arena's lock is held. */
static inline void xseg_arena_set_slow_path(struct xseg_arena *arena, bool generally)
{
    if (generally)
        (void)atomic_fetch_or(&arena->notes, XSEG_ARENA_SLOW_PATH);
    else
        (void)atomic_fetch_and(&arena->notes, ~XSEG_ARENA_SLOW_PATH);
}

/* Note a free of some bytes of an extent, in an arena that has notes. */
void xseg_arena_record_free(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t base,
                            uint64_t bytes);

/* Note a free of some bytes of an extent, if the arena has notes: when memory became idle, that counts fell, and that an
 * origin ended. */
static inline void xseg_arena_record_free_if_enabled(struct xseg_arena *arena,
                                                     struct xseg_extent *extent, uint64_t base,
                                                     uint64_t bytes)
{
    if (__builtin_expect(xseg_arena_has_flags(arena), 0))
        xseg_arena_record_free(arena, extent, base, bytes);
}

#endif
