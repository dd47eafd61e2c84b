/* SPDX-License-Identifier: MIT */
/*
 * The plain paths of a small arena (small.h): a request that needs no rule beyond best fit, and a free
 * that merges with nothing but the victim.  Other calls are left to small.c and small_free.c, which
 * would do the same for these calls as well.
 *
 * The functions are inline: the steps of hit_alloc.c and hit_free.c contain one each.  So a step saves only the
 * registers that it needs, and only once it is known to serve the call; saving them was a quarter of all
 * instructions for small blocks.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_PLAIN_H
#define XSEG_CORE_PLAIN_H

#include "src/core/arena/arena.h"
#include "src/core/config/size.h"
#include "src/core/small/cell.h"

_Static_assert(XSEG_SIZE_UNIT == (uint64_t)1 << XSEG_CELLS_SHIFT, "sizes are counted in quanta");

/* The quanta that a request takes. */
static inline uint64_t xseg_plain_quanta(uint64_t bytes)
{
    XSEG_ASSERT(bytes > 0);
    return (bytes + XSEG_SIZE_UNIT - 1) >> XSEG_CELLS_SHIFT;
}

/* Whether only the victim could serve a small request, with expandable segments and without max_split_size_mb. */
static inline bool xseg_plain_is_victim_all(const struct xseg_arena *arena)
{
    const uint64_t *sizes = arena->small.bins.sizes;

    return (sizes[0] | sizes[1] | sizes[2] | sizes[3]) == 0 && arena->free_index.used.top == 0;
}

/*
 * Serve a request of a small arena with the head of the victim, where no other cell could serve it.  The caller
 * checks the limits of the counts afterwards.
 *
 * bytes:   as the user said, not 0
 * Returns: the address; 0, and nothing has changed, if the general path has to be taken (small.h)
 */
static inline uint64_t xseg_plain_cut_victim(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_cell *last_remainder = &arena->small.last_remainder;
    struct xseg_extent *extent = last_remainder->extent;
    const uint32_t quanta = (uint32_t)xseg_plain_quanta(bytes);
    const uint32_t quantum = last_remainder->quantum, rest = quantum + quanta;

    if (last_remainder->quanta < XSEG_CELLS_WIDE + quanta || quantum / 64 != rest / 64 ||
        !xseg_extent_is_expandable(extent))
        return 0;
    const uint64_t rounded = (uint64_t)quanta << XSEG_CELLS_SHIFT;
    xseg_counts_add_alloc(&arena->counts, rounded, bytes);
    struct xseg_chunk_map *chunk = xseg_cells_chunk(&extent->cells, quantum);
    struct xseg_cells_word *word = &chunk->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(rest);

    /* The victim's own bits are set at its head, and no bit is set inside it. */
    XSEG_ASSERT(xseg_cells_is_free(word, quantum) && (word->start & behind) == 0);
    XSEG_ASSERT(bytes <= rounded && rounded - bytes < XSEG_SIZE_UNIT);
    word->start |= behind;
    word->free ^= head | behind;
    if ((word->open & head) != 0)
        word->open ^= head | behind;
    chunk->requested[rest % XSEG_CELLS_CHUNK] = chunk->requested[quantum % XSEG_CELLS_CHUNK];
    chunk->requested[quantum % XSEG_CELLS_CHUNK] = (xseg_cells_size)bytes;
    last_remainder->quantum = rest;
    last_remainder->quanta -= quanta;
    XSEG_ASSERT(last_remainder->quanta >= XSEG_CELLS_WIDE && xseg_cells_is_free(word, rest));
    return extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
}

/* Whether an address of an extent is less than 64 quanta before the victim, so that its cell may end there. */
static inline bool xseg_plain_is_near_victim(const struct xseg_arena *arena,
                                             const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_cell *last_remainder = &arena->small.last_remainder;
    const uint64_t quantum = (address - extent->segment.base) >> XSEG_CELLS_SHIFT;

    /* The test that mostly fails comes first. */
    return last_remainder->quantum - quantum - 1 < 63 && last_remainder->extent == extent;
}

/* Free the live cell at an address that is near the victim, if the cell ends where the victim begins and no cached
 * cell is before it; else false, and nothing has changed. */
static inline bool xseg_plain_join_victim(struct xseg_arena *arena, struct xseg_extent *extent,
                                          uint64_t address)
{
    struct xseg_cell *last_remainder = &arena->small.last_remainder;
    const uint64_t offset = address - extent->segment.base;
    const uint32_t quantum = (uint32_t)(offset >> XSEG_CELLS_SHIFT), end = last_remainder->quantum;
    const uint32_t quanta = end - quantum;

    if (offset % XSEG_SIZE_UNIT != 0 || (quantum ^ end) >= 64 ||
        (quantum % 64 == 0 && quantum != 0) || !xseg_extent_is_expandable(extent) ||
        !xseg_single_writer_equals(&arena->notes, 0))
        return false;
    struct xseg_chunk_map *chunk = xseg_cells_chunk(&extent->cells, quantum);
    struct xseg_cells_word *word = &chunk->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(end);
    const uint64_t start = word->start, free = word->free;

    /* A live cell must start at the head, with no other start before the victim, and no cached cell before it. */
    if ((((start & (behind - head)) ^ head) | ((free | word->record) & (head | head >> 1))) != 0)
        return false;
    word->start = start ^ behind;
    word->free = free ^ head ^ behind;
    if ((word->open & behind) != 0)
        word->open ^= head | behind;
    last_remainder->quantum = quantum;
    last_remainder->quanta += quanta;
    XSEG_ASSERT(xseg_cells_is_free(word, quantum) && (word->start & behind) == 0);
    XSEG_ASSERT(chunk->requested[quantum % XSEG_CELLS_CHUNK] <= xseg_cell_bytes_of(quanta));
    xseg_counts_free(&arena->counts, xseg_cell_bytes_of(quanta),
                     chunk->requested[quantum % XSEG_CELLS_CHUNK]);
    return true;
}

/* Where a cached cell begins. */
struct xseg_plain_place {
    struct xseg_chunk_map *chunk;
    struct xseg_cells_word *word;
    uint64_t bit;   /* of the word */
    uint64_t index; /* of the quantum in the chunk map */
};

/* The place of a bit of a chunk map's word. */
static inline struct xseg_plain_place xseg_plain_place_in(struct xseg_chunk_map *chunk,
                                                          uint64_t number, uint64_t bit)
{
    XSEG_ASSERT(bit != 0 && number < XSEG_CELLS_WORDS);
    return (struct xseg_plain_place){chunk, &chunk->word[number], bit,
                                     number * 64 + (uint64_t)__builtin_ctzll(bit)};
}

/* Mark the first `quanta` of a cell live that is out of the bins, and put the remainder, if there is one, into its bin.
 * The remainder inherits the requested size of the cell. */
static inline void xseg_plain_cut(struct xseg_bins *bins, struct xseg_plain_place place,
                                  uint64_t size, uint64_t quanta)
{
    struct xseg_chunk_map *chunk = place.chunk;
    const uint64_t behind = place.index + quanta, last = behind - 1;

    XSEG_ASSERT(quanta > 0 && size >= quanta && place.index + size <= XSEG_CELLS_CHUNK);
    XSEG_ASSERT(xseg_cells_is_free(place.word, (uint32_t)place.index));
    if (size == quanta) {
        /* In a cell of one quantum, both bits are one, which the second line leaves clear. */
        place.word->free ^= place.bit;
        chunk->word[last / 64].free &= ~((uint64_t)1 << last % 64);
    } else {
        struct xseg_cells_word *rest = &chunk->word[behind / 64];
        const uint64_t bit = (uint64_t)1 << behind % 64;

        /* The order matters: otherwise gcc reads and writes both members of `rest` at once, which waits for the
         * store to one of them and takes 15 % of this function's time. */
        XSEG_ASSERT((rest->start & bit) == 0);
        rest->start |= bit;
        place.word->free ^= place.bit;
        rest->free |= bit;
        chunk->starts |= (uint64_t)1 << behind / 64;
        chunk->requested[behind] = chunk->requested[place.index];
        xseg_bins_set(bins, chunk, size - quanta, behind / 64);
    }
}

/* Count a cell that is handed out, and set its requested size; returns its address.  The caller checks the limits of the
 * counts afterwards. */
static inline uint64_t xseg_plain_note_live(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                                            uint64_t index, uint64_t quanta, uint64_t bytes)
{
    const uint64_t rounded = quanta << XSEG_CELLS_SHIFT;

    XSEG_ASSERT(index < XSEG_CELLS_CHUNK && bytes > 0 && bytes <= rounded);
    XSEG_ASSERT(rounded - bytes < XSEG_SIZE_UNIT);
    xseg_counts_add_alloc(&arena->counts, rounded, bytes);
    chunk->requested[index] = (xseg_cells_size)bytes;
    return chunk->base + (index << XSEG_CELLS_SHIFT);
}

/* The lowest chunk map with a cell of a size, which some chunk map has. */
static inline struct xseg_chunk_map *xseg_plain_find_chunk(const struct xseg_bins *bins,
                                                           uint64_t size)
{
    const struct xseg_bins_level *level = &bins->level[size];
    const uint64_t top = (uint64_t)__builtin_ctzll(level->top);

    XSEG_ASSERT(size < XSEG_CELLS_WIDE && bins->tops == 1 && level->top != 0);
    return bins->chunk[top * 64 + (uint64_t)__builtin_ctzll(level[top * XSEG_CELLS_WIDE].bits)];
}

/* Whether rules beyond best fit apply to a cell.
 * expandable: of the configuration, without max_split_size_mb */
static inline bool xseg_plain_must_ask(struct xseg_plain_place place, uint64_t size,
                                       bool expandable)
{
    return (place.word->open & place.bit) != 0 || place.index + size > XSEG_CELLS_CHUNK ||
           xseg_extent_is_expandable(place.chunk->extent) != expandable;
}

/*
 * Serve a request with the lowest cell of a size that a chunk map has.
 *
 * size:       quanta, below 64
 * expandable: of the configuration
 * Returns:    the address; 0, and nothing has changed, if the general path has to be taken (small.h)
 */
static inline __attribute__((always_inline)) uint64_t
xseg_plain_cut_chunk(struct xseg_arena *arena, struct xseg_chunk_map *chunk, uint64_t size,
                     uint64_t bytes, bool expandable)
{
    const uint64_t quanta = xseg_plain_quanta(bytes);
    XSEG_ASSERT(arena->small.is_plain && size >= quanta && size < 64);
    XSEG_ASSERT(chunk != NULL && chunk->bin[size] != 0);
    const uint64_t number = (uint64_t)__builtin_ctzll(chunk->bin[size]);
    bool has_other = false;
    const struct xseg_plain_place place = xseg_plain_place_in(
        chunk, number, xseg_bins_pick_short(&chunk->word[number], size, &has_other));

    if (__builtin_expect(xseg_plain_must_ask(place, size, expandable), 0))
        return 0;
    if (has_other)
        has_other = xseg_bins_has_other(chunk, (uint32_t)number, (uint32_t)size, place.bit);
    if (!expandable)
        xseg_fragments_split(&arena->counts, quanta << XSEG_CELLS_SHIFT,
                             (size - quanta) << XSEG_CELLS_SHIFT);
    if (!has_other)
        xseg_bins_clear_lowest(&arena->small.bins, chunk, size);
    xseg_plain_cut(&arena->small.bins, place, size, quanta);
    return xseg_plain_note_live(arena, chunk, place.index, quanta, bytes);
}

/*
 * The size of the live cell that begins at a quantum of a chunk map.
 *
 * is_lone: set to whether no cached cell and no record is beside the cell
 * Returns: quanta; 0 if no live cell begins there, and where the general path has to look: if the cell has more than
 *          64 quanta, begins with its word, or does not end before its chunk map's last quantum.  Whether it ends in
 *          the next word cannot be predicted, so there is no branch for it.
 */
static inline uint64_t xseg_plain_live(const struct xseg_chunk_map *chunk, uint64_t index,
                                       bool *is_lone)
{
    const struct xseg_cells_word *word = &chunk->word[index / 64], *next = word + 1;
    const uint64_t at = index % 64, rest = ~index % 64;
    const uint64_t start = word->start >> at;
    /* The starts of the 64 quanta behind the first; the lowest is where the cell ends. */
    const uint64_t behind = start >> 1 | next->start << rest;

    XSEG_ASSERT(index < XSEG_CELLS_CHUNK);
    if (at == 0 || behind == 0)
        return 0;
    /* Marks of free quanta and records, from the quantum before the cell on. */
    const uint64_t taken = (word->free | word->record) >> (index - 1) % 64;
    const uint64_t inside = (uint64_t)__builtin_ctzll(behind);
    const uint64_t taken_behind = taken >> 2 | (next->free | next->record) << rest;

    *is_lone = ((taken | taken_behind >> inside) & 1) == 0;
    return (start & 1) != 0 && (taken & 2) == 0 ? inside + 1 : 0;
}

/* Count a cell of up to 64 quanta that is freed. */
static inline void xseg_plain_count_free(struct xseg_arena *arena,
                                         const struct xseg_chunk_map *chunk, uint64_t index,
                                         uint64_t quanta)
{
    const uint64_t bytes = quanta << XSEG_CELLS_SHIFT;

    XSEG_ASSERT(quanta > 0 && quanta <= 64 && chunk->requested[index] <= bytes);
    xseg_counts_free(&arena->counts, bytes, chunk->requested[index]);
}

#endif
