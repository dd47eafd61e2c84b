/* SPDX-License-Identifier: MIT */
/*
 * Parting: granules that leave with a page which is not taken back, since it has other places.
 * A commit gives such a granule a page of its own, once the old one has gone from it.
 *
 * Locking: GROWTH is held, and may be let go while observers are told.
 */
#ifndef XSEG_CORE_PARTING_H
#define XSEG_CORE_PARTING_H

#include "src/core/ranges/range.h"

/* Whether a granule of a run leaves with such a page. */
bool xseg_parting_is_needed(const struct xseg_range_run *run);

/*
 * Wait for the streams that such pages leave with, and let them go; not in a capture.  Observers may be told in the end, so
 * the range may not be there any more.
 *
 * Returns: XSEG_OK, also if some have not gone; XSEG_ERR_DRIVER
 * Cost:    a look at what leaves; one wait of the host for each granule whose stream has not passed
 */
xseg_status xseg_parting_wait(const struct xseg_range_run *run);

/* Whether all such pages have gone: XSEG_OK; XSEG_ERR_BUSY: a capture is under way, or one is held, pinned or
 * exported. */
xseg_status xseg_parting_check(const struct xseg_range_run *run);

#endif
