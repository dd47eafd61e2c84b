/* SPDX-License-Identifier: MIT */
/*
 * Trace: actions on blocks and segments, noted for observers with `trace`.
 *
 * An action is noted where it happens, under the locks held there, and delivered by
 * xseg_trace_deliver() once no lock is held.  Without such an observer, a note costs one test.
 */
#ifndef XSEG_CORE_TRACE_H
#define XSEG_CORE_TRACE_H

#include "src/core/device/allocator.h"

static inline bool xseg_trace_is_on(const struct xseg_device *device)
{
    return xseg_allocator_config(device->allocator)->traced;
}

/* Note an action on memory of an arena; base 0 is none. */
void xseg_trace_note(const struct xseg_arena *arena, enum xseg_trace_action action, uint64_t base,
                     uint64_t bytes);

/* Note that a block is handed out; note an action on a block that has a record.  The entry names
 * the pool of the block's holder. */
void xseg_trace_note_grant(const struct xseg_grant *grant);
void xseg_trace_note_block(const struct xseg_block *block, enum xseg_trace_action action);

/* Note an action on memory of a segment.  The entry names the pool that the segment was made
 * for. */
void xseg_trace_note_segment(const struct xseg_extent *extent, enum xseg_trace_action action,
                             uint64_t base, uint64_t bytes);

/* Deliver the entries noted so far.  No lock is held. */
static inline void xseg_trace_deliver(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->traced, 0))
        xseg_observers_deliver(&allocator->observers);
}

#endif
