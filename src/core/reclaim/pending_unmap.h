/* SPDX-License-Identifier: MIT */
/*
 * Leaving memory: granules of ranges (elastic.h) that were decommitted, while streams may still use them.
 *
 *     decommit --> a batch: one run of granules, and an event on the stream
 *                    |  the event is complete
 *                    v
 *                  unmapped, released or kept for the next growth
 *
 * Until it is unmapped, memory that leaves can be taken back without the driver.  Granules that are held, pinned or
 * exported stay in their batch until they are let go of.
 *
 * During a capture nothing is unmapped, and no event is recorded or asked about.  A batch of that time has no event;
 * it gets one at the first look after the capture.
 *
 * A stream passes its events in the order in which they were recorded: a look asks about the first that it has not
 * passed, and about no other.  A batch whose granules are all held is parked until a reference to one of them is released.
 * A look is O(streams + batches that go + ranges with parked batches).
 *
 * Looks are made by calls that need memory, trims, decay, and the calls of ranges themselves.
 *
 * Locking: the device memory lock is held by the caller, no other lock; where observers are told it is let go, as notify.h says.
 */
#ifndef XSEG_CORE_PENDING_UNMAP_H
#define XSEG_CORE_PENDING_UNMAP_H

#include "src/core/device/device.h"

struct xseg_unmap_batch;

/* The batches of a device. */
struct xseg_pending_unmap {
    struct xseg_list batches;    /* the oldest first */
    struct xseg_list streams;    /* those that have batches with events */
    struct xseg_list unrecorded; /* batches without an event */
    struct xseg_list over;       /* batches whose stream has passed */
    struct xseg_list parked; /* extents with batches that are kept until a reference is released */
    struct xseg_unmap_batch **table; /* [capacity]: by number; number 0 is nobody's */
    uint32_t capacity, free;         /* free: the lowest number that may be free */
    uint64_t look;                   /* the number of looks */
    atomic_uint_fast64_t
        host_bytes; /* of batches and the table; may be read without the device memory lock */
};

void xseg_pending_unmap_init(struct xseg_pending_unmap *pending_unmaps);

/* Free the batches that are left, which is so on a lost device only. */
void xseg_pending_unmap_fini(struct xseg_pending_unmap *pending_unmaps);

/*
 * Let live granules leave, in the order of a stream.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, and nothing has changed
 * Cost:    one event record; none in a capture
 */
xseg_status xseg_pending_unmap_begin(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream);

/* Whether work of a stream comes behind the stream with which a granule leaves: that is the same one, or has passed as
 * far as is known. */
bool xseg_pending_unmap_is_ordered(const struct xseg_extent *extent, uint32_t granule,
                                   const struct xseg_known_stream *stream);

/*
 * Make a stream wait for the stream with which a granule leaves, unless that is the same one.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, in a capture; XSEG_ERR_DRIVER
 * Cost:    none on the same stream; else one wait, and no host waits
 */
xseg_status xseg_pending_unmap_order(const struct xseg_extent *extent, uint32_t granule,
                                     struct xseg_known_stream *stream);

/* Let granules that leave, and are held no longer, leave with another stream as well: in a batch of their own.  Returns,
 * cost: as xseg_pending_unmap_begin() */
xseg_status xseg_pending_unmap_again(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream);

/* Look again at the batches of granules, of which a hold was released. */
void xseg_pending_unmap_wake(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Let claimed granules that have batches leave again. */
void xseg_pending_unmap_resume(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Take granules out of their batches, which all leave, or were claimed while they did.  The caller sets what they are
 * used for. */
void xseg_pending_unmap_end(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Find out how far the streams have come that memory leaves with; nothing is unmapped. */
void xseg_pending_unmap_query(struct xseg_device *device);

/* Unmap what may go.  keep: its pages become idle; else as page_cache_mb says */
void xseg_pending_unmap_poll(struct xseg_device *device, bool keep);

/* Wait for all streams that memory leaves with; then look.  Returns the first error. */
xseg_status xseg_pending_unmap_wait(struct xseg_device *device, bool keep);

/*
 * Wait for the stream that a granule leaves with.  It goes with the next look, unless something keeps it.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER
 * Cost:    one wait of the host
 */
xseg_status xseg_pending_unmap_wait_for(const struct xseg_extent *extent, uint32_t granule);

/* The stream with which memory at an address leaves; false if none does there.  No stream is named that has gone. */
bool xseg_pending_unmap_stream(const struct xseg_device *device, uint64_t address,
                               xseg_stream *out);

static inline uint64_t
xseg_pending_unmap_host_bytes(const struct xseg_pending_unmap *pending_unmaps)
{
    return atomic_load_explicit(&pending_unmaps->host_bytes, memory_order_relaxed);
}

/* Whether memory of a range leaves. */
static inline bool xseg_pending_unmap_is_any(const struct xseg_pending_unmap *pending_unmaps)
{
    return !xseg_list_is_empty(&pending_unmaps->batches);
}

#endif
