/* SPDX-License-Identifier: MIT */
/*
 * Trim: idle cached memory goes back to the driver.
 *
 * Whole classic segments are freed; of expandable ones, the whole pages inside each cached block
 * are unmapped, and the parts before and behind stay cached:
 *
 *     [ cached ............................ ]         one cached block
 *     |    |        |        |        |    |          page boundaries
 *     [ca][ hole ..................... ][ca]          what is left
 *
 * Memory goes only when the work of its stream has finished: asked with a query, or waited for.
 */
#ifndef XSEG_CORE_TRIM_H
#define XSEG_CORE_TRIM_H

#include "src/core/device/device.h"
#include "xseg/trim.h"

/* Which arenas a trim looks at, and how. */
struct xseg_trim_plan {
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    bool wait;                              /* for pending blocks and streams */
    bool held_pools;                        /* also pools with a holder: when closing */
    uint64_t leave;                         /* bytes that are to stay reserved in these arenas */
    uint64_t idle_ms;                       /* only what has been idle for so long */
};

/*
 * Trim a device.  GROWTH is held, no other lock.
 *
 * done: added to, not set
 * Returns: XSEG_OK; XSEG_ERR_DRIVER if a stream could not be asked or waited for;
 *          XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trimmed *done);

/* Which cached blocks a claim takes (trim_steps.h). */
struct xseg_trim_wish {
    uint64_t least; /* bytes of a block; from 2 MiB on, since no segment and no page is smaller */
    uint64_t most;  /* bytes that are enough */
    /* Whether a block may be taken; NULL: every block. */
    bool (*wants)(void *self, const struct xseg_block *block);
    void *self;
};

#endif
