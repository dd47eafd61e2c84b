/* SPDX-License-Identifier: MIT */
#include "src/core/block/cells.h"

#include <string.h>

#include "src/base/host_memory.h"

_Static_assert(sizeof(struct xseg_block) <= (XSEG_CELLS_WIDE / 2 - 2) * sizeof(xseg_cells_size),
               "a node fits into the entries of half a wide cell");

bool xseg_cells_init(struct xseg_cells *cells, uint64_t bytes)
{
    XSEG_ASSERT(bytes > 0 && (bytes >> XSEG_CELLS_SHIFT) % XSEG_CELLS_CHUNK == 0);
    memset(cells, 0, sizeof(*cells));
    if (bytes > XSEG_CELLS_MAX)
        return false;
    cells->quanta = (uint32_t)(bytes >> XSEG_CELLS_SHIFT);
    cells->chunks = (cells->quanta + XSEG_CELLS_CHUNK - 1) / XSEG_CELLS_CHUNK;
    const size_t words = xseg_bitmap_words(cells->chunks);
    cells->host_bytes = cells->chunks * sizeof(*cells->chunk) + words * sizeof(uint64_t);
    char *memory = xseg_demand_zero_alloc(cells->host_bytes);
    if (memory == NULL)
        return false;
    cells->memory = memory;
    cells->chunk = (struct xseg_chunk_map **)(void *)memory;
    xseg_bitmap_init(&cells->used,
                     (uint64_t *)(void *)(memory + cells->chunks * sizeof(*cells->chunk)),
                     cells->chunks);
    return true;
}

void xseg_cells_fini(struct xseg_cells *cells)
{
    xseg_demand_zero_free(cells->memory, cells->host_bytes);
    memset(cells, 0, sizeof(*cells));
}

/* --- Starts. --- */

uint32_t xseg_cells_next_far(const struct xseg_cells *cells, uint32_t quantum)
{
    uint32_t number = quantum / XSEG_CELLS_CHUNK;
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;
    struct xseg_chunk_map *chunk = number < cells->chunks ? cells->chunk[number] : NULL;
    uint64_t words = 0;

    if (chunk != NULL) {
        const uint64_t bits = xseg_bitmap_from(chunk->word[word].start, quantum % 64);

        if (bits != 0)
            return quantum / 64 * 64 + (uint32_t)__builtin_ctzll(bits);
        words = xseg_bitmap_from(chunk->starts, word + 1);
    }
    if (words == 0) {
        number = xseg_bitmap_next(&cells->used, number + 1);
        if (number == XSEG_BITMAP_NONE)
            return cells->quanta;
        chunk = cells->chunk[number];
        words = chunk->starts;
    }
    const uint32_t first = (uint32_t)__builtin_ctzll(words);
    XSEG_ASSERT(chunk->number == number && chunk->word[first].start != 0);
    return number * XSEG_CELLS_CHUNK + first * 64 +
           (uint32_t)__builtin_ctzll(chunk->word[first].start);
}

uint32_t xseg_cells_last_far(const struct xseg_cells *cells, uint32_t quantum)
{
    uint32_t number = quantum / XSEG_CELLS_CHUNK;
    struct xseg_chunk_map *chunk = cells->chunk[number];
    XSEG_ASSERT(number < cells->chunks && chunk != NULL);
    uint64_t words = xseg_bitmap_below(chunk->starts, quantum / 64 % XSEG_CELLS_WORDS);

    if (words == 0) {
        number = xseg_bitmap_prev(&cells->used, number);
        XSEG_ASSERT(number != XSEG_BITMAP_NONE);
        chunk = cells->chunk[number];
        words = chunk->starts;
    }
    const uint32_t last = 63 - (uint32_t)__builtin_clzll(words);
    XSEG_ASSERT(chunk->word[last].start != 0);
    return number * XSEG_CELLS_CHUNK + last * 64 + 63 -
           (uint32_t)__builtin_clzll(chunk->word[last].start);
}
