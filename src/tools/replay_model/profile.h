/* SPDX-License-Identifier: MIT */
/*
 * A profile: allocated and fragmented bytes of each site of a device, by name.
 *
 * A profile is independent of its recording: it contains no addresses and no indices, so profiles of several
 * recordings can be added and compared.  Sites with equal names are one site.
 *
 *   site    see sites.h.
 *   row     a site, `pending` or `idle`.
 *   cached  of a site, the bytes that its blocks fragment; of the row `pending`, the pending bytes and the cached bytes
 *           of their pages; of the row `idle`, the idle bytes (fragmentation.h).
 *   peak    the time of the maximum of reserved bytes; of several such times, the time with the most allocated bytes.
 *
 * PROFILE-1  Allocated and cached bytes of all rows at the peak add up to the bytes reserved then.
 * PROFILE-2  Average allocated and cached bytes of all rows add up to the average of reserved bytes.
 * PROFILE-3  Figures saturate at PROFILE_MAX; PROFILE-1 and PROFILE-2 do not hold then.
 *
 * Averages are whole bytes, rounded down; the row `idle` contains the remainder.
 *
 * Locking: none; several threads may read a profile that does not change.
 */
#ifndef TOOLS_PROFILE_H
#define TOOLS_PROFILE_H

#include "src/tools/replay_model/sites.h"

#define PROFILE_MAX ((uint64_t)INT64_MAX)

enum profile_figure {
    PROFILE_PEAK_ALLOCATED, /* bytes, at the peak */
    PROFILE_PEAK_CACHED,    /* bytes, at the peak */
    PROFILE_ALLOCATED,      /* bytes, average */
    PROFILE_CACHED,         /* bytes, average */
    PROFILE_BLOCKS,         /* number of allocations */
    PROFILE_LIVED,          /* sum of their lifetimes: events or microseconds */
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
    struct profile_site *sites; /* [site_count], by name */
    size_t site_count;
    struct profile_figures pending, idle;
    struct profile_figures total; /* all rows */
    uint64_t entries, lost, truncated, synthetic, omitted;
    struct replay_model_dropped dropped;
};

struct profile_rules {
    enum sites_by by;
    uint32_t depth;
    bool by_events; /* averages and lifetimes are in events instead of time */
    bool at_end;    /* only the state at the end, as for a device without events */
};

/*
 * Compute the profile of a device.  The recording may be freed afterwards.
 *
 * Returns: false if out of host memory; there is nothing to free then
 * Cost:    the events of the device are replayed twice
 */
bool profile_init(struct profile *profile, const struct recording *recording,
                  const struct recording_device *device, const struct profile_rules *rules);
void profile_fini(struct profile *profile);

/* Add the figures of `from` to those of `to`. */
void profile_figures_add(struct profile_figures *to, const struct profile_figures *from);

/* Add the figures of a profile to another one, whose names keep their addresses.  Returns false if out of host
 * memory; `to` is unchanged then. */
bool profile_add(struct profile *to, const struct profile *from);

#endif
