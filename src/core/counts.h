/* SPDX-License-Identifier: MIT */
/*
 * Counts: what the statistics are made of.
 *
 * Every arena counts for itself, under its own lock: for each quantity its current value and the
 * sum of its increases.  Current values and totals of a device are sums over its arenas.
 *
 * A peak belongs to the whole device, so an arena cannot know it alone.  It has *room* instead: how
 * far it may grow before the device's peak could be passed.  An increase lowers the room, a decrease
 * raises it.  Without room, the arena adds up all arenas under STATS, raises the peak if it was
 * passed, and gets new room: half of what lies between the sum and the peak, less what the others
 * hold.  When a peak rises, all room is void: that is what the epoch says.
 *
 * So peaks are exact while one thread at a time allocates on a device.  With several at once, the
 * values that are added up are of slightly different moments: a peak may be off by what the other
 * threads allocate or free during one such look.
 *
 * Invariants, while nobody else counts:
 *   COUNT-1  the sum of the current values plus the valid rooms never passes the peak.
 *
 * Locking: an arena's counts are written under its lock, and may be read without.  STATS guards
 * peaks, the list of members, and the numbers from which the totals start after a reset.
 */
#ifndef XSEG_CORE_COUNTS_H
#define XSEG_CORE_COUNTS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/lock.h"
#include "xseg/stats.h"

enum xseg_count {
    XSEG_COUNT_ALLOCATION,
    XSEG_COUNT_SEGMENT,
    XSEG_COUNT_ACTIVE,
    XSEG_COUNT_INACTIVE_SPLIT,
    XSEG_COUNT_ALLOCATED_BYTES,
    XSEG_COUNT_RESERVED_BYTES,
    XSEG_COUNT_ACTIVE_BYTES,
    XSEG_COUNT_INACTIVE_SPLIT_BYTES,
    XSEG_COUNT_REQUESTED_BYTES,
    XSEG_COUNT_OVERSIZE_ALLOCATION,
    XSEG_COUNT_OVERSIZE_SEGMENT,
    XSEG_COUNTS
};

/* Of a device. */
struct xseg_totals {
    struct xseg_lock lock; /* STATS */
    struct xseg_list members;
    unsigned member_count;
    atomic_uint_fast64_t epoch[XSEG_COUNTS];
    uint64_t peak[XSEG_STAT_GROUPS][XSEG_COUNTS];
    /* Sums at the last reset of the totals. */
    uint64_t up_base[XSEG_STAT_GROUPS][XSEG_COUNTS], down_base[XSEG_STAT_GROUPS][XSEG_COUNTS];
};

/* Of an arena. */
struct xseg_counts {
    struct xseg_list link; /* in totals->members */
    struct xseg_totals *totals;
    enum xseg_stat_group group; /* SMALL or LARGE */
    atomic_uint_fast64_t current[XSEG_COUNTS];
    atomic_uint_fast64_t up[XSEG_COUNTS]; /* sum of the increases */
    atomic_int_fast64_t room[XSEG_COUNTS];
    uint64_t epoch[XSEG_COUNTS]; /* in which the room was given; guarded by STATS for others */
};

void xseg_totals_init(struct xseg_totals *totals);
void xseg_totals_fini(struct xseg_totals *totals);

/* Join; counts stay members until the device closes. */
void xseg_counts_init(struct xseg_counts *counts, struct xseg_totals *totals, bool is_small);

/* Room has run out: look at all arenas. */
void xseg_counts_look_around(struct xseg_counts *counts, enum xseg_count what);

/* Only the arena's owner writes, so a plain load and store do: no locked instruction. */
static inline void xseg_counts_up(struct xseg_counts *counts, enum xseg_count what, uint64_t amount)
{
    const uint64_t current = atomic_load_explicit(&counts->current[what], memory_order_relaxed);
    const uint64_t up = atomic_load_explicit(&counts->up[what], memory_order_relaxed);
    const int64_t room =
        atomic_load_explicit(&counts->room[what], memory_order_relaxed) - (int64_t)amount;

    atomic_store_explicit(&counts->current[what], current + amount, memory_order_relaxed);
    atomic_store_explicit(&counts->up[what], up + amount, memory_order_relaxed);
    atomic_store_explicit(&counts->room[what], room, memory_order_relaxed);
    if (room < 0 || counts->epoch[what] !=
                        atomic_load_explicit(&counts->totals->epoch[what], memory_order_relaxed))
        xseg_counts_look_around(counts, what);
}

static inline void xseg_counts_down(struct xseg_counts *counts, enum xseg_count what,
                                    uint64_t amount)
{
    const uint64_t current = atomic_load_explicit(&counts->current[what], memory_order_relaxed);
    const int64_t room =
        atomic_load_explicit(&counts->room[what], memory_order_relaxed) + (int64_t)amount;

    atomic_store_explicit(&counts->current[what], current - amount, memory_order_relaxed);
    atomic_store_explicit(&counts->room[what], room, memory_order_relaxed);
}

/* The arena's current value. */
static inline uint64_t xseg_counts_current(const struct xseg_counts *counts, enum xseg_count what)
{
    return atomic_load_explicit(&counts->current[what], memory_order_relaxed);
}

/* One quantity of one group. */
struct xseg_stat xseg_totals_read(struct xseg_totals *totals, enum xseg_stat_group group,
                                  enum xseg_count what);

void xseg_totals_reset_peaks(struct xseg_totals *totals);
void xseg_totals_reset_accumulated(struct xseg_totals *totals);

/* What the arenas hold now, summed up, for one quantity. */
uint64_t xseg_totals_current(struct xseg_totals *totals, enum xseg_count what);

#endif
