/* SPDX-License-Identifier: MIT */
/*
 * The driver objects of a program: streams, events, captures, memory.
 *
 * Faults may occur in these calls as well: they are retried, and if that fails the faults are lifted. The context and
 * the capture mode of the calling thread are restored.
 */
#ifndef XSEG_TESTS_EXERCISE_DRIVER_H
#define XSEG_TESTS_EXERCISE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* Retain the contexts of at most 4 devices until the end. */
void driver_open(unsigned devices);
void driver_close(void);

/* Set the calling thread's current context to that of a device, or none (-1). */
void driver_set_current(int device);
int driver_current(void);

xseg_stream driver_stream(int device);
void driver_stream_destroy(int device, xseg_stream stream);

/* Order the next work on `later` after the current work on `earlier`; if `earlier` is capturing, `later` joins. */
void driver_wait(int device, xseg_stream later, xseg_stream earlier);

xseg_event driver_event(int device, xseg_stream stream);
void driver_event_destroy(xseg_event event);

/* Queue work that touches some bytes; queue a host function. */
void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes);
void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument);

/* Wait for all work of a stream, which must not be capturing. */
void driver_finish(int device, xseg_stream stream);

/* Captures are global, the strictest mode. */
void driver_capture_begin(int device, xseg_stream stream);
bool driver_capture_end(int device, xseg_stream stream);

/* Memory of the driver; NULL: none. */
void *driver_alloc(int device, uint64_t bytes);
void driver_free(int device, void *ptr);

#endif
