/* SPDX-License-Identifier: MIT */
#include "src/core/small/small_audit.h"

#include <inttypes.h>

#include "src/core/arena/arena.h"
#include "src/core/small/cell.h"
#include "src/core/small/tract.h"

/* What an audit counts. */
struct tally {
    uint64_t wide, indexed;
    /* How many more bits are set than cached cells have. */
    int64_t free, open;
};

static bool audit_cell(const struct xseg_arena *arena, const struct xseg_cell *cell,
                       struct tally *tally, struct xseg_violation *violation)
{
    const struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t end = cell->quantum + cell->quanta, last = end - 1;
    const uint64_t at = xseg_cell_address_of(cell->extent, cell->quantum);

    XSEG_INVARIANT(violation, "CELL-2",
                   (xseg_cells_word(cells, last)->free & xseg_cells_bit(last)) != 0,
                   "the last quantum of the cached cell at %#" PRIx64 " is not free", at);
    XSEG_INVARIANT(violation, "SMALL-1", xseg_cell_free_at(cell->extent, end).quanta == 0,
                   "two cached cells at %#" PRIx64, at);
    XSEG_INVARIANT(violation, "CELL-3", xseg_cell_is_open(cell) == xseg_cell_has_hole_behind(cell),
                   "the cached cell at %#" PRIx64 " and what is behind it", at);
    tally->free -= cell->quanta == 1 ? 1 : 2;
    tally->open -= xseg_cell_is_open(cell);
    if (cell->quanta < XSEG_CELLS_WIDE)
        return true;
    tally->wide++;
    const struct xseg_block *node = xseg_cells_node(cells, cell->quantum);
    XSEG_INVARIANT(violation, "SMALL-2",
                   xseg_cell_is_victim(&arena->small, cell) ||
                       (node->base == at && node->bytes == xseg_cell_bytes_of(cell->quanta) &&
                        node->state == XSEG_BLOCK_CACHED && node->extent == cell->extent),
                   "the node of the cached cell at %#" PRIx64, at);
    return true;
}

static bool audit_extent(const struct xseg_arena *arena, struct xseg_extent *extent,
                         struct tally *tally, struct xseg_violation *violation)
{
    const struct xseg_cells *cells = &extent->cells;
    uint32_t quantum = xseg_cells_next_far(cells, 0), end;

    for (uint32_t number = 0; number < cells->chunks; number++) {
        const struct xseg_chunk_map *chunk = cells->chunk[number];
        uint64_t starts = 0;

        for (uint32_t word = 0; chunk != NULL && word < XSEG_CELLS_WORDS; word++) {
            starts |= (uint64_t)(chunk->word[word].start != 0) << word;
            tally->free += __builtin_popcountll(chunk->word[word].free);
            tally->open += __builtin_popcountll(chunk->word[word].open);
        }
        XSEG_INVARIANT(violation, "CELL-1",
                       (chunk == NULL || chunk->starts == starts) &&
                           xseg_bitmap_test(&cells->used, number) == (starts != 0),
                       "starts of chunk map %" PRIu32, number);
    }
    for (; quantum < cells->quanta; quantum = end) {
        const struct xseg_cells_word *word = xseg_cells_word(cells, quantum);

        end = xseg_cells_next(cells, quantum + 1);
        const struct xseg_cell cell = {extent, quantum, end - quantum};
        if (xseg_cells_is_free(word, quantum) && !audit_cell(arena, &cell, tally, violation))
            return false;
    }
    return true;
}

/* How many nodes a free index has. */
static uint64_t count_nodes(const struct xseg_free_index *free_index)
{
    uint64_t count = 0;

    for (const struct xseg_block *node = xseg_free_index_find(free_index, 1); node != NULL;
         node = xseg_free_index_next(free_index, node))
        count++;
    return count;
}

bool xseg_small_audit(const struct xseg_arena *arena, struct xseg_violation *violation)
{
    struct tally tally = {.indexed = count_nodes(&arena->free_index)};

    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        /* What lies behind a cell is found by way of its tract. */
        if (!xseg_tract_audit(extent, violation) || !audit_extent(arena, extent, &tally, violation))
            return false;
    }
    XSEG_INVARIANT(violation, "CELL-2", tally.free == 0, "%" PRId64 " quanta too many are free",
                   tally.free);
    XSEG_INVARIANT(violation, "CELL-3", tally.open == 0, "%" PRId64 " cells too many are open",
                   tally.open);
    tally.indexed += arena->small.last_remainder.quanta != 0;
    XSEG_INVARIANT(violation, "SMALL-2", tally.wide == tally.indexed,
                   "%" PRIu64 " wide cached cells, %" PRIu64 " in the free index", tally.wide,
                   tally.indexed);
    XSEG_INVARIANT(violation, "SMALL-3", arena->small.is_plain == (arena->small.bins.tops == 1),
                   "it is%s plain", arena->small.is_plain ? "" : " not");
    return xseg_bins_audit(&arena->small.bins, violation);
}
