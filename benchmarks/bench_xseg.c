/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "benchmarks/bench.h"
#include "xseg/sim.h"

#define STREAM_NON_BLOCKING 1u
#define POOLS               256u

/* The functions that open a device: member, name in the driver library, parameters in plain C types. */
#define ENTRY_POINTS(X)                                                            \
    X(init, "cuInit", (unsigned flags))                                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                       \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))    \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                        \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes)) \
    X(stream_create, "cuStreamCreate", (xseg_stream * stream, unsigned flags))

/* Functions of the simulator; NULL with a real driver. */
#define SIMULATOR_CALLS(X) \
    X(reset)               \
    X(launch)              \
    X(finish)              \
    X(driver_time)

struct bench_xseg bench_xseg;
static struct xseg_pool *pools[POOLS];

static struct {
#define X(member, name, parameters) int(*member) parameters;
    ENTRY_POINTS(X)
#undef X
#define X(name) __typeof__(xseg_sim_##name) *name;
    SIMULATOR_CALLS(X)
#undef X
    size_t free_bytes;
} driver;

_Noreturn void bench_fail(const char *call)
{
    char text[1024] = "";

    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", call, text);
    exit(3);
}

static void check(int result, const char *call)
{
    if (result == 0)
        return;
    (void)fprintf(stderr, "%s: driver call failed, status %d\n", call, result);
    exit(3);
}

/* C does not convert an object pointer to a function pointer, so the bytes are copied. */
static bool load_function(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static void open_driver(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)fprintf(stderr, "driver: cannot be loaded, %s\n", dlerror());
        exit(3);
    }
#define X(member, name, parameters)                                 \
    if (!load_function(library, name, &driver.member)) {            \
        (void)fprintf(stderr, "driver: no entry point " name "\n"); \
        exit(3);                                                    \
    }
    ENTRY_POINTS(X)
#undef X
#define X(name) (void)load_function(library, "xseg_sim_" #name, &driver.name);
    SIMULATOR_CALLS(X)
#undef X
}

/* Set up the simulated device of the build.  Variables of the environment set up a simulator that XSEG_DRIVER names. */
static void reset_simulator(void)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.skip_checks = true;
    settings.memory_bytes = BENCH_MEMORY_BYTES;
    if (driver.reset == NULL || driver.reset(&settings) != XSEG_OK)
        bench_fail("xseg_sim_reset");
}

void bench_open(const char *config, unsigned streams)
{
    struct xseg_options options = {sizeof(options)};
    const char *driver_path = getenv("XSEG_DRIVER");
    const bool has_driver_path = driver_path != NULL && *driver_path != '\0';
    void *context = NULL;
    size_t total_bytes = 0;
    int device = 0;

    options.driver = has_driver_path ? driver_path : BENCH_DRIVER;
    open_driver(options.driver);
    if (!has_driver_path)
        reset_simulator();
    check(driver.init(0), "cuInit");
    check(driver.device_get(&device, 0), "cuDeviceGet");
    check(driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver.context_push(context), "cuCtxPushCurrent");
    check(driver.memory_info(&driver.free_bytes, &total_bytes), "cuMemGetInfo");
    for (unsigned i = 1; i < streams; i++)
        check(driver.stream_create(&bench_xseg.streams[i], STREAM_NON_BLOCKING), "cuStreamCreate");
    if (xseg_open(config, &options, &bench_xseg.allocator) != XSEG_OK)
        bench_fail("xseg_open");
}

static bool accept_run(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void ignore_run(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

bool bench_register(void *pointer, size_t bytes)
{
    struct xseg_registrar registrar = {sizeof(registrar)};
    uint64_t id;

    registrar.enter = accept_run;
    registrar.leave = ignore_run;
    if (xseg_register(bench_xseg.allocator, pointer, bytes, &registrar, &id) != XSEG_OK)
        bench_fail("xseg_register");
    return true;
}

uint64_t bench_free_memory(void)
{
    return driver.free_bytes;
}

const char *bench_name(void)
{
    return "xseg";
}

bool bench_record_history(enum bench_history detail)
{
    if (xseg_config_set(bench_xseg.allocator, detail == BENCH_EVENTS
                                                  ? "history:all,history_stacks:none"
                                                  : "history:all,history_stacks:all") != XSEG_OK)
        bench_fail("xseg_config_set");
    return true;
}

const char *bench_stack_method(void)
{
    return strcmp(xseg_history_stack_method(NULL), "libunwind") == 0
               ? "by libunwind"
               : "by the C library; install libunwind8";
}

void *bench_alloc_in_pool(size_t bytes, unsigned stream, unsigned pool)
{
    struct xseg_request request = {sizeof(request)};
    void *pointer = NULL;

    if (pool >= POOLS)
        bench_fail("too many pools");
    if (pool != 0 && pools[pool] == NULL &&
        xseg_pool_create(bench_xseg.allocator, 0, NULL, &pools[pool]) != XSEG_OK)
        bench_fail("xseg_pool_create");
    request.bytes = bytes;
    request.stream = bench_xseg.streams[stream];
    request.pool = pools[pool];
    if (xseg_alloc_with(bench_xseg.allocator, &request, &pointer) != XSEG_OK)
        bench_fail("xseg_alloc_with");
    return pointer;
}

void bench_record_stream(void *pointer, unsigned stream)
{
    if (xseg_record_stream(bench_xseg.allocator, pointer, bench_xseg.streams[stream]) != XSEG_OK)
        bench_fail("xseg_record_stream");
}

void bench_set_busy(unsigned stream, bool busy)
{
    if (busy && driver.launch != NULL)
        (void)driver.launch(bench_xseg.streams[stream], UINT64_MAX);
    else if (!busy && driver.finish != NULL)
        (void)driver.finish(bench_xseg.streams[stream]);
}

void bench_empty_cache(void)
{
    struct xseg_trim_options options = {sizeof(options)};

    options.wait = true;
    if (xseg_trim(bench_xseg.allocator, NULL, &options, NULL) != XSEG_OK)
        bench_fail("xseg_trim");
}

static void read_stats(struct xseg_statistics *stats)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = 0;
    memset(stats, 0, sizeof(*stats));
    stats->struct_size = sizeof(*stats);
    if (xseg_stats_get(bench_xseg.allocator, &scope, stats) != XSEG_OK)
        bench_fail("xseg_stats_get");
}

uint64_t bench_reserved_bytes(void)
{
    struct xseg_statistics stats;

    read_stats(&stats);
    return stats.reserved_bytes[XSEG_STAT_ALL].current;
}

uint64_t bench_host_bytes(void)
{
    struct xseg_statistics stats;

    read_stats(&stats);
    return stats.host_bytes;
}

uint64_t bench_driver_calls(const char *name)
{
    struct xseg_driver_call calls[128];
    size_t count = 0;

    if (xseg_driver_calls(bench_xseg.allocator, calls, sizeof(calls) / sizeof(calls[0]), &count) !=
        XSEG_OK)
        bench_fail("xseg_driver_calls");
    for (size_t i = 0; i < count && i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].count;
    return BENCH_UNKNOWN;
}

uint64_t bench_driver_us(void)
{
    return driver.driver_time != NULL ? driver.driver_time() / 1000 : BENCH_UNKNOWN;
}
