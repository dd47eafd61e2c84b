/* SPDX-License-Identifier: MIT */
/*
 * Blame: what each site of a device strands, holds, and held when most was reserved.
 *
 * Sums are of byte-microseconds from the first event to the last.  Where no time passes between them, or there are no
 * events at all, they are bytes: those of the state at the end.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_BLAME_H
#define TOOLS_BLAME_H

#include "src/tools/replay_model/fragmentation.h"
#include "src/tools/replay_model/sites.h"

/* In the order of the words of --by. */
enum blame_by { BLAME_BY_FRAGMENTED, BLAME_BY_LIVE, BLAME_BY_PEAK };

struct blame_reason {
    uint32_t
        reason; /* text; 0: none of them, because the page is part of a larger one that is in use */
    uint64_t bytes;
};

struct blame {
    const struct recording *recording;
    const struct recording_device *device;
    struct sites sites;
    struct fragmentation sums;
    uint32_t *order;      /* [sites.count]: sites, those with most first */
    uint64_t duration_us; /* 1 where is_instant */
    bool is_instant;
    bool has_times; /* else sums are byte-events, and duration_us counts events */
    struct replay_model_dropped dropped;
    size_t left_out;              /* events, segments and blocks that do not fit the others */
    struct blame_reason *reasons; /* why whole pages are idle at the end; of xseg's own files */
    size_t reason_count;
};

/*
 * Find it out.
 *
 * Returns: false without host memory; there is nothing to end then
 */
bool blame_init(struct blame *blame, const struct recording *recording,
                const struct recording_device *device, enum sites_by sites_by, uint32_t depth,
                enum blame_by by);
void blame_fini(struct blame *blame);

/* What the order goes by, of a site and of all. */
fragmentation_sum blame_amount(const struct blame *blame, enum blame_by by, uint32_t site);
fragmentation_sum blame_whole(const struct blame *blame, enum blame_by by);

#endif
