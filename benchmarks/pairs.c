/* SPDX-License-Identifier: MIT */
/*
 * So many allocations and frees, and nothing else: for tools that count instructions, cache and branch
 * misses.  What two lengths differ by is what their pairs cost, to the instruction.
 *
 *     bench-pairs CASE PAIRS        same_block, same_large, small_churn, mid_churn or large_churn
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/live.h"
#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

#define WARM 20000u

static const struct {
    const char *name;
    uint32_t count;
    size_t most;
} churns[] = {
    {"small_churn", 1000, 8 << 10}, {"mid_churn", 1000, 1 << 20}, {"large_churn", 1000, 24 << 20}};

static void same_block(size_t bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        subject_free(subject_alloc(bytes, 0));
}

int main(int argc, char **argv)
{
    static struct live live;
    char *program = argv[0];

    if (argc != 3) {
        (void)fprintf(stderr, "usage: %s CASE PAIRS\n", program);
        return 2;
    }
    const uint64_t pairs = strtoull(argv[2], NULL, 10);
    measure_open(1, &program, 1);
    if (strcmp(argv[1], "same_block") == 0 || strcmp(argv[1], "same_large") == 0) {
        const size_t bytes = strcmp(argv[1], "same_block") == 0 ? 4096 : 8 << 20;

        same_block(bytes, WARM);
        same_block(bytes, pairs);
        return 0;
    }
    for (size_t i = 0; i < sizeof(churns) / sizeof(churns[0]); i++) {
        if (strcmp(argv[1], churns[i].name) != 0)
            continue;
        live_start(&live, churns[i].count, churns[i].most, 0, 1, 1);
        (void)live_churn(&live, WARM);
        (void)live_churn(&live, pairs);
        live_end(&live);
        return 0;
    }
    (void)fprintf(stderr, "%s: no such case: %s\n", program, argv[1]);
    return 2;
}
