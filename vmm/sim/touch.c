/* SPDX-License-Identifier: MIT */
#include "vmm/sim/touch.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "vmm/sim/context.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/stream.h"

static bool do_ranges_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

void sim_touches_prune(void)
{
    struct sim_touches *touches = &sim_machine.touches;
    size_t kept = 0;

    for (size_t i = 0; i < touches->count; i++) {
        struct sim_touch touch = touches->touch[i];

        if (sim_work_ended(touch.work)) {
            touch.work->touches--;
            sim_work_unrefer(touch.work);
        } else {
            touches->touch[kept++] = touch;
        }
    }
    touches->count = kept;
}

void sim_touches_end(void)
{
    free(sim_machine.touches.touch);
    sim_machine.touches = (struct sim_touches){.count = 0};
}

static bool reserve_access(struct sim_touches *touches)
{
    size_t capacity;
    struct sim_touch *touch;

    if (touches->count < touches->capacity)
        return true;
    sim_touches_prune();
    /* Half of it free, so that looking through all of it again is some time away. */
    if (touches->count < touches->capacity / 2)
        return true;
    capacity = touches->capacity == 0 ? 64 : touches->capacity * 2;
    touch = realloc(touches->touch, capacity * sizeof(*touch));
    if (touch == NULL)
        return false;
    touches->touch = touch;
    touches->capacity = capacity;
    return true;
}

/* Work that went on with the piece before it may say the same again. */
static bool is_last_access(const struct sim_touches *touches, const struct sim_work *work,
                           uint64_t address, uint64_t bytes)
{
    const struct sim_touch *last;

    if (bytes == 0)
        return work->may_touch_all;
    if (touches->count == 0)
        return false;
    last = &touches->touch[touches->count - 1];
    return last->work == work && last->address == address && last->bytes == bytes;
}

bool sim_touches_add(const struct sim_stream *stream, uint64_t address, uint64_t bytes)
{
    struct sim_touches *touches = &sim_machine.touches;
    struct sim_work *work = stream->queue.last;

    if (!sim_machine.strict || sim_work_ended(work))
        return true;
    if (is_last_access(touches, work, address, bytes))
        return true;
    if (!reserve_access(touches))
        return false;
    work->touches++;
    work->may_touch_all = work->may_touch_all || bytes == 0;
    touches->touch[touches->count++] = (struct sim_touch){
        .work = sim_work_refer(work),
        .address = address,
        .bytes = bytes,
        .stream = stream->id,
        .device = stream->device,
        .origin = sim_origin_here(),
    };
    return true;
}

void sim_report_mapping(const struct sim_mapping *mapping)
{
    const struct sim_physical *physical = mapping->physical;

    sim_report_line("mapping:", &mapping->origin, "%" PRIu64 " bytes at 0x%" PRIx64 ", created",
                    mapping->bytes, mapping->address);
    sim_report_line("memory:", &physical->origin, "%" PRIu64 " bytes on device %u, created",
                    physical->bytes, physical->device);
}

void sim_report_allocation(const struct sim_range *range)
{
    sim_report_line("memory:", &range->origin,
                    "%" PRIu64 " bytes on device %u at 0x%" PRIx64 ", created", range->bytes,
                    range->device, range->base);
}

static void report_access(const struct sim_touch *touch)
{
    if (touch->bytes == 0)
        sim_report_line("work:", &touch->origin,
                        "stream %" PRIu64 " of device %u, accesses unknown memory, queued",
                        touch->stream, touch->device);
    else
        sim_report_line("work:", &touch->origin,
                        "stream %" PRIu64 " of device %u, accesses %" PRIu64 " bytes at 0x%" PRIx64
                        ", queued",
                        touch->stream, touch->device, touch->bytes, touch->address);
}

#define ANY_DEVICE UINT_MAX

/* Unfinished work of a device that touches some of that. */
static const struct sim_touch *find_access(uint64_t address, uint64_t bytes, unsigned device)
{
    const struct sim_touches *touches = &sim_machine.touches;

    for (size_t i = 0; i < touches->count; i++) {
        const struct sim_touch *touch = &touches->touch[i];

        if ((device == ANY_DEVICE || touch->device == device) &&
            do_ranges_overlap(touch->address, touch->bytes, address, bytes) &&
            !sim_work_ended(touch->work))
            return touch;
    }
    return NULL;
}

void sim_check_idle_on(const struct sim_mapping *mapping, unsigned device)
{
    const struct sim_touch *user = find_access(mapping->address, mapping->bytes, device);

    if (user == NULL)
        return;
    sim_report_begin("queued work accesses the memory; synchronize its stream first");
    sim_report_mapping(mapping);
    report_access(user);
    sim_report_end();
}

void sim_check_idle(const struct sim_mapping *mapping)
{
    sim_check_idle_on(mapping, ANY_DEVICE);
}

void sim_check_allocation_idle(const struct sim_range *range)
{
    const struct sim_touch *user = find_access(range->base, range->bytes, ANY_DEVICE);

    if (user == NULL)
        return;
    sim_report_begin("queued work accesses the memory; synchronize its stream first");
    sim_report_allocation(range);
    report_access(user);
    sim_report_end();
}

void sim_check_context(const struct sim_mapping *mapping)
{
    const struct sim_touches *touches = &sim_machine.touches;
    const unsigned owner = mapping->physical->device;
    unsigned current;

    if (sim_context_current(&current) != CUDA_SUCCESS || current == owner)
        return;
    for (size_t i = 0; i < touches->count; i++) {
        const struct sim_touch *touch = &touches->touch[i];

        if (touch->bytes != 0 || touch->device != owner || sim_work_ended(touch->work))
            continue;
        sim_report_begin(
            "current context is of another device, and queued work may access the memory; "
            "make a context of the memory's device current");
        sim_report_line("context:", NULL, "device %u", current);
        sim_report_mapping(mapping);
        report_access(touch);
        sim_report_end();
    }
}

static void report_inaccessible(unsigned device, uint64_t address, const char *why)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const struct sim_mapping *mapping = sim_mapping_at(address);

    sim_report_begin(why);
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

/* How far a device can go from an address on; 0: not at all, and why. */
static uint64_t accessible_bytes(unsigned device, uint64_t address, const char **why)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const uint64_t bit = (uint64_t)1 << device;
    const struct sim_mapping *mapping;

    if (range == NULL) {
        *why = NOT_ALLOCATED;
        return 0;
    }
    if (range->granule == NULL) {
        *why = "access to memory of another device without peer access; call cuCtxEnablePeerAccess "
               "first";
        return range->device == device ||
                       (sim_machine.device[device].peers & (uint64_t)1 << range->device) != 0
                   ? range->bytes - (address - range->base)
                   : 0;
    }
    mapping = range->granule[(address - range->base) / SIM_GRANULE];
    if (mapping == NULL) {
        *why = "access to an unmapped address; call cuMemMap and cuMemSetAccess first";
        return 0;
    }
    *why = "access to memory without access rights; call cuMemSetAccess first";
    if ((mapping->accessible & bit) == 0)
        return 0;
    return mapping->bytes - (address - mapping->address);
}

/* The first address that a device cannot reach, and why; 0 if there is none. */
static uint64_t find_inaccessible(unsigned device, uint64_t address, uint64_t bytes,
                                  const char **why)
{
    while (bytes != 0) {
        const uint64_t reach = accessible_bytes(device, address, why);

        if (reach == 0)
            return address;
        if (reach >= bytes)
            return 0;
        address += reach;
        bytes -= reach;
    }
    return 0;
}

bool sim_can_reach(unsigned device, uint64_t address, uint64_t bytes)
{
    const char *why;

    return address != 0 && find_inaccessible(device, address, bytes, &why) == 0;
}

bool sim_check_reach(unsigned device, uint64_t address, uint64_t bytes)
{
    const char *why = NOT_ALLOCATED;
    const uint64_t gap = address == 0 ? 0 : find_inaccessible(device, address, bytes, &why);

    if (address != 0 && gap == 0)
        return true;
    if (sim_machine.strict)
        report_inaccessible(device, gap, why);
    return false;
}
