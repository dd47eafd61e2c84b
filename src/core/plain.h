/* SPDX-License-Identifier: MIT */
/*
 * The plain ways of a small arena (small.h): a request that needs no rule beyond best fit, and a free
 * that merges with nothing but the frontier.  Everything else is left to small.c and small_free.c, which comes to the
 * same for these as well.
 *
 * They are inline, and, but for xseg_plain_cut(), do not call each other: each is in a function of its own, which a door ends in a
 * call of (block.c).  So only the one that serves a call saves registers, and only once it knows that
 * it does, which for small blocks was a quarter of all instructions.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_PLAIN_H
#define XSEG_CORE_PLAIN_H

#include "src/core/arena.h"
#include "src/core/cell.h"
#include "src/core/size.h"

/* Whether nothing but the frontier could serve a small request of an expandable configuration without
 * max_split_size_mb. */
static inline bool xseg_plain_is_frontier_all(const struct xseg_arena *arena)
{
    const uint64_t *sizes = arena->small.rack.sizes;

    return (sizes[0] | sizes[1] | sizes[2] | sizes[3]) == 0 && arena->shelf.filled.top == 0 &&
           !arena->small.has_filled;
}

/*
 * Serve a request of a small arena with the head of the frontier, where that is all there is.
 *
 * bytes:   as the user said, not 0
 * Returns: the address; 0, and nothing has changed, where there is more to it
 */
static inline uint64_t xseg_plain_cut_frontier(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    struct xseg_extent *extent = frontier->extent;
    const uint32_t quanta = (uint32_t)((bytes + XSEG_SIZE_QUANTUM - 1) >> XSEG_CELLS_SHIFT);
    const uint32_t quantum = frontier->quantum, rest = quantum + quanta;

    if (frontier->quanta < XSEG_CELLS_WIDE + quanta || quantum / 64 != rest / 64 ||
        !xseg_extent_is_expandable(extent))
        return 0;
    const uint64_t rounded = (uint64_t)quanta << XSEG_CELLS_SHIFT;
    if (!xseg_counts_try_alloc(&arena->counts, rounded, bytes))
        return 0;
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(rest);

    /* The frontier's own bits are set at its head, and nothing is set inside it. */
    word->start |= behind;
    word->free ^= head | behind;
    if ((word->open & head) != 0)
        word->open ^= head | behind;
    sheet->slack[quantum % XSEG_CELLS_SHEET] = (uint16_t)(rounded - bytes);
    frontier->quantum = rest;
    frontier->quanta -= quanta;
    return extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
}

/* Whether an address of an extent is so little before the frontier that its cell may end there. */
static inline bool xseg_plain_is_near_frontier(const struct xseg_arena *arena,
                                               const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_cell *frontier = &arena->small.frontier;
    const uint64_t quantum = (address - extent->segment.base) >> XSEG_CELLS_SHIFT;

    /* First the question that mostly ends it. */
    return frontier->quantum - quantum - 1 < 63 && frontier->extent == extent;
}

/* Free the live cell at such an address, if it lies just before the frontier and nothing cached before it;
 * else false, and nothing has changed. */
static inline bool xseg_plain_join_frontier(struct xseg_arena *arena, struct xseg_extent *extent,
                                            uint64_t address)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    const uint64_t offset = address - extent->segment.base;
    const uint32_t quantum = (uint32_t)(offset >> XSEG_CELLS_SHIFT), end = frontier->quantum;
    const uint32_t quanta = end - quantum;

    if (offset % XSEG_SIZE_QUANTUM != 0 || (quantum ^ end) >= 64 ||
        (quantum % 64 == 0 && quantum != 0) || !xseg_extent_is_expandable(extent) ||
        arena->now != 0)
        return false;
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(end);
    const uint64_t start = word->start, free = word->free;

    /* A live cell's start, and no other before the frontier's; nothing cached ends before it. */
    if ((((start & (behind - head)) ^ head) | ((free | word->record) & (head | head >> 1))) != 0)
        return false;
    word->start = start ^ behind;
    word->free = free ^ head ^ behind;
    if ((word->open & behind) != 0)
        word->open ^= head | behind;
    frontier->quantum = quantum;
    frontier->quanta += quanta;
    /* One that lies in a word is too short for much slack. */
    xseg_counts_free(&arena->counts, xseg_cell_bytes_of(quanta),
                     xseg_cell_bytes_of(quanta) - sheet->slack[quantum % XSEG_CELLS_SHEET]);
    return true;
}

/* Hand out the head of a cell that the rack has no more; it ends in its sheet, or a rest begins there: its bits,
 * and those of the rest.  Returns its address. */
static inline uint64_t xseg_plain_cut(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                      uint32_t index, uint32_t size, uint64_t bytes)
{
    const uint32_t quanta = (uint32_t)((bytes + XSEG_SIZE_QUANTUM - 1) >> XSEG_CELLS_SHIFT);
    const uint32_t behind = index + quanta;

    sheet->word[index / 64].free &= ~xseg_cells_bit(index);
    if (size == quanta) {
        sheet->word[(behind - 1) / 64].free &= ~xseg_cells_bit(behind - 1);
    } else {
        struct xseg_cells_word *rest = &sheet->word[behind / 64];

        sheet->starts |= (uint64_t)1 << behind / 64;
        rest->start |= xseg_cells_bit(behind);
        rest->free |= xseg_cells_bit(behind);
        xseg_rack_set(rack, sheet, size - quanta, behind / 64);
    }
    sheet->slack[index] = (uint16_t)(xseg_cell_bytes_of(quanta) - bytes);
    return sheet->base + ((uint64_t)index << XSEG_CELLS_SHIFT);
}

/*
 * Serve a request of a small arena from its rack, with the lowest cell of the best size.
 *
 * expandable: of the configuration
 * Returns:    the address; 0, and nothing has changed, if the rack has none, or a rule has to be asked
 */
static inline uint64_t xseg_plain_cut_rack(struct xseg_arena *arena, uint64_t bytes,
                                           bool expandable)
{
    struct xseg_rack *rack = &arena->small.rack;
    const uint32_t quanta = (uint32_t)((bytes + XSEG_SIZE_QUANTUM - 1) >> XSEG_CELLS_SHIFT);
    const uint32_t size = xseg_rack_fit(rack, quanta);

    if (__builtin_expect(size == 0, 0) || arena->small.has_filled)
        return 0;
    struct xseg_sheet *sheet = rack->sheet[xseg_rack_first(rack, size)];
    const uint32_t number = (uint32_t)__builtin_ctzll(sheet->bin[size]);
    bool has_other = false;
    const uint32_t at = xseg_rack_pick(sheet, number, size, &has_other);
    if ((sheet->word[number].open >> at & 1) != 0 || number * 64 + at + quanta >= XSEG_CELLS_SHEET)
        return 0;
    if (!xseg_extent_is_expandable(sheet->extent))
        xseg_fragments_cut(&arena->counts, xseg_cell_bytes_of(quanta),
                           xseg_cell_bytes_of(size - quanta));
    else if (!expandable)
        return 0;
    if (!has_other || !xseg_rack_has_other(sheet, number, size, (uint64_t)1 << at))
        xseg_rack_clear(rack, sheet, size, number);
    xseg_counts_alloc(&arena->counts, xseg_cell_bytes_of(quanta), bytes);
    return xseg_plain_cut(rack, sheet, number * 64 + at, size, bytes);
}

/* The same without max_split_size_mb, where the rack's best fit is of `size`; the caller counts.  Nothing is
 * called: that saves the registers, a tenth of all its instructions. */
static inline __attribute__((always_inline)) uint64_t
xseg_plain_cut_size(struct xseg_small *small, uint64_t bytes, uint32_t size, bool expandable)
{
    struct xseg_rack *rack = &small->rack;

    if (rack->tops != 1 || small->has_filled)
        return 0;
    struct xseg_sheet *sheet = rack->sheet[xseg_rack_first(rack, size)];
    const uint32_t number = (uint32_t)__builtin_ctzll(sheet->bin[size]);
    bool has_other = false;
    const uint32_t at = xseg_rack_pick(sheet, number, size, &has_other);
    if ((sheet->word[number].open >> at & 1) != 0 || number * 64 + at + size > XSEG_CELLS_SHEET ||
        xseg_extent_is_expandable(sheet->extent) != expandable)
        return 0;
    if (__builtin_expect(has_other, 0)) {
        if (number == XSEG_CELLS_WORDS - 1)
            return 0;
        has_other = xseg_rack_has_other(sheet, number, size, (uint64_t)1 << at);
    }
    if (__builtin_expect(!has_other, 1))
        xseg_rack_clear_lowest(rack, sheet, size);
    return xseg_plain_cut(rack, sheet, number * 64 + at, size, bytes);
}

/*
 * Free the live cell that begins at a quantum, if it ends in its word, and no cached cell is beside it.
 *
 * Returns: its bytes, which are the caller's to note as a fragment if the extent is classic; 0, and nothing
 *          has changed, if there is more to it
 */
static inline uint64_t xseg_plain_free(struct xseg_arena *arena, struct xseg_extent *extent,
                                       uint32_t quantum)
{
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    const uint32_t number = quantum / 64 % XSEG_CELLS_WORDS, at = quantum % 64;
    struct xseg_cells_word *word = &sheet->word[number];
    const uint64_t behind = word->start >> at >> 1;
    const uint64_t taken = word->free | word->record;

    if (behind == 0 || at == 0 || arena->now != 0)
        return 0;
    const uint32_t quanta = (uint32_t)__builtin_ctzll(behind) + 1;
    if (((taken >> at >> quanta | taken << 1 >> at) & 1) != 0)
        return 0;
    const uint64_t bytes = xseg_cell_bytes_of(quanta);
    word->free |= ((uint64_t)1 << (quanta - 1) | 1) << at;
    xseg_rack_set(&arena->small.rack, sheet, quanta, number);
    /* One that lies in a word is too short for much slack. */
    xseg_counts_free(&arena->counts, bytes, bytes - sheet->slack[quantum % XSEG_CELLS_SHEET]);
    return bytes;
}

#endif
