/* SPDX-License-Identifier: MIT */
/*
 * The history of a device as a reader sees it: the events of one moment, those that were lost, and the user's numbers
 * that are still in use.
 *
 * Locking: the device memory lock, ARENA and HISTORY are taken inside; none may be held.
 */
#ifndef XSEG_CORE_DEVICE_HISTORY_H
#define XSEG_CORE_DEVICE_HISTORY_H

#include "src/core/device/allocator.h"
#include "src/core/history/merge.h"

/* Events of one device, for merging with those of others; `lost` and `count` are added up over devices. */
struct xseg_history_reader {
    struct xseg_history_merge merge;
    uint64_t count, lost;
    uint64_t left_out;                 /* were there, and are not copied */
    uint64_t since;                    /* ticks: from here on no event of any ring is missing */
    struct xseg_history_moment moment; /* of the last device that was read */
};

/* Where a ring ends at a moment, and where its events begin. */
struct xseg_history_end {
    const struct xseg_history_ring *ring;
    uint64_t first, end; /* numbers of events */
    uint64_t stream;     /* whose memory the ring's segments are at the moment */
    bool has_stream;     /* it is known, and events about segments are told as that stream's */
};

/* The rings of a device at a moment. */
struct xseg_history_ends {
    struct xseg_history_end *list; /* [count] */
    size_t count;
    struct xseg_history_moment moment;
};

/*
 * Find where the rings of a device end.  begin_cut() cuts all rings, which is right for those whose arena is gone;
 * cut() cuts an arena's again, with its lock held; list_ends() lists them.  The device memory lock is held from the first to the last.
 */
void xseg_device_history_begin_cut(struct xseg_device *device, struct xseg_history_ends *ends);
void xseg_device_history_cut(struct xseg_arena *arena);
/* Returns false without host memory. */
bool xseg_device_history_list_ends(struct xseg_device *device, struct xseg_history_ends *ends);
void xseg_device_history_end(struct xseg_history_ends *ends);

/*
 * Copy the newest events up to the ends, at most so many.  From reading->since on they are all that was noted; what is
 * older may have gaps, and the caller leaves it out.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_history_copy(struct xseg_device *device, struct xseg_history_ends *ends,
                                     uint64_t max, struct xseg_history_reader *reading);

/*
 * Copy the events that a device has had up to now.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_history_read(struct xseg_device *device,
                                     struct xseg_history_reader *reading);

/* Forget the events that a device has had up to now. */
void xseg_device_history_clear(struct xseg_device *device);

/* Describe an event for users. */
void xseg_device_history_describe(struct xseg_allocator *allocator,
                                  const struct xseg_history_moment *moment,
                                  const struct xseg_history_event *event, uint64_t user,
                                  struct xseg_history_entry *out);

/* Note a text of the user's, which the caller keeps in use. */
xseg_status xseg_device_history_annotate(struct xseg_device *device, uint32_t label);

#endif
