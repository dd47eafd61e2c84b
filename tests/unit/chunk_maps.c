/* SPDX-License-Identifier: MIT */
/* Chunk maps: nothing is shared or made ahead, and what is put back is used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/block/chunk_maps.h"

#define MANY 2000u

static struct xseg_chunk_map *chunk[MANY];

static int by_address(const void *a, const void *b)
{
    const struct xseg_chunk_map *const *left = a, *const *right = b;

    return *left < *right ? -1 : *left > *right;
}

static void expect_empty(const struct xseg_chunk_map *at)
{
    static const uint64_t nothing[XSEG_CELLS_WIDE];

    assert_int_equal((uintptr_t)at->word % 64, 0);
    assert_int_equal(at->starts, 0);
    assert_memory_equal(at->bin, nothing, sizeof(nothing));
    for (uint32_t i = 0; i < XSEG_CELLS_WORDS; i++)
        assert_int_equal(at->word[i].start | at->word[i].free, 0);
}

static void each_is_memory_of_its_own(void **state)
{
    struct xseg_chunk_maps chunks = {0};

    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        chunk[i] = xseg_chunk_maps_take(&chunks, NULL, i);
        assert_non_null(chunk[i]);
        assert_int_equal(chunk[i]->number, i);
        expect_empty(chunk[i]);
        memset(chunk[i], 0xA5, sizeof(struct xseg_chunk_map));
        /* What is not used yet is not memory yet. */
        assert_int_equal(chunks.made, i + 1);
        assert_int_equal(chunks.host_bytes, (i + 1) * sizeof(struct xseg_chunk_map));
    }
    qsort(chunk, MANY, sizeof(chunk[0]), by_address);
    for (uint32_t i = 1; i < MANY; i++)
        assert_true(chunk[i - 1] + 1 <= chunk[i]);
    xseg_chunk_maps_fini(&chunks);
    assert_int_equal(chunks.host_bytes, 0);
}

static void what_is_put_back_is_used_again(void **state)
{
    struct xseg_chunk_maps chunks = {0};

    (void)state;
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 100; i++) {
            chunk[i] = xseg_chunk_maps_take(&chunks, NULL, i);
            expect_empty(chunk[i]);
            memset(chunk[i], 0x5A, sizeof(struct xseg_chunk_map));
        }
        const uint32_t made = chunks.made;
        assert_int_equal(made, 100);
        for (uint32_t i = 0; i < 100; i++)
            xseg_chunk_maps_put(&chunks, chunk[i]);
        assert_int_equal(chunks.made, made);
    }
    xseg_chunk_maps_fini(&chunks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_memory_of_its_own),
        cmocka_unit_test(what_is_put_back_is_used_again),
    };

    return cmocka_run_group_tests_name("chunk_maps", tests, NULL, NULL);
}
