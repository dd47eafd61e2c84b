/* SPDX-License-Identifier: MIT */
/*
 * Stream retirement: the end of a stream that the application is about to destroy, and the reuse of
 * its entry.
 *
 *     KNOWN --> RETIRING     an event was recorded after its work; lookups skip the handle
 *     RETIRING --> RETIRED   the event has completed: no work of the stream runs
 *     RETIRED --> KNOWN      a new stream reuses the entry and the memory of the old stream
 *
 * Until a stream is retired, a trim queries its last event instead of the stream.  The queue of a
 * retiring stream shares that event, so the event is returned only after the queue is empty.
 *
 * Locking: the device memory lock, PENDING and TABLE are locked inside.  The caller holds no lock,
 * unless a function states otherwise.
 */
#ifndef XSEG_CORE_STREAM_RETIREMENT_H
#define XSEG_CORE_STREAM_RETIREMENT_H

#include "src/core/device/device.h"

/*
 * Retire a stream that is about to be destroyed; an unknown stream is ignored.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the stream is being captured), XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER
 * Cost:    one query of the capture state of the stream, one event record
 */
xseg_status xseg_stream_retirement_begin(struct xseg_device *device, xseg_stream handle);

/*
 * Get the entry of a stream, as xseg_streams_find_or_add() does; a new stream reuses the entry of a
 * retired stream, if there is one.
 *
 * Cost: for a new stream, an event query for each of the next retiring streams
 */
xseg_status xseg_stream_retirement_get(struct xseg_device *device, xseg_stream handle,
                                       struct xseg_known_stream **out);

/* Set *completed to whether the work of a retiring or retired stream has completed; with `wait`,
 * wait for it.  The caller may hold the device memory lock. */
xseg_status xseg_stream_retirement_check(struct xseg_device *device,
                                         struct xseg_known_stream *stream, bool wait,
                                         bool *completed);

/* Finish the retirement of all streams, because the device closes.  The caller holds the device
 * memory lock. */
void xseg_stream_retirement_finish_all(struct xseg_device *device);

#endif
