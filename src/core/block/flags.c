/* SPDX-License-Identifier: MIT */
#include "src/core/block/flags.h"

#include "src/core/block/arena.h"

void xseg_flags_mark_fallback(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *up = arena->fallback.up;

    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_fallback(block));
    XSEG_ASSERT(arena->is_private && xseg_biased_lock_is_held(&arena->lock));
    up[XSEG_COUNT_ALLOCATION]++;
    up[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
    up[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
    up[XSEG_COUNT_ACTIVE]++;
    up[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
    up[XSEG_COUNT_OVERSIZE_ALLOCATION] += (block->flags & XSEG_BLOCK_OVERSIZE) != 0;
    block->flags |= XSEG_BLOCK_FALLBACK;
    xseg_arena_set_slow_path(arena, true);
}

/* Count a block with flags that its user has freed. */
static void end_allocation(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->fallback.down;
    const bool oversize = (block->flags & XSEG_BLOCK_OVERSIZE) != 0;

    XSEG_ASSERT(block->flags != 0 && xseg_biased_lock_is_held(&arena->lock));
    if (oversize)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    if (xseg_block_is_fallback(block)) {
        XSEG_ASSERT(down[XSEG_COUNT_ALLOCATION] < arena->fallback.up[XSEG_COUNT_ALLOCATION]);
        down[XSEG_COUNT_ALLOCATION]++;
        down[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
        down[XSEG_COUNT_OVERSIZE_ALLOCATION] += oversize;
    }
    block->flags &= (uint8_t)~XSEG_BLOCK_OVERSIZE;
}

/* Count a block that no stream uses any more. */
static void end_activity(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->fallback.down;

    if (xseg_block_is_fallback(block)) {
        down[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
        XSEG_ASSERT(down[XSEG_COUNT_ACTIVE] < arena->fallback.up[XSEG_COUNT_ACTIVE]);
        down[XSEG_COUNT_ACTIVE]++;
        down[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
        xseg_arena_set_slow_path(arena,
                                 arena->is_guarded || arena->fallback.up[XSEG_COUNT_ACTIVE] !=
                                                          down[XSEG_COUNT_ACTIVE]);
    }
    block->flags = 0;
}

void xseg_flags_free(struct xseg_arena *arena, struct xseg_block *block)
{
    end_allocation(arena, block);
    end_activity(arena, block);
}

void xseg_flags_mark_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    end_allocation(arena, block);
}

void xseg_flags_free_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    end_activity(arena, block);
}
