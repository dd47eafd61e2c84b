/* SPDX-License-Identifier: MIT */
/*
 * What does a request take for which memory has to be mapped first?  Host time is measured, the stand-in
 * driver's own work included; driver calls are counted; what they would cost on a GPU is modelled.  Then again beside 300
 * ranges of other memory that is registered (xseg/register.h), all of which each growth and shrink looks at; at last
 * with memory that comes beneath a registered range, by functions that do nothing.
 */
#include <stdio.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

static uint64_t grow(void *self, uint64_t count)
{
    const size_t bytes = *(const size_t *)self;
    uint64_t spent = 0;

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t began = measure_now();
        void *block = subject_alloc(bytes, 0);
        spent += measure_now() - began;
        subject_free(block);
        subject_empty();
    }
    return spent;
}

static void count_calls(const char *name, size_t bytes)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    uint64_t before[3], us = subject_driver_us();
    char text[64];

    if (us == SUBJECT_UNKNOWN)
        return;
    for (unsigned i = 0; i < 3; i++)
        before[i] = subject_calls(calls[i]);
    void *block = subject_alloc(bytes, 0);
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(text, sizeof(text), "%s: %s", name, calls[i]);
        measure_say("growth", text, "calls, counted",
                    (double)(subject_calls(calls[i]) - before[i]));
    }
    (void)snprintf(text, sizeof(text), "%s: driver time", name);
    measure_say("growth", text, "us, modelled", (double)(subject_driver_us() - us));
    subject_free(block);
    subject_empty();
}

#define REGISTERED       300u
#define REGISTERED_BYTES ((size_t)20 << 20)

/* The ranges are of another pool, so that nothing of them grows.  Returns false where the subject does not register. */
static bool register_ranges(void)
{
    for (unsigned i = 0; i < REGISTERED; i++)
        if (!subject_register(subject_alloc_in(REGISTERED_BYTES, 0, 1), REGISTERED_BYTES))
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
    /* What comes behind a page that is in use lies in the range. */
    (void)subject_register(subject_alloc(REGISTERED_BYTES, 0), (size_t)1 << 30);
    (void)measure_steps(
        &(struct measure){"growth", "2 MiB, in a registered range", 1, grow, &(size_t){2 << 20}});
    return 0;
}
