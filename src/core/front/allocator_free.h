/* SPDX-License-Identifier: MIT */
/*
 * The general way of a free, and what else users do with a block: name a stream that uses it, free it behind
 * events.  It knows why an address is no live block.
 */
#ifndef XSEG_CORE_ALLOCATOR_FREE_H
#define XSEG_CORE_ALLOCATOR_FREE_H

#include "src/core/device/allocator.h"

/* Free, as xseg_free() of the public header. */
xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer);

/* Free behind events, as xseg_free_after() of the public header. */
xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count);

/* Note a use, as xseg_use() of the public header. */
xseg_status xseg_allocator_use(struct xseg_allocator *allocator, const void *pointer,
                               xseg_stream stream);

#endif
