/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "benchmarks/subject.h"
#include "xseg/sim.h"

#define STREAM_NON_BLOCKING 1u
#define POOLS               256u

/*
 * Member, name in the library, parameters: what opening a device takes of a driver's interface, spelled in plain
 * C.  The driver is opened by name, so that it can be any.
 */
#define ENTRY_POINTS(X)                                                         \
    X(init, "cuInit", (unsigned flags))                                         \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                    \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device)) \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                     \
    X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * all))      \
    X(stream_create, "cuStreamCreate", (xseg_stream * stream, unsigned flags))

/* The same of the simulator's own; NULL in a real driver. */
#define SIMULATOR_CALLS(X) \
    X(reset)               \
    X(launch)              \
    X(finish)              \
    X(driver_time)

struct subject_xseg subject_xseg;
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

_Noreturn void subject_fail(const char *what)
{
    char text[1024] = "";

    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "xseg: %s failed: %s\n", what, text);
    exit(3);
}

static void check(int result, const char *call)
{
    if (result == 0)
        return;
    (void)fprintf(stderr, "xseg: opening the device failed: %s returned %d\n", call, result);
    exit(3);
}

/* A function's address is not an object's in C, so it is copied byte by byte. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

/* It stays open until the process ends. */
static void open_driver(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)fprintf(stderr, "xseg: the driver cannot be loaded: %s\n", dlerror());
        exit(3);
    }
#define X(member, name, parameters)                                  \
    if (!find(library, name, &driver.member)) {                      \
        (void)fprintf(stderr, "xseg: the driver has no " name "\n"); \
        exit(3);                                                     \
    }
    ENTRY_POINTS(X)
#undef X
#define X(name) (void)find(library, "xseg_sim_" #name, &driver.name);
    SIMULATOR_CALLS(X)
#undef X
}

/* The simulated machine of the build is set up here; one that XSEG_DRIVER names is as the environment says. */
static void set_scene(void)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.skip_checks = true;
    settings.memory_bytes = SUBJECT_MEMORY_BYTES;
    if (driver.reset == NULL || driver.reset(&settings) != XSEG_OK)
        subject_fail("xseg_sim_reset");
}

/* The process is the machine's only user, so what ends with it is not given back. */
void subject_open(const char *config, unsigned streams)
{
    struct xseg_options options = {sizeof(options)};
    const char *named = getenv("XSEG_DRIVER");
    const bool is_named = named != NULL && *named != '\0';
    void *context = NULL;
    size_t all = 0;
    int device = 0;

    options.driver = is_named ? named : BENCH_DRIVER;
    open_driver(options.driver);
    if (!is_named)
        set_scene();
    check(driver.init(0), "cuInit");
    check(driver.device_get(&device, 0), "cuDeviceGet");
    check(driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(driver.context_push(context), "cuCtxPushCurrent");
    check(driver.memory_info(&driver.free_bytes, &all), "cuMemGetInfo");
    for (unsigned i = 1; i < streams; i++)
        check(driver.stream_create(&subject_xseg.streams[i], STREAM_NON_BLOCKING),
              "cuStreamCreate");
    if (xseg_open(config, &options, &subject_xseg.allocator) != XSEG_OK)
        subject_fail("xseg_open");
}

static bool enter(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

bool subject_register(void *pointer, size_t bytes)
{
    struct xseg_registrar registrar = {sizeof(registrar)};
    uint64_t id;

    registrar.enter = enter;
    registrar.leave = leave;
    if (xseg_register(subject_xseg.allocator, pointer, bytes, &registrar, &id) != XSEG_OK)
        subject_fail("xseg_register");
    return true;
}

uint64_t subject_memory(void)
{
    return driver.free_bytes;
}

const char *subject_name(void)
{
    return "xseg";
}

bool subject_record(enum subject_record what)
{
    if (xseg_config_set(subject_xseg.allocator, what == SUBJECT_EVENTS
                                                    ? "history:all,history_stacks:none"
                                                    : "history:all,history_stacks:all") != XSEG_OK)
        subject_fail("xseg_config_set");
    return true;
}

const char *subject_stacks(void)
{
    return strcmp(xseg_history_stack_method(NULL), "libunwind") == 0
               ? "by libunwind"
               : "by the C library: libunwind8 is not installed";
}

void *subject_alloc_in(size_t bytes, unsigned stream, unsigned pool)
{
    struct xseg_request request = {sizeof(request)};
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
    if (xseg_record_stream(subject_xseg.allocator, pointer, subject_xseg.streams[stream]) !=
        XSEG_OK)
        subject_fail("xseg_record_stream");
}

void subject_make_busy(unsigned stream, bool busy)
{
    if (busy && driver.launch != NULL)
        (void)driver.launch(subject_xseg.streams[stream], UINT64_MAX);
    else if (!busy && driver.finish != NULL)
        (void)driver.finish(subject_xseg.streams[stream]);
}

void subject_empty(void)
{
    struct xseg_trim_options how = {sizeof(how)};

    how.wait = true;
    if (xseg_trim(subject_xseg.allocator, NULL, &how, NULL) != XSEG_OK)
        subject_fail("xseg_trim");
}

static void read_stats(struct xseg_statistics *stats)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = 0;
    memset(stats, 0, sizeof(*stats));
    stats->struct_size = sizeof(*stats);
    if (xseg_stats_get(subject_xseg.allocator, &where, stats) != XSEG_OK)
        subject_fail("xseg_stats_get");
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
    struct xseg_driver_call calls[128];
    size_t count = 0;

    if (xseg_driver_calls(subject_xseg.allocator, calls, sizeof(calls) / sizeof(calls[0]),
                          &count) != XSEG_OK)
        subject_fail("xseg_driver_calls");
    for (size_t i = 0; i < count && i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].count;
    return SUBJECT_UNKNOWN;
}

uint64_t subject_driver_us(void)
{
    return driver.driver_time != NULL ? driver.driver_time() / 1000 : SUBJECT_UNKNOWN;
}
