/* SPDX-License-Identifier: MIT */
/*
 * Remap: under memory pressure, idle pages of the device move to the segment that grows.
 *
 * An idle page is a whole page in a cached block whose stream has completed its work.  A remap unmaps the page where it is,
 * and the growth maps it in the candidate range, without a release and a create.  Idle pages that the request cannot use as
 * they are (full pages without a full-page slot in the range, pages with other properties, classic segments) are released to
 * the driver, which then has memory for small pages.
 *
 *     create pages   full pages first, small pages for the rest, as far as limits and the driver allow
 *     reclaim        cached pages of the growing arena, then of other arenas, into the page cache: the missing bytes only
 *     convert        while pages are missing: release a surplus page, create pages from its memory
 *
 * If all idle memory together does not suffice, nothing is reclaimed.  Pools that users retain keep their pages.  During a
 * capture no memory is unmapped: the remap only creates pages.
 *
 * Locking: the caller holds the device memory lock and no other lock.
 */
#ifndef XSEG_CORE_REMAP_H
#define XSEG_CORE_REMAP_H

#include "src/core/block/arena.h"
#include "src/core/device/device.h"

/* The pages that a growth needs. */
struct xseg_remap_plan {
    const struct xseg_config *config;
    struct xseg_page_filter filter;
    uint64_t bytes;           /* to be mapped; a multiple of granule_bytes */
    uint64_t granule_bytes;   /* of a small page of the growing segment */
    uint64_t page_bytes;      /* of a full page of the growing segment */
    uint64_t full_pages;      /* full-page slots in the candidate range */
    bool wait;                /* wait for streams with queued work */
    struct xseg_arena *arena; /* the growing arena, whose own idle pages are reclaimed first */
};

/*
 * Provide idle pages in the page cache for plan->bytes.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY or XSEG_ERR_LIMIT if there are not enough; XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER.
 *          The page cache can have more pages than before in any case.  The caller maps or releases them.
 * Cost:    creates; a query, or a wait, for each stream whose memory is considered; an unmap for each contiguous run
 */
xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan);

#endif
