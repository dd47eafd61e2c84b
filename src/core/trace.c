/* SPDX-License-Identifier: MIT */
#include "src/core/trace.h"

void xseg_trace_note(const struct xseg_arena *arena, enum xseg_trace_action action, uint64_t base,
                     uint64_t bytes)
{
    if (!xseg_trace_is_on(arena->device))
        return;
    const struct xseg_trace_entry entry = {
        .struct_bytes = sizeof(entry),
        .action = action,
        .device = arena->device->context.ordinal,
        .stream = xseg_arena_stream(arena)->handle,
        .pool = arena->pool->is_private && !arena->pool->is_alone ? arena->pool : NULL,
        .base = (void *)(uintptr_t)base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = bytes,
    };

    xseg_observers_note(&arena->device->allocator->observers, &entry);
}
