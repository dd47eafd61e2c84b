/* SPDX-License-Identifier: MIT */
/*
 * Churn of small blocks by concurrent threads, each on its own stream with 1000 allocated blocks.  The time is that of one free
 * and allocation by one of the threads.
 */
#include <stdio.h>
#include <unistd.h>

#include "benchmarks/live.h"
#include "benchmarks/measure.h"
#include "benchmarks/team.h"

#define THREADS_MAX 4u

int main(int argc, char **argv)
{
    static struct live live[THREADS_MAX];
    static const char *const names[] = {"1 thread", "2 threads", "3 threads", "4 threads"};
    struct team team = {.work = live_churn};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double single_ns = 0;

    measure_open(argc, argv, THREADS_MAX);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        live_init(&live[i], 1000, 8 << 10, i, 1, i + 1);
        team.self[i] = &live[i];
    }
    for (unsigned count = 1; count <= THREADS_MAX && count <= (unsigned long)cores; count *= 2) {
        team.count = count;
        const double ns =
            measure_steps(&(struct measure){"threads", names[count - 1], 400000, team_run, &team});
        if (count == 1)
            single_ns = ns;
        else
            measure_print("threads",
                          count == 2 ? "throughput of 2 threads" : "throughput of 4 threads",
                          "of 1 thread", count * single_ns / ns, "");
    }
    return 0;
}
