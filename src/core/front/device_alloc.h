/* SPDX-License-Identifier: MIT */
/*
 * The general way of a request through a device: which pool and arena it goes to, what is pending there, and the
 * ladder (ladder.h) where nothing fits.
 */
#ifndef XSEG_CORE_DEVICE_ALLOC_H
#define XSEG_CORE_DEVICE_ALLOC_H

#include "src/core/device/device.h"

/* What a entry point wants of a device; everything is checked but the size. */
struct xseg_device_request {
    struct xseg_pool *pool; /* of this device; NULL: where routes send the stream, or the default */
    const struct xseg_config *config;
    uint64_t bytes;     /* not 0 */
    uint64_t alignment; /* a power of two */
    xseg_stream stream;
    bool zeroed;
    bool has_asked; /* what is pending has been looked at for it, which PyTorch does once */
};

/* Allocate; as xseg_alloc_with() of the public header. */
xseg_status xseg_device_alloc(struct xseg_device *device, const struct xseg_device_request *request,
                              void **out);

/* What an allocation or a free ends with where the configuration's follows_calls says so. */
void xseg_device_follow(struct xseg_device *device, const struct xseg_config *config);

/* Take back what can be had again, before a request is served from an arena; for when something is
 * pending.  In a capture only what its graph allows. */
void xseg_device_look_at_pending(struct xseg_arena *arena, const struct xseg_config *config);

/* Have memory ready; as xseg_prewarm() of the public header. */
xseg_status xseg_device_prewarm(struct xseg_device *device,
                                const struct xseg_device_request *request);

#endif
