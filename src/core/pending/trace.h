/* SPDX-License-Identifier: MIT */
/*
 * Trace: what happens to blocks and segments, noted for observers that want to know.
 *
 * Notes are made where things happen, under whatever lock is held there, and delivered by
 * xseg_trace_deliver() once none is.  While nobody traces a note is one test.
 */
#ifndef XSEG_CORE_TRACE_H
#define XSEG_CORE_TRACE_H

#include "src/core/device/allocator.h"

static inline bool xseg_trace_is_on(const struct xseg_device *device)
{
    return xseg_allocator_config(device->allocator)->traced;
}

/* Note something about memory of an arena; base 0 is none. */
void xseg_trace_note(const struct xseg_arena *arena, enum xseg_trace_action action, uint64_t base,
                     uint64_t bytes);

/* Note something about a block: that it is handed out; or about one that has a record.  The pool that is told
 * is its holder's. */
void xseg_trace_note_grant(const struct xseg_grant *grant);
void xseg_trace_note_block(const struct xseg_block *block, enum xseg_trace_action action);

/* Note something about memory of a segment.  The pool that is told is the one that it was made for. */
void xseg_trace_note_segment(const struct xseg_extent *extent, enum xseg_trace_action action,
                             uint64_t base, uint64_t bytes);

/* Deliver what was noted.  No lock is held. */
static inline void xseg_trace_deliver(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->traced, 0))
        xseg_observers_deliver(&allocator->observers);
}

#endif
