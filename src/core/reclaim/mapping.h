/* SPDX-License-Identifier: MIT */
/*
 * Mappings: runs of pages with memory, as users see them; and pins on them.
 *
 * Locking: the device memory lock, where a function says so.
 */
#ifndef XSEG_CORE_MAPPING_H
#define XSEG_CORE_MAPPING_H

#include "src/core/device/device.h"
#include "xseg/allocator.h"

/*
 * The next run of mapped granules in [*at, end) with pages of one size and one generation; of a classic
 * segment, whose only granule is 0, all of it.  *at moves behind the run.  The device memory lock is held, or the granules
 * are of a busy block; pins are not looked at.
 *
 * Returns: whether there is one
 */
bool xseg_mapping_next(const struct xseg_extent *extent, uint32_t *at, uint32_t end,
                       struct xseg_mapping *out);

/* How many granules an extent has; a classic one has 1. */
uint32_t xseg_mapping_granules(const struct xseg_extent *extent);

struct xseg_mapping_list {
    struct xseg_mapping *mapping; /* [capacity]; the caller's to free */
    size_t count, capacity;
};

/*
 * Add the mappings of a device, a pool or a stream of it.  No lock is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_mapping_collect(struct xseg_device *device, const struct xseg_pool *pool,
                                 const struct xseg_known_stream *stream,
                                 struct xseg_mapping_list *list);

/* Serve xseg_pin() and xseg_unpin() of the public header.  No lock is held. */
xseg_status xseg_mapping_pin(struct xseg_allocator *allocator, uint64_t address, uint64_t bytes);
xseg_status xseg_mapping_unpin(struct xseg_allocator *allocator, uint64_t address, uint64_t bytes);

/* Find the extent of an address and take the device memory lock of its device, so that the extent stays; NULL, and no lock, if there
 * is none. */
struct xseg_extent *xseg_mapping_hold(struct xseg_allocator *allocator, uint64_t address);

/* Whether some of the bytes [begin, end) are claimed: another call maps or unmaps memory there.  The device memory lock is held. */
bool xseg_mapping_is_claimed(const struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* Fail with XSEG_ERR_BUSY because of claimed memory at an address. */
xseg_status xseg_mapping_fail_claimed(uint64_t address);

/* Fail with XSEG_ERR_ARGUMENT because bytes from an address on exceed their segment. */
xseg_status xseg_mapping_fail_end(const struct xseg_segment *segment, uint64_t address,
                                  uint64_t bytes);

/* Bytes of pinned pages of a device.  The device memory lock is held. */
uint64_t xseg_mapping_pinned(struct xseg_device *device);

#endif
