/* SPDX-License-Identifier: MIT */
#include "benchmarks/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/bench.h"

#define BATCHES_MIN 7
#define BATCHES_MAX 400
#define BATCH_NS    5000000u /* short, so that most batches are not interrupted by other programs */
#define SPREAD \
    0.02 /* difference of the quartiles, relative to the median, that ends a measurement */

static double seconds = 1.0;
static uint64_t max_warm_up_steps = UINT64_MAX;

uint64_t measure_now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void measure_open(int argc, char **argv, unsigned streams)
{
    const char *config = "expandable_segments:True";

    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--config") == 0) {
            config = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[++i], NULL);
        } else if (i + 1 < argc && strcmp(argv[i], "--warm") == 0) {
            max_warm_up_steps = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--at-once") == 0) {
            continue; /* an option of the benchmark */
        } else if (argv[i][0] == '-') {
            (void)fprintf(stderr,
                          "usage: %s [--config STRING] [--seconds S] [--warm N] [FILE...]\n",
                          argv[0]);
            exit(2);
        }
    }
    bench_open(config, streams);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Times of batches in ascending order. */
struct batches {
    double ns[BATCHES_MAX];
    unsigned count;
};

static double quantile(const struct batches *batches, double fraction)
{
    const double position = fraction * (batches->count - 1);
    const unsigned low = (unsigned)position;
    const unsigned high = low + (low + 1 < batches->count);

    return batches->ns[low] + (position - low) * (batches->ns[high] - batches->ns[low]);
}

static void add_batch(struct batches *batches, double ns)
{
    batches->ns[batches->count++] = ns;
    qsort(batches->ns, batches->count, sizeof(batches->ns[0]), compare_doubles);
}

static bool is_finished(const struct batches *batches, uint64_t start_ns)
{
    const double median = quantile(batches, 0.5);

    if (batches->count < BATCHES_MIN)
        return (double)(measure_now() - start_ns) > 4e9 * seconds && batches->count > 2;
    return batches->count == BATCHES_MAX || (double)(measure_now() - start_ns) > 1e9 * seconds ||
           (batches->count >= 4 * BATCHES_MIN &&
            quantile(batches, 0.75) - quantile(batches, 0.25) < SPREAD * median);
}

static double print_row(const struct measure *measure, const struct batches *batches)
{
    const double median = quantile(batches, 0.5);

    printf("%s\t%s\t%s\tns\t%.1f\t%.1f\t%.1f\t%u\n", measure->benchmark, measure->name,
           bench_name(), median, quantile(batches, 0.25), quantile(batches, 0.75), batches->count);
    (void)fflush(stdout);
    return median;
}

/* Get the shorter time of two runs.  After an interrupted run, batches would have few steps, and most of their time would be
 * the start of threads. */
static uint64_t time_steps(const struct measure *measure, uint64_t steps)
{
    const uint64_t first = measure->steps(measure->self, steps);
    const uint64_t second = measure->steps(measure->self, steps);

    return first < second ? first : second;
}

double measure_steps(const struct measure *measure)
{
    struct batches batches = {.count = 0};
    const uint64_t warm_up =
        measure->warm_up < max_warm_up_steps ? measure->warm_up : max_warm_up_steps;
    uint64_t steps = 1, ns = measure->steps(measure->self, warm_up);

    while ((ns = time_steps(measure, steps)) < BATCH_NS)
        steps = ns < BATCH_NS / 16 ? steps * 8 : steps * 2;
    const uint64_t start_ns = measure_now();
    do
        add_batch(&batches, (double)measure->steps(measure->self, steps) / (double)steps);
    while (!is_finished(&batches, start_ns));
    return print_row(measure, &batches);
}

double measure_events(const struct measure *measure, uint64_t events)
{
    struct batches batches = {.count = 0};

    (void)measure->steps(measure->self, 1);
    const uint64_t start_ns = measure_now();
    do
        add_batch(&batches, (double)measure->steps(measure->self, 1) / (double)events);
    while (!is_finished(&batches, start_ns));
    return print_row(measure, &batches);
}

bool measure_fits(const char *benchmark, const char *name, uint64_t bytes)
{
    const double gib = 1 << 30;
    const uint64_t memory = bench_free_memory();

    if (bytes <= memory / 10 * 9)
        return true;
    (void)fprintf(stderr, "%s, %s: left out, it takes %.1f GiB and %.1f GiB are free\n", benchmark,
                  name, (double)bytes / gib, (double)memory / gib);
    return false;
}

void measure_print(const char *benchmark, const char *name, const char *unit, double value,
                   const char *note)
{
    printf("%s\t%s\t%s\t%s\t%.6g\t%.6g\t%.6g\t1%s%s\n", benchmark, name, bench_name(), unit, value,
           value, value, note[0] == '\0' ? "" : "\t", note);
    (void)fflush(stdout);
}
