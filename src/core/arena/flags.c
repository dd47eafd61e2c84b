/* SPDX-License-Identifier: MIT */
#include "src/core/arena/flags.h"

#include "src/core/arena/arena.h"

void xseg_flags_lend(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *up = arena->lent.up;

    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_lent(block));
    XSEG_ASSERT(arena->is_private && xseg_biased_lock_is_held(&arena->lock));
    up[XSEG_COUNT_ALLOCATION]++;
    up[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
    up[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
    up[XSEG_COUNT_ACTIVE]++;
    up[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
    up[XSEG_COUNT_OVERSIZE_ALLOCATION] += (block->flags & XSEG_BLOCK_OVERSIZE) != 0;
    block->flags |= XSEG_BLOCK_LENT;
    xseg_arena_set_generally(arena, true);
}

/* Count a block with flags that its user has freed. */
static void end_allocation(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->lent.down;
    const bool oversize = (block->flags & XSEG_BLOCK_OVERSIZE) != 0;

    XSEG_ASSERT(block->flags != 0 && xseg_biased_lock_is_held(&arena->lock));
    if (oversize)
        xseg_counts_down(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    if (xseg_block_is_lent(block)) {
        XSEG_ASSERT(down[XSEG_COUNT_ALLOCATION] < arena->lent.up[XSEG_COUNT_ALLOCATION]);
        down[XSEG_COUNT_ALLOCATION]++;
        down[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
        down[XSEG_COUNT_OVERSIZE_ALLOCATION] += oversize;
    }
    block->flags &= (uint8_t)~XSEG_BLOCK_OVERSIZE;
}

/* Count a block that no stream uses any more. */
static void end_activity(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->lent.down;

    if (xseg_block_is_lent(block)) {
        down[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
        XSEG_ASSERT(down[XSEG_COUNT_ACTIVE] < arena->lent.up[XSEG_COUNT_ACTIVE]);
        down[XSEG_COUNT_ACTIVE]++;
        down[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
        xseg_arena_set_generally(arena, arena->is_guarded || arena->lent.up[XSEG_COUNT_ACTIVE] !=
                                                                 down[XSEG_COUNT_ACTIVE]);
    }
    block->flags = 0;
}

void xseg_flags_free(struct xseg_arena *arena, struct xseg_block *block)
{
    end_allocation(arena, block);
    end_activity(arena, block);
}

void xseg_flags_pend(struct xseg_arena *arena, struct xseg_block *block)
{
    end_allocation(arena, block);
}

void xseg_flags_take_back(struct xseg_arena *arena, struct xseg_block *block)
{
    end_activity(arena, block);
}
