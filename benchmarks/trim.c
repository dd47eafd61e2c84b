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

struct scene {
    unsigned live_every; /* every live_every-th block stays allocated; 0: no block */
    void *blocks[PAGES];
    uint64_t unmaps, driver_us; /* of the last trim */
};

static uint64_t trim(void *self, uint64_t count)
{
    struct scene *scene = self;
    uint64_t spent = 0;

    for (uint64_t i = 0; i < count; i++) {
        for (unsigned page = 0; page < PAGES; page++)
            if (scene->blocks[page] == NULL)
                scene->blocks[page] = bench_alloc(PAGE, 0);
        for (unsigned page = 0; page < PAGES; page++) {
            if (scene->live_every != 0 && page % scene->live_every == 0)
                continue;
            bench_free(scene->blocks[page]);
            scene->blocks[page] = NULL;
        }
        scene->unmaps = bench_driver_calls("cuMemUnmap");
        scene->driver_us = bench_driver_us();
        const uint64_t began = measure_now();
        bench_empty_cache();
        spent += measure_now() - began;
        scene->unmaps = bench_driver_calls("cuMemUnmap") - scene->unmaps;
        scene->driver_us = bench_driver_us() - scene->driver_us;
    }
    return spent;
}

static void measure_trim(struct scene *scene, const char *name)
{
    char text[64];

    (void)measure_steps(&(struct measure){"trim", name, 1, trim, scene});
    if (bench_driver_us() != BENCH_UNKNOWN) {
        (void)snprintf(text, sizeof(text), "%s: cuMemUnmap", name);
        measure_print("trim", text, "calls, counted", (double)scene->unmaps, "");
        (void)snprintf(text, sizeof(text), "%s: driver time", name);
        measure_print("trim", text, "us, modeled", (double)scene->driver_us, "");
    }
    for (unsigned page = 0; page < PAGES; page++) {
        if (scene->blocks[page] != NULL)
            bench_free(scene->blocks[page]);
        scene->blocks[page] = NULL;
    }
    bench_empty_cache();
}

int main(int argc, char **argv)
{
    static struct scene scene;

    measure_open(argc, argv, 1);
    if (!measure_fits("trim", "307 pages", (uint64_t)PAGES * PAGE))
        return 0;
    measure_trim(&scene, "307 pages");
    scene.live_every = 11;
    measure_trim(&scene, "279 of 307 pages");
    return 0;
}
