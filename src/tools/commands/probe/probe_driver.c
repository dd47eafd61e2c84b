/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/output/text.h"
#include "src/tools/replay/simulator.h"
#include "xseg/xseg.h"

#define RESULT_NOT_READY    600
#define STREAM_NON_BLOCKING 1u
#define SCRATCH_BYTES       ((size_t)64 << 20)
#define TIMED_FILLS         16u   /* fills in a measurement of their duration */
#define FILLS_MAX           1000u /* fills that a stream queues without blocking */

/* The symbol and the member of each entry point. */
static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define ENTRY(member, name, parameters) \
    [PROBE_ENTRY_##member] = {(name), offsetof(struct probe_driver, member)},
    PROBE_ENTRIES(ENTRY)
#undef ENTRY
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
    const char *name = entries[entry].name;
    const char *version = strstr(name, "_v2");
    struct probe_name out;

    (void)snprintf(out.text, sizeof(out.text), "%.*s",
                   version ? (int)(version - name) : (int)strlen(name), name);
    return out;
}

static void record_failure(struct probe_driver *driver, enum probe_entry entry, int result,
                           const char *purpose)
{
    struct probe_failure *failure;

    if (driver->failures++ >= PROBE_FAILURES)
        return;
    failure = &driver->failure[driver->failures - 1];
    memcpy(failure->call, probe_driver_name(entry).text, sizeof(failure->call));
    failure->error = result;
    probe_driver_error_name(driver, result, failure->error_name, sizeof(failure->error_name));
    (void)snprintf(failure->purpose, sizeof(failure->purpose), "%s", purpose);
}

int probe_driver_first(struct probe_driver *driver, enum probe_entry entry, int result)
{
    if (!driver->has_first[entry] && (result == 0 || result == RESULT_NOT_READY)) {
        driver->first[entry] = probe_driver_clock(driver) - driver->began;
        driver->has_first[entry] = true;
    }
    return result;
}

int probe_driver_record(struct probe_driver *driver, enum probe_entry entry, int result,
                        const char *purpose)
{
    if (result != 0 && result != RESULT_NOT_READY)
        record_failure(driver, entry, result, purpose);
    return result;
}

static bool resolve_entries(struct probe_driver *driver, char *error, size_t error_bytes)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *symbol = dlsym(driver->library, entries[i].name);

        if (!symbol) {
            (void)snprintf(error, error_bytes, "the driver has no entry point %s", entries[i].name);
            return false;
        }
        /* ISO C does not convert an object pointer to a function pointer. */
        memcpy((char *)driver + entries[i].offset, &symbol, sizeof(symbol));
    }
    return true;
}

static bool open_device(struct probe_driver *driver, int ordinal, char *error, size_t error_bytes)
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
        (void)snprintf(error, error_bytes, "%s of device %d failed with %s (%d)", call, ordinal,
                       name, result);
    }
    return result == 0;
}

bool probe_driver_open(struct probe_driver *driver, const char *library, int ordinal, char *error,
                       size_t error_bytes)
{
    memset(driver, 0, sizeof(*driver));
    driver->is_simulated = library == GPU_SIMULATED;
    library = gpu_library(library);
    if (!library) {
        (void)snprintf(error, error_bytes, "simulator is not loaded");
        return false;
    }
    driver->path = library;
    driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        (void)snprintf(error, error_bytes, "the driver cannot be loaded: %s", dlerror());
        return false;
    }
    if (resolve_entries(driver, error, error_bytes) &&
        open_device(driver, ordinal, error, error_bytes))
        return true;
    probe_driver_close(driver);
    return false;
}

void probe_driver_close(struct probe_driver *driver)
{
    static const char purpose[] = "closing the driver";
    void *context;

    if (!driver->library)
        return;
    if (driver->scratch)
        (void)PROBE_RELEASE(driver, purpose, memory_free, driver->scratch);
    if (driver->stream)
        (void)PROBE_RELEASE(driver, purpose, stream_destroy, driver->stream);
    if (driver->pushed)
        (void)PROBE_RELEASE(driver, purpose, context_pop, &context);
    if (driver->retained)
        (void)PROBE_RELEASE(driver, purpose, context_release, driver->device);
    (void)dlclose(driver->library);
    driver->library = NULL;
}

struct probe_properties probe_driver_properties(const struct probe_driver *driver)
{
    return (struct probe_properties){.type = 1, .location = {.type = 1, .id = driver->device}};
}

struct probe_access probe_driver_access(const struct probe_driver *driver)
{
    return (struct probe_access){.location = {.type = 1, .id = driver->device}, .flags = 3};
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
        PROBE_CALL(split, "starting a second thread", context_push, split->context) == 0;
    return split->pushed;
}

void probe_driver_leave(struct probe_driver *split)
{
    void *context;

    if (split->pushed)
        (void)PROBE_RELEASE(split, "ending a second thread", context_pop, &context);
    split->pushed = false;
}

void probe_driver_join(struct probe_driver *driver, struct probe_driver *split)
{
    for (unsigned i = 0; i < split->failures; i++, driver->failures++)
        if (driver->failures < PROBE_FAILURES && i < PROBE_FAILURES)
            driver->failure[driver->failures] = split->failure[i];
    split->failures = 0;
}

static bool queue_fills(struct probe_driver *driver, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (PROBE_CALL(driver, "keeping the device busy", fill_async, driver->scratch, 0,
                       SCRATCH_BYTES, driver->stream) != 0)
            return false;
    return true;
}

/* Measure the time of a number of fills; 0 if a call failed. */
static uint64_t time_fills(struct probe_driver *driver, unsigned count)
{
    const uint64_t start = probe_driver_clock(driver);

    if (!queue_fills(driver, count) || !probe_driver_wait(driver))
        return 0;
    return probe_driver_clock(driver) - start;
}

bool probe_driver_prepare_work(struct probe_driver *driver)
{
    uint64_t duration;

    driver->fills = driver->is_simulated;
    if (driver->is_simulated)
        return true;
    if (PROBE_CALL(driver, "keeping the device busy", memory_alloc, &driver->scratch,
                   SCRATCH_BYTES) != 0) {
        driver->scratch = 0;
        return false;
    }
    /* The first fills include the time in which the device leaves a power-saving state. */
    if (time_fills(driver, TIMED_FILLS) == 0 || (duration = time_fills(driver, TIMED_FILLS)) == 0)
        return false;
    /* Fills that are this fast do not run on a device. */
    if (duration / TIMED_FILLS * FILLS_MAX < PROBE_WORK_NS)
        return false;
    driver->fills = (unsigned)(PROBE_WORK_NS * TIMED_FILLS / duration) + 1;
    return true;
}

bool probe_driver_work(struct probe_driver *driver)
{
    if (driver->is_simulated)
        return simulator.launch(driver->stream, PROBE_WORK_NS) == XSEG_OK;
    return driver->fills > 0 && queue_fills(driver, driver->fills);
}

bool probe_driver_is_working(struct probe_driver *driver)
{
    return probe_driver_record(driver, PROBE_ENTRY_stream_query,
                               driver->stream_query(driver->stream),
                               "query whether the device is busy") == RESULT_NOT_READY;
}

bool probe_driver_wait(struct probe_driver *driver)
{
    /* Not recorded as a first call, since the time is mostly that of the work. */
    return probe_driver_record(driver, PROBE_ENTRY_stream_synchronize,
                               driver->stream_synchronize(driver->stream),
                               "waiting for the device") == 0;
}

/* --- The device. --- */

/* Constants of cuda.h. */
enum {
    ATTRIBUTE_INTEGRATED = 18,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_VMM = 102,
    ATTRIBUTE_FILE = 103,
    ATTRIBUTE_RDMA = 110,
    ATTRIBUTE_FABRIC = 128,
    HANDLE_FILE = 1,
    HANDLE_FABRIC = 8,
    GRANULARITY_MIN = 0,
    GRANULARITY_RECOMMENDED = 1,
    RESULT_NO_MEMORY = 2
};

#define PAGES 2u /* of the probe */

static const char querying[] = "query of the device";
static const char testing[] = "test of two pages";

/* Query an attribute.  An attribute that an old driver does not know is no failure. */
static int query_attribute(struct probe_driver *driver, int attribute)
{
    int value = 0;

    return driver->device_attribute(&value, attribute, driver->device) == 0 ? value : PROBE_UNKNOWN;
}

/* Create memory with these properties, and export it if it has a handle type.  Returns the result. */
static int test_properties(struct probe_driver *driver, size_t bytes, int handle_type, bool rdma)
{
    struct probe_properties properties = probe_driver_properties(driver);
    union {
        int file;
        unsigned char fabric[64];
    } shared;
    uint64_t handle = 0;
    int result;

    properties.handle_types = handle_type;
    properties.rdma = rdma;
    result = driver->create(&handle, bytes, &properties, 0);
    if (result != 0)
        return result;
    if (handle_type != 0) {
        result = driver->export_handle(&shared, handle, handle_type, 0);
        if (result == 0 && handle_type == HANDLE_FILE)
            (void)close(shared.file);
    }
    (void)PROBE_RELEASE(driver, "test of shareable memory", release, handle);
    return result;
}

struct page_probe {
    struct probe_driver *driver;
    struct probe_device *device;
    uint64_t base, handle[PAGES];
    size_t page;
    unsigned created, mapped;
};

/* Record the first call of the probe that failed. */
static bool check_result(struct page_probe *probe, const char *call, int result)
{
    if (result != 0 && probe->device->vmm_probe == 0) {
        probe->device->vmm_probe = result;
        probe->device->vmm_call = call;
    }
    return result == 0;
}

static bool map_pages(struct page_probe *probe)
{
    const struct probe_properties properties = probe_driver_properties(probe->driver);

    while (probe->created < PAGES) {
        if (!check_result(probe, "cuMemCreate",
                          PROBE_CALL(probe->driver, testing, create, &probe->handle[probe->created],
                                     probe->page, &properties, 0)))
            return false;
        probe->created++;
    }
    while (probe->mapped < PAGES) {
        if (!check_result(probe, "cuMemMap",
                          PROBE_CALL(probe->driver, testing, map,
                                     probe->base + probe->mapped * probe->page, probe->page, 0,
                                     probe->handle[probe->mapped], 0)))
            return false;
        probe->mapped++;
    }
    return true;
}

/* Set access to both pages in one call; if that fails, page by page. */
static bool set_access(struct page_probe *probe)
{
    const struct probe_access rights = probe_driver_access(probe->driver);
    const int batch_result =
        PROBE_TRY(probe->driver, set_access, probe->base, PAGES * probe->page, &rights, 1);

    probe->device->access_probe = batch_result;
    for (unsigned i = 0; batch_result != 0 && i < PAGES; i++)
        if (!check_result(probe, "cuMemSetAccess",
                          PROBE_CALL(probe->driver, testing, set_access,
                                     probe->base + i * probe->page, probe->page, &rights, 1)))
            return false;
    return true;
}

static bool unmap_each(struct page_probe *probe)
{
    bool success = true;

    for (; probe->mapped > 0; probe->mapped--)
        success &= PROBE_RELEASE(probe->driver, testing, unmap,
                                 probe->base + (probe->mapped - 1) * probe->page, probe->page);
    return success;
}

static void release_pages(struct page_probe *probe, bool is_accessible)
{
    if (is_accessible) {
        probe->device->unmap_probe =
            PROBE_TRY(probe->driver, unmap, probe->base, PAGES * probe->page);
        if (probe->device->unmap_probe == 0)
            probe->mapped = 0;
    }
    if (!unmap_each(probe))
        (void)check_result(probe, "cuMemUnmap", probe->device->unmap_probe);
    for (; probe->created > 0; probe->created--)
        (void)PROBE_RELEASE(probe->driver, testing, release, probe->handle[probe->created - 1]);
}

static void test_vmm(struct probe_driver *driver, struct probe_device *device)
{
    struct page_probe probe = {.driver = driver, .device = device, .page = device->granularity};

    device->vmm_probe = 0;
    if (!check_result(
            &probe, "cuMemAddressReserve",
            PROBE_CALL(driver, testing, reserve, &probe.base, PAGES * probe.page, 0, 0, 0)))
        return;
    release_pages(&probe, map_pages(&probe) && set_access(&probe));
    (void)PROBE_RELEASE(driver, testing, unreserve, probe.base, PAGES * probe.page);
    device->file_probe = test_properties(driver, device->granularity, HANDLE_FILE, false);
    if (device->has_fabric == 1)
        device->fabric_probe = test_properties(driver, device->granularity, HANDLE_FABRIC, false);
    if (device->has_rdma == 1)
        device->rdma_probe = test_properties(driver, device->granularity, 0, true);
}

static uint64_t query_granularity(struct probe_driver *driver, int option)
{
    const struct probe_properties properties = probe_driver_properties(driver);
    size_t bytes = 0;

    return PROBE_CALL(driver, querying, granularity, &bytes, &properties, option) == 0 ? bytes : 0;
}

static void ignore_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context, (void)level, (void)line;
}

/* Query the memory of an integrated device by an allocator. */
static void query_integrated_memory(const struct probe_driver *driver, struct probe_device *device)
{
    const struct xseg_options options = {
        .struct_size = sizeof(options), .driver = driver->path, .log = ignore_log};
    const struct xseg_scope scope = {sizeof(scope), .device = device->ordinal};
    struct xseg_device_stats *stats;
    struct xseg_allocator *allocator;

    if (xseg_open(NULL, &options, &allocator) != XSEG_OK)
        return;
    stats = calloc((size_t)device->devices, sizeof(*stats));
    /* A growth queries the free memory of the device. */
    (void)xseg_prewarm(allocator, &scope, 1);
    if (stats && xseg_device_stats_get(allocator, stats, sizeof(*stats), (size_t)device->devices,
                                       NULL) == XSEG_OK) {
        const struct xseg_device_stats *found = &stats[device->ordinal];

        if (found->free_bytes != UINT64_MAX)
            device->available_bytes = found->free_bytes + found->physical_bytes;
        device->free_min_bytes = found->free_min_bytes;
    }
    free(stats);
    (void)xseg_close(allocator);
}

void probe_device_describe(struct probe_driver *driver, int ordinal, struct probe_device *device)
{
    size_t free_bytes = 0, total_bytes = 0;

    *device = (struct probe_device){
        .ordinal = ordinal,
        .file_probe = PROBE_NOT_RUN,
        .fabric_probe = PROBE_NOT_RUN,
        .rdma_probe = PROBE_NOT_RUN,
        .vmm_probe = PROBE_NOT_RUN,
        .access_probe = PROBE_NOT_RUN,
        .unmap_probe = PROBE_NOT_RUN,
    };
    (void)PROBE_CALL(driver, querying, version, &device->version);
    (void)PROBE_CALL(driver, querying, device_count, &device->devices);
    (void)PROBE_CALL(driver, querying, device_name, device->name, (int)sizeof(device->name) - 1,
                     driver->device);
    if (PROBE_CALL(driver, querying, memory_info, &free_bytes, &total_bytes) == 0) {
        device->free_bytes = free_bytes;
        device->total_bytes = total_bytes;
    }
    device->major = query_attribute(driver, ATTRIBUTE_MAJOR);
    device->minor = query_attribute(driver, ATTRIBUTE_MINOR);
    device->has_vmm = 0;
    if (PROBE_CALL(driver, querying, device_attribute, &device->has_vmm, ATTRIBUTE_VMM,
                   driver->device) != 0)
        device->has_vmm = PROBE_UNKNOWN;
    device->has_file = query_attribute(driver, ATTRIBUTE_FILE);
    device->has_fabric = query_attribute(driver, ATTRIBUTE_FABRIC);
    device->has_rdma = query_attribute(driver, ATTRIBUTE_RDMA);
    device->is_integrated = query_attribute(driver, ATTRIBUTE_INTEGRATED);
    if (device->is_integrated == 1)
        query_integrated_memory(driver, device);
    device->is_partition = strstr(device->name, "MIG") != NULL;
    device->is_wsl = !driver->is_simulated && access("/dev/dxg", F_OK) == 0;
    if (device->has_vmm != 1)
        return;
    device->granularity = query_granularity(driver, GRANULARITY_MIN);
    device->best_granularity = query_granularity(driver, GRANULARITY_RECOMMENDED);
    if (device->granularity != 0)
        test_vmm(driver, device);
}

/* Get whether the test failed because addresses are exhausted, or the memory of the device.  If more than `min_free` is free,
 * CUDA_ERROR_OUT_OF_MEMORY has another cause, as the library assumes as well. */
static bool is_test_out_of_memory(const struct probe_device *device)
{
    const uint64_t min_free = 2 * PAGES * device->granularity + device->total_bytes / 16;

    return device->vmm_probe == RESULT_NO_MEMORY &&
           (strcmp(device->vmm_call, "cuMemAddressReserve") == 0 || device->free_bytes < min_free);
}

/* Without memory for the probe, the attribute decides, as in the library. */
bool probe_device_is_expandable(const struct probe_device *device)
{
    return device->has_vmm == 1 && device->granularity != 0 &&
           (device->vmm_probe == 0 || is_test_out_of_memory(device));
}
