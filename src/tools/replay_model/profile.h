/* SPDX-License-Identifier: MIT */
/*
 * A profile: what each site of a device held and stranded, in bytes, by name.
 *
 * It stands by itself: addresses and numbers of a recording are not in it, so profiles of several recordings can be
 * added and compared.  Sites with equal names are one.
 *
 *   site     what sites.h makes of a block
 *   row      a site, or one of the two that no site is to blame for: pending and idle memory
 *   cached   of a site the cached bytes that its blocks strand; of the row `pending` the pending bytes and those beside
 *            them, of the row `idle` the idle ones (stranded.h)
 *   peak     when most was reserved; of several such moments the one with most live
 *
 * PROFILE-1  Live and cached bytes of all rows at the peak add up to what was reserved then.
 * PROFILE-2  Live and cached bytes of all rows on average add up to what was reserved on average.
 * PROFILE-3  No figure is above PROFILE_MOST: sums that would be stay there, and 1 and 2 do not hold then.
 *
 * Averages are whole bytes, rounded down; the row `idle` has what is missing for that.
 *
 * Locking: none; any number of threads may read one that does not change.
 */
#ifndef TOOLS_PROFILE_H
#define TOOLS_PROFILE_H

#include "src/tools/replay_model/sites.h"

#define PROFILE_MAX ((uint64_t)INT64_MAX)

enum profile_figure {
    PROFILE_PEAK_ALLOCATED, /* bytes, at the peak */
    PROFILE_PEAK_CACHED,    /* bytes, at the peak */
    PROFILE_ALLOCATED,      /* bytes, on average */
    PROFILE_CACHED,         /* bytes, on average */
    PROFILE_BLOCKS,         /* that were live at some time */
    PROFILE_LIVED,          /* of these together: events, or microseconds */
    PROFILE_FIGURES
};

struct profile_figures {
    uint64_t of[PROFILE_FIGURES];
};

struct profile_site {
    char *name;
    struct profile_figures figures;
};

struct profile {
    struct profile_site *sites; /* [site_count], in the order of names */
    size_t site_count;
    struct profile_figures pending, idle;
    struct profile_figures whole; /* of all rows */
    uint64_t events, lost, no_room, omitted;
    struct replay_model_dropped dropped;
};

struct profile_rules {
    enum sites_by by;
    uint32_t depth;
    bool by_events; /* averages and lifetimes are over events, not over time */
    bool at_end;    /* the state at the end alone; so it is of a device without events anyway */
};

/*
 * Find out the profile of a device of a recording.  The recording may end before it.
 *
 * Returns: false without host memory; there is nothing to end then
 * Cost:    the device's events are played twice
 */
bool profile_init(struct profile *profile, const struct recording *recording,
                  const struct recording_device *device, const struct profile_rules *rules);
void profile_fini(struct profile *profile);

/*
 * Add the figures of a profile to those of another, whose names stay where they are.  Returns false without host memory:
 * nothing is added then.
 */
bool profile_add(struct profile *to, const struct profile *from);

#endif
