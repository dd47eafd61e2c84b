/* SPDX-License-Identifier: MIT */
/*
 * Time of a metrics page, as text and as a file, with 1, 16 and 128 private pools that have a small and a large block each.
 *
 * Each value is the median of many pages.  Other memory is read before a page, because a scrape finds the CPU caches cold.
 * Files are in the directory for temporary files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define POOLS          128u
#define ROUNDS         301u
#define EVICTION_BYTES ((size_t)8 << 20) /* bytes that are read before a page */

static void check(xseg_status status, const char *operation)
{
    char text[512];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", operation, text);
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

/* Read other memory, which evicts the allocator's memory from the CPU caches. */
static void evict_caches(void)
{
    static char *buffer;
    volatile char sum = 0;

    if (buffer == NULL)
        buffer = calloc(1, EVICTION_BYTES);
    for (size_t i = 0; buffer != NULL && i < EVICTION_BYTES; i += 64)
        sum = (char)(sum + buffer[i]++);
}

static char page[256 << 10];

static size_t print_page(struct xseg_allocator *allocator)
{
    size_t needed = 0;

    check(xseg_metrics(allocator, page, sizeof(page), &needed), "metrics");
    return needed - 1;
}

static size_t write_page(struct xseg_allocator *allocator)
{
    char path[128];

    (void)snprintf(path, sizeof(path), P_tmpdir "/xseg-bench-%ld.prom", (long)getpid());
    check(xseg_metrics_write(allocator, path), "xseg_metrics_write");
    (void)unlink(path);
    return 0;
}

static void measure(struct xseg_allocator *allocator, unsigned pools, const char *name,
                    size_t (*output)(struct xseg_allocator *allocator))
{
    double cold[ROUNDS], warm[ROUNDS];
    size_t bytes = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        evict_caches();
        double start_us = now_us();
        bytes = output(allocator);
        cold[i] = now_us() - start_us;
        start_us = now_us();
        (void)output(allocator);
        warm[i] = now_us() - start_us;
    }
    qsort(cold, ROUNDS, sizeof(*cold), compare_doubles);
    qsort(warm, ROUNDS, sizeof(*warm), compare_doubles);
    printf("%-4u %-12s %8.1f us cold   %8.1f us warm", pools, name, cold[ROUNDS / 2],
           warm[ROUNDS / 2]);
    if (bytes > 0)
        printf("   %7zu bytes", bytes);
    printf("\n");
    (void)fflush(stdout);
}

int main(void)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    struct xseg_pool *pool[POOLS];
    void *small[POOLS], *large[POOLS];

    check(xseg_sim_reset(NULL), "xseg_sim_reset");
    options.driver = BENCH_DRIVER;
    check(xseg_open("expandable_segments:True", &options, &allocator), "xseg_open");
    printf("private pools, output, median time with cold caches, and with warm caches\n");
    for (unsigned i = 0; i < POOLS; i++) {
        struct xseg_pool_options pool_options = {sizeof(pool_options)};
        struct xseg_request request = {sizeof(request)};

        pool_options.name = "decoder graph";
        check(xseg_pool_create(allocator, 0, &pool_options, &pool[i]), "xseg_pool_create");
        request.pool = pool[i];
        request.bytes = 1000;
        check(xseg_alloc_with(allocator, &request, &small[i]), "xseg_alloc_with");
        request.bytes = (size_t)5 << 20;
        check(xseg_alloc_with(allocator, &request, &large[i]), "xseg_alloc_with");
        if (i + 1 != 1 && i + 1 != 16 && i + 1 != POOLS)
            continue;
        measure(allocator, i + 1, "text", print_page);
        measure(allocator, i + 1, "file", write_page);
    }
    for (unsigned i = 0; i < POOLS; i++) {
        check(xseg_free(allocator, small[i]), "xseg_free");
        check(xseg_free(allocator, large[i]), "xseg_free");
        check(xseg_pool_release(pool[i]), "xseg_pool_release");
    }
    check(xseg_close(allocator), "xseg_close");
    return 0;
}
