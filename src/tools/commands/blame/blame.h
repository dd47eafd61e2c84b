/* SPDX-License-Identifier: MIT */
/*
 * The fragmented and allocated memory of each call site of a device, and its allocated memory at the peak of reserved memory.
 *
 * Sums are byte-microseconds from the first entry of the history to the last, or byte-events if the entries have no times.
 * Without a history, or if no time passes in it, sums are the bytes at the end.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_BLAME_H
#define TOOLS_BLAME_H

#include "src/tools/replay_model/fragmentation.h"
#include "src/tools/replay_model/sites.h"

/* In the order of the words of --by. */
enum blame_by { BLAME_BY_FRAGMENTED, BLAME_BY_ALLOCATED, BLAME_BY_PEAK };

struct blame_reason {
    uint32_t reason; /* text; 0: none, because the page is part of a larger page that is in use */
    uint64_t bytes;
};

struct blame {
    const struct recording *recording;
    const struct recording_device *device;
    struct sites sites;
    struct fragmentation sums;
    uint32_t *order;      /* [sites.count]: sites, sorted in descending order */
    uint64_t duration_us; /* 1 if is_instant */
    bool is_instant;
    bool has_times; /* false: sums are byte-events, and duration_us is a number of events */
    struct replay_model_dropped dropped;
    size_t omitted;               /* inconsistent events, segments and blocks */
    struct blame_reason *reasons; /* of idle pages at the end; only in snapshots of xseg */
    size_t reason_count;
};

/* Compute the sums.  Returns false on host allocation failure; then `blame` requires no blame_fini(). */
bool blame_init(struct blame *blame, const struct recording *recording,
                const struct recording_device *device, enum sites_by sites_by, uint32_t depth,
                enum blame_by by);
void blame_fini(struct blame *blame);

/* Get the sort key of a site, and the total of all sites. */
fragmentation_sum blame_amount(const struct blame *blame, enum blame_by by, uint32_t site);
fragmentation_sum blame_total(const struct blame *blame, enum blame_by by);

#endif
