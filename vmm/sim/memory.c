/* SPDX-License-Identifier: MIT */
#include "vmm/sim/memory.h"

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/refusal.h"
#include "vmm/sim/registrar.h"
#include "vmm/sim/stream.h"

static uint64_t round_to_granule(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

struct sim_range *sim_allocation_make(unsigned device, uint64_t bytes,
                                      const struct sim_store *store)
{
    struct sim_range *range = sim_range_take(&sim_machine.addresses, bytes, SIM_GRANULE, 0);

    if (range != NULL) {
        range->device = device;
        range->store = *store;
        if (sim_bytes_map(store, range->base, round_to_granule(bytes))) {
            sim_bytes_protect(range->base, round_to_granule(bytes), true);
            return range;
        }
        sim_range_put(&sim_machine.addresses, range);
    }
    sim_bytes_put(store, round_to_granule(bytes));
    return NULL;
}

static CUresult allocate_memory(CUdeviceptr *out, size_t bytes)
{
    struct sim_range *range;
    struct sim_store store;
    unsigned device;

    if (out == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_context_current(&device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_charge(sim_cost_of(sim_machine.costs.alloc, bytes));
    if (bytes > sim_machine.memory_bytes || round_to_granule(bytes) > sim_memory_left(device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_bytes_take(device, round_to_granule(bytes), false, &store))
        return CUDA_ERROR_OUT_OF_MEMORY;
    range = sim_allocation_make(device, bytes, &store);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_take(device, round_to_granule(bytes));
    *out = range->base;
    return CUDA_SUCCESS;
}

static void allocation_destroy(struct sim_range *range)
{
    if (!range->is_foreign)
        sim_memory_put(range->device, round_to_granule(range->bytes));
    sim_bytes_put(&range->store, round_to_granule(range->bytes));
    sim_range_put(&sim_machine.addresses, range);
}

/*
 * The real call waits until the device is idle.  Here it waits for all work that has an end; work
 * without one goes on, since only a wait that the caller asked for may end it.
 */
static struct sim_range *find_allocation(CUdeviceptr address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    return range == NULL || range->granule != NULL || range->base != address ? NULL : range;
}

CUresult sim_allocation_free(struct sim_range *range)
{
    const uint64_t address = range->base;

    sim_charge(sim_cost_of(sim_machine.costs.free, range->bytes));
    sim_streams_pass_timed(range->device);
    /* Copies, fills and host functions that were waited for may be about this memory. */
    sim_machine.waits = true;
    sim_settle();
    range = find_allocation(address);
    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_machine.strict) {
        sim_check_allocation_idle(range);
        sim_registrar_check_allocation(range);
    }
    allocation_destroy(range);
    return CUDA_SUCCESS;
}

static CUresult free_memory(CUdeviceptr address)
{
    struct sim_range *range = find_allocation(address);

    if (address == 0)
        return CUDA_SUCCESS;
    return range == NULL || range->is_foreign ? CUDA_ERROR_INVALID_VALUE
                                              : sim_allocation_free(range);
}

void sim_allocations_end(unsigned device)
{
    /* From the top, because giving one back may close gaps above it. */
    for (size_t i = sim_machine.addresses.count; i-- > 0;) {
        struct sim_range *range;

        if (i >= sim_machine.addresses.count)
            continue;
        range = sim_machine.addresses.range[i];
        if (range != NULL && range->granule == NULL && range->device == device)
            allocation_destroy(range);
    }
}

static CUresult get_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    unsigned device;

    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_context_current(&device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    *free_bytes = sim_memory_left(device);
    *total_bytes = sim_machine.memory_bytes;
    return CUDA_SUCCESS;
}

SIM_ENTRY(MEM_ALLOC, cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytesize), allocate_memory(dptr, bytesize));
SIM_ENTRY_AT(MEM_FREE, cuMemFree_v2, (CUdeviceptr dptr), dptr, 0, free_memory(dptr));
SIM_ENTRY(MEM_GET_INFO, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes),
          get_memory_info(free_bytes, total_bytes));

xseg_status xseg_sim_set_external_memory(unsigned device, uint64_t bytes)
{
    unsigned devices;

    sim_lock();
    devices = sim_machine.devices;
    if (device < devices)
        sim_machine.device[device].held = bytes;
    sim_unlock();
    if (device < devices)
        return XSEG_OK;
    return sim_refuse(XSEG_ERR_ARGUMENT,
                      "xseg_sim_set_external_memory: invalid device, %u; pass a device below %u",
                      device, devices);
}

uint64_t xseg_sim_used(unsigned device)
{
    uint64_t used = 0;

    sim_lock();
    sim_physical_settle_pinned();
    if (device < sim_machine.devices)
        used = sim_machine.device[device].used;
    sim_unlock();
    return used;
}

uint64_t xseg_sim_peak(unsigned device)
{
    uint64_t peak = 0;

    sim_lock();
    if (device < sim_machine.devices)
        peak = sim_machine.device[device].peak;
    sim_unlock();
    return peak;
}
