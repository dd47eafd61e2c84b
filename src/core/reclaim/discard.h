/* SPDX-License-Identifier: MIT */
/*
 * Forgetting paused pools (pause.h) that are not resumed: their saved contents are freed, and their pages become
 * holes.
 *
 * Locking: the device memory lock is held by the caller, and no other lock.
 */
#ifndef XSEG_CORE_DISCARD_H
#define XSEG_CORE_DISCARD_H

struct xseg_contents;
struct xseg_device;

/* Free the saved contents of a pool; NULL: the pool has none.  No lock is needed. */
void xseg_discard_contents(struct xseg_contents *contents);

/* Forget paused pools without a holder and without blocks. */
void xseg_discard_paused(struct xseg_device *device);

/* Forget all paused pools: the device closes. */
void xseg_discard_all(struct xseg_device *device);

/* Free the saved contents of all pools, and nothing else: the device is lost. */
void xseg_discard_lost(struct xseg_device *device);

#endif
