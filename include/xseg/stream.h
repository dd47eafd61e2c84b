/* SPDX-License-Identifier: MIT */
/*
 * Streams: uses of a block by other streams, and the end of a stream.
 *
 *     xseg_alloc(allocator, 0, bytes, stream_a, &block);
 *     // Work on stream A fills the block, an event is recorded, and stream B waits for the event.
 *     xseg_record_stream(allocator, block, stream_b); // Work on stream B uses the block.
 *     xseg_free(allocator, block);          // The block is pending until the work on stream B has completed.
 *     xseg_stream_retire(allocator, 0, stream_b);
 *     cudaStreamDestroy(stream_b);
 *
 * The free records an event on each other stream that used the block.  The next allocations on the device query these
 * events.  Only a request under memory pressure, xseg_trim() with `wait`, xseg_capture_begin() and xseg_close() wait
 * for them.
 *
 * A stream is identified by its handle.  A handle can be reused after the stream is destroyed, so the end of a stream
 * must be announced with xseg_stream_retire().
 *
 * NULL and the handle 1 are the legacy default stream of the device.  The handle 2 is the per-thread default stream of
 * the calling thread.  Per-thread default streams of other threads cannot be named; use the legacy default stream,
 * which waits for them.
 */
#ifndef XSEG_STREAM_H
#define XSEG_STREAM_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Announce that work on another stream uses a block (PyTorch's record_stream).
 *
 * @param ptr     start of a live block; NULL has no effect.
 * @param stream  stream that uses the block; the block's own stream has no effect.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no live block starts at ptr.
 * Cost: no driver call, except one for a stream that is seen for the first time, and one while a capture is active on
 *       the device.
 */
XSEG_API xseg_status xseg_record_stream(struct xseg_allocator *allocator, void *ptr,
                                        xseg_stream stream);

/**
 * Free a block once some events have completed.
 *
 * The block is pending until the events and the streams that used it have completed.  The events can be destroyed or
 * recorded again as soon as the call returns.  Events complete in the order of the calls, also for different blocks, so
 * a block can be pending until the events of earlier calls have completed.
 *
 * @param ptr     start of a live block; NULL has no effect.
 * @param events  recorded events of the block's device.
 * @param count   number of events; with 0 the call is xseg_free(), but fails during a capture.
 *
 * @return XSEG_ERR_BUSY      a capture is active on the device; free the block after the capture.
 *         XSEG_ERR_NOT_ALLOCATED  no live block starts at ptr.
 *         XSEG_ERR_DRIVER    the driver rejects an event, such as one recorded in a capture; the block stays live.
 * Cost: one query per event, and one wait on an internal stream for each event that has not completed.  If there is
 *       one, one event record on that stream, which the first such call creates.
 */
XSEG_API xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr,
                                     const xseg_event *events, size_t count);

/**
 * Announce that all work queued on a stream so far has completed.
 *
 * The caller has synchronized the stream.  Pending blocks stop waiting for this stream without an event query; a block
 * that waits for no other stream becomes free.
 *
 * @param device  CUDA ordinal.
 * @param stream  stream of the device; an unknown stream has no effect.
 *
 * Cost: no driver call, except one for the per-thread default stream.
 */
XSEG_API xseg_status xseg_stream_synchronized(struct xseg_allocator *allocator, int device,
                                              xseg_stream stream);

/**
 * Announce that a stream is about to be destroyed.
 *
 * Live blocks of the stream stay valid.  The stream's cached memory passes to the next stream that the allocator sees
 * for the first time, once the work queued now has completed, or is released by a trim.  Live blocks in memory that
 * another stream takes over are ordered by that stream from then on (struct xseg_block_info): use them on that stream,
 * or announce other uses.  If the handle is reused, it identifies a new stream.
 *
 * @param device  CUDA ordinal.
 * @param stream  stream of the device, not a default stream; an unknown stream has no effect.
 *
 * @return XSEG_ERR_BUSY  the stream is capturing, or xseg_capture_begin() was called for it without xseg_capture_end().
 * Cost: one capture query and one event record; none for an unknown stream.  Waits for a growth or trim of the device.
 */
XSEG_API xseg_status xseg_stream_retire(struct xseg_allocator *allocator, int device,
                                        xseg_stream stream);

#ifdef __cplusplus
}
#endif

#endif
