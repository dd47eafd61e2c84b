/* SPDX-License-Identifier: MIT */
/*
 * Do threads on streams of their own disturb each other?  Each exchanges small blocks, 1000 live; the
 * figure is what one of them takes for an exchange while all are at it.
 */
#include <stdio.h>
#include <unistd.h>

#include "benchmarks/live.h"
#include "benchmarks/measure.h"
#include "benchmarks/team.h"

#define THREADS_MOST 4u

int main(int argc, char **argv)
{
    static struct live live[THREADS_MOST];
    static const char *const names[] = {"1 thread", "2 threads", "3 threads", "4 threads"};
    struct team team = {.work = live_churn};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double one = 0;

    measure_open(argc, argv, THREADS_MOST);
    for (unsigned i = 0; i < THREADS_MOST; i++) {
        live_start(&live[i], 1000, 8 << 10, i, 1, i + 1);
        team.self[i] = &live[i];
    }
    for (unsigned count = 1; count <= THREADS_MOST && count <= (unsigned long)cores; count *= 2) {
        team.count = count;
        const double ns =
            measure_steps(&(struct measure){"threads", names[count - 1], 400000, team_run, &team});
        if (count == 1)
            one = ns;
        else
            measure_say("threads", count == 2 ? "work of 2 threads" : "work of 4 threads",
                        "of one thread", count * one / ns);
    }
    return 0;
}
