/* SPDX-License-Identifier: MIT */
/*
 * Trials: whether a driver makes pages of a property on a device, and exports those that are made for it.
 *
 * An attribute that says yes is not enough, so a page is created, once for each property; where memory is too short
 * for that the trial is *owed*, and made when memory comes.  A pool that names `exportable` itself is refused where the
 * trial fails.  What follows the configuration, and `rdma` in any case, is without the property there, and a line of the
 * log says why.
 */
#ifndef XSEG_CORE_PAGE_PROBE_H
#define XSEG_CORE_PAGE_PROBE_H

#include "src/core/pool/share.h"

/*
 * Whether memory of a device can be exported: by file descriptors, and by fabric handles as well.  No lock but DRIVER is
 * held.
 *
 * works: whether it is known to work; false with XSEG_OK where memory is too short to try
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED with the driver's reason; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    one create, one or two exports, one release; one create more where there are no fabric handles
 */
xseg_status xseg_page_probe_export(struct xseg_device *device, bool *works);

/*
 * Find out whether network cards may reach memory of a device (context.has_rdma).  A refusal is no error: its first
 * call writes a line of the log.  No lock but DRIVER is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 * Cost:    as the trial of xseg_context_open(), with pages that have the property
 */
xseg_status xseg_page_probe_rdma(struct xseg_device *device);

/* Whether a trial is still to be made; and to make it, before memory comes that it would concern.  No lock is held. */
static inline bool xseg_page_probe_is_due(const struct xseg_sharing *sharing)
{
    return __builtin_expect(atomic_load_explicit(&sharing->is_owed, memory_order_relaxed), 0);
}
void xseg_page_probe_again(struct xseg_device *device);

/* Whether memory of a device has fabric handles.  The device memory lock is held.  Returns, cost: as xseg_page_probe_export(), but
 * XSEG_ERR_UNSUPPORTED also where memory is too short to try */
xseg_status xseg_page_probe_fabric(struct xseg_device *device);

/* Fail because the trial of exporting has failed. */
xseg_status xseg_page_probe_refuse(const struct xseg_sharing *sharing);

#endif
