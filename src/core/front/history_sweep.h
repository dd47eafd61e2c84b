/* SPDX-License-Identifier: MIT */
/*
 * The sweep: tells the user's hook which of its numbers are still in use.
 *
 * In use is what an event has that can still be walked, what a block carries, and what a thread has gathered for the
 * call that it is in.
 *
 * Locking: GROWTH and HISTORY are taken inside, and the hook is called with no lock held; none may be held.
 */
#ifndef XSEG_CORE_HISTORY_SWEEP_H
#define XSEG_CORE_HISTORY_SWEEP_H

#include "src/core/device/allocator.h"

/* Sweep now, unless another thread does.  Without host memory nothing is told. */
void xseg_history_sweep(struct xseg_allocator *allocator);

/* xseg_history_sweep() by the allocator's store, which calls it from time to time. */
void xseg_history_sweep_store(struct xseg_history_store *store);

#endif
