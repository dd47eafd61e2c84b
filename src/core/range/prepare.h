/* SPDX-License-Identifier: MIT */
/*
 * Preparing: pages made ahead for a range; and its quota, a promise of pages.
 *
 * Locking: the device memory lock is taken, and let go between two pages.
 */
#ifndef XSEG_CORE_PREPARE_H
#define XSEG_CORE_PREPARE_H

#include "src/core/range/range.h"

/* As xseg_range_prepare() and xseg_range_set_quota() of the public header.  No lock is held. */
xseg_status xseg_prepare(struct xseg_range *range, uint64_t bytes);
xseg_status xseg_prepare_quota(struct xseg_range *range, uint64_t bytes);

#endif
