/* SPDX-License-Identifier: MIT */
#include "src/core/small/small_free.h"

#include "src/core/config/size.h"
#include "src/core/small/cell_index.h"

/* --- Taking back. --- */

/* The cached cell that ends where a quantum begins, or none. */
static inline struct xseg_cell free_before(struct xseg_extent *extent, uint32_t quantum)
{
    const struct xseg_cells *cells = &extent->cells;
    struct xseg_cell none = {0};

    if (quantum == 0 || xseg_cells_chunk(cells, quantum - 1) == NULL ||
        (xseg_cells_word(cells, quantum - 1)->free & xseg_cells_bit(quantum - 1)) == 0)
        return none;
    const uint32_t first = xseg_cells_last(cells, quantum - 1);
    return (struct xseg_cell){extent, first, quantum - first};
}

/* The chunk map of a quantum near another chunk map, which mostly is that one; NULL if there is none. */
static inline struct xseg_chunk_map *chunk_near(struct xseg_chunk_map *chunk, uint32_t quantum)
{
    const struct xseg_cells *cells = &chunk->extent->cells;

    if (__builtin_expect(quantum / XSEG_CELLS_CHUNK == chunk->number, 1))
        return chunk;
    return quantum < cells->quanta ? xseg_cells_chunk(cells, quantum) : NULL;
}

/* The word of a quantum in its chunk map. */
static inline struct xseg_cells_word *word_in(struct xseg_chunk_map *chunk, uint32_t quantum)
{
    XSEG_ASSERT(chunk != NULL && chunk->number == quantum / XSEG_CELLS_CHUNK);
    return &chunk->word[quantum / 64 % XSEG_CELLS_WORDS];
}

/* The first start behind a quantum of a chunk map; the end of the extent if there is none. */
static inline uint32_t next_start(const struct xseg_chunk_map *chunk, uint32_t quantum)
{
    const uint32_t at = xseg_cells_next_in(chunk, quantum % XSEG_CELLS_CHUNK);
    const uint32_t next = chunk->number * XSEG_CELLS_CHUNK + at;

    return __builtin_expect(at != XSEG_CELLS_CHUNK, 1)
               ? next
               : xseg_cells_next_far(&chunk->extent->cells, next);
}

/* The last start before a quantum of a chunk map. */
static inline uint32_t last_start(const struct xseg_chunk_map *chunk, uint32_t quantum)
{
    const uint32_t at = xseg_cells_last_in(chunk, quantum % XSEG_CELLS_CHUNK);

    return __builtin_expect(at != XSEG_CELLS_CHUNK, 1)
               ? chunk->number * XSEG_CELLS_CHUNK + at
               : xseg_cells_last(&chunk->extent->cells, chunk->number * XSEG_CELLS_CHUNK - 1);
}

/* A cell that grows by the neighbours that it merges with. */
struct merged {
    uint32_t first, past; /* its first quantum, and the one behind its last */
    unsigned neighbours;
    bool was_last_remainder, open;
};

/* Merge with the cached cell behind: searches find that no longer, and its bits are cleared. */
static inline void absorb_right(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                                struct merged *cell)
{
    const uint32_t end = cell->past;
    const uint64_t bit = xseg_cells_bit(end);
    struct xseg_cells_word *word = word_in(chunk, end);
    const struct xseg_cell right = {chunk->extent, end, 0};

    if (xseg_cell_is_victim(&arena->small, &right)) {
        cell->was_last_remainder = true;
        cell->past += arena->small.last_remainder.quanta;
    } else {
        cell->past = next_start(chunk, end);
        (void)xseg_cell_index_take_off(arena, chunk, end, cell->past - end);
    }
    XSEG_ASSERT(cell->past > end && xseg_cells_is_free(word, end));
    cell->neighbours++;
    cell->open = (word->open & bit) != 0;
    word->open &= ~bit;
    word->free ^= bit;
    xseg_cells_remove_start_in(&chunk->extent->cells, chunk, end);
}

/* Merge with the cached cell before: searches find that no longer.  Its start stays, that of the cell is cleared, and
 * the requested size of the cell replaces that of the cell before.
 * before: the chunk map where the cell before ends */
static inline void absorb_left(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                               struct xseg_chunk_map *before, struct merged *cell)
{
    const uint32_t quantum = cell->first, last = quantum - 1;

    cell->first =
        chunk == before ? last_start(chunk, quantum) : xseg_cells_last(&chunk->extent->cells, last);
    XSEG_ASSERT(cell->first < quantum);
    chunk_near(before, cell->first)->requested[cell->first % XSEG_CELLS_CHUNK] =
        chunk->requested[quantum % XSEG_CELLS_CHUNK];
    cell->was_last_remainder |= xseg_cell_index_take_off(arena, chunk_near(before, cell->first),
                                                         cell->first, quantum - cell->first);
    cell->neighbours++;
    word_in(before, last)->free ^= xseg_cells_bit(last);
    xseg_cells_remove_start_in(&chunk->extent->cells, chunk, quantum);
}

/* Make quanta of a chunk map, which are in no cell and no record, a cached cell, and merge it with its neighbours;
 * returns the merged cell. */
static inline struct xseg_cell merge(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                                     uint32_t quantum, uint32_t quanta)
{
    struct xseg_extent *extent = chunk->extent;
    struct merged merged = {.first = quantum, .past = quantum + quanta};
    struct xseg_chunk_map *behind = chunk_near(chunk, merged.past);
    struct xseg_chunk_map *before = quantum == 0 ? NULL : chunk_near(chunk, quantum - 1);

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && quanta > 0);
    XSEG_ASSERT(xseg_cells_is_live(word_in(chunk, quantum), quantum));
    if (behind != NULL) {
        const struct xseg_cells_word *word = word_in(behind, merged.past);
        const uint64_t bit = xseg_cells_bit(merged.past);
        const struct xseg_cell cell = {extent, quantum, quanta};

        if ((word->free & word->start & bit) != 0)
            absorb_right(arena, behind, &merged);
        else if ((word->record & bit) != 0)
            merged.open = xseg_cell_behind(&cell)->state == XSEG_BLOCK_UNMAPPED;
    }
    if (before != NULL && (word_in(before, quantum - 1)->free & xseg_cells_bit(quantum - 1)) != 0)
        absorb_left(arena, chunk, before, &merged);
    const struct xseg_cell cell = {extent, merged.first, merged.past - merged.first};
    struct xseg_chunk_map *head = chunk_near(chunk, merged.first);
    struct xseg_cells_word *word = word_in(head, merged.first);
    word->free |= xseg_cells_bit(merged.first);
    if (merged.open)
        word->open |= xseg_cells_bit(merged.first);
    word_in(chunk_near(chunk, merged.past - 1), merged.past - 1)->free |=
        xseg_cells_bit(merged.past - 1);
    XSEG_ASSERT(xseg_cells_is_free(word, merged.first) && cell.quanta >= quanta);
    XSEG_ASSERT(!merged.was_last_remainder || cell.quanta >= XSEG_CELLS_WIDE);
    if (merged.was_last_remainder)
        arena->small.last_remainder = cell;
    else if (cell.quanta < XSEG_CELLS_WIDE)
        xseg_bins_insert(&arena->small.bins, head, merged.first, cell.quanta);
    else
        xseg_cell_index_put_wide(arena, &cell);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_coalesce(&arena->counts, !xseg_cell_is_whole(&cell), merged.neighbours,
                                xseg_cell_bytes_of(quanta),
                                xseg_cell_bytes_of(cell.quanta - quanta));
    return cell;
}

/* --- Frees. --- */

void xseg_small_merge(struct xseg_arena *arena, struct xseg_chunk_map *chunk, uint32_t quantum,
                      uint32_t quanta)
{
    (void)merge(arena, chunk, quantum, quanta);
}

bool xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum)
{
    struct xseg_chunk_map *chunk = xseg_cells_chunk(&extent->cells, quantum);

    XSEG_ASSERT(extent->arena == arena && xseg_biased_lock_is_held(&arena->lock));
    if (__builtin_expect(!xseg_cells_is_live(word_in(chunk, quantum), quantum), 0))
        return false;
    const uint32_t quanta = next_start(chunk, quantum) - quantum;
    const uint64_t bytes = xseg_cell_bytes_of(quanta);

    XSEG_ASSERT(quantum + quanta <= extent->cells.quanta);
    xseg_counts_free(&arena->counts, bytes, chunk->requested[quantum % XSEG_CELLS_CHUNK]);
    xseg_arena_record_free_if_enabled(arena, extent, xseg_cell_address_of(extent, quantum), bytes);
    (void)merge(arena, chunk, quantum, quanta);
    return true;
}

void xseg_small_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address)
{
    (void)xseg_small_free(arena, extent, xseg_cell_quantum_of(extent, address));
}

/* --- Neighbours. --- */

struct xseg_cell xseg_small_cached_at(struct xseg_extent *extent, uint64_t address)
{
    return xseg_cell_free_at(extent, xseg_cell_quantum_of(extent, address));
}

struct xseg_cell xseg_small_cached_before(struct xseg_extent *extent, uint64_t address)
{
    return free_before(extent, xseg_cell_quantum_of(extent, address));
}

void xseg_small_take_off(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_cells *cells = &cell->extent->cells;
    struct xseg_cells_word *word = xseg_cells_word(cells, cell->quantum);
    const uint32_t last = cell->quantum + cell->quanta - 1;

    XSEG_ASSERT(cell->quanta > 0 && xseg_cells_is_free(word, cell->quantum));
    (void)xseg_cell_index_take(arena, cell);
    word->free &= ~xseg_cells_bit(cell->quantum);
    word->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
}

struct xseg_cell xseg_small_put_on(struct xseg_arena *arena, struct xseg_cell cell)
{
    const struct xseg_cell merged = merge(
        arena, xseg_cells_chunk(&cell.extent->cells, cell.quantum), cell.quantum, cell.quanta);

    /* Callers use the node of the merged cell, which a victim does not have. */
    xseg_cell_index_put_victim(arena);
    return merged;
}
