/* SPDX-License-Identifier: MIT */
#include "src/core/counts.h"

#include <string.h>

#include "src/base/align.h"

struct sum {
    uint64_t current[XSEG_STAT_GROUPS], up[XSEG_STAT_GROUPS];
    uint64_t room[XSEG_STAT_GROUPS]; /* how far the others may still grow */
};

void xseg_totals_init(struct xseg_totals *totals)
{
    memset(totals, 0, sizeof(*totals));
    xseg_lock_init(&totals->lock, XSEG_RANK_STATS);
    xseg_list_init(&totals->members);
}

void xseg_totals_fini(struct xseg_totals *totals)
{
    xseg_lock_fini(&totals->lock);
}

void xseg_counts_init(struct xseg_counts *counts, struct xseg_totals *totals, bool is_small)
{
    memset(counts, 0, sizeof(*counts));
    counts->totals = totals;
    counts->group = is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;
    xseg_lock_take(&totals->lock);
    xseg_list_insert(&totals->members, &counts->link);
    totals->member_count++;
    xseg_lock_give(&totals->lock);
}

/* --- Limits. --- */

static uint64_t ceiling_of(const struct xseg_counts *counts, enum xseg_count what)
{
    return atomic_load_explicit(&counts->ceiling[what], memory_order_relaxed);
}

/* What is below one ceiling, and below another one together with what is pending. */
static uint64_t lower(const struct xseg_counts *counts, enum xseg_count what,
                      enum xseg_count active)
{
    const uint64_t ceiling = ceiling_of(counts, active);
    const uint64_t pending = xseg_counts_row(counts, active);

    return xseg_min(ceiling_of(counts, what), ceiling - xseg_min(ceiling, pending));
}

/* The ceilings, or what is pending, have changed. */
static void set_limits(struct xseg_counts *counts)
{
    atomic_store_explicit(&counts->limit[XSEG_LIMIT_BLOCKS],
                          lower(counts, XSEG_COUNT_ALLOCATION, XSEG_COUNT_ACTIVE),
                          memory_order_relaxed);
    atomic_store_explicit(&counts->limit[XSEG_LIMIT_BYTES],
                          lower(counts, XSEG_COUNT_ALLOCATED_BYTES, XSEG_COUNT_ACTIVE_BYTES),
                          memory_order_relaxed);
    atomic_store_explicit(&counts->limit[XSEG_LIMIT_REQUESTED],
                          ceiling_of(counts, XSEG_COUNT_REQUESTED_BYTES), memory_order_relaxed);
}

static void set_ceiling(struct xseg_counts *counts, enum xseg_count what, uint64_t ceiling)
{
    if (ceiling_of(counts, what) == ceiling)
        return;
    atomic_store_explicit(&counts->ceiling[what], ceiling, memory_order_relaxed);
    set_limits(counts);
}

void xseg_counts_pend(struct xseg_counts *counts, uint64_t bytes)
{
    xseg_lock_take(&counts->totals->lock);
    xseg_counts_add(&counts->down[XSEG_COUNT_ALLOCATION], 1);
    xseg_counts_add(&counts->down[XSEG_COUNT_ALLOCATED_BYTES], bytes);
    xseg_counts_add(&counts->up[XSEG_COUNT_ACTIVE], 1);
    xseg_counts_add(&counts->up[XSEG_COUNT_ACTIVE_BYTES], bytes);
    set_limits(counts);
    xseg_lock_give(&counts->totals->lock);
}

void xseg_counts_end_pending(struct xseg_counts *counts, uint64_t bytes, uint64_t requested)
{
    xseg_lock_take(&counts->totals->lock);
    xseg_counts_add(&counts->down[XSEG_COUNT_ACTIVE], 1);
    xseg_counts_add(&counts->down[XSEG_COUNT_ACTIVE_BYTES], bytes);
    xseg_counts_add(&counts->down[XSEG_COUNT_REQUESTED_BYTES], requested);
    set_limits(counts);
    xseg_lock_give(&counts->totals->lock);
}

/* --- Looking around. --- */

/* Add up all members; of the one that asks, if any does, only the values. */
static struct sum add_up(const struct xseg_totals *totals, enum xseg_count what,
                         const struct xseg_counts *asking)
{
    struct sum sum;

    memset(&sum, 0, sizeof(sum));
    XSEG_LIST_FOR(node, &totals->members)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        const uint64_t current = xseg_counts_current(counts, what);
        const uint64_t ceiling = ceiling_of(counts, what);

        sum.current[counts->group] += current;
        sum.up[counts->group] += xseg_counts_increases(counts, what);
        if (counts != asking)
            sum.room[counts->group] += ceiling - xseg_min(ceiling, current);
    }
    sum.up[XSEG_STAT_ALL] = sum.up[XSEG_STAT_SMALL] + sum.up[XSEG_STAT_LARGE];
    sum.current[XSEG_STAT_ALL] = sum.current[XSEG_STAT_SMALL] + sum.current[XSEG_STAT_LARGE];
    sum.room[XSEG_STAT_ALL] = sum.room[XSEG_STAT_SMALL] + sum.room[XSEG_STAT_LARGE];
    return sum;
}

/* Raise the peak of a group to a sum; whether it had to. */
static bool raise_peak(struct xseg_totals *totals, enum xseg_stat_group group, enum xseg_count what,
                       const struct sum *sum)
{
    if (sum->current[group] <= totals->peak[group][what])
        return false;
    totals->peak[group][what] = sum->current[group];
    return true;
}

/* How far an arena of a group may grow before a peak of the device could be passed. */
static int64_t room_below(const struct xseg_totals *totals, enum xseg_stat_group group,
                          enum xseg_count what, const struct sum *sum)
{
    int64_t room[2];

    for (unsigned i = 0; i < 2; i++) {
        const enum xseg_stat_group of = i == 0 ? XSEG_STAT_ALL : group;

        room[i] = (int64_t)(totals->peak[of][what] - sum->current[of] - sum->room[of]);
    }
    return room[0] < room[1] ? room[0] : room[1];
}

/* Nobody may grow before having looked. */
static void take_ceilings(struct xseg_totals *totals, enum xseg_count what)
{
    XSEG_LIST_FOR(node, &totals->members)
    {
        set_ceiling(XSEG_CONTAINER(node, struct xseg_counts, link), what, 0);
    }
}

static void look_around(struct xseg_counts *counts, enum xseg_count what)
{
    struct xseg_totals *totals = counts->totals;
    struct sum sum = add_up(totals, what, counts);
    bool is_void = raise_peak(totals, XSEG_STAT_ALL, what, &sum);

    is_void |= raise_peak(totals, counts->group, what, &sum);
    int64_t room = room_below(totals, counts->group, what, &sum);
    /* Below zero this increase has used what others hold: it is taken away from all of them. */
    if (is_void || room < 0) {
        take_ceilings(totals, what);
        memset(sum.room, 0, sizeof(sum.room));
        room = room_below(totals, counts->group, what, &sum);
    }
    if (totals->member_count > 1)
        room /= 2;
    set_ceiling(counts, what, xseg_counts_current(counts, what) + (uint64_t)(room > 0 ? room : 0));
}

void xseg_counts_look_around(struct xseg_counts *counts, enum xseg_count what)
{
    xseg_lock_take(&counts->totals->lock);
    look_around(counts, what);
    xseg_lock_give(&counts->totals->lock);
}

void xseg_counts_look_around_all(struct xseg_counts *counts)
{
    static const enum xseg_count all[] = {XSEG_COUNT_ALLOCATION, XSEG_COUNT_ALLOCATED_BYTES,
                                          XSEG_COUNT_ACTIVE, XSEG_COUNT_ACTIVE_BYTES,
                                          XSEG_COUNT_REQUESTED_BYTES};

    xseg_lock_take(&counts->totals->lock);
    for (size_t i = 0; i < XSEG_COUNT_OF(all); i++)
        if (xseg_counts_current(counts, all[i]) > ceiling_of(counts, all[i]))
            look_around(counts, all[i]);
    xseg_lock_give(&counts->totals->lock);
}

/* --- Reading. --- */

struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count what)
{
    struct xseg_stat stat;

    xseg_lock_take(&totals->lock);
    const struct sum sum = add_up(totals, what, NULL);
    stat.current = sum.current[group];
    stat.peak = xseg_max(stat.current, totals->peak[group][what]);
    stat.allocated = sum.up[group] - totals->up_base[group][what];
    stat.freed = sum.up[group] - sum.current[group] - totals->down_base[group][what];
    xseg_lock_give(&totals->lock);
    return stat;
}

void xseg_totals_reset_peaks(struct xseg_totals *totals)
{
    xseg_lock_take(&totals->lock);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        const struct sum sum = add_up(totals, what, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
            totals->peak[group][what] = sum.current[group];
        take_ceilings(totals, what);
    }
    xseg_lock_give(&totals->lock);
}

void xseg_totals_reset_accumulated(struct xseg_totals *totals)
{
    xseg_lock_take(&totals->lock);
    for (enum xseg_count what = 0; what < XSEG_COUNTS; what++) {
        const struct sum sum = add_up(totals, what, NULL);

        for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++) {
            totals->up_base[group][what] = sum.up[group];
            totals->down_base[group][what] = sum.up[group] - sum.current[group];
        }
    }
    xseg_lock_give(&totals->lock);
}

uint64_t xseg_totals_current(struct xseg_totals *totals, enum xseg_count what)
{
    return xseg_totals_read(totals, XSEG_STAT_ALL, what).current;
}
