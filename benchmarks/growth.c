/* SPDX-License-Identifier: MIT */
/*
 * A request that maps memory.  Host time is measured, including the work of the simulated driver; driver calls are counted;
 * driver time is modeled.
 *
 * The measurement is repeated with 300 registered ranges of other memory (xseg/register.h), which each growth and release
 * checks, and with memory that is mapped inside a registered range whose callbacks are empty.
 */
#include <stdio.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

static uint64_t grow(void *self, uint64_t count)
{
    const size_t bytes = *(const size_t *)self;
    uint64_t elapsed_ns = 0;

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t start_ns = measure_now();
        void *block = bench_alloc(bytes, 0);
        elapsed_ns += measure_now() - start_ns;
        bench_free(block);
        bench_empty_cache();
    }
    return elapsed_ns;
}

static void count_calls(const char *name, size_t bytes)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    uint64_t before[3], us = bench_driver_us();
    char text[64];

    if (us == BENCH_UNKNOWN)
        return;
    for (unsigned i = 0; i < 3; i++)
        before[i] = bench_driver_calls(calls[i]);
    void *block = bench_alloc(bytes, 0);
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(text, sizeof(text), "%s: %s", name, calls[i]);
        measure_print("growth", text, "calls, counted",
                      (double)(bench_driver_calls(calls[i]) - before[i]), "");
    }
    (void)snprintf(text, sizeof(text), "%s: driver time", name);
    measure_print("growth", text, "us, modeled", (double)(bench_driver_us() - us), "");
    bench_free(block);
    bench_empty_cache();
}

#define REGISTERED       300u
#define REGISTERED_BYTES ((size_t)20 << 20)

/* The ranges are in another pool, so growth does not map memory in them.  Returns false if the allocator has no
 * registration. */
static bool register_ranges(void)
{
    for (unsigned i = 0; i < REGISTERED; i++)
        if (!bench_register(bench_alloc_in_pool(REGISTERED_BYTES, 0, 1), REGISTERED_BYTES))
            return false;
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        size_t bytes;
    } cases[] = {{"2 MiB", 2 << 20}, {"1 GiB", 1 << 30}, {"8 GiB", (size_t)8 << 30}};

    measure_open(argc, argv, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes = cases[i].bytes;

        if (!measure_fits("growth", cases[i].name, bytes))
            continue;
        (void)measure_steps(&(struct measure){"growth", cases[i].name, 1, grow, &bytes});
        count_calls(cases[i].name, bytes);
    }
    if (!measure_fits("growth", "300 registered ranges", REGISTERED * REGISTERED_BYTES) ||
        !register_ranges())
        return 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes = cases[i].bytes;
        char name[64];

        (void)snprintf(name, sizeof(name), "%s, 300 ranges registered", cases[i].name);
        if (measure_fits("growth", name, bytes))
            (void)measure_steps(&(struct measure){"growth", name, 1, grow, &bytes});
    }
    /* The range begins with an allocated page, so the next growth is inside the range. */
    (void)bench_register(bench_alloc(REGISTERED_BYTES, 0), (size_t)1 << 30);
    (void)measure_steps(
        &(struct measure){"growth", "2 MiB, in a registered range", 1, grow, &(size_t){2 << 20}});
    return 0;
}
