/* SPDX-License-Identifier: MIT */
/*
 * Remap: under memory pressure, idle pages of the device move to the segment that grows.
 *
 * An idle page is a whole page in a cached block whose stream has completed its work.  A remap unmaps the page, and the growth
 * maps the same handle in the candidate range, so the page is neither released nor created.  Idle pages that the request cannot
 * use (full pages without a full-page slot in the range, pages with other properties, classic segments) are released to the
 * driver, and small pages are created from their memory.
 *
 *     create pages   full pages first, then small pages for the remaining bytes, as far as limits and the driver allow
 *     reclaim        cached pages of the growing arena, then of other arenas, into the page cache, up to the missing bytes
 *     convert        while pages are missing: release a surplus page, and create pages from its memory
 *
 * If all idle memory together does not suffice, nothing is reclaimed.  No pages of pools that users retain are reclaimed.
 * During a capture no memory is unmapped: the remap only creates pages.
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
    uint64_t bytes;           /* number of bytes to map; a multiple of granule_bytes */
    uint64_t granule_bytes;   /* size of a small page of the growing segment */
    uint64_t page_bytes;      /* size of a full page of the growing segment */
    uint64_t full_pages;      /* number of full-page slots in the candidate range */
    bool wait;                /* whether to wait for streams with queued work */
    struct xseg_arena *arena; /* the growing arena, whose own idle pages are reclaimed first */
};

/*
 * Provide idle pages in the page cache for plan->bytes.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY or XSEG_ERR_LIMIT if there are not enough; XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER.
 *          Also after a failure the page cache can contain additional pages, which the caller maps or releases.
 * Cost:    with device_free_min_mb at most two memory queries; creates; a query, or a wait, for each stream whose memory is
 *          considered; an unmap for each contiguous run of pages
 */
xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan);

#endif
