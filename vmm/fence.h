/* SPDX-License-Identifier: MIT */
/*
 * Fences: recycled events that say whether a stream has passed a point.
 *
 * Locking: PENDING of the device.
 */
#ifndef XSEG_VMM_FENCE_H
#define XSEG_VMM_FENCE_H

#include "vmm/driver.h"

/* The events of one device: idle ones, and room for those in use. */
struct xseg_fences {
    struct xseg_context *context;
    xseg_event *idle; /* [capacity] */
    size_t count, capacity;
    size_t made; /* idle events and those in use */
};

void xseg_fences_init(struct xseg_fences *fences, struct xseg_context *context);

/* Destroy the idle events.  Returns the first error; events that the driver kept stay idle. */
xseg_status xseg_fences_fini(struct xseg_fences *fences);

/* Forget the idle events of a lost device. */
void xseg_fences_abandon(struct xseg_fences *fences);

/*
 * An event recorded on a stream: it is complete once the work queued there so far has finished.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one record; one event create where none is idle
 */
xseg_status xseg_fences_record(struct xseg_fences *fences, xseg_stream stream, xseg_event *out);

/* Give an event back for reuse.  Room for it was made when it was created. */
void xseg_fences_return(struct xseg_fences *fences, xseg_event event);

#endif
