/* SPDX-License-Identifier: MIT */
/*
 * The page of zeros of a range (vmm/zeros.h), which counts as committed memory of the range's pool.
 *
 * Locking: GROWTH is held.
 */
#ifndef XSEG_CORE_ZERO_PAGE_H
#define XSEG_CORE_ZERO_PAGE_H

#include "src/core/ranges/range.h"

/*
 * Make the page of a range that has no memory yet, where a limit allows it: to be read only, if the device has such rights.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, in a capture; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    as xseg_zeros_open(); once a device, two calls that make a stream and a trial
 */
xseg_status xseg_zero_page_open(struct xseg_range_body *body);

/* Take the page away, if there is one; the range has no memory. */
void xseg_zero_page_close(struct xseg_range_body *body);

/*
 * Uncover granules without memory, which get some.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, in a capture; or the driver's error.  On an error xseg_zeros_cover() covers them again
 */
xseg_status xseg_zero_page_uncover(const struct xseg_range_run *run);

#endif
