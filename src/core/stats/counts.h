/* SPDX-License-Identifier: MIT */
/*
 * Counts: the current values, totals and exact peaks of a device's statistics.
 *
 * Arenas allocate concurrently.  A counter that the arenas of a device share would be a contended
 * cache line in every allocation: its transfer from another CPU takes about 70 ns, but an
 * allocation and its free take 17 ns in all (docs/measurements.md has the table).  So
 * each arena counts for itself, under the arena lock that the caller holds anyway.  For each
 * quantity it has two sums, of its increases and of its decreases.  The current value of a device
 * is the sum over its arenas, and so are the totals.
 *
 * A peak is different.  It is the maximum over time of a sum over all arenas, and no arena knows
 * the values of the others.  Each arena therefore has a *quota* for each quantity: it may raise its
 * value up to the quota without any communication.  Quotas are distributed such that
 *
 *     sum over all arenas of max(value, quota) <= peak of the device                   (COUNT-1)
 *
 * so the device cannot exceed its peak while each arena is within its quota, and the peak needs no
 * update.  The *headroom* of an arena is its quota minus its value.  An arena that exceeds a quota
 * *reconciles* under the STATS lock: it sums up the values of all arenas, raises the peak to the
 * sum if the sum is higher, and gets a new quota.  If the other arenas hold all headroom below the
 * peak, or the peak was raised, all headroom is distributed anew.  For example, with peak 100:
 *
 *     arena A 30, quota 40; arena B 50, quota 60
 *     A + 5 = 35    within the quota: nothing else happens
 *     A + 10 = 45   above the quota; the sum is 95, so the peak remains 100 and 5 are distributed:
 *                   quotas A 48, B 52
 *     A + 20 = 65   above the quota; the sum is 115, so the peak becomes 115, without headroom:
 *                   quotas A 65, B 50
 *
 * Peaks are exact while one thread at a time allocates on a device.  With several threads, the
 * values in a sum are of slightly different moments, so a peak may be off by the bytes that other
 * threads allocate or free during a reconciliation.
 *
 * Fast path.  An allocation changes five public quantities: the number and the bytes of allocated
 * and of active blocks, and the requested bytes.  A block is active while it is allocated or
 * pending free.  Pending blocks are counted in separate rows, so a hit adds to three rows only, and
 * compares three values with precomputed limits.  A limit is the minimum of the quota for allocated
 * blocks and the quota for active blocks minus the pending blocks.  Three sums instead of five
 * reduced an allocation and its free from 1435 to 1290 instructions.  The writer of a row updates
 * it with one plain `add` instruction (single_writer.h), which saved another 22.
 *
 * Distribution.  Headroom is distributed in equal shares to the arenas that have allocated
 * recently.  When a reconciling arena got half of all headroom, one allocation in five reconciled
 * while eight streams allocated in turn; equal shares make reconciliations rare (2 of 1000
 * allocations with two threads, 6 with four).  Arenas that do not allocate get no share; otherwise
 * the other arenas would approach the peak in ever smaller steps.
 *
 * Suspended counts.  A reconciliation is O(arenas), and a device may have 10^5 arenas of which few
 * allocate.  The counts of an arena that has not allocated during many reconciliations are
 * *suspended*: their values become part of a sum with which every reconciliation begins, and their
 * quotas become their values.  The thread that changes such a count next *resumes* the counts: an
 * increase exceeds a quota and so reconciles, and a decrease finds XSEG_COUNTS_SUSPENDED among the
 * flags that every free tests.  A thread may be changing a count without having observed the flag,
 * so counts are suspended in batches: set the flags of 16 arenas, execute a process-wide memory
 * barrier, and skip the arenas whose lock is held (biased_lock.h).  A thread that locks a
 * remaining arena after the barrier sees its flag.
 *
 * Invariants, while no other thread counts:
 *   COUNT-1  The sum of max(value, quota) over all arenas is at most the peak.
 *   COUNT-2  The values of suspended counts equal their quotas.  The sums in the totals are the
 *            sums of these quotas.
 *
 * Locking: the counts of an arena are written under the arena lock, and may be read without a lock.
 * The STATS lock of the totals guards quotas, limits, peaks, the lists of members, the state of
 * suspension, and the sums at the last reset.
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

/* The quantities, each with its member of struct xseg_statistics.  The quantities that a hit
 * changes are first, so that they share cache lines. */
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

#define XSEG_COUNTS_ENUMERATOR(count, member) count,
enum xseg_count { XSEG_COUNTS_TABLE(XSEG_COUNTS_ENUMERATOR) XSEG_COUNTS };
#undef XSEG_COUNTS_ENUMERATOR

/* The limits that an allocation compares with. */
enum xseg_count_limit { XSEG_LIMIT_BLOCKS, XSEG_LIMIT_BYTES, XSEG_LIMIT_REQUESTED, XSEG_LIMITS };

/* The flag of an arena whose counts are suspended. */
#define XSEG_COUNTS_SUSPENDED ((uint64_t)1 << 63)

/* The totals of a device. */
struct xseg_totals {
    struct xseg_mutex lock; /* STATS */
    struct xseg_list members, suspended;
    unsigned member_count; /* number of members, without the suspended ones */
    /* Sums over the suspended counts: values, and increases. */
    uint64_t suspended_current[XSEG_STAT_GROUPS][XSEG_COUNTS];
    uint64_t suspended_up[XSEG_STAT_GROUPS][XSEG_COUNTS];
    /* Whether any block has ever been pending.  Until then the active blocks are the allocated
     * ones, and share their peak and quota. */
    bool has_pended;
    /* Stored atomically under the lock, because other threads read without it. */
    uint64_t peak[XSEG_STAT_GROUPS][XSEG_COUNTS];
    /* Sums of increases and decreases at the last reset of the totals. */
    uint64_t up_base[XSEG_STAT_GROUPS][XSEG_COUNTS], down_base[XSEG_STAT_GROUPS][XSEG_COUNTS];
};

/* The sums of one quantity.  The writer may read its own sums without atomics, so that the compiler
 * can use them as operands of other instructions. */
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
    /* The members up to the third quota share a cache line, which other arenas read. */
    atomic_uint_fast64_t limit[XSEG_LIMITS];
    /* The number of allocations when headroom was last distributed, and the number of distributions
     * since that number changed; guarded by STATS. */
    uint64_t last_allocations;
    uint32_t idle_distributions;
    enum xseg_stat_group group; /* SMALL or LARGE */
    atomic_uint_fast64_t quota[XSEG_COUNTS];
    struct xseg_list link; /* in totals->members or totals->suspended */
    struct xseg_totals *totals;
    bool is_suspended;                  /* guarded by STATS */
    uint64_t suspended_up[XSEG_COUNTS]; /* sums of increases at the suspension */
    struct xseg_biased_lock *lock;      /* the arena lock; NULL: the counts are never suspended */
    atomic_uint_fast64_t *flags;        /* of the arena, tested by every free */
};

void xseg_totals_init(struct xseg_totals *totals);
void xseg_totals_fini(struct xseg_totals *totals);

/* Make the counts members of a device's totals until the device closes. */
void xseg_counts_init(struct xseg_counts *counts, struct xseg_totals *totals, bool is_small);

/* Allow the counts to be suspended; the arena has this lock and these flags. */
void xseg_counts_allow_suspend(struct xseg_counts *counts, struct xseg_biased_lock *lock,
                               atomic_uint_fast64_t *flags);

/* Resume the counts, if they are suspended, because a value decreases or has decreased.  The caller
 * holds the arena lock. */
void xseg_counts_resume(struct xseg_counts *counts);

/* Reconcile a quantity that exceeds its quota. */
void xseg_counts_reconcile(struct xseg_counts *counts, enum xseg_count quantity);

/* Reconcile the quantities that an allocation changes, as far as they exceed their quotas. */
void xseg_counts_reconcile_all(struct xseg_counts *counts);

/* Reconcile the two quantities of fragments, as far as they exceed their quotas. */
void xseg_counts_reconcile_fragments(struct xseg_counts *counts);

/* --- Reading. --- */

/* The sum of the increases of a quantity and its current value at the same moment. */
struct xseg_counts_value {
    uint64_t up, current;
};

/* Read a row that its arena may be changing.  The loop retries until both sums are of one moment;
 * otherwise the row could show more freed than allocated. */
static inline struct xseg_counts_value xseg_counts_read_row(const struct xseg_counts *counts,
                                                            enum xseg_count quantity)
{
    const struct xseg_counts_row *row = &counts->row[quantity];
    uint64_t up, down;

    do {
        up = atomic_load_explicit(&row->up, memory_order_acquire);
        down = atomic_load_explicit(&row->down, memory_order_acquire);
    } while (__builtin_expect(atomic_load_explicit(&row->up, memory_order_relaxed) != up, 0));
    return (struct xseg_counts_value){up, up - down};
}

/* Read any quantity.  Active blocks are allocated and pending blocks. */
static inline struct xseg_counts_value xseg_counts_read(const struct xseg_counts *counts,
                                                        enum xseg_count quantity)
{
    struct xseg_counts_value value;

    if (quantity != XSEG_COUNT_ACTIVE && quantity != XSEG_COUNT_ACTIVE_BYTES)
        return xseg_counts_read_row(counts, quantity);
    value = xseg_counts_read_row(
        counts, quantity == XSEG_COUNT_ACTIVE ? XSEG_COUNT_ALLOCATION : XSEG_COUNT_ALLOCATED_BYTES);
    value.current += xseg_counts_read_row(counts, quantity).current;
    return value;
}

/* --- Counting.  The caller holds the arena lock. --- */

/* Increase a quantity other than the five that an allocation changes. */
static inline void xseg_counts_increase(struct xseg_counts *counts, enum xseg_count quantity,
                                        uint64_t amount)
{
    XSEG_ASSERT(quantity >= XSEG_COUNT_SEGMENT && quantity < XSEG_COUNTS);
    XSEG_ASSERT(quantity != XSEG_COUNT_ACTIVE && quantity != XSEG_COUNT_ACTIVE_BYTES);
    xseg_single_writer_add(&counts->row[quantity].up, amount);
    if (xseg_counts_read_row(counts, quantity).current >
        atomic_load_explicit(&counts->quota[quantity], memory_order_relaxed))
        xseg_counts_reconcile(counts, quantity);
}

/* Decrease a quantity.  The caller resumes the counts if necessary. */
static inline void xseg_counts_decrease_only(struct xseg_counts *counts, enum xseg_count quantity,
                                             uint64_t amount)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, quantity).current >= amount);
    xseg_single_writer_add(&counts->row[quantity].down, amount);
}

/* Resume the counts if necessary, and decrease a quantity. */
static inline void xseg_counts_decrease(struct xseg_counts *counts, enum xseg_count quantity,
                                        uint64_t amount)
{
    xseg_counts_resume(counts);
    xseg_counts_decrease_only(counts, quantity, amount);
}

/* Whether an allocation has exceeded a limit, so that the arena must reconcile. */
static inline bool xseg_counts_exceed_limits(const struct xseg_counts *counts)
{
    const struct xseg_counts_row *blocks = &counts->row[XSEG_COUNT_ALLOCATION];
    const struct xseg_counts_row *bytes = &counts->row[XSEG_COUNT_ALLOCATED_BYTES];
    const struct xseg_counts_row *requested = &counts->row[XSEG_COUNT_REQUESTED_BYTES];

    return xseg_single_writer_is_below(&counts->limit[XSEG_LIMIT_BLOCKS],
                                       blocks->own_up - blocks->own_down) ||
           xseg_single_writer_is_below(&counts->limit[XSEG_LIMIT_BYTES],
                                       bytes->own_up - bytes->own_down) ||
           xseg_single_writer_is_below(&counts->limit[XSEG_LIMIT_REQUESTED],
                                       requested->own_up - requested->own_down);
}

/* Count an allocated block, and reconcile if necessary. */
static inline void xseg_counts_alloc(struct xseg_counts *counts, uint64_t bytes, uint64_t requested)
{
    XSEG_ASSERT(bytes != 0 && requested <= bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].up, 1);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].up, requested);
    if (__builtin_expect(xseg_counts_exceed_limits(counts), 0))
        xseg_counts_reconcile_all(counts);
}

/* Count a freed block that is not pending.  The caller then tests the flags of the arena. */
static inline void xseg_counts_free(struct xseg_counts *counts, uint64_t bytes, uint64_t requested)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATION).current != 0);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATED_BYTES).current >= bytes);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_REQUESTED_BYTES).current >= requested);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].down, 1);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].down, requested);
}

/* Count allocated blocks, and bytes of these or of ranges, as pending; count pending ones as
 * freed. */
void xseg_counts_mark_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes);
void xseg_counts_end_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes,
                             uint64_t requested);

/* Count bytes of a range, which belong to no block, as allocated: bytes that were free; bytes that
 * were pending. */
void xseg_counts_alloc_bytes(struct xseg_counts *counts, uint64_t bytes);
void xseg_counts_alloc_pending_bytes(struct xseg_counts *counts, uint64_t bytes);

/* --- Fragments. --- */

/*
 * Fragments are the cached blocks of split classic segments (PyTorch's `inactive_split`).
 *
 * A split or a coalesce changes their number and their bytes, up or down.  The direction cannot be
 * predicted, so these functions add an amount that may be 0 to both sums, and compare both
 * quantities with their quotas in one branch.  Functions with branches took 3 % of the time of a
 * hit.
 */

/* Increase a quantity of fragments.  Returns 1 if it exceeds its quota, else 0, so that the caller
 * can combine two results without a branch. */
static inline unsigned xseg_fragments_increase(struct xseg_counts *counts, enum xseg_count quantity,
                                               uint64_t amount)
{
    XSEG_ASSERT(quantity == XSEG_COUNT_INACTIVE_SPLIT ||
                quantity == XSEG_COUNT_INACTIVE_SPLIT_BYTES);
    xseg_single_writer_add(&counts->row[quantity].up, amount);
    return xseg_single_writer_is_below(
        &counts->quota[quantity], counts->row[quantity].own_up - counts->row[quantity].own_down);
}

static inline void xseg_fragments_reconcile_if(struct xseg_counts *counts, unsigned is_above)
{
    if (__builtin_expect(is_above != 0, 0))
        xseg_counts_reconcile_fragments(counts);
}

/* Allocate `bytes` of a cached block.  If the block was its whole segment, which is not a fragment,
 * the remainder becomes one. */
static inline void xseg_fragments_split(struct xseg_counts *counts, bool was_split, uint64_t bytes,
                                        uint64_t remainder)
{
    const uint64_t was_fragment = was_split, is_fragment = remainder != 0;

    XSEG_ASSERT(bytes != 0);
    xseg_counts_decrease_only(counts, XSEG_COUNT_INACTIVE_SPLIT, was_fragment & (is_fragment ^ 1));
    xseg_counts_decrease_only(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes & -was_fragment);
    xseg_fragments_reconcile_if(counts,
                                xseg_fragments_increase(counts, XSEG_COUNT_INACTIVE_SPLIT,
                                                        is_fragment & (was_fragment ^ 1)) |
                                    xseg_fragments_increase(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES,
                                                            remainder & (was_fragment - 1)));
}

/* Split off the head of a block of `bytes` that is then allocated; the head remains cached. */
static inline void xseg_fragments_split_head(struct xseg_counts *counts, bool was_split,
                                             uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0);
    xseg_counts_increase(counts, XSEG_COUNT_INACTIVE_SPLIT, was_split ? 1 : 2);
    if (!was_split)
        xseg_counts_increase(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
}

/*
 * Count a freed block of `bytes` that has coalesced with up to two neighbors of `coalesced` bytes.
 * The neighbors and the result count as one change.
 *
 * @param is_split  the result is not its whole segment, so it is a fragment
 */
static inline void xseg_fragments_coalesce(struct xseg_counts *counts, bool is_split,
                                           unsigned neighbors, uint64_t bytes, uint64_t coalesced)
{
    const uint64_t is_fragment = is_split;

    XSEG_ASSERT(neighbors <= 2 && (neighbors == 0) == (coalesced == 0));
    xseg_counts_decrease_only(counts, XSEG_COUNT_INACTIVE_SPLIT,
                              neighbors - (is_fragment & (neighbors != 0)));
    xseg_counts_decrease_only(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES,
                              coalesced & (is_fragment - 1));
    xseg_fragments_reconcile_if(
        counts,
        xseg_fragments_increase(counts, XSEG_COUNT_INACTIVE_SPLIT, is_fragment & (neighbors == 0)) |
            xseg_fragments_increase(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes & -is_fragment));
}

/* --- Totals of a device. --- */

/* Read the statistics of one quantity of one group. */
struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count quantity);

/* The peak over all groups of a quantity other than active blocks and bytes.  Lock-free.  The
 * caller passes the current value, which may exceed the recorded peak. */
static inline uint64_t xseg_totals_peak(const struct xseg_totals *totals, enum xseg_count quantity,
                                        uint64_t current)
{
    const uint64_t peak = __atomic_load_n(&totals->peak[XSEG_STAT_ALL][quantity], __ATOMIC_RELAXED);

    XSEG_ASSERT(quantity != XSEG_COUNT_ACTIVE && quantity != XSEG_COUNT_ACTIVE_BYTES);
    return peak > current ? peak : current;
}

void xseg_totals_reset_peaks(struct xseg_totals *totals);
void xseg_totals_reset_accumulated(struct xseg_totals *totals);

/* Check COUNT-2: of an arena whose lock the caller holds; of the sums of a device. */
bool xseg_counts_audit(const struct xseg_counts *counts, struct xseg_violation *violation);
bool xseg_totals_audit(struct xseg_totals *totals, struct xseg_violation *violation);

#endif
