/* SPDX-License-Identifier: MIT */
/* What a device takes of host memory, and whether its invariants hold. */
#ifndef XSEG_CORE_DEVICE_AUDIT_H
#define XSEG_CORE_DEVICE_AUDIT_H

#include "src/core/device/device.h"

/* Host bytes for bookkeeping. */
uint64_t xseg_device_host_bytes(struct xseg_device *device);

/* Audit every arena; takes the locks it needs. */
bool xseg_device_audit(struct xseg_device *device, struct xseg_finding *finding);

#endif
