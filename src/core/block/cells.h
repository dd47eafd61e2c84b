/* SPDX-License-Identifier: MIT */
/*
 * Cells: the live and cached blocks of a small extent, which have bits instead of records.
 *
 * Small blocks are many, so the state of each is kept in bits.  A *quantum* is 512 bytes, the unit
 * of sizes.  A *chunk map* describes 2 MiB of addresses, 4096 quanta; of each quantum four bits:
 *
 *     start   a cell, or a block record of the extent's chain, begins here
 *     free    the first or the last quantum of a cached cell
 *     record  a block record begins here, not a cell: a hole, a busy block, or an isolated cell, see
 *             tract.h
 *     open    the first quantum of a cached cell with a hole behind it
 *
 *        [ live ][ cached ][ live ][ cached ...... ][ hole
 *     s   1       1         1       1                 1
 *     f           1      1          1            1
 *     r                                               1
 *     o                             1
 *
 * The end of a cell is the next start, so its size takes a bit search, mostly in one word.  The last
 * quantum of a cached cell is marked, so that a free of the cell behind it sees the cached neighbour in the bit
 * before its own.  A free needs three or four cache lines of a chunk map, however many blocks live: 36 bytes
 * of bookkeeping for a block of 4 KiB, where a record of 96 bytes and its slot took 128.
 *
 * The entry of a cell's first quantum holds its requested size, 32 bits.  A cached cell keeps the requested size as a
 * PyTorch block does: a free keeps it, the remainder of a split inherits it, and coalescing keeps that of the cell
 * that is being freed.
 *
 * A cached cell of XSEG_CELLS_WIDE quanta or more is in the free index, so it needs a node.  The node occupies
 * entries of the cell past its first one, which are unused: the node takes no allocation, and its address follows
 * from the cell's.
 *
 * Invariants; xseg_small_audit() checks them:
 *   CELL-1  a bit of `starts` says whether the word, or chunk map, has a start.
 *   CELL-2  free bits are set at the first and last quantum of cached cells, and nowhere else.
 *   CELL-3  a cached cell is open exactly when a hole is behind it.
 *
 * Locking: ARENA.  Chunk maps are made under the device memory lock and seen under ARENA.
 */
#ifndef XSEG_CORE_CELLS_H
#define XSEG_CORE_CELLS_H

#include "src/base/bitmap.h"
#include "src/core/block/block.h"

#define XSEG_CELLS_SHIFT 9u
#define XSEG_CELLS_CHUNK 4096u /* quanta in a chunk map */
#define XSEG_CELLS_WORDS 64u
#define XSEG_CELLS_WIDE  256u /* quanta: cached cells from here on are in the free index */

/* The longest extent: what the bitmap over the chunk maps can hold. */
#define XSEG_CELLS_MAX ((uint64_t)XSEG_BITMAP_MAX * XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT)

_Static_assert(XSEG_CELLS_WORDS * 64 == XSEG_CELLS_CHUNK && XSEG_CELLS_CHUNK % XSEG_CELLS_WIDE == 0,
               "words tile a chunk map");

struct xseg_cells_word {
    uint64_t start, free, record, open;
};

/* A requested size.  Nodes occupy such entries, so they may alias. */
typedef uint32_t __attribute__((may_alias)) xseg_cells_size;

struct xseg_bins_level;

struct xseg_chunk_map {
    struct xseg_extent *extent; /* of a spare chunk map, the next one */
    uint64_t starts;            /* words that have a start */
    uint32_t number;            /* in its extent */
    uint32_t rank;              /* in its arena's bins */
    /* The place of the rank in both levels of the bins, and its bits there: computed beforehand, since that saves
     * 20 instructions wherever a cell comes or goes. */
    struct xseg_bins_level *level, *top;
    uint64_t rank_bit, top_bit;
    uint64_t base; /* the address of its first quantum */
    union {
        /* Two words lie in a cache line.  The word behind the last has no start: no size is 0, so bin[0] is 0. */
        _Alignas(64) struct xseg_cells_word word[XSEG_CELLS_WORDS + 1];
        struct {
            struct xseg_cells_word own_word[XSEG_CELLS_WORDS];
            /* By size: words in which a cached cell of that size begins; bins.h. */
            uint64_t bin[XSEG_CELLS_WIDE];
        };
    };
    xseg_cells_size requested[XSEG_CELLS_CHUNK];
};

_Static_assert(sizeof(struct xseg_cells_word) == 32, "two words lie in a cache line");
_Static_assert(offsetof(struct xseg_chunk_map, bin) ==
                   offsetof(struct xseg_chunk_map, word[XSEG_CELLS_WORDS]),
               "bin[0] is the start of the word behind the last");
_Static_assert(offsetof(struct xseg_chunk_map, requested) % _Alignof(struct xseg_block) == 0 &&
                   _Alignof(struct xseg_block) <= 2 * sizeof(xseg_cells_size),
               "a node is aligned at every second entry");

/* The cells of an extent. */
struct xseg_cells {
    struct xseg_chunk_map **chunk; /* [chunks], each NULL until memory is mapped there */
    uint32_t chunks;
    uint32_t quanta;         /* of the extent */
    struct xseg_bitmap used; /* chunk maps that have a start */
    size_t host_bytes;
    void *memory; /* of the tables */
};

/* Make the tables of an extent without chunk maps.  Returns false without host memory, or for more than
 * XSEG_CELLS_MAX bytes.
 * bytes: of the extent, a multiple of 2 MiB */
bool xseg_cells_init(struct xseg_cells *cells, uint64_t bytes);
/* Free the tables; the chunk maps belong to the arena, see chunk_maps.h. */
void xseg_cells_fini(struct xseg_cells *cells);

/* The chunk map of a quantum; NULL if no memory was mapped there. */
static inline struct xseg_chunk_map *xseg_cells_chunk(const struct xseg_cells *cells,
                                                      uint32_t quantum)
{
    XSEG_ASSERT(quantum < cells->quanta);
    return cells->chunk[quantum / XSEG_CELLS_CHUNK];
}

/* The word of a quantum that has a chunk map. */
static inline struct xseg_cells_word *xseg_cells_word(const struct xseg_cells *cells,
                                                      uint32_t quantum)
{
    XSEG_ASSERT(xseg_cells_chunk(cells, quantum) != NULL);
    return &xseg_cells_chunk(cells, quantum)->word[quantum / 64 % XSEG_CELLS_WORDS];
}

/* The bit of a quantum in its word. */
static inline uint64_t xseg_cells_bit(uint32_t quantum)
{
    return (uint64_t)1 << quantum % 64;
}

/* --- Starts. --- */

/* xseg_cells_next() and xseg_cells_last(), where the word of the quantum does not have the answer. */
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

/* The last start at a quantum or before it, which must exist. */
static inline uint32_t xseg_cells_last(const struct xseg_cells *cells, uint32_t quantum)
{
    const uint64_t bits = xseg_cells_word(cells, quantum)->start << (63 - quantum % 64);

    if (__builtin_expect(bits != 0, 1))
        return quantum - (uint32_t)__builtin_clzll(bits);
    return xseg_cells_last_far(cells, quantum);
}

/* The first start behind a quantum within a chunk map; XSEG_CELLS_CHUNK if there is none.
 * at: counted from the chunk map's first quantum, as is the result */
static inline uint32_t xseg_cells_next_in(const struct xseg_chunk_map *chunk, uint32_t at)
{
    XSEG_ASSERT(at < XSEG_CELLS_CHUNK);
    const uint64_t bits = chunk->word[at / 64].start >> at % 64 >> 1;

    if (bits != 0)
        return at + 1 + (uint32_t)__builtin_ctzll(bits);
    const uint64_t words = chunk->starts >> at / 64 >> 1;
    if (words == 0)
        return XSEG_CELLS_CHUNK;
    const uint32_t word = at / 64 + 1 + (uint32_t)__builtin_ctzll(words);
    XSEG_ASSERT(chunk->word[word].start != 0);
    return word * 64 + (uint32_t)__builtin_ctzll(chunk->word[word].start);
}

/* The last start before a quantum within a chunk map, in the same way. */
static inline uint32_t xseg_cells_last_in(const struct xseg_chunk_map *chunk, uint32_t at)
{
    XSEG_ASSERT(at < XSEG_CELLS_CHUNK);
    const uint64_t bits = chunk->word[at / 64].start & (xseg_cells_bit(at) - 1);

    if (bits != 0)
        return at / 64 * 64 + 63 - (uint32_t)__builtin_clzll(bits);
    const uint64_t words = chunk->starts & (((uint64_t)1 << at / 64) - 1);
    if (words == 0)
        return XSEG_CELLS_CHUNK;
    const uint32_t word = 63 - (uint32_t)__builtin_clzll(words);
    XSEG_ASSERT(chunk->word[word].start != 0);
    return word * 64 + 63 - (uint32_t)__builtin_clzll(chunk->word[word].start);
}

/* Set the start bit of a quantum that has a chunk map. */
static inline void xseg_cells_add_start(struct xseg_cells *cells, uint32_t quantum)
{
    struct xseg_chunk_map *chunk = xseg_cells_chunk(cells, quantum);
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    XSEG_ASSERT(chunk != NULL && chunk->number == quantum / XSEG_CELLS_CHUNK);
    if (__builtin_expect(chunk->starts == 0, 0))
        xseg_bitmap_set(&cells->used, quantum / XSEG_CELLS_CHUNK);
    chunk->starts |= (uint64_t)1 << word;
    chunk->word[word].start |= xseg_cells_bit(quantum);
}

/* Clear the start bit of a quantum, which is set. */
static inline void xseg_cells_remove_start_in(struct xseg_cells *cells,
                                              struct xseg_chunk_map *chunk, uint32_t quantum)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    XSEG_ASSERT(chunk->number == quantum / XSEG_CELLS_CHUNK);
    XSEG_ASSERT((chunk->word[word].start & xseg_cells_bit(quantum)) != 0);
    chunk->word[word].start &= ~xseg_cells_bit(quantum);
    if (__builtin_expect(chunk->word[word].start == 0, 0)) {
        chunk->starts &= ~((uint64_t)1 << word);
        if (chunk->starts == 0)
            xseg_bitmap_clear(&cells->used, quantum / XSEG_CELLS_CHUNK);
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

/* The requested size of a live or cached cell. */
static inline uint64_t xseg_cells_requested(const struct xseg_cells *cells, uint32_t quantum)
{
    return xseg_cells_chunk(cells, quantum)->requested[quantum % XSEG_CELLS_CHUNK];
}

/* Set the requested size of a cell; a size above 4 GiB, which no request of a small arena has, becomes 4 GiB - 1. */
static inline void xseg_cells_set_requested(struct xseg_cells *cells, uint32_t quantum,
                                            uint64_t requested)
{
    xseg_cells_chunk(cells, quantum)->requested[quantum % XSEG_CELLS_CHUNK] =
        (xseg_cells_size)xseg_min(requested, UINT32_MAX);
}

/* The node of a wide cached cell: past the first entry of the cell, or at the start of the next chunk map if the
 * node does not fit into the first one. */
static inline struct xseg_block *xseg_cells_node(const struct xseg_cells *cells, uint32_t quantum)
{
    const uint32_t at = (quantum + 2) & ~1u;

    if (__builtin_expect(at % XSEG_CELLS_CHUNK +
                                     sizeof(struct xseg_block) / sizeof(xseg_cells_size) <=
                                 XSEG_CELLS_CHUNK &&
                             at / XSEG_CELLS_CHUNK == quantum / XSEG_CELLS_CHUNK,
                         1))
        return (struct xseg_block *)(void *)&xseg_cells_chunk(cells, at)
            ->requested[at % XSEG_CELLS_CHUNK];
    XSEG_ASSERT(quantum / XSEG_CELLS_CHUNK + 1 < cells->chunks);
    return (struct xseg_block *)(void *)cells->chunk[quantum / XSEG_CELLS_CHUNK + 1]->requested;
}

#endif
