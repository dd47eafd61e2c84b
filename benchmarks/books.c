/* SPDX-License-Identifier: MIT */
/*
 * How much host memory does bookkeeping take?  A million blocks of 4 KiB on average are live.  The figures
 * are host memory as a part of the device memory that is mapped for them: as the subject itself counts it,
 * and as the process has grown, the stand-in driver's own tables included.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmarks/live.h"
#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

#define BLOCKS 1000000u

/* Resident memory of this process, in bytes. */
static uint64_t resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long all = 0, here = 0;

    if (file == NULL || fscanf(file, "%llu %llu", &all, &here) != 2)
        exit(3);
    (void)fclose(file);
    return here * (uint64_t)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    static struct live live;

    measure_open(argc, argv, 1);
    if (!live_fits("books", "10^6 live", BLOCKS, 8 << 10))
        return 0;
    subject_free(subject_alloc(1, 0));
    const uint64_t before = resident();
    live_start(&live, BLOCKS, 8 << 10, 0, 1, 1);
    const double mapped = (double)subject_reserved();
    const double grown = (double)(resident() - before - BLOCKS * sizeof(*live.blocks));
    const uint64_t host = subject_host_bytes();
    if (host != SUBJECT_UNKNOWN)
        measure_say("books", "10^6 live", "% of mapped, counted", 100.0 * (double)host / mapped);
    measure_say("books", "10^6 live", "% of mapped, measured", 100.0 * grown / mapped);
    live_end(&live);
    return 0;
}
