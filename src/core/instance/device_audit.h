/* SPDX-License-Identifier: MIT */
/* The host memory of a device, and the audit of its invariants. */
#ifndef XSEG_CORE_DEVICE_AUDIT_H
#define XSEG_CORE_DEVICE_AUDIT_H

#include "src/core/device/device.h"

/* Host bytes that a device uses for bookkeeping. */
uint64_t xseg_device_host_bytes(struct xseg_device *device);

/* Audit a device and all its arenas.  No lock is held. */
bool xseg_device_audit(struct xseg_device *device, struct xseg_violation *violation);

#endif
