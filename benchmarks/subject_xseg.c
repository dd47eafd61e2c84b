/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/subject.h"
#include "xseg/sim.h"

#define STREAM_NON_BLOCKING 1u
#define POOLS               256u

/* The simulated driver is linked: its own interface, as far as streams need it. */
extern int cuInit(unsigned flags);
extern int cuDeviceGet(int *device, int ordinal);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxPushCurrent_v2(void *context);
extern int cuStreamCreate(xseg_stream *stream, unsigned flags);

struct subject_xseg subject_xseg;
static struct xseg_pool *pools[POOLS];

_Noreturn void subject_fail(const char *what)
{
    char text[1024] = "";

    (void)xseg_error_text(text, sizeof(text));
    (void)fprintf(stderr, "xseg: %s failed: %s\n", what, text);
    exit(3);
}

/* The process is the simulated machine's only user, so what ends with it is not given back. */
void subject_open(const char *config, unsigned streams)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_options options = XSEG_OPTIONS_INIT;
    void *context = NULL;
    int device = 0;

    settings.fast = true;
    settings.memory_bytes = SUBJECT_MEMORY_BYTES;
    if (xseg_sim_reset(&settings) != XSEG_OK)
        subject_fail("xseg_sim_reset");
    if (cuInit(0) != 0 || cuDeviceGet(&device, 0) != 0 ||
        cuDevicePrimaryCtxRetain(&context, device) != 0 || cuCtxPushCurrent_v2(context) != 0)
        subject_fail("opening the simulated device");
    for (unsigned i = 1; i < streams; i++)
        if (cuStreamCreate(&subject_xseg.streams[i], STREAM_NON_BLOCKING) != 0)
            subject_fail("cuStreamCreate");
    options.driver = BENCH_DRIVER;
    if (xseg_open(config, &options, &subject_xseg.allocator) != XSEG_OK)
        subject_fail("xseg_open");
}

const char *subject_name(void)
{
    return "xseg";
}

void *subject_alloc_in(size_t bytes, unsigned stream, unsigned pool)
{
    struct xseg_request request = XSEG_REQUEST_INIT;
    void *pointer = NULL;

    if (pool >= POOLS)
        subject_fail("a pool of so high a number");
    if (pool != 0 && pools[pool] == NULL &&
        xseg_pool_create(subject_xseg.allocator, 0, NULL, &pools[pool]) != XSEG_OK)
        subject_fail("xseg_pool_create");
    request.bytes = bytes;
    request.stream = subject_xseg.streams[stream];
    request.pool = pools[pool];
    if (xseg_alloc_with(subject_xseg.allocator, &request, &pointer) != XSEG_OK)
        subject_fail("xseg_alloc_with");
    return pointer;
}

void subject_use(void *pointer, unsigned stream)
{
    if (xseg_use(subject_xseg.allocator, pointer, subject_xseg.streams[stream]) != XSEG_OK)
        subject_fail("xseg_use");
}

void subject_make_busy(unsigned stream, bool busy)
{
    if (busy)
        (void)xseg_sim_launch(subject_xseg.streams[stream], UINT64_MAX);
    else
        (void)xseg_sim_finish(subject_xseg.streams[stream]);
}

void subject_empty(void)
{
    struct xseg_trim_options how = XSEG_TRIM_OPTIONS_INIT;

    how.wait = true;
    if (xseg_trim(subject_xseg.allocator, NULL, &how, NULL) != XSEG_OK)
        subject_fail("xseg_trim");
}

static void read_stats(struct xseg_statistics *stats)
{
    struct xseg_where where = XSEG_WHERE_ANY;

    where.device = 0;
    memset(stats, 0, sizeof(*stats));
    stats->struct_bytes = sizeof(*stats);
    if (xseg_stats(subject_xseg.allocator, &where, stats) != XSEG_OK)
        subject_fail("xseg_stats");
}

uint64_t subject_reserved(void)
{
    struct xseg_statistics stats;

    read_stats(&stats);
    return stats.reserved_bytes[XSEG_STAT_ALL].current;
}

uint64_t subject_host_bytes(void)
{
    struct xseg_statistics stats;

    read_stats(&stats);
    return stats.host_bytes;
}

uint64_t subject_calls(const char *name)
{
    return xseg_sim_calls(name);
}

uint64_t subject_driver_us(void)
{
    return xseg_sim_driver_time() / 1000;
}
