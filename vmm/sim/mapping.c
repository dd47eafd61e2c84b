/* SPDX-License-Identifier: MIT */
#include "vmm/sim/mapping.h"

#include <stdlib.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/registrar.h"

/* Consecutive granules of a reservation. */
struct run {
    struct sim_range *range;
    uint64_t first, count;
};

static bool find_run(uint64_t address, uint64_t bytes, struct run *run)
{
    struct sim_range *range;

    if (bytes == 0 || address % SIM_GRANULE != 0 || bytes % SIM_GRANULE != 0)
        return false;
    range = sim_range_find(&sim_machine.addresses, address);
    if (range == NULL || range->granule == NULL || bytes > range->bytes - (address - range->base))
        return false;
    run->range = range;
    run->first = (address - range->base) / SIM_GRANULE;
    run->count = bytes / SIM_GRANULE;
    return true;
}

/* Get the mapping that starts at a granule of a run and does not extend past the run, or NULL. */
static struct sim_mapping *find_mapping_start(const struct run *run, uint64_t at)
{
    struct sim_mapping *mapping = run->range->granule[run->first + at];

    if (mapping == NULL || mapping->address != run->range->base + (run->first + at) * SIM_GRANULE ||
        mapping->bytes / SIM_GRANULE > run->count - at)
        return NULL;
    return mapping;
}

/* Get whether a run consists of whole mappings without gaps, as many as one call may process. */
static bool consists_of_mappings(const struct run *run)
{
    uint64_t count = 0;

    for (uint64_t at = 0; at < run->count; count++) {
        const struct sim_mapping *mapping = find_mapping_start(run, at);

        if (mapping == NULL)
            return false;
        at += mapping->bytes / SIM_GRANULE;
    }
    return count == 1 || !sim_machine.config.single_mapping_calls;
}

struct sim_mapping *sim_mapping_at(uint64_t address)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    if (range == NULL || range->granule == NULL)
        return NULL;
    return range->granule[(address - range->base) / SIM_GRANULE];
}

static CUresult map_memory(CUdeviceptr address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct sim_physical *physical = sim_physical_find(handle);
    struct sim_mapping *mapping;
    uint64_t covered = 0;
    struct run run;

    /* cuda.h requires offset 0. */
    if (offset != 0 || flags != 0 || physical == NULL || bytes > physical->bytes ||
        !find_run(address, bytes, &run))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = 0; i < run.count; i++)
        if (run.range->granule[run.first + i] != NULL)
            return CUDA_ERROR_INVALID_VALUE;
    sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.map, bytes));
    mapping = malloc(sizeof(*mapping));
    if (mapping == NULL || !sim_contents_map(&physical->store, address, bytes)) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *mapping = (struct sim_mapping){
        .physical = physical, .address = address, .bytes = bytes, .origin = sim_origin_of_call()};
    do {
        run.range->granule[run.first + covered] = mapping;
    } while (++covered < run.count);
    run.range->mapped_granules += run.count;
    physical->mappings++;
    sim_machine.mappings++;
    return CUDA_SUCCESS;
}

/* Destroy the mapping that starts at a granule.  Returns its number of granules. */
static uint64_t mapping_destroy(struct sim_range *range, uint64_t first)
{
    struct sim_mapping *mapping = range->granule[first];
    const uint64_t count = mapping->bytes / SIM_GRANULE;

    for (uint64_t i = 0; i < count; i++)
        range->granule[first + i] = NULL;
    range->mapped_granules -= count;
    sim_contents_unmap(mapping->address, mapping->bytes);
    sim_machine.mappings--;
    mapping->physical->mappings--;
    sim_physical_free_if_unused(mapping->physical);
    free(mapping);
    return count;
}

void sim_mappings_destroy(struct sim_range *range)
{
    for (uint64_t at = 0; range->mapped_granules != 0;)
        at += range->granule[at] == NULL ? 1 : mapping_destroy(range, at);
}

/* End the process with a report if a mapping of a run is in use. */
static void check_unmap(const struct run *run)
{
    for (uint64_t at = 0; at < run->count;) {
        const struct sim_mapping *mapping = run->range->granule[run->first + at];

        sim_check_mapping_idle(mapping);
        sim_registrations_check_mapping(mapping);
        sim_check_mapping_context(mapping);
        at += mapping->bytes / SIM_GRANULE;
    }
}

/* Unlike the note in cuda.h, real drivers do not wait for queued work. */
static CUresult unmap_memory(CUdeviceptr address, size_t bytes)
{
    struct run run;

    if (!find_run(address, bytes, &run) || !consists_of_mappings(&run))
        return CUDA_ERROR_INVALID_VALUE;
    sim_clock_charge(sim_machine.config.costs.unmap);
    if (sim_machine.config.strict)
        check_unmap(&run);
    for (uint64_t at = 0; at < run.count;) {
        const int error = sim_faults_check_mapping(&sim_machine.faults);

        if (error != 0)
            return (CUresult)error;
        sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.unmap_mapping,
                                           run.range->granule[run.first + at]->bytes));
        at += mapping_destroy(run.range, run.first + at);
    }
    /* A halfway fault past the last mapping. */
    return (CUresult)sim_machine.faults.halfway_error;
}

static CUresult check_access_desc(const CUmemAccessDesc *desc)
{
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
         desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
         desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->location.id < 0 || (unsigned)desc->location.id >= sim_machine.config.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    /* Read-only access is not modeled. */
    return desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Get whether a device may have access to the memory of a run: its own memory, or any with peer support. */
static bool is_peer_access_allowed(const struct run *run, const CUmemAccessDesc *desc)
{
    for (uint64_t at = 0; sim_machine.config.without_peers && at < run->count;) {
        const struct sim_mapping *mapping = run->range->granule[run->first + at];

        if (mapping->physical->device != (unsigned)desc->location.id)
            return false;
        at += mapping->bytes / SIM_GRANULE;
    }
    return true;
}

/* Get whether access fails because of XSEG_SIM_RDMA_ACCESS_FAILS. */
static bool is_rdma_access_denied(const struct run *run, const CUmemAccessDesc *desc)
{
    if (sim_machine.config.rdma != XSEG_SIM_RDMA_ACCESS_FAILS ||
        desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        return false;
    for (uint64_t at = 0; at < run->count;) {
        const struct sim_mapping *mapping = run->range->granule[run->first + at];

        if (mapping->physical->prop.allocFlags.gpuDirectRDMACapable)
            return true;
        at += mapping->bytes / SIM_GRANULE;
    }
    return false;
}

static void set_mapping_access(struct sim_mapping *mapping, const CUmemAccessDesc *desc)
{
    const uint64_t bit = (uint64_t)1 << desc->location.id;

    if (sim_machine.config.strict && (mapping->accessible & bit) != 0 &&
        desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        sim_check_mapping_idle_on(mapping, (unsigned)desc->location.id);
    mapping->accessible &= ~bit;
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        mapping->accessible |= bit;
    sim_contents_protect(mapping->address, mapping->bytes, mapping->accessible != 0);
    sim_clock_charge(sim_cost_set_access(&sim_machine.config.costs, mapping->bytes));
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                           size_t count)
{
    struct run run;

    if (desc == NULL || count == 0 || !find_run(address, bytes, &run) ||
        !consists_of_mappings(&run))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUresult result = check_access_desc(&desc[i]);

        if (result != CUDA_SUCCESS)
            return result;
        if (!is_peer_access_allowed(&run, &desc[i]))
            return CUDA_ERROR_INVALID_DEVICE;
        if (is_rdma_access_denied(&run, &desc[i]))
            return CUDA_ERROR_UNKNOWN;
    }
    sim_clock_charge(sim_machine.config.costs.access_call);
    for (uint64_t at = 0; at < run.count;) {
        struct sim_mapping *mapping = run.range->granule[run.first + at];
        const int error = sim_faults_check_mapping(&sim_machine.faults);

        if (error != 0)
            return (CUresult)error;
        for (size_t i = 0; i < count; i++)
            set_mapping_access(mapping, &desc[i]);
        at += mapping->bytes / SIM_GRANULE;
    }
    return (CUresult)sim_machine.faults.halfway_error;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location,
                           CUdeviceptr address)
{
    const struct sim_mapping *mapping = sim_mapping_at(address);

    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->id < 0 || (unsigned)location->id >= sim_machine.config.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = (mapping->accessible >> location->id & 1) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                            : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

SIM_ENTRY_AT(MEM_MAP, cuMemMap,
             (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long flags),
             ptr, 0, map_memory(ptr, size, offset, handle, flags));
SIM_ENTRY_AT(MEM_UNMAP, cuMemUnmap, (CUdeviceptr ptr, size_t size), ptr, 0,
             unmap_memory(ptr, size));
SIM_ENTRY_AT(MEM_SET_ACCESS, cuMemSetAccess,
             (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count), ptr, 0,
             set_access(ptr, size, desc, count));
SIM_ENTRY_AT(MEM_GET_ACCESS, cuMemGetAccess,
             (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), ptr, 0,
             get_access(flags, location, ptr));
