/* SPDX-License-Identifier: MIT */
/*
 * Counts: what the statistics are made of.
 *
 * Every arena counts for itself, under its own lock: for each quantity the sums of its increases and of
 * its decreases.  Current values and totals of a device are sums over its arenas.
 *
 * A peak belongs to the whole device, so an arena cannot know it alone.  It has a *quota* instead: the
 * value up to which it may grow before the device's peak could be passed.  Above its quota, the arena
 * *reconciles*: it adds up all arenas under STATS, raises the peak if it was passed, and gets a new
 * quota.  Where other arenas hold all headroom below the peak, the headroom is distributed anew.
 *
 * So peaks are exact while one thread at a time allocates on a device.  With several at once, the
 * values that are added up are of slightly different moments: a peak may be off by what the other
 * threads allocate or free while an arena reconciles.
 *
 * An allocation changes three quantities: blocks, their bytes, and the bytes requested.  Blocks that
 * are active without being allocated are counted on their own, as *pending*, and lower the limits that
 * a hit compares with.  So a hit adds three numbers and compares three.  Counting each of the five
 * public quantities on its own took four times as long.
 *
 * A device may have 10^5 arenas, of which few allocate.  So an arena that has not allocated while
 * others reconciled many times is put to *rest*.  Its values become part of a sum with which every
 * reconciliation begins, and its quotas become its values, so that it has no headroom.  A thread that
 * changes a value *wakes* the arena first, or before it gives the arena's lock: an increase passes a
 * quota, and a free finds a bit among the arena's notes.  Arenas are put to rest in batches, behind one
 * barrier that all threads pass (biased_lock.h): an arena that a thread is changing is seen to be
 * locked, and stays awake.
 *
 * Invariants, while no other thread counts:
 *   COUNT-1  the sum of the quotas, or of the current values above them, never passes the peak.
 *   COUNT-2  the values of an arena at rest are its quotas; the sum of these over all arenas at rest is
 *            the one with which a reconciliation begins.
 *
 * Locking: an arena's counts are written under its lock, but for quotas and limits, which STATS
 * guards; all may be read without a lock.  STATS guards peaks, the lists of members, which arenas rest,
 * and the numbers from which the totals start after a reset.
 */
#ifndef XSEG_CORE_COUNTS_H
#define XSEG_CORE_COUNTS_H

#include <stdatomic.h>

#include "src/base/biased_lock.h"
#include "src/base/check.h"
#include "src/base/list.h"
#include "src/base/mutex.h"
#include "src/base/single_writer.h"
#include "xseg/stats.h"

/* The quantities, each with its member of struct xseg_statistics.  Those that a hit changes come first, so that they
 * share cache lines. */
#define XSEG_COUNTS_TABLE(X)                                 \
    X(XSEG_COUNT_ALLOCATION, allocation)                     \
    X(XSEG_COUNT_ALLOCATED_BYTES, allocated_bytes)           \
    X(XSEG_COUNT_REQUESTED_BYTES, requested_bytes)           \
    X(XSEG_COUNT_SEGMENT, segment)                           \
    X(XSEG_COUNT_ACTIVE, active)                             \
    X(XSEG_COUNT_INACTIVE_SPLIT, inactive_split)             \
    X(XSEG_COUNT_RESERVED_BYTES, reserved_bytes)             \
    X(XSEG_COUNT_ACTIVE_BYTES, active_bytes)                 \
    X(XSEG_COUNT_INACTIVE_SPLIT_BYTES, inactive_split_bytes) \
    X(XSEG_COUNT_OVERSIZE_ALLOCATION, oversize_allocations)  \
    X(XSEG_COUNT_OVERSIZE_SEGMENT, oversize_segments)

#define XSEG_COUNTS_NUMBER(count, member) count,
enum xseg_count { XSEG_COUNTS_TABLE(XSEG_COUNTS_NUMBER) XSEG_COUNTS };
#undef XSEG_COUNTS_NUMBER

/* The limits that a hit compares with. */
enum xseg_count_limit { XSEG_LIMIT_BLOCKS, XSEG_LIMIT_BYTES, XSEG_LIMIT_REQUESTED, XSEG_LIMITS };

/* A bit of an arena's notes: the counts of the arena rest. */
#define XSEG_COUNTS_REST ((uint64_t)1 << 63)

/* The totals of a device. */
struct xseg_totals {
    struct xseg_mutex lock; /* STATS */
    struct xseg_list members, resting;
    unsigned member_count; /* number of arenas that do not rest */
    /* Sums over the arenas at rest: values, and increases. */
    uint64_t resting_current[XSEG_STAT_GROUPS][XSEG_COUNTS];
    uint64_t resting_up[XSEG_STAT_GROUPS][XSEG_COUNTS];
    /* Whether a block has ever been pending.  Until then active blocks are the allocated ones,
     * with one peak and one quota. */
    bool has_pended;
    /* Written under the lock, atomically, since readers without the lock exist. */
    uint64_t peak[XSEG_STAT_GROUPS][XSEG_COUNTS];
    /* Sums at the last reset of the totals. */
    uint64_t up_base[XSEG_STAT_GROUPS][XSEG_COUNTS], down_base[XSEG_STAT_GROUPS][XSEG_COUNTS];
};

/* The sums of one quantity.  The writer may read its own sums without atomics, as an operand of
 * another instruction. */
struct xseg_counts_row {
    union {
        atomic_uint_fast64_t up;
        uint64_t own_up;
    };
    union {
        atomic_uint_fast64_t down;
        uint64_t own_down;
    };
};

/* The counts of an arena.  The rows ACTIVE and ACTIVE_BYTES count pending blocks only. */
struct xseg_counts {
    struct xseg_counts_row row[XSEG_COUNTS];
    /* A cache line, down to the third quota: members that other arenas read. */
    atomic_uint_fast64_t limit[XSEG_LIMITS];
    /* Number of allocations when headroom was last distributed, and how often that was
     * unchanged; guarded by STATS. */
    uint64_t seen;
    uint32_t unchanged;
    enum xseg_stat_group group; /* SMALL or LARGE */
    atomic_uint_fast64_t quota[XSEG_COUNTS];
    struct xseg_list link; /* in totals->members, or resting */
    struct xseg_totals *totals;
    bool rests;                      /* guarded by STATS */
    uint64_t rested_up[XSEG_COUNTS]; /* sums of increases when the rest began */
    struct xseg_biased_lock *lock;   /* the lock of the arena; NULL: the counts never rest */
    atomic_uint_fast64_t *notes;     /* of the arena */
};

void xseg_totals_init(struct xseg_totals *totals);
void xseg_totals_fini(struct xseg_totals *totals);

/* Make the counts members of a device's totals; they stay members until the device closes. */
void xseg_counts_init(struct xseg_counts *counts, struct xseg_totals *totals, bool is_small);

/* Allow the counts of an arena to rest; the arena has this lock and these notes. */
void xseg_counts_suspend(struct xseg_counts *counts, struct xseg_biased_lock *lock,
                         atomic_uint_fast64_t *notes);

/* End the rest of the counts, if they rest, because a value falls or has fallen.  The arena's
 * lock is held. */
void xseg_counts_resume(struct xseg_counts *counts);

/* A quantity is above its quota: add up all arenas, and get a new quota. */
void xseg_counts_reconcile(struct xseg_counts *counts, enum xseg_count what);

/* Reconcile all quantities that an allocation changes. */
void xseg_counts_reconcile_all(struct xseg_counts *counts);

/* Reconcile the two quantities of fragments of classic segments. */
void xseg_counts_reconcile_fragments(struct xseg_counts *counts);

/* Sum of the increases of a quantity and its current value, both of one moment. */
struct xseg_counts_value {
    uint64_t up, current;
};

/* Read a row while its arena may count.  Sums read one after the other without a retry could say
 * that more was freed than allocated. */
static inline struct xseg_counts_value xseg_counts_read_row(const struct xseg_counts *counts,
                                                            enum xseg_count what)
{
    const struct xseg_counts_row *row = &counts->row[what];
    uint64_t up, down;

    do {
        up = atomic_load_explicit(&row->up, memory_order_acquire);
        down = atomic_load_explicit(&row->down, memory_order_acquire);
    } while (__builtin_expect(atomic_load_explicit(&row->up, memory_order_relaxed) != up, 0));
    return (struct xseg_counts_value){up, up - down};
}

/* The value of any quantity.  A block is active while it is allocated, and while it pends after
 * its free. */
static inline struct xseg_counts_value xseg_counts_read(const struct xseg_counts *counts,
                                                        enum xseg_count what)
{
    struct xseg_counts_value value;

    if (what != XSEG_COUNT_ACTIVE && what != XSEG_COUNT_ACTIVE_BYTES)
        return xseg_counts_read_row(counts, what);
    value = xseg_counts_read_row(counts, what == XSEG_COUNT_ACTIVE ? XSEG_COUNT_ALLOCATION
                                                                   : XSEG_COUNT_ALLOCATED_BYTES);
    value.current += xseg_counts_read_row(counts, what).current;
    return value;
}

/* The arena's current value. */
static inline uint64_t xseg_counts_current(const struct xseg_counts *counts, enum xseg_count what)
{
    return xseg_counts_read(counts, what).current;
}

/* The sum of the arena's increases. */
static inline uint64_t xseg_counts_increases(const struct xseg_counts *counts, enum xseg_count what)
{
    return xseg_counts_read(counts, what).up;
}

/* Increase a quantity that no allocation changes: any but the five of xseg_counts_alloc(). */
static inline void xseg_counts_increase(struct xseg_counts *counts, enum xseg_count what,
                                        uint64_t amount)
{
    XSEG_ASSERT(what >= XSEG_COUNT_SEGMENT && what < XSEG_COUNTS);
    XSEG_ASSERT(what != XSEG_COUNT_ACTIVE && what != XSEG_COUNT_ACTIVE_BYTES);
    xseg_single_writer_add(&counts->row[what].up, amount);
    if (xseg_counts_read_row(counts, what).current >
        atomic_load_explicit(&counts->quota[what], memory_order_relaxed))
        xseg_counts_reconcile(counts, what);
}

/* Decrease a quantity, without waking: for callers that wake the counts where needed. */
static inline void xseg_counts_lower(struct xseg_counts *counts, enum xseg_count what,
                                     uint64_t amount)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, what).current >= amount);
    xseg_single_writer_add(&counts->row[what].down, amount);
}

static inline void xseg_counts_decrease(struct xseg_counts *counts, enum xseg_count what,
                                        uint64_t amount)
{
    xseg_counts_resume(counts);
    xseg_counts_lower(counts, what, amount);
}

/* Whether the current value of a row is above a limit; for the writer of the row. */
static inline bool xseg_counts_is_above(const struct xseg_counts_row *row,
                                        const atomic_uint_fast64_t *limit)
{
    return xseg_single_writer_is_below(limit, row->own_up - row->own_down);
}

/* Count a block that is handed out. */
static inline void xseg_counts_add_alloc(struct xseg_counts *counts, uint64_t bytes,
                                         uint64_t requested)
{
    XSEG_ASSERT(bytes != 0 && requested <= bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].up, 1);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].up, requested);
}

/* Whether an allocation has passed a limit, so that the arena has to reconcile. */
static inline bool xseg_counts_are_past_limits(const struct xseg_counts *counts)
{
    return xseg_counts_is_above(&counts->row[XSEG_COUNT_ALLOCATION],
                                &counts->limit[XSEG_LIMIT_BLOCKS]) ||
           xseg_counts_is_above(&counts->row[XSEG_COUNT_ALLOCATED_BYTES],
                                &counts->limit[XSEG_LIMIT_BYTES]) ||
           xseg_counts_is_above(&counts->row[XSEG_COUNT_REQUESTED_BYTES],
                                &counts->limit[XSEG_LIMIT_REQUESTED]);
}

static inline void xseg_counts_alloc(struct xseg_counts *counts, uint64_t bytes, uint64_t requested)
{
    xseg_counts_add_alloc(counts, bytes, requested);
    if (__builtin_expect(xseg_counts_are_past_limits(counts), 0))
        xseg_counts_reconcile_all(counts);
}

/* Count a block that is free at once.  The caller then checks the arena's notes. */
static inline void xseg_counts_free(struct xseg_counts *counts, uint64_t bytes, uint64_t requested)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATION).current != 0);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATED_BYTES).current >= bytes);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_REQUESTED_BYTES).current >= requested);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].down, 1);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].down, requested);
}

/* Begin and end the time in which freed blocks, or bytes that belong to none, stay active, since streams still use
 * them. */
void xseg_counts_mark_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes);
void xseg_counts_end_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes,
                             uint64_t requested);

/* Bytes that belong to no block: count new ones as allocated, or ones that were pending; and allocated ones as free. */
void xseg_counts_use(struct xseg_counts *counts, uint64_t bytes);
void xseg_counts_use_again(struct xseg_counts *counts, uint64_t bytes);
void xseg_counts_end_use(struct xseg_counts *counts, uint64_t bytes);

/* Statistics of one quantity of one group. */
struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count what);

/* Peak of a quantity of all groups, which blocks that pend do not change, without a lock.  current: its value now */
static inline uint64_t xseg_totals_peak(const struct xseg_totals *totals, enum xseg_count what,
                                        uint64_t current)
{
    const uint64_t peak = __atomic_load_n(&totals->peak[XSEG_STAT_ALL][what], __ATOMIC_RELAXED);

    XSEG_ASSERT(what != XSEG_COUNT_ACTIVE && what != XSEG_COUNT_ACTIVE_BYTES);
    return peak > current ? peak : current;
}

void xseg_totals_reset_peaks(struct xseg_totals *totals);
void xseg_totals_reset_accumulated(struct xseg_totals *totals);

#endif
