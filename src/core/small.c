/* SPDX-License-Identifier: MIT */
#include "src/core/small.h"

#include "src/core/arena.h"
#include "src/core/cell.h"
#include "src/core/plain.h"
#include "src/core/size.h"

/* --- Where cached cells are found. --- */

static void put_on_shelf(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_block *node = xseg_cells_node(&cell->extent->cells, cell->quantum);

    /* What nobody asks of a node is left as it is. */
    node->state = XSEG_BLOCK_CACHED;
    node->mapped = true;
    node->base = xseg_cell_address_of(cell->extent, cell->quantum);
    node->bytes = xseg_cell_bytes_of(cell->quanta);
    node->extent = cell->extent;
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
    if (xseg_cell_is_frontier(small, cell)) {
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

/* What a cached cell can grow to: its size and that of the hole behind it. */
static uint64_t effective_bytes(const struct xseg_cell *cell)
{
    return xseg_cell_bytes_of(cell->quanta) +
           (xseg_cell_is_open(cell) ? xseg_cell_record_behind(cell)->bytes : 0);
}

/* --- Choosing. --- */

static struct xseg_cell cell_of(const struct xseg_block *node)
{
    if (node == NULL)
        return (struct xseg_cell){0};
    return (struct xseg_cell){node->extent, xseg_cell_quantum_of(node->extent, node->base),
                              (uint32_t)(node->bytes >> XSEG_CELLS_SHIFT)};
}

/* The first wide cell that is not below (quanta, base), or none. */
static struct xseg_cell wide_from(const struct xseg_arena *arena, uint32_t quanta, uint64_t base)
{
    const struct xseg_cell *frontier = &arena->small.frontier;
    const uint64_t at =
        frontier->quanta == 0 ? 0 : xseg_cell_address_of(frontier->extent, frontier->quantum);
    const struct xseg_block *node =
        arena->shelf.filled.top == 0
            ? NULL
            : xseg_shelf_from(&arena->shelf, xseg_cell_bytes_of(quanta), base);

    if (frontier->quanta < quanta || (frontier->quanta == quanta && at < base))
        return cell_of(node);
    if (node == NULL || xseg_cell_bytes_of(frontier->quanta) < node->bytes ||
        (xseg_cell_bytes_of(frontier->quanta) == node->bytes && at < node->base))
        return *frontier;
    return cell_of(node);
}

/* The cell that comes after one by size and address, or none. */
static struct xseg_cell cell_after(const struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_cell next = {0};

    if (cell->quanta >= XSEG_CELLS_WIDE)
        return wide_from(arena, cell->quanta,
                         xseg_cell_address_of(cell->extent, cell->quantum) + 1);
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

/* With placement:pages: the lowest cell that is large enough; of wide ones the smallest 256 count. */
static struct xseg_cell find_lowest(const struct xseg_arena *arena, const struct xseg_need *need)
{
    const uint32_t quanta = (uint32_t)(need->span >> XSEG_CELLS_SHIFT);
    struct xseg_cell lowest = {0}, cell;
    uint64_t at = UINT64_MAX;

    if (quanta < XSEG_CELLS_WIDE)
        lowest = xseg_rack_find_lowest(&arena->small.rack, quanta);
    if (lowest.quanta != 0)
        at = xseg_cell_address_of(lowest.extent, lowest.quantum);
    cell = wide_from(arena, (uint32_t)xseg_max(quanta, XSEG_CELLS_WIDE), 0);
    for (unsigned looks = 0; cell.quanta != 0 && looks < 256; looks++) {
        const uint64_t base = xseg_cell_address_of(cell.extent, cell.quantum);

        if (base < at && xseg_extent_is_expandable(cell.extent) &&
            xseg_cell_bytes_of(cell.quanta) < need->config->max_split_bytes) {
            lowest = cell;
            at = base;
        }
        cell = cell_after(arena, &cell);
    }
    return lowest;
}

static inline struct xseg_cell find(const struct xseg_arena *arena, const struct xseg_need *need)
{
    const uint32_t quanta = (uint32_t)(need->span >> XSEG_CELLS_SHIFT);
    struct xseg_cell cell = xseg_rack_find(&arena->small.rack, quanta);
    /* Nothing comes after a frontier that is the only wide cell. */
    bool is_last = false;

    if (cell.quanta == 0) {
        is_last = arena->shelf.filled.top == 0;
        if (!is_last)
            cell = wide_from(arena, quanta, 0);
        else if (arena->small.frontier.quanta >= quanta)
            cell = arena->small.frontier;
    }
    if (cell.quanta == 0)
        return cell;
    /* One that no hole follows is what the rule would end at. */
    if (__builtin_expect((!is_last && xseg_cell_is_open(&cell)) ||
                             (!need->expandable && xseg_extent_is_expandable(cell.extent)),
                         0))
        cell = prefer(arena, need, cell);
    /* Oversize blocks are kept for oversize requests, of which none is small. */
    if (__builtin_expect(xseg_cell_bytes_of(cell.quanta) >= need->config->max_split_bytes, 0))
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
        xseg_arena_note_cut(arena, !xseg_cell_is_whole(cell), xseg_cell_bytes_of(quanta),
                            xseg_cell_bytes_of(rest.quanta));
    xseg_cells_note_requested(cells, cell->quantum, xseg_cell_bytes_of(quanta), need->requested);
    xseg_counts_alloc(&arena->counts, xseg_cell_bytes_of(quanta), need->requested);
    return (struct xseg_grant){arena, xseg_cell_address_of(cell->extent, cell->quantum),
                               xseg_cell_bytes_of(quanta), need->requested,
                               take_filled(arena, cells, cell->quantum, quanta)};
}

/* Leave the head of a cell that is found no longer cached, as a cell of its own; returns the rest. */
static struct xseg_cell cut_head(struct xseg_arena *arena, const struct xseg_cell *cell,
                                 uint32_t quanta)
{
    struct xseg_cells *cells = &cell->extent->cells;
    const struct xseg_cell head = {cell->extent, cell->quantum, quanta};
    const struct xseg_cell rest = {cell->extent, cell->quantum + quanta, cell->quanta - quanta};
    const bool was_open = xseg_cell_is_open(cell);

    xseg_cells_word(cells, cell->quantum)->open &= ~xseg_cells_bit(cell->quantum);
    xseg_cells_word(cells, rest.quantum - 1)->free |= xseg_cells_bit(rest.quantum - 1);
    xseg_cells_add_start(cells, rest.quantum);
    xseg_cells_word(cells, rest.quantum)->free |= xseg_cells_bit(rest.quantum);
    if (was_open)
        xseg_cells_word(cells, rest.quantum)->open |= xseg_cells_bit(rest.quantum);
    if (!xseg_extent_is_expandable(cell->extent))
        xseg_arena_note_head(arena, !xseg_cell_is_whole(cell), xseg_cell_bytes_of(cell->quanta));
    shelve(arena, &head);
    return rest;
}

static struct xseg_grant hand_out_inside(struct xseg_arena *arena, struct xseg_cell cell,
                                         uint64_t base, const struct xseg_need *need)
{
    const uint32_t quantum = xseg_cell_quantum_of(cell.extent, base);

    (void)unshelve(arena, &cell);
    if (quantum != cell.quantum)
        cell = cut_head(arena, &cell, quantum - cell.quantum);
    return hand_out_head(arena, &cell, need);
}

bool xseg_small_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                      struct xseg_grant *out)
{
    const struct xseg_cell cell =
        __builtin_expect(need->packs, 0) ? find_lowest(arena, need) : find(arena, need);

    if (cell.quanta == 0)
        return false;
    if (__builtin_expect(need->keep, 0)) {
        *out = (struct xseg_grant){.arena = arena,
                                   .base = xseg_cell_address_of(cell.extent, cell.quantum)};
    } else if (__builtin_expect(need->alignment != XSEG_SIZE_QUANTUM, 0)) {
        const uint64_t base = xseg_cell_address_of(cell.extent, cell.quantum);

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
    const uint32_t first = xseg_cells_last(cells, xseg_cell_quantum_of(extent, base));
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

/* The same, where the frontier's size need not be searched for. */
static inline struct xseg_cell neighbour_at(const struct xseg_small *small,
                                            struct xseg_extent *extent, uint32_t quantum)
{
    if (small->frontier.quantum == quantum && small->frontier.extent == extent &&
        small->frontier.quanta != 0)
        return small->frontier;
    return xseg_cell_free_at(extent, quantum);
}

/* A neighbour is about to merge: it is found no longer.  Whether it was the frontier. */
static inline bool absorb(struct xseg_arena *arena, const struct xseg_cell *neighbour,
                          int64_t *pieces, int64_t *bytes)
{
    *pieces -= 1;
    *bytes -= (int64_t)xseg_cell_bytes_of(neighbour->quanta);
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
    const struct xseg_cell right = neighbour_at(&arena->small, cell.extent, end);
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
    if (open || (right.quanta == 0 && xseg_cell_has_hole_behind(&cell)))
        word->open |= xseg_cells_bit(cell.quantum);
    if (was_frontier)
        arena->small.frontier = cell;
    else
        shelve(arena, &cell);
    if (!xseg_extent_is_expandable(cell.extent))
        xseg_arena_note_merge(arena, !xseg_cell_is_whole(&cell), pieces, bytes,
                              xseg_cell_bytes_of(cell.quanta));
    return cell;
}

/* --- The shortest ways. --- */

/*
 * A cell of at least one quantum more than is wanted is cut: its head becomes live, and the bits of its
 * rest are set.  Both begin in the word mostly; then three words change.
 */
static inline void cut_bits(struct xseg_cells *cells, struct xseg_cells_word *word,
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
static inline uint64_t finish_hit(struct xseg_arena *arena, struct xseg_sheet *sheet,
                                  uint32_t quantum, uint32_t quanta, uint64_t requested)
{
    const uint64_t bytes = xseg_cell_bytes_of(quanta);

    sheet->slack[quantum % XSEG_CELLS_SHEET] = (uint16_t)(bytes - requested);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return xseg_cell_address_of(sheet->extent, quantum);
}

/* From the frontier, where the rack has nothing and the shelf neither. */
static inline uint64_t hit_frontier(struct xseg_arena *arena, uint32_t quanta, uint64_t requested)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    struct xseg_cells *cells = &frontier->extent->cells;
    const uint32_t quantum = frontier->quantum;

    if (!xseg_extent_is_expandable(frontier->extent))
        xseg_arena_note_cut(arena, !xseg_cell_is_whole(frontier), xseg_cell_bytes_of(quanta),
                            xseg_cell_bytes_of(frontier->quanta - quanta));

    frontier->quantum += quanta;
    frontier->quanta -= quanta;
    cut_bits(cells, xseg_cells_word(cells, quantum), quantum, frontier->quantum);
    return finish_hit(arena, xseg_cells_sheet(cells, quantum), quantum, quanta, requested);
}

/* By all the rules. */
static uint64_t hit_any(struct xseg_arena *arena, const struct xseg_need *need)
{
    const struct xseg_cell cell = find(arena, need);

    if (cell.quanta == 0)
        return 0;
    (void)unshelve(arena, &cell);
    return hand_out_head(arena, &cell, need).base;
}

uint64_t xseg_small_hit(struct xseg_arena *arena, const struct xseg_need *need)
{
    const uint32_t quanta = (uint32_t)(need->bytes >> XSEG_CELLS_SHIFT);
    const struct xseg_cell *frontier = &arena->small.frontier;

    if (__builtin_expect(arena->small.has_filled, 0))
        return 0;
    if (xseg_rack_fit(&arena->small.rack, quanta) != 0 || arena->shelf.filled.top != 0 ||
        frontier->quanta < XSEG_CELLS_WIDE + quanta ||
        xseg_cell_bytes_of(frontier->quanta) >= need->config->max_split_bytes ||
        xseg_extent_is_expandable(frontier->extent) != need->expandable)
        return hit_any(arena, need);
    return hit_frontier(arena, quanta, need->requested);
}

/* A live cell before the frontier becomes part of it. */
static inline void join_frontier(struct xseg_arena *arena, struct xseg_cells_word *word,
                                 uint32_t quantum, uint32_t end)
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
static inline bool is_free_before(const struct xseg_cells *cells, const struct xseg_sheet *sheet,
                                  uint32_t quantum)
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
static inline bool free_alone(struct xseg_arena *arena, struct xseg_sheet *sheet, uint32_t quantum,
                              uint32_t end)
{
    struct xseg_extent *extent = sheet->extent;
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    struct xseg_cells_word *behind = &sheet->word[end / 64 % XSEG_CELLS_WORDS];
    const struct xseg_cell *frontier = &arena->small.frontier;
    const bool is_classic = !xseg_extent_is_expandable(extent);

    if (is_free_before(&extent->cells, sheet, quantum))
        return false;
    if (frontier->quantum == end && frontier->extent == extent && frontier->quanta != 0) {
        if (is_classic)
            return false;
        join_frontier(arena, word, quantum, end);
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

void xseg_small_join(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum,
                     uint32_t end)
{
    if (xseg_plain_merge(arena, xseg_cells_sheet(&extent->cells, quantum), quantum, end - quantum))
        return;
    if (!free_alone(arena, xseg_cells_sheet(&extent->cells, quantum), quantum, end))
        (void)merge(arena, (struct xseg_cell){extent, quantum, end - quantum});
}

void xseg_small_free(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum)
{
    struct xseg_cells *cells = &extent->cells;
    const uint32_t end = xseg_cells_next(cells, quantum + 1);
    const uint64_t bytes = xseg_cell_bytes_of(end - quantum);

    xseg_counts_free(&arena->counts, bytes, xseg_cells_requested(cells, quantum, bytes));
    xseg_arena_stamp(arena, extent, xseg_cell_address_of(extent, quantum), bytes);
    xseg_small_join(arena, extent, quantum, end);
}

void xseg_small_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address)
{
    xseg_small_free(arena, extent, xseg_cell_quantum_of(extent, address));
}

/* --- For those who look at cached cells from outside. --- */

struct xseg_block *xseg_small_from(struct xseg_arena *arena, uint64_t bytes, uint64_t base)
{
    shelve_frontier(arena);
    return xseg_shelf_from(&arena->shelf, xseg_max(bytes, xseg_cell_bytes_of(XSEG_CELLS_WIDE)),
                           base);
}

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
