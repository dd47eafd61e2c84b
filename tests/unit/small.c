/* SPDX-License-Identifier: MIT */
/* Small arenas: what their audits find, the victim, requested sizes, and nodes across chunk maps. */
#include "src/core/small/small.h"
#include "src/core/cache/arena_audit.h"
#include "src/core/cache/walk.h"
#include "src/core/device/allocator.h"
#include "src/core/small/cell.h"
#include "src/core/small/tract.h"

#include <string.h>

#include "tests/support/scene.h"

/* An extent of 4 MiB: live, cached, live, and the victim, behind which there is a hole. */
struct fixture {
    struct xseg_allocator *allocator;
    struct xseg_arena *arena;
    struct xseg_extent *extent;
    struct xseg_cells *cells;
    void *held[2];
    uint32_t live, cached, victim; /* quanta */
};

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->allocator = scene_open("expandable_segments:True");
    f->held[0] = scene_alloc(f->allocator, MIB, NULL);
    void *middle = scene_alloc(f->allocator, 8 * KIB, NULL);
    f->held[1] = scene_alloc(f->allocator, MIB, NULL);
    scene_free(f->allocator, middle);
    f->extent = xseg_page_map_find(&f->allocator->page_map, (uintptr_t)middle);
    assert_non_null(f->extent);
    f->arena = f->extent->arena;
    f->cells = &f->extent->cells;
    f->live = xseg_cell_quantum_of(f->extent, (uintptr_t)f->held[1]);
    f->cached = xseg_cell_quantum_of(f->extent, (uintptr_t)middle);
    f->victim = f->arena->small.last_remainder.quantum;
    assert_true(f->arena->small.last_remainder.quanta >= XSEG_CELLS_WIDE);
}

static void expect(struct fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    if (xseg_arena_audit(f->arena, &violation) != (tag == NULL))
        fail_msg("%s: %s", tag == NULL ? violation.tag : tag, violation.text);
    if (tag != NULL)
        assert_string_equal(violation.tag, tag);
}

/* Whole again, or the audit says what is not. */
static void tear_down(struct fixture *f)
{
    expect(f, NULL);
    for (size_t i = 0; i < COUNT_OF(f->held); i++)
        scene_free(f->allocator, f->held[i]);
    scene_close(f->allocator);
}

/* Expect what the audit finds while a bit is inverted. */
static void expect_bit(struct fixture *f, uint64_t *word, uint32_t quantum, const char *tag)
{
    *word ^= xseg_cells_bit(quantum);
    expect(f, tag);
    *word ^= xseg_cells_bit(quantum);
}

static void wrong_bits_are_found(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    const uint32_t last = f.live - 1;
    struct xseg_chunk_map *chunk = xseg_cells_chunk(f.cells, f.cached);
    expect_bit(&f, &chunk->starts, f.cached / 64, "CELL-1");
    xseg_bitmap_clear(&f.cells->used, 0);
    expect(&f, "CELL-1");
    xseg_bitmap_set(&f.cells->used, 0);
    /* The last quantum of a cached cell; one inside it, and inside of a live one. */
    expect_bit(&f, &xseg_cells_word(f.cells, last)->free, last, "CELL-2");
    expect_bit(&f, &xseg_cells_word(f.cells, last - 1)->free, last - 1, "CELL-2");
    expect_bit(&f, &xseg_cells_word(f.cells, f.live + 9)->free, f.live + 9, "CELL-2");
    /* A cached cell is open, the last one is not; a live one is. */
    expect_bit(&f, &xseg_cells_word(f.cells, f.cached)->open, f.cached, "CELL-3");
    expect_bit(&f, &xseg_cells_word(f.cells, f.victim)->open, f.victim, "CELL-3");
    expect_bit(&f, &xseg_cells_word(f.cells, f.live)->open, f.live, "CELL-3");
    tear_down(&f);
}

static void neighbours_and_nodes_that_are_wrong_are_found(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    /* A start inside of a cached cell that says that it is free. */
    const uint32_t inside = f.cached + 8;
    xseg_cells_add_start(f.cells, inside);
    xseg_cells_word(f.cells, inside)->free |= xseg_cells_bit(inside);
    xseg_cells_word(f.cells, inside)->free |= xseg_cells_bit(inside - 1);
    expect(&f, "SMALL-1");
    xseg_cells_word(f.cells, inside)->free &=
        ~(xseg_cells_bit(inside) | xseg_cells_bit(inside - 1));
    xseg_cells_remove_start(f.cells, inside);
    /* A wide cell that is neither the victim nor in the free index; then one that is not what it says. */
    const struct xseg_cell victim = f.arena->small.last_remainder;
    struct xseg_block *node = xseg_cells_node(f.cells, f.victim);
    memset(node, 0, sizeof(*node));
    f.arena->small.last_remainder.quanta = 0;
    expect(&f, "SMALL-2");
    f.arena->small.last_remainder = victim;
    node = xseg_small_from(f.arena, 0, 0); /* it comes in the free index */
    assert_int_equal(node->bytes, xseg_cell_bytes_of(victim.quanta));
    expect(&f, NULL);
    xseg_free_index_remove(&f.arena->free_index, node);
    expect(&f, "SMALL-2");
    xseg_free_index_insert(&f.arena->free_index, node);
    f.arena->small.is_plain = false;
    expect(&f, "SMALL-3");
    f.arena->small.is_plain = true;
    tear_down(&f);
}

static void wrong_tracts_are_found(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    struct xseg_block *tract = f.extent->first;
    assert_int_equal(tract->state, XSEG_BLOCK_TRACT);
    /* Cut in two, where a cell begins. */
    xseg_arena_lock(f.arena);
    assert_true(xseg_arena_reserve_records(f.arena, &f.arena->blocks, 4));
    struct xseg_block *isolated = xseg_tract_isolate(f.arena, f.extent, f.live);
    xseg_arena_unlock(f.arena);
    expect(&f, NULL);
    isolated->state = XSEG_BLOCK_TRACT;
    expect(&f, "TRACT-1");
    isolated->state = XSEG_BLOCK_ALLOCATED;
    expect_bit(&f, &xseg_cells_word(f.cells, f.live)->record, f.live, "TRACT-2");
    xseg_tree_remove(&f.extent->records, isolated);
    xseg_tree_insert(&f.extent->records, isolated);
    xseg_tree_remove(&f.extent->records, tract);
    expect(&f, "TRACT-3");
    xseg_tree_insert(&f.extent->records, tract);
    /* What was isolated is a cell again once it is free. */
    expect(&f, NULL);
    scene_free(f.allocator, f.held[1]);
    assert_ptr_equal(f.extent->first->next->next, NULL);
    assert_int_equal(f.extent->first->next->state, XSEG_BLOCK_UNMAPPED);
    f.held[1] = scene_alloc(f.allocator, MIB, NULL);
    tear_down(&f);
}

/* --- Requested sizes. --- */

static uint64_t requested_at(const struct fixture *f, uint64_t offset)
{
    return xseg_walk_at(f->extent, f->extent->segment.base + offset).requested;
}

/* PyTorch's rules: a free keeps the size, the remainder of a split inherits it, coalescing keeps that of the block that is
 * being freed. */
static void cached_cells_keep_the_requested_size(void **state)
{
    static const size_t narrow = 5000, wide = 200000;
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(requested_at(&f, 0), MIB);
    assert_int_equal(requested_at(&f, MIB), 8 * KIB);
    assert_int_equal(requested_at(&f, 2 * MIB + 8 * KIB), 0);
    /* A narrow cell: split, used up, and coalesced with the cells on either side. */
    void *head = scene_alloc(f.allocator, narrow, NULL),
         *tail = scene_alloc(f.allocator, 3000, NULL);
    assert_int_equal(requested_at(&f, MIB), narrow);
    assert_int_equal(requested_at(&f, MIB + 5120), 3000);
    scene_free(f.allocator, head);
    assert_int_equal(requested_at(&f, MIB), narrow);
    head = scene_alloc(f.allocator, 1, NULL);
    assert_int_equal(requested_at(&f, MIB), 1);
    assert_int_equal(requested_at(&f, MIB + 512), narrow);
    scene_free(f.allocator, tail);
    assert_int_equal(requested_at(&f, MIB + 512), 3000);
    scene_free(f.allocator, head);
    assert_int_equal(requested_at(&f, MIB), 1);
    /* Wide cells across the end of a chunk map: the victim, and a cell in the free index, whose node is in its entries. */
    void *block[3];
    for (size_t i = 0; i < COUNT_OF(block); i++)
        block[i] = scene_alloc(f.allocator, wide + i * 512, NULL);
    const uint64_t offset = (uintptr_t)block[0] - f.extent->segment.base;
    scene_free(f.allocator, block[1]);
    assert_int_equal(f.arena->free_index.used.top != 0, true);
    assert_int_equal(requested_at(&f, (uintptr_t)block[1] - f.extent->segment.base), wide + 512);
    block[1] = scene_alloc(f.allocator, 150000, NULL);
    assert_int_equal(f.arena->small.last_remainder.quanta < XSEG_CELLS_WIDE, false);
    assert_int_equal(requested_at(&f, (uintptr_t)block[1] + 150016 - f.extent->segment.base),
                     wide + 512);
    scene_free(f.allocator, block[0]);
    scene_free(f.allocator, block[1]);
    assert_int_equal(requested_at(&f, offset), 150000);
    scene_free(f.allocator, block[2]);
    assert_int_equal(requested_at(&f, offset), wide + 1024);
    tear_down(&f);
}

static void nodes_lie_where_there_is_room(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    void *first[2] = {scene_alloc(allocator, MIB, NULL), scene_alloc(allocator, MIB, NULL)};
    struct xseg_extent *extent = xseg_page_map_find(&allocator->page_map, (uintptr_t)first[0]);
    const struct xseg_cells *cells = &extent->cells;
    void *second = scene_alloc(allocator, MIB, NULL);

    (void)state;
    assert_non_null(cells->chunk[1]);
    for (uint32_t at = 0; at + XSEG_CELLS_WIDE <= 2 * XSEG_CELLS_CHUNK; at++) {
        const char *node = (const char *)xseg_cells_node(cells, at);
        const char *end = node + sizeof(struct xseg_block);
        bool fits = false;

        assert_int_equal((uintptr_t)node % _Alignof(struct xseg_block), 0);
        for (uint32_t number = at / XSEG_CELLS_CHUNK; number < 2; number++) {
            const struct xseg_chunk_map *chunk = cells->chunk[number];
            const uint32_t begin = number * XSEG_CELLS_CHUNK;
            const uint32_t low = at >= begin ? at + 1 - begin : 0; /* past the first entry */
            const uint32_t high = at + XSEG_CELLS_WIDE - begin;

            fits = fits ||
                   (node >= (const char *)&chunk->requested[low] &&
                    end <= (const char *)(chunk->requested +
                                          (high < XSEG_CELLS_CHUNK ? high : XSEG_CELLS_CHUNK)));
        }
        assert_true(fits);
    }
    scene_free(allocator, first[0]);
    scene_free(allocator, first[1]);
    scene_free(allocator, second);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_bits_are_found),
        cmocka_unit_test(neighbours_and_nodes_that_are_wrong_are_found),
        cmocka_unit_test(wrong_tracts_are_found),
        cmocka_unit_test(cached_cells_keep_the_requested_size),
        cmocka_unit_test(nodes_lie_where_there_is_room),
    };

    return cmocka_run_group_tests_name("small", tests, NULL, NULL);
}
