/* SPDX-License-Identifier: MIT */
/*
 * Opening a device: its primary context is retained, and what its driver can do is tried.
 *
 * Virtual memory management counts as working only if a trial of reserve, create, map, set-access
 * and unmap succeeds, since some virtual GPUs and subsystems say yes and then refuse.  The trial
 * also finds whether one call may cover several mappings: that is observed, not documented.
 *
 * struct xseg_context itself is in driver.h.
 */
#ifndef XSEG_VMM_CONTEXT_H
#define XSEG_VMM_CONTEXT_H

#include "vmm/leftovers.h"

/*
 * Open a device.
 *
 * why: where a sentence goes that says why virtual memory management does not work; "" if it does
 * Returns: XSEG_OK (look at has_vmm), XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY, XSEG_ERR_DEVICE_LOST
 * Cost:    primary context retained; two pages are created, mapped, unmapped and released
 */
xseg_status xseg_context_open(struct xseg_context *context, struct xseg_driver *driver, int ordinal,
                              struct xseg_leftovers *leftovers, char *why, size_t why_bytes);

/* Let go of the primary context; nothing happens if that has been done. */
xseg_status xseg_context_close(struct xseg_context *context);

/* After a close: retain the primary context again.  If it cannot be had, the device is lost. */
void xseg_context_reopen(struct xseg_context *context);

#endif
