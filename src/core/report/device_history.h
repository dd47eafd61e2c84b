/* SPDX-License-Identifier: MIT */
/*
 * Device history: consistent copies of the events of a device.
 *
 * The events of a device are in one ring per arena, which its owner writes without a lock that
 * readers share.  A read has two steps.  Under the device memory lock the reader cuts the rings: it
 * records for each ring the number of events at that moment.  Later, without that lock, it copies
 * the events before the cut.  Arenas continue to append events, so the oldest of these events may
 * be overwritten before they are copied.  A merge (ring.h) then yields the events of all rings and
 * devices in one order.
 *
 * Two kinds of readers exist.  xseg_for_each_event() copies all events of each ring.  A snapshot
 * needs an uninterrupted sequence that ends at the cut, so it copies the newest events up to a
 * maximum number.  No event of any ring is missing after the time `complete_since`; the snapshot
 * ignores older events.
 *
 * Ticks of two CPUs can differ by CLOCK_SKEW, which is added wherever an event is selected by its
 * time.
 *
 * Locking: the caller of a cut holds the device memory lock.  All other functions acquire the
 * device memory lock, ARENA or HISTORY, and the caller holds none of them.
 */
#ifndef XSEG_CORE_DEVICE_HISTORY_H
#define XSEG_CORE_DEVICE_HISTORY_H

#include "src/core/device/device.h"
#include "src/core/history/ring.h"

/* Copied events of one or several devices; `lost` and `count` are sums over the devices. */
struct xseg_history_reader {
    struct xseg_history_merge merge;
    uint64_t count, lost;
    uint64_t omitted;                  /* events that exist, but were not copied */
    uint64_t complete_since;           /* ticks: no later event of any ring is missing */
    struct xseg_history_moment moment; /* of the last device that was read */
};

/* The position of a ring at a cut. */
struct xseg_history_ring_cut {
    const struct xseg_history_ring *ring;
    uint64_t first, end; /* event numbers: the first event to copy, the end of the events */
    uint64_t stream;     /* handle of the stream that owned the ring's segments at the cut */
    bool has_stream;     /* `stream` is known, and replaces the stream in events of segments */
};

/* The rings of a device at one moment. */
struct xseg_history_cut {
    struct xseg_history_ring_cut *rings; /* [count] */
    size_t count;
    struct xseg_history_moment moment;
};

/*
 * Cut the rings of a device.  The caller holds the device memory lock from begin to finish.
 *
 * begin_cut() cuts all rings, which is final for rings whose arena was destroyed.  cut_arena() cuts
 * the ring of a locked arena again.  finish_cut() lists the rings and returns false on host
 * allocation failure.
 */
void xseg_device_history_begin_cut(struct xseg_device *device, struct xseg_history_cut *cut);
void xseg_device_history_cut_arena(struct xseg_arena *arena);
bool xseg_device_history_finish_cut(struct xseg_device *device, struct xseg_history_cut *cut);
void xseg_history_cut_fini(struct xseg_history_cut *cut);

/*
 * Copy the newest events before a cut.
 *
 * max:     maximum number of events
 * reader:  complete_since is set; older events may have gaps
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_history_copy(struct xseg_device *device, struct xseg_history_cut *cut,
                                     uint64_t max, struct xseg_history_reader *reader);

/*
 * Copy all events of a device up to now.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_device_history_read(struct xseg_device *device,
                                     struct xseg_history_reader *reader);

/* Clear the events of a device up to now. */
void xseg_device_history_clear(struct xseg_device *device);

/* Describe an event for users. */
void xseg_device_history_describe(struct xseg_allocator *allocator,
                                  const struct xseg_history_moment *moment,
                                  const struct xseg_history_event *event, uint64_t user,
                                  struct xseg_history_entry *out);

/* Record an annotation of the user.  The caller retains the label until the call returns. */
xseg_status xseg_device_history_annotate(struct xseg_device *device, uint32_t label);

#endif
