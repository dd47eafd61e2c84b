/* SPDX-License-Identifier: MIT */
/*
 * Explain: for every page of a device, why it is not free.
 *
 * A page has one reason, the first of these that applies.  A block lies on it: a live one, a pending one, a
 * busy one.  Or idle memory is kept: by a registration, a pin, an export, the pool's holder, a capture, the stream's work;
 * it is borrowed (above_share.h); or it is kept by the floor of decay, the time of decay, or by policy alone.  So the reasons
 * of a device add up to its reserved bytes.
 *
 * Locking: the device memory lock is held while a device is looked at, ARENA for each arena, then PENDING.
 */
#ifndef XSEG_CORE_EXPLAIN_H
#define XSEG_CORE_EXPLAIN_H

#include "src/core/device/device.h"
#include "xseg/stats.h"

struct xseg_reasons {
    struct xseg_reason *list;
    size_t count, capacity;
};

/* Where the reasons of an arena begin in the list. */
struct xseg_explained_arena {
    struct xseg_arena *arena;
    size_t first;
};

/* The state of explaining one device. */
struct xseg_explaining {
    struct xseg_device *device;
    const struct xseg_config *config;
    struct xseg_reasons *reasons;
    struct xseg_explained_arena *arenas; /* [count], in the order of their reasons */
    size_t count, room;
    size_t first;         /* reasons that were there before */
    uint64_t now;         /* time of decay, in nanoseconds; 0: ages of pages are not known */
    uint64_t origins_now; /* time of origins.h */
    bool asks;            /* the driver may be asked */
    uint64_t stranded;    /* so far; struct xseg_device has it, too */
    /* The segment that the walk visits, and the page whose blocks are being counted. */
    const struct xseg_extent *extent;
    size_t segment_first; /* the first reason of the segment */
    struct xseg_reason page;
    uint32_t granule, page_count; /* of the page; 0 granules: between two pages */
};

/* What a live block has beyond what was asked for, since it is one page alone (single_page); bytes. */
static inline uint64_t xseg_reason_single_page_rest(const struct xseg_reason *reason)
{
    return reason->is_single_page && reason->kind == XSEG_REASON_ALLOCATED
               ? reason->bytes - reason->block_requested
               : 0;
}

/*
 * Add the reasons for all memory of a device.  No lock is held; the list is the caller's to free, also
 * after an error.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_explain_device(struct xseg_device *device, const struct xseg_config *config,
                                struct xseg_reasons *reasons);

/*
 * As xseg_explain_device(), in steps, between which the device memory lock is held: begin; count each part of a walk over the device, with
 * the lock of its arena held; end, with no other lock held.  Only what was begun is ended, and always.
 *
 * explaining: `device`, `config`, `reasons`, `origins_now` and `asks` are set, the rest is 0.  Unless it asks, no page has
 *             the reason STREAM, and none FLOOR where the floor depends on the device's free memory
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_explain_begin(struct xseg_explaining *explaining);
void xseg_explain_part(struct xseg_explaining *explaining, const struct xseg_part *part);
xseg_status xseg_explain_end(struct xseg_explaining *explaining);

/* Fail because host memory is too low to explain the pages. */
xseg_status xseg_explain_fail(size_t pages);

/*
 * Blocks of an arena from an address on, at most `most`; *cursor moves on behind the last one.  No lock
 * is held.
 *
 * now:     time of origins.h
 * pool:    only blocks in segments of this pool; NULL: of any pool
 * Returns: how many; 0 at the end
 */
size_t xseg_explain_blocks(struct xseg_arena *arena, const struct xseg_pool *pool, uint64_t *cursor,
                           uint64_t now, struct xseg_block_info *out, size_t max);

#endif
