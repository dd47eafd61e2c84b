/* SPDX-License-Identifier: MIT */
/* Churn of small blocks by one thread on one stream, and on eight streams in turn; 1000 allocated blocks on each stream. */
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

int main(int argc, char **argv)
{
    static struct live live;

    measure_open(argc, argv, 8);
    live_init(&live, 1000, 8 << 10, 0, 1, 1);
    const double single_ns =
        measure_steps(&(struct measure){"streams", "1 stream", 400000, live_churn, &live});
    live_fini(&live);
    live_init(&live, 8 * 1000, 8 << 10, 0, 8, 1);
    const double eight_ns =
        measure_steps(&(struct measure){"streams", "8 streams", 400000, live_churn, &live});
    live_fini(&live);
    measure_print("streams", "8 streams / 1 stream", "ratio", eight_ns / single_ns, "");
    return 0;
}
