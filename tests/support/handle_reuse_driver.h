/* SPDX-License-Identifier: MIT */
/*
 * A simulated driver in which the test decides when a stream handle is reused.
 *
 * After handle_reuse_stream() cuStreamGetId() returns a new ID for the handle, as a real driver does when a destroyed
 * stream's handle is assigned to a new stream.
 */
#ifndef XSEG_TESTS_HANDLE_REUSE_DRIVER_H
#define XSEG_TESTS_HANDLE_REUSE_DRIVER_H

#include "xseg/allocator.h"

/* The path of this driver; resets all reused handles. */
const char *handle_reuse_driver(void);

/* The handle now denotes a new stream. */
void handle_reuse_stream(xseg_stream stream);

#endif
