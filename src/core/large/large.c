/* SPDX-License-Identifier: MIT */
#include "src/core/large/large.h"

bool xseg_large_take_back_noting(struct xseg_arena *arena, xseg_slot *slot,
                                 struct xseg_block *block, uint64_t address)
{
    XSEG_ASSERT(xseg_arena_has_notes(arena));
    if ((atomic_load(&arena->notes) & XSEG_ARENA_GENERALLY) != 0 ||
        !xseg_large_is_plain(block, address))
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (block->flags != 0)
        xseg_flags_end_oversize(&arena->counts, block);
    xseg_arena_note_free(arena, block->extent, address, block->bytes);
    xseg_slot_remove(slot);
    return true;
}
