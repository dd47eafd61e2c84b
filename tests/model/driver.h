/* SPDX-License-Identifier: MIT */
/*
 * The program's own driver calls: contexts, streams, events, captures, custom memory.  Every call is made in the
 * context of device 0, with the thread's capture mode relaxed, so that it invalidates no capture, and restores both.
 */
#ifndef XSEG_TESTS_DRIVER_H
#define XSEG_TESTS_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* The driver's capture modes. */
enum driver_mode { DRIVER_GLOBAL, DRIVER_THREAD_LOCAL, DRIVER_RELAXED };

/* Hold the primary contexts of devices 0 and 1; let them go. */
void driver_open(void);
void driver_close(void);

/* Make a device's context the current one, or none for -1; the number of the one that is, while the
 * thread's capture mode is the driver's usual one. */
void driver_enter(int device);
int driver_current(void);

xseg_stream driver_stream(bool blocking);
void driver_stream_destroy(xseg_stream stream);

/* Open-ended work on a place, or on none for NULL, with an event behind it. */
xseg_event driver_work(xseg_stream stream, const void *ptr, size_t bytes);
void driver_wait(xseg_event event);
bool driver_has_completed(xseg_event event);
void driver_event_destroy(xseg_event event);

/* Begin a capture; its number. */
uint64_t driver_capture_begin(xseg_stream stream, enum driver_mode mode);
/* One node. */
void driver_capture_node(xseg_stream stream);
/* `later` comes behind `earlier`, and joins its capture. */
void driver_join(xseg_stream later, xseg_stream earlier);
/* Do what no capture survives. */
void driver_capture_invalidate(xseg_stream stream);
/* End a capture; whether it yielded a graph. */
bool driver_capture_end(xseg_stream stream);

/* Memory from the driver for a pool's own functions; NULL if there is none. */
void *driver_alloc(size_t bytes);
void driver_free(void *ptr);

#endif
