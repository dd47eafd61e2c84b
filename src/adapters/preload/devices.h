/* SPDX-License-Identifier: MIT */
/*
 * The allocators of libxseg-preload.so, one for each device.  So a reset of a device destroys its allocator and does not
 * affect the memory of other devices.
 *
 * An allocator opens at the first allocation on its device, and closes before this library resets the device.  Other resets
 * (by a static runtime, or by a function that was looked up with dlsym) are detected by the ID of the primary context, which
 * the driver never reuses.  A call queries the ID once for each device whose memory it uses.  Such a reset has destroyed the
 * streams and events of the allocator, and freed its classic segments.  So the allocator is abandoned: it is neither used
 * nor closed.
 *
 * Locking: a call that uses an allocator counts as a user of its device, by an atomic counter; closing waits for the
 * users.  No user waits for a device.  One mutex serializes opening and resets.
 *
 * Fork: in a child of a process that has opened an allocator, service_enter() returns false, and no allocator is used.
 */
#ifndef XSEG_ADAPTERS_PRELOAD_DEVICES_H
#define XSEG_ADAPTERS_PRELOAD_DEVICES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "originals.h"
#include "xseg/xseg.h"

#define DEVICES 64

/* Stream argument of device_alloc(): every stream can use the block immediately. */
#define EVERY_STREAM ((xseg_stream)(uintptr_t)-1)

enum ownership {
    FOREIGN,      /* memory of no allocator */
    ALLOCATED,    /* the start of an allocated block */
    NOT_ALLOCATED /* another address in memory of an allocator: a freed block, or inside a block */
};

/*
 * Begin a call.  Returns false if the original function must serve the call: in a nested call of this library, and in a
 * forked child.
 */
bool service_enter(void);

/* End a call that service_enter() began.  Returns `result`. */
int service_leave(int result);

/* Get whether a context is the primary context of a device. */
bool device_is_primary(int device, const void *context);

/*
 * Get the device of a stream; -1 if the context of the stream is not a primary one, or the stream does not exist.
 *
 * current: the device of the calling thread, to which default streams belong
 */
int device_of_stream(xseg_stream stream, int current);

/*
 * Get whether a stream is capturing, or its query fails because of another capture.
 *
 * device: the device of the stream, whose allocator is opened if necessary
 */
bool device_is_capturing(int device, xseg_stream stream);

/* Allocate from the allocator of a device, which is opened if necessary.  stream: EVERY_STREAM, or a stream of the device */
bool device_alloc(int device, size_t bytes, xseg_stream stream, void **out);

/* Find the device whose allocator has the memory at an address.  *device is valid unless the result is FOREIGN. */
enum ownership device_find(void *ptr, int *device);

/* Free a block that no work uses.  Returns false if the block remains allocated. */
bool device_free(int device, void *ptr);

/*
 * Free a block when the work that is queued on a stream of any device has completed.
 *
 * current: the device of the calling thread
 * Returns: false if the block remains allocated
 */
bool device_free_after(int device, void *ptr, xseg_stream stream, int current);

/* Get the primary context of a device while its allocator is open, otherwise NULL. */
void *device_context(int device);

/* Wait for all work of the primary context of a device.  Returns the driver's result. */
int device_synchronize(int device);

/* Retire a stream that is about to be destroyed. */
void device_retire_stream(xseg_stream stream);

/*
 * Count the cached memory of a device as free.
 *
 * query: the original function
 * Returns: its result
 */
int device_memory_info(int device, int (*query)(size_t *, size_t *), size_t *free_bytes,
                       size_t *total);

/* Before a reset of a device, free all its blocks and close its allocator.  No allocator opens until device_reset_end(). */
void device_reset_begin(int device);
void device_reset_end(void);

#endif
