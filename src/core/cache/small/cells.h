/* SPDX-License-Identifier: MIT */
/*
 * Cells: the live and cached blocks of a small extent, without a record each.
 *
 * Small blocks are many, so what is known of one is kept in bits.  A *quantum* is 512 bytes, the unit
 * of sizes.  A *chunk map* describes 2 MiB of addresses, 4096 quanta; of each quantum four bits:
 *
 *     start   a cell, or a block record of the extent's chain, begins here
 *     free    the first or the last quantum of a cached cell
 *     record  what begins here is a block record, not a cell: a hole, a busy block, or a cell that
 *             was isolated, see tract.h
 *     open    the first quantum of a cached cell with a hole behind it
 *
 *        [ live ][ cached ][ live ][ cached ...... ][ hole
 *     s   1       1         1       1                 1
 *     f           1      1          1            1
 *     r                                               1
 *     o                             1
 *
 * The end of a cell is the next start, so its size takes a bit search, mostly in one word.  The last
 * quantum of a cached cell is marked so that whoever frees the cell behind it sees that in the bit
 * before its own.  A free needs three or four cache lines of a chunk map, however many blocks live: 18 bytes
 * of bookkeeping for a block of 4 KiB, where a record of 96 bytes and its slot took 128.
 *
 * *Slack* is what a live cell has beyond the request, 16 bits; a cell with more has the size of the
 * request in the entries behind its first one, which it is long enough for.
 *
 * A cached cell of XSEG_CELLS_WIDE quanta or more is in the free index, so it needs a node.  That lies in
 * the slack entries of the cell itself, which nobody needs while it is cached: no allocation, and its
 * place follows from the cell's.
 *
 * Invariants; xseg_small_audit() checks them:
 *   CELL-1  a bit of `starts`, and of `poisoned`, says whether the word, or chunk map, has a start.
 *   CELL-2  free bits are set at the first and last quantum of cached cells, and nowhere else.
 *   CELL-3  a cached cell is open exactly when a hole is behind it.
 *
 * Locking: ARENA.  Chunk maps are made under GROWTH and seen under ARENA.
 */
#ifndef XSEG_CORE_CELLS_H
#define XSEG_CORE_CELLS_H

#include "src/base/bits.h"
#include "src/core/cache/block.h"

#define XSEG_CELLS_SHIFT 9u
#define XSEG_CELLS_CHUNK 4096u /* quanta in a chunk map */
#define XSEG_CELLS_WORDS 64u
#define XSEG_CELLS_WIDE  256u /* quanta: cached cells from here on are in the free index */

/* The longest extent: what the bitmap over the chunk maps can hold. */
#define XSEG_CELLS_MAX ((uint64_t)XSEG_BITS_MAX * XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT)

/* What says of a live cell's slack that the request's size is in the entries behind. */
#define XSEG_CELLS_MUCH_SLACK UINT16_MAX

struct xseg_cells_word {
    uint64_t start, free, record, open;
};

/* Nodes lie in slack entries, so these may alias. */
typedef uint16_t __attribute__((may_alias)) xseg_cells_slack;

struct xseg_bins_level;

struct xseg_chunk_map {
    struct xseg_extent *extent; /* of a spare one, the next */
    uint64_t starts;            /* words that have a start */
    uint32_t number;            /* in its extent */
    uint32_t rank;              /* in its arena's bins */
    /* Where the bins has its rank's bits, and that of their word, of each size; and those bits.  Worked
     * out beforehand, that is 20 instructions less wherever a cell comes or goes. */
    struct xseg_bins_level *level, *top;
    uint64_t rank_bit, top_bit;
    uint64_t base; /* the address of its first quantum */
    union {
        /* Two in a cache line.  One is behind the last, with no start: no size is 0, so bin[0] is 0. */
        _Alignas(64) struct xseg_cells_word word[XSEG_CELLS_WORDS + 1];
        struct {
            struct xseg_cells_word own_word[XSEG_CELLS_WORDS];
            /* By size: words in which a cached cell of it begins; bins.h. */
            uint64_t bin[XSEG_CELLS_WIDE];
        };
    };
    xseg_cells_slack slack[XSEG_CELLS_CHUNK];
    uint64_t poisoned[XSEG_CELLS_WORDS]; /* quanta that hold the pattern of poison.h */
};

/* Of an extent. */
struct xseg_cells {
    struct xseg_chunk_map **chunk; /* [chunk maps], NULL until memory is mapped there */
    uint32_t chunks;
    uint32_t quanta;       /* of the extent */
    struct xseg_bits used; /* chunk maps that have a start */
    size_t host_bytes;
    void *memory; /* behind the tables */
};

/* Returns false without host memory, or for more than XSEG_CELLS_MAX bytes.  A multiple of 2 MiB. */
bool xseg_cells_init(struct xseg_cells *cells, uint64_t bytes);
/* The chunk maps are the arena's, see chunk_maps.h. */
void xseg_cells_fini(struct xseg_cells *cells);

/* The chunk map of a quantum. */
static inline struct xseg_chunk_map *xseg_cells_chunk(const struct xseg_cells *cells,
                                                      uint32_t quantum)
{
    return cells->chunk[quantum / XSEG_CELLS_CHUNK];
}

static inline struct xseg_cells_word *xseg_cells_word(const struct xseg_cells *cells,
                                                      uint32_t quantum)
{
    return &xseg_cells_chunk(cells, quantum)->word[quantum / 64 % XSEG_CELLS_WORDS];
}

static inline uint64_t xseg_cells_bit(uint32_t quantum)
{
    return (uint64_t)1 << quantum % 64;
}

/* --- Starts. --- */

uint32_t xseg_cells_next_far(const struct xseg_cells *cells, uint32_t quantum);
uint32_t xseg_cells_last_far(const struct xseg_cells *cells, uint32_t quantum);

/* The first start at a quantum or behind it; the end of the extent if there is none. */
static inline uint32_t xseg_cells_next(const struct xseg_cells *cells, uint32_t quantum)
{
    if (__builtin_expect(quantum % 64 != 0, 1)) {
        const uint64_t bits = xseg_cells_word(cells, quantum)->start >> quantum % 64;

        if (__builtin_expect(bits != 0, 1))
            return quantum + (uint32_t)__builtin_ctzll(bits);
    }
    return xseg_cells_next_far(cells, quantum);
}

/* The last start at a quantum or before it; there is one. */
static inline uint32_t xseg_cells_last(const struct xseg_cells *cells, uint32_t quantum)
{
    const uint64_t bits = xseg_cells_word(cells, quantum)->start << (63 - quantum % 64);

    if (__builtin_expect(bits != 0, 1))
        return quantum - (uint32_t)__builtin_clzll(bits);
    return xseg_cells_last_far(cells, quantum);
}

/* The same within a chunk map, whose quanta are counted from its first: the first start behind one, the last
 * one before; XSEG_CELLS_CHUNK if the chunk map has none. */
static inline uint32_t xseg_cells_next_in(const struct xseg_chunk_map *chunk, uint32_t at)
{
    const uint64_t bits = chunk->word[at / 64].start >> at % 64 >> 1;

    if (bits != 0)
        return at + 1 + (uint32_t)__builtin_ctzll(bits);
    const uint64_t words = chunk->starts >> at / 64 >> 1;
    if (words == 0)
        return XSEG_CELLS_CHUNK;
    const uint32_t word = at / 64 + 1 + (uint32_t)__builtin_ctzll(words);
    return word * 64 + (uint32_t)__builtin_ctzll(chunk->word[word].start);
}

static inline uint32_t xseg_cells_last_in(const struct xseg_chunk_map *chunk, uint32_t at)
{
    const uint64_t bits = chunk->word[at / 64].start & (xseg_cells_bit(at) - 1);

    if (bits != 0)
        return at / 64 * 64 + 63 - (uint32_t)__builtin_clzll(bits);
    const uint64_t words = chunk->starts & (((uint64_t)1 << at / 64) - 1);
    if (words == 0)
        return XSEG_CELLS_CHUNK;
    const uint32_t word = 63 - (uint32_t)__builtin_clzll(words);
    return word * 64 + 63 - (uint32_t)__builtin_clzll(chunk->word[word].start);
}

static inline void xseg_cells_add_start(struct xseg_cells *cells, uint32_t quantum)
{
    struct xseg_chunk_map *chunk = xseg_cells_chunk(cells, quantum);
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    if (__builtin_expect(chunk->starts == 0, 0))
        xseg_bits_add(&cells->used, quantum / XSEG_CELLS_CHUNK);
    chunk->starts |= (uint64_t)1 << word;
    chunk->word[word].start |= xseg_cells_bit(quantum);
}

/* A start of a chunk map goes. */
static inline void xseg_cells_remove_start_in(struct xseg_cells *cells,
                                              struct xseg_chunk_map *chunk, uint32_t quantum)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    chunk->word[word].start &= ~xseg_cells_bit(quantum);
    if (__builtin_expect(chunk->word[word].start == 0, 0)) {
        chunk->starts &= ~((uint64_t)1 << word);
        if (chunk->starts == 0)
            xseg_bits_remove(&cells->used, quantum / XSEG_CELLS_CHUNK);
    }
}

static inline void xseg_cells_remove_start(struct xseg_cells *cells, uint32_t quantum)
{
    xseg_cells_remove_start_in(cells, xseg_cells_chunk(cells, quantum), quantum);
}

/* --- Cells. --- */

/* Whether a cached cell begins at a quantum. */
static inline bool xseg_cells_is_free(const struct xseg_cells_word *word, uint32_t quantum)
{
    return (word->start & word->free & xseg_cells_bit(quantum)) != 0;
}

/* Whether a live cell begins at a quantum. */
static inline bool xseg_cells_is_live(const struct xseg_cells_word *word, uint32_t quantum)
{
    return ((word->start & ~(word->free | word->record)) >> quantum % 64 & 1) != 0;
}

uint64_t xseg_cells_requested_far(const struct xseg_cells *cells, uint32_t quantum);
void xseg_cells_note_far(struct xseg_cells *cells, uint32_t quantum, uint64_t requested);

/* What was requested of a live cell of so many bytes. */
static inline uint64_t xseg_cells_requested(const struct xseg_cells *cells, uint32_t quantum,
                                            uint64_t bytes)
{
    const uint16_t slack = xseg_cells_chunk(cells, quantum)->slack[quantum % XSEG_CELLS_CHUNK];

    return __builtin_expect(slack != XSEG_CELLS_MUCH_SLACK, 1)
               ? bytes - slack
               : xseg_cells_requested_far(cells, quantum);
}

static inline void xseg_cells_note_requested(struct xseg_cells *cells, uint32_t quantum,
                                             uint64_t bytes, uint64_t requested)
{
    if (__builtin_expect(bytes - requested < XSEG_CELLS_MUCH_SLACK, 1))
        xseg_cells_chunk(cells, quantum)->slack[quantum % XSEG_CELLS_CHUNK] =
            (uint16_t)(bytes - requested);
    else
        xseg_cells_note_far(cells, quantum, requested);
}

/* Where the node of a wide cached cell lies: in whichever of its chunk maps has the room. */
static inline struct xseg_block *xseg_cells_node(const struct xseg_cells *cells, uint32_t quantum)
{
    const uint32_t at = (quantum + 3) & ~3u;

    if (__builtin_expect(at % XSEG_CELLS_CHUNK + sizeof(struct xseg_block) / 2 <=
                                 XSEG_CELLS_CHUNK &&
                             at / XSEG_CELLS_CHUNK == quantum / XSEG_CELLS_CHUNK,
                         1))
        return (struct xseg_block *)(void *)&xseg_cells_chunk(cells, at)
            ->slack[at % XSEG_CELLS_CHUNK];
    return (struct xseg_block *)(void *)cells->chunk[quantum / XSEG_CELLS_CHUNK + 1]->slack;
}

/* --- The pattern of poison.h. --- */

/* Whether all quanta of a range hold it; say that they do, or not. */
bool xseg_cells_are_poisoned(const struct xseg_cells *cells, uint32_t quantum, uint32_t count);
void xseg_cells_set_poisoned(struct xseg_cells *cells, uint32_t quantum, uint32_t count,
                             bool poisoned);

#endif
