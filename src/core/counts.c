/* SPDX-License-Identifier: MIT */
#include "src/core/counts.h"

#include <string.h>

struct sum {
    uint64_t current[XSEG_STAT_GROUPS], up[XSEG_STAT_GROUPS];
    int64_t room[XSEG_STAT_GROUPS]; /* that is still valid */
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
    /* Its room is 0 in an epoch of its own choice: valid, and empty. */
    for (unsigned what = 0; what < XSEG_COUNTS; what++)
        counts->epoch[what] = atomic_load_explicit(&totals->epoch[what], memory_order_relaxed);
    xseg_list_insert(&totals->members, &counts->link);
    totals->member_count++;
    xseg_lock_give(&totals->lock);
}

/* Add up all members but one, of which only its values count, since its room is about to go. */
static struct sum add_up(struct xseg_totals *totals, enum xseg_count what,
                         const struct xseg_counts *asking)
{
    const uint64_t epoch = atomic_load_explicit(&totals->epoch[what], memory_order_relaxed);
    struct sum sum;

    memset(&sum, 0, sizeof(sum));
    XSEG_LIST_FOR(node, &totals->members)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);
        int64_t room = 0;

        if (counts != asking && counts->epoch[what] == epoch)
            room = atomic_load_explicit(&counts->room[what], memory_order_relaxed);
        sum.current[counts->group] += xseg_counts_current(counts, what);
        sum.up[counts->group] += atomic_load_explicit(&counts->up[what], memory_order_relaxed);
        sum.room[counts->group] += room > 0 ? room : 0;
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

        room[i] = (int64_t)totals->peak[of][what] - (int64_t)sum->current[of] - sum->room[of];
    }
    return room[0] < room[1] ? room[0] : room[1];
}

void xseg_counts_look_around(struct xseg_counts *counts, enum xseg_count what)
{
    struct xseg_totals *totals = counts->totals;

    xseg_lock_take(&totals->lock);
    struct sum sum = add_up(totals, what, counts);
    bool is_void = raise_peak(totals, XSEG_STAT_ALL, what, &sum);
    is_void |= raise_peak(totals, counts->group, what, &sum);
    int64_t room = room_below(totals, counts->group, what, &sum);
    /* Below zero this increase has used what others hold: it is taken away from all of them. */
    if (is_void || room < 0) {
        atomic_fetch_add_explicit(&totals->epoch[what], 1, memory_order_relaxed);
        memset(sum.room, 0, sizeof(sum.room));
        room = room_below(totals, counts->group, what, &sum);
    }
    if (totals->member_count > 1)
        room /= 2;
    counts->epoch[what] = atomic_load_explicit(&totals->epoch[what], memory_order_relaxed);
    atomic_store_explicit(&counts->room[what], room > 0 ? room : 0, memory_order_relaxed);
    xseg_lock_give(&totals->lock);
}

struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count what)
{
    struct xseg_stat stat;

    xseg_lock_take(&totals->lock);
    const struct sum sum = add_up(totals, what, NULL);
    stat.current = sum.current[group];
    stat.peak = stat.current > totals->peak[group][what] ? stat.current : totals->peak[group][what];
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
        atomic_fetch_add_explicit(&totals->epoch[what], 1, memory_order_relaxed);
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
