/* SPDX-License-Identifier: MIT */
/*
 * Guarded blocks: blocks with a segment each, for the keys unmap_on_free and guard_page.
 *
 *     [ block ............ ][ cached ]( never mapped )      unmap_on_free
 *     [ cached ][ ............ block ]( never mapped )      guard_page
 *      <----- pages of 2 MiB ------->   2 MiB
 *
 * A free of a guarded block waits for the streams of the block and releases its pages to the driver.  The address range stays
 * reserved and unused for a while, in quarantine, so that a late access faults and a double free is recognized.
 *
 * These segments are in arenas of a private pool of the device.  The free lists and the unmapped blocks of such an arena serve
 * no request, since a segment serves one block.  growth.c creates the segments.  If the pages cannot be released (a stream is
 * being captured, or a driver call fails), they stay cached, and the next trim releases them.
 *
 * Locking: the device memory lock guards quarantines.
 */
#ifndef XSEG_CORE_GUARDED_H
#define XSEG_CORE_GUARDED_H

#include "src/core/device/device.h"

/* The maximum number of segments of an arena in quarantine; then the older half is destroyed. */
#define XSEG_GUARDED_QUARANTINE 4096u

/* Whether a configuration enables guarded blocks. */
static inline bool xseg_guarded_is_enabled(const struct xseg_config *config)
{
    return config->unmap_on_free || config->guard_page;
}

/*
 * If a guarded block can serve a request, mark the request, and replace its arena by a guarded one.  No lock is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_guarded_choose(struct xseg_alloc_params *params);

/*
 * Free a claimed block of a guarded arena.  No lock is held.
 *
 * Returns: XSEG_OK; as xseg_pending_free() for a block that has uses
 */
xseg_status xseg_guarded_free(struct xseg_block *block);

#endif
