/* SPDX-License-Identifier: MIT */
/*
 * Shares: pages of committed granules are mapped at other granules as well (places.h).
 *
 * Locking: GROWTH is taken.
 */
#ifndef XSEG_CORE_SHARES_H
#define XSEG_CORE_SHARES_H

#include "src/core/ranges/range.h"

/* As xseg_range_share() of the public header.  No lock is held. */
xseg_status xseg_shares_map(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                            struct xseg_range *from, uint64_t from_offset);

#endif
