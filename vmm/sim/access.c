/* SPDX-License-Identifier: MIT */
#include "vmm/sim/access.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "vmm/sim/context.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/stream.h"

static bool ranges_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

void sim_accesses_prune(void)
{
    struct sim_accesses *accesses = &sim_machine.accesses;
    size_t kept = 0;

    for (size_t i = 0; i < accesses->count; i++) {
        struct sim_access access = accesses->access[i];

        if (sim_work_completed(access.work)) {
            access.work->accesses--;
            sim_work_release(access.work);
        } else {
            accesses->access[kept++] = access;
        }
    }
    accesses->count = kept;
}

void sim_accesses_destroy(void)
{
    free(sim_machine.accesses.access);
    sim_machine.accesses = (struct sim_accesses){.count = 0};
}

static bool reserve_access(struct sim_accesses *accesses)
{
    size_t capacity;
    struct sim_access *access;

    if (accesses->count < accesses->capacity)
        return true;
    sim_accesses_prune();
    /* Grow unless half of the array is free, so that pruning is O(1) amortized. */
    if (accesses->count < accesses->capacity / 2)
        return true;
    capacity = accesses->capacity == 0 ? 64 : accesses->capacity * 2;
    access = realloc(accesses->access, capacity * sizeof(*access));
    if (access == NULL)
        return false;
    accesses->access = access;
    accesses->capacity = capacity;
    return true;
}

/* Get whether the access equals the previous one, which extended open-ended work may repeat. */
static bool is_last_access(const struct sim_accesses *accesses, const struct sim_work *work,
                           uint64_t address, uint64_t bytes)
{
    const struct sim_access *last;

    if (bytes == 0)
        return work->accesses_anything;
    if (accesses->count == 0)
        return false;
    last = &accesses->access[accesses->count - 1];
    return last->work == work && last->address == address && last->bytes == bytes;
}

bool sim_accesses_add(const struct sim_stream *stream, uint64_t address, uint64_t bytes)
{
    struct sim_accesses *accesses = &sim_machine.accesses;
    struct sim_work *work = stream->queue.last;

    if (!sim_machine.config.strict || sim_work_completed(work))
        return true;
    if (is_last_access(accesses, work, address, bytes))
        return true;
    if (!reserve_access(accesses))
        return false;
    work->accesses++;
    work->accesses_anything = work->accesses_anything || bytes == 0;
    accesses->access[accesses->count++] = (struct sim_access){
        .work = sim_work_retain(work),
        .address = address,
        .bytes = bytes,
        .stream = stream->id,
        .device = stream->device,
        .origin = sim_origin_of_call(),
    };
    return true;
}

static void report_access(const struct sim_access *access)
{
    if (access->bytes == 0)
        sim_report_line("work:", &access->origin,
                        "stream %" PRIu64 " of device %u, accesses unknown memory, queued",
                        access->stream, access->device);
    else
        sim_report_line("work:", &access->origin,
                        "stream %" PRIu64 " of device %u, accesses %" PRIu64 " bytes at 0x%" PRIx64
                        ", queued",
                        access->stream, access->device, access->bytes, access->address);
}

#define ANY_DEVICE UINT_MAX

/* Find an access of work of a device that overlaps a range and has not completed, or NULL. */
static const struct sim_access *find_access(uint64_t address, uint64_t bytes, unsigned device)
{
    const struct sim_accesses *accesses = &sim_machine.accesses;

    for (size_t i = 0; i < accesses->count; i++) {
        const struct sim_access *access = &accesses->access[i];

        if ((device == ANY_DEVICE || access->device == device) &&
            ranges_overlap(access->address, access->bytes, address, bytes) &&
            !sim_work_completed(access->work))
            return access;
    }
    return NULL;
}

void sim_check_mapping_idle_on(const struct sim_mapping *mapping, unsigned device)
{
    const struct sim_access *conflict = find_access(mapping->address, mapping->bytes, device);

    if (conflict == NULL)
        return;
    sim_report_begin("queued work accesses the memory; synchronize its stream first");
    sim_report_mapping(mapping);
    report_access(conflict);
    sim_report_end();
}

void sim_check_mapping_idle(const struct sim_mapping *mapping)
{
    sim_check_mapping_idle_on(mapping, ANY_DEVICE);
}

void sim_check_allocation_idle(const struct sim_range *range)
{
    const struct sim_access *conflict = find_access(range->base, range->bytes, ANY_DEVICE);

    if (conflict == NULL)
        return;
    sim_report_begin("queued work accesses the memory; synchronize its stream first");
    sim_report_allocation(range);
    report_access(conflict);
    sim_report_end();
}

void sim_check_mapping_context(const struct sim_mapping *mapping)
{
    const struct sim_accesses *accesses = &sim_machine.accesses;
    const unsigned owner = mapping->physical->device;
    unsigned current;

    if (sim_context_current(&current) != CUDA_SUCCESS || current == owner)
        return;
    for (size_t i = 0; i < accesses->count; i++) {
        const struct sim_access *access = &accesses->access[i];

        if (access->bytes != 0 || access->device != owner || sim_work_completed(access->work))
            continue;
        sim_report_begin(
            "current context is of another device, and queued work may access the memory; "
            "make a context of the memory's device current");
        sim_report_line("context:", NULL, "device %u", current);
        sim_report_mapping(mapping);
        report_access(access);
        sim_report_end();
    }
}

static void report_inaccessible(unsigned device, uint64_t address, const char *reason)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const struct sim_mapping *mapping = sim_mapping_at(address);

    sim_report_begin(reason);
    sim_report_line("address:", NULL, "0x%" PRIx64 ", accessed by device %u", address, device);
    if (mapping != NULL)
        sim_report_mapping(mapping);
    else if (range != NULL && range->granule == NULL)
        sim_report_allocation(range);
    else if (range != NULL)
        sim_report_line("reservation:", &range->origin,
                        "%" PRIu64 " bytes at 0x%" PRIx64 ", created", range->bytes, range->base);
    sim_report_end();
}

#define NOT_ALLOCATED "access to an address that is neither reserved nor allocated"

/* Get the number of accessible bytes at an address; with 0, *reason is the reason. */
static uint64_t accessible_bytes(unsigned device, uint64_t address, const char **reason)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const uint64_t bit = (uint64_t)1 << device;
    const struct sim_mapping *mapping;

    if (range == NULL) {
        *reason = NOT_ALLOCATED;
        return 0;
    }
    if (range->granule == NULL) {
        *reason =
            "access to memory of another device without peer access; call cuCtxEnablePeerAccess "
            "first";
        return range->device == device ||
                       (sim_machine.device[device].peers & (uint64_t)1 << range->device) != 0
                   ? range->bytes - (address - range->base)
                   : 0;
    }
    mapping = range->granule[(address - range->base) / SIM_GRANULE];
    if (mapping == NULL) {
        *reason = "access to an unmapped address; call cuMemMap and cuMemSetAccess first";
        return 0;
    }
    *reason = "access to memory without access rights; call cuMemSetAccess first";
    if ((mapping->accessible & bit) == 0)
        return 0;
    return mapping->bytes - (address - mapping->address);
}

/* Find the first address of a range that is not accessible to a device, with the reason; 0: none. */
static uint64_t find_inaccessible(unsigned device, uint64_t address, uint64_t bytes,
                                  const char **reason)
{
    while (bytes != 0) {
        const uint64_t accessible = accessible_bytes(device, address, reason);

        if (accessible == 0)
            return address;
        if (accessible >= bytes)
            return 0;
        address += accessible;
        bytes -= accessible;
    }
    return 0;
}

bool sim_is_accessible(unsigned device, uint64_t address, uint64_t bytes)
{
    const char *reason;

    return address != 0 && find_inaccessible(device, address, bytes, &reason) == 0;
}

bool sim_check_accessible(unsigned device, uint64_t address, uint64_t bytes)
{
    const char *reason = NOT_ALLOCATED;
    const uint64_t gap = address == 0 ? 0 : find_inaccessible(device, address, bytes, &reason);

    if (address != 0 && gap == 0)
        return true;
    if (sim_machine.config.strict)
        report_inaccessible(device, gap, reason);
    return false;
}
