/* SPDX-License-Identifier: MIT */
#include "src/core/small/tract.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/core/arena/arena.h"
#include "src/core/small/cell.h"
#include "src/core/small/small_free.h"

/* --- Marks. --- */

/* Whether a quantum has a chunk map.  Where memory was never mapped there is none, and marks are not needed. */
static bool has_chunk(const struct xseg_extent *extent, uint32_t quantum)
{
    return quantum < extent->cells.quanta && xseg_cells_chunk(&extent->cells, quantum) != NULL;
}

void xseg_tract_mark(const struct xseg_block *block)
{
    struct xseg_cells *cells = &block->extent->cells;
    const uint32_t quantum = xseg_cell_quantum_of(block->extent, block->base);

    XSEG_ASSERT(block->state != XSEG_BLOCK_TRACT);
    if (!has_chunk(block->extent, quantum))
        return;
    xseg_cells_add_start(cells, quantum);
    xseg_cells_word(cells, quantum)->record |= xseg_cells_bit(quantum);
}

void xseg_tract_unmark(const struct xseg_block *block)
{
    struct xseg_cells *cells = &block->extent->cells;
    const uint32_t quantum = xseg_cell_quantum_of(block->extent, block->base);

    if (!has_chunk(block->extent, quantum))
        return;
    XSEG_ASSERT((xseg_cells_word(cells, quantum)->record & xseg_cells_bit(quantum)) != 0);
    xseg_cells_remove_start(cells, quantum);
    xseg_cells_word(cells, quantum)->record &= ~xseg_cells_bit(quantum);
}

void xseg_tract_note_hole(const struct xseg_block *block, bool is_unmapped)
{
    XSEG_ASSERT(!is_unmapped || block->state == XSEG_BLOCK_UNMAPPED);
    const struct xseg_cell before = xseg_small_cached_before(block->extent, block->base);

    if (before.quanta == 0)
        return;
    struct xseg_cells_word *word = xseg_cells_word(&before.extent->cells, before.quantum);
    const uint64_t bit = xseg_cells_bit(before.quantum);
    word->open = is_unmapped ? word->open | bit : word->open & ~bit;
}

/* --- Chunk maps. --- */

/* Mark the records that begin in a new chunk map, where no tract begins. */
static void mark_records(struct xseg_extent *extent, uint32_t number)
{
    const uint64_t begin =
        extent->segment.base + ((uint64_t)number * XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT);
    const uint64_t end = begin + ((uint64_t)XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT);
    const struct xseg_block *block = extent->first == NULL ? NULL : xseg_tract_over(extent, begin);

    for (; block != NULL && block->base < end; block = block->next)
        if (block->base >= begin)
            xseg_tract_mark(block);
}

/* How many chunk maps of a range are missing. */
static uint32_t count_missing(const struct xseg_cells *cells, uint32_t first, uint32_t last)
{
    uint32_t count = 0;

    for (uint32_t number = first; number <= last; number++)
        count += cells->chunk[number] == NULL;
    return count;
}

/* Take all chunk maps that a range misses; false, and none is taken, without host memory. */
static bool make_chunks(struct xseg_extent *extent, uint32_t first, uint32_t last,
                        struct xseg_chunk_map **made)
{
    struct xseg_chunk_maps *chunks = &((struct xseg_arena *)extent->arena)->small.chunks;
    uint32_t count = 0;

    for (uint32_t number = first; number <= last; number++) {
        if (extent->cells.chunk[number] != NULL)
            continue;
        made[count] = xseg_chunk_maps_take(chunks, extent, number);
        if (made[count] == NULL) {
            while (count > 0)
                xseg_chunk_maps_put(chunks, made[--count]);
            return false;
        }
        count++;
    }
    return true;
}

/* Keep SMALL-3. */
static void note_whether_plain(struct xseg_arena *arena)
{
    arena->small.is_plain = arena->small.bins.tops == 1;
}

bool xseg_tract_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_cells *cells = &extent->cells;
    const uint64_t chunk_bytes = (uint64_t)XSEG_CELLS_CHUNK << XSEG_CELLS_SHIFT;
    const uint32_t first = (uint32_t)(begin / chunk_bytes);
    const uint32_t last = (uint32_t)((end < extent->segment.bytes ? end : end - 1) / chunk_bytes);
    const uint32_t count = count_missing(cells, first, last);
    struct xseg_chunk_map **made = NULL;
    void *room = NULL;

    XSEG_ASSERT(begin < end && first <= last && last < cells->chunks);
    if (count == 0)
        return true;
    made = calloc(count, sizeof(struct xseg_chunk_map *));
    if (made == NULL || !xseg_bins_make_room(&arena->small.bins, count, &room) ||
        !make_chunks(extent, first, last, made)) {
        free(room);
        free(made);
        return false;
    }
    xseg_arena_lock(arena);
    void *before = xseg_bins_take_room(&arena->small.bins, count, room);
    for (uint32_t i = 0; i < count; i++) {
        XSEG_ASSERT(cells->chunk[made[i]->number] == NULL);
        cells->chunk[made[i]->number] = made[i];
        xseg_bins_add(&arena->small.bins, made[i]);
        mark_records(extent, made[i]->number);
    }
    note_whether_plain(arena);
    xseg_arena_unlock(arena);
    free(before);
    free(made);
    return true;
}

void xseg_tract_uncover(struct xseg_arena *arena, const struct xseg_extent *extent)
{
    for (uint32_t number = 0; number < extent->cells.chunks; number++) {
        struct xseg_chunk_map *chunk = extent->cells.chunk[number];

        if (chunk == NULL)
            continue;
        XSEG_ASSERT(chunk->extent == extent && chunk->number == number);
        xseg_bins_remove(&arena->small.bins, chunk);
        xseg_chunk_maps_put(&arena->small.chunks, chunk);
    }
}

void xseg_tract_reorder(const struct xseg_extent *extent)
{
    struct xseg_bins *bins = &((struct xseg_arena *)extent->arena)->small.bins;

    for (uint32_t number = 0; number < extent->cells.chunks; number++)
        if (extent->cells.chunk[number] != NULL)
            xseg_bins_remove(bins, extent->cells.chunk[number]);
    for (uint32_t number = 0; number < extent->cells.chunks; number++)
        if (extent->cells.chunk[number] != NULL)
            xseg_bins_add(bins, extent->cells.chunk[number]);
}

/* --- The chain. --- */

struct xseg_block *xseg_tract_over(const struct xseg_extent *extent, uint64_t address)
{
    struct xseg_block *block = xseg_tree_last(extent->records, address);

    if (block == NULL)
        block = extent->first;
    while (xseg_block_end(block) <= address)
        block = block->next;
    XSEG_ASSERT(block->extent == extent && block->base <= address);
    return block;
}

/* Put a record in the chain between two others, either of which may be missing. */
static void link_between(struct xseg_block *prev, struct xseg_block *block, struct xseg_block *next)
{
    XSEG_ASSERT(prev == NULL || prev->next == next);
    XSEG_ASSERT(next == NULL || next->prev == prev);
    block->prev = prev;
    block->next = next;
    if (prev != NULL)
        prev->next = block;
    else
        block->extent->first = block;
    if (next != NULL)
        next->prev = block;
}

static void unlink_block(struct xseg_block *block)
{
    XSEG_ASSERT(block->prev == NULL || block->prev->next == block);
    XSEG_ASSERT(block->next == NULL || block->next->prev == block);
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        block->extent->first = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
}

static struct xseg_block *take_record(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint8_t state, uint64_t base, uint64_t bytes)
{
    struct xseg_block *block = xseg_slab_alloc(&arena->blocks);

    XSEG_ASSERT(bytes > 0 && extent->arena == arena);
    block->state = state;
    block->mapped = true;
    block->base = base;
    block->bytes = bytes;
    block->extent = extent;
    return block;
}

/* Cut a range out of a tract: a new record in some state. */
static struct xseg_block *cut_out(struct xseg_arena *arena, struct xseg_extent *extent,
                                  uint8_t state, uint64_t base, uint64_t bytes)
{
    struct xseg_block *tract = xseg_tract_over(extent, base);
    struct xseg_block *block = take_record(arena, extent, state, base, bytes);
    const uint64_t end = base + bytes, tract_end = xseg_block_end(tract);
    struct xseg_block *behind = tract->next;

    XSEG_ASSERT(tract->state == XSEG_BLOCK_TRACT && end <= tract_end);
    XSEG_ASSERT(arena->blocks.free_count > 0 || end == tract_end);
    link_between(tract, block, behind);
    if (end < tract_end) {
        struct xseg_block *rest =
            take_record(arena, extent, XSEG_BLOCK_TRACT, end, tract_end - end);

        link_between(block, rest, behind);
        xseg_tree_insert(&extent->records, rest);
    }
    tract->bytes = base - tract->base;
    if (tract->bytes == 0) {
        xseg_tree_remove(&extent->records, tract);
        unlink_block(tract);
        xseg_slab_free(&arena->blocks, tract);
    }
    xseg_cells_word(&extent->cells, xseg_cell_quantum_of(extent, base))->record |=
        xseg_cells_bit(xseg_cell_quantum_of(extent, base));
    return block;
}

struct xseg_block *xseg_tract_claim(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_extent *extent = cell->extent;
    const uint64_t base = extent->segment.base + ((uint64_t)cell->quantum << XSEG_CELLS_SHIFT);

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && cell->quanta > 0);
    xseg_small_take_off(arena, cell);
    struct xseg_block *block = cut_out(arena, extent, XSEG_BLOCK_CLAIMED, base,
                                       (uint64_t)cell->quanta << XSEG_CELLS_SHIFT);
    block->requested = xseg_cells_requested(&extent->cells, cell->quantum);
    return block;
}

struct xseg_block *xseg_tract_isolate(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint32_t quantum)
{
    const uint64_t base = extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
    const uint64_t bytes = (uint64_t)(xseg_cells_next(&extent->cells, quantum + 1) - quantum)
                           << XSEG_CELLS_SHIFT;
    XSEG_ASSERT(xseg_cells_is_live(xseg_cells_word(&extent->cells, quantum), quantum));
    struct xseg_block *block = cut_out(arena, extent, XSEG_BLOCK_ALLOCATED, base, bytes);

    block->requested = xseg_cells_requested(&extent->cells, quantum);
    xseg_tree_insert(&extent->records, block);
    return block;
}

/* Make a block a tract, and join it with the tracts beside it; its record may be put back. */
static void join_tracts(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_extent *extent = block->extent;
    struct xseg_block *next = block->next, *prev = block->prev;
    const uint32_t quantum = xseg_cell_quantum_of(extent, block->base);

    XSEG_ASSERT(block->mapped && block->flags == 0 && block->state != XSEG_BLOCK_TRACT);
    XSEG_ASSERT((xseg_cells_word(&extent->cells, quantum)->record & xseg_cells_bit(quantum)) != 0);
    xseg_cells_word(&extent->cells, quantum)->record &= ~xseg_cells_bit(quantum);
    block->state = XSEG_BLOCK_TRACT;
    block->requested = 0;
    if (next != NULL && next->state == XSEG_BLOCK_TRACT) {
        xseg_tree_remove(&extent->records, next);
        block->bytes += next->bytes;
        unlink_block(next);
        xseg_slab_free(&arena->blocks, next);
    }
    if (prev != NULL && prev->state == XSEG_BLOCK_TRACT) {
        prev->bytes += block->bytes;
        unlink_block(block);
        xseg_slab_free(&arena->blocks, block);
    } else {
        xseg_tree_insert(&extent->records, block);
    }
}

/* Make a block that is in no tree a cached cell, and merge it. */
static struct xseg_cell become_cell(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_extent *extent = block->extent;
    const struct xseg_cell cell = {extent, xseg_cell_quantum_of(extent, block->base),
                                   (uint32_t)(block->bytes >> XSEG_CELLS_SHIFT)};

    XSEG_ASSERT(cell.quanta > 0 && block->bytes % xseg_cell_bytes_of(1) == 0);
    xseg_cells_set_requested(&extent->cells, cell.quantum, block->requested);
    join_tracts(arena, block);
    return xseg_small_put_on(arena, cell);
}

struct xseg_block *xseg_tract_settle(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->mapped);
    const struct xseg_cell cell = become_cell(arena, block);

    return cell.quanta < XSEG_CELLS_WIDE ? NULL
                                         : xseg_cells_node(&cell.extent->cells, cell.quantum);
}

void xseg_tract_take_back(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state != XSEG_BLOCK_TRACT && block->state != XSEG_BLOCK_UNMAPPED);
    xseg_tree_remove(&block->extent->records, block);
    (void)become_cell(arena, block);
}

/* --- Audit. --- */

static uint64_t tree_count(const struct xseg_block *root)
{
    return root == NULL ? 0 : 1 + tree_count(root->left) + tree_count(root->right);
}

static bool is_in_tree(const struct xseg_block *block)
{
    return block->state != XSEG_BLOCK_UNMAPPED &&
           xseg_tree_last(block->extent->records, block->base) == block;
}

static bool audit_record(const struct xseg_block *block, struct xseg_violation *violation)
{
    const struct xseg_extent *extent = block->extent;
    const uint32_t quantum = xseg_cell_quantum_of(extent, block->base);
    const bool is_tract = block->state == XSEG_BLOCK_TRACT;

    XSEG_INVARIANT(violation, "TRACT-1",
                   !is_tract || block->next == NULL || block->next->state != XSEG_BLOCK_TRACT,
                   "two tracts at %#" PRIx64, block->base);
    XSEG_INVARIANT(violation, "TRACT-3", !is_tract || is_in_tree(block),
                   "the tract at %#" PRIx64 " is not in the tree", block->base);
    if (!has_chunk(extent, quantum))
        return true;
    const struct xseg_cells_word *word = xseg_cells_word(&extent->cells, quantum);
    XSEG_INVARIANT(violation, "TRACT-2",
                   (word->start & xseg_cells_bit(quantum)) != 0 &&
                       ((word->record & xseg_cells_bit(quantum)) == 0) == is_tract,
                   "the mark of the record at %#" PRIx64, block->base);
    return true;
}

bool xseg_tract_audit(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    uint64_t in_tree = 0;

    for (const struct xseg_block *block = extent->first; block != NULL; block = block->next) {
        if (!audit_record(block, violation))
            return false;
        in_tree += is_in_tree(block);
    }
    XSEG_INVARIANT(violation, "TRACT-3", tree_count(extent->records) == in_tree,
                   "%" PRIu64 " records in the tree, %" PRIu64 " in the chain",
                   tree_count(extent->records), in_tree);
    return true;
}
