/* SPDX-License-Identifier: MIT */
/* Time of an allocation that hits and its free; each pair gets the same block. */
#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

static uint64_t same_block(void *self, uint64_t count)
{
    const size_t bytes = *(const size_t *)self;
    const uint64_t start_ns = measure_now();

    for (uint64_t i = 0; i < count; i++)
        bench_free(bench_alloc(bytes, 0));
    return measure_now() - start_ns;
}

int main(int argc, char **argv)
{
    size_t small = 4096, large = 8 << 20;

    measure_open(argc, argv, 1);
    (void)measure_steps(&(struct measure){"hit", "4 KiB", 100000, same_block, &small});
    (void)measure_steps(&(struct measure){"hit", "8 MiB", 100000, same_block, &large});
    return 0;
}
