/* SPDX-License-Identifier: MIT */
/*
 * A driver that recycles the handles of streams, which the simulator never does.
 *
 * It is the simulator, but for the numbers of streams.  After recycle_stream() a question for the
 * handle's number is answered with that of a new stream, as on a real driver when the old stream was
 * destroyed and another one was made at its place.
 */
#ifndef XSEG_TESTS_RECYCLE_H
#define XSEG_TESTS_RECYCLE_H

#include "xseg/allocator.h"

/* Make it known as the driver; handles mean what they mean to the simulator again. */
const char *recycle_driver(void);

/* A handle has come again. */
void recycle_stream(xseg_stream stream);

#endif
