/* SPDX-License-Identifier: MIT */
/*
 * What does it take to give idle memory back?  307 pages of 20 MiB that lie side by side: as one idle
 * stretch, and with a live block in every eleventh.  As in growth.c, only host time is measured.
 */
#include <stdio.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

#define PAGES 307u
#define PAGE  ((size_t)20 << 20)

struct scene {
    unsigned live_every; /* one block in so many stays live; 0: none */
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
                scene->blocks[page] = subject_alloc(PAGE, 0);
        for (unsigned page = 0; page < PAGES; page++) {
            if (scene->live_every != 0 && page % scene->live_every == 0)
                continue;
            subject_free(scene->blocks[page]);
            scene->blocks[page] = NULL;
        }
        scene->unmaps = subject_calls("cuMemUnmap");
        scene->driver_us = subject_driver_us();
        const uint64_t began = measure_now();
        subject_empty();
        spent += measure_now() - began;
        scene->unmaps = subject_calls("cuMemUnmap") - scene->unmaps;
        scene->driver_us = subject_driver_us() - scene->driver_us;
    }
    return spent;
}

static void measure_trim(struct scene *scene, const char *name)
{
    char text[64];

    (void)measure_steps(&(struct measure){"trim", name, 1, trim, scene});
    if (subject_driver_us() != SUBJECT_UNKNOWN) {
        (void)snprintf(text, sizeof(text), "%s: cuMemUnmap", name);
        measure_say("trim", text, "calls, counted", (double)scene->unmaps);
        (void)snprintf(text, sizeof(text), "%s: driver time", name);
        measure_say("trim", text, "us, modelled", (double)scene->driver_us);
    }
    for (unsigned page = 0; page < PAGES; page++) {
        if (scene->blocks[page] != NULL)
            subject_free(scene->blocks[page]);
        scene->blocks[page] = NULL;
    }
    subject_empty();
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
