/* SPDX-License-Identifier: MIT */
/*
 * The driver calls of a random program: contexts, streams, events, captures, memory.
 *
 * Every call is made in the context of its device with the thread's capture mode relaxed, so that it invalidates no
 * capture; context and mode are restored afterwards.  A call that fails ends the process.  In programs with injected
 * faults the call is retried first, and if it fails again the faults are lifted.
 */
#ifndef XSEG_TESTS_DRIVER_H
#define XSEG_TESTS_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* The driver's capture modes. */
enum driver_mode { DRIVER_GLOBAL, DRIVER_THREAD_LOCAL, DRIVER_RELAXED };

/* Retain the primary contexts of at most 4 devices until driver_close().  lift: a function that lifts all faults; NULL:
 * no faults are injected. */
void driver_open(unsigned devices, void (*lift)(void));
void driver_close(void);

/* Set the calling thread's current context to that of a device, or none (-1). */
void driver_set_current(int device);

/* The device of the current context, or -1; expects that the thread's capture mode is global. */
int driver_current(void);

xseg_stream driver_stream(int device, bool blocking);
void driver_stream_destroy(int device, xseg_stream stream);

/* Order the next work on `later` after the current work on `earlier`; if `earlier` is capturing, `later` joins. */
void driver_wait(int device, xseg_stream later, xseg_stream earlier);

/* An event after the current work of a stream. */
xseg_event driver_event(int device, xseg_stream stream);
void driver_event_synchronize(int device, xseg_event event);
bool driver_event_has_completed(xseg_event event);
void driver_event_destroy(xseg_event event);

/* Queue work that touches some bytes, or none if ptr is NULL; queue a host function. */
void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes);
void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument);

/* Wait for all work of a stream, which must not be capturing. */
void driver_finish(int device, xseg_stream stream);

void driver_capture_begin(int device, xseg_stream stream, enum driver_mode mode);
uint64_t driver_capture_id(xseg_stream stream);
void driver_capture_invalidate(int device, xseg_stream stream);

/* Returns whether the capture yielded a graph. */
bool driver_capture_end(int device, xseg_stream stream);

/* Memory of the driver; NULL: none. */
void *driver_alloc(int device, uint64_t bytes);
void driver_free(int device, void *ptr);

#endif
