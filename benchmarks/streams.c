/* SPDX-License-Identifier: MIT */
/*
 * What do many streams cost?  One thread exchanges small blocks, 1000 live on each stream, on one
 * stream and on eight in turn.
 */
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

int main(int argc, char **argv)
{
    static struct live live;

    measure_open(argc, argv, 8);
    live_start(&live, 1000, 8 << 10, 0, 1, 1);
    const double one =
        measure_steps(&(struct measure){"streams", "1 stream", 400000, live_churn, &live});
    live_end(&live);
    live_start(&live, 8 * 1000, 8 << 10, 0, 8, 1);
    const double eight =
        measure_steps(&(struct measure){"streams", "8 streams", 400000, live_churn, &live});
    live_end(&live);
    measure_say("streams", "8 streams cost", "of one stream", eight / one);
    return 0;
}
