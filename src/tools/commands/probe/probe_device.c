/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_device.h"

#include <string.h>
#include <unistd.h>

/* Numbers of the interface, which has names for them only in cuda.h. */
enum {
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_VMM = 102,
    ATTRIBUTE_FILE = 103,
    ATTRIBUTE_RDMA = 110,
    ATTRIBUTE_FABRIC = 128,
    HANDLE_FILE = 1,
    HANDLE_FABRIC = 8,
    GRANULARITY_LEAST = 0,
    GRANULARITY_BEST = 1,
    RESULT_NO_MEMORY = 2
};

#define PAGES 2u

static const char describing[] = "describing the device";
static const char trying[] = "a trial of two pages";

/* An attribute that the driver is too old for is no failure. */
static int ask(struct probe_driver *driver, int attribute)
{
    int value = 0;

    return driver->device_attribute(&value, attribute, driver->device) == 0 ? value : PROBE_UNKNOWN;
}

/* Whether memory with these properties can be had, and exported where it is for that. */
static int try_properties(struct probe_driver *driver, size_t bytes, int handle_type, bool rdma)
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
    (void)PROBE_RETURN(driver, "a trial of shared memory", release, handle);
    return result;
}

struct trial {
    struct probe_driver *driver;
    struct probe_device *device;
    uint64_t base, handle[PAGES];
    size_t page;
    unsigned created, mapped;
};

/* Remember the first call of the trial that failed. */
static bool went_well(struct trial *trial, const char *call, int result)
{
    if (result != 0 && trial->device->vmm_trial == 0) {
        trial->device->vmm_trial = result;
        trial->device->vmm_call = call;
    }
    return result == 0;
}

static bool back(struct trial *trial)
{
    const struct probe_properties properties = probe_driver_properties(trial->driver);

    while (trial->created < PAGES) {
        if (!went_well(trial, "cuMemCreate",
                       PROBE_CALL(trial->driver, trying, create, &trial->handle[trial->created],
                                  trial->page, &properties, 0)))
            return false;
        trial->created++;
    }
    while (trial->mapped < PAGES) {
        if (!went_well(trial, "cuMemMap",
                       PROBE_CALL(trial->driver, trying, map,
                                  trial->base + trial->mapped * trial->page, trial->page, 0,
                                  trial->handle[trial->mapped], 0)))
            return false;
        trial->mapped++;
    }
    return true;
}

/* Both pages in one call; where that is refused, one by one. */
static bool allow(struct trial *trial)
{
    const struct probe_access rights = probe_driver_access(trial->driver);
    const int together =
        PROBE_TRY(trial->driver, set_access, trial->base, PAGES * trial->page, &rights, 1);

    trial->device->access_trial = together;
    for (unsigned i = 0; together != 0 && i < PAGES; i++)
        if (!went_well(trial, "cuMemSetAccess",
                       PROBE_CALL(trial->driver, trying, set_access, trial->base + i * trial->page,
                                  trial->page, &rights, 1)))
            return false;
    return true;
}

static bool unmap_each(struct trial *trial)
{
    bool all = true;

    for (; trial->mapped > 0; trial->mapped--)
        all &= PROBE_RETURN(trial->driver, trying, unmap,
                            trial->base + (trial->mapped - 1) * trial->page, trial->page);
    return all;
}

static void take_away(struct trial *trial, bool is_whole)
{
    if (is_whole) {
        trial->device->unmap_trial =
            PROBE_TRY(trial->driver, unmap, trial->base, PAGES * trial->page);
        if (trial->device->unmap_trial == 0)
            trial->mapped = 0;
    }
    if (!unmap_each(trial))
        (void)went_well(trial, "cuMemUnmap", trial->device->unmap_trial);
    for (; trial->created > 0; trial->created--)
        (void)PROBE_RETURN(trial->driver, trying, release, trial->handle[trial->created - 1]);
}

static void try_vmm(struct probe_driver *driver, struct probe_device *device)
{
    struct trial trial = {.driver = driver, .device = device, .page = device->granularity};

    device->vmm_trial = 0;
    if (!went_well(&trial, "cuMemAddressReserve",
                   PROBE_CALL(driver, trying, reserve, &trial.base, PAGES * trial.page, 0, 0, 0)))
        return;
    take_away(&trial, back(&trial) && allow(&trial));
    (void)PROBE_RETURN(driver, trying, unreserve, trial.base, PAGES * trial.page);
    device->file_trial = try_properties(driver, device->granularity, HANDLE_FILE, false);
    if (device->has_fabric == 1)
        device->fabric_trial = try_properties(driver, device->granularity, HANDLE_FABRIC, false);
    if (device->has_rdma == 1)
        device->rdma_trial = try_properties(driver, device->granularity, 0, true);
}

static uint64_t granularity_of(struct probe_driver *driver, int option)
{
    const struct probe_properties properties = probe_driver_properties(driver);
    size_t bytes = 0;

    return PROBE_CALL(driver, describing, granularity, &bytes, &properties, option) == 0 ? bytes
                                                                                         : 0;
}

void probe_device_describe(struct probe_driver *driver, int ordinal, struct probe_device *device)
{
    size_t free_bytes = 0, total_bytes = 0;

    *device = (struct probe_device){
        .ordinal = ordinal,
        .file_trial = PROBE_UNTRIED,
        .fabric_trial = PROBE_UNTRIED,
        .rdma_trial = PROBE_UNTRIED,
        .vmm_trial = PROBE_UNTRIED,
        .access_trial = PROBE_UNTRIED,
        .unmap_trial = PROBE_UNTRIED,
    };
    (void)PROBE_CALL(driver, describing, version, &device->version);
    (void)PROBE_CALL(driver, describing, device_count, &device->devices);
    (void)PROBE_CALL(driver, describing, device_name, device->name, (int)sizeof(device->name) - 1,
                     driver->device);
    if (PROBE_CALL(driver, describing, memory_info, &free_bytes, &total_bytes) == 0) {
        device->free_bytes = free_bytes;
        device->total_bytes = total_bytes;
    }
    device->major = ask(driver, ATTRIBUTE_MAJOR);
    device->minor = ask(driver, ATTRIBUTE_MINOR);
    device->has_vmm = 0;
    if (PROBE_CALL(driver, describing, device_attribute, &device->has_vmm, ATTRIBUTE_VMM,
                   driver->device) != 0)
        device->has_vmm = PROBE_UNKNOWN;
    device->has_file = ask(driver, ATTRIBUTE_FILE);
    device->has_fabric = ask(driver, ATTRIBUTE_FABRIC);
    device->has_rdma = ask(driver, ATTRIBUTE_RDMA);
    device->is_partition = strstr(device->name, "MIG") != NULL;
    device->is_wsl = !driver->is_simulated && access("/dev/dxg", F_OK) == 0;
    if (device->has_vmm != 1)
        return;
    device->granularity = granularity_of(driver, GRANULARITY_LEAST);
    device->best_granularity = granularity_of(driver, GRANULARITY_BEST);
    if (device->granularity != 0)
        try_vmm(driver, device);
}

/* Whether the trial found no addresses, or no memory on a device that is full.  Where plenty is free the library does not
 * believe in a want of memory, by the same figure. */
static bool is_short(const struct probe_device *device)
{
    const uint64_t plenty = 2 * PAGES * device->granularity + device->total_bytes / 16;

    return device->vmm_trial == RESULT_NO_MEMORY &&
           (strcmp(device->vmm_call, "cuMemAddressReserve") == 0 || device->free_bytes < plenty);
}

/* A device without memory for the trial is taken at its word, as the library does. */
bool probe_device_is_expandable(const struct probe_device *device)
{
    return device->has_vmm == 1 && device->granularity != 0 &&
           (device->vmm_trial == 0 || is_short(device));
}
