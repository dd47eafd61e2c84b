/* SPDX-License-Identifier: MIT */
/*
 * Release of 307 adjacent pages of 20 MiB: all idle, and with an allocated block in every eleventh.  Host time is measured,
 * driver calls are counted, and driver time is modeled, as in growth.c.
 */
#include <stdio.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

#define PAGES 307u
#define PAGE  ((size_t)20 << 20)

struct state {
    unsigned allocated_interval; /* blocks at multiples of it remain allocated; 0: none */
    void *blocks[PAGES];
    uint64_t unmaps, driver_us; /* of the last trim */
};

static uint64_t trim(void *self, uint64_t count)
{
    struct state *state = self;
    uint64_t elapsed_ns = 0;

    for (uint64_t i = 0; i < count; i++) {
        for (unsigned page = 0; page < PAGES; page++)
            if (state->blocks[page] == NULL)
                state->blocks[page] = bench_alloc(PAGE, 0);
        for (unsigned page = 0; page < PAGES; page++) {
            if (state->allocated_interval != 0 && page % state->allocated_interval == 0)
                continue;
            bench_free(state->blocks[page]);
            state->blocks[page] = NULL;
        }
        state->unmaps = bench_driver_calls("cuMemUnmap");
        state->driver_us = bench_driver_us();
        const uint64_t start_ns = measure_now();
        bench_empty_cache();
        elapsed_ns += measure_now() - start_ns;
        state->unmaps = bench_driver_calls("cuMemUnmap") - state->unmaps;
        state->driver_us = bench_driver_us() - state->driver_us;
    }
    return elapsed_ns;
}

static void measure_trim(struct state *state, const char *name)
{
    char text[64];

    (void)measure_steps(&(struct measure){"trim", name, 1, trim, state});
    if (bench_driver_us() != BENCH_UNKNOWN) {
        (void)snprintf(text, sizeof(text), "%s: cuMemUnmap", name);
        measure_print("trim", text, "calls, counted", (double)state->unmaps, "");
        (void)snprintf(text, sizeof(text), "%s: driver time", name);
        measure_print("trim", text, "us, modeled", (double)state->driver_us, "");
    }
    for (unsigned page = 0; page < PAGES; page++) {
        if (state->blocks[page] != NULL)
            bench_free(state->blocks[page]);
        state->blocks[page] = NULL;
    }
    bench_empty_cache();
}

int main(int argc, char **argv)
{
    static struct state state;

    measure_open(argc, argv, 1);
    if (!measure_fits("trim", "307 pages", (uint64_t)PAGES * PAGE))
        return 0;
    measure_trim(&state, "307 pages");
    state.allocated_interval = 11;
    measure_trim(&state, "279 of 307 pages");
    return 0;
}
