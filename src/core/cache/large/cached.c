/* SPDX-License-Identifier: MIT */
#include "src/core/cache/large/cached.h"

/* What an expandable block can grow to: its size and that of the hole behind it. */
static uint64_t effective_bytes(const struct xseg_block *block)
{
    return block->bytes + (xseg_block_can_grow(block) ? block->next->bytes : 0);
}

/*
 * The part of a segment that could still grow is passed over while the block that comes next by
 * size is effectively smaller (PyTorch's rule: stops at the first that is not).
 */
struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block)
{
    /* Nothing that comes later is smaller than one that cannot grow. */
    while (xseg_block_can_grow(block) && xseg_extent_is_expandable(block->extent)) {
        struct xseg_block *next = xseg_cached_next(arena, block);

        if (next == NULL || effective_bytes(next) >= effective_bytes(block))
            break;
        block = next;
    }
    return block;
}

/* What a request may have: what fits best, which is `block`, if that is not kept for others. */
struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena, const struct xseg_need *need,
                                      struct xseg_block *block)
{
    const struct xseg_config *config = need->config;

    if (need->expandable) {
        block = xseg_cached_prefer_enclosed(arena, block);
    } else {
        while (block != NULL && xseg_extent_is_expandable(block->extent))
            block = xseg_cached_next(arena, block);
        if (block == NULL)
            return NULL;
    }
    /* Oversize blocks are kept for oversize requests of nearly their size. */
    if (need->bytes < config->max_split_bytes && block->bytes >= config->max_split_bytes)
        return NULL;
    if (need->bytes >= config->max_split_bytes &&
        block->bytes >= xseg_add_saturate(need->bytes, config->max_non_split_rounding_bytes))
        return NULL;
    return block;
}
