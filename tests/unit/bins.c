/* SPDX-License-Identifier: MIT */
/* The bins, and starts of cells, against a plain list of cells: chunk maps come, go and move. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/block/bins.h"
#include "src/core/block/chunk_maps.h"

#define EXTENTS 6u
#define CHUNKS  3u /* of each */
#define QUANTA  (CHUNKS * XSEG_CELLS_CHUNK)

struct fixture {
    struct xseg_bins bins;
    struct xseg_chunk_maps chunks;
    struct xseg_extent extent[EXTENTS];
    bool is_there[EXTENTS];
    uint16_t length[EXTENTS][QUANTA]; /* of the cell that begins there, or 0 */
    bool cached[EXTENTS][QUANTA];
};

static uint32_t below(uint32_t bound)
{
    return (uint32_t)random() % bound;
}

static void add_chunks(struct xseg_bins *bins, struct xseg_chunk_map **chunk, uint32_t count)
{
    void *room = NULL;

    assert_true(xseg_bins_make_room(bins, count, &room));
    free(xseg_bins_take_room(bins, count, room));
    for (uint32_t i = 0; i < count; i++)
        xseg_bins_add(bins, chunk[i]);
}

/* An extent of live cells, whose chunk maps come from the last to the first. */
static void come(struct fixture *f, unsigned number)
{
    struct xseg_extent *extent = &f->extent[number];
    struct xseg_chunk_map *chunk[CHUNKS];

    assert_true(xseg_cells_init(&extent->cells, QUANTA << XSEG_CELLS_SHIFT));
    extent->segment.base = (1 + (uint64_t)number) << 30;
    extent->segment.bytes = QUANTA << XSEG_CELLS_SHIFT;
    extent->position = (1 + (uint64_t)number * 5 % EXTENTS) << 30;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        chunk[i] = xseg_chunk_maps_take(&f->chunks, extent, CHUNKS - 1 - i);
        assert_non_null(chunk[i]);
        extent->cells.chunk[CHUNKS - 1 - i] = chunk[i];
    }
    add_chunks(&f->bins, chunk, CHUNKS);
    memset(f->length[number], 0, sizeof(f->length[number]));
    memset(f->cached[number], 0, sizeof(f->cached[number]));
    for (uint32_t at = 0; at < QUANTA;) {
        const uint32_t wanted = 1 + below(below(4) == 0 ? 400 : 24);
        const uint32_t length = QUANTA - at < wanted ? QUANTA - at : wanted;

        f->length[number][at] = (uint16_t)length;
        xseg_cells_add_start(&extent->cells, at);
        at += length;
    }
    f->is_there[number] = true;
}

/* A cell becomes cached, or live. */
static void toggle(struct fixture *f, unsigned number, uint32_t at)
{
    struct xseg_cells *cells = &f->extent[number].cells;
    const uint32_t length = f->length[number][at], last = at + length - 1;
    struct xseg_chunk_map *chunk = xseg_cells_chunk(cells, at);
    const bool cached = f->cached[number][at];

    if (cached && length < XSEG_CELLS_WIDE)
        xseg_bins_remove_cell(&f->bins, chunk, at, length);
    xseg_cells_word(cells, at)->free &= ~xseg_cells_bit(at);
    xseg_cells_word(cells, last)->free &= ~xseg_cells_bit(last);
    if (!cached) {
        xseg_cells_word(cells, at)->free |= xseg_cells_bit(at);
        xseg_cells_word(cells, last)->free |= xseg_cells_bit(last);
    }
    if (!cached && length < XSEG_CELLS_WIDE)
        xseg_bins_insert(&f->bins, chunk, at, length);
    f->cached[number][at] = !cached;
}

static void go(struct fixture *f, unsigned number)
{
    struct xseg_extent *extent = &f->extent[number];

    for (uint32_t at = 0; at < QUANTA; at++)
        if (f->cached[number][at])
            toggle(f, number, at);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        xseg_bins_remove(&f->bins, extent->cells.chunk[i]);
        xseg_chunk_maps_put(&f->chunks, extent->cells.chunk[i]);
    }
    xseg_cells_fini(&extent->cells);
    f->is_there[number] = false;
}

/* --- The plain list. --- */

static uint64_t position_of(const struct xseg_cell *cell)
{
    return cell->quanta == 0 ? 0 : cell->extent->position + cell->quantum;
}

/* The first cell that is not below (quanta, position). */
static struct xseg_cell slow_from(struct fixture *f, uint32_t quanta, uint64_t position)
{
    struct xseg_cell best = {0};

    for (unsigned number = 0; number < EXTENTS; number++)
        for (uint32_t at = 0; f->is_there[number] && at < QUANTA; at++) {
            const uint32_t length = f->length[number][at];
            const struct xseg_cell cell = {&f->extent[number], at, length};
            const uint64_t here = position_of(&cell);

            if (!f->cached[number][at] || length >= XSEG_CELLS_WIDE || length < quanta ||
                (length == quanta && here < position))
                continue;
            if (best.quanta == 0 || length < best.quanta ||
                (length == best.quanta && here < position_of(&best)))
                best = cell;
        }
    return best;
}

static void expect_cell(struct xseg_cell got, struct xseg_cell want)
{
    assert_int_equal(got.quanta, want.quanta);
    assert_int_equal(position_of(&got), position_of(&want));
}

static void expect_answers(struct fixture *f)
{
    const uint32_t quanta = 1 + below(below(2) == 0 ? 300 : 30);
    const struct xseg_cell found = slow_from(f, quanta, 0);

    expect_cell(xseg_bins_find(&f->bins, quanta), found);
    if (found.quanta != 0)
        expect_cell(xseg_bins_next(&f->bins, &found),
                    slow_from(f, found.quanta, position_of(&found) + 1));
}

/* Starts are found from anywhere, and the end of the extent behind the last one. */
static void expect_starts(struct fixture *f, unsigned number)
{
    const struct xseg_cells *cells = &f->extent[number].cells;
    const uint32_t at = below(QUANTA);
    uint32_t next = at, last = at;

    while (next < QUANTA && f->length[number][next] == 0)
        next++;
    while (f->length[number][last] == 0)
        last--;
    assert_int_equal(xseg_cells_next(cells, at), next);
    assert_int_equal(xseg_cells_last(cells, at), last);
    assert_int_equal(xseg_cells_next(cells, QUANTA), QUANTA);
}

static void expect_audit(struct fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    if (xseg_bins_audit(&f->bins, &violation) != (tag == NULL))
        fail_msg("%s: %s", tag == NULL ? violation.tag : tag, violation.text);
    if (tag != NULL)
        assert_string_equal(violation.tag, tag);
}

static struct fixture *set_up(void)
{
    /* Aligned as an extent is. */
    struct fixture *f = aligned_alloc(_Alignof(struct fixture), sizeof(*f));

    assert_non_null(f);
    memset(f, 0, sizeof(*f));
    srandom(17);
    return f;
}

static void tear_down(struct fixture *f)
{
    for (unsigned number = 0; number < EXTENTS; number++)
        if (f->is_there[number])
            go(f, number);
    expect_audit(f, NULL);
    expect_cell(xseg_bins_find(&f->bins, 1), (struct xseg_cell){0});
    xseg_bins_fini(&f->bins);
    xseg_chunk_maps_fini(&f->chunks);
    free(f);
}

static void agrees_with_a_list(void **state)
{
    struct fixture *f = set_up();

    (void)state;
    for (unsigned step = 0; step < 60000; step++) {
        const unsigned number = below(EXTENTS);

        if (!f->is_there[number]) {
            come(f, number);
        } else if (below(2000) == 0) {
            go(f, number);
        } else {
            /* Few are cached at times, and many at others. */
            const uint32_t at = xseg_cells_last(&f->extent[number].cells, below(QUANTA));

            if (below(3) == 0 || f->cached[number][at] == (step / 10000 % 2 != 0))
                toggle(f, number, at);
            expect_starts(f, number);
        }
        if (step % 40 == 0)
            expect_answers(f);
        if (step % 200 == 0)
            expect_audit(f, NULL);
    }
    tear_down(f);
}

/* --- Many chunk maps. --- */

#define MANY 4500u

/* Chunk maps of one extent, each with one cached cell: more than one word of the upper level has bits. */
static void ranks_go_beyond_one_word_of_words(void **state)
{
    static struct xseg_extent extent;
    struct xseg_bins bins = {0};
    struct xseg_chunk_maps chunks = {0};
    struct xseg_violation violation = {0};

    (void)state;
    memset(&extent, 0, sizeof(extent));
    assert_true(xseg_cells_init(&extent.cells, (uint64_t)MANY * 2 * XSEG_MIB));
    extent.segment.base = XSEG_GIB;
    for (uint32_t i = MANY; i-- > 0;) {
        const uint32_t at = i * XSEG_CELLS_CHUNK;
        struct xseg_chunk_map *chunk = xseg_chunk_maps_take(&chunks, &extent, i);

        assert_non_null(chunk);
        extent.cells.chunk[i] = chunk;
        xseg_cells_add_start(&extent.cells, at);
        xseg_cells_add_start(&extent.cells, at + 7);
    }
    for (uint32_t begin = 0; begin < MANY; begin += 500)
        add_chunks(&bins, &extent.cells.chunk[begin], 500);
    assert_true(bins.capacity > 4096 && bins.tops > 1);
    for (uint32_t i = MANY; i-- > 0;) {
        const uint32_t at = i * XSEG_CELLS_CHUNK;

        xseg_cells_word(&extent.cells, at)->free |= xseg_cells_bit(at) | xseg_cells_bit(at + 6);
        xseg_bins_insert(&bins, extent.cells.chunk[i], at, 7);
        assert_int_equal(xseg_bins_find(&bins, 3).quantum, at);
    }
    assert_true(xseg_bins_audit(&bins, &violation));
    struct xseg_cell cell = xseg_bins_find(&bins, 7);
    for (uint32_t i = 0; i < MANY; i++, cell = xseg_bins_next(&bins, &cell))
        assert_int_equal(cell.quantum, i * XSEG_CELLS_CHUNK);
    assert_int_equal(cell.quanta, 0);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(xseg_bins_find(&bins, 7).quantum, i * XSEG_CELLS_CHUNK);
        xseg_bins_remove_cell(&bins, extent.cells.chunk[i], i * XSEG_CELLS_CHUNK, 7);
        extent.cells.chunk[i]->word[0].free = 0;
    }
    assert_int_equal(xseg_bins_find(&bins, 1).quanta, 0);
    assert_true(xseg_bins_audit(&bins, &violation));
    xseg_bins_fini(&bins);
    xseg_chunk_maps_fini(&chunks);
    xseg_cells_fini(&extent.cells);
}

/* --- The audit. --- */

static void what_is_wrong_is_found(void **state)
{
    struct fixture *f = set_up();

    (void)state;
    come(f, 0);
    come(f, 1);
    struct xseg_chunk_map *chunk = f->extent[0].cells.chunk[1];
    struct xseg_chunk_map *other = f->extent[1].cells.chunk[0];
    const uint32_t at = xseg_cells_next(&f->extent[0].cells, XSEG_CELLS_CHUNK);
    uint32_t quanta = f->length[0][at];
    uint64_t *bits;

    assert_true(quanta < XSEG_CELLS_WIDE);
    toggle(f, 0, at);
    expect_audit(f, NULL);
    /* Two places are exchanged. */
    f->bins.chunk[chunk->rank] = other;
    f->bins.chunk[other->rank] = chunk;
    expect_audit(f, "BINS-1");
    f->bins.chunk[chunk->rank] = chunk;
    f->bins.chunk[other->rank] = other;
    chunk->rank++;
    expect_audit(f, "BINS-1");
    chunk->rank--;
    /* A bit is missing in each level, or there is one more. */
    chunk->bin[quanta] ^= 1;
    expect_audit(f, "BINS-2");
    chunk->bin[quanta] ^= 1;
    chunk->bin[0] ^= 1;
    expect_audit(f, "BINS-3");
    chunk->bin[0] ^= 1;
    bits = xseg_bins_bits(&f->bins, quanta, 0);
    *bits ^= (uint64_t)1 << chunk->rank;
    expect_audit(f, "BINS-2");
    *bits ^= (uint64_t)1 << chunk->rank;
    *bits ^= (uint64_t)1 << other->rank;
    expect_audit(f, "BINS-2");
    *bits ^= (uint64_t)1 << other->rank;
    *xseg_bins_top(&f->bins, quanta, 0) ^= 1;
    expect_audit(f, "BINS-2");
    *xseg_bins_top(&f->bins, quanta, 0) ^= 1;
    f->bins.sizes[quanta / 64] ^= (uint64_t)1 << quanta % 64;
    expect_audit(f, "BINS-2");
    f->bins.sizes[quanta / 64] ^= (uint64_t)1 << quanta % 64;
    tear_down(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_list),
        cmocka_unit_test(ranks_go_beyond_one_word_of_words),
        cmocka_unit_test(what_is_wrong_is_found),
    };

    return cmocka_run_group_tests_name("bins", tests, NULL, NULL);
}
