/* SPDX-License-Identifier: MIT */
/*
 * Notices: observers are told before memory is unmapped, and after it has been mapped.
 *
 *     claimed, stream idle --> leaving, for each run --> unmapped
 *                                    |
 *                                    +--> stays after all --> came, with the same generation
 *     mapped, still busy   --> came, for each run    --> cached
 *
 * An observer may call the library, so no lock is held while it runs: the device memory lock is given and taken again.  The
 * memory in question is busy, or in a pool that moves, so no other thread changes it.  Everything else may
 * be different afterwards, and a capture may have begun, during which no memory goes.  Memory also stays if another
 * thread is in a callback about it: no callback waits for another one.
 *
 * Without an observer, each of these functions is one load.
 *
 * Locking: the device memory lock is held by the caller, and no other lock; it is held again on return.
 */
#ifndef XSEG_CORE_NOTIFY_H
#define XSEG_CORE_NOTIFY_H

#include "src/core/device/device.h"

/* Whether there is an observer to tell. */
bool xseg_notify_is_enabled(const struct xseg_device *device);

/*
 * Tell observers that claimed blocks, chained through `right`, are about to be unmapped.
 *
 * Returns: whether they may be; else observers have been told that they stay, and the caller puts them back
 */
bool xseg_notify_unmap(struct xseg_device *device, const struct xseg_block *claimed);

/* Tell observers that bytes of an extent, which are claimed and whole pages, are about to be unmapped.  Returns: as
 * xseg_notify_unmap() */
bool xseg_notify_unmap_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Tell observers that bytes [base, base + bytes) of a busy block's extent have been mapped, or stay although they
 * were about to go. */
void xseg_notify_map(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Tell observers that all memory of a pool that moves is about to be unmapped, or was mapped.  Returns false if memory that is
 * about to be unmapped has to stay. */
bool xseg_notify_pool(struct xseg_pool *pool, bool leaves);

/* Whether the notification that the calling thread delivers is that all memory of a pool is about to be unmapped. */
bool xseg_notify_is_of_pool(const struct xseg_pool *pool);

/* Called in a callback that is notified before memory is unmapped: the memory stays, since another thread registers or
 * deregisters it. */
void xseg_notify_keep(void);

#endif
