/* SPDX-License-Identifier: MIT */
/*
 * The allocators of libxseg-preload.so, one for each device.  So a reset of a device ends its allocator and leaves the
 * memory of other devices alone.
 *
 * An allocator opens at the first allocation on its device, and closes before this library resets the device.  Other resets
 * (by a static runtime, or by a function that was looked up with dlsym) are found by the ID of the primary context, which
 * the driver never reuses.  A call queries the ID once for each device whose memory it uses.  A reset found so has destroyed
 * the streams and events of the allocator, and freed its classic segments.  So the allocator is abandoned: it is neither
 * used nor closed.
 *
 * Locking: a call that uses an allocator counts as a user of its device, by an atomic counter; closing waits for the
 * users.  No user waits for a device.  One mutex serializes opening and resets.
 * Fork: in a child of a process that has opened an allocator, service_enter() returns false, and nothing here is used.
 */
#ifndef XSEG_ADAPTERS_PRELOAD_DEVICES_H
#define XSEG_ADAPTERS_PRELOAD_DEVICES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "originals.h"
#include "xseg/xseg.h"

#define DEVICES 64

/* In the place of a stream: the device's own stream, which orders the blocks for every stream. */
#define EVERY_STREAM ((xseg_stream)(uintptr_t)-1)

enum ownership {
    FOREIGN, /* memory of no allocator */
    LIVE,    /* the start of an allocated block */
    DEAD     /* another address in memory of an allocator: freed before, or inside a block */
};

/*
 * Begin a call.  Returns false if the call has to go to the original function: inside another call of this library, and in
 * a forked child.
 */
bool service_enter(void);

/* End a call that service_enter() began.  Returns `result`. */
int service_leave(int result);

/* Whether `context` is the primary context of the device. */
bool device_is_primary(int device, const void *context);

/* The device of a stream in a primary context; -1: another context, or no such stream.  here: the device of the calling
 * thread, which has the default streams */
int device_of_stream(xseg_stream stream, int here);

/*
 * Whether the stream is being captured, or the driver does not answer because of a capture elsewhere.
 *
 * device: of the stream; the allocator is opened
 */
bool device_is_capturing(int device, xseg_stream stream);

/* Allocate from the device's allocator, which is opened if necessary.  stream: EVERY_STREAM, or a stream of the device */
bool device_alloc(int device, size_t bytes, xseg_stream stream, void **out);

/* Find the device that has the memory at an address.  *device: set unless FOREIGN */
enum ownership device_find(void *ptr, int *device);

/* Free a block whose work has finished.  Returns false if it is still allocated. */
bool device_free(int device, void *ptr);

/* Free a block once the work that is queued on a stream of any device has finished.  here: the device of the calling thread.
 * Returns false if it is still allocated. */
bool device_free_after(int device, void *ptr, xseg_stream stream, int here);

/* The device's primary context, as long as its allocator is open; else NULL. */
void *device_context(int device);

/* Wait for all work of the device's primary context, with the driver.  Returns the driver's result. */
int device_synchronize(int device);

/* Retire a stream, which is about to be destroyed. */
void device_retire_stream(xseg_stream stream);

/*
 * Count the cached memory of a device as free.
 *
 * query: the original function
 * Returns: its result
 */
int device_memory_info(int device, int (*query)(size_t *, size_t *), size_t *free_bytes,
                       size_t *total);

/* Free all blocks of a device and close its allocator, because the device is about to be reset.  No allocator opens until
 * device_reset_end(). */
void device_reset_begin(int device);
void device_reset_end(void);

#endif
