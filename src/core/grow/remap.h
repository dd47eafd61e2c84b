/* SPDX-License-Identifier: MIT */
/*
 * Stealing: when memory is short, idle memory of the device moves to the arena that needs it.
 *
 * A page of a cached block is unmapped where it is and mapped where a request needs it, without
 * being released and created again.  A full page that the request has no room for, and a classic
 * segment, go back to the driver, which then has memory for small pages.
 *
 * Only the missing bytes are taken; if all idle memory together is not enough, none is.  Memory goes only
 * when the work of its stream has finished.  Pools with a holder are left alone; during a capture no memory
 * is stolen.
 *
 * Locking: the device memory lock is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_REMAP_H
#define XSEG_CORE_REMAP_H

#include "src/core/device/device.h"

struct xseg_remap_plan {
    const struct xseg_config *config;
    struct xseg_page_filter filter;
    uint64_t bytes;           /* to be mapped; a multiple of granule_bytes */
    uint64_t granule_bytes;   /* of a small page of the segment that grows */
    uint64_t page_bytes;      /* of a full page of the segment that grows */
    uint64_t full_pages;      /* how many full pages there is room for */
    bool wait;                /* for streams that still work */
    struct xseg_arena *arena; /* the arena that asks; its own idle pages go first */
};

/*
 * Have idle pages for plan->bytes: new ones as far as the driver and the limit allow, else stolen ones.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY or XSEG_ERR_LIMIT when there are not enough;
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER.  Idle pages may be left in any case: the caller maps
 *          or releases them
 * Cost:    creates; a query (or a wait) for each stream whose memory is looked at; an unmap for each
 *          run that is taken
 */
xseg_status xseg_remap_pages(struct xseg_device *device, const struct xseg_remap_plan *plan);

#endif
