/* SPDX-License-Identifier: MIT */
/*
 * Cost of recording a history.  An allocation and its free record three events.  Such pairs are timed without history, with
 * events, and with call stacks of 32 frames; a third of the difference is the cost of an event.  For events without stacks,
 * the time of one read of the clock is subtracted.
 *
 * The pairs have 16 call sites, so the recorder gets different stacks in turn.
 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "benchmarks/team.h"

#define EVENTS 3u /* per pair */
#define SITES  16u
#define BYTES  4096u

/* Recursive frames; with those of the pair, the measurement and the C library there are 32. */
#define DEPTH 22u

/* --- Pairs. --- */

#define SITE(number)                                                                  \
    static __attribute__((noinline)) void site_##number(unsigned stream)              \
    {                                                                                 \
        bench_free(bench_alloc(BYTES, stream));                                       \
        __asm__ volatile(""); /* prevents a tail call and merging of the functions */ \
    }
SITE(0)
SITE(1)
SITE(2)
SITE(3)
SITE(4)
SITE(5)
SITE(6)
SITE(7)
SITE(8)
SITE(9)
SITE(10)
SITE(11)
SITE(12)
SITE(13)
SITE(14)
SITE(15)

static void (*const sites[SITES])(unsigned stream) = {
    site_0, site_1, site_2,  site_3,  site_4,  site_5,  site_6,  site_7,
    site_8, site_9, site_10, site_11, site_12, site_13, site_14, site_15};

struct pairs {
    unsigned stream;
    uint64_t count, ns;
};

/* Run the pairs below `frames` recursive calls. */
static __attribute__((noinline)) void recurse(struct pairs *pairs, unsigned frames)
{
    if (frames > 0) {
        recurse(pairs, frames - 1);
        __asm__ volatile(""); /* prevents a tail call */
        return;
    }
    const uint64_t start_ns = measure_now();
    for (uint64_t i = 0; i < pairs->count; i++)
        sites[i % SITES](pairs->stream);
    pairs->ns = measure_now() - start_ns;
}

static uint64_t run_pairs(void *self, uint64_t count)
{
    struct pairs *pairs = self;

    pairs->count = count;
    recurse(pairs, DEPTH);
    return pairs->ns;
}

static double measure(const char *name, uint64_t (*steps)(void *self, uint64_t count), void *self)
{
    return measure_steps(&(struct measure){"history", name, 200000, steps, self});
}

/* --- The clock. --- */

#define READS 100000u

static inline uint64_t read_clock(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc(); /* both allocators read this clock */
#elif defined(__aarch64__)
    uint64_t ticks;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return measure_now();
#endif
}

/* Nanoseconds of one read: the minimum of several runs. */
static double time_clock(void)
{
    uint64_t minimum = UINT64_MAX;

    for (unsigned tries = 0; tries < 20; tries++) {
        volatile uint64_t last = 0;
        const uint64_t start_ns = measure_now();

        for (uint64_t i = 0; i < READS; i++)
            last = read_clock();
        const uint64_t ns = measure_now() - start_ns;
        minimum = ns < minimum ? ns : minimum;
        (void)last;
    }
    return (double)minimum / READS;
}

/* --- Threads. --- */

static void measure_threads(const char *const names[2])
{
    static struct pairs pairs[2] = {{.stream = 1}, {.stream = 2}};
    struct team team = {.work = run_pairs, .self = {&pairs[0], &pairs[1]}};
    double ns[2];

    for (team.count = 1; team.count <= 2; team.count++)
        ns[team.count - 1] = measure(names[team.count - 1], team_run, &team);
    measure_print("history", "2 threads / 1 thread", "ratio", ns[1] / ns[0], "");
}

int main(int argc, char **argv)
{
    struct pairs pairs = {.stream = 0};

    measure_open(argc, argv, 3);
    const double off = measure("off", run_pairs, &pairs);
    const double clock = time_clock();

    measure_print("history", "clock read", "ns, minimum", clock, "");
    if (bench_record_history(BENCH_EVENTS)) {
        const double on = measure("events", run_pairs, &pairs);

        measure_print("history", "event, without clock read", "ns per event",
                      (on - off) / EVENTS - clock, "");
        if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
            measure_threads((const char *[]){"events, 1 thread", "events, 2 threads"});
    }
    if (bench_record_history(BENCH_EVENTS_AND_STACKS)) {
        const double on = measure("events with 32 frames", run_pairs, &pairs);

        measure_print("history", "event with 32 frames", "ns per event", (on - off) / EVENTS,
                      bench_stack_method());
    }
    return 0;
}
