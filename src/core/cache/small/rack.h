/* SPDX-License-Identifier: MIT */
/*
 * A rack: the cached cells of one small arena that are smaller than XSEG_CELLS_WIDE, searchable best
 * fit: smallest size first, and among equal sizes the lowest address.
 *
 * Every size in quanta has a bin, and no bin has a node: a bit in `sizes` says that there is such a
 * cell, two levels of bits lead to the first sheet that has one, the sheet's bin to the word, and the
 * bits of that word to the cell.  So a search, an insertion and a removal touch a handful of words,
 * whatever the number of cells.
 *
 * Sheets have a *rank*: their place in the order of addresses.  One that ends leaves its rank empty;
 * one that comes in between moves the others, which computes all bits anew.
 *
 * Invariants; xseg_rack_audit() checks them:
 *   RACK-1  ranks rise with the addresses of their sheets.
 *   RACK-2  a bit is set exactly when there is something of that size below it.
 *   RACK-3  the bin of no size is empty: it is the start of the word behind a sheet's last (cells.h).
 *
 * Locking: ARENA.  `capacity` changes under GROWTH as well.
 */
#ifndef XSEG_CORE_RACK_H
#define XSEG_CORE_RACK_H

#include "src/core/cache/extent.h"

/* A cached cell; none if its size is 0. */
struct xseg_cell {
    struct xseg_extent *extent;
    uint32_t quantum; /* of the extent, where it begins */
    uint32_t quanta;  /* its size */
};

struct xseg_rack {
    uint64_t sizes[XSEG_CELLS_WIDE / 64]; /* that have a cell */
    uint32_t ranks, capacity;             /* in use; there is room for */
    uint32_t gone;                        /* in use, but empty */
    uint32_t words, tops;                 /* of bits a size has, in each level */
    struct xseg_sheet **sheet;            /* [capacity]; all of this is one piece of host memory */
    struct xseg_rack_level *level;        /* [words][XSEG_CELLS_WIDE] */
    size_t host_bytes;
};

/* Of a size and 64 ranks; both in one cache line, which other threads may have. */
struct xseg_rack_level {
    uint64_t bits; /* ranks that have the size */
    uint64_t top;  /* words of `bits` that have any; in every 64th word, for those from there on */
};

/*
 * Make room for a number of sheets more: what a larger rack needs, or NULL with XSEG_OK if there is
 * room.  GROWTH is held, no other lock.  Returns false without host memory.
 */
bool xseg_rack_make_room(const struct xseg_rack *rack, uint32_t count, void **room);

/* Take over what xseg_rack_make_room() made; returns what is to be freed without the lock. */
void *xseg_rack_take_room(struct xseg_rack *rack, uint32_t count, void *room);

void xseg_rack_fini(struct xseg_rack *rack);

/* Add a sheet, for which there is room; remove one that has no cells left. */
void xseg_rack_add(struct xseg_rack *rack, struct xseg_sheet *sheet);
void xseg_rack_remove(struct xseg_rack *rack, const struct xseg_sheet *sheet);

/* The lowest cell of a size or more, or none.  Cost: a few words for each size that is there. */
struct xseg_cell xseg_rack_find_lowest(const struct xseg_rack *rack, uint32_t quanta);

/* The cell that comes after one of the rack by size and address, or none. */
struct xseg_cell xseg_rack_next(const struct xseg_rack *rack, const struct xseg_cell *cell);

/* The bits of a word where a cached cell of a size begins. */
uint64_t xseg_rack_starts(const struct xseg_sheet *sheet, uint32_t word, uint32_t quanta);

bool xseg_rack_audit(const struct xseg_rack *rack, struct xseg_finding *finding);

/* The word of bits of a size that has a rank; the one of the top that has that word. */
static inline uint64_t *xseg_rack_bits(const struct xseg_rack *rack, uint32_t quanta, uint32_t rank)
{
    return &rack->level[rank / 64 * XSEG_CELLS_WIDE + quanta].bits;
}

static inline uint64_t *xseg_rack_top(const struct xseg_rack *rack, uint32_t quanta, uint32_t rank)
{
    return &rack->level[rank / 4096 * 64 * XSEG_CELLS_WIDE + quanta].top;
}

/* A word of a sheet has a cached cell of a size from now on.  Without a branch: whether the sheet had
 * one before is a coin's toss in a churn. */
static inline void xseg_rack_set(struct xseg_rack *rack, struct xseg_sheet *sheet, uint64_t quanta,
                                 uint64_t word)
{
    sheet->bin[quanta] |= (uint64_t)1 << word;
    sheet->level[quanta].bits |= sheet->rank_bit;
    sheet->top[quanta].top |= sheet->top_bit;
    rack->sizes[quanta / 64] |= (uint64_t)1 << quanta % 64;
}

/* A live cell that ends in its sheet, has no cached neighbour, and is narrow becomes cached. */
static inline void xseg_rack_put_lone(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                      uint64_t index, uint64_t quanta)
{
    const uint64_t last = index + quanta - 1;

    sheet->word[index / 64].free |= (uint64_t)1 << index % 64;
    sheet->word[last / 64].free |= (uint64_t)1 << last % 64;
    xseg_rack_set(rack, sheet, quanta, index / 64);
}

/* A cell has become cached, and its bits say so. */
static inline void xseg_rack_insert(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                    uint32_t quantum, uint32_t quanta)
{
    xseg_rack_set(rack, sheet, quanta, quantum / 64 % XSEG_CELLS_WORDS);
}

/* Whether a size is nowhere, in a rack with several top words. */
bool xseg_rack_has_none(const struct xseg_rack *rack, uint32_t quanta);

/* A word has no cell of a size any more.  Without a branch, as above. */
static inline void xseg_rack_clear(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                   uint32_t quanta, uint32_t word)
{
    const uint64_t bin = sheet->bin[quanta] & ~((uint64_t)1 << word);
    const uint64_t bits = sheet->level[quanta].bits & ~(sheet->rank_bit & -(uint64_t)(bin == 0));
    const uint64_t top = sheet->top[quanta].top & ~(sheet->top_bit & -(uint64_t)(bits == 0));

    sheet->bin[quanta] = bin;
    sheet->level[quanta].bits = bits;
    sheet->top[quanta].top = top;
    const bool is_none =
        __builtin_expect(rack->tops == 1, 1) ? top == 0 : xseg_rack_has_none(rack, quanta);
    rack->sizes[quanta / 64] &= ~((uint64_t)is_none << quanta % 64);
}

/* The same for the lowest word of the size, of a rack with one top word: there its bits are the lowest of
 * each level, which are cleared without being looked for. */
static inline void xseg_rack_clear_lowest(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                          uint64_t quanta)
{
    const uint64_t bin = sheet->bin[quanta] & (sheet->bin[quanta] - 1);
    uint64_t *bits = &sheet->level[quanta].bits, *top = &sheet->top[quanta].top;
    const uint64_t bits_left = *bits & (*bits - (bin == 0));
    const uint64_t top_left = *top & (*top - (bits_left == 0));

    sheet->bin[quanta] = bin;
    *bits = bits_left;
    *top = top_left;
    rack->sizes[quanta / 64] ^= (uint64_t)(top_left == 0) << quanta % 64;
}

/* Cached cells of a word with a start at just the distance of a size behind theirs: those of that size
 * which end in the word, but for starts in between. */
static inline uint64_t xseg_rack_candidates(const struct xseg_cells_word *word, uint32_t quanta)
{
    return quanta < 64 ? word->start & word->free & word->start >> quanta : 0;
}

/* Whether no start lies between a bit and the one a size behind it. */
static inline bool xseg_rack_ends_in(uint64_t start, uint32_t at, uint32_t quanta)
{
    return (uint32_t)__builtin_ctzll(start >> at >> 1) + 1 == quanta;
}

/* The bit of the last start of a word that has one, which is the only one whose cell may end behind the word. */
static inline uint64_t xseg_rack_last(const struct xseg_cells_word *word)
{
    return (uint64_t)1 << 63 >> __builtin_clzll(word->start);
}

/* Whether the last cell of a word is cached and of a size. */
static inline bool xseg_rack_last_is(const struct xseg_sheet *sheet, uint32_t word, uint32_t quanta)
{
    const struct xseg_cells_word *here = &sheet->word[word];
    const uint64_t last = xseg_rack_last(here);
    const uint32_t at =
        sheet->number * XSEG_CELLS_SHEET + word * 64 + (uint32_t)__builtin_ctzll(last);

    return (here->start & here->free & last) != 0 &&
           xseg_cells_next(&sheet->extent->cells, at + 1) == at + quanta;
}

/* Whether the last cell of a word, which is cached, is of a size and ends in the next word, of the same
 * sheet. */
static inline bool xseg_rack_ends_in_next(const struct xseg_cells_word *word, uint32_t quanta)
{
    const uint32_t end = 63 - (uint32_t)__builtin_clzll(word->start) + quanta;
    const uint64_t next = word[1].start;

    return end >= 64 && (next & -next) == (uint64_t)1 << end % 64;
}

/* Whether a cell of a size begins in a word beside the one at a bit. */
static inline bool xseg_rack_has_other(const struct xseg_sheet *sheet, uint32_t word,
                                       uint32_t quanta, uint64_t bit)
{
    const struct xseg_cells_word *here = &sheet->word[word];
    const uint64_t others = here->start & here->free & ~bit;

    /* Two that are this long cannot begin in one word. */
    if (quanta >= 64)
        return false;
    for (uint64_t bits = others & here->start >> quanta; bits != 0; bits &= bits - 1)
        if (xseg_rack_ends_in(here->start, (uint32_t)__builtin_ctzll(bits), quanta))
            return true;
    /* The last one of the word is another if the highest of all starts is. */
    if (__builtin_expect(others <= (here->start ^ others), 1))
        return false;
    return word != XSEG_CELLS_WORDS - 1 ? xseg_rack_ends_in_next(here, quanta)
                                        : xseg_rack_last_is(sheet, word, quanta);
}

/* A cell that is still marked as cached leaves the rack. */
static inline void xseg_rack_remove_cell(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                         uint32_t quantum, uint32_t quanta)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    if (xseg_rack_has_other(sheet, word, quanta, xseg_cells_bit(quantum)))
        return;
    xseg_rack_clear(rack, sheet, quanta, word);
}

/* Cached cells of a word that may be of a size below 64: those with a start at just that distance behind
 * theirs, and the word's last, which may end in the next word.  Whether it does is a coin's toss, and not asked. */
static inline uint64_t xseg_rack_short(const struct xseg_cells_word *word, uint64_t quanta)
{
    const uint64_t start = word->start;

    return start & word->free & (start >> quanta | xseg_rack_last(word));
}

/* The starts inside a cell of a size below 64 at a bit, moved up: if there are any, it is not of that size. */
static inline uint64_t xseg_rack_inside(const struct xseg_cells_word *word, uint64_t bit,
                                        uint64_t quanta)
{
    return ((word->start >> __builtin_ctzll(bit)) - 1) << (-quanta & 63);
}

/* The bit of the lowest cell of a size below 64 in a word that has one, and whether it may have another. */
static inline uint64_t xseg_rack_pick_short(const struct xseg_cells_word *word, uint64_t quanta,
                                            bool *may_have_other)
{
    uint64_t bits = xseg_rack_short(word, quanta);

    while (__builtin_expect(xseg_rack_inside(word, bits & -bits, quanta) != 0, 0))
        bits &= bits - 1;
    *may_have_other = (bits & (bits - 1)) != 0;
    return bits & -bits;
}

/* The bit of the lowest cell of any size in a word that has one.  Of 64 quanta or more, only the last can be. */
static inline uint64_t xseg_rack_pick(const struct xseg_cells_word *word, uint64_t quanta,
                                      bool *may_have_other)
{
    return quanta < 64 ? xseg_rack_pick_short(word, quanta, may_have_other) : xseg_rack_last(word);
}

/* The smallest size with a cell that is not below one, or 0. */
static inline uint32_t xseg_rack_fit(const struct xseg_rack *rack, uint32_t quanta)
{
    uint32_t word = quanta / 64;

    if (quanta >= XSEG_CELLS_WIDE)
        return 0;
    uint64_t sizes = rack->sizes[word] >> quanta % 64 << quanta % 64;
    while (sizes == 0) {
        if (++word == XSEG_CELLS_WIDE / 64)
            return 0;
        sizes = rack->sizes[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(sizes);
}

/* The smallest size with a cell that is not below one, for sizes below 64; 0 if there is none. */
static inline uint64_t xseg_rack_fit_short(const struct xseg_rack *rack, uint64_t quanta)
{
    if (__builtin_expect(quanta >= 64, 0))
        return 0;
    const uint64_t sizes = rack->sizes[0] >> quanta;
    return __builtin_expect(sizes == 0, 0) ? 0 : quanta + (uint64_t)__builtin_ctzll(sizes);
}

/* The rank of the lowest sheet with a cell of a size that is there. */
static inline uint32_t xseg_rack_first(const struct xseg_rack *rack, uint32_t quanta)
{
    uint32_t rank = 0;

    while (__builtin_expect(rack->tops != 1, 0) && *xseg_rack_top(rack, quanta, rank) == 0)
        rank += 4096;
    rank += (uint32_t)__builtin_ctzll(*xseg_rack_top(rack, quanta, rank)) * 64;
    return rank + (uint32_t)__builtin_ctzll(*xseg_rack_bits(rack, quanta, rank));
}

/* The best fit for a size, or none. */
static inline struct xseg_cell xseg_rack_find(const struct xseg_rack *rack, uint32_t quanta)
{
    const uint32_t size = xseg_rack_fit(rack, quanta);
    bool may_have_other = false;

    if (size == 0)
        return (struct xseg_cell){0};
    const struct xseg_sheet *sheet = rack->sheet[xseg_rack_first(rack, size)];
    const uint32_t word = (uint32_t)__builtin_ctzll(sheet->bin[size]);
    const uint64_t bit = xseg_rack_pick(&sheet->word[word], size, &may_have_other);
    return (struct xseg_cell){
        sheet->extent,
        sheet->number * XSEG_CELLS_SHEET + word * 64 + (uint32_t)__builtin_ctzll(bit), size};
}

#endif
