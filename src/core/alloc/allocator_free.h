/* SPDX-License-Identifier: MIT */
/*
 * The general way of a free, for all blocks, and other calls for a live block: note a stream that uses it, free it
 * behind events.  The error texts say why an address is not the start of a live block.
 */
#ifndef XSEG_CORE_ALLOCATOR_FREE_H
#define XSEG_CORE_ALLOCATOR_FREE_H

#include "src/core/device/allocator.h"

/* Free a block: serves xseg_free() of the public header. */
xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer);

/* Free a block behind events: serves xseg_free_after() of the public header. */
xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count);

/* Note a stream that uses a block: serves xseg_record_stream() of the public header. */
xseg_status xseg_allocator_record_stream(struct xseg_allocator *allocator, const void *pointer,
                                         xseg_stream stream);

#endif
