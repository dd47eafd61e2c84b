/* SPDX-License-Identifier: MIT */
/* The trial that shows whether a device's memory can be exported: by file descriptors, and by fabric handles as well. */
#ifndef XSEG_CORE_SHARE_TRIAL_H
#define XSEG_CORE_SHARE_TRIAL_H

#include "src/core/pools/share.h"

/*
 * Whether memory of a device can be exported: once per device a page is tried, or again where memory was too short for
 * that.  No lock but DRIVER is held.
 *
 * works: whether it is known to work; false with XSEG_OK where memory is too short to try
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED with the driver's reason; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    one create, one or two exports, one release; one create more where there are no fabric handles
 */
xseg_status xseg_share_trial(struct xseg_device *device, bool *works);

/* Whether a trial is still to be made; and to make it, before memory comes that it would concern.  No lock is held. */
static inline bool xseg_share_trial_is_owed(const struct xseg_sharing *sharing)
{
    return __builtin_expect(atomic_load_explicit(&sharing->is_owed, memory_order_relaxed), 0);
}
void xseg_share_trial_again(struct xseg_device *device);

/* Whether memory of a device has fabric handles.  GROWTH is held.  Returns, cost: as xseg_share_trial(), but
 * XSEG_ERR_UNSUPPORTED also where memory is too short to try */
xseg_status xseg_share_trial_fabric(struct xseg_device *device);

/* Fail because the trial of a device has failed. */
xseg_status xseg_share_trial_refuse(struct xseg_sharing *sharing);

#endif
