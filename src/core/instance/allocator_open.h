/* SPDX-License-Identifier: MIT */
/* Opening and closing an allocator, and opening its devices. */
#ifndef XSEG_CORE_ALLOCATOR_OPEN_H
#define XSEG_CORE_ALLOCATOR_OPEN_H

#include "src/core/device/allocator.h"

/* Serve xseg_open() of the public header. */
xseg_status xseg_allocator_open(const char *config, const char *driver, const struct xseg_log *log,
                                const struct xseg_clock *clock, struct xseg_allocator **out);

/* Serve xseg_close() of the public header. */
xseg_status xseg_allocator_close(struct xseg_allocator *allocator);

/*
 * Get a device by its ordinal; the first call opens it.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (no such device), or an error of xseg_device_open()
 */
xseg_status xseg_allocator_device(struct xseg_allocator *allocator, int ordinal,
                                  struct xseg_device **out);

#endif
