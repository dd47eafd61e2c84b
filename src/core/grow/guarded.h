/* SPDX-License-Identifier: MIT */
/*
 * Alone: blocks with a segment each, for the keys unmap_on_free and guard_page.
 *
 *     [ block ............ ][ cached ]( never mapped )      unmap_on_free
 *     [ cached ][ ............ block ]( never mapped )      guard_page
 *      <----- pages of 2 MiB ------->   2 MiB
 *
 * When such a block is freed, its streams are waited for and its pages go back to the driver.  Its
 * addresses stay reserved and unused for a while, in quarantine, so that a late access faults, and a
 * second free finds out what it is.
 *
 * These segments are in arenas of a pool of the device's own.  Nobody searches their shelves and
 * holes: a segment serves one block.  growth.c makes them.  Where pages could not be taken away (a
 * stream that is being captured, an error) they stay cached, and the next trim takes them.
 *
 * Locking: GROWTH guards quarantines.
 */
#ifndef XSEG_CORE_GUARDED_H
#define XSEG_CORE_GUARDED_H

#include "src/core/device/device.h"

/* The most segments of an arena in quarantine; then the older half of them ends. */
#define XSEG_ALONE_QUARANTINE 4096u

/* Whether a configuration has a key that asks for blocks of this kind. */
static inline bool xseg_guarded_is_asked(const struct xseg_config *config)
{
    return config->unmap_on_free || config->guard_page;
}

/*
 * If a request for an arena can be served that way, mark it, and replace the arena.  No lock is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_guarded_choose(struct xseg_need *need, struct xseg_arena **arena);

/*
 * Free a busy block of an guarded arena.  No lock is held.
 *
 * Returns: XSEG_OK; as xseg_pending_free() for one that has uses
 */
xseg_status xseg_guarded_free(struct xseg_block *block);

#endif
