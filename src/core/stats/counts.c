/* SPDX-License-Identifier: MIT */
#include "src/core/stats/counts.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"

_Static_assert(XSEG_COUNT_REQUESTED_BYTES + 1 == XSEG_COUNT_SEGMENT,
               "an allocation changes the first three");

/* Sums over all arenas of a device. */
struct sum {
    uint64_t current[XSEG_STAT_GROUPS], up[XSEG_STAT_GROUPS];
    uint64_t headroom[XSEG_STAT_GROUPS]; /* without the headroom of the reconciling arena */
};

void xseg_totals_init(struct xseg_totals *totals)
{
    memset(totals, 0, sizeof(*totals));
    xseg_mutex_init(&totals->lock, XSEG_RANK_STATS);
    xseg_list_init(&totals->members);
    xseg_list_init(&totals->suspended);
}

void xseg_totals_fini(struct xseg_totals *totals)
{
    xseg_mutex_fini(&totals->lock);
}

static uint64_t current_peak(const struct xseg_totals *totals, unsigned group,
                             enum xseg_count quantity)
{
    /* All stores are under this lock, so the load need not be atomic. */
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    return totals->peak[group][quantity];
}

static void set_peak(struct xseg_totals *totals, unsigned group, enum xseg_count quantity,
                     uint64_t value)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    __atomic_store_n(&totals->peak[group][quantity], value, __ATOMIC_RELAXED);
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

void xseg_counts_allow_suspend(struct xseg_counts *counts, struct xseg_biased_lock *lock,
                               atomic_uint_fast64_t *flags)
{
    XSEG_ASSERT(lock != NULL && flags != NULL);
    XSEG_ASSERT(counts->totals != NULL && counts->lock == NULL);
    xseg_mutex_lock(&counts->totals->lock);
    counts->lock = lock;
    counts->flags = flags;
    xseg_mutex_unlock(&counts->totals->lock);
}

/* --- Limits. --- */

static uint64_t quota_of(const struct xseg_counts *counts, enum xseg_count quantity)
{
    return atomic_load_explicit(&counts->quota[quantity], memory_order_relaxed);
}

/* The limit of an allocated quantity: the minimum of its quota and of the quota for active blocks
 * minus the pending blocks. */
static uint64_t compute_limit(const struct xseg_counts *counts, enum xseg_count quantity,
                              enum xseg_count active)
{
    const uint64_t quota = quota_of(counts, active);
    const uint64_t pending = xseg_counts_read_row(counts, active).current;

    if (!counts->totals->has_pended)
        return quota_of(counts, quantity);
    return xseg_min(quota_of(counts, quantity), quota - xseg_min(quota, pending));
}

static void set_limit(struct xseg_counts *counts, enum xseg_count_limit index, uint64_t limit)
{
    atomic_store_explicit(&counts->limit[index], limit, memory_order_relaxed);
}

static void update_block_limit(struct xseg_counts *counts)
{
    set_limit(counts, XSEG_LIMIT_BLOCKS,
              compute_limit(counts, XSEG_COUNT_ALLOCATION, XSEG_COUNT_ACTIVE));
}

static void update_byte_limit(struct xseg_counts *counts)
{
    set_limit(counts, XSEG_LIMIT_BYTES,
              compute_limit(counts, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_ACTIVE_BYTES));
}

static void set_quota(struct xseg_counts *counts, enum xseg_count quantity, uint64_t quota)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    if (quota_of(counts, quantity) == quota)
        return;
    atomic_store_explicit(&counts->quota[quantity], quota, memory_order_relaxed);
    if (quantity == XSEG_COUNT_ALLOCATION || quantity == XSEG_COUNT_ACTIVE)
        update_block_limit(counts);
    else if (quantity == XSEG_COUNT_ALLOCATED_BYTES || quantity == XSEG_COUNT_ACTIVE_BYTES)
        update_byte_limit(counts);
    else if (quantity == XSEG_COUNT_REQUESTED_BYTES)
        set_limit(counts, XSEG_LIMIT_REQUESTED, quota);
}

/* --- Suspension. --- */

/* MAX_MEMBERS: number of members above which idle ones are suspended.  MIN_IDLE_DISTRIBUTIONS:
 * number of distributions of headroom without an allocation before counts are suspended.
 * BATCH_COUNTS: number of counts that are suspended with one barrier.  With all checks on, small
 * values make every test cover suspension. */
#if XSEG_CHECKS >= 3
#define MAX_MEMBERS            2u
#define MIN_IDLE_DISTRIBUTIONS 2u
#define BATCH_COUNTS           1u
#else
#define MAX_MEMBERS            32u
#define MIN_IDLE_DISTRIBUTIONS 64u
#define BATCH_COUNTS           16u
#endif

static __attribute__((noinline)) void resume_counts(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(counts->is_suspended && counts->flags != NULL);
    for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++) {
        XSEG_ASSERT(totals->suspended_current[counts->group][quantity] >=
                    quota_of(counts, quantity));
        totals->suspended_current[counts->group][quantity] -= quota_of(counts, quantity);
        totals->suspended_up[counts->group][quantity] -= counts->suspended_up[quantity];
    }
    counts->is_suspended = false;
    counts->idle_distributions = 0;
    (void)atomic_fetch_and(counts->flags, ~XSEG_COUNTS_SUSPENDED);
    xseg_list_remove(&counts->link);
    xseg_list_insert(&totals->members, &counts->link);
    totals->member_count++;
}

/* Resume counts if they are suspended.  The caller holds the STATS lock. */
static inline void resume_if_suspended(struct xseg_counts *counts)
{
    if (__builtin_expect(counts->is_suspended, 0))
        resume_counts(counts);
}

void xseg_counts_resume(struct xseg_counts *counts)
{
    if (counts->flags == NULL ||
        (atomic_load_explicit(counts->flags, memory_order_relaxed) & XSEG_COUNTS_SUSPENDED) == 0)
        return;
    xseg_mutex_lock(&counts->totals->lock);
    resume_if_suspended(counts);
    xseg_mutex_unlock(&counts->totals->lock);
}

static void suspend_counts(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!counts->is_suspended && totals->member_count != 0);
    XSEG_ASSERT((atomic_load(counts->flags) & XSEG_COUNTS_SUSPENDED) != 0);
    for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++) {
        const struct xseg_counts_value value = xseg_counts_read(counts, quantity);

        set_quota(counts, quantity, value.current);
        counts->suspended_up[quantity] = value.up;
        totals->suspended_current[counts->group][quantity] += value.current;
        totals->suspended_up[counts->group][quantity] += value.up;
    }
    counts->is_suspended = true;
    xseg_list_remove(&counts->link);
    xseg_list_insert(&totals->suspended, &counts->link);
    totals->member_count--;
}

static bool can_suspend(const struct xseg_counts *counts, const struct xseg_counts *requester)
{
    return counts != requester && counts->lock != NULL &&
           counts->idle_distributions >= MIN_IDLE_DISTRIBUTIONS;
}

/*
 * Suspend a batch of idle counts, if there are enough of them to justify a barrier.
 *
 * The flags are set before the barrier.  A thread that locks an arena after the barrier sees the
 * flag, resumes the counts before it changes them, and waits for the STATS lock to do so.  A thread
 * that locked its arena before may not have observed the flag.  Either the thread has unlocked the
 * arena, so that its changes are visible to this function, or the lock is still held and the counts
 * of the arena are skipped.
 */
static __attribute__((noinline)) void suspend_idle_counts(struct xseg_counts *requester)
{
    struct xseg_totals *totals = requester->totals;
    struct xseg_counts *idle[BATCH_COUNTS];
    unsigned count = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!requester->is_suspended);
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        if (can_suspend(counts, requester))
            idle[count++] = counts;
        if (count == BATCH_COUNTS)
            break;
    }
    if (count < BATCH_COUNTS)
        return;
    for (unsigned i = 0; i < count; i++)
        (void)atomic_fetch_or(idle[i]->flags, XSEG_COUNTS_SUSPENDED);
    const bool has_barrier = xseg_biased_lock_barrier(idle[0]->lock);
    for (unsigned i = 0; i < count; i++) {
        if (has_barrier && xseg_biased_lock_is_free(idle[i]->lock)) {
            suspend_counts(idle[i]);
        } else {
            (void)atomic_fetch_and(idle[i]->flags, ~XSEG_COUNTS_SUSPENDED);
            idle[i]->idle_distributions = 0;
        }
    }
}

/* Set separate peaks and quotas for active blocks when the first block becomes pending, because
 * from then on there may be more active blocks than allocated ones. */
static void separate_active_quota(struct xseg_totals *totals, enum xseg_count quantity,
                                  enum xseg_count active)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!totals->has_pended);
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        set_peak(totals, group, active, current_peak(totals, group, quantity));
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        atomic_store_explicit(&counts->quota[active], quota_of(counts, quantity),
                              memory_order_relaxed);
    }
}

void xseg_counts_mark_pending(struct xseg_counts *counts, uint32_t blocks, uint64_t bytes)
{
    struct xseg_totals *totals = counts->totals;

    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATION).current >= blocks);
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ALLOCATED_BYTES).current >= bytes);
    xseg_mutex_lock(&totals->lock);
    resume_if_suspended(counts);
    if (!totals->has_pended) {
        separate_active_quota(totals, XSEG_COUNT_ALLOCATION, XSEG_COUNT_ACTIVE);
        separate_active_quota(totals, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_ACTIVE_BYTES);
        totals->has_pended = true;
    }
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATION].down, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE].up, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].up, bytes);
    update_block_limit(counts);
    update_byte_limit(counts);
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
    resume_if_suspended(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE].down, blocks);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].down, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].down, requested);
    update_block_limit(counts);
    update_byte_limit(counts);
    xseg_mutex_unlock(&counts->totals->lock);
}

void xseg_counts_alloc_bytes(struct xseg_counts *counts, uint64_t bytes)
{
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_REQUESTED_BYTES].up, bytes);
    if (xseg_counts_exceed_limits(counts))
        xseg_counts_reconcile_all(counts);
}

void xseg_counts_alloc_pending_bytes(struct xseg_counts *counts, uint64_t bytes)
{
    XSEG_ASSERT(xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current >= bytes);
    xseg_mutex_lock(&counts->totals->lock);
    resume_if_suspended(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ACTIVE_BYTES].down, bytes);
    update_byte_limit(counts);
    xseg_single_writer_add(&counts->row[XSEG_COUNT_ALLOCATED_BYTES].up, bytes);
    xseg_mutex_unlock(&counts->totals->lock);
    if (xseg_counts_exceed_limits(counts))
        xseg_counts_reconcile_all(counts);
}

/* --- Reconciliation. --- */

static __attribute__((noinline)) void add_suspended_sums(struct sum *sum,
                                                         const struct xseg_totals *totals,
                                                         enum xseg_count quantity,
                                                         bool with_increases)
{
    for (enum xseg_stat_group group = XSEG_STAT_SMALL; group <= XSEG_STAT_LARGE; group++) {
        sum->current[group] = totals->suspended_current[group][quantity];
        sum->up[group] = with_increases ? totals->suspended_up[group][quantity] : 0;
    }
}

/* Sum up all arenas: their increases if `requester` is NULL, else the headroom of all arenas except
 * the requester. */
static struct sum sum_members(const struct xseg_totals *totals, enum xseg_count quantity,
                              const struct xseg_counts *requester)
{
    struct sum sum;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    memset(&sum, 0, sizeof(sum));
    if (__builtin_expect(!xseg_list_is_empty(&totals->suspended), 0))
        add_suspended_sums(&sum, totals, quantity, requester == NULL);
    XSEG_LIST_FOR(node, &totals->members)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        const struct xseg_counts_value value = xseg_counts_read(counts, quantity);
        const uint64_t quota = quota_of(counts, quantity);

        sum.current[counts->group] += value.current;
        if (requester == NULL)
            sum.up[counts->group] += value.up;
        else if (counts != requester)
            sum.headroom[counts->group] += quota - xseg_min(quota, value.current);
    }
    sum.up[XSEG_STAT_ALL] = sum.up[XSEG_STAT_SMALL] + sum.up[XSEG_STAT_LARGE];
    sum.current[XSEG_STAT_ALL] = sum.current[XSEG_STAT_SMALL] + sum.current[XSEG_STAT_LARGE];
    sum.headroom[XSEG_STAT_ALL] = sum.headroom[XSEG_STAT_SMALL] + sum.headroom[XSEG_STAT_LARGE];
    return sum;
}

/* Raise the peak of a group to a sum.  Returns whether the peak was lower. */
static bool raise_peak(struct xseg_totals *totals, enum xseg_stat_group group,
                       enum xseg_count quantity, const struct sum *sum)
{
    if (sum->current[group] <= current_peak(totals, group, quantity))
        return false;
    set_peak(totals, group, quantity, sum->current[group]);
    return true;
}

/* The peak of a group minus the values and the headroom of its arenas; negative if their sum
 * exceeds the peak. */
static int64_t undistributed_headroom(const struct xseg_totals *totals, enum xseg_stat_group group,
                                      enum xseg_count quantity, const struct sum *sum)
{
    return (int64_t)(current_peak(totals, group, quantity) - sum->current[group] -
                     sum->headroom[group]);
}

/* The headroom that an arena of a group can get without a violation of COUNT-1.  0 if other arenas
 * have exceeded the peak and have not reconciled yet. */
static uint64_t available_headroom(const struct xseg_totals *totals, enum xseg_stat_group group,
                                   enum xseg_count quantity, const struct sum *sum)
{
    const int64_t device_headroom = undistributed_headroom(totals, XSEG_STAT_ALL, quantity, sum);
    const int64_t group_headroom = undistributed_headroom(totals, group, quantity, sum);
    const int64_t available = device_headroom < group_headroom ? device_headroom : group_headroom;

    return available > 0 ? (uint64_t)available : 0;
}

/* Set all quotas to 0, so that every arena reconciles before it grows.  Suspended counts have no
 * headroom. */
static void revoke_quotas(struct xseg_totals *totals, enum xseg_count quantity)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_LIST_FOR(node, &totals->members)
    {
        set_quota(XSEG_CONTAINER(node, struct xseg_counts, link), quantity, 0);
    }
}

/* Whether an arena has allocated recently.  If arenas allocate in turn, each arena allocates before
 * all others have reconciled three quantities each. */
static bool has_allocated_recently(const struct xseg_counts *counts)
{
    return counts->idle_distributions <= 4 * counts->totals->member_count;
}

/* Update the idle distributions of all arenas.  Returns the number of arenas that have allocated
 * recently, including the requester. */
static unsigned count_allocating_arenas(struct xseg_counts *requester)
{
    unsigned allocating = 0;

    XSEG_LIST_FOR(node, &requester->totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        const uint64_t up =
            atomic_load_explicit(&counts->row[XSEG_COUNT_ALLOCATION].up, memory_order_relaxed);

        if (counts == requester || up != counts->last_allocations) {
            counts->last_allocations = up;
            if (counts->idle_distributions != 0)
                counts->idle_distributions = 0;
        } else if (has_allocated_recently(counts)) {
            counts->idle_distributions++;
        }
        allocating += has_allocated_recently(counts);
    }
    XSEG_ASSERT(allocating != 0);
    return allocating;
}

/* Distribute all headroom: equal shares to the arenas that have allocated recently, the remainder
 * to the requester. */
static void distribute_headroom(struct xseg_counts *requester, enum xseg_count quantity,
                                struct sum *sum)
{
    struct xseg_totals *totals = requester->totals;
    const unsigned allocating = count_allocating_arenas(requester);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!requester->is_suspended);
    memset(sum->headroom, 0, sizeof(sum->headroom));
    const struct sum undistributed = *sum;
    XSEG_LIST_FOR(node, &totals->members)
    {
        struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        uint64_t share = 0;

        if (counts == requester)
            continue;
        if (has_allocated_recently(counts))
            share =
                available_headroom(totals, counts->group, quantity, &undistributed) / allocating;
        sum->headroom[XSEG_STAT_ALL] += share;
        sum->headroom[counts->group] += share;
        set_quota(counts, quantity, xseg_counts_read(counts, quantity).current + share);
    }
    set_quota(requester, quantity,
              xseg_counts_read(requester, quantity).current +
                  available_headroom(totals, requester->group, quantity, sum));
    if (__builtin_expect(totals->member_count > MAX_MEMBERS, 0))
        suspend_idle_counts(requester);
}

static void reconcile_quantity(struct xseg_counts *counts, enum xseg_count quantity)
{
    struct xseg_totals *totals = counts->totals;
    struct sum sum = sum_members(totals, quantity, counts);
    bool is_exhausted = raise_peak(totals, XSEG_STAT_ALL, quantity, &sum);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_ASSERT(!counts->is_suspended);
    is_exhausted |= raise_peak(totals, counts->group, quantity, &sum);
    /* A negative value means that the increase has used headroom of other arenas. */
    is_exhausted |= undistributed_headroom(totals, XSEG_STAT_ALL, quantity, &sum) < 0;
    is_exhausted |= undistributed_headroom(totals, counts->group, quantity, &sum) < 0;
    XSEG_ASSERT(current_peak(totals, XSEG_STAT_ALL, quantity) >= sum.current[XSEG_STAT_ALL]);
    XSEG_ASSERT(current_peak(totals, counts->group, quantity) >= sum.current[counts->group]);
    if (is_exhausted)
        distribute_headroom(counts, quantity, &sum);
    else
        set_quota(counts, quantity,
                  xseg_counts_read(counts, quantity).current +
                      available_headroom(totals, counts->group, quantity, &sum));
}

void xseg_counts_reconcile(struct xseg_counts *counts, enum xseg_count quantity)
{
    XSEG_ASSERT(quantity < XSEG_COUNTS);
    xseg_mutex_lock(&counts->totals->lock);
    resume_if_suspended(counts);
    reconcile_quantity(counts, quantity);
    xseg_mutex_unlock(&counts->totals->lock);
}

/* Reconcile the quantities of a list that exceed their quotas.  The caller holds the STATS lock. */
static void reconcile_exceeded(struct xseg_counts *counts, const enum xseg_count *quantities,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (xseg_counts_read(counts, quantities[i]).current > quota_of(counts, quantities[i]))
            reconcile_quantity(counts, quantities[i]);
}

/* The quantities that an allocation changes; the last two after a block has been pending. */
static const enum xseg_count allocation_quantities[] = {
    XSEG_COUNT_ALLOCATION, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_REQUESTED_BYTES,
    XSEG_COUNT_ACTIVE, XSEG_COUNT_ACTIVE_BYTES};

static size_t count_allocation_quantities(const struct xseg_totals *totals)
{
    return totals->has_pended ? XSEG_COUNT_OF(allocation_quantities) : 3;
}

void xseg_counts_reconcile_all(struct xseg_counts *counts)
{
    struct xseg_totals *totals = counts->totals;

    xseg_mutex_lock(&totals->lock);
    resume_if_suspended(counts);
    reconcile_exceeded(counts, allocation_quantities, count_allocation_quantities(totals));
    xseg_mutex_unlock(&totals->lock);
}

void xseg_counts_reconcile_fragments(struct xseg_counts *counts)
{
    static const enum xseg_count fragment_quantities[] = {XSEG_COUNT_INACTIVE_SPLIT,
                                                          XSEG_COUNT_INACTIVE_SPLIT_BYTES};

    xseg_mutex_lock(&counts->totals->lock);
    resume_if_suspended(counts);
    reconcile_exceeded(counts, fragment_quantities, XSEG_COUNT_OF(fragment_quantities));
    xseg_mutex_unlock(&counts->totals->lock);
}

/* --- Reading. --- */

/* The quantity that stores the peak of a quantity.  Until a block has been pending, active blocks
 * share the peak of allocated blocks. */
static enum xseg_count peak_quantity(const struct xseg_totals *totals, enum xseg_count quantity)
{
    if (totals->has_pended ||
        (quantity != XSEG_COUNT_ACTIVE && quantity != XSEG_COUNT_ACTIVE_BYTES))
        return quantity;
    return quantity == XSEG_COUNT_ACTIVE ? XSEG_COUNT_ALLOCATION : XSEG_COUNT_ALLOCATED_BYTES;
}

struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count quantity)
{
    struct xseg_stat stat;

    XSEG_ASSERT(group < XSEG_STAT_GROUPS && quantity < XSEG_COUNTS);
    xseg_mutex_lock(&totals->lock);
    const struct sum sum = sum_members(totals, quantity, NULL);
    stat.current = sum.current[group];
    stat.peak =
        xseg_max(stat.current, current_peak(totals, group, peak_quantity(totals, quantity)));
    stat.allocated = sum.up[group] - totals->up_base[group][quantity];
    stat.freed = sum.up[group] - sum.current[group] - totals->down_base[group][quantity];
    XSEG_ASSERT(stat.peak >= stat.current);
    xseg_mutex_unlock(&totals->lock);
    return stat;
}

void xseg_totals_reset_peaks(struct xseg_totals *totals)
{
    xseg_mutex_lock(&totals->lock);
    for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++) {
        const struct sum sum = sum_members(totals, quantity, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
            set_peak(totals, group, quantity, sum.current[group]);
        revoke_quotas(totals, quantity);
    }
    xseg_mutex_unlock(&totals->lock);
}

void xseg_totals_reset_accumulated(struct xseg_totals *totals)
{
    xseg_mutex_lock(&totals->lock);
    for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++) {
        const struct sum sum = sum_members(totals, quantity, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++) {
            totals->up_base[group][quantity] = sum.up[group];
            totals->down_base[group][quantity] = sum.up[group] - sum.current[group];
        }
    }
    xseg_mutex_unlock(&totals->lock);
}

/* --- Audit. --- */

static bool audit_suspended_counts(const struct xseg_counts *counts,
                                   struct xseg_violation *violation)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    for (enum xseg_count quantity = 0; counts->is_suspended && quantity < XSEG_COUNTS; quantity++) {
        const uint64_t current = xseg_counts_read(counts, quantity).current;

        XSEG_INVARIANT(violation, "COUNT-2", current == quota_of(counts, quantity),
                       "suspended counts: quantity %d is %" PRIu64 ", quota %" PRIu64,
                       (int)quantity, current, quota_of(counts, quantity));
    }
    return true;
}

bool xseg_counts_audit(const struct xseg_counts *counts, struct xseg_violation *violation)
{
    xseg_mutex_lock(&counts->totals->lock);
    const bool holds = audit_suspended_counts(counts, violation);
    xseg_mutex_unlock(&counts->totals->lock);
    return holds;
}

static bool audit_suspended_sums(const struct xseg_totals *totals, struct xseg_violation *violation)
{
    uint64_t sum[XSEG_STAT_GROUPS][XSEG_COUNTS] = {{0}};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_LIST_FOR(node, &totals->suspended)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++)
            sum[counts->group][quantity] += quota_of(counts, quantity);
    }
    for (enum xseg_stat_group group = 0; group < XSEG_STAT_GROUPS; group++)
        for (enum xseg_count quantity = 0; quantity < XSEG_COUNTS; quantity++)
            XSEG_INVARIANT(violation, "COUNT-2",
                           sum[group][quantity] == totals->suspended_current[group][quantity],
                           "suspended counts: sum of quantity %d is %" PRIu64 ", recorded %" PRIu64,
                           (int)quantity, sum[group][quantity],
                           totals->suspended_current[group][quantity]);
    return true;
}

bool xseg_totals_audit(struct xseg_totals *totals, struct xseg_violation *violation)
{
    xseg_mutex_lock(&totals->lock);
    const bool holds = audit_suspended_sums(totals, violation);
    xseg_mutex_unlock(&totals->lock);
    return holds;
}
