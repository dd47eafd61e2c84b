/* SPDX-License-Identifier: MIT */
#include "src/core/stats/counts.h"

#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"

_Static_assert(XSEG_COUNT_REQUESTED_BYTES + 1 == XSEG_COUNT_SEGMENT,
               "an allocation changes the first three");

struct sum {
    uint64_t current[XSEG_STAT_GROUPS], up[XSEG_STAT_GROUPS];
    uint64_t headroom[XSEG_STAT_GROUPS]; /* how far the other arenas may still grow */
};

void xseg_totals_init(struct xseg_totals *totals)
{
    memset(totals, 0, sizeof(*totals));
    xseg_mutex_init(&totals->lock, XSEG_RANK_STATS);
    xseg_list_init(&totals->members);
    xseg_list_init(&totals->resting);
}

void xseg_totals_fini(struct xseg_totals *totals)
{
    xseg_mutex_fini(&totals->lock);
}

static uint64_t peak_value(const struct xseg_totals *totals, unsigned group, enum xseg_count what)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS)); /* so the load need not be atomic */
    return totals->peak[group][what];
}

static void set_peak(struct xseg_totals *totals, unsigned group, enum xseg_count what,
                     uint64_t value)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    __atomic_store_n(&totals->peak[group][what], value, __ATOMIC_RELAXED);
}

void xseg_counts_init(struct xseg_counts *counts, struct xseg_totals *totals, bool is_small)
{
    XSEG_ASSERT(totals != NULL);
    memset(counts, 0, sizeof(*counts));
    counts->totals = totals;
    counts->group = is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;
    xseg_mutex_lock(&totals->lock);
    xseg_list_insert(&totals->members, &counts->link);
    totals->member_count++;
    xseg_mutex_unlock(&totals->lock);
}

void xseg_counts_suspend(struct xseg_counts *counts, struct xseg_biased_lock *lock,
                         atomic_uint_fast64_t *notes)
{
    XSEG_ASSERT(lock != NULL && notes != NULL);
    XSEG_ASSERT(counts->totals != NULL && counts->lock == NULL);
    xseg_mutex_lock(&counts->totals->lock);
    counts->lock = lock;
    counts->notes = notes;
    xseg_mutex_unlock(&counts->totals->lock);
}

/* --- Limits. --- */

static uint64_t quota_of(const struct xseg_counts *counts, enum xseg_count what)
{
    return atomic_load_explicit(&counts->quota[what], memory_order_relaxed);
}

/* The lower of two limits: one quota, and what pending blocks leave of another quota. */
static uint64_t lower(const struct xseg_counts *counts, enum xseg_count what,
                      enum xseg_count active)
{
    const uint64_t quota = quota_of(counts, active);
    const uint64_t pending = xseg_counts_read_row(counts, active).current;

    if (!counts->totals->has_pended)
        return quota_of(counts, what);

    return xseg_min(quota_of(counts, what), quota - xseg_min(quota, pending));
}

static void set_limit(struct xseg_counts *counts, enum xseg_count_limit which, uint64_t limit)
{
    atomic_store_explicit(&counts->limit[which], limit, memory_order_relaxed);
}

static void limit_blocks(struct xseg_counts *counts)
{
    set_limit(counts, XSEG_LIMIT_BLOCKS, lower(counts, XSEG_COUNT_ALLOCATION, XSEG_COUNT_ACTIVE));
}

static void limit_bytes(struct xseg_counts *counts)
{
    set_limit(counts, XSEG_LIMIT_BYTES,
              lower(counts, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_ACTIVE_BYTES));
}

static void set_quota(struct xseg_counts *counts, enum xseg_count what, uint64_t quota)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    if (quota_of(counts, what) == quota)
        return;
    atomic_store_explicit(&counts->quota[what], quota, memory_order_relaxed);
    if (what == XSEG_COUNT_ALLOCATION || what == XSEG_COUNT_ACTIVE)
        limit_blocks(counts);
    else if (what == XSEG_COUNT_ALLOCATED_BYTES || what == XSEG_COUNT_ACTIVE_BYTES)
        limit_bytes(counts);
    else if (what == XSEG_COUNT_REQUESTED_BYTES)
        set_limit(counts, XSEG_LIMIT_REQUESTED, quota);
}

/* --- Rest. --- */

/* AWAKE: with more arenas awake, some are put to rest.  QUIET: looks without an allocation
 * before an arena may rest.  BATCH: arenas put to rest at a time.  All are small with all
 * checks, so that every test covers them. */
#if XSEG_CHECKS >= 3
#define AWAKE 2u
#define QUIET 2u
#define BATCH 1u
#else
#define AWAKE 32u
#define QUIET 64u
#define BATCH 16u
#endif

static __attribute__((noinline)) void end_rest(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(counts->rests && counts->notes != NULL);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        XSEG_ASSERT(totals->resting_current[counts->group][what] >= quota_of(counts, what));
        totals->resting_current[counts->group][what] -= quota_of(counts, what);
        totals->resting_up[counts->group][what] -= counts->rested_up[what];
    }
    counts->rests = false;
    counts->unchanged = 0;
    (void)atomic_fetch_and(counts->notes, ~XSEG_COUNTS_REST);
    xseg_list_remove(&counts->link);
    xseg_list_insert(&totals->members, &counts->link);
    totals->member_count++;
}

/* End the rest of an arena's counts, if they rest.  STATS is held. */
static inline void wake(struct xseg_counts *counts)
{
    if (__builtin_expect(counts->rests, 0))
        end_rest(counts);
}

void xseg_counts_resume(struct xseg_counts *counts)
{
    if (counts->notes == NULL ||
        (atomic_load_explicit(counts->notes, memory_order_relaxed) & XSEG_COUNTS_REST) == 0)
        return;
    xseg_mutex_lock(&counts->totals->lock);
    wake(counts);
    xseg_mutex_unlock(&counts->totals->lock);
}

static void put_to_rest(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!counts->rests && totals->member_count != 0);
    XSEG_ASSERT((atomic_load(counts->notes) & XSEG_COUNTS_REST) != 0);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        const struct xseg_counts_value value = xseg_counts_read(counts, what);

        set_quota(counts, what, value.current);
        counts->rested_up[what] = value.up;
        totals->resting_current[counts->group][what] += value.current;
        totals->resting_up[counts->group][what] += value.up;
    }
    counts->rests = true;
    xseg_list_remove(&counts->link);
    xseg_list_insert(&totals->resting, &counts->link);
    totals->member_count--;
}

static bool may_rest(const struct xseg_counts *counts, const struct xseg_counts *budget_wait)
{
    return counts != budget_wait && counts->lock != NULL && counts->unchanged >= QUIET;
}

/*
 * Put quiet arenas to rest, if there are enough of them to be worth a barrier.  Their notes say so
 * before the barrier: a thread that changes a count from then on wakes the arena, and waits for
 * STATS to do so.
 */
static __attribute__((noinline)) void let_rest(struct xseg_counts *budget_wait)
{
    struct xseg_totals *totals = budget_wait->totals;
    struct xseg_counts *quiet[BATCH];
    unsigned count = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!budget_wait->rests);
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        if (may_rest(counts, budget_wait))
            quiet[count++] = counts;
        if (count == BATCH)
            break;
    }
    if (count < BATCH)
        return;
    for (unsigned i = 0; i < count; i++)
        (void)atomic_fetch_or(quiet[i]->notes, XSEG_COUNTS_REST);
    const bool passed = xseg_biased_lock_barrier(quiet[0]->lock);
    for (unsigned i = 0; i < count; i++) {
        if (passed && xseg_biased_lock_is_free(quiet[i]->lock)) {
            put_to_rest(quiet[i]);
        } else {
            (void)atomic_fetch_and(quiet[i]->notes, ~XSEG_COUNTS_REST);
            quiet[i]->unchanged = 0;
        }
    }
}

/* The first block becomes pending: from now on more may be active than is allocated. */
static void part(struct xseg_totals *totals, enum xseg_count what, enum xseg_count active)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!totals->has_pended);
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        set_peak(totals, group, active, peak_value(totals, group, what));
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        atomic_store_explicit(&counts->quota[active], quota_of(counts, what), memory_order_relaxed);
    }
}

void xseg_counts_mark_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATION).current >= blocks);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATED_BYTES).current >= bytes);
    xseg_mutex_lock(&totals->lock);
    wake(counts);
    if (!totals->has_pended) {
        part(totals, XSEG_COUNT_ALLOCATION, XSEG_COUNT_ACTIVE);
        part(totals, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_ACTIVE_BYTES);
        totals->has_pended = true;
    }
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].down, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE].up, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].up, bytes);
    limit_blocks(counts);
    limit_bytes(counts);
    xseg_mutex_unlock(&totals->lock);
}

void xseg_counts_end_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes,
                             uint64_t requested)
{
    XSEG_ASSERT(counts->totals->has_pended);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE).current >= blocks);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current >= bytes);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_REQUESTED_BYTES).current >= requested);
    xseg_mutex_lock(&counts->totals->lock);
    wake(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE].down, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].down, requested);
    limit_blocks(counts);
    limit_bytes(counts);
    xseg_mutex_unlock(&counts->totals->lock);
}

void xseg_counts_use(struct xseg_counts *counts, uint64_t bytes)
{
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].up, bytes);
    if (xseg_counts_are_past_limits(counts))
        xseg_counts_reconcile_all(counts);
}

void xseg_counts_use_again(struct xseg_counts *counts, uint64_t bytes)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current >= bytes);
    xseg_mutex_lock(&counts->totals->lock);
    wake(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].down, bytes);
    limit_bytes(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_mutex_unlock(&counts->totals->lock);
    if (xseg_counts_are_past_limits(counts))
        xseg_counts_reconcile_all(counts);
}

void xseg_counts_end_use(struct xseg_counts *counts, uint64_t bytes)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATED_BYTES).current >= bytes);
    xseg_counts_resume(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].down, bytes);
}

/* --- Reconciling. --- */

static __attribute__((noinline)) void add_resting(struct sum *sum, const struct xseg_totals *totals,
                                                  enum xseg_count what, bool with_increases)
{
    for (enum xseg_stat_group group = XSEG_STAT_SMALL; group <= XSEG_STAT_LARGE; group++) {
        sum->current[group] = totals->resting_current[group][what];
        sum->up[group] = with_increases ? totals->resting_up[group][what] : 0;
    }
}

/* Add up all members; headroom of the arena that asks is left out. */
static struct sum add_up(const struct xseg_totals *totals, enum xseg_count what,
                         const struct xseg_counts *budget_wait)
{
    struct sum sum;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    memset(&sum, 0, sizeof(sum));
    if (__builtin_expect(!xseg_list_is_empty(&totals->resting), 0))
        add_resting(&sum, totals, what, budget_wait == NULL);
    XSEG_LIST_FOR(node, &totals->members)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        const struct xseg_counts_value value = xseg_counts_read(counts, what);
        const uint64_t quota = quota_of(counts, what);

        sum.current[counts->group] += value.current;
        if (budget_wait == NULL)
            sum.up[counts->group] += value.up;
        else if (counts != budget_wait)
            sum.headroom[counts->group] += quota - xseg_min(quota, value.current);
    }
    sum.up[XSEG_STAT_ALL] = sum.up[XSEG_STAT_SMALL] + sum.up[XSEG_STAT_LARGE];
    sum.current[XSEG_STAT_ALL] = sum.current[XSEG_STAT_SMALL] + sum.current[XSEG_STAT_LARGE];
    sum.headroom[XSEG_STAT_ALL] = sum.headroom[XSEG_STAT_SMALL] + sum.headroom[XSEG_STAT_LARGE];
    return sum;
}

/* Raise the peak of a group to a sum.  Returns whether the peak was below the sum. */
static bool raise_peak(struct xseg_totals *totals, enum xseg_stat_group group, enum xseg_count what,
                       const struct sum *sum)
{
    if (sum->current[group] <= peak_value(totals, group, what))
        return false;
    set_peak(totals, group, what, sum->current[group]);
    return true;
}

/* Peak of a group minus the values of its arenas and the headroom they hold; negative if too
 * much headroom was given out. */
static int64_t headroom_of(const struct xseg_totals *totals, enum xseg_stat_group group,
                           enum xseg_count what, const struct sum *sum)
{
    return (int64_t)(peak_value(totals, group, what) - sum->current[group] - sum->headroom[group]);
}

/* How far an arena of a group may grow before it could pass a peak of the device; 0 where other
 * arenas have passed the peak and have not reconciled yet. */
static uint64_t room_below(const struct xseg_totals *totals, enum xseg_stat_group group,
                           enum xseg_count what, const struct sum *sum)
{
    const int64_t all = headroom_of(totals, XSEG_STAT_ALL, what, sum);
    const int64_t own = headroom_of(totals, group, what, sum);
    const int64_t less = all < own ? all : own;

    return less > 0 ? (uint64_t)less : 0;
}

/* Lower all quotas to 0: every arena reconciles before it grows.  Arenas at rest have no
 * headroom already. */
static void take_quotas(struct xseg_totals *totals, enum xseg_count what)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_LIST_FOR(node, &totals->members)
    {
        set_quota(XSEG_CONTAINER(node, struct xseg_counts, link), what, 0);
    }
}

/* Whether an arena has allocated lately.  Where arenas take turns, each allocates before every
 * other one has reconciled three quantities. */
static bool is_busy(const struct xseg_counts *counts)
{
    return counts->unchanged <= 4 * counts->totals->member_count;
}

/* The number of arenas that have allocated lately, and so can use headroom; the one that asks is
 * among them. */
static unsigned count_busy(struct xseg_counts *budget_wait)
{
    unsigned busy = 0;

    XSEG_LIST_FOR(node, &budget_wait->totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        const uint64_t up =
            atomic_load_explicit(&counts->row[XSEG_COUNT_ALLOCATION].up, memory_order_relaxed);

        if (counts == budget_wait || up != counts->seen) {
            counts->seen = up;
            if (counts->unchanged != 0)
                counts->unchanged = 0;
        } else if (is_busy(counts)) {
            counts->unchanged++;
        }
        busy += is_busy(counts);
    }
    XSEG_ASSERT(busy != 0);
    return busy;
}

/*
 * Distribute all headroom anew: equal parts to the busy arenas, the remainder to the one that asks.
 * If one arena took all, streams in turn would reconcile at every allocation.  If arenas at rest
 * kept some, a peak would be approached in ever smaller steps.
 */
static void share_out(struct xseg_counts *budget_wait, enum xseg_count what, struct sum *sum)
{
    struct xseg_totals *totals = budget_wait->totals;
    const unsigned busy = count_busy(budget_wait);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!budget_wait->rests);
    memset(sum->headroom, 0, sizeof(sum->headroom));
    const struct sum all = *sum;
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        uint64_t part = 0;

        if (counts == budget_wait)
            continue;
        if (is_busy(counts))
            part = room_below(totals, counts->group, what, &all) / busy;
        sum->headroom[XSEG_STAT_ALL] += part;
        sum->headroom[counts->group] += part;
        set_quota(counts, what, xseg_counts_read(counts, what).current + part);
    }
    set_quota(budget_wait, what,
              xseg_counts_read(budget_wait, what).current +
                  room_below(totals, budget_wait->group, what, sum));
    if (__builtin_expect(totals->member_count > AWAKE, 0))
        let_rest(budget_wait);
}

static void reconcile(struct xseg_counts *counts, enum xseg_count what)
{
    struct xseg_totals *totals = counts->totals;
    struct sum sum = add_up(totals, what, counts);
    bool is_void = raise_peak(totals, XSEG_STAT_ALL, what, &sum);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!counts->rests);
    is_void |= raise_peak(totals, counts->group, what, &sum);
    /* Negative headroom: the increase has used headroom of other arenas. */
    is_void |= headroom_of(totals, XSEG_STAT_ALL, what, &sum) < 0;
    is_void |= headroom_of(totals, counts->group, what, &sum) < 0;
    XSEG_ASSERT(peak_value(totals, XSEG_STAT_ALL, what) >= sum.current[XSEG_STAT_ALL]);
    XSEG_ASSERT(peak_value(totals, counts->group, what) >= sum.current[counts->group]);
    if (is_void)
        share_out(counts, what, &sum);
    else
        set_quota(counts, what,
                  xseg_counts_read(counts, what).current +
                      room_below(totals, counts->group, what, &sum));
}

void xseg_counts_reconcile(struct xseg_counts *counts, enum xseg_count what)
{
    XSEG_ASSERT(what < XSEG_COUNTS);
    xseg_mutex_lock(&counts->totals->lock);
    wake(counts);
    reconcile(counts, what);
    xseg_mutex_unlock(&counts->totals->lock);
}

/* Reconcile each listed quantity that is above its quota.  STATS is held. */
static void reconcile_each(struct xseg_counts *counts, const enum xseg_count *what, size_t number)
{
    for (size_t i = 0; i < number; i++)
        if (xseg_counts_read(counts, what[i]).current > quota_of(counts, what[i]))
            reconcile(counts, what[i]);
}

static const enum xseg_count of_allocation[] = {XSEG_COUNT_ALLOCATION, XSEG_COUNT_ALLOCATED_BYTES,
                                                XSEG_COUNT_REQUESTED_BYTES, XSEG_COUNT_ACTIVE,
                                                XSEG_COUNT_ACTIVE_BYTES};

static size_t number_of_allocation(const struct xseg_totals *totals)
{
    return totals->has_pended ? XSEG_COUNT_OF(of_allocation) : 3;
}

void xseg_counts_reconcile_all(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    xseg_mutex_lock(&totals->lock);
    wake(counts);
    reconcile_each(counts, of_allocation, number_of_allocation(totals));
    xseg_mutex_unlock(&totals->lock);
}

void xseg_counts_reconcile_fragments(struct xseg_counts *counts)
{
    static const enum xseg_count all[] = {XSEG_COUNT_INACTIVE_SPLIT,
                                          XSEG_COUNT_INACTIVE_SPLIT_BYTES};

    xseg_mutex_lock(&counts->totals->lock);
    wake(counts);
    reconcile_each(counts, all, XSEG_COUNT_OF(all));
    xseg_mutex_unlock(&counts->totals->lock);
}

/* --- Reading. --- */

/* The quantity whose peak stands for that of another: until a block pends, active is allocated. */
static enum xseg_count peak_of(const struct xseg_totals *totals, enum xseg_count what)
{
    if (totals->has_pended || (what != XSEG_COUNT_ACTIVE && what != XSEG_COUNT_ACTIVE_BYTES))
        return what;
    return what == XSEG_COUNT_ACTIVE ? XSEG_COUNT_ALLOCATION : XSEG_COUNT_ALLOCATED_BYTES;
}

struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count what)
{
    struct xseg_stat stat;

    XSEG_ASSERT(group < XSEG_STAT_GROUPS && what < XSEG_COUNTS);
    xseg_mutex_lock(&totals->lock);
    const struct sum sum = add_up(totals, what, NULL);
    stat.current = sum.current[group];
    stat.peak = xseg_max(stat.current, peak_value(totals, group, peak_of(totals, what)));
    stat.allocated = sum.up[group] - totals->up_base[group][what];
    stat.freed = sum.up[group] - sum.current[group] - totals->down_base[group][what];
    XSEG_ASSERT(stat.peak >= stat.current);
    xseg_mutex_unlock(&totals->lock);
    return stat;
}

void xseg_totals_reset_peaks(struct xseg_totals *totals)
{
    xseg_mutex_lock(&totals->lock);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        const struct sum sum = add_up(totals, what, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
            set_peak(totals, group, what, sum.current[group]);
        take_quotas(totals, what);
    }
    xseg_mutex_unlock(&totals->lock);
}

void xseg_totals_reset_accumulated(struct xseg_totals *totals)
{
    xseg_mutex_lock(&totals->lock);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        const struct sum sum = add_up(totals, what, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++) {
            totals->up_base[group][what] = sum.up[group];
            totals->down_base[group][what] = sum.up[group] - sum.current[group];
        }
    }
    xseg_mutex_unlock(&totals->lock);
}
