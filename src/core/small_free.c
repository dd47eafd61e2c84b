/* SPDX-License-Identifier: MIT */
/* Small arenas: how blocks come back. */
#include "src/core/shelving.h"
#include "src/core/size.h"

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

/* The same, where the frontier's size need not be searched for. */
static inline struct xseg_cell neighbour_at(const struct xseg_small *small,
                                            struct xseg_extent *extent, uint32_t quantum)
{
    if (small->frontier.quantum == quantum && small->frontier.extent == extent)
        return small->frontier;
    return xseg_cell_free_at(extent, quantum);
}

/* Quanta of a classic segment have become a cell, with so many neighbours.  Apart, since an expandable
 * one would save registers for it. */
static __attribute__((noinline)) void note_merge(struct xseg_arena *arena,
                                                 const struct xseg_cell *cell, unsigned neighbours,
                                                 uint32_t quanta)
{
    xseg_fragments_merge(&arena->counts, !xseg_cell_is_whole(cell), neighbours,
                         xseg_cell_bytes_of(quanta), xseg_cell_bytes_of(cell->quanta - quanta));
}

/*
 * A cell that is neither live nor anything else becomes cached and merges with its neighbours;
 * returns the result.
 */
static inline struct xseg_cell merge(struct xseg_arena *arena, struct xseg_cell cell)
{
    struct xseg_cells *cells = &cell.extent->cells;
    const uint32_t quanta = cell.quanta, end = cell.quantum + quanta;
    const struct xseg_cell right = neighbour_at(&arena->small, cell.extent, end);
    const struct xseg_cell left = free_before(cell.extent, cell.quantum);
    bool open = false, was_frontier = false;

    if (right.quanta != 0) {
        struct xseg_cells_word *word = xseg_cells_word(cells, end);

        was_frontier = xseg_shelving_take(arena, &right);
        open = (word->open & xseg_cells_bit(end)) != 0;
        word->free &= ~xseg_cells_bit(end);
        word->open &= ~xseg_cells_bit(end);
        xseg_cells_remove_start(cells, end);
        cell.quanta += right.quanta;
    }
    if (left.quanta != 0) {
        was_frontier |= xseg_shelving_take(arena, &left);
        xseg_cells_word(cells, cell.quantum - 1)->free &= ~xseg_cells_bit(cell.quantum - 1);
        xseg_cells_remove_start(cells, cell.quantum);
        cell.quantum = left.quantum;
        cell.quanta += left.quanta;
    }
    const uint32_t last = cell.quantum + cell.quanta - 1;
    xseg_cells_word(cells, last)->free |= xseg_cells_bit(last);
    struct xseg_cells_word *word = xseg_cells_word(cells, cell.quantum);
    word->free |= xseg_cells_bit(cell.quantum);
    if (open || (right.quanta == 0 && xseg_cell_has_hole_behind(&cell)))
        word->open |= xseg_cells_bit(cell.quantum);
    if (was_frontier)
        arena->small.frontier = cell;
    else
        xseg_shelving_put(arena, &cell);
    if (!xseg_extent_is_expandable(cell.extent))
        note_merge(arena, &cell, (unsigned)(right.quanta != 0) + (left.quanta != 0), quanta);
    return cell;
}

/* --- Frees. --- */

/* Whether an extent ends where a sheet does: what reaches the end of that one ends there.  A classic extent
 * is one sheet, and of llama_serve's frees that merge six in ten come to its ends. */
static inline bool is_last(const struct xseg_sheet *sheet)
{
    return (sheet->number + 1) * XSEG_CELLS_SHEET == sheet->extent->cells.quanta;
}

/* A start of a sheet goes, and it is not the only one. */
static inline void remove_start(struct xseg_sheet *sheet, uint32_t at)
{
    struct xseg_cells_word *word = &sheet->word[at / 64];

    word->start ^= xseg_cells_bit(at);
    sheet->starts &= ~((uint64_t)(word->start == 0) << at / 64);
}

/* What a cell of a sheet that becomes cached merges with; quanta are counted from the sheet's first. */
struct joint {
    uint32_t at, end;                       /* of the cell */
    uint32_t first, past;                   /* with its neighbours */
    bool has_left, has_right, has_frontier; /* which is then the one on the right */
};

/* Look at the neighbours; false if one of them is no matter of the sheet, or what is behind is no cell. */
static inline bool find_neighbours(const struct xseg_small *small, const struct xseg_sheet *sheet,
                                   struct joint *joint)
{
    const uint32_t at = joint->at, end = joint->end;
    const struct xseg_cell right = {sheet->extent, sheet->number * XSEG_CELLS_SHEET + end, 0};

    if ((at == 0 && sheet->number != 0) || (end >= XSEG_CELLS_SHEET && !is_last(sheet)))
        return false;
    joint->has_left = at != 0 && (sheet->word[(at - 1) / 64].free & xseg_cells_bit(at - 1)) != 0;
    joint->has_right = false;
    if (end < XSEG_CELLS_SHEET) {
        const struct xseg_cells_word *behind = &sheet->word[end / 64];

        if ((behind->record & xseg_cells_bit(end)) != 0)
            return false;
        joint->has_right = (behind->free & xseg_cells_bit(end)) != 0;
    }
    joint->first = joint->has_left ? xseg_cells_last_in(sheet, at) : at;
    joint->past = end;
    if (joint->has_right) {
        joint->has_frontier = xseg_cell_is_frontier(small, &right);
        joint->past =
            joint->has_frontier ? end + small->frontier.quanta : xseg_cells_next_in(sheet, end);
        if (joint->past == XSEG_CELLS_SHEET && !joint->has_frontier && !is_last(sheet))
            return false;
    }
    return joint->first != XSEG_CELLS_SHEET;
}

/* The neighbour behind merges: it is found no longer, and its bits go. */
static inline void absorb_right(struct xseg_arena *arena, struct xseg_sheet *sheet,
                                const struct joint *joint)
{
    const uint32_t end = joint->end;
    struct xseg_cells_word *first = &sheet->word[joint->first / 64];
    struct xseg_cells_word *behind = &sheet->word[end / 64];
    const uint64_t gone = xseg_cells_bit(end);

    if (!joint->has_frontier)
        (void)xseg_shelving_take_off(arena, sheet, sheet->number * XSEG_CELLS_SHEET + end,
                                     joint->past - end);
    if ((behind->open & gone) != 0) {
        behind->open ^= gone;
        first->open |= xseg_cells_bit(joint->first);
    }
    behind->free ^= gone;
    remove_start(sheet, end);
}

/* The same for the one before; the bits of its first quantum stay.  Whether it was the frontier. */
static inline bool absorb_left(struct xseg_arena *arena, struct xseg_sheet *sheet,
                               const struct joint *joint)
{
    const uint32_t at = joint->at;
    const bool was_frontier = xseg_shelving_take_off(
        arena, sheet, sheet->number * XSEG_CELLS_SHEET + joint->first, at - joint->first);

    sheet->word[(at - 1) / 64].free ^= xseg_cells_bit(at - 1);
    remove_start(sheet, at);
    return was_frontier;
}

/* The steps in which a free ends.  All return true, for xseg_small_free() to end in a call of one. */

/* A cell that is neither live nor cached becomes cached and merges, if all that matters is in its sheet: nearly
 * every time.  Half of the instructions of merge(), which looks at every sheet for itself. */
static __attribute__((noinline)) bool
merge_in_sheet(struct xseg_arena *arena, struct xseg_sheet *sheet, uint32_t at, uint32_t end)
{
    struct joint joint = {.at = at, .end = end};

    if (!find_neighbours(&arena->small, sheet, &joint)) {
        (void)merge(arena, (struct xseg_cell){sheet->extent, sheet->number * XSEG_CELLS_SHEET + at,
                                              end - at});
        return true;
    }
    const uint32_t quanta = joint.past - joint.first, last = joint.past - 1;
    const struct xseg_cell cell = {sheet->extent, sheet->number * XSEG_CELLS_SHEET + joint.first,
                                   quanta};
    bool was_frontier = joint.has_frontier;
    if (joint.has_right)
        absorb_right(arena, sheet, &joint);
    if (joint.has_left)
        was_frontier |= absorb_left(arena, sheet, &joint);
    sheet->word[joint.first / 64].free |= xseg_cells_bit(joint.first);
    if (last < XSEG_CELLS_SHEET)
        sheet->word[last / 64].free |= xseg_cells_bit(last);
    if (was_frontier)
        arena->small.frontier = cell;
    else if (quanta < XSEG_CELLS_WIDE)
        xseg_rack_set(&arena->small.rack, sheet, quanta, joint.first / 64);
    else
        xseg_shelving_put_wide(arena, &cell);
    if (!xseg_extent_is_expandable(sheet->extent))
        note_merge(arena, &cell, (unsigned)joint.has_left + joint.has_right, end - at);
    return true;
}

/* The same for one of an expandable segment that ends in its word, if its neighbours lie there, too: what is to
 * be worked out is a third less. */
static __attribute__((noinline)) bool
merge_in_word(struct xseg_arena *arena, struct xseg_sheet *sheet, uint32_t at, uint32_t quanta)
{
    struct xseg_rack *rack = &arena->small.rack;
    struct xseg_cells_word *word = &sheet->word[at / 64];
    const uint64_t head = xseg_cells_bit(at), end = head << quanta;
    const uint64_t before = word->start & (head - 1), after = word->start & -(end << 1);
    const bool has_left = (word->free & head >> 1) != 0, has_right = (word->free & end) != 0;
    uint32_t left = 0, right = 0;

    if (at % 64 == 0 || ((word->record | word->open) & end) != 0 ||
        ((has_left && before == 0) | (has_right && after == 0)))
        return merge_in_sheet(arena, sheet, at, at + quanta);
    if (has_right) {
        right = (uint32_t)__builtin_ctzll(after) - (at % 64 + quanta);
        xseg_rack_remove_cell(rack, sheet, at + quanta, right);
        word->start ^= end;
        word->free ^= end;
    }
    if (has_left) {
        left = at % 64 - 63 + (uint32_t)__builtin_clzll(before);
        xseg_rack_remove_cell(rack, sheet, at - left, left);
        word->start ^= head;
        word->free ^= head >> 1;
    }
    word->free |= head >> left | end >> 1 << right;
    xseg_rack_set(rack, sheet, left + quanta + right, at / 64);
    return true;
}

/* One that reaches into another sheet, has much slack, or whose time of coming is to be noted. */
static __attribute__((noinline)) bool free_any(struct xseg_arena *arena, struct xseg_extent *extent,
                                               uint32_t quantum)
{
    const uint32_t quanta = xseg_cells_next(&extent->cells, quantum + 1) - quantum;
    const uint64_t bytes = xseg_cell_bytes_of(quanta);

    xseg_counts_free(&arena->counts, bytes, xseg_cells_requested(&extent->cells, quantum, bytes));
    xseg_arena_stamp(arena, extent, xseg_cell_address_of(extent, quantum), bytes);
    (void)merge(arena, (struct xseg_cell){extent, quantum, quanta});
    return true;
}

/* Ends in a call of one of the above, so that registers are saved once, by the one that needs them. */
bool xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum)
{
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    const uint32_t at = quantum % XSEG_CELLS_SHEET;

    if (__builtin_expect(!xseg_cells_is_live(&sheet->word[at / 64], at), 0))
        return false;
    const uint32_t end = xseg_cells_next_in(sheet, at);
    const uint64_t bytes = xseg_cell_bytes_of(end - at);
    const uint16_t slack = sheet->slack[at];
    if (__builtin_expect((end == XSEG_CELLS_SHEET && !is_last(sheet)) ||
                             slack == XSEG_CELLS_MUCH_SLACK || xseg_arena_has_notes(arena),
                         0))
        return free_any(arena, extent, quantum);
    xseg_counts_free(&arena->counts, bytes, bytes - slack);
    return at / 64 == end / 64 && xseg_extent_is_expandable(extent)
               ? merge_in_word(arena, sheet, at, end - at)
               : merge_in_sheet(arena, sheet, at, end);
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

    (void)xseg_shelving_take(arena, cell);
    word->free &= ~xseg_cells_bit(cell->quantum);
    word->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
}

struct xseg_cell xseg_small_put_on(struct xseg_arena *arena, struct xseg_cell cell)
{
    const struct xseg_cell merged = merge(arena, cell);

    /* Callers go on with its node. */
    xseg_shelving_put_frontier(arena);
    return merged;
}
