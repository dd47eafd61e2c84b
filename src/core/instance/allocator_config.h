/* SPDX-License-Identifier: MIT */
/* Changing the configuration, the limits of devices, and the observers, while the allocator runs. */
#ifndef XSEG_CORE_ALLOCATOR_CONFIG_H
#define XSEG_CORE_ALLOCATOR_CONFIG_H

#include "src/core/device/allocator.h"

/* Serve xseg_config_set() of the public header. */
xseg_status xseg_allocator_configure(struct xseg_allocator *allocator, const char *config);

/* Put a version, which is summed up, in force. */
void xseg_allocator_apply_config(struct xseg_allocator *allocator,
                                 struct xseg_config_version *version);

/* Log the keys of a configuration string that are set and have no effect here.  named: set of the string's keys */
void xseg_allocator_log_idle_keys(struct xseg_allocator *allocator, uint64_t named);

/* Serve xseg_limits_get() and xseg_limits_set() for an open device. */
void xseg_allocator_limits_get(struct xseg_allocator *allocator, const struct xseg_device *device,
                               struct xseg_limits *out);
xseg_status xseg_allocator_limits_set(struct xseg_allocator *allocator, struct xseg_device *device,
                                      const struct xseg_limits *limits);

/* Serve xseg_observer_add() and xseg_observer_remove() of the public header. */
xseg_status xseg_allocator_observe(struct xseg_allocator *allocator,
                                   const struct xseg_observer *observer, uint64_t *id);
xseg_status xseg_allocator_unobserve(struct xseg_allocator *allocator, uint64_t id);

#endif
