/* SPDX-License-Identifier: MIT */
/*
 * Mappings: runs of mapped pages as the application sees them; notifications about them, and pins
 * on them.
 *
 * A mapping is a run of adjacent pages of one size and one generation, or a classic segment.  The
 * generation of a page changes when other physical memory is mapped at its address.  Code that
 * registers device memory, for example for RDMA, lists mappings, pins pages so that they stay
 * mapped, or observes notifications.
 *
 * Notifications.  Observers are notified before memory is unmapped and after memory was mapped:
 *
 *     claimed, stream idle --> on_unmap, for each mapping --> unmapped
 *                                  |
 *                                  +--> kept --> on_map, with the same generation
 *     mapped, still claimed --> on_map, for each mapping --> cached
 *
 * An observer may call the library, so no lock is held while it runs: a notification unlocks the
 * device memory lock and locks it again.  The memory that it concerns is claimed, or in a pool in
 * transition, so no other thread changes it.  All other state may have changed on return.  The
 * memory is kept if a capture has begun during the notification, because nothing is unmapped during
 * a capture.  It is also kept if another thread runs a callback about the same memory, because
 * callbacks do not wait for each other.  Without an observer a notification costs one load.
 *
 * Locking: the caller holds the device memory lock and no other lock, unless a function states
 * otherwise.
 */
#ifndef XSEG_CORE_MAPPING_H
#define XSEG_CORE_MAPPING_H

#include "src/core/device/device.h"
#include "xseg/allocator.h"

struct xseg_mapping_list {
    struct xseg_mapping *mapping; /* [capacity]; owned by the caller */
    size_t count, capacity;
};

/*
 * Append the mappings of a device, or of one pool or stream of it.  The caller holds no lock.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_mapping_collect(struct xseg_device *device, const struct xseg_pool *pool,
                                 const struct xseg_known_stream *stream,
                                 struct xseg_mapping_list *list);

/* --- Pins. --- */

/* Implement xseg_pin() and xseg_unpin() of the public header.  The caller holds no lock. */
xseg_status xseg_mapping_pin(struct xseg_allocator *allocator, uint64_t address, uint64_t bytes);
xseg_status xseg_mapping_unpin(struct xseg_allocator *allocator, uint64_t address, uint64_t bytes);

/*
 * Find the extent of an address and lock the device memory lock of its device, which keeps the
 * extent valid.  Returns NULL, without the lock, if there is no extent.  The caller holds no lock.
 */
struct xseg_extent *xseg_mapping_lock_extent(struct xseg_allocator *allocator, uint64_t address);

/* Whether bytes in [begin, end) are claimed: another call maps or unmaps memory there. */
bool xseg_mapping_is_claimed(const struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* Fail with XSEG_ERR_BUSY because memory at an address is claimed. */
xseg_status xseg_mapping_fail_claimed(uint64_t address);

/* Fail with XSEG_ERR_ARGUMENT because a range extends past the end of its segment. */
xseg_status xseg_mapping_fail_past_end(const struct xseg_segment *segment, uint64_t address,
                                       uint64_t bytes);

/* Bytes of the pinned pages of a device. */
uint64_t xseg_mapping_pinned(struct xseg_device *device);

/* --- Notifications. --- */

/* Whether there is an observer of mappings. */
bool xseg_notify_is_enabled(const struct xseg_device *device);

/*
 * Notify observers that claimed blocks, linked through `chain`, are about to be unmapped.
 *
 * Returns: whether the blocks may be unmapped; if not, observers were notified that the memory
 *          stays mapped
 */
bool xseg_notify_unmap(struct xseg_device *device, const struct xseg_block *claimed);

/* Notify observers that claimed bytes of an extent, which are whole pages, are about to be
 * unmapped.  Returns: as xseg_notify_unmap() */
bool xseg_notify_unmap_bytes(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Notify observers that claimed bytes [base, base + bytes) of an extent were mapped, or stay mapped
 * after a notification that announced the opposite. */
void xseg_notify_map(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Notify observers that all memory of a pool in transition is about to be unmapped, or was mapped.
 * Returns false if memory must stay mapped. */
bool xseg_notify_pool(struct xseg_pool *pool, bool is_unmap);

/* Whether the calling thread runs a callback about the unmapping of all memory of a pool. */
bool xseg_notify_is_of_pool(const struct xseg_pool *pool);

/* Keep the memory of the current notification mapped, because another thread registers or
 * unregisters it.  Called in a callback that is notified before memory is unmapped. */
void xseg_notify_keep(void);

#endif
