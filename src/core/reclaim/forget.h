/* SPDX-License-Identifier: MIT */
/*
 * What becomes of paused pools (pause.h) that do not come back: the contents that were kept of them are
 * forgotten, and their pages become holes.
 *
 * Locking: GROWTH is held by the caller, and no other lock.
 */
#ifndef XSEG_CORE_FORGET_H
#define XSEG_CORE_FORGET_H

struct xseg_contents;
struct xseg_device;

/* Let go of the contents of a pool; NULL: nothing was kept.  No lock is needed. */
void xseg_forget_contents(struct xseg_contents *contents);

/* Forget paused pools that nobody holds and that have no blocks. */
void xseg_forget_paused(struct xseg_device *device);

/* Forget all paused pools: the device closes. */
void xseg_forget_all(struct xseg_device *device);

/* Let go of all contents that are kept, and of nothing else: the device is lost. */
void xseg_forget_lost(struct xseg_device *device);

#endif
