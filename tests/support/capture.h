/* SPDX-License-Identifier: MIT */
/*
 * Captures as a program makes them: begin, join and end on the simulated driver, with or without
 * telling the allocator.  A capture is global, the strictest mode, so whatever the library must not
 * do meanwhile spoils it.
 */
#ifndef XSEG_TESTS_CAPTURE_H
#define XSEG_TESTS_CAPTURE_H

#include "tests/support/scene.h"

/* A device's context becomes the current one, until it is left again. */
void capture_enter(int device);
void capture_leave(int device);

/* A new stream of any device, to be destroyed by capture_stream_destroy(). */
xseg_stream capture_stream(int device);
void capture_stream_destroy(int device, xseg_stream stream);

/* The driver's begin. */
void capture_start(xseg_stream stream);

/* The driver's end; the graph is destroyed.  Returns whether there was one: nothing spoilt it. */
bool capture_stop(xseg_stream stream);

/* What a stream does next comes after what another has been given so far: joins its capture. */
void capture_wait(xseg_stream stream, xseg_stream other);

/* Tell the allocator and begin; end and tell the allocator.  The end expects that all is well. */
void capture_begin(struct xseg_pool *pool, xseg_stream stream);
void capture_end(struct xseg_pool *pool, xseg_stream stream);

/* Calls up to now that ask, wait, record or take away, and so must not happen in a capture. */
uint64_t capture_disturbances(void);

/* A kernel that works on a block of device 0 until it is told to finish. */
void capture_launch_on(xseg_stream stream, void *ptr, size_t bytes);

/* Close, destroy the streams (the second may be NULL), and expect no leaks. */
void capture_close(struct xseg_allocator *allocator, xseg_stream first, xseg_stream second);

#endif
