/* SPDX-License-Identifier: MIT */
/* Cells where chunk maps are missing, and the pattern's bits; bins.c has starts, small.c slack and nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/block/cells.h"
#include "src/core/block/chunk_maps.h"

#define CHUNKS 9u
#define QUANTA (CHUNKS * XSEG_CELLS_CHUNK)

/* Chunk maps 1, 2, 5 and 7; the others are missing. */
static const bool is_there[CHUNKS] = {false, true, true, false, false, true, false, true, false};

static void set_up(struct xseg_cells *cells, struct xseg_chunk_maps *chunks)
{
    memset(chunks, 0, sizeof(*chunks));
    assert_true(xseg_cells_init(cells, (uint64_t)QUANTA << XSEG_CELLS_SHIFT));
    assert_int_equal(cells->quanta, QUANTA);
    for (uint32_t i = 0; i < CHUNKS; i++)
        cells->chunk[i] = is_there[i] ? xseg_chunk_maps_take(chunks, NULL, i) : NULL;
}

static void tear_down(struct xseg_cells *cells, struct xseg_chunk_maps *chunks)
{
    xseg_cells_fini(cells);
    xseg_chunk_maps_fini(chunks);
}

/* A quantum of a chunk map that is there. */
static uint32_t any_quantum(void)
{
    uint32_t quantum;

    do
        quantum = (uint32_t)random() % QUANTA;
    while (!is_there[quantum / XSEG_CELLS_CHUNK]);
    return quantum;
}

static void starts_are_found_across_chunk_maps_that_are_missing(void **state)
{
    static bool start[QUANTA + 1];
    struct xseg_cells cells;
    struct xseg_chunk_maps chunks;

    (void)state;
    srandom(3);
    set_up(&cells, &chunks);
    memset(start, 0, sizeof(start));
    for (unsigned step = 0; step < 20000; step++) {
        /* Few starts, so that whole chunk maps have none; all near the ends of words and chunk maps at times. */
        uint32_t quantum = any_quantum();

        if (step % 3 == 0)
            quantum = quantum / 64 * 64 + (step % 2 == 0 ? 0 : 63);
        if (start[quantum])
            xseg_cells_remove_start(&cells, quantum);
        else if (step % 500 < 250 && step % 25 == 0)
            xseg_cells_add_start(&cells, quantum);
        start[quantum] = !start[quantum] && step % 500 < 250 && step % 25 == 0;
        for (uint32_t at = 0; step % 500 == 499 && at < QUANTA; at++)
            if (start[at] && random() % 4 != 0) {
                xseg_cells_remove_start(&cells, at);
                start[at] = false;
            }

        const uint32_t from = (uint32_t)random() % (QUANTA + 1);
        uint32_t next = from, last = from;
        while (next < QUANTA && !start[next])
            next++;
        if (from % 64 == 0 || is_there[from / XSEG_CELLS_CHUNK])
            assert_int_equal(xseg_cells_next(&cells, from), next);
        while (last > 0 && !start[last])
            last--;
        if (from < QUANTA && is_there[from / XSEG_CELLS_CHUNK] && start[last])
            assert_int_equal(xseg_cells_last(&cells, from), last);
    }
    tear_down(&cells, &chunks);
}

static void what_is_too_long_is_refused(void **state)
{
    struct xseg_cells cells;

    (void)state;
    assert_false(xseg_cells_init(&cells, XSEG_CELLS_MAX + 2 * XSEG_MIB));
    assert_true(xseg_cells_init(&cells, XSEG_CELLS_MAX));
    assert_int_equal(xseg_cells_next(&cells, 0), cells.quanta);
    xseg_cells_fini(&cells);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_are_found_across_chunk_maps_that_are_missing),
        cmocka_unit_test(what_is_too_long_is_refused),
    };

    return cmocka_run_group_tests_name("cells", tests, NULL, NULL);
}
