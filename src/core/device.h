/* SPDX-License-Identifier: MIT */
/*
 * A device: its context, pools, streams and totals, and what is done with them.
 *
 * alloc() and free() here are the hit path; growth.h is where a miss goes, trim.h where memory
 * goes back.
 *
 * Locking: see src/base/lock.h for the order.  growth_lock guards everything that talks to the
 * driver about memory; table_lock the insertion of streams, arenas and pools.
 */
#ifndef XSEG_CORE_DEVICE_H
#define XSEG_CORE_DEVICE_H

#include "src/base/fork.h"
#include "src/core/bounds.h"
#include "src/core/decay.h"
#include "src/core/fill.h"
#include "src/core/free_log.h"
#include "src/core/lookup.h"
#include "src/core/pending.h"
#include "src/core/refusal.h"
#include "src/core/retire.h"
#include "src/core/route.h"
#include "src/core/share.h"
#include "vmm/context.h"

struct xseg_allocator;

struct xseg_device {
    struct xseg_context context;
    struct xseg_leftovers leftovers;
    /* Memory has been short, and little of it is free: pages are small now.  Guarded by GROWTH. */
    bool is_short;
    bool lacks_addresses; /* a classic segment stood in for one without addresses; by GROWTH */
    /* Memory has been short once: events of pending blocks are asked about where that can serve. */
    atomic_bool asks_late;
    enum xseg_refuser refuser; /* of the last growth that was refused.  Guarded by GROWTH */
    struct xseg_pages pages;   /* unmapped physical memory; guarded by GROWTH */
    struct xseg_allocator *allocator;
    const struct xseg_fork *fork;  /* the allocator's */
    struct xseg_lookup *lookup;    /* the allocator's */
    struct xseg_lock *lookup_lock; /* TABLE, of the allocator: guards insertion into lookup */
    struct xseg_lock growth_lock;  /* GROWTH */
    struct xseg_lock table_lock;   /* TABLE */
    struct xseg_streams streams;
    struct xseg_pending pending;
    struct xseg_routes routes;
    xseg_stream side;   /* what waits for users' events; NULL until needed; guarded by GROWTH */
    xseg_stream copier; /* what copies contents of paused pools; as above */
    struct xseg_totals totals;
    struct xseg_pool pool; /* the default one */
    struct xseg_pool_body pool_body;
    _Atomic(struct xseg_pool_body *) private_pools; /* that have not ended; changed under TABLE */
    _Atomic(struct xseg_pool *) alone_pool;         /* one of those, see alone.h; or NULL */
    struct xseg_retirement retirement;
    atomic_uint
        searches; /* of the default pool while garbage is collected by age: that age's clock */
    struct xseg_bounds bounds;
    struct xseg_decay decay;
    struct xseg_fill fill;
    struct xseg_free_log free_log;
    struct xseg_sharing sharing;
    struct xseg_list spare_extents; /* ended extents, for reuse: look-ups may still see them */
    atomic_uint_fast64_t reserved;  /* bytes mapped or allocated */
    atomic_uint_fast64_t away;      /* bytes of blocks whose pages are away, see pause.h */
    atomic_uint_fast64_t addresses; /* bytes of reserved ranges */
    /* PyTorch's num_* counters; a reset of the totals sets them to 0. */
    atomic_uint_fast64_t retries, ooms, rejections, syncs, grown, shrunk;
    atomic_uint_fast64_t scrubbed; /* bytes cleared, see scrub.h; reset with those */
};

/*
 * Open a device.
 *
 * why: a sentence that says why virtual memory management does not work here; "" if it does
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_NO_MEMORY, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_open(struct xseg_allocator *allocator, int ordinal, char *why,
                             size_t why_bytes, struct xseg_device **out);

/*
 * The steps of closing; each may be called again after an error.
 *
 * expect_none_live: XSEG_OK, or XSEG_ERR_BUSY naming live blocks
 * give_back:        all memory goes to the driver: XSEG_OK, XSEG_ERR_DRIVER
 * let_go:           of the context: XSEG_OK, XSEG_ERR_DRIVER; then only these two:
 * hold_again:       the context is retained again; the device is lost where that fails
 * end:              the device is gone
 */
xseg_status xseg_device_expect_none_live(struct xseg_device *device);
xseg_status xseg_device_give_back(struct xseg_device *device);
xseg_status xseg_device_let_go(struct xseg_device *device);
void xseg_device_hold_again(struct xseg_device *device);
void xseg_device_end(struct xseg_device *device);

/* What a door wants of a device; everything is checked but the size. */
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

/* Make a private pool, held once; XSEG_ERR_UNSUPPORTED where it is to be exportable and cannot. */
xseg_status xseg_device_make_pool(struct xseg_device *device,
                                  const struct xseg_pool_options *options, struct xseg_pool **out);

/* Whether a stream takes part in a capture; asked only while one is under way. */
xseg_status xseg_device_is_captured(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured);

/* The stream that waits for users' events, made if need be. */
xseg_status xseg_device_side_stream(struct xseg_device *device, struct xseg_known_stream **out);

/*
 * Begin and end a route or a capture; as xseg_route_begin() and so on of the public headers.
 *
 * stream: of the capture; ignored for a route
 */
xseg_status xseg_device_begin_route(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                                    void *self);
xseg_status xseg_device_end_route(struct xseg_pool *pool);
xseg_status xseg_device_begin_capture(struct xseg_pool *pool, xseg_stream stream);
xseg_status xseg_device_end_capture(struct xseg_pool *pool);

/* What physical memory may reach: the fraction's bytes, the hard limit, or UINT64_MAX. */
uint64_t xseg_device_limit(const struct xseg_device *device, const struct xseg_config *config);

/* Bytes of device memory taken: reserved, idle pages, and what the driver would not take back. */
uint64_t xseg_device_physical(const struct xseg_device *device);

/* Visit every arena of the device. */
void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Host bytes for bookkeeping. */
uint64_t xseg_device_host_bytes(struct xseg_device *device);

/* Audit every arena; takes the locks it needs. */
bool xseg_device_audit(struct xseg_device *device, struct xseg_finding *finding);

#endif
