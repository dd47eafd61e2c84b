/* SPDX-License-Identifier: MIT */
/*
 * A bins: the cached cells of one small arena that are smaller than XSEG_CELLS_WIDE, searchable best
 * fit: smallest size first, and among equal sizes the lowest address.
 *
 * Every size in quanta has a bin, and no bin has a node: a bit in `sizes` says that there is such a
 * cell, two levels of bits lead to the first chunk map that has one, the chunk map's bin to the word, and the
 * bits of that word to the cell.  So a search, an insertion and a removal touch a handful of words,
 * whatever the number of cells.
 *
 * Chunk maps have a *rank*: their place in the order of addresses.  One that ends leaves its rank empty;
 * one that comes in between moves the others, which computes all bits anew.
 *
 * Invariants; xseg_bins_audit() checks them:
 *   BINS-1  ranks rise with the addresses of their chunk maps.
 *   BINS-2  a bit is set exactly when there is something of that size below it.
 *   BINS-3  the bin of no size is empty: it is the start of the word behind a chunk map's last (cells.h).
 *
 * Locking: ARENA.  `capacity` changes under GROWTH as well.
 */
#ifndef XSEG_CORE_BINS_H
#define XSEG_CORE_BINS_H

#include "src/core/cache/extent.h"

/* A cached cell; none if its size is 0. */
struct xseg_cell {
    struct xseg_extent *extent;
    uint32_t quantum; /* of the extent, where it begins */
    uint32_t quanta;  /* its size */
};

struct xseg_bins {
    uint64_t sizes[XSEG_CELLS_WIDE / 64]; /* that have a cell */
    uint32_t ranks, capacity;             /* in use; there is room for */
    uint32_t gone;                        /* in use, but empty */
    uint32_t words, tops;                 /* of bits a size has, in each level */
    struct xseg_chunk_map **chunk;        /* [capacity]; all of this is one piece of host memory */
    struct xseg_bins_level *level;        /* [words][XSEG_CELLS_WIDE] */
    size_t host_bytes;
};

/* Of a size and 64 ranks; both in one cache line, which other threads may have. */
struct xseg_bins_level {
    uint64_t bits; /* ranks that have the size */
    uint64_t top;  /* words of `bits` that have any; in every 64th word, for those from there on */
};

/*
 * Make room for a number of chunk maps more: what a larger bins needs, or NULL with XSEG_OK if there is
 * room.  GROWTH is held, no other lock.  Returns false without host memory.
 */
bool xseg_bins_make_room(const struct xseg_bins *bins, uint32_t count, void **room);

/* Take over what xseg_bins_make_room() made; returns what is to be freed without the lock. */
void *xseg_bins_take_room(struct xseg_bins *bins, uint32_t count, void *room);

void xseg_bins_fini(struct xseg_bins *bins);

/* Add a chunk map, for which there is room; remove one that has no cells left. */
void xseg_bins_add(struct xseg_bins *bins, struct xseg_chunk_map *chunk);
void xseg_bins_remove(struct xseg_bins *bins, const struct xseg_chunk_map *chunk);

/* The lowest cell of a size or more, or none.  Cost: a few words for each size that is there. */
struct xseg_cell xseg_bins_find_lowest(const struct xseg_bins *bins, uint32_t quanta);

/* The cell that comes after one of the bins by size and address, or none. */
struct xseg_cell xseg_bins_next(const struct xseg_bins *bins, const struct xseg_cell *cell);

/* The bits of a word where a cached cell of a size begins. */
uint64_t xseg_bins_starts(const struct xseg_chunk_map *chunk, uint32_t word, uint32_t quanta);

bool xseg_bins_audit(const struct xseg_bins *bins, struct xseg_finding *finding);

/* The word of bits of a size that has a rank; the one of the top that has that word. */
static inline uint64_t *xseg_bins_bits(const struct xseg_bins *bins, uint32_t quanta, uint32_t rank)
{
    return &bins->level[rank / 64 * XSEG_CELLS_WIDE + quanta].bits;
}

static inline uint64_t *xseg_bins_top(const struct xseg_bins *bins, uint32_t quanta, uint32_t rank)
{
    return &bins->level[rank / 4096 * 64 * XSEG_CELLS_WIDE + quanta].top;
}

/* A word of a chunk map has a cached cell of a size from now on.  Without a branch: whether the chunk map had
 * one before is a coin's toss in a churn. */
static inline void xseg_bins_set(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                 uint64_t quanta, uint64_t word)
{
    chunk->bin[quanta] |= (uint64_t)1 << word;
    chunk->level[quanta].bits |= chunk->rank_bit;
    chunk->top[quanta].top |= chunk->top_bit;
    bins->sizes[quanta / 64] |= (uint64_t)1 << quanta % 64;
}

/* A live cell that ends in its chunk map, has no cached neighbour, and is narrow becomes cached. */
static inline void xseg_bins_put_lone(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                      uint64_t index, uint64_t quanta)
{
    const uint64_t last = index + quanta - 1;

    chunk->word[index / 64].free |= (uint64_t)1 << index % 64;
    chunk->word[last / 64].free |= (uint64_t)1 << last % 64;
    xseg_bins_set(bins, chunk, quanta, index / 64);
}

/* A cell has become cached, and its bits say so. */
static inline void xseg_bins_insert(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                    uint32_t quantum, uint32_t quanta)
{
    xseg_bins_set(bins, chunk, quanta, quantum / 64 % XSEG_CELLS_WORDS);
}

/* Whether a size is nowhere, in a bins with several top words. */
bool xseg_bins_has_none(const struct xseg_bins *bins, uint32_t quanta);

/* A word has no cell of a size any more.  Without a branch, as above. */
static inline void xseg_bins_clear(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                   uint32_t quanta, uint32_t word)
{
    const uint64_t bin = chunk->bin[quanta] & ~((uint64_t)1 << word);
    const uint64_t bits = chunk->level[quanta].bits & ~(chunk->rank_bit & -(uint64_t)(bin == 0));
    const uint64_t top = chunk->top[quanta].top & ~(chunk->top_bit & -(uint64_t)(bits == 0));

    chunk->bin[quanta] = bin;
    chunk->level[quanta].bits = bits;
    chunk->top[quanta].top = top;
    const bool is_none =
        __builtin_expect(bins->tops == 1, 1) ? top == 0 : xseg_bins_has_none(bins, quanta);
    bins->sizes[quanta / 64] &= ~((uint64_t)is_none << quanta % 64);
}

/* The same for the lowest word of the size, of a bins with one top word: there its bits are the lowest of
 * each level, which are cleared without being looked for. */
static inline void xseg_bins_clear_lowest(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                          uint64_t quanta)
{
    const uint64_t bin = chunk->bin[quanta] & (chunk->bin[quanta] - 1);
    uint64_t *bits = &chunk->level[quanta].bits, *top = &chunk->top[quanta].top;
    const uint64_t bits_left = *bits & (*bits - (bin == 0));
    const uint64_t top_left = *top & (*top - (bits_left == 0));

    chunk->bin[quanta] = bin;
    *bits = bits_left;
    *top = top_left;
    bins->sizes[quanta / 64] ^= (uint64_t)(top_left == 0) << quanta % 64;
}

/* Cached cells of a word with a start at just the distance of a size behind theirs: those of that size
 * which end in the word, but for starts in between. */
static inline uint64_t xseg_bins_candidates(const struct xseg_cells_word *word, uint32_t quanta)
{
    return quanta < 64 ? word->start & word->free & word->start >> quanta : 0;
}

/* Whether no start lies between a bit and the one a size behind it. */
static inline bool xseg_bins_ends_in(uint64_t start, uint32_t at, uint32_t quanta)
{
    return (uint32_t)__builtin_ctzll(start >> at >> 1) + 1 == quanta;
}

/* The bit of the last start of a word that has one, which is the only one whose cell may end behind the word. */
static inline uint64_t xseg_bins_last(const struct xseg_cells_word *word)
{
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

/* Whether the last cell of a word, which is cached, is of a size and ends in the next word, of the same
 * chunk map. */
static inline bool xseg_bins_ends_in_next(const struct xseg_cells_word *word, uint32_t quanta)
{
    const uint32_t end = 63 - (uint32_t)__builtin_clzll(word->start) + quanta;
    const uint64_t next = word[1].start;

    return end >= 64 && (next & -next) == (uint64_t)1 << end % 64;
}

/* Whether a cell of a size begins in a word beside the one at a bit. */
static inline bool xseg_bins_has_other(const struct xseg_chunk_map *chunk, uint32_t word,
                                       uint32_t quanta, uint64_t bit)
{
    const struct xseg_cells_word *here = &chunk->word[word];
    const uint64_t others = here->start & here->free & ~bit;

    /* Two that are this long cannot begin in one word. */
    if (quanta >= 64)
        return false;
    for (uint64_t bits = others & here->start >> quanta; bits != 0; bits &= bits - 1)
        if (xseg_bins_ends_in(here->start, (uint32_t)__builtin_ctzll(bits), quanta))
            return true;
    /* The last one of the word is another if the highest of all starts is. */
    if (__builtin_expect(others <= (here->start ^ others), 1))
        return false;
    return word != XSEG_CELLS_WORDS - 1 ? xseg_bins_ends_in_next(here, quanta)
                                        : xseg_bins_last_is(chunk, word, quanta);
}

/* A cell that is still marked as cached leaves the bins. */
static inline void xseg_bins_remove_cell(struct xseg_bins *bins, struct xseg_chunk_map *chunk,
                                         uint32_t quantum, uint32_t quanta)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    if (xseg_bins_has_other(chunk, word, quanta, xseg_cells_bit(quantum)))
        return;
    xseg_bins_clear(bins, chunk, quanta, word);
}

/* Cached cells of a word that may be of a size below 64: those with a start at just that distance behind
 * theirs, and the word's last, which may end in the next word.  Whether it does is a coin's toss, and not asked. */
static inline uint64_t xseg_bins_short(const struct xseg_cells_word *word, uint64_t quanta)
{
    const uint64_t start = word->start;

    return start & word->free & (start >> quanta | xseg_bins_last(word));
}

/* The starts inside a cell of a size below 64 at a bit, moved up: if there are any, it is not of that size. */
static inline uint64_t xseg_bins_inside(const struct xseg_cells_word *word, uint64_t bit,
                                        uint64_t quanta)
{
    return ((word->start >> __builtin_ctzll(bit)) - 1) << (-quanta & 63);
}

/* The bit of the lowest cell of a size below 64 in a word that has one, and whether it may have another. */
static inline uint64_t xseg_bins_pick_short(const struct xseg_cells_word *word, uint64_t quanta,
                                            bool *may_have_other)
{
    uint64_t bits = xseg_bins_short(word, quanta);

    while (__builtin_expect(xseg_bins_inside(word, bits & -bits, quanta) != 0, 0))
        bits &= bits - 1;
    *may_have_other = (bits & (bits - 1)) != 0;
    return bits & -bits;
}

/* The bit of the lowest cell of any size in a word that has one.  Of 64 quanta or more, only the last can be. */
static inline uint64_t xseg_bins_pick(const struct xseg_cells_word *word, uint64_t quanta,
                                      bool *may_have_other)
{
    return quanta < 64 ? xseg_bins_pick_short(word, quanta, may_have_other) : xseg_bins_last(word);
}

/* The smallest size with a cell that is not below one, or 0. */
static inline uint32_t xseg_bins_fit(const struct xseg_bins *bins, uint32_t quanta)
{
    uint32_t word = quanta / 64;

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

/* The smallest size with a cell that is not below one, for sizes below 64; 0 if there is none. */
static inline uint64_t xseg_bins_fit_short(const struct xseg_bins *bins, uint64_t quanta)
{
    if (__builtin_expect(quanta >= 64, 0))
        return 0;
    const uint64_t sizes = bins->sizes[0] >> quanta;
    return __builtin_expect(sizes == 0, 0) ? 0 : quanta + (uint64_t)__builtin_ctzll(sizes);
}

/* The rank of the lowest chunk map with a cell of a size that is there. */
static inline uint32_t xseg_bins_first(const struct xseg_bins *bins, uint32_t quanta)
{
    uint32_t rank = 0;

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
    const struct xseg_chunk_map *chunk = bins->chunk[xseg_bins_first(bins, size)];
    const uint32_t word = (uint32_t)__builtin_ctzll(chunk->bin[size]);
    const uint64_t bit = xseg_bins_pick(&chunk->word[word], size, &may_have_other);
    return (struct xseg_cell){
        chunk->extent,
        chunk->number * XSEG_CELLS_CHUNK + word * 64 + (uint32_t)__builtin_ctzll(bit), size};
}

#endif
