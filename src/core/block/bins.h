/* SPDX-License-Identifier: MIT */
/*
 * Bins: the cached cells of one small arena that are smaller than XSEG_CELLS_WIDE, searchable best
 * fit: smallest size first, and among equal sizes the lowest position (extent.h).
 *
 * Every size in quanta has a bin, and bins are bits instead of lists.  A bit in `sizes` says that there is a cell
 * of the size.  Two levels of bits lead to the first chunk map that has one, the chunk map's own bin leads to the
 * word, and the bits of that word to the cell.  So a search, an insertion and a removal touch a handful of words,
 * whatever the number of cells.
 *
 * Chunk maps have a *rank*: their place in the order of positions.  A chunk map that leaves keeps its rank empty;
 * a chunk map that comes in between moves the others, for which all bits are computed anew.
 *
 * Invariants; xseg_bins_audit() checks them:
 *   BINS-1  ranks rise with the positions of their chunk maps.
 *   BINS-2  a bit is set exactly when there is a cell of that size below it.
 *   BINS-3  the bin of size 0 is empty: it is the start of the word behind a chunk map's last (cells.h).
 *
 * Locking: ARENA.  `capacity` changes under the device memory lock as well.
 */
#ifndef XSEG_CORE_BINS_H
#define XSEG_CORE_BINS_H

#include "src/core/block/extent.h"

/* A cached cell; none if its size is 0. */
struct xseg_cell {
    struct xseg_extent *extent;
    uint32_t quantum; /* of the extent, where it begins */
    uint32_t quanta;  /* its size */
};

struct xseg_bins {
    uint64_t sizes[XSEG_CELLS_WIDE / 64]; /* a bit for each size that has a cell */
    uint32_t ranks, capacity;             /* ranks in use, and ranks that there is room for */
    uint32_t gone;                        /* ranks in use that are empty */
    uint32_t words, tops;                 /* words of bits that a size has, in each level */
    struct xseg_chunk_map **chunk;        /* [capacity]; in one piece of host memory with `level` */
    struct xseg_bins_level *level;        /* [words][XSEG_CELLS_WIDE] */
    size_t host_bytes;
};

/* The bits of a size and 64 ranks: both levels in one cache line, which other threads may have. */
struct xseg_bins_level {
    uint64_t bits; /* ranks that have the size */
    uint64_t top;  /* in every 64th level: which of the 64 levels from there on have `bits` */
};

_Static_assert(XSEG_CELLS_WIDE % 64 == 0, "words of sizes are whole");
_Static_assert(64 % sizeof(struct xseg_bins_level) == 0, "a level lies in one cache line");

/*
 * Make room for more chunk maps.  The device memory lock is held, no other lock.
 *
 * room:    set to memory for xseg_bins_take_room(), or to NULL if the bins have room already
 * Returns: false without host memory
 */
bool xseg_bins_make_room(const struct xseg_bins *bins, uint32_t count, void **room);

/* Use the memory that xseg_bins_make_room() made; returns the memory before, to be freed without the lock. */
void *xseg_bins_take_room(struct xseg_bins *bins, uint32_t count, void *room);

void xseg_bins_fini(struct xseg_bins *bins);

/* Add a chunk map, for which there must be room. */
void xseg_bins_add(struct xseg_bins *bins, struct xseg_chunk_map *chunk);
/* Remove a chunk map, which must have no cached cells. */
void xseg_bins_remove(struct xseg_bins *bins, const struct xseg_chunk_map *chunk);

/* The cell of the bins that comes after another one by size and position, or none. */
struct xseg_cell xseg_bins_next(const struct xseg_bins *bins, const struct xseg_cell *cell);

/* The bits of a word where cached cells of a size begin. */
uint64_t xseg_bins_starts(const struct xseg_chunk_map *chunk, uint32_t word, uint32_t quanta);

bool xseg_bins_audit(const struct xseg_bins *bins, struct xseg_violation *violation);

/* The word of bits that a rank has in a size. */
static inline uint64_t *xseg_bins_bits(const struct xseg_bins *bins, uint32_t quanta, uint32_t rank)
{
    XSEG_ASSERT(quanta < XSEG_CELLS_WIDE && rank < bins->capacity);
    return &bins->level[rank / 64 * XSEG_CELLS_WIDE + quanta].bits;
}

/* The word of the upper level that has the bit of that word. */
static inline uint64_t *xseg_bins_top(const struct xseg_bins *bins, uint32_t quanta, uint32_t rank)
{
    XSEG_ASSERT(quanta < XSEG_CELLS_WIDE && rank < bins->capacity);
    return &bins->level[rank / 4096 * 64 * XSEG_CELLS_WIDE + quanta].top;
}

/* Note that a word of a chunk map has a cached cell of a size.  There is no branch, because whether the chunk map
 * had such a cell before cannot be predicted in a churn. */
static inline void xseg_bins_set(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                 uint64_t quanta, uint64_t word)
{
    XSEG_ASSERT(quanta > 0 && quanta < XSEG_CELLS_WIDE && word < XSEG_CELLS_WORDS);
    XSEG_ASSERT(bins->chunk[chunk->rank] == chunk);
    chunk->bin[quanta] |= (uint64_t)1 << word;
    chunk->level[quanta].bits |= chunk->rank_bit;
    chunk->top[quanta].top |= chunk->top_bit;
    bins->sizes[quanta / 64] |= (uint64_t)1 << quanta % 64;
}

/* Make a narrow live cell cached that ends in its chunk map and has no cached neighbour. */
static inline void xseg_bins_put_lone(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                      uint64_t index, uint64_t quanta)
{
    const uint64_t last = index + quanta - 1;

    XSEG_ASSERT(quanta > 0 && last < XSEG_CELLS_CHUNK);
    XSEG_ASSERT(xseg_cells_is_live(&chunk->word[index / 64], (uint32_t)index));
    chunk->word[index / 64].free |= (uint64_t)1 << index % 64;
    chunk->word[last / 64].free |= (uint64_t)1 << last % 64;
    xseg_bins_set(bins, chunk, quanta, index / 64);
}

/* Insert a cached cell, whose bits are set. */
static inline void xseg_bins_insert(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                    uint32_t quantum, uint32_t quanta)
{
    XSEG_ASSERT(xseg_cells_is_free(&chunk->word[quantum / 64 % XSEG_CELLS_WORDS], quantum));
    xseg_bins_set(bins, chunk, quanta, quantum / 64 % XSEG_CELLS_WORDS);
}

/* Whether no chunk map has a cell of a size, in bins with several top words. */
bool xseg_bins_has_none(const struct xseg_bins *bins, uint32_t quanta);

/* Note that a word of a chunk map has no cached cell of a size any more.  There is no branch, because whether the
 * chunk map has another such cell cannot be predicted. */
static inline void xseg_bins_clear(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                   uint32_t quanta, uint32_t word)
{
    const uint64_t bin = chunk->bin[quanta] & ~((uint64_t)1 << word);
    const uint64_t bits = chunk->level[quanta].bits & ~(chunk->rank_bit & -(uint64_t)(bin == 0));
    const uint64_t top = chunk->top[quanta].top & ~(chunk->top_bit & -(uint64_t)(bits == 0));

    XSEG_ASSERT(quanta > 0 && quanta < XSEG_CELLS_WIDE && bins->chunk[chunk->rank] == chunk);
    XSEG_ASSERT((chunk->bin[quanta] >> word & 1) != 0);
    chunk->bin[quanta] = bin;
    chunk->level[quanta].bits = bits;
    chunk->top[quanta].top = top;
    const bool is_none =
        __builtin_expect(bins->tops == 1, 1) ? top == 0 : xseg_bins_has_none(bins, quanta);
    bins->sizes[quanta / 64] &= ~((uint64_t)is_none << quanta % 64);
}

/* xseg_bins_clear() for the lowest word that has the size, in bins with one top word: its bits are the lowest of
 * each level, so they are cleared without a search. */
static inline void xseg_bins_clear_lowest(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                          uint64_t quanta)
{
    const uint64_t bin = chunk->bin[quanta] & (chunk->bin[quanta] - 1);
    uint64_t *bits = &chunk->level[quanta].bits, *top = &chunk->top[quanta].top;
    const uint64_t bits_left = *bits & (*bits - (bin == 0));
    const uint64_t top_left = *top & (*top - (bits_left == 0));

    XSEG_ASSERT(bins->tops == 1 && chunk->bin[quanta] != 0);
    XSEG_ASSERT((*bits & -*bits) == chunk->rank_bit && (*top & -*top) == chunk->top_bit);
    chunk->bin[quanta] = bin;
    *bits = bits_left;
    *top = top_left;
    bins->sizes[quanta / 64] ^= (uint64_t)(top_left == 0) << quanta % 64;
}

/* Cached cells of a word that have another start at the distance of a size behind them: the cells of that size that
 * end in the word, and longer distances over several cells. */
static inline uint64_t xseg_bins_candidates(const struct xseg_cells_word *word, uint32_t quanta)
{
    return quanta < 64 ? word->start & word->free & word->start >> quanta : 0;
}

/* Whether the first start behind a bit is at the distance of a size. */
static inline bool xseg_bins_ends_in(uint64_t start, uint32_t at, uint32_t quanta)
{
    return (uint32_t)__builtin_ctzll(start >> at >> 1) + 1 == quanta;
}

/* The bit of the last start of a word that has one.  Only the last cell of a word may end behind the word. */
static inline uint64_t xseg_bins_last(const struct xseg_cells_word *word)
{
    XSEG_ASSERT(word->start != 0);
    return (uint64_t)1 << 63 >> __builtin_clzll(word->start);
}

/* Whether the last cell of a word is cached and of a size. */
static inline bool xseg_bins_last_is(const struct xseg_chunk_map *chunk, uint32_t word,
                                     uint32_t quanta)
{
    const struct xseg_cells_word *here = &chunk->word[word];
    const uint64_t last = xseg_bins_last(here);
    const uint32_t at =
        chunk->number * XSEG_CELLS_CHUNK + word * 64 + (uint32_t)__builtin_ctzll(last);

    return (here->start & here->free & last) != 0 &&
           xseg_cells_next(&chunk->extent->cells, at + 1) == at + quanta;
}

/* Whether the last cell of a word is of a size and ends in the next word.  The cell is cached, and both words
 * are in one chunk map. */
static inline bool xseg_bins_ends_in_next(const struct xseg_cells_word *word, uint32_t quanta)
{
    XSEG_ASSERT(word->start != 0 && quanta < 64);
    const uint32_t end = 63 - (uint32_t)__builtin_clzll(word->start) + quanta;
    const uint64_t next = word[1].start;

    return end >= 64 && (next & -next) == (uint64_t)1 << end % 64;
}

/* Whether another cached cell of a size than the one at a bit begins in a word. */
static inline bool xseg_bins_has_other(const struct xseg_chunk_map *chunk, uint32_t word,
                                       uint32_t quanta, uint64_t bit)
{
    const struct xseg_cells_word *here = &chunk->word[word];
    const uint64_t others = here->start & here->free & ~bit;

    /* Two cells that are this long cannot begin in one word. */
    if (quanta >= 64)
        return false;
    for (uint64_t bits = others & here->start >> quanta; bits != 0; bits &= bits - 1)
        if (xseg_bins_ends_in(here->start, (uint32_t)__builtin_ctzll(bits), quanta))
            return true;
    /* If the last start of the word is not a candidate, no candidate ends behind the word. */
    if (__builtin_expect(others <= (here->start ^ others), 1))
        return false;
    return word != XSEG_CELLS_WORDS - 1 ? xseg_bins_ends_in_next(here, quanta)
                                        : xseg_bins_last_is(chunk, word, quanta);
}

/* Remove a cell, whose bits still mark it as cached. */
static inline void xseg_bins_remove_cell(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                         uint32_t quantum, uint32_t quanta)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    XSEG_ASSERT(chunk->number == quantum / XSEG_CELLS_CHUNK);
    XSEG_ASSERT(xseg_cells_is_free(&chunk->word[word], quantum));
    if (xseg_bins_has_other(chunk, word, quanta, xseg_cells_bit(quantum)))
        return;
    xseg_bins_clear(bins, chunk, quanta, word);
}

/* Cached cells of a word that may be of a size below 64: cells with another start at that distance behind them, and
 * the word's last, which may end in the next word.  Whether it does cannot be predicted, and is not tested. */
static inline uint64_t xseg_bins_short(const struct xseg_cells_word *word, uint64_t quanta)
{
    const uint64_t start = word->start;

    return start & word->free & (start >> quanta | xseg_bins_last(word));
}

/* The starts inside a cell at a bit that may be of a size below 64, shifted: 0 if the cell is of that size. */
static inline uint64_t xseg_bins_inside(const struct xseg_cells_word *word, uint64_t bit,
                                        uint64_t quanta)
{
    return ((word->start >> __builtin_ctzll(bit)) - 1) << (-quanta & 63);
}

/* The bit of the lowest cell of a size below 64 in a word that has one.
 * may_have_other: set to whether the word may have another cell of that size */
static inline uint64_t xseg_bins_pick_short(const struct xseg_cells_word *word, uint64_t quanta,
                                            bool *may_have_other)
{
    uint64_t bits = xseg_bins_short(word, quanta);

    XSEG_ASSERT(quanta > 0 && quanta < 64 && bits != 0);
    while (__builtin_expect(xseg_bins_inside(word, bits & -bits, quanta) != 0, 0))
        bits &= bits - 1;
    XSEG_ASSERT(bits != 0);
    *may_have_other = (bits & (bits - 1)) != 0;
    return bits & -bits;
}

/* The bit of the lowest cell of any size in a word that has one.  A cell of 64 quanta or more is the word's last. */
static inline uint64_t xseg_bins_pick(const struct xseg_cells_word *word, uint64_t quanta,
                                      bool *may_have_other)
{
    return quanta < 64 ? xseg_bins_pick_short(word, quanta, may_have_other) : xseg_bins_last(word);
}

/* The smallest size that has a cell and is not below `quanta`, or 0. */
static inline uint32_t xseg_bins_fit(const struct xseg_bins *bins, uint32_t quanta)
{
    uint32_t word = quanta / 64;

    XSEG_ASSERT(quanta > 0);
    if (quanta >= XSEG_CELLS_WIDE)
        return 0;
    uint64_t sizes = bins->sizes[word] >> quanta % 64 << quanta % 64;
    while (sizes == 0) {
        if (++word == XSEG_CELLS_WIDE / 64)
            return 0;
        sizes = bins->sizes[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(sizes);
}

/* The smallest size below 64 that has a cell and is not below `quanta`, or 0. */
static inline uint64_t xseg_bins_fit_short(const struct xseg_bins *bins, uint64_t quanta)
{
    if (__builtin_expect(quanta >= 64, 0))
        return 0;
    const uint64_t sizes = bins->sizes[0] >> quanta;
    return __builtin_expect(sizes == 0, 0) ? 0 : quanta + (uint64_t)__builtin_ctzll(sizes);
}

/* The rank of the lowest chunk map with a cell of a size, which some chunk map has. */
static inline uint32_t xseg_bins_first(const struct xseg_bins *bins, uint32_t quanta)
{
    uint32_t rank = 0;

    XSEG_ASSERT((bins->sizes[quanta / 64] >> quanta % 64 & 1) != 0);
    while (__builtin_expect(bins->tops != 1, 0) && *xseg_bins_top(bins, quanta, rank) == 0)
        rank += 4096;
    rank += (uint32_t)__builtin_ctzll(*xseg_bins_top(bins, quanta, rank)) * 64;
    return rank + (uint32_t)__builtin_ctzll(*xseg_bins_bits(bins, quanta, rank));
}

/* The best fit for a size, or none. */
static inline struct xseg_cell xseg_bins_find(const struct xseg_bins *bins, uint32_t quanta)
{
    const uint32_t size = xseg_bins_fit(bins, quanta);
    bool may_have_other = false;

    if (size == 0)
        return (struct xseg_cell){0};
    XSEG_ASSERT(size >= quanta);
    const struct xseg_chunk_map *chunk = bins->chunk[xseg_bins_first(bins, size)];
    XSEG_ASSERT(chunk != NULL && chunk->bin[size] != 0);
    const uint32_t word = (uint32_t)__builtin_ctzll(chunk->bin[size]);
    const uint64_t bit = xseg_bins_pick(&chunk->word[word], size, &may_have_other);
    return (struct xseg_cell){
        chunk->extent,
        chunk->number * XSEG_CELLS_CHUNK + word * 64 + (uint32_t)__builtin_ctzll(bit), size};
}

#endif
