/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "vmm/sim/dmabuf.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

struct sim_physical *sim_physical_find(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_handles_find(&sim_machine.physical, handle);

    return physical != NULL && physical->references != 0 ? physical : NULL;
}

static void physical_destroy(struct sim_physical *physical)
{
    sim_machine.pinned -= physical->is_pinned;
    if (physical->is_imported)
        sim_export_unlock(physical);
    else
        sim_memory_put(physical->device, physical->bytes);
    sim_bytes_put(&physical->store, physical->bytes);
    sim_handles_remove(&sim_machine.physical, physical->handle, true);
    free(physical);
}

void sim_physical_settle(struct sim_physical *physical)
{
    if (physical->references != 0 || physical->mappings != 0 || physical->dmabufs != 0)
        return;
    if (sim_export_is_held(physical)) {
        sim_machine.pinned += !physical->is_pinned;
        physical->is_pinned = true;
        return;
    }
    physical_destroy(physical);
}

void sim_physical_settle_pinned(void)
{
    struct sim_physical *physical;
    uint32_t at = 0;

    sim_dmabufs_settle();
    if (sim_machine.pinned == 0)
        return;
    while ((physical = sim_handles_next(&sim_machine.physical, &at)) != NULL)
        if (physical->is_pinned)
            sim_physical_settle(physical);
}

void sim_physical_end(void)
{
    struct sim_physical *physical;
    uint32_t at = 0;

    while ((physical = sim_handles_next(&sim_machine.physical, &at)) != NULL) {
        /* Others keep the contents. */
        if (sim_export_is_held(physical))
            physical->store.file = -1;
        physical_destroy(physical);
    }
}

struct sim_physical *sim_physical_make(const CUmemAllocationProp *prop, uint64_t bytes,
                                       const struct sim_store *store)
{
    struct sim_physical *physical = calloc(1, sizeof(*physical));

    if (physical != NULL) {
        *physical = (struct sim_physical){
            .bytes = bytes,
            .device = (unsigned)prop->location.id,
            .references = 1,
            .prop = *prop,
            .store = *store,
            .origin = sim_origin_here(),
        };
        physical->handle = sim_handles_add(&sim_machine.physical, physical);
        if (physical->handle != 0)
            return physical;
    }
    sim_bytes_put(store, bytes);
    free(physical);
    return NULL;
}

/* Memory of devices only, and shared by file descriptor, or fabric handle where the machine has these. */
static CUresult check_allocation_prop(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->win32HandleMetaData != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        break;
    case 2: /* CU_MEM_LOCATION_TYPE_HOST, which has to be asked for without handle types */
        return prop->requestedHandleTypes == 0 ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_INVALID_VALUE;
    case 3: /* CU_MEM_LOCATION_TYPE_HOST_NUMA */
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prop->location.id < 0 || (unsigned)prop->location.id >= sim_machine.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    const unsigned types = (unsigned)prop->requestedHandleTypes;
    const unsigned known =
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (sim_machine.fabric ? SIM_HANDLE_FABRIC : 0);
    return (types & ~known) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* What the machine does about memory that RDMA is to reach. */
static CUresult apply_rdma_setting(CUmemAllocationProp *prop)
{
    if (!prop->allocFlags.gpuDirectRDMACapable)
        return CUDA_SUCCESS;
    if (sim_machine.rdma == XSEG_SIM_RDMA_CREATE_FAILS || sim_machine.rdma == XSEG_SIM_RDMA_ABSENT)
        return CUDA_ERROR_NOT_SUPPORTED;
    prop->allocFlags.gpuDirectRDMACapable = sim_machine.rdma != XSEG_SIM_RDMA_IGNORED;
    return CUDA_SUCCESS;
}

static CUresult create_physical(CUmemGenericAllocationHandle *out, size_t bytes,
                                const CUmemAllocationProp *wanted, unsigned long long flags)
{
    struct sim_physical *physical;
    CUmemAllocationProp prop;
    struct sim_store store;
    CUresult result;

    if (out == NULL || bytes == 0 || bytes % SIM_GRANULE != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_allocation_prop(wanted);
    if (result != CUDA_SUCCESS)
        return result;
    prop = *wanted;
    result = apply_rdma_setting(&prop);
    if (result != CUDA_SUCCESS)
        return result;
    sim_charge(sim_cost_of(sim_machine.costs.create, bytes));
    if (bytes > sim_memory_left((unsigned)prop.location.id))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_bytes_take((unsigned)prop.location.id, bytes, prop.requestedHandleTypes != 0, &store))
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical = sim_physical_make(&prop, bytes, &store);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_take(physical->device, bytes);
    *out = physical->handle;
    return CUDA_SUCCESS;
}

static CUresult release_physical(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_physical_find(handle);

    if (physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_charge(sim_cost_of(sim_machine.costs.release, physical->bytes));
    physical->references--;
    sim_physical_settle(physical);
    return CUDA_SUCCESS;
}

static CUresult retain_allocation_handle(CUmemGenericAllocationHandle *out, const void *address)
{
    const struct sim_mapping *mapping = sim_mapping_at((uint64_t)(uintptr_t)address);

    if (out == NULL || mapping == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    mapping->physical->references++;
    *out = mapping->physical->handle;
    return CUDA_SUCCESS;
}

static CUresult get_granularity(size_t *out, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option)
{
    CUresult result;

    if (out == NULL || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    result = check_allocation_prop(prop);
    if (result == CUDA_SUCCESS)
        *out = SIM_GRANULE;
    return result;
}

SIM_ENTRY(MEM_CREATE, cuMemCreate,
          (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
           unsigned long long flags),
          create_physical(handle, size, prop, flags));

static CUresult get_allocation_prop(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    const struct sim_physical *physical = sim_physical_find(handle);

    if (prop == NULL || physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

SIM_ENTRY(MEM_RELEASE, cuMemRelease, (CUmemGenericAllocationHandle handle), release_physical(handle));
SIM_ENTRY_AT(MEM_RETAIN_HANDLE, cuMemRetainAllocationHandle,
             (CUmemGenericAllocationHandle *handle, void *addr), (uint64_t)(uintptr_t)addr, 0,
             retain_allocation_handle(handle, addr));
SIM_ENTRY(MEM_GET_GRANULARITY, cuMemGetAllocationGranularity,
          (size_t *granularity_out, const CUmemAllocationProp *prop,
           CUmemAllocationGranularity_flags option),
          get_granularity(granularity_out, prop, option));
SIM_ENTRY(MEM_GET_PROPERTIES, cuMemGetAllocationPropertiesFromHandle,
          (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle),
          get_allocation_prop(prop, handle));
