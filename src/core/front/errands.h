/* SPDX-License-Identifier: MIT */
/*
 * Errands: what is done beside the calls of the user, by the next call on the general path or the background thread.
 *
 * They are run by calls on the general path, ticks and the background thread, never by a hit.
 *
 * Locking: none may be held.
 */
#ifndef XSEG_CORE_ERRANDS_H
#define XSEG_CORE_ERRANDS_H

#include "src/core/device/allocator.h"

/* Publish figures that are old.  errno and the calling thread's error text stay. */
void xseg_errands_run(struct xseg_allocator *allocator);

#endif
