/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "src/tools/output/text.h"
#include "src/tools/replay/simulator.h"

#define RESULT_NOT_READY    600
#define STREAM_NON_BLOCKING 1u
#define SCRATCH_BYTES       ((size_t)64 << 20)
/* To find out how long a fill takes, and what fits into a stream without waiting for room. */
#define TRIAL_FILLS 16u
#define MOST_FILLS  1000u

/* Where each entry point's address goes. */
static const struct {
    const char *name;
    size_t offset;
} entry_place[] = {
#define PLACE(member, name, parameters) \
    [PROBE_ENTRY_##member] = {(name), offsetof(struct probe_driver, member)},
    PROBE_ENTRIES(PLACE)
#undef PLACE
};

void probe_driver_error_name(struct probe_driver *driver, int error, char *text, size_t bytes)
{
    const char *name = NULL;

    if (driver->error_name(error, &name) != 0 || !name)
        name = "an unknown error";
    (void)text_escape(name, text, bytes);
}

struct probe_name probe_driver_name(enum probe_entry entry)
{
    const char *name = entry_place[entry].name;
    const char *version = strstr(name, "_v2");
    struct probe_name out;

    (void)snprintf(out.text, sizeof(out.text), "%.*s",
                   version ? (int)(version - name) : (int)strlen(name), name);
    return out;
}

static void note(struct probe_driver *driver, enum probe_entry entry, int result, const char *doing)
{
    struct probe_failure *failure;

    if (driver->failures++ >= PROBE_FAILURES)
        return;
    failure = &driver->failure[driver->failures - 1];
    memcpy(failure->call, probe_driver_name(entry).text, sizeof(failure->call));
    failure->error = result;
    probe_driver_error_name(driver, result, failure->error_name, sizeof(failure->error_name));
    (void)snprintf(failure->doing, sizeof(failure->doing), "%s", doing);
}

int probe_driver_first(struct probe_driver *driver, enum probe_entry entry, int result)
{
    if (!driver->has_first[entry] && (result == 0 || result == RESULT_NOT_READY)) {
        driver->first[entry] = probe_driver_clock(driver) - driver->began;
        driver->has_first[entry] = true;
    }
    return result;
}

int probe_driver_note(struct probe_driver *driver, enum probe_entry entry, int result,
                      const char *doing)
{
    if (result != 0 && result != RESULT_NOT_READY)
        note(driver, entry, result, doing);
    return result;
}

static bool resolve(struct probe_driver *driver, char *problem, size_t problem_bytes)
{
    for (size_t i = 0; i < sizeof(entry_place) / sizeof(entry_place[0]); i++) {
        void *symbol = dlsym(driver->library, entry_place[i].name);

        if (!symbol) {
            (void)snprintf(problem, problem_bytes, "the driver has no entry point %s",
                           entry_place[i].name);
            return false;
        }
        /* A function's address is not an object's in C, so it is copied byte by byte. */
        memcpy((char *)driver + entry_place[i].offset, &symbol, sizeof(symbol));
    }
    return true;
}

static bool enter(struct probe_driver *driver, int ordinal, char *problem, size_t problem_bytes)
{
    const char *call = "cuInit";
    char name[48];
    int result = driver->init(0);

    if (result == 0) {
        call = "cuDeviceGet";
        result = driver->device_get(&driver->device, ordinal);
    }
    if (result == 0) {
        call = "cuDevicePrimaryCtxRetain";
        result = driver->context_retain(&driver->context, driver->device);
        driver->retained = result == 0;
    }
    if (result == 0) {
        call = "cuCtxPushCurrent";
        result = driver->context_push(driver->context);
        driver->pushed = result == 0;
    }
    if (result == 0) {
        call = "cuStreamCreate";
        result = driver->stream_create(&driver->stream, STREAM_NON_BLOCKING);
    }
    if (result != 0) {
        probe_driver_error_name(driver, result, name, sizeof(name));
        (void)snprintf(problem, problem_bytes, "%s of device %d failed with %s (%d)", call, ordinal,
                       name, result);
    }
    return result == 0;
}

bool probe_driver_open(struct probe_driver *driver, const char *library, int ordinal, char *problem,
                       size_t problem_bytes)
{
    memset(driver, 0, sizeof(*driver));
    driver->is_simulated = library == GPU_SIMULATED;
    library = gpu_library(library);
    if (!library) {
        (void)snprintf(problem, problem_bytes, "the simulator is not open");
        return false;
    }
    driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        (void)snprintf(problem, problem_bytes, "the driver cannot be loaded: %s", dlerror());
        return false;
    }
    if (resolve(driver, problem, problem_bytes) && enter(driver, ordinal, problem, problem_bytes))
        return true;
    probe_driver_close(driver);
    return false;
}

void probe_driver_close(struct probe_driver *driver)
{
    static const char doing[] = "closing";
    void *context;

    if (!driver->library)
        return;
    if (driver->scratch)
        (void)PROBE_RETURN(driver, doing, memory_free, driver->scratch);
    if (driver->stream)
        (void)PROBE_RETURN(driver, doing, stream_destroy, driver->stream);
    if (driver->pushed)
        (void)PROBE_RETURN(driver, doing, context_pop, &context);
    if (driver->retained)
        (void)PROBE_RETURN(driver, doing, context_release, driver->device);
    (void)dlclose(driver->library);
    driver->library = NULL;
}

struct probe_properties probe_driver_properties(const struct probe_driver *driver)
{
    return (struct probe_properties){.type = 1, .place = {.type = 1, .id = driver->device}};
}

struct probe_access probe_driver_access(const struct probe_driver *driver)
{
    return (struct probe_access){.place = {.type = 1, .id = driver->device}, .flags = 3};
}

uint64_t probe_driver_clock(const struct probe_driver *driver)
{
    struct timespec now;

    if (driver->is_simulated)
        return simulator.clock();
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct probe_driver probe_driver_split(const struct probe_driver *driver)
{
    struct probe_driver split = *driver;

    split.failures = 0;
    split.pushed = false;
    return split;
}

bool probe_driver_enter(struct probe_driver *split)
{
    split->pushed =
        PROBE_CALL(split, "entering a second thread", context_push, split->context) == 0;
    return split->pushed;
}

void probe_driver_leave(struct probe_driver *split)
{
    void *context;

    if (split->pushed)
        (void)PROBE_RETURN(split, "leaving a second thread", context_pop, &context);
    split->pushed = false;
}

void probe_driver_join(struct probe_driver *driver, struct probe_driver *split)
{
    for (unsigned i = 0; i < split->failures; i++, driver->failures++)
        if (driver->failures < PROBE_FAILURES && i < PROBE_FAILURES)
            driver->failure[driver->failures] = split->failure[i];
    split->failures = 0;
}

static bool fill(struct probe_driver *driver, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (PROBE_CALL(driver, "keeping the device busy", fill_async, driver->scratch, 0,
                       SCRATCH_BYTES, driver->stream) != 0)
            return false;
    return true;
}

/* How long some fills take; 0 if a call failed. */
static uint64_t time_fills(struct probe_driver *driver, unsigned count)
{
    const uint64_t start = probe_driver_clock(driver);

    if (!fill(driver, count) || !probe_driver_settle(driver))
        return 0;
    return probe_driver_clock(driver) - start;
}

bool probe_driver_prepare_work(struct probe_driver *driver)
{
    uint64_t taken;

    driver->fills = driver->is_simulated;
    if (driver->is_simulated)
        return true;
    if (PROBE_CALL(driver, "keeping the device busy", memory_alloc, &driver->scratch,
                   SCRATCH_BYTES) != 0) {
        driver->scratch = 0;
        return false;
    }
    /* The first round wakes the device up. */
    if (time_fills(driver, TRIAL_FILLS) == 0 || (taken = time_fills(driver, TRIAL_FILLS)) == 0)
        return false;
    /* What is far too short for it has not run on a device. */
    if (taken / TRIAL_FILLS * MOST_FILLS < PROBE_WORK_NS)
        return false;
    driver->fills = (unsigned)(PROBE_WORK_NS * TRIAL_FILLS / taken) + 1;
    return true;
}

bool probe_driver_work(struct probe_driver *driver)
{
    if (driver->is_simulated)
        return simulator.launch(driver->stream, PROBE_WORK_NS) == XSEG_OK;
    return driver->fills > 0 && fill(driver, driver->fills);
}

bool probe_driver_is_working(struct probe_driver *driver)
{
    return probe_driver_note(driver, PROBE_ENTRY_stream_query, driver->stream_query(driver->stream),
                             "looking whether the device is busy") == RESULT_NOT_READY;
}

bool probe_driver_settle(struct probe_driver *driver)
{
    /* Not the first of its kind: most of it is the work that is waited for. */
    return probe_driver_note(driver, PROBE_ENTRY_stream_synchronize,
                             driver->stream_synchronize(driver->stream),
                             "waiting for the device") == 0;
}
