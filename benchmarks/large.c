/* SPDX-License-Identifier: MIT */
/*
 * What does an exchange of blocks of up to 24 MiB cost, and how does that grow with the number of live ones?
 */
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
        live_start(&live, cases[i].count, 24 << 20, 0, 1, 1);
        (void)measure_steps(&(struct measure){"large", cases[i].name, 200000, live_churn, &live});
        live_end(&live);
    }
    return 0;
}
