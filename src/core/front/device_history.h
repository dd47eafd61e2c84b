/* SPDX-License-Identifier: MIT */
/*
 * The history of a device as a reader sees it: the events of one moment, those that were lost, and the user's numbers
 * that are still in use.
 *
 * Locking: GROWTH, ARENA and HISTORY are taken inside; none may be held.
 */
#ifndef XSEG_CORE_DEVICE_HISTORY_H
#define XSEG_CORE_DEVICE_HISTORY_H

#include "src/core/device/allocator.h"
#include "src/core/history/merge.h"

/* Events of one device, for merging with those of others; `lost` and `count` are added up over devices. */
struct xseg_history_reading {
    struct xseg_history_merge merge;
    uint64_t count, lost;
    struct xseg_history_moment moment; /* of the last device that was read */
};

/*
 * Copy the events that a device has had up to now.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_history_read(struct xseg_device *device,
                                     struct xseg_history_reading *reading);

/* Forget the events that a device has had up to now. */
void xseg_device_history_clear(struct xseg_device *device);

/* Describe an event for users. */
void xseg_device_history_describe(struct xseg_allocator *allocator,
                                  const struct xseg_history_moment *moment,
                                  const struct xseg_history_event *event,
                                  struct xseg_history_entry *out);

/* Note a text of the user's. */
xseg_status xseg_device_history_annotate(struct xseg_device *device, const char *text);

#endif
