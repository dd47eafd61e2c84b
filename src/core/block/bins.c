/* SPDX-License-Identifier: MIT */
#include "src/core/block/bins.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/core/block/extent.h"

#define RANKS_AT_FIRST 64u

/* --- Chunk maps. --- */

static uint32_t words_for(uint32_t capacity)
{
    return capacity / 64;
}

static uint32_t tops_for(uint32_t capacity)
{
    return (capacity + 4095) / 4096;
}

static size_t room_bytes(uint32_t capacity)
{
    return capacity * sizeof(struct xseg_chunk_map *) +
           XSEG_CELLS_WIDE * (size_t)words_for(capacity) * sizeof(struct xseg_bins_level);
}

/* The capacity that bins need for more chunk maps. */
static uint32_t capacity_for(const struct xseg_bins *bins, uint32_t count)
{
    uint32_t capacity = bins->capacity == 0 ? RANKS_AT_FIRST : bins->capacity;

    while (capacity < bins->ranks - bins->gone + count)
        capacity *= 2;
    return capacity;
}

bool xseg_bins_make_room(const struct xseg_bins *bins, uint32_t count, void **room)
{
    const uint32_t capacity = capacity_for(bins, count);

    XSEG_ASSERT(count > 0);
    *room = NULL;
    if (capacity == bins->capacity)
        return true;
    *room = calloc(1, room_bytes(capacity));
    return *room != NULL;
}

static uint64_t address_of(const struct xseg_chunk_map *chunk)
{
    return chunk->extent->segment.base +
           ((uint64_t)chunk->number * XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT);
}

static uint64_t position_of(const struct xseg_chunk_map *chunk)
{
    return chunk->extent->position + (uint64_t)chunk->number * XSEG_CELLS_CHUNK;
}

/* Give a chunk map a rank. */
static void set_rank(struct xseg_bins *bins, struct xseg_chunk_map *chunk, uint32_t rank)
{
    XSEG_ASSERT(chunk != NULL && rank < bins->capacity);
    bins->chunk[rank] = chunk;
    chunk->rank = rank;
    chunk->level = &bins->level[rank / 64 * XSEG_CELLS_WIDE];
    chunk->top = &bins->level[rank / 4096 * 64 * XSEG_CELLS_WIDE];
    chunk->rank_bit = xseg_cells_bit(rank);
    chunk->top_bit = xseg_cells_bit(rank / 64);
    chunk->base = address_of(chunk);
}

/* Compute the bits of both levels, which are zero, from the bins of all chunk maps. */
static void compute_bits(struct xseg_bins *bins)
{
    for (uint32_t rank = 0; rank < bins->ranks; rank++) {
        struct xseg_chunk_map *chunk = bins->chunk[rank];

        set_rank(bins, chunk, rank);
        for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++) {
            const uint64_t words = chunk->bin[quanta];

            if (words == 0)
                continue;
            /* The first word of the bin, which has its bit already, sets those of both levels. */
            xseg_bins_set(bins, chunk, quanta, (uint64_t)__builtin_ctzll(words));
            XSEG_ASSERT(chunk->bin[quanta] == words);
        }
    }
}

static void clear_bits(struct xseg_bins *bins)
{
    memset(bins->sizes, 0, sizeof(bins->sizes));
    memset(bins->level, 0, XSEG_CELLS_WIDE * (size_t)bins->words * sizeof(*bins->level));
}

/* Give up the ranks without a chunk map. */
static void close_gaps(struct xseg_bins *bins)
{
    uint32_t ranks = 0;

    for (uint32_t rank = 0; rank < bins->ranks; rank++)
        if (bins->chunk[rank] != NULL)
            bins->chunk[ranks++] = bins->chunk[rank];
    XSEG_ASSERT(bins->ranks - ranks == bins->gone);
    bins->ranks = ranks;
    bins->gone = 0;
}

void *xseg_bins_take_room(struct xseg_bins *bins, uint32_t count, void *room)
{
    struct xseg_chunk_map **before = bins->chunk;

    if (room == NULL)
        return NULL;
    close_gaps(bins);
    const uint32_t capacity = capacity_for(bins, count);
    XSEG_ASSERT(capacity > bins->capacity && capacity % 64 == 0);
    bins->chunk = room;
    if (bins->ranks > 0)
        memcpy(bins->chunk, before, bins->ranks * sizeof(struct xseg_chunk_map *));
    bins->capacity = capacity;
    bins->words = words_for(capacity);
    bins->tops = tops_for(capacity);
    bins->level = (struct xseg_bins_level *)(void *)(bins->chunk + capacity);
    bins->host_bytes = room_bytes(capacity);
    memset(bins->sizes, 0, sizeof(bins->sizes));
    compute_bits(bins);
    return before;
}

void xseg_bins_fini(struct xseg_bins *bins)
{
    free(bins->chunk);
    memset(bins, 0, sizeof(*bins));
}

void xseg_bins_add(struct xseg_bins *bins, struct xseg_chunk_map *chunk)
{
    XSEG_ASSERT(chunk->extent != NULL);
    while (bins->ranks > 0 && bins->chunk[bins->ranks - 1] == NULL) {
        XSEG_ASSERT(bins->gone > 0);
        bins->ranks--;
        bins->gone--;
    }
    if (bins->ranks < bins->capacity &&
        (bins->ranks == 0 || position_of(bins->chunk[bins->ranks - 1]) < position_of(chunk))) {
        set_rank(bins, chunk, bins->ranks++);
        return;
    }
    close_gaps(bins);
    uint32_t place = bins->ranks++;
    XSEG_ASSERT(place < bins->capacity);
    for (; place > 0 && position_of(bins->chunk[place - 1]) > position_of(chunk); place--)
        bins->chunk[place] = bins->chunk[place - 1];
    bins->chunk[place] = chunk;
    clear_bits(bins);
    compute_bits(bins);
}

void xseg_bins_remove(struct xseg_bins *bins, const struct xseg_chunk_map *chunk)
{
    XSEG_ASSERT(chunk->rank < bins->ranks && bins->chunk[chunk->rank] == chunk);
    bins->chunk[chunk->rank] = NULL;
    bins->gone++;
    XSEG_ASSERT(bins->gone <= bins->ranks);
}

/* --- Cells. --- */

uint64_t xseg_bins_starts(const struct xseg_chunk_map *chunk, uint32_t word, uint32_t quanta)
{
    const struct xseg_cells_word *here = &chunk->word[word];
    uint64_t bits = xseg_bins_candidates(here, quanta), found = 0;

    for (; bits != 0; bits &= bits - 1)
        if (xseg_bins_ends_in(here->start, (uint32_t)__builtin_ctzll(bits), quanta))
            found |= bits & -bits;
    return found | (xseg_bins_last_is(chunk, word, quanta) ? xseg_bins_last(here) : 0);
}

bool xseg_bins_has_none(const struct xseg_bins *bins, uint32_t quanta)
{
    uint64_t left = 0;

    for (uint32_t i = 0; i < bins->tops; i++)
        left |= *xseg_bins_top(bins, quanta, i * 4096);
    return left == 0;
}

/* The lowest cell of a size in a chunk map, from a quantum of it on. */
static struct xseg_cell lowest_in(const struct xseg_chunk_map *chunk, uint32_t quanta,
                                  uint32_t from)
{
    uint64_t words = xseg_bitmap_from(chunk->bin[quanta], from / 64);
    struct xseg_cell none = {0};

    XSEG_ASSERT(quanta < XSEG_CELLS_WIDE && from < XSEG_CELLS_CHUNK);
    for (; words != 0; words &= words - 1) {
        const uint32_t word = (uint32_t)__builtin_ctzll(words);
        uint64_t starts = xseg_bins_starts(chunk, word, quanta);

        if (word == from / 64)
            starts = xseg_bitmap_from(starts, from % 64);
        if (starts != 0)
            return (struct xseg_cell){chunk->extent,
                                      chunk->number * XSEG_CELLS_CHUNK + word * 64 +
                                          (uint32_t)__builtin_ctzll(starts),
                                      quanta};
    }
    return none;
}

struct xseg_cell xseg_bins_next(const struct xseg_bins *bins, const struct xseg_cell *cell)
{
    const struct xseg_chunk_map *chunk = xseg_cells_chunk(&cell->extent->cells, cell->quantum);
    uint32_t at = cell->quantum % XSEG_CELLS_CHUNK + 1;
    struct xseg_cell next = {0};

    XSEG_ASSERT(cell->quanta > 0 && cell->quanta < XSEG_CELLS_WIDE);
    if (at < XSEG_CELLS_CHUNK)
        next = lowest_in(chunk, cell->quanta, at);
    for (uint32_t rank = chunk->rank + 1; next.quanta == 0 && rank < bins->ranks;) {
        const uint64_t left = *xseg_bins_bits(bins, cell->quanta, rank) >> rank % 64;

        if (left == 0) {
            rank = (rank / 64 + 1) * 64;
            continue;
        }
        rank += (uint32_t)__builtin_ctzll(left);
        next = lowest_in(bins->chunk[rank], cell->quanta, 0);
    }
    return next.quanta != 0 ? next : xseg_bins_find(bins, cell->quanta + 1);
}

/* --- Audit. --- */

static bool audit_size(const struct xseg_bins *bins, uint32_t quanta,
                       struct xseg_violation *violation)
{
    bool any = false;

    for (uint32_t word = 0; word < bins->words; word++) {
        const uint64_t bits = *xseg_bins_bits(bins, quanta, word * 64);
        const bool top = (*xseg_bins_top(bins, quanta, word * 64) >> word % 64 & 1) != 0;

        XSEG_INVARIANT(violation, "BINS-2", top == (bits != 0), "size %" PRIu32 ", word %" PRIu32,
                       quanta, word);
        any = any || bits != 0;
    }
    XSEG_INVARIANT(violation, "BINS-2",
                   (bins->sizes[quanta / 64] >> quanta % 64 & 1) == (any ? 1u : 0u),
                   "size %" PRIu32, quanta);
    return true;
}

/* Whether the bit of a rank says that it has a size. */
static bool has_size(const struct xseg_bins *bins, uint32_t rank, uint32_t quanta)
{
    return (*xseg_bins_bits(bins, quanta, rank) >> rank % 64 & 1) != 0;
}

/* Audit an empty rank, which has no size. */
static bool audit_gone(const struct xseg_bins *bins, uint32_t rank,
                       struct xseg_violation *violation)
{
    for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++)
        XSEG_INVARIANT(violation, "BINS-2", !has_size(bins, rank, quanta),
                       "size %" PRIu32 " in rank %" PRIu32 ", which is empty", quanta, rank);
    return true;
}

/* Audit the bins of a chunk map against its cells, and the bits of its rank. */
static bool audit_chunk(const struct xseg_bins *bins, const struct xseg_chunk_map *chunk,
                        struct xseg_violation *violation)
{
    const struct xseg_cells *cells = &chunk->extent->cells;
    uint64_t bin[XSEG_CELLS_WIDE] = {0};

    for (uint32_t word = 0; word < XSEG_CELLS_WORDS; word++) {
        uint64_t starts = chunk->word[word].start & chunk->word[word].free;

        for (; starts != 0; starts &= starts - 1) {
            const uint32_t at =
                chunk->number * XSEG_CELLS_CHUNK + word * 64 + (uint32_t)__builtin_ctzll(starts);
            const uint32_t quanta = xseg_cells_next(cells, at + 1) - at;

            if (quanta < XSEG_CELLS_WIDE)
                bin[quanta] |= (uint64_t)1 << word;
        }
    }
    XSEG_INVARIANT(violation, "BINS-3", chunk->bin[0] == 0,
                   "chunk map %" PRIu32 " has cells of size 0", chunk->number);
    for (uint32_t quanta = 1; quanta < XSEG_CELLS_WIDE; quanta++)
        XSEG_INVARIANT(violation, "BINS-2",
                       chunk->bin[quanta] == bin[quanta] &&
                           has_size(bins, chunk->rank, quanta) == (bin[quanta] != 0),
                       "size %" PRIu32 " in chunk map %" PRIu32, quanta, chunk->number);
    return true;
}

bool xseg_bins_audit(const struct xseg_bins *bins, struct xseg_violation *violation)
{
    const struct xseg_chunk_map *before = NULL;

    for (uint32_t rank = 0; rank < bins->ranks; rank++) {
        const struct xseg_chunk_map *chunk = bins->chunk[rank];

        if (chunk == NULL && !audit_gone(bins, rank, violation))
            return false;
        if (chunk == NULL)
            continue;
        XSEG_INVARIANT(violation, "BINS-1",
                       chunk->rank == rank &&
                           (before == NULL || position_of(before) < position_of(chunk)),
                       "rank %" PRIu32, rank);
        before = chunk;
        if (!audit_chunk(bins, chunk, violation))
            return false;
    }
    for (uint32_t quanta = 1; bins->capacity > 0 && quanta < XSEG_CELLS_WIDE; quanta++)
        if (!audit_size(bins, quanta, violation))
            return false;
    return true;
}
