/* SPDX-License-Identifier: MIT */
/* Zeroed memory: what it promises, whatever the process has freed before. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/host_memory.h"
#include "tests/support/test.h"

/* How many of a piece's pages are there. */
static size_t resident(void *memory, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)memory % page;
    const size_t pages = (before + bytes + page - 1) / page;
    unsigned char *there = malloc(pages);
    size_t count = 0;

    assert_non_null(there);
    assert_int_equal(mincore((char *)memory - before, before + bytes, there), 0);
    for (size_t i = 0; i < pages; i++)
        count += there[i] & 1;
    free(there);
    return count;
}

/* From here on calloc() takes large pieces from the heap. */
static void free_something_large(void)
{
    char *memory = malloc((size_t)24 << 20);

    assert_non_null(memory);
    memset(memory, 1, (size_t)24 << 20);
    free(memory);
}

TEST(untouched_pages_are_not_resident)
{
    const size_t bytes = (size_t)8 << 20;

    free_something_large();
    unsigned char *memory = xseg_demand_zero_alloc(bytes);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(resident(memory, bytes), 0);
    memory[bytes / 2] = 1;
    assert_int_equal(resident(memory, bytes), 1);
    xseg_demand_zero_free(memory, bytes);
}

/* Else what they have at the same place would share a set of the first cache. */
TEST(allocations_start_in_different_cache_lines)
{
    enum { PIECES = 64 };
    void *piece[PIECES];
    uint64_t lines = 0;

    for (unsigned i = 0; i < PIECES; i++) {
        piece[i] = xseg_demand_zero_alloc(XSEG_DEMAND_ZERO_LARGE);
        assert_non_null(piece[i]);
        lines |= (uint64_t)1 << (uintptr_t)piece[i] % 4096 / 64;
    }
    assert_int_equal(lines, UINT64_MAX);
    for (unsigned i = 0; i < PIECES; i++)
        xseg_demand_zero_free(piece[i], XSEG_DEMAND_ZERO_LARGE);
}

TEST(every_byte_is_zero)
{
    static const size_t sizes[] = {1, 4096, XSEG_DEMAND_ZERO_LARGE - 1, XSEG_DEMAND_ZERO_LARGE,
                                   XSEG_DEMAND_ZERO_LARGE + 1};

    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            unsigned char *memory = xseg_demand_zero_alloc(sizes[i]);

            assert_non_null(memory);
            for (size_t at = 0; at < sizes[i]; at++)
                assert_int_equal(memory[at], 0);
            memset(memory, 0xff, sizes[i]);
            xseg_demand_zero_free(memory, sizes[i]);
        }
    }
    xseg_demand_zero_free(NULL, 1);
    xseg_demand_zero_free(NULL, XSEG_DEMAND_ZERO_LARGE);
}
