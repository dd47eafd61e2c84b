/* SPDX-License-Identifier: MIT */
/*
 * Assertions of the cache and of what it stands on: each case breaks one precondition in a child process, which must
 * die of the assertion that states it.
 */
#include <string.h>

#include "src/core/arena/live.h"
#include "src/core/arena/notes.h"
#include "src/core/arena/origins.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/device/allocator.h"
#include "src/core/hit/hit_stream.h"
#include "src/core/large/arena_hit.h"
#include "src/core/large/large.h"
#include "src/core/large/packing.h"
#include "src/core/small/cell_index.h"
#include "src/core/small/plain.h"
#include "src/core/small/small_free.h"
#include "src/core/small/tract.h"
#include "tests/support/child.h"
#include "tests/support/scene.h"

/* An arena with one extent, and a live block of it behind a cached one. */
struct side {
    struct xseg_arena *arena;
    struct xseg_extent *extent;
    void *held;
    uint64_t live, cached; /* addresses */
};

struct fixture {
    struct xseg_allocator *allocator;
    struct side small, large;
    struct xseg_block *block; /* of the live large block */
    struct xseg_cells *cells;
    uint32_t quantum; /* of the live cell */
};

static void set_up_side(struct xseg_allocator *allocator, struct side *side, size_t bytes)
{
    void *first = scene_alloc(allocator, bytes, NULL);

    side->held = scene_alloc(allocator, bytes, NULL);
    scene_free(allocator, first);
    side->live = (uintptr_t)side->held;
    side->cached = (uintptr_t)first;
    side->extent = xseg_page_map_find(&allocator->page_map, side->live);
    assert_non_null(side->extent);
    side->arena = side->extent->arena;
}

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->allocator = scene_open("expandable_segments:True,history:all");
    set_up_side(f->allocator, &f->small, 8 * KIB);
    set_up_side(f->allocator, &f->large, 30 * MIB);
    f->block = xseg_extent_block_at(f->large.extent, f->large.live);
    assert_non_null(f->block);
    f->cells = &f->small.extent->cells;
    f->quantum = xseg_cell_quantum_of(f->small.extent, f->small.live);
}

static void tear_down(struct fixture *f)
{
    scene_free(f->allocator, f->small.held);
    scene_free(f->allocator, f->large.held);
    scene_close(f->allocator);
}

/* --- Broken preconditions, in the order of the table below. --- */

static void give_a_free_lock(struct fixture *f) XSEG_UNCHECKED
{
    xseg_biased_lock_give(&f->small.arena->lock);
}

static void put_a_record_of_another_slab(struct fixture *f)
{
    struct xseg_slab_idle stranger = {{f}, NULL};

    xseg_slab_put(&f->small.arena->blocks, &stranger);
}

static void cut_all_of_a_block(struct fixture *f)
{
    (void)xseg_block_cut(&f->large.arena->blocks, f->block, f->block->bytes, 0, XSEG_BLOCK_CACHED,
                         true, false);
}

static void remove_a_block_from_the_slot_of_an_extent(struct fixture *f)
{
    xseg_slot slot = (uintptr_t)f->small.extent + 1;

    xseg_slot_remove(&slot);
}

static void ask_of_a_block_beyond_its_segment(struct fixture *f)
{
    f->block->bytes = f->large.extent->segment.bytes + 512;
    (void)xseg_block_is_whole(f->block);
}

static void look_behind_an_extent(struct fixture *f)
{
    const struct xseg_segment *segment = &f->large.extent->segment;

    (void)xseg_extent_block_over(f->large.extent, segment->base + segment->bytes);
}

static void cover_no_bytes(struct fixture *f)
{
    (void)xseg_page_map_cover(&f->allocator->page_map, f->large.extent, MIB, MIB);
}

static void stamp_behind_an_extent(struct fixture *f)
{
    const struct xseg_segment *segment = &f->large.extent->segment;

    xseg_origins_note(f->large.extent, segment->base + segment->bytes, 1, NULL);
}

static void stock_without_the_lock(struct fixture *f) XSEG_UNCHECKED
{
    (void)xseg_arena_stock(f->large.arena, &f->large.arena->blocks, 1);
}

static void settle_a_live_block(struct fixture *f)
{
    (void)xseg_arena_settle(f->large.arena, f->block);
}

static void end_oversize_of_a_block_without_flags(struct fixture *f)
{
    xseg_flags_end_oversize(&f->large.arena->counts, f->block);
}

static void find_a_cell_where_there_are_none(struct fixture *f)
{
    uint32_t quantum = 0;

    (void)xseg_live_find_cell(f->large.extent, f->large.live, &quantum);
}

static void go_on_behind_the_end_of_a_walk(struct fixture *f)
{
    struct xseg_part over = {0};

    (void)f;
    (void)xseg_walk_next(&over);
}

static void remove_a_chunk_map_from_a_wrong_rank(struct fixture *f)
{
    struct xseg_chunk_map *chunk = xseg_cells_chunk(f->cells, f->quantum);

    chunk->rank++;
    xseg_bins_remove(&f->small.arena->small.bins, chunk);
}

static void insert_a_live_cell(struct fixture *f)
{
    xseg_bins_insert(&f->small.arena->small.bins, xseg_cells_chunk(f->cells, f->quantum),
                     f->quantum, 16);
}

static void address_behind_an_extent(struct fixture *f)
{
    (void)xseg_cell_address_of(f->small.extent, f->cells->quanta + 1);
}

static void put_no_cell(struct fixture *f)
{
    const struct xseg_cell none = {f->small.extent, f->quantum, 0};

    xseg_cell_index_put(f->small.arena, &none);
}

static void take_a_narrow_cell_as_a_wide_one(struct fixture *f)
{
    const struct xseg_cell cell = {f->small.extent,
                                   xseg_cell_quantum_of(f->small.extent, f->small.cached), 16};

    (void)xseg_cell_index_take_wide(f->small.arena, &cell);
}

static void remove_a_start_inside_a_cell(struct fixture *f)
{
    xseg_cells_remove_start(f->cells, f->quantum + 1);
}

static void poison_behind_an_extent(struct fixture *f)
{
    xseg_cells_set_poisoned(f->cells, f->cells->quanta - 1, 2, true);
}

static void put_no_chunk_map(struct fixture *f)
{
    xseg_chunk_maps_put(&f->small.arena->small.chunks, NULL);
}

static void count_a_long_cell_as_a_short_one(struct fixture *f)
{
    xseg_plain_count_free(f->small.arena, xseg_cells_chunk(f->cells, f->quantum),
                          f->quantum % XSEG_CELLS_CHUNK, 65);
}

static void hit_a_small_arena_without_its_lock(struct fixture *f)
{
    (void)xseg_small_hit(f->small.arena, 512, true, UINT64_MAX);
}

static void free_a_cell_without_the_lock(struct fixture *f)
{
    (void)xseg_small_free(f->small.arena, f->small.extent, f->quantum);
}

static void isolate_a_cached_cell(struct fixture *f)
{
    (void)xseg_tract_isolate(f->small.arena, f->small.extent,
                             xseg_cell_quantum_of(f->small.extent, f->small.cached));
}

static void hit_a_large_arena_without_its_lock(struct fixture *f)
{
    (void)xseg_arena_hit_plain(f->large.arena, 2 * MIB, true);
}

static void take_back_with_notes_where_there_are_none(struct fixture *f)
{
    xseg_slot *slot = xseg_page_map_slot(&f->allocator->page_map, f->large.live);

    atomic_store(&f->large.arena->notes, 0);
    (void)xseg_large_take_back_noting(f->large.arena, slot, f->block, f->large.live);
}

static void show_a_live_block(struct fixture *f)
{
    xseg_cached_show(f->large.arena, f->block);
}

static void index_a_live_block(struct fixture *f)
{
    xseg_free_index_insert(&f->large.arena->free_index, f->block);
}

static void remove_a_block_that_is_not_indexed(struct fixture *f)
{
    struct xseg_block other = {.state = XSEG_BLOCK_CACHED, .bytes = 100 * MIB};

    xseg_free_index_remove(&f->large.arena->free_index, &other);
}

static void put_a_block_without_the_lock(struct fixture *f)
{
    xseg_large_put_whole(f->large.arena, f->block);
}

static void pack_without_the_lock(struct fixture *f)
{
    (void)xseg_packing_prepare(f->large.arena);
}

static void serve_without_the_lock(struct fixture *f) XSEG_UNCHECKED
{
    (void)xseg_hit_stream_serve(xseg_allocator_config(f->allocator), f->large.arena, 30 * MIB);
}

static void note_a_block_that_is_nowhere(struct fixture *f) XSEG_UNCHECKED
{
    const struct xseg_noted_block nowhere = {.bytes = 512, .requested = 1};

    xseg_arena_lock(f->large.arena);
    xseg_notes_alloc(f->large.arena, &nowhere);
}

static void note_a_cached_block(struct fixture *f) XSEG_UNCHECKED
{
    f->block->state = XSEG_BLOCK_CACHED;
    xseg_arena_lock(f->large.arena);
    xseg_notes_free_of(f->large.arena, f->block);
}

static void note_memory_without_growth(struct fixture *f) XSEG_UNCHECKED
{
    xseg_arena_lock(f->large.arena);
    xseg_notes_segment(f->large.extent, XSEG_HISTORY_SEGMENT_MAP, f->large.live, 2 * MIB);
}

static void note_without_the_lock(struct fixture *f) XSEG_UNCHECKED
{
    const struct xseg_noted_block block = {.base = f->large.live, .bytes = 512, .requested = 1};

    xseg_notes_alloc(f->large.arena, &block);
}

struct breach {
    const char *name;
    void (*commit)(struct fixture *f);
    const char *file, *condition; /* where the assertion stands, and a part of it */
};

static const struct breach breaches[] = {
    {"biased_lock", give_a_free_lock, "biased_lock.h", "is_held(lock)"},
    {"slab", put_a_record_of_another_slab, "slab.h", "record.owner == slab->owner"},
    {"block", cut_all_of_a_block, "block.h", "rest_bytes > 0"},
    {"slot", remove_a_block_from_the_slot_of_an_extent, "slot.h", "!xseg_slot_is_extent"},
    {"extent", ask_of_a_block_beyond_its_segment, "extent.h", "<= block->extent->segment.bytes"},
    {"extent_blocks", look_behind_an_extent, "extent_blocks.c", "< extent->segment.bytes"},
    {"page_map", cover_no_bytes, "page_map.c", "begin < end"},
    {"origins", stamp_behind_an_extent, "origins.c", "< extent->segment.bytes"},
    {"arena", stock_without_the_lock, "arena.c", "is_held(&arena->lock)"},
    {"arena_blocks", settle_a_live_block, "arena_blocks.c", "state == XSEG_BLOCK_BUSY"},
    {"flags", end_oversize_of_a_block_without_flags, "flags.h", "== XSEG_BLOCK_OVERSIZE"},
    {"live", find_a_cell_where_there_are_none, "live.h", "extent->has_cells"},
    {"walk", go_on_behind_the_end_of_a_walk, "walk.c", "part->extent != NULL"},
    {"bins", remove_a_chunk_map_from_a_wrong_rank, "bins.c", "chunk->rank < bins->ranks"},
    {"bins, cells", insert_a_live_cell, "bins.h", "xseg_cells_is_free"},
    {"cell", address_behind_an_extent, "cell.h", "quantum <= extent->cells.quanta"},
    {"cell_index", put_no_cell, "cell_index.h", "cell->quanta > 0"},
    {"cell_index, wide", take_a_narrow_cell_as_a_wide_one, "cell_index.c", ">= XSEG_CELLS_WIDE"},
    {"cells", remove_a_start_inside_a_cell, "cells.h", "start & xseg_cells_bit(quantum)"},
    {"cells, poison", poison_behind_an_extent, "cells.c", "quantum + count <= cells->quanta"},
    {"chunk_maps", put_no_chunk_map, "chunk_maps.c", "chunk != NULL"},
    {"plain", count_a_long_cell_as_a_short_one, "plain.h", "quanta <= 64"},
    {"small", hit_a_small_arena_without_its_lock, "small.c", "is_held(&arena->lock)"},
    {"small_free", free_a_cell_without_the_lock, "small_free.c", "is_held(&arena->lock)"},
    {"tract", isolate_a_cached_cell, "tract.c", "xseg_cells_is_live"},
    {"arena_hit", hit_a_large_arena_without_its_lock, "arena_hit.c", "is_held(&arena->lock)"},
    {"cached", show_a_live_block, "cached.h", "block->state == XSEG_BLOCK_CACHED"},
    {"free_index", index_a_live_block, "free_index.h", "block->state == XSEG_BLOCK_CACHED"},
    {"free_index, remove", remove_a_block_that_is_not_indexed, "free_index.h", "first != NULL"},
    {"notes, alloc", note_a_block_that_is_nowhere, "notes.c", "block->base != 0"},
    {"notes, block", note_a_cached_block, "notes.c", "block->state == XSEG_BLOCK_LIVE"},
    {"notes, segment", note_memory_without_growth, "notes.c", "XSEG_RANK_GROWTH"},
    {"notes, lock", note_without_the_lock, "notes.c", "is_held(&arena->lock)"},
    {"large, notes", take_back_with_notes_where_there_are_none, "large.c", "has_notes(arena)"},
    {"large", put_a_block_without_the_lock, "large.h", "is_held(&arena->lock)"},
    {"packing", pack_without_the_lock, "packing.c", "is_held(&arena->lock)"},
    {"hit_stream", serve_without_the_lock, "hit_stream.c", "is_held(&arena->lock)"},
};

/* --- Children. --- */

struct part {
    const struct breach *breach;
    struct fixture *fixture;
};

static void commit(const void *argument)
{
    const struct part *part = argument;

    part->breach->commit(part->fixture);
}

static void each_broken_precondition_is_fatal(void **state)
{
    struct fixture f;
    char said[4096], file[64];

    (void)state;
    set_up(&f);
    for (size_t i = 0; i < COUNT_OF(breaches); i++) {
        const struct breach *breach = &breaches[i];
        const struct part part = {breach, &f};
        const int status = child_run(commit, &part, said, sizeof(said));

        (void)snprintf(file, sizeof(file), "/%s:", breach->file);
        if (!child_aborted(status) || strstr(said, file) == NULL ||
            strstr(said, ": broken: ") == NULL || strstr(said, breach->condition) == NULL)
            fail_msg("%s: status %#x, says \"%s\"", breach->name, (unsigned)status, said);
    }
    tear_down(&f);
}

int main(void)
{
    if (XSEG_CHECKS == 0) {
        (void)puts("1..0 # SKIP this build has no assertions");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_broken_precondition_is_fatal),
    };

    return cmocka_run_group_tests_name("asserts_cache", tests, NULL, NULL);
}
