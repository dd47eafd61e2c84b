/* SPDX-License-Identifier: MIT */
/*
 * Stream retirement: a stream that is about to be destroyed, and its entry.
 *
 *     THERE --> LEAVING     an event is recorded behind its work; its handle is not found any more
 *     LEAVING --> GONE      the event has passed: nothing of the stream runs
 *     GONE --> THERE        the entry is that of a new stream, which gets the memory of the old one
 *
 * Until a stream is GONE, a trim queries the event instead of the stream.
 *
 * Locking: the device memory lock, PENDING and TABLE are taken inside; none may be held.
 */
#ifndef XSEG_CORE_STREAM_RETIREMENT_H
#define XSEG_CORE_STREAM_RETIREMENT_H

#include "src/core/device/device.h"

/*
 * Retire a stream that is about to be destroyed; a stream that is not known is ignored.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (it is being captured), XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one question about the stream's capture, one event record
 */
xseg_status xseg_stream_retirement_begin(struct xseg_device *device, xseg_stream handle);

/*
 * The entry of a stream, as xseg_streams_get(); a new stream gets the entry of a stream that is
 * gone, if there is one.
 *
 * Cost: when a new stream is met, an event query for each of the next few streams that leave
 */
xseg_status xseg_stream_retirement_get(struct xseg_device *device, xseg_stream handle,
                                       struct xseg_known_stream **out);

/*
 * Whether a stream that has left has passed; with `wait` wait for it.  The device memory lock may be held.
 */
xseg_status xseg_stream_retirement_is_over(struct xseg_device *device,
                                           struct xseg_known_stream *stream, bool wait, bool *over);

/* End all leaving streams, since the device closes.  The device memory lock is held. */
void xseg_stream_retirement_end(struct xseg_device *device);

#endif
