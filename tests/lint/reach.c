/* SPDX-License-Identifier: MIT */
/*
 * A single call, seen by callgrind alone: `reach CASE`.  reach.py compiles and runs this programme.
 *
 * The call has been made before in the same way, so tables have grown and pages of records are there.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define MIB   ((size_t)1 << 20)
#define SMALL ((size_t)4096)
#define LARGE (40 * MIB) /* two pages */

enum { WARM = 16 };

static struct xseg_allocator *allocator;

static void expect(bool is_good, const char *what)
{
    if (is_good)
        return;
    (void)fprintf(stderr, "reach: %s\n", what);
    exit(2);
}

static void *allocate(size_t bytes)
{
    void *ptr = NULL;

    expect(xseg_alloc(allocator, 0, bytes, NULL, &ptr) == XSEG_OK, "xseg_alloc");
    return ptr;
}

static void give(void *ptr)
{
    expect(xseg_free(allocator, ptr) == XSEG_OK, "xseg_free");
}

/* Trim everything; the bytes that went back to the driver. */
static uint64_t trim(void)
{
    struct xseg_trimmed out = XSEG_TRIMMED_INIT;

    expect(xseg_trim(allocator, NULL, NULL, &out) == XSEG_OK, "xseg_trim");
    return out.returned;
}

static uint64_t reserved(void)
{
    struct xseg_where where = XSEG_WHERE_ANY;
    struct xseg_statistics stats;

    stats.struct_bytes = sizeof(stats);
    where.device = 0;
    expect(xseg_stats(allocator, &where, &stats) == XSEG_OK, "xseg_stats");
    return stats.reserved_bytes[XSEG_STAT_ALL].current;
}

/* A small block, into a hole of its size between live blocks. */
static void small_hit(void)
{
    const uint64_t before = reserved();

    CALLGRIND_START_INSTRUMENTATION;
    void *ptr = allocate(SMALL);
    CALLGRIND_STOP_INSTRUMENTATION;
    expect(reserved() == before, "the small block was no hit");
    give(ptr);
}

static void small_free(void)
{
    void *ptr = allocate(SMALL);

    CALLGRIND_START_INSTRUMENTATION;
    give(ptr);
    CALLGRIND_STOP_INSTRUMENTATION;
}

/* A large block in an expandable segment, beneath which pages have to be mapped. */
static void large_miss(void)
{
    const uint64_t before = reserved();

    CALLGRIND_START_INSTRUMENTATION;
    void *ptr = allocate(LARGE);
    CALLGRIND_STOP_INSTRUMENTATION;
    expect(reserved() == before + LARGE, "the large block was no miss");
    give(ptr);
    expect(trim() == LARGE, "what the miss had mapped is not given back");
}

static void large_trim(void)
{
    give(allocate(LARGE));
    CALLGRIND_START_INSTRUMENTATION;
    const uint64_t returned = trim();
    CALLGRIND_STOP_INSTRUMENTATION;
    expect(returned == LARGE, "the trim unmapped something else than the block");
}

static const struct {
    const char *name;
    void (*make)(void);
} cases[] = {
    {"small_hit", small_hit},
    {"small_free", small_free},
    {"large_miss", large_miss},
    {"large_trim", large_trim},
};

/* Blocks of both sizes that stay, small holes between them, and calls of each kind. */
static void warm_up(void)
{
    void *small[WARM];

    (void)allocate(LARGE);
    for (int i = 0; i < WARM; i++)
        small[i] = allocate(SMALL);
    for (int i = 1; i < WARM; i += 2)
        give(small[i]);
    for (int i = 0; i < WARM; i++) {
        give(allocate(LARGE));
        (void)trim();
    }
    for (int i = 0; i < WARM; i++)
        give(allocate(SMALL));
}

int main(int argc, char **argv)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_options options = XSEG_OPTIONS_INIT;

    expect(argc == 2, "usage: reach CASE");
    expect(xseg_sim_reset(&settings) == XSEG_OK, "xseg_sim_reset");
    expect(xseg_open("expandable_segments:True", &options, &allocator) == XSEG_OK, "xseg_open");
    warm_up();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].make();
            return 0;
        }
    }
    expect(false, "no such case");
}
