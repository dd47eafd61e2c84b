/* SPDX-License-Identifier: MIT */
/* Time of a free and an allocation of blocks of up to 24 MiB, among 10^2 to 10^4 allocated blocks. */
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t count;
    } cases[] = {{"10^2", 100}, {"10^3", 1000}, {"10^4", 10000}};
    static struct live live;

    measure_open(argc, argv, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!live_fits("large", cases[i].name, cases[i].count, 24 << 20))
            continue;
        live_init(&live, cases[i].count, 24 << 20, 0, 1, 1);
        (void)measure_steps(&(struct measure){"large", cases[i].name, 200000, live_churn, &live});
        live_fini(&live);
    }
    return 0;
}
