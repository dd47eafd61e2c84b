/* SPDX-License-Identifier: MIT */
/*
 * Figures: the few numbers about an allocator that the monitoring of a service needs.
 *
 * They are read while everything runs, without the driver, so those of one device may be of slightly different moments.
 * Reading changes nothing: any number of readers see the same.  Figures of pools are those of pool_figures.h.
 *
 * Locking: as pool_figures.h.
 */
#ifndef XSEG_CORE_FIGURES_H
#define XSEG_CORE_FIGURES_H

#include "src/core/device/allocator.h"
#include "src/core/inspect/pool_figures.h"

/* A figure that is not known, or not there. */
#define XSEG_FIGURES_NONE UINT64_MAX

struct xseg_figures_pool {
    enum xseg_pool_figures_of of;
    int device;
    uint32_t number; /* of a private pool, from 1 on */
    char name[XSEG_POOL_NAME_MOST + 1];
    uint64_t live, pending, cached, reserved, registered; /* bytes */
    uint64_t recent_peak; /* of `reserved`, see recent_peak.h; NONE where pools share figures */
    uint64_t limit;       /* on `reserved`, bytes; NONE: no limit */
};

struct xseg_figures_device {
    int device;
    uint64_t total, limit;              /* bytes; limit: what may be taken, NONE: no limit */
    uint64_t page_cache, stuck, paused; /* bytes */
    uint64_t recent_peak;               /* of reserved bytes */
    uint64_t stranded, stranded_age;    /* bytes, nanoseconds; NONE: not looked for yet */
    uint64_t used_elsewhere,
        used_elsewhere_age; /* as stranded: taken by others, by the driver's last answer */
    uint64_t pools;         /* private ones */
    uint64_t ooms, rejections, retries; /* counted; a reset sets them to 0 */
    uint64_t has_part; /* whether the device takes part in a budget; NONE without share_budget */
    /* Bytes, and the number of other processes; NONE without a budget, or before the first turn */
    uint64_t share, borrowed, wanted, others;
    uint64_t asks, served,
        given; /* counted: requests that asked, those of them that were served, bytes */
};

struct xseg_figures_call {
    const char *name; /* lives as long as the library */
    uint64_t count, failed;
    uint64_t spent; /* nanoseconds; NONE: calls are not timed */
};

struct xseg_figures {
    struct xseg_figures_device *device; /* open devices */
    struct xseg_figures_pool *pool;     /* of all of them, those of a device together */
    size_t devices, pools, pool_room;
    struct xseg_figures_call call[XSEG_DRIVER_CALLS_MOST];
    size_t calls;
};

/*
 * Take the figures of all open devices.  They are the caller's to end, also after an error.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 * Cost:    a few words read of each pool and arena
 */
xseg_status xseg_figures_take(struct xseg_allocator *allocator, struct xseg_figures *out);

void xseg_figures_end(struct xseg_figures *figures);

#endif
