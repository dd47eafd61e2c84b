/* SPDX-License-Identifier: MIT */
/* Opening and closing a device. */
#ifndef XSEG_CORE_DEVICE_OPEN_H
#define XSEG_CORE_DEVICE_OPEN_H

#include "src/core/device/device.h"

/*
 * Open a device.
 *
 * why: a sentence that says why virtual memory management does not work here; "" if it does
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_open(struct xseg_allocator *allocator, int ordinal, char *why,
                             size_t why_bytes, struct xseg_device **out);

/*
 * The steps of closing a device; each may be called again after an error.
 *
 * expect_none_live: check that no block is live.  XSEG_OK; XSEG_ERR_BUSY, and the error text names blocks.
 * give_back:        give all memory back to the driver.  XSEG_OK, XSEG_ERR_DRIVER.
 * let_go:           release the context.  XSEG_OK, XSEG_ERR_DRIVER.  Only the two steps below may follow.
 * hold_again:       retain the context again; the device is lost where that fails.
 * end:              free the device.
 */
xseg_status xseg_device_check_none_allocated(struct xseg_device *device);
xseg_status xseg_device_release_memory(struct xseg_device *device);
xseg_status xseg_device_release(struct xseg_device *device);
void xseg_device_retain(struct xseg_device *device);
void xseg_device_end(struct xseg_device *device);

/* Make a private pool, held once; XSEG_ERR_UNSUPPORTED where it is to be exportable and cannot. */
xseg_status xseg_device_make_pool(struct xseg_device *device,
                                  const struct xseg_pool_options *options, struct xseg_pool **out);

#endif
