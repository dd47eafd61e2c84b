/* SPDX-License-Identifier: MIT */
/*
 * Time, additional host memory and file size of two snapshots: 10^6 events with 10^4 distinct call stacks, and the state of
 * 10^4 blocks without events.
 *
 * Files are in the directory for temporary files, which should be in memory or on a local disk.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define EVENTS 1000000u
#define STACKS 10000u
#define BLOCKS 10000u
#define ROUNDS 5u

static void check(xseg_status status, const char *operation)
{
    char text[512];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", operation, text);
    exit(1);
}

static struct xseg_allocator *open_on(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    settings.memory_bytes = (uint64_t)64 << 30;
    check(xseg_sim_reset(&settings), "xseg_sim_reset");
    options.driver = BENCH_DRIVER;
    check(xseg_open(config, &options, &allocator), "xseg_open");
    return allocator;
}

/* --- Events. --- */

static void run_pair(struct xseg_allocator *allocator)
{
    void *ptr = NULL;

    check(xseg_alloc(allocator, 0, 4096, NULL, &ptr), "xseg_alloc");
    check(xseg_free(allocator, ptr), "xseg_free");
}

/* The bits of `path` select one of two functions at each level, so each path has a different call stack. */
static void recurse(struct xseg_allocator *allocator, unsigned path, unsigned bits);

static __attribute__((noinline)) void recurse_left(struct xseg_allocator *allocator, unsigned path,
                                                   unsigned bits)
{
    recurse(allocator, path, bits);
    __asm__ volatile("");
}

static __attribute__((noinline)) void recurse_right(struct xseg_allocator *allocator, unsigned path,
                                                    unsigned bits)
{
    recurse(allocator, path, bits);
    __asm__ volatile("");
}

static __attribute__((noinline)) void recurse(struct xseg_allocator *allocator, unsigned path,
                                              unsigned bits)
{
    if (bits == 0)
        run_pair(allocator);
    else if (path % 2 == 0)
        recurse_left(allocator, path / 2, bits - 1);
    else
        recurse_right(allocator, path / 2, bits - 1);
    __asm__ volatile("");
}

/* --- Measuring. --- */

static double now_s(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double peak_mib(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static int compare_doubles(const void *first, const void *second)
{
    const double a = *(const double *)first, b = *(const double *)second;

    return (a > b) - (a < b);
}

/* Write several snapshots, and print the median time, the host memory of the first one, and the size. */
static void measure(struct xseg_allocator *allocator, const char *name, bool without_events)
{
    struct xseg_snapshot_options options = {sizeof(options)};
    char path[128];
    struct stat status = {.st_size = 0};
    double seconds[ROUNDS], growth_mib = 0;

    options.without_events = without_events;
    (void)snprintf(path, sizeof(path), P_tmpdir "/xseg-bench-%ld", (long)getpid());
    for (unsigned i = 0; i < ROUNDS; i++) {
        const double peak = peak_mib(), start_s = now_s();

        check(xseg_snapshot(allocator, path, &options), "xseg_snapshot");
        seconds[i] = now_s() - start_s;
        growth_mib = i == 0 ? peak_mib() - peak : growth_mib;
    }
    (void)stat(path, &status);
    (void)unlink(path);
    qsort(seconds, ROUNDS, sizeof(*seconds), compare_doubles);
    printf("%-36s %9.1f ms %9.1f MiB of host memory %9.1f MiB file\n", name,
           seconds[ROUNDS / 2] * 1e3, growth_mib, (double)status.st_size / (1 << 20));
    (void)fflush(stdout);
}

int main(void)
{
    static void *blocks[BLOCKS];
    struct xseg_allocator *allocator = open_on("expandable_segments:True,history:state");

    for (unsigned i = 0; i < BLOCKS; i++)
        check(xseg_alloc(allocator, 0, 2048 + i % 7 * 300000, NULL, &blocks[i]), "xseg_alloc");
    measure(allocator, "state of 10^4 blocks", false);
    for (unsigned i = 0; i < BLOCKS; i++)
        check(xseg_free(allocator, blocks[i]), "xseg_free");
    check(xseg_close(allocator), "xseg_close");
    allocator =
        open_on("expandable_segments:True,history:all,history_stacks:all,history_events:1000000");
    for (unsigned i = 0; i < EVENTS / 3; i++)
        recurse(allocator, i % (STACKS / 2), 13);
    measure(allocator, "10^6 events, 10^4 stacks", false);
    measure(allocator, "10^4 stacks, without events", true);
    check(xseg_close(allocator), "xseg_close");
    return 0;
}
