/* SPDX-License-Identifier: MIT */
/*
 * A given number of pairs of one allocation and one free, for tools that count instructions, cache misses and branch misses.
 * The difference between two runs with different numbers of pairs is exactly the cost of the additional pairs.
 *
 *     bench-pairs CASE PAIRS [time]     same_block, same_large, small_churn, mid_churn or large_churn
 *
 * With `time` it prints the measured nanoseconds per pair, without the warm-up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/bench.h"
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

#define WARM 20000u

static const struct {
    const char *name;
    uint32_t count;
    size_t max_bytes;
} churns[] = {
    {"small_churn", 1000, 8 << 10}, {"mid_churn", 1000, 1 << 20}, {"large_churn", 1000, 24 << 20}};

#define CHURNS (sizeof(churns) / sizeof(churns[0]))

static uint64_t same_block(size_t bytes, uint64_t count)
{
    const uint64_t start_ns = measure_now();

    for (uint64_t i = 0; i < count; i++)
        bench_free(bench_alloc(bytes, 0));
    return measure_now() - start_ns;
}

int main(int argc, char **argv)
{
    static struct live live;
    char *program = argv[0];

    const bool is_timed = argc == 4 && strcmp(argv[3], "time") == 0;

    if (argc != 3 && !is_timed) {
        (void)fprintf(stderr, "usage: %s CASE PAIRS [time]\n", program);
        return 2;
    }
    const uint64_t pairs = strtoull(argv[2], NULL, 10);
    uint64_t ns = 0;
    measure_open(1, &program, 1);
    if (strcmp(argv[1], "same_block") == 0 || strcmp(argv[1], "same_large") == 0) {
        const size_t bytes = strcmp(argv[1], "same_block") == 0 ? 4096 : 8 << 20;

        (void)same_block(bytes, WARM);
        ns = same_block(bytes, pairs);
    } else {
        size_t i = 0;

        while (i < CHURNS && strcmp(argv[1], churns[i].name) != 0)
            i++;
        if (i == CHURNS) {
            (void)fprintf(stderr, "%s: unknown case, %s\n", program, argv[1]);
            return 2;
        }
        if (!live_fits("pairs", churns[i].name, churns[i].count, churns[i].max_bytes))
            return 3;
        live_init(&live, churns[i].count, churns[i].max_bytes, 0, 1, 1);
        (void)live_churn(&live, WARM);
        ns = live_churn(&live, pairs);
        live_fini(&live);
    }
    if (is_timed)
        printf("%.1f\n", (double)ns / (double)(pairs > 0 ? pairs : 1));
    return 0;
}
