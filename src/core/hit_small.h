/* SPDX-License-Identifier: MIT */
/*
 * Hits on cells, the shortest ways: what most small allocations and frees come down to, in a header so
 * that it becomes part of its callers.  A call costs 20 instructions, and these take about 200.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_HIT_SMALL_H
#define XSEG_CORE_HIT_SMALL_H

#include "src/core/arena.h"
#include "src/core/cell.h"

/*
 * A cell of at least one quantum more than is wanted is cut: its head becomes live, and the bits of its
 * rest are set.  Both begin in the word mostly; then three words change.
 */
static inline void xseg_hit_small_cut_bits(struct xseg_cells *cells, struct xseg_cells_word *word,
                                           uint32_t quantum, uint32_t rest)
{
    const uint64_t bit = xseg_cells_bit(quantum), behind = xseg_cells_bit(rest);
    const bool is_open = (word->open & bit) != 0;

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

/* Note what was requested of a cell that was just cut to size, and count it. */
static inline uint64_t xseg_hit_small_finish(struct xseg_arena *arena, struct xseg_sheet *sheet,
                                             uint32_t quantum, uint32_t quanta, uint64_t requested)
{
    const uint64_t bytes = xseg_cell_bytes_of(quanta);

    sheet->slack[quantum % XSEG_CELLS_SHEET] = (uint16_t)(bytes - requested);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return xseg_cell_address_of(sheet->extent, quantum);
}

/* From the frontier, where the rack has nothing and the shelf neither. */
static inline uint64_t xseg_hit_small_frontier(struct xseg_arena *arena, uint32_t quanta,
                                               uint64_t requested)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    struct xseg_cells *cells = &frontier->extent->cells;
    const uint32_t quantum = frontier->quantum;

    frontier->quantum += quanta;
    frontier->quanta -= quanta;
    xseg_hit_small_cut_bits(cells, xseg_cells_word(cells, quantum), quantum, frontier->quantum);
    return xseg_hit_small_finish(arena, xseg_cells_sheet(cells, quantum), quantum, quanta,
                                 requested);
}

/* From a cell of the rack, which no hole follows. */
static inline uint64_t xseg_hit_small_rack(struct xseg_arena *arena, const struct xseg_cell *cell,
                                           uint32_t quanta, uint64_t requested)
{
    struct xseg_cells *cells = &cell->extent->cells;
    struct xseg_sheet *sheet = xseg_cells_sheet(cells, cell->quantum);
    struct xseg_cells_word *word = xseg_cells_word(cells, cell->quantum);
    const uint32_t rest = cell->quantum + quanta, last = rest - 1;

    if (!xseg_extent_is_expandable(cell->extent))
        xseg_arena_note_cut(arena, true, xseg_cell_bytes_of(quanta),
                            xseg_cell_bytes_of(cell->quanta - quanta));
    xseg_rack_remove_cell(&arena->small.rack, sheet, cell->quantum, cell->quanta);
    if (cell->quanta != quanta) {
        xseg_hit_small_cut_bits(cells, word, cell->quantum, rest);
        xseg_rack_insert(&arena->small.rack, xseg_cells_sheet(cells, rest), rest,
                         cell->quanta - quanta);
    } else {
        word->free &= ~xseg_cells_bit(cell->quantum);
        xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
    }
    return xseg_hit_small_finish(arena, sheet, cell->quantum, quanta, requested);
}

/* Serve a plain request from a cell of the rack or from the frontier, else by all the rules. */
static inline uint64_t xseg_hit_small_alloc(struct xseg_arena *arena, const struct xseg_need *need)
{
    const uint32_t quanta = (uint32_t)(need->bytes >> XSEG_CELLS_SHIFT);
    const struct xseg_cell *frontier = &arena->small.frontier;
    const struct xseg_cell cell = xseg_rack_find(&arena->small.rack, quanta);

    if (__builtin_expect(arena->small.has_filled, 0))
        return 0;
    if (cell.quanta != 0 && !xseg_cell_is_open(&cell) &&
        (need->expandable || !xseg_extent_is_expandable(cell.extent)))
        return xseg_hit_small_rack(arena, &cell, quanta, need->requested);
    if (cell.quanta != 0 || arena->shelf.filled.top != 0 ||
        frontier->quanta < XSEG_CELLS_WIDE + quanta ||
        xseg_cell_bytes_of(frontier->quanta) >= need->config->max_split_bytes ||
        !xseg_extent_is_expandable(frontier->extent) || !need->expandable)
        return xseg_small_hit(arena, need);
    return xseg_hit_small_frontier(arena, quanta, need->requested);
}

/* A live cell before the frontier becomes part of it. */
static inline void xseg_hit_small_join_frontier(struct xseg_arena *arena,
                                                struct xseg_cells_word *word, uint32_t quantum,
                                                uint32_t end)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    struct xseg_cells *cells = &frontier->extent->cells;
    struct xseg_cells_word *behind = xseg_cells_word(cells, end);
    const uint64_t bit = xseg_cells_bit(quantum), gone = xseg_cells_bit(end);

    frontier->quantum = quantum;
    frontier->quanta += end - quantum;
    if ((behind->open & gone) != 0)
        word->open |= bit;
    behind->open &= ~gone;
    behind->free &= ~gone;
    word->free |= bit;
    xseg_cells_remove_start(cells, end);
}

/* Whether a cached cell ends where a quantum of a sheet begins. */
static inline bool xseg_hit_small_is_free_before(const struct xseg_cells *cells,
                                                 const struct xseg_sheet *sheet, uint32_t quantum)
{
    const struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];

    if (__builtin_expect(quantum % 64 != 0, 1))
        return (word->free >> (quantum % 64 - 1) & 1) != 0;
    if (quantum % XSEG_CELLS_SHEET != 0)
        return word[-1].free >> 63 != 0;
    return quantum != 0 && cells->sheet[sheet->number - 1] != NULL &&
           cells->sheet[sheet->number - 1]->word[XSEG_CELLS_WORDS - 1].free >> 63 != 0;
}

/* A free cell that borders no cached one but the frontier takes no more than that; else false. */
static inline bool xseg_hit_small_free_alone(struct xseg_arena *arena, struct xseg_sheet *sheet,
                                             uint32_t quantum, uint32_t end)
{
    struct xseg_extent *extent = sheet->extent;
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    struct xseg_cells_word *behind = &sheet->word[end / 64 % XSEG_CELLS_WORDS];
    const struct xseg_cell *frontier = &arena->small.frontier;

    const bool is_classic = !xseg_extent_is_expandable(extent);

    if (xseg_hit_small_is_free_before(&extent->cells, sheet, quantum))
        return false;
    if (frontier->quantum == end && frontier->extent == extent && frontier->quanta != 0) {
        if (is_classic)
            return false;
        xseg_hit_small_join_frontier(arena, word, quantum, end);
        return true;
    }
    if (quantum / XSEG_CELLS_SHEET != end / XSEG_CELLS_SHEET || end - quantum >= XSEG_CELLS_WIDE ||
        ((behind->free | behind->record) & xseg_cells_bit(end)) != 0)
        return false;
    word->free |= xseg_cells_bit(quantum);
    sheet->word[(end - 1) / 64 % XSEG_CELLS_WORDS].free |= xseg_cells_bit(end - 1);
    xseg_rack_insert(&arena->small.rack, sheet, quantum, end - quantum);
    if (is_classic)
        xseg_arena_note_merge(arena, true, 0, 0, xseg_cell_bytes_of(end - quantum));
    return true;
}

/* Free the live cell that begins at a quantum. */
static inline void xseg_hit_small_free(struct xseg_arena *arena, struct xseg_extent *extent,
                                       uint32_t quantum)
{
    struct xseg_cells *cells = &extent->cells;
    const uint32_t end = xseg_cells_next(cells, quantum + 1);
    const uint64_t bytes = xseg_cell_bytes_of(end - quantum);

    xseg_counts_free(&arena->counts, bytes, xseg_cells_requested(cells, quantum, bytes));
    xseg_arena_stamp(arena, extent, xseg_cell_address_of(extent, quantum), bytes);
    if (!xseg_hit_small_free_alone(arena, xseg_cells_sheet(cells, quantum), quantum, end))
        xseg_small_merge(arena, extent, quantum, end - quantum);
}

#endif
