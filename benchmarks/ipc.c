/* SPDX-License-Identifier: MIT */
/*
 * CUDA IPC handles of expandable memory (xseg/ipc.h): the time to get, open and close a handle of a segment with 1, 10, 100
 * and 1000 pages of 20 MiB.  The exporter and the importer are one process.
 *
 * Host time is the median of many rounds, and includes the exporter's thread, the socket and the simulated driver.  Driver
 * time is modeled, for an A100, and includes the calls that the exporter makes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define ROUNDS 51u
#define PAGE   ((size_t)20 << 20)

enum { GET, OPEN, CLOSE, STEPS };

static void check(xseg_status status)
{
    char text[512];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "bench-ipc: %s\n", text);
    exit(1);
}

static double now_us(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int compare_doubles(const void *first, const void *second)
{
    const double a = *(const double *)first, b = *(const double *)second;

    return (a > b) - (a < b);
}

/* Host time and modeled driver time of each step. */
static double host_us[STEPS][ROUNDS], driver_us[STEPS];
static double host_start_us;
static uint64_t driver_start_ns;

static void begin_steps(void)
{
    host_start_us = now_us();
    driver_start_ns = xseg_sim_clock();
}

static void end_step(unsigned step, unsigned round)
{
    host_us[step][round] = now_us() - host_start_us;
    driver_us[step] = (double)(xseg_sim_clock() - driver_start_ns) / 1e3;
    begin_steps();
}

static void measure(struct xseg_allocator *allocator, size_t pages)
{
    struct xseg_export_token token;
    void *block = NULL, *base = NULL;

    check(xseg_alloc(allocator, 0, pages * PAGE, NULL, &block));
    for (unsigned round = 0; round < ROUNDS; round++) {
        begin_steps();
        check(xseg_export_segment(allocator, block, &token));
        end_step(GET, round);
        check(xseg_import(allocator, 0, &token, &base));
        end_step(OPEN, round);
        check(xseg_import_close(allocator, base));
        end_step(CLOSE, round);
    }
    printf("%5zu", pages);
    for (unsigned step = 0; step < STEPS; step++) {
        qsort(host_us[step], ROUNDS, sizeof(double), compare_doubles);
        printf("   %9.1f %9.1f", host_us[step][ROUNDS / 2], driver_us[step]);
    }
    printf("\n");
    check(xseg_free(allocator, block));
}

int main(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .costs = "a100"};
    struct xseg_options options = {sizeof(options)};

    printf("microseconds: host time, measured; driver time, modeled\n");
    printf("%5s   %19s   %19s   %19s\n", "pages", "get", "open", "close");
    for (size_t pages = 1; pages <= 1000; pages *= 10) {
        struct xseg_allocator *allocator = NULL;

        check(xseg_sim_reset(&settings));
        options.driver = BENCH_DRIVER;
        check(xseg_open("exportable:True", &options, &allocator));
        measure(allocator, pages);
        check(xseg_close(allocator));
    }
    return 0;
}
