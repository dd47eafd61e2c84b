/* SPDX-License-Identifier: MIT */
/*
 * The slow path of a free, for all blocks, and other calls for an allocated block: recording a stream that uses it, and a free
 * behind events.
 *
 * Each call looks the block up once and works under the lock of the arena that the lookup has locked.  It looks the block up
 * again only if that lock had to be released, to stock records or to ask the driver about a stream.  A block that other streams
 * use is claimed under the lock, and its events are recorded after the lock is released (pending.h).
 *
 * If an address is not the start of an allocated block, the error message specifies what is at the address, and the last free
 * of the address if the history contains it.
 *
 * Locking: the caller holds no lock.
 */
#ifndef XSEG_CORE_ALLOCATOR_FREE_H
#define XSEG_CORE_ALLOCATOR_FREE_H

#include "src/core/device/allocator.h"

/* Free a block: serves xseg_free() of the public header. */
xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer);

/* Free a block behind events: serves xseg_free_after() of the public header. */
xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count);

/* Record a stream that uses a block: serves xseg_record_stream() of the public header. */
xseg_status xseg_allocator_record_stream(struct xseg_allocator *allocator, const void *pointer,
                                         xseg_stream stream);

#endif
