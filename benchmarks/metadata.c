/* SPDX-License-Identifier: MIT */
/*
 * Host memory of the allocator's metadata with 10^6 live blocks of 4 KiB on average, in percent of the mapped device memory.
 *
 * One row is the count of the allocator.  The other row is the growth of the process, with the tables of the simulated driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmarks/bench.h"
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

#define BLOCKS 1000000u

static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long size = 0, resident = 0;

    if (file == NULL || fscanf(file, "%llu %llu", &size, &resident) != 2)
        exit(3);
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    static struct live live;

    measure_open(argc, argv, 1);
    if (!live_fits("metadata", "10^6 live", BLOCKS, 8 << 10))
        return 0;
    bench_free(bench_alloc(1, 0));
    const uint64_t before = resident_bytes();
    live_init(&live, BLOCKS, 8 << 10, 0, 1, 1);
    const double mapped = (double)bench_reserved_bytes();
    const double growth = (double)(resident_bytes() - before - BLOCKS * sizeof(*live.blocks));
    const uint64_t host = bench_host_bytes();
    if (host != BENCH_UNKNOWN)
        measure_print("metadata", "10^6 live", "%, counted", 100.0 * (double)host / mapped, "");
    measure_print("metadata", "10^6 live", "%, measured", 100.0 * growth / mapped, "");
    live_fini(&live);
    return 0;
}
