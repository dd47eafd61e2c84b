/* SPDX-License-Identifier: MIT */
#include "src/core/block/best_fit.h"

#include "src/core/block/page_map.h"

/* The size to which an expandable block can grow: its own size and that of an unmapped block after
 * it. */
static uint64_t effective_bytes(const struct xseg_block *block)
{
    return block->bytes + (xseg_block_can_grow(block) ? block->next->bytes : 0);
}

struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block)
{
    XSEG_ASSERT(block != NULL && block->state == XSEG_BLOCK_CACHED);
    /* The effective size of a block that cannot grow is at most that of any successor. */
    while (xseg_block_can_grow(block) && xseg_extent_is_expandable(block->extent)) {
        struct xseg_block *next = xseg_cached_next(arena, block);

        if (next == NULL || effective_bytes(next) >= effective_bytes(block))
            break;
        XSEG_ASSERT(next->bytes >= block->bytes && next != block);
        block = next;
    }
    return block;
}

/* Whether a cached block is exactly one physical page, or is in a classic segment, which is one
 * allocation of the driver. */
static bool is_single_page(const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;

    return !xseg_segment_is_expandable(segment) ||
           (xseg_block_is_whole(block) && segment->page_bytes == segment->bytes);
}

struct xseg_block *xseg_cached_find_single_page(const struct xseg_arena *arena,
                                                const struct xseg_alloc_params *params)
{
    /* A page is rounded up to the mapping granularity, so it may exceed the request by this much in
     * any case. */
    const uint64_t slack =
        xseg_max(params->config->max_non_split_rounding_bytes, XSEG_SIZE_SMALL_SEGMENT);
    struct xseg_block *block = xseg_cached_find(arena, params->bytes);

    XSEG_ASSERT(params->is_single && params->no_split);
    while (block != NULL && block->bytes - params->bytes < slack) {
        if (is_single_page(block) && block->base % params->alignment == 0)
            return block;
        block = xseg_cached_next(arena, block);
    }
    return NULL;
}

struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_block *block)
{
    const struct xseg_config *config = params->config;

    XSEG_ASSERT(block != NULL && block->bytes >= params->span);
    if (params->expandable) {
        block = xseg_cached_prefer_enclosed(arena, block);
    } else {
        while (block != NULL && xseg_extent_is_expandable(block->extent))
            block = xseg_cached_next(arena, block);
        if (block == NULL)
            return NULL;
    }
    /* Oversize blocks are reserved for oversize requests of a similar size. */
    if (params->bytes < config->max_split_bytes && block->bytes >= config->max_split_bytes)
        return NULL;
    if (params->bytes >= config->max_split_bytes &&
        block->bytes >= xseg_add_saturate(params->bytes, config->max_non_split_rounding_bytes))
        return NULL;
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    return block;
}
