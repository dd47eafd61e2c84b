/* SPDX-License-Identifier: MIT */
/*
 * Devices that turn out to make no pages: the trial at open has worked, and a growth fails for a reason that is no
 * shortage.  Such a device gets classic segments from then on.  What is mapped there stays, and is used: requests go by
 * the rules of expandable segments, as where one gets no addresses.
 *
 * Calls that fail once or twice prove nothing, so a growth is tried three times in a row.  A driver that speaks of a
 * want of memory is believed, unless plenty is free by its own word and a classic segment serves the request.
 *
 * Locking: the device memory lock is held, but for xseg_unpaged_log().
 */
#ifndef XSEG_CORE_UNPAGED_H
#define XSEG_CORE_UNPAGED_H

#include "src/core/device/device.h"

/* How often a growth is tried in all before the device is judged by it. */
#define XSEG_UNPAGED_TRIES 3u

/* A request on its way through the ladder. */
struct xseg_unpaged {
    unsigned failures; /* of page calls of the device, when they were last looked at */
    char text
        [512]; /* reason for the log line, written without the device memory lock; "": no line */
};

/* Begin a request. */
static inline struct xseg_unpaged xseg_unpaged_begin(const struct xseg_device *device)
{
    return (struct xseg_unpaged){
        .failures = atomic_load_explicit(&device->context.page_failures, memory_order_relaxed)};
}

/* Whether a growth has failed because pages could not be made or mapped, in words that speak of no shortage. */
bool xseg_unpaged_is_failure(const struct xseg_device *device,
                             const struct xseg_alloc_params *params, xseg_status status,
                             struct xseg_unpaged *request);

/*
 * Serve a request whose growth has failed.  If the reason was none to give pages up for, nothing has changed.
 *
 * status: of that growth
 * Returns: XSEG_OK and the block; XSEG_OK and no block: the device makes no pages any more, and the request starts
 *          again; else the error that stands
 */
xseg_status xseg_unpaged_alloc_classic(struct xseg_arena *arena,
                                       const struct xseg_alloc_params *params, xseg_status status,
                                       struct xseg_alloc_result *out, struct xseg_unpaged *request);

/* Give a device's pages up, because of the failure in hand. */
void xseg_unpaged_give_up(struct xseg_device *device, struct xseg_unpaged *request);

/* Fail with XSEG_ERR_UNSUPPORTED because a device makes no pages. */
xseg_status xseg_unpaged_fail(const struct xseg_device *device);

/* Write the line of the log.  No lock is held. */
void xseg_unpaged_log(struct xseg_device *device, const struct xseg_unpaged *request);

#endif
