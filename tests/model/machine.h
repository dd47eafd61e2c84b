/* SPDX-License-Identifier: MIT */
/*
 * What a programme does with the driver itself: contexts, streams, events, captures, own memory.
 *
 * Every call is made in the context of device 0, with the thread's capture mode relaxed, so that it
 * spoils no capture, and leaves both as they were.
 */
#ifndef XSEG_TESTS_MACHINE_H
#define XSEG_TESTS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* How a capture stands against other calls: the driver's numbers. */
enum machine_mode { MACHINE_GLOBAL, MACHINE_THREAD_LOCAL, MACHINE_RELAXED };

/* Hold the primary contexts of devices 0 and 1; let them go. */
void machine_open(void);
void machine_close(void);

/* Make a device's context the current one, or none for -1; the number of the one that is, while the
 * thread's capture mode is the driver's usual one. */
void machine_enter(int device);
int machine_current(void);

xseg_stream machine_stream(bool blocking);
void machine_stream_destroy(xseg_stream stream);

/* Open-ended work on a place, or on none for NULL, with an event behind it. */
xseg_event machine_work(xseg_stream stream, const void *ptr, size_t bytes);
void machine_wait(xseg_event event);
bool machine_has_passed(xseg_event event);
void machine_event_destroy(xseg_event event);

/* Begin a capture; its number. */
uint64_t machine_capture(xseg_stream stream, enum machine_mode mode);
/* One node. */
void machine_capture_node(xseg_stream stream);
/* `later` comes behind `earlier`, and joins its capture. */
void machine_join(xseg_stream later, xseg_stream earlier);
/* Do what no capture survives. */
void machine_spoil(xseg_stream stream);
/* End a capture; whether it yielded a graph. */
bool machine_capture_end(xseg_stream stream);

/* Memory from the driver for a pool's own functions; NULL if there is none. */
void *machine_alloc(size_t bytes);
void machine_free(void *ptr);

#endif
