/* SPDX-License-Identifier: MIT */
/*
 * Streams: who else uses a block, and when a stream has passed.
 *
 *     stream A   alloc x | kernels on x ...............| free x
 *     stream B                      | kernel on x ........|
 *                                    xseg_use(x, B)        event on B
 *                                                          x is pending until the event completes
 *
 * A block that other streams used waits, when it is freed, for the work that was queued on them by
 * then.  Whether that work has finished is looked at when an allocation on the device starts; nothing
 * waits for it.
 *
 * A stream is known by its handle.  Handles come again after a stream was destroyed, so the library
 * has to hear of that: xseg_stream_gone().
 *
 * NULL and the legacy handle (1) are one stream, the legacy default stream of the device.  The
 * per-thread handle (2) is the calling thread's own default stream.  A use of another thread's
 * default stream cannot be asked about by name: the legacy stream stands for it, which waits for it.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_STREAM_H
#define XSEG_STREAM_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Say that work on another stream uses a block (PyTorch's record_stream).
 *
 * @param ptr     the start of a live block; NULL is fine
 * @param stream  uses on the block's own stream cost nothing and are not remembered
 *
 * Returns: XSEG_OK, XSEG_ERR_NOT_LIVE, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER,
 *          XSEG_ERR_FORKED
 * Cost:    no driver call, except one the first time the library meets the stream, and one while a
 *          capture is under way on the device.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_use(struct xseg_allocator *allocator, void *ptr,
                                             xseg_stream stream);

/**
 * Free a block that work behind some events still uses.
 *
 * It is pending until the events, and the streams of its uses, have passed.
 *
 * @param ptr     the start of a live block; NULL is fine
 * @param events  recorded events of the block's device.  They may be destroyed or recorded anew as
 *                soon as the call returns
 * @param count   how many; 0 is xseg_free()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY      a capture is under way on the device: free after its end
 *          XSEG_ERR_NOT_LIVE, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 *          XSEG_ERR_DRIVER    the driver refused an event, such as one that was recorded in a
 *                             capture; the block is still live
 * Cost:    one query an event; if any is not complete, one wait each and one record on a stream
 *          that the library keeps for this, made when first needed.  Events pass in the order in
 *          which they were given, also those of different blocks.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr,
                                                    const xseg_event *events, size_t count);

/**
 * Say that all work queued on a stream so far has finished, as the caller knows: blocks that waited
 * for it come back at once, without a look at their events.
 *
 * @param device  CUDA ordinal
 * @param stream  one that the library does not know is fine
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call; one about the per-thread default stream.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_passed(struct xseg_allocator *allocator, int device,
                                                xseg_stream stream);

/**
 * Say that a stream is about to be destroyed.
 *
 * Its live blocks stay valid.  What is cached of its memory serves the next stream that the library
 * meets, once the work queued by now has finished, or goes with a trim.  With that memory go the live
 * blocks that lie in it: they are that stream's from then on, also to xseg_block(), so use them there, or
 * announce other uses.  If the handle comes again, it is a new stream.
 *
 * @param device  CUDA ordinal
 * @param stream  one that the library does not know is fine; not a default stream
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY      the stream is being captured, or a capture was begun on it that
 *                             xseg_capture_end() has not ended yet
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_FORKED
 * Cost:    one question about the stream's capture and one event record; none for a stream that is
 *          not known.  Waits until no thread trims or
 *          grows on the device.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_stream_gone(struct xseg_allocator *allocator, int device,
                                                     xseg_stream stream);

#ifdef __cplusplus
}
#endif

#endif
