/* SPDX-License-Identifier: MIT */
/*
 * Borrowed memory: which idle pages of a device are above the share that this process has of it in its budget, and so go
 * to other processes when they want some.
 *
 * Giving takes the page cache first, then idle pages, the oldest first (xseg_decay_release()).  What is said here follows
 * that, for as much as is borrowed above budget_min_mb.  Of pages that have been idle equally long others may go than are
 * named here.
 */
#ifndef XSEG_CORE_ABOVE_SHARE_H
#define XSEG_CORE_ABOVE_SHARE_H

#include "src/core/report/explain.h"

/*
 * Decide which of the reasons BORROWED, from one on, keep that: as many bytes as others would get, in whole pages, the
 * oldest first.  What stays of the others is DECAY, or POLICY where nothing decays.  At most one reason is split in two.
 *
 * The device memory lock is held, and the looks at arenas are still there.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_above_share_classify(struct xseg_explaining *explaining);

/* The order of ages of reasons, pointers to pointers to which are given: the youngest first, then by address. */
int xseg_above_share_compare_ages(const void *left, const void *right);

#endif
