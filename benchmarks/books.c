/* SPDX-License-Identifier: MIT */
/*
 * How much host memory does bookkeeping take?  A million live blocks of 4 KiB on average, counted by the
 * subject itself, as a part of the device memory that is mapped for them.
 */
#include "benchmarks/live.h"
#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

int main(int argc, char **argv)
{
    static struct live live;

    measure_open(argc, argv, 1);
    live_start(&live, 1000000, 8 << 10, 0, 1, 1);
    const uint64_t host = subject_host_bytes();
    if (host != SUBJECT_UNKNOWN)
        measure_say("books", "10^6 live", "% of mapped, counted",
                    100.0 * (double)host / (double)subject_reserved());
    live_end(&live);
    return 0;
}
