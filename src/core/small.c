/* SPDX-License-Identifier: MIT */
#include "src/core/small.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/core/arena.h"
#include "src/core/size.h"
#include "src/core/tract.h"

static inline uint64_t address_of(const struct xseg_extent *extent, uint32_t quantum)
{
    return extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
}

static inline uint32_t quantum_of(const struct xseg_extent *extent, uint64_t address)
{
    return (uint32_t)((address - extent->segment.base) >> XSEG_CELLS_SHIFT);
}

static inline uint64_t bytes_of(uint32_t quanta)
{
    return (uint64_t)quanta << XSEG_CELLS_SHIFT;
}

static inline bool is_whole(const struct xseg_cell *cell)
{
    return cell->quanta == cell->extent->cells.quanta;
}

/* --- Where cached cells are found. --- */

static bool is_frontier(const struct xseg_small *small, const struct xseg_cell *cell)
{
    return small->frontier.extent == cell->extent && small->frontier.quantum == cell->quantum &&
           small->frontier.quanta != 0;
}

static void put_on_shelf(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_block *node = xseg_cells_node(&cell->extent->cells, cell->quantum);

    *node = (struct xseg_block){
        .state = XSEG_BLOCK_CACHED,
        .mapped = true,
        .base = address_of(cell->extent, cell->quantum),
        .bytes = bytes_of(cell->quanta),
        .extent = cell->extent,
    };
    xseg_shelf_insert(&arena->shelf, node);
}

/* A cached cell can be found from now on. */
static inline void shelve(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    if (__builtin_expect(cell->quanta < XSEG_CELLS_WIDE, 1))
        xseg_rack_insert(&arena->small.rack, xseg_cells_sheet(&cell->extent->cells, cell->quantum),
                         cell->quantum, cell->quanta);
    else
        put_on_shelf(arena, cell);
}

/* A cached cell is found no longer; its bits are still as they were.  Whether it was the frontier. */
static inline bool unshelve(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_small *small = &arena->small;

    if (__builtin_expect(cell->quanta < XSEG_CELLS_WIDE, 1)) {
        xseg_rack_remove_cell(&small->rack, xseg_cells_sheet(&cell->extent->cells, cell->quantum),
                              cell->quantum, cell->quanta);
        return false;
    }
    if (is_frontier(small, cell)) {
        small->frontier.quanta = 0;
        return true;
    }
    xseg_shelf_remove(&arena->shelf, xseg_cells_node(&cell->extent->cells, cell->quantum));
    return false;
}

static void shelve_frontier(struct xseg_arena *arena)
{
    if (arena->small.frontier.quanta != 0)
        put_on_shelf(arena, &arena->small.frontier);
    arena->small.frontier.quanta = 0;
}

/* What is left of a cell that was cut. */
static inline void shelve_rest(struct xseg_arena *arena, const struct xseg_cell *rest)
{
    if (rest->quanta < XSEG_CELLS_WIDE) {
        shelve(arena, rest);
    } else {
        shelve_frontier(arena);
        arena->small.frontier = *rest;
    }
}

/* --- The hole behind a cell. --- */

static inline bool is_open(const struct xseg_cell *cell)
{
    return (xseg_cells_word(&cell->extent->cells, cell->quantum)->open &
            xseg_cells_bit(cell->quantum)) != 0;
}

static struct xseg_block *record_behind(const struct xseg_cell *cell)
{
    const struct xseg_block *tract =
        xseg_tract_over(cell->extent, address_of(cell->extent, cell->quantum));

    return tract->next;
}

/* What a cached cell can grow to: its size and that of the hole behind it. */
static uint64_t effective_bytes(const struct xseg_cell *cell)
{
    return bytes_of(cell->quanta) + (is_open(cell) ? record_behind(cell)->bytes : 0);
}

/* Whether a hole begins where a cached cell ends. */
static bool has_hole_behind(const struct xseg_cell *cell)
{
    const struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t end = cell->quantum + cell->quanta;

    return end < cells->quanta &&
           (xseg_cells_word(cells, end)->record & xseg_cells_bit(end)) != 0 &&
           record_behind(cell)->state == XSEG_BLOCK_HOLE;
}

/* --- Choosing. --- */

static struct xseg_cell cell_of(const struct xseg_block *node)
{
    if (node == NULL)
        return (struct xseg_cell){0};
    return (struct xseg_cell){node->extent, quantum_of(node->extent, node->base),
                              (uint32_t)(node->bytes >> XSEG_CELLS_SHIFT)};
}

/* The first wide cell that is not below (quanta, base), or none. */
static struct xseg_cell wide_from(const struct xseg_arena *arena, uint32_t quanta, uint64_t base)
{
    const struct xseg_cell *frontier = &arena->small.frontier;
    const uint64_t at = frontier->quanta == 0 ? 0 : address_of(frontier->extent, frontier->quantum);
    const struct xseg_block *node = arena->shelf.filled.top == 0
                                        ? NULL
                                        : xseg_shelf_from(&arena->shelf, bytes_of(quanta), base);

    if (frontier->quanta < quanta || (frontier->quanta == quanta && at < base))
        return cell_of(node);
    if (node == NULL || bytes_of(frontier->quanta) < node->bytes ||
        (bytes_of(frontier->quanta) == node->bytes && at < node->base))
        return *frontier;
    return cell_of(node);
}

/* The cell that comes after one by size and address, or none. */
static struct xseg_cell cell_after(const struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_cell next = {0};

    if (cell->quanta >= XSEG_CELLS_WIDE)
        return wide_from(arena, cell->quanta, address_of(cell->extent, cell->quantum) + 1);
    next = xseg_rack_next(&arena->small.rack, cell);
    return next.quanta != 0 ? next : wide_from(arena, XSEG_CELLS_WIDE, 0);
}

/* PyTorch's rule for what can still grow, as in arena.c; and a classic request leaves it alone. */
static struct xseg_cell prefer(const struct xseg_arena *arena, const struct xseg_need *need,
                               struct xseg_cell cell)
{
    while (cell.quanta != 0 && xseg_extent_is_expandable(cell.extent)) {
        const struct xseg_cell next = cell_after(arena, &cell);

        if (need->expandable &&
            (next.quanta == 0 || effective_bytes(&next) >= effective_bytes(&cell)))
            break;
        cell = next;
    }
    return cell;
}

static inline struct xseg_cell find(const struct xseg_arena *arena, const struct xseg_need *need)
{
    const uint32_t quanta = (uint32_t)(need->span >> XSEG_CELLS_SHIFT);
    struct xseg_cell cell = xseg_rack_find(&arena->small.rack, quanta);

    if (cell.quanta == 0)
        cell = wide_from(arena, quanta, 0);
    if (cell.quanta == 0)
        return cell;
    /* One that no hole follows is what the rule would end at. */
    if (__builtin_expect(
            is_open(&cell) || (!need->expandable && xseg_extent_is_expandable(cell.extent)), 0))
        cell = prefer(arena, need, cell);
    /* Oversize blocks are kept for oversize requests, of which none is small. */
    if (__builtin_expect(bytes_of(cell.quanta) >= need->config->max_split_bytes, 0))
        cell.quanta = 0;
    return cell;
}

/* --- Handing out. --- */

/* Whether quanta that are handed out hold the pattern; from here on they do not. */
static bool take_filled(struct xseg_arena *arena, struct xseg_cells *cells, uint32_t quantum,
                        uint32_t quanta)
{
    if (__builtin_expect(!arena->small.has_filled, 1))
        return false;
    const bool filled = xseg_cells_are_filled(cells, quantum, quanta);
    xseg_cells_set_filled(cells, quantum, quanta, false);
    return filled;
}

/* Hand out the head of a cached cell that is found no longer; the rest stays cached. */
static inline struct xseg_grant
hand_out_head(struct xseg_arena *arena, const struct xseg_cell *cell, const struct xseg_need *need)
{
    struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t wanted = (uint32_t)(need->bytes >> XSEG_CELLS_SHIFT);
    const uint32_t quanta = __builtin_expect(need->no_split, 0) ? cell->quanta : wanted;
    const struct xseg_cell rest = {cell->extent, cell->quantum + quanta, cell->quanta - quanta};
    struct xseg_cells_word *word = xseg_cells_word(cells, cell->quantum);
    const uint64_t bit = xseg_cells_bit(cell->quantum);
    const bool was_open = (word->open & bit) != 0;

    word->free &= ~bit;
    word->open &= ~bit;
    if (rest.quanta != 0) {
        struct xseg_cells_word *behind = xseg_cells_word(cells, rest.quantum);

        xseg_cells_add_start(cells, rest.quantum);
        behind->free |= xseg_cells_bit(rest.quantum);
        behind->open |= was_open ? xseg_cells_bit(rest.quantum) : 0;
        shelve_rest(arena, &rest);
    } else {
        xseg_cells_word(cells, rest.quantum - 1)->free &= ~xseg_cells_bit(rest.quantum - 1);
    }
    if (!xseg_extent_is_expandable(cell->extent))
        xseg_arena_note_cut(arena, !is_whole(cell), bytes_of(quanta), bytes_of(rest.quanta));
    xseg_cells_note_requested(cells, cell->quantum, bytes_of(quanta), need->requested);
    xseg_counts_alloc(&arena->counts, bytes_of(quanta), need->requested);
    return (struct xseg_grant){arena, address_of(cell->extent, cell->quantum), bytes_of(quanta),
                               need->requested, take_filled(arena, cells, cell->quantum, quanta)};
}

/* Leave the head of a cell that is found no longer cached, as a cell of its own; returns the rest. */
static struct xseg_cell cut_head(struct xseg_arena *arena, const struct xseg_cell *cell,
                                 uint32_t quanta)
{
    struct xseg_cells *cells = &cell->extent->cells;
    const struct xseg_cell head = {cell->extent, cell->quantum, quanta};
    const struct xseg_cell rest = {cell->extent, cell->quantum + quanta, cell->quanta - quanta};
    const bool was_open = is_open(cell);

    xseg_cells_word(cells, cell->quantum)->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, rest.quantum - 1)->free |= xseg_cells_bit(rest.quantum - 1);
    xseg_cells_add_start(cells, rest.quantum);
    xseg_cells_word(cells, rest.quantum)->free |= xseg_cells_bit(rest.quantum);
    if (was_open)
        xseg_cells_word(cells, rest.quantum)->open |= xseg_cells_bit(rest.quantum);
    if (!xseg_extent_is_expandable(cell->extent))
        xseg_arena_note_head(arena, !is_whole(cell), bytes_of(cell->quanta));
    shelve(arena, &head);
    return rest;
}

static struct xseg_grant hand_out_inside(struct xseg_arena *arena, struct xseg_cell cell,
                                         uint64_t base, const struct xseg_need *need)
{
    const uint32_t quantum = quantum_of(cell.extent, base);

    (void)unshelve(arena, &cell);
    if (quantum != cell.quantum)
        cell = cut_head(arena, &cell, quantum - cell.quantum);
    return hand_out_head(arena, &cell, need);
}

bool xseg_small_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                      struct xseg_grant *out)
{
    const struct xseg_cell cell = find(arena, need);

    if (cell.quanta == 0)
        return false;
    if (__builtin_expect(need->keep, 0)) {
        *out = (struct xseg_grant){.arena = arena, .base = address_of(cell.extent, cell.quantum)};
    } else if (__builtin_expect(need->alignment != XSEG_SIZE_QUANTUM, 0)) {
        const uint64_t base = address_of(cell.extent, cell.quantum);

        *out = hand_out_inside(arena, cell, xseg_round_up(base, need->alignment), need);
    } else {
        (void)unshelve(arena, &cell);
        *out = hand_out_head(arena, &cell, need);
    }
    return true;
}

struct xseg_grant xseg_small_hand_out_at(struct xseg_arena *arena, struct xseg_extent *extent,
                                         uint64_t base, const struct xseg_need *need)
{
    const struct xseg_cells *cells = &extent->cells;
    const uint32_t first = xseg_cells_last(cells, quantum_of(extent, base));
    const struct xseg_cell cell = {extent, first, xseg_cells_next(cells, first + 1) - first};

    XSEG_ASSERT(xseg_cells_is_free(xseg_cells_word(cells, first), first));
    return hand_out_inside(arena, cell, base, need);
}

/* --- Taking back. --- */

/* The cached cell that ends where a quantum begins; none if there is none. */
static inline struct xseg_cell free_before(struct xseg_extent *extent, uint32_t quantum)
{
    const struct xseg_cells *cells = &extent->cells;
    struct xseg_cell none = {0};

    if (quantum == 0 || xseg_cells_sheet(cells, quantum - 1) == NULL ||
        (xseg_cells_word(cells, quantum - 1)->free & xseg_cells_bit(quantum - 1)) == 0)
        return none;
    const uint32_t first = xseg_cells_last(cells, quantum - 1);
    return (struct xseg_cell){extent, first, quantum - first};
}

/* The cached cell that begins at a quantum, which may be the extent's end; or none. */
static inline struct xseg_cell free_at(struct xseg_extent *extent, uint32_t quantum)
{
    const struct xseg_cells *cells = &extent->cells;
    struct xseg_cell none = {0};

    if (quantum >= cells->quanta || xseg_cells_sheet(cells, quantum) == NULL ||
        !xseg_cells_is_free(xseg_cells_word(cells, quantum), quantum))
        return none;
    return (struct xseg_cell){extent, quantum, xseg_cells_next(cells, quantum + 1) - quantum};
}

/* A neighbour is about to merge: it is found no longer.  Whether it was the frontier. */
static inline bool absorb(struct xseg_arena *arena, const struct xseg_cell *neighbour,
                          int64_t *pieces, int64_t *bytes)
{
    *pieces -= 1;
    *bytes -= (int64_t)bytes_of(neighbour->quanta);
    return unshelve(arena, neighbour);
}

/*
 * A cell that is neither live nor anything else becomes cached and merges with its neighbours;
 * returns the result.
 */
static inline struct xseg_cell merge(struct xseg_arena *arena, struct xseg_cell cell)
{
    struct xseg_cells *cells = &cell.extent->cells;
    const uint32_t end = cell.quantum + cell.quanta;
    const struct xseg_cell right = free_at(cell.extent, end);
    const struct xseg_cell left = free_before(cell.extent, cell.quantum);
    int64_t pieces = 0, bytes = 0;
    bool open = false, was_frontier = false;

    if (right.quanta != 0) {
        struct xseg_cells_word *word = xseg_cells_word(cells, end);

        was_frontier = absorb(arena, &right, &pieces, &bytes);
        open = (word->open & xseg_cells_bit(end)) != 0;
        word->free &= ~xseg_cells_bit(end);
        word->open &= ~xseg_cells_bit(end);
        xseg_cells_remove_start(cells, end);
        cell.quanta += right.quanta;
    }
    if (left.quanta != 0) {
        was_frontier |= absorb(arena, &left, &pieces, &bytes);
        xseg_cells_word(cells, cell.quantum - 1)->free &= ~xseg_cells_bit(cell.quantum - 1);
        xseg_cells_remove_start(cells, cell.quantum);
        cell.quantum = left.quantum;
        cell.quanta += left.quanta;
    }
    const uint32_t last = cell.quantum + cell.quanta - 1;
    xseg_cells_word(cells, last)->free |= xseg_cells_bit(last);
    struct xseg_cells_word *word = xseg_cells_word(cells, cell.quantum);
    word->free |= xseg_cells_bit(cell.quantum);
    if (open || (right.quanta == 0 && has_hole_behind(&cell)))
        word->open |= xseg_cells_bit(cell.quantum);
    if (was_frontier)
        arena->small.frontier = cell;
    else
        shelve(arena, &cell);
    if (!xseg_extent_is_expandable(cell.extent))
        xseg_arena_note_merge(arena, !is_whole(&cell), pieces, bytes, bytes_of(cell.quanta));
    return cell;
}

void xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum)
{
    const uint32_t end = xseg_cells_next(&extent->cells, quantum + 1);
    const uint64_t bytes = bytes_of(end - quantum);

    xseg_counts_free(&arena->counts, bytes, xseg_cells_requested(&extent->cells, quantum, bytes));
    xseg_arena_stamp(arena, extent, address_of(extent, quantum), bytes);
    (void)merge(arena, (struct xseg_cell){extent, quantum, end - quantum});
}

void xseg_small_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address)
{
    xseg_small_free(arena, extent, quantum_of(extent, address));
}

/* --- For those who look at cached cells from outside. --- */

struct xseg_block *xseg_small_from(struct xseg_arena *arena, uint64_t bytes, uint64_t base)
{
    shelve_frontier(arena);
    return xseg_shelf_from(&arena->shelf, xseg_max(bytes, bytes_of(XSEG_CELLS_WIDE)), base);
}

struct xseg_cell xseg_small_cached_at(struct xseg_extent *extent, uint64_t address)
{
    return free_at(extent, quantum_of(extent, address));
}

struct xseg_cell xseg_small_cached_before(struct xseg_extent *extent, uint64_t address)
{
    return free_before(extent, quantum_of(extent, address));
}

void xseg_small_take_off(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_cells *cells = &cell->extent->cells;
    struct xseg_cells_word *word = xseg_cells_word(cells, cell->quantum);
    const uint32_t last = cell->quantum + cell->quanta - 1;

    (void)unshelve(arena, cell);
    word->free &= ~xseg_cells_bit(cell->quantum);
    word->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
}

struct xseg_cell xseg_small_put_on(struct xseg_arena *arena, struct xseg_cell cell)
{
    const struct xseg_cell merged = merge(arena, cell);

    /* Callers go on with its node. */
    shelve_frontier(arena);
    return merged;
}

/* --- Audit. --- */

/* What an audit counts. */
struct tally {
    uint64_t wide, on_shelf;
};

static bool audit_cell(const struct xseg_arena *arena, const struct xseg_cell *cell,
                       struct tally *tally, struct xseg_finding *finding)
{
    const struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t end = cell->quantum + cell->quanta, last = end - 1;
    const uint64_t at = address_of(cell->extent, cell->quantum);

    XSEG_HOLDS(finding, "CELL-2", (xseg_cells_word(cells, last)->free & xseg_cells_bit(last)) != 0,
               "the last quantum of the cached cell at %#" PRIx64 " is not free", at);
    XSEG_HOLDS(finding, "SMALL-1", free_at(cell->extent, end).quanta == 0,
               "two cached cells at %#" PRIx64, at);
    XSEG_HOLDS(finding, "CELL-3", is_open(cell) == has_hole_behind(cell),
               "the cached cell at %#" PRIx64 " and what is behind it", at);
    if (cell->quanta < XSEG_CELLS_WIDE)
        return true;
    tally->wide++;
    const struct xseg_block *node = xseg_cells_node(cells, cell->quantum);
    XSEG_HOLDS(finding, "SMALL-2",
               is_frontier(&arena->small, cell) ||
                   (node->base == at && node->bytes == bytes_of(cell->quanta) &&
                    node->state == XSEG_BLOCK_CACHED && node->extent == cell->extent),
               "the node of the cached cell at %#" PRIx64, at);
    return true;
}

static bool audit_extent(const struct xseg_arena *arena, struct xseg_extent *extent,
                         struct tally *tally, struct xseg_finding *finding)
{
    const struct xseg_cells *cells = &extent->cells;
    uint32_t quantum = xseg_cells_next_far(cells, 0), end;

    for (uint32_t number = 0; number < cells->sheets; number++) {
        const struct xseg_sheet *sheet = cells->sheet[number];
        uint64_t starts = 0;

        for (uint32_t word = 0; sheet != NULL && word < XSEG_CELLS_WORDS; word++)
            starts |= (uint64_t)(sheet->word[word].start != 0) << word;
        XSEG_HOLDS(finding, "CELL-1",
                   (sheet == NULL || sheet->starts == starts) &&
                       xseg_bits_has(&cells->filled, number) == (starts != 0),
                   "starts of sheet %" PRIu32, number);
    }
    for (; quantum < cells->quanta; quantum = end) {
        const struct xseg_cells_word *word = xseg_cells_word(cells, quantum);

        end = xseg_cells_next(cells, quantum + 1);
        const struct xseg_cell cell = {extent, quantum, end - quantum};
        if (xseg_cells_is_free(word, quantum) && !audit_cell(arena, &cell, tally, finding))
            return false;
    }
    return true;
}

static uint64_t count_shelf(const struct xseg_shelf *shelf)
{
    uint64_t count = 0;

    for (const struct xseg_block *node = xseg_shelf_find(shelf, 1); node != NULL;
         node = xseg_shelf_next(shelf, node))
        count++;
    return count;
}

bool xseg_small_audit(const struct xseg_arena *arena, struct xseg_finding *finding)
{
    struct tally tally = {0, count_shelf(&arena->shelf)};

    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (!audit_extent(arena, extent, &tally, finding) || !xseg_tract_audit(extent, finding))
            return false;
    }
    tally.on_shelf += arena->small.frontier.quanta != 0;
    XSEG_HOLDS(finding, "SMALL-2", tally.wide == tally.on_shelf,
               "%" PRIu64 " wide cached cells, %" PRIu64 " on the shelf", tally.wide,
               tally.on_shelf);
    return xseg_rack_audit(&arena->small.rack, finding);
}
