/* SPDX-License-Identifier: MIT */
/*
 * What a driver's calls cost as the simulator takes it: a file of costs, and a row of vmm/sim/cost.c.
 *
 * It is fitted to the medians of the rows that were measured on an idle device by one thread:
 *
 *   each call      of set-access and unmap: from runs of pages in one call, time over pages is a line; it
 *                  starts at what the call takes without any.  The slope is left to the sizes
 *   by size        what is left for one mapping, time over MiB, is a line, too: its slope is the median of
 *                  the slopes between any two sizes (Theil and Sen), its start the median of what that
 *                  leaves.  So one size that is off moves nothing
 *   least          where some of the smallest sizes take the same: their median, if the line through the
 *                  others, of which there are at least three, then is off by less than half as much in all
 *   the rest       the median
 *
 * Starts and slopes are never negative.  A time that follows such a formula is met exactly.
 *
 * Locking: none.
 */
#ifndef TOOLS_PROBE_PRESET_H
#define TOOLS_PROBE_PRESET_H

#include <stdio.h>

#include "src/tools/commands/probe/probe_costs.h"

/* A time that grows with size, in nanoseconds: base + each MiB, but at least `least`. */
struct probe_sized {
    uint64_t base, per_mib, least;
};

/* The members are those of struct sim_costs, which are the keys of a file of costs. */
#define PROBE_PRESET_MEMBERS(ONE, SIZED) \
    ONE(reserve)                         \
    ONE(address_free)                    \
    SIZED(create)                        \
    SIZED(map)                           \
    SIZED(release)                       \
    ONE(unmap)                           \
    SIZED(unmap_mapping)                 \
    ONE(access_call)                     \
    SIZED(access)                        \
    SIZED(access_wide)                   \
    SIZED(alloc)                         \
    SIZED(free)                          \
    ONE(event_create)                    \
    ONE(event_record)                    \
    ONE(event_query)                     \
    ONE(stream_wait)                     \
    ONE(synchronize)

struct probe_preset {
#define ONE(member)   uint64_t member;
#define SIZED(member) struct probe_sized member;
    PROBE_PRESET_MEMBERS(ONE, SIZED)
#undef ONE
#undef SIZED
};

/* What a driver has cost.  A member for which nothing was measured is 0. */
void probe_preset_fit(const struct probe_costs *costs, struct probe_preset *out);

/* What a preset says of a row. */
uint64_t probe_preset_of(const struct probe_preset *preset, const struct probe_cost *cost);

/*
 * Print a file of costs.
 *
 * @param card    the device's name
 * @param source  where the figures are from: a line of comment
 */
void probe_preset_print(FILE *out, const struct probe_preset *preset,
                        const struct probe_costs *costs, const char *card, const char *source);

#endif
