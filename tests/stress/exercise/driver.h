/* SPDX-License-Identifier: MIT */
/*
 * What a program asks of the driver itself: streams, events, captures, memory.
 *
 * Faults may strike in these calls, too: they are made again, and the faults are lifted when that does
 * not help.  The calling thread's context and capture mode are as they were afterwards.
 */
#ifndef XSEG_TESTS_EXERCISE_DRIVER_H
#define XSEG_TESTS_EXERCISE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* Hold the contexts of so many devices, at most 4, until the end. */
void driver_open(unsigned devices);
void driver_close(void);

/* The calling thread's current context: a device's, or none (-1). */
void driver_set_current(int device);
int driver_current(void);

xseg_stream driver_stream(int device);
void driver_stream_destroy(int device, xseg_stream stream);

/* What `later` does next comes after what `earlier` was given so far: in a capture of that, it joins. */
void driver_wait(int device, xseg_stream later, xseg_stream earlier);

xseg_event driver_event(int device, xseg_stream stream);
void driver_event_destroy(xseg_event event);

/* Queue work that touches some bytes; queue a function of the host. */
void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes);
void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument);

/* Wait for all that is queued on a stream, which is not being captured. */
void driver_finish(int device, xseg_stream stream);

/* Captures are global, which is the mode that bears least. */
void driver_capture_begin(int device, xseg_stream stream);
bool driver_capture_end(int device, xseg_stream stream);

/* Memory of the driver; NULL: there is none. */
void *driver_alloc(int device, uint64_t bytes);
void driver_free(int device, void *ptr);

#endif
