/* SPDX-License-Identifier: MIT */
/*
 * A device: its context, pools, streams and totals.
 *
 * What is done with a device stands in rooms above: it is opened and closed in device_open.h, serves requests in
 * device_alloc.h, grows by growth.h, and gives memory back by trim.h.
 *
 * Locking: see src/base/lock.h for the order.  growth_lock guards everything that talks to the
 * driver about memory; table_lock the insertion of streams, arenas and pools.
 */
#ifndef XSEG_CORE_DEVICE_H
#define XSEG_CORE_DEVICE_H

#include "src/base/fork.h"
#include "src/core/cache/page_map.h"
#include "src/core/device/bounds.h"
#include "src/core/device/retire.h"
#include "src/core/device/route.h"
#include "src/core/stats/free_log.h"
#include "vmm/context.h"

struct xseg_allocator;
struct xseg_decay;
struct xseg_poison;
struct xseg_pending;
struct xseg_sharing;

struct xseg_device {
    struct xseg_context context;
    struct xseg_leftovers leftovers;
    /* Memory has been short, and little of it is free: pages are small now.  Guarded by GROWTH. */
    bool is_short;
    bool lacks_addresses; /* a classic segment stood in for one without addresses; by GROWTH */
    /* Memory has been short once: events of pending blocks are asked about where that can serve. */
    atomic_bool asks_late;
    unsigned
        refuser; /* enum xseg_refuser of the last growth that was refused.  Guarded by GROWTH */
    struct xseg_pages pages; /* unmapped physical memory; guarded by GROWTH */
    struct xseg_allocator *allocator;
    const struct xseg_fork *fork;   /* the allocator's */
    struct xseg_page_map *page_map; /* the allocator's */
    struct xseg_lock growth_lock;   /* GROWTH */
    struct xseg_lock table_lock;    /* TABLE */
    struct xseg_streams streams;
    struct xseg_routes routes;
    /* What rooms above keep of a device. */
    struct xseg_pending *pending;
    struct xseg_poison *poison;
    struct xseg_decay *decay;
    struct xseg_sharing *sharing;
    xseg_stream side;   /* what waits for users' events; NULL until needed; guarded by GROWTH */
    xseg_stream copier; /* what copies contents of paused pools; as above */
    struct xseg_totals totals;
    struct xseg_pool pool; /* the default one */
    struct xseg_pool_body pool_body;
    _Atomic(struct xseg_pool_body *) private_pools; /* that have not ended; changed under TABLE */
    _Atomic(struct xseg_pool *) guarded_pool;       /* one of those, see guarded.h; or NULL */
    struct xseg_retirement retirement;
    atomic_uint
        searches; /* of the default pool while garbage is collected by age: that age's clock */
    struct xseg_bounds bounds;
    struct xseg_free_log free_log;
    struct xseg_list spare_extents; /* ended extents, for reuse: lookups may still see them */
    atomic_uint_fast64_t reserved;  /* bytes mapped or allocated */
    atomic_uint_fast64_t evicted;   /* bytes of blocks whose pages are evicted, see pause.h */
    atomic_uint_fast64_t addresses; /* bytes of reserved ranges */
    /* PyTorch's num_* counters; a reset of the totals sets them to 0. */
    atomic_uint_fast64_t retries, ooms, rejections, syncs, grown, shrunk;
    atomic_uint_fast64_t scrubbed; /* bytes cleared, see scrub.h; reset with those */
};

/* What physical memory may reach: the fraction's bytes, the hard limit, or UINT64_MAX. */
uint64_t xseg_device_limit(const struct xseg_device *device, const struct xseg_config *config);

/* Bytes of device memory taken: reserved, idle pages, and what the driver would not take back. */
uint64_t xseg_device_physical(const struct xseg_device *device);

/* Visit every arena of the device. */
void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self);

#endif
