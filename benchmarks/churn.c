/* SPDX-License-Identifier: MIT */
/* Time of a free and an allocation of blocks of up to 8 KiB, among 10^3 to 10^6 allocated blocks. */
#include "benchmarks/live.h"
#include "benchmarks/measure.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint32_t count;
    } cases[] = {{"10^3", 1000}, {"10^4", 10000}, {"10^5", 100000}, {"10^6", 1000000}};
    static struct live live;

    measure_open(argc, argv, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!live_fits("churn", cases[i].name, cases[i].count, 8 << 10))
            continue;
        live_init(&live, cases[i].count, 8 << 10, 0, 1, 1);
        (void)measure_steps(&(struct measure){"churn", cases[i].name, 400000, live_churn, &live});
        live_fini(&live);
    }
    return 0;
}
