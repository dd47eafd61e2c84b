/* SPDX-License-Identifier: MIT */
#include "src/core/pending/trace.h"

#include "src/base/check.h"

static void note(const struct xseg_arena *arena, struct xseg_pool *pool,
                 enum xseg_trace_action action, uint64_t base, uint64_t bytes)
{
    XSEG_ASSERT(arena != NULL && !xseg_lock_is_held(XSEG_RANK_OBSERVERS));
    if (!xseg_trace_is_on(arena->device))
        return;
    const struct xseg_trace_entry entry = {
        .struct_bytes = sizeof(entry),
        .action = action,
        .device = arena->device->context.ordinal,
        .stream = xseg_arena_stream(arena)->handle,
        .pool = pool,
        .base = (void *)(uintptr_t)base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = bytes,
    };

    xseg_observers_note(&arena->device->allocator->observers, &entry);
}

void xseg_trace_note(const struct xseg_arena *arena, enum xseg_trace_action action, uint64_t base,
                     uint64_t bytes)
{
    note(arena, xseg_pool_shown(arena->pool), action, base, bytes);
}

void xseg_trace_note_grant(const struct xseg_grant *grant)
{
    XSEG_ASSERT(grant->base != 0);
    note(grant->arena, grant->lent ? NULL : xseg_pool_shown(grant->arena->pool), XSEG_TRACE_ALLOC,
         grant->base, grant->requested);
}

void xseg_trace_note_block(const struct xseg_block *block, enum xseg_trace_action action)
{
    const struct xseg_arena *arena = block->extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_LIVE || block->state == XSEG_BLOCK_PENDING ||
                block->state == XSEG_BLOCK_BUSY);
    note(arena, xseg_block_is_lent(block) ? NULL : xseg_pool_shown(arena->pool), action,
         block->base, block->requested);
}

void xseg_trace_note_segment(const struct xseg_extent *extent, enum xseg_trace_action action,
                             uint64_t base, uint64_t bytes)
{
    note(extent->arena, xseg_pool_of(extent), action, base, bytes);
}
