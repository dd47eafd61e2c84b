/* SPDX-License-Identifier: MIT */
#include "src/tools/probe/probe_driver.h"

#include <stdio.h>
#include <string.h>

#include "src/tools/driver/simulator.h"
#include "src/tools/driver/stopwatch.h"
#include "src/tools/text/printable.h"

#define SCRATCH_BYTES ((size_t)64 << 20)
/* To find out how long a fill takes, and what fits into a stream without waiting for room. */
#define TRIAL_FILLS 16u
#define MOST_FILLS  1000u

void probe_driver_error_name(struct probe_driver *driver, int error, char *text, size_t bytes)
{
    const char *name = NULL;

    if (driver->cuda.error_name(error, &name) != 0 || !name)
        name = "an unknown error";
    (void)printable_copy(name, text, bytes);
}

struct probe_name probe_driver_name(enum cuda_entry entry)
{
    const char *name = cuda_entry_name(entry);
    const char *version = strstr(name, "_v2");
    struct probe_name out;

    (void)snprintf(out.text, sizeof(out.text), "%.*s",
                   version ? (int)(version - name) : (int)strlen(name), name);
    return out;
}

static void note(struct probe_driver *driver, enum cuda_entry entry, int result, const char *doing)
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

int probe_driver_first(struct probe_driver *driver, enum cuda_entry entry, int result)
{
    if (!driver->has_first[entry] && (result == 0 || result == CUDA_NOT_READY)) {
        driver->first[entry] = probe_driver_clock(driver) - driver->began;
        driver->has_first[entry] = true;
    }
    return result;
}

int probe_driver_note(struct probe_driver *driver, enum cuda_entry entry, int result,
                      const char *doing)
{
    if (result != 0 && result != CUDA_NOT_READY)
        note(driver, entry, result, doing);
    return result;
}

static bool enter(struct probe_driver *driver, int ordinal, char *problem, size_t problem_bytes)
{
    const char *call;
    char name[48];
    int result = cuda_enter(&driver->cuda, ordinal, &call);

    if (result == 0) {
        call = "cuStreamCreate";
        result = driver->cuda.stream_create(&driver->stream, CUDA_STREAM_NON_BLOCKING);
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
    driver->is_simulated = library == CUDA_SIMULATED;
    if (!cuda_load(&driver->cuda, library, problem, problem_bytes))
        return false;
    if (enter(driver, ordinal, problem, problem_bytes))
        return true;
    probe_driver_close(driver);
    return false;
}

void probe_driver_close(struct probe_driver *driver)
{
    static const char doing[] = "closing";
    void *context;

    if (driver->scratch)
        (void)PROBE_RETURN(driver, doing, memory_free, driver->scratch);
    if (driver->stream)
        (void)PROBE_RETURN(driver, doing, stream_destroy, driver->stream);
    if (driver->cuda.pushed)
        (void)PROBE_RETURN(driver, doing, context_pop, &context);
    if (driver->cuda.retained)
        (void)PROBE_RETURN(driver, doing, context_release, driver->cuda.device);
    driver->cuda.pushed = driver->cuda.retained = false;
    cuda_close(&driver->cuda);
}

struct cuda_properties probe_driver_properties(const struct probe_driver *driver)
{
    return (struct cuda_properties){.type = 1, .place = {.type = 1, .id = driver->cuda.device}};
}

struct cuda_access probe_driver_access(const struct probe_driver *driver)
{
    return (struct cuda_access){.place = {.type = 1, .id = driver->cuda.device}, .flags = 3};
}

uint64_t probe_driver_clock(const struct probe_driver *driver)
{
    return driver->is_simulated ? simulator.clock() : stopwatch_now();
}

struct probe_driver probe_driver_split(const struct probe_driver *driver)
{
    struct probe_driver split = *driver;

    split.failures = 0;
    split.cuda.pushed = false;
    return split;
}

bool probe_driver_enter(struct probe_driver *split)
{
    split->cuda.pushed =
        PROBE_CALL(split, "entering a second thread", context_push, split->cuda.context) == 0;
    return split->cuda.pushed;
}

void probe_driver_leave(struct probe_driver *split)
{
    void *context;

    if (split->cuda.pushed)
        (void)PROBE_RETURN(split, "leaving a second thread", context_pop, &context);
    split->cuda.pushed = false;
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
    return probe_driver_note(driver, CUDA_ENTRY_stream_query,
                             driver->cuda.stream_query(driver->stream),
                             "looking whether the device is busy") == CUDA_NOT_READY;
}

bool probe_driver_settle(struct probe_driver *driver)
{
    /* Not the first of its kind: most of it is the work that is waited for. */
    return probe_driver_note(driver, CUDA_ENTRY_stream_synchronize,
                             driver->cuda.stream_synchronize(driver->stream),
                             "waiting for the device") == 0;
}
