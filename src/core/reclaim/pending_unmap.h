/* SPDX-License-Identifier: MIT */
/*
 * Pending unmaps: granules of elastic ranges (block.h) that were decommitted while streams may
 * still use them.
 *
 *     decommit --> a batch: one run of granules, and an event on the stream
 *                    |  the event completes
 *                    v
 *                  unmapped; the pages are freed, or kept as idle pages for the next growth
 *
 * A commit can recommit granules that are pending unmap without a driver call.  A granule that is
 * held, pinned or exported stays in its batch until the last reference is released.
 *
 * Each batch has an ID, which every granule of the range stores, and is in one of these queues:
 *
 *     unrecorded   created during a capture; the first poll after the capture records an event
 *     stream       one queue for each stream with recorded events, in the order of the decommits
 *     completed    the event has completed, so granules without references can be unmapped
 *     retained     completed, but every granule has a reference; one list for each range
 *
 * A poll queries the first event of each stream and continues with the next one only if it has
 * completed, because a stream completes its events in order.  Retained batches are visited again
 * only after a reference of their range was released.  A poll is O(streams + completed batches +
 * ranges with retained batches); it does not visit batches that still wait.
 *
 * Calls that need memory, trims, decay and the calls of ranges poll.  During a capture nothing is
 * queried or unmapped.
 *
 * Locking: the caller holds the device memory lock and no other lock.  While observers are notified
 * (mapping.h), the lock is released, and batches are marked so that no other thread unmaps them.
 */
#ifndef XSEG_CORE_PENDING_UNMAP_H
#define XSEG_CORE_PENDING_UNMAP_H

#include "src/core/device/device.h"

struct xseg_unmap_batch;

/* The batches of a device. */
struct xseg_pending_unmap {
    struct xseg_list batches;        /* all, the oldest first */
    struct xseg_list streams;        /* streams with batches in their queues */
    struct xseg_list unrecorded;     /* batches without an event */
    struct xseg_list completed;      /* batches whose event has completed */
    struct xseg_list retained;       /* extents with retained batches */
    struct xseg_unmap_batch **table; /* [capacity]: by ID; ID 0 means no batch */
    uint32_t capacity;
    uint32_t lowest_free_id; /* no lower ID is free */
    uint64_t polls;          /* number of polls so far */
    /* Host bytes of batches and the table; may be read without a lock. */
    atomic_uint_fast64_t host_bytes;
};

void xseg_pending_unmap_init(struct xseg_pending_unmap *unmaps);

/* Free the remaining batches, which exist only if the device is lost. */
void xseg_pending_unmap_fini(struct xseg_pending_unmap *unmaps);

/*
 * Queue committed granules for unmapping after the work of a stream.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY or XSEG_ERR_DRIVER, and nothing has changed
 * Cost:    one event record, none during a capture
 */
xseg_status xseg_pending_unmap_begin(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream);

/* Whether the work of a stream is ordered after the stream for which a granule waits: both are the
 * same stream, or the latter has completed as of the last poll. */
bool xseg_pending_unmap_is_ordered(const struct xseg_extent *extent, uint32_t granule,
                                   const struct xseg_known_stream *stream);

/*
 * Make a stream wait for the stream for which a granule waits, unless it is ordered already.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY during a capture; XSEG_ERR_DRIVER
 * Cost:    no driver call if ordered; else one stream wait, and no wait of the host
 */
xseg_status xseg_pending_unmap_order(const struct xseg_extent *extent, uint32_t granule,
                                     struct xseg_known_stream *stream);

/* Move granules that are pending unmap, and no longer held, into a new batch that waits for another
 * stream.  Returns and cost: as xseg_pending_unmap_begin() */
xseg_status xseg_pending_unmap_reassign(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                        struct xseg_known_stream *stream);

/* Have the next poll visit the batches of granules of which a hold was released. */
void xseg_pending_unmap_requeue(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Return claimed granules to their batches, because a commit failed. */
void xseg_pending_unmap_resume(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Remove granules from their batches.  The granules are pending unmap or claimed; the caller sets
 * their use. */
void xseg_pending_unmap_remove(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Query the events of all streams with batches.  Nothing is unmapped. */
void xseg_pending_unmap_query(struct xseg_device *device);

/* Poll: query events, and unmap the granules of completed batches that have no references.
 * keep: their pages become idle pages; else page_cache_mb decides */
void xseg_pending_unmap_poll(struct xseg_device *device, bool keep);

/* Wait for the streams of all batches, then poll.  Returns the first error. */
xseg_status xseg_pending_unmap_wait(struct xseg_device *device, bool keep);

/*
 * Wait for the stream for which a granule waits.  The next poll unmaps the granule, unless it has a
 * reference.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER
 * Cost:    one wait of the host
 */
xseg_status xseg_pending_unmap_wait_for(const struct xseg_extent *extent, uint32_t granule);

/* The stream for which memory at an address is pending unmap.  False if the memory is not pending,
 * or if the stream was retired. */
bool xseg_pending_unmap_stream(const struct xseg_device *device, uint64_t address,
                               xseg_stream *out);

static inline uint64_t xseg_pending_unmap_host_bytes(const struct xseg_pending_unmap *unmaps)
{
    return atomic_load_explicit(&unmaps->host_bytes, memory_order_relaxed);
}

#endif
