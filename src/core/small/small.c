/* SPDX-License-Identifier: MIT */
#include "src/core/small/small.h"

#include "src/core/arena/arena.h"
#include "src/core/config/size.h"
#include "src/core/small/cell.h"
#include "src/core/small/cell_index.h"

/* --- The hole behind a cell. --- */

/* The size that a cached cell can grow to: its own and that of the hole behind it. */
static uint64_t effective_bytes(const struct xseg_cell *cell)
{
    return xseg_cell_bytes_of(cell->quanta) +
           (xseg_cell_is_open(cell) ? xseg_cell_behind(cell)->bytes : 0);
}

/* --- Choosing. --- */

/* The cell of a node, or none. */
static struct xseg_cell cell_of(const struct xseg_block *node)
{
    if (node == NULL)
        return (struct xseg_cell){0};
    XSEG_ASSERT(node->state == XSEG_BLOCK_CACHED);
    return (struct xseg_cell){node->extent, xseg_cell_quantum_of(node->extent, node->base),
                              (uint32_t)(node->bytes >> XSEG_CELLS_SHIFT)};
}

/* Whether the victim is the best fit of wide cells, where `node` is that of the free index, or NULL. */
static inline bool is_victim_first(const struct xseg_cell *last_remainder,
                                   const struct xseg_block *node)
{
    const uint64_t bytes = xseg_cell_bytes_of(last_remainder->quanta);

    return node == NULL || bytes < node->bytes ||
           (bytes == node->bytes && xseg_cell_position(last_remainder) < xseg_block_position(node));
}

/* The first wide cell that is not below (quanta, position), or none. */
static struct xseg_cell wide_from(const struct xseg_arena *arena, uint32_t quanta,
                                  uint64_t position)
{
    const struct xseg_cell *last_remainder = &arena->small.last_remainder;
    const struct xseg_block *node =
        arena->free_index.used.top == 0
            ? NULL
            : xseg_free_index_from(&arena->free_index, xseg_cell_bytes_of(quanta), position);

    XSEG_ASSERT(quanta >= XSEG_CELLS_WIDE);
    if (last_remainder->quanta < quanta ||
        (last_remainder->quanta == quanta && xseg_cell_position(last_remainder) < position))
        return cell_of(node);
    return is_victim_first(last_remainder, node) ? *last_remainder : cell_of(node);
}

/* The cell that comes after one by size and position, or none. */
static struct xseg_cell cell_after(const struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_cell next = {0};

    XSEG_ASSERT(cell->quanta > 0);
    if (cell->quanta >= XSEG_CELLS_WIDE)
        return wide_from(arena, cell->quanta, xseg_cell_position(cell) + 1);
    next = xseg_bins_next(&arena->small.bins, cell);
    return next.quanta != 0 ? next : wide_from(arena, XSEG_CELLS_WIDE, 0);
}

/* PyTorch's rule for cells that can still grow, as in cached.c. */
static struct xseg_cell prefer_enclosed(const struct xseg_arena *arena, struct xseg_cell cell)
{
    while (xseg_extent_is_expandable(cell.extent)) {
        const struct xseg_cell next = cell_after(arena, &cell);

        if (next.quanta == 0 || effective_bytes(&next) >= effective_bytes(&cell))
            break;
        cell = next;
    }
    return cell;
}

/* PyTorch's choice, from a cell on: a classic request skips expandable segments. */
static struct xseg_cell prefer(const struct xseg_arena *arena, bool expandable,
                               struct xseg_cell cell)
{
    if (expandable)
        return prefer_enclosed(arena, cell);
    while (cell.quanta != 0 && xseg_extent_is_expandable(cell.extent))
        cell = cell_after(arena, &cell);
    return cell;
}

/* The best fit of wide cells, or none.
 * out: set to its node; left alone for the victim, which has none */
static inline struct xseg_cell best_wide(const struct xseg_arena *arena, uint32_t quanta,
                                         struct xseg_block **out)
{
    const struct xseg_cell *last_remainder = &arena->small.last_remainder;
    struct xseg_block *node = NULL;

    if (arena->free_index.used.top != 0)
        node = xseg_free_index_find(&arena->free_index, xseg_cell_bytes_of(quanta));
    if (last_remainder->quanta >= quanta && is_victim_first(last_remainder, node))
        return *last_remainder;
    *out = node;
    return cell_of(node);
}

/*
 * The best fit, or none.
 *
 * node: set to the node of a cell in the free index, if it is known; else left alone or NULL
 */
static inline __attribute__((always_inline)) struct xseg_cell find(const struct xseg_arena *arena,
                                                                   uint32_t quanta, bool expandable,
                                                                   uint64_t max_split_bytes,
                                                                   struct xseg_block **node)
{
    struct xseg_cell cell = xseg_bins_find(&arena->small.bins, quanta);
    bool is_last = false;

    if (cell.quanta == 0) {
        cell = best_wide(arena, quanta, node);
        /* No cell comes after a victim that is the only wide one. */
        is_last = arena->free_index.used.top == 0;
    }
    if (cell.quanta == 0)
        return cell;
    /* A cell without a hole behind it is the rule's choice as well. */
    if (__builtin_expect((!is_last && xseg_cell_is_open(&cell)) ||
                             (!expandable && xseg_extent_is_expandable(cell.extent)),
                         0)) {
        cell = prefer(arena, expandable, cell);
        *node = NULL;
    }
    /* Oversize blocks are kept for oversize requests, of which none is small. */
    if (__builtin_expect(xseg_cell_bytes_of(cell.quanta) >= max_split_bytes, 0))
        cell.quanta = 0;
    return cell;
}

/* --- Handing out. --- */

/*
 * Cut a cell that is larger than wanted: its head becomes live, and the bits of its rest are set.  Mostly both
 * begin in one word; then three words change.
 */
static inline void cut_bits(struct xseg_cells *cells, struct xseg_cells_word *word,
                            uint32_t quantum, uint32_t rest)
{
    const uint64_t bit = xseg_cells_bit(quantum), behind = xseg_cells_bit(rest);
    const bool is_open = (word->open & bit) != 0;

    XSEG_ASSERT(rest > quantum && xseg_cells_is_free(word, quantum));
    word->free &= ~bit;
    word->open &= ~bit;
    if (__builtin_expect(quantum / 64 == rest / 64, 1)) {
        word->start |= behind;
    } else {
        xseg_cells_add_start(cells, rest);
        word = xseg_cells_word(cells, rest);
    }
    word->free |= behind;
    if (is_open)
        word->open |= behind;
}

/* Clear the bits of a cell that is handed out whole. */
static inline void clear_bits(struct xseg_cells *cells, const struct xseg_cell *cell)
{
    struct xseg_cells_word *word = xseg_cells_word(cells, cell->quantum);
    const uint32_t last = cell->quantum + cell->quanta - 1;

    XSEG_ASSERT(xseg_cells_is_free(word, cell->quantum));
    XSEG_ASSERT((xseg_cells_word(cells, last)->free & xseg_cells_bit(last)) != 0);
    word->free &= ~xseg_cells_bit(cell->quantum);
    word->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
}

/* Hand out the head of a cached cell; the rest of a wide cell becomes the victim.  Returns the address.
 * node: of a cell in the free index, or NULL */
static inline __attribute__((always_inline)) uint64_t
hand_out_head(struct xseg_arena *arena, const struct xseg_cell *cell, struct xseg_block *node,
              uint32_t quanta, uint64_t requested)
{
    struct xseg_cells *cells = &cell->extent->cells;
    struct xseg_chunk_map *chunk = xseg_cells_chunk(cells, cell->quantum);
    const struct xseg_cell rest = {cell->extent, cell->quantum + quanta, cell->quanta - quanta};
    const uint64_t bytes = xseg_cell_bytes_of(quanta);
    const bool was_last_remainder = xseg_cell_is_victim(&arena->small, cell);

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(quanta > 0 && quanta <= cell->quanta && requested <= bytes);
    if (was_last_remainder)
        arena->small.last_remainder = rest.quanta < XSEG_CELLS_WIDE ? (struct xseg_cell){0} : rest;
    else if (node != NULL)
        xseg_free_index_remove(&arena->free_index, node);
    else
        (void)xseg_cell_index_take_off(arena, chunk, cell->quantum, cell->quanta);
    if (!xseg_extent_is_expandable(cell->extent))
        xseg_fragments_split_any(&arena->counts, !xseg_cell_is_whole(cell), bytes,
                                 xseg_cell_bytes_of(rest.quanta));
    if (rest.quanta == 0) {
        clear_bits(cells, cell);
    } else {
        cut_bits(cells, &chunk->word[cell->quantum / 64 % XSEG_CELLS_WORDS], cell->quantum,
                 rest.quantum);
        xseg_cells_set_requested(cells, rest.quantum,
                                 chunk->requested[cell->quantum % XSEG_CELLS_CHUNK]);
        if (!was_last_remainder || rest.quanta < XSEG_CELLS_WIDE)
            xseg_cell_index_put_rest(arena, &rest);
    }
    chunk->requested[cell->quantum % XSEG_CELLS_CHUNK] = (xseg_cells_size)requested;
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return xseg_cell_address_of(cell->extent, cell->quantum);
}

static struct xseg_alloc_result result(struct xseg_arena *arena, const struct xseg_cell *cell,
                                       struct xseg_block *node,
                                       const struct xseg_alloc_params *params)
{
    const uint32_t wanted = (uint32_t)(params->bytes >> XSEG_CELLS_SHIFT);
    const uint32_t quanta = __builtin_expect(params->no_split, 0) ? cell->quanta : wanted;
    XSEG_ASSERT(wanted > 0 && wanted <= cell->quanta);
    const uint64_t base = hand_out_head(arena, cell, node, quanta, params->requested);

    return (struct xseg_alloc_result){arena, base, xseg_cell_bytes_of(quanta), params->requested,
                                      false};
}

/* Cut a cached cell in two, both of which stay cached; returns the second.  The requested size of the first is its size. */
static struct xseg_cell cut_head(struct xseg_arena *arena, const struct xseg_cell *cell,
                                 uint32_t quanta)
{
    struct xseg_cells *cells = &cell->extent->cells;
    const struct xseg_cell head = {cell->extent, cell->quantum, quanta};
    const struct xseg_cell rest = {cell->extent, cell->quantum + quanta, cell->quanta - quanta};
    const bool was_open = xseg_cell_is_open(cell);

    XSEG_ASSERT(quanta > 0 && quanta < cell->quanta);
    XSEG_ASSERT(xseg_cells_is_free(xseg_cells_word(cells, cell->quantum), cell->quantum));
    (void)xseg_cell_index_take(arena, cell);
    xseg_cells_word(cells, cell->quantum)->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, rest.quantum - 1)->free |= xseg_cells_bit(rest.quantum - 1);
    xseg_cells_add_start(cells, rest.quantum);
    xseg_cells_word(cells, rest.quantum)->free |= xseg_cells_bit(rest.quantum);
    if (was_open)
        xseg_cells_word(cells, rest.quantum)->open |= xseg_cells_bit(rest.quantum);
    if (!xseg_extent_is_expandable(cell->extent))
        xseg_fragments_split_head(&arena->counts, !xseg_cell_is_whole(cell),
                                  xseg_cell_bytes_of(cell->quanta));
    xseg_cells_set_requested(cells, rest.quantum, xseg_cells_requested(cells, cell->quantum));
    xseg_cells_set_requested(cells, cell->quantum, xseg_cell_bytes_of(quanta));
    xseg_cell_index_put(arena, &head);
    xseg_cell_index_put(arena, &rest);
    return rest;
}

static struct xseg_alloc_result allocate_inside(struct xseg_arena *arena, struct xseg_cell cell,
                                                uint64_t base,
                                                const struct xseg_alloc_params *params)
{
    const uint32_t quantum = xseg_cell_quantum_of(cell.extent, base);

    XSEG_ASSERT(quantum >= cell.quantum && quantum < cell.quantum + cell.quanta);
    if (quantum != cell.quantum)
        cell = cut_head(arena, &cell, quantum - cell.quantum);
    return result(arena, &cell, NULL, params);
}

bool xseg_small_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                      struct xseg_alloc_result *out)
{
    struct xseg_block *node = NULL;
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && params->span >= params->bytes);
    const struct xseg_cell cell = find(arena, (uint32_t)(params->span >> XSEG_CELLS_SHIFT),
                                       params->expandable, params->config->max_split_bytes, &node);

    if (cell.quanta == 0)
        return false;
    if (__builtin_expect(params->keep, 0)) {
        *out = (struct xseg_alloc_result){.arena = arena,
                                          .base = xseg_cell_address_of(cell.extent, cell.quantum)};
    } else if (__builtin_expect(params->alignment != XSEG_SIZE_UNIT, 0)) {
        const uint64_t base = xseg_cell_address_of(cell.extent, cell.quantum);

        *out = allocate_inside(arena, cell, xseg_round_up(base, params->alignment), params);
    } else {
        *out = result(arena, &cell, node, params);
    }
    return true;
}

struct xseg_alloc_result xseg_small_hand_out_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params)
{
    const struct xseg_cells *cells = &extent->cells;
    const uint32_t first = xseg_cells_last(cells, xseg_cell_quantum_of(extent, base));
    const struct xseg_cell cell = {extent, first, xseg_cells_next(cells, first + 1) - first};

    XSEG_ASSERT(xseg_cells_is_free(xseg_cells_word(cells, first), first));
    return allocate_inside(arena, cell, base, params);
}

/* --- Hits. --- */

uint64_t xseg_small_hit(struct xseg_arena *arena, uint64_t requested, bool expandable,
                        uint64_t max_split_bytes)
{
    const uint32_t quanta = (uint32_t)((requested + XSEG_SIZE_UNIT - 1) >> XSEG_CELLS_SHIFT);
    struct xseg_block *node = NULL;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && quanta > 0);
    const struct xseg_cell cell = find(arena, quanta, expandable, max_split_bytes, &node);
    return cell.quanta == 0 ? 0 : hand_out_head(arena, &cell, node, quanta, requested);
}

/* --- Nodes. --- */

struct xseg_block *xseg_small_from(struct xseg_arena *arena, uint64_t bytes, uint64_t position)
{
    xseg_cell_index_put_victim(arena);
    return xseg_free_index_from(&arena->free_index,
                                xseg_max(bytes, xseg_cell_bytes_of(XSEG_CELLS_WIDE)), position);
}
