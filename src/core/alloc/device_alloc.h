/* SPDX-License-Identifier: MIT */
/*
 * The general way of a request through a device: choose its pool and arena, look at pending blocks, and climb the
 * ladder (fallback_chain.h) where no cached block fits.
 */
#ifndef XSEG_CORE_DEVICE_ALLOC_H
#define XSEG_CORE_DEVICE_ALLOC_H

#include "src/core/device/device.h"

/* What an entry point wants of a device; all but the size is checked. */
struct xseg_device_request {
    struct xseg_pool *pool; /* of this device; NULL: where routes send the stream, or the default */
    const struct xseg_config *config;
    uint64_t bytes;     /* not 0 */
    uint64_t alignment; /* a power of two; 0: none wanted */
    uint64_t at;        /* where the block is to begin; 0: anywhere */
    xseg_stream stream;
    bool zeroed;
    bool has_asked; /* pending blocks were looked at for this request, which happens once */
};

/* Allocate: serves xseg_alloc_with() of the public header. */
xseg_status xseg_device_alloc(struct xseg_device *device, const struct xseg_device_request *request,
                              void **out);

/* The last step of an allocation or a free where the configuration has has_call_epilogue: decay, traces, housekeeping. */
void xseg_device_follow(struct xseg_device *device, const struct xseg_config *config);

/* Take back pending blocks that are free by now, before a request is served from an arena; in a capture only blocks
 * that its graph allows.  Only called while blocks are pending. */
void xseg_device_poll_pending(struct xseg_arena *arena, const struct xseg_config *config);

/* Have memory ready: serves xseg_prewarm() of the public header. */
xseg_status xseg_device_prewarm(struct xseg_device *device,
                                const struct xseg_device_request *request);

#endif
