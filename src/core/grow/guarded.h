/* SPDX-License-Identifier: MIT */
/*
 * Guarded blocks: blocks with a segment each, for the keys unmap_on_free and guard_page.
 *
 *     [ block ............ ][ cached ]( never mapped )      unmap_on_free
 *     [ cached ][ ............ block ]( never mapped )      guard_page
 *      <----- pages of 2 MiB ------->   2 MiB
 *
 * A free of a guarded block waits for its streams and gives its pages back to the driver.  The addresses
 * stay reserved and unused for a while, in quarantine, so that a late access faults, and a second free is
 * recognized.
 *
 * These segments are in arenas of a pool of the device's own.  No request searches the free index and the
 * holes of such an arena: a segment serves one block.  growth.c makes the segments.  Pages that could not be
 * taken away (a stream is being captured, or there was an error) stay cached, and the next trim takes them.
 *
 * Locking: the device memory lock guards quarantines.
 */
#ifndef XSEG_CORE_GUARDED_H
#define XSEG_CORE_GUARDED_H

#include "src/core/device/device.h"

/* The most segments of an arena in quarantine; then the older half of them ends. */
#define XSEG_GUARDED_QUARANTINE 4096u

/* Whether a configuration asks for guarded blocks. */
static inline bool xseg_guarded_is_enabled(const struct xseg_config *config)
{
    return config->unmap_on_free || config->guard_page;
}

/*
 * If a request can be served with a guarded block, mark the request, and replace its arena by a guarded one.  No lock is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_guarded_choose(struct xseg_alloc_params *params);

/*
 * Free a busy block of a guarded arena.  No lock is held.
 *
 * Returns: XSEG_OK; as xseg_pending_free() for a block that has uses
 */
xseg_status xseg_guarded_free(struct xseg_block *block);

#endif
