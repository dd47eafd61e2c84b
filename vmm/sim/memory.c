/* SPDX-License-Identifier: MIT */
#include "vmm/sim/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/registrar.h"
#include "vmm/sim/report.h"
#include "vmm/sim/sharing.h"
#include "vmm/sim/stream.h"

struct sim_physical *sim_physical_find(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_handles_find(&sim_machine.physical, handle);

    return physical != NULL && physical->references != 0 ? physical : NULL;
}

static void physical_destroy(struct sim_physical *physical)
{
    sim_machine.exports_in_use -= physical->is_export_in_use;
    if (physical->is_imported)
        sim_import_release(physical);
    else
        sim_memory_uncharge(physical->device, physical->bytes);
    sim_contents_free(&physical->store, physical->bytes);
    sim_handles_remove(&sim_machine.physical, physical->handle, true);
    free(physical);
}

void sim_physical_free_if_unused(struct sim_physical *physical)
{
    if (physical->references != 0 || physical->mappings != 0 || physical->dmabufs != 0)
        return;
    if (sim_export_is_in_use(physical)) {
        sim_machine.exports_in_use += !physical->is_export_in_use;
        physical->is_export_in_use = true;
        return;
    }
    physical_destroy(physical);
}

void sim_physical_free_unused_exports(void)
{
    struct sim_physical *physical;
    uint32_t at = 0;

    sim_dmabufs_free_unused();
    if (sim_machine.exports_in_use == 0)
        return;
    while ((physical = sim_handles_next(&sim_machine.physical, &at)) != NULL)
        if (physical->is_export_in_use)
            sim_physical_free_if_unused(physical);
}

void sim_physical_destroy_all(void)
{
    struct sim_physical *physical;
    uint32_t at = 0;

    while ((physical = sim_handles_next(&sim_machine.physical, &at)) != NULL) {
        /* The contents must remain for importers. */
        if (sim_export_is_in_use(physical))
            physical->store.file = -1;
        physical_destroy(physical);
    }
}

struct sim_physical *sim_physical_create(const CUmemAllocationProp *prop, uint64_t bytes,
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
            .origin = sim_origin_of_call(),
        };
        physical->handle = sim_handles_add(&sim_machine.physical, physical);
        if (physical->handle != 0)
            return physical;
    }
    sim_contents_free(store, bytes);
    free(physical);
    return NULL;
}

/* Check that the properties are of device memory with supported handle types. */
static CUresult check_allocation_prop(const CUmemAllocationProp *prop)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->win32HandleMetaData != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        break;
    case 2: /* CU_MEM_LOCATION_TYPE_HOST, which requires no handle types */
        return prop->requestedHandleTypes == 0 ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_INVALID_VALUE;
    case 3: /* CU_MEM_LOCATION_TYPE_HOST_NUMA */
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (prop->location.id < 0 || (unsigned)prop->location.id >= sim_machine.config.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    const unsigned types = (unsigned)prop->requestedHandleTypes;
    const unsigned known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                           (sim_machine.config.fabric ? SIM_HANDLE_FABRIC : 0);
    return (types & ~known) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* Apply the setting `rdma` to gpuDirectRDMACapable. */
static CUresult apply_rdma_setting(CUmemAllocationProp *prop)
{
    if (!prop->allocFlags.gpuDirectRDMACapable)
        return CUDA_SUCCESS;
    if (sim_machine.config.rdma == XSEG_SIM_RDMA_CREATE_FAILS ||
        sim_machine.config.rdma == XSEG_SIM_RDMA_ABSENT)
        return CUDA_ERROR_NOT_SUPPORTED;
    prop->allocFlags.gpuDirectRDMACapable = sim_machine.config.rdma != XSEG_SIM_RDMA_IGNORED;
    return CUDA_SUCCESS;
}

static CUresult create_physical(CUmemGenericAllocationHandle *out, size_t bytes,
                                const CUmemAllocationProp *requested, unsigned long long flags)
{
    struct sim_physical *physical;
    CUmemAllocationProp prop;
    struct sim_store store;
    CUresult result;

    if (out == NULL || bytes == 0 || bytes % SIM_GRANULE != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_allocation_prop(requested);
    if (result != CUDA_SUCCESS)
        return result;
    prop = *requested;
    result = apply_rdma_setting(&prop);
    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.create, bytes));
    if (!sim_memory_suffices((unsigned)prop.location.id, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_contents_allocate((unsigned)prop.location.id, bytes, prop.requestedHandleTypes != 0,
                               &store))
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical = sim_physical_create(&prop, bytes, &store);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_charge(physical->device, bytes);
    *out = physical->handle;
    return CUDA_SUCCESS;
}

static CUresult release_physical(CUmemGenericAllocationHandle handle)
{
    struct sim_physical *physical = sim_physical_find(handle);

    if (physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.release, physical->bytes));
    physical->references--;
    sim_physical_free_if_unused(physical);
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

static CUresult get_allocation_prop(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    const struct sim_physical *physical = sim_physical_find(handle);

    if (prop == NULL || physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

SIM_ENTRY(MEM_CREATE, cuMemCreate,
          (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
           unsigned long long flags),
          create_physical(handle, size, prop, flags));
SIM_ENTRY(MEM_RELEASE, cuMemRelease, (CUmemGenericAllocationHandle handle),
          release_physical(handle));
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

static uint64_t round_to_granule(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

struct sim_range *sim_allocation_create(unsigned device, uint64_t bytes,
                                        const struct sim_store *store)
{
    struct sim_range *range = sim_range_create(&sim_machine.addresses, bytes, SIM_GRANULE, false);

    if (range != NULL) {
        range->device = device;
        range->store = *store;
        if (sim_contents_map(store, range->base, round_to_granule(bytes))) {
            sim_contents_protect(range->base, round_to_granule(bytes), true);
            return range;
        }
        sim_range_destroy(&sim_machine.addresses, range);
    }
    sim_contents_free(store, round_to_granule(bytes));
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
    sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.alloc, bytes));
    if (bytes > sim_machine.config.memory_bytes ||
        !sim_memory_suffices(device, round_to_granule(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_contents_allocate(device, round_to_granule(bytes), false, &store))
        return CUDA_ERROR_OUT_OF_MEMORY;
    range = sim_allocation_create(device, bytes, &store);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_memory_charge(device, round_to_granule(bytes));
    *out = range->base;
    return CUDA_SUCCESS;
}

static void allocation_destroy(struct sim_range *range)
{
    if (!range->is_ipc)
        sim_memory_uncharge(range->device, round_to_granule(range->bytes));
    sim_contents_free(&range->store, round_to_granule(range->bytes));
    sim_range_destroy(&sim_machine.addresses, range);
}

static struct sim_range *find_allocation(CUdeviceptr address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    return range == NULL || range->granule != NULL || range->base != address ? NULL : range;
}

CUresult sim_allocation_free(struct sim_range *range)
{
    const uint64_t address = range->base;

    sim_clock_charge(sim_cost_for_size(sim_machine.config.costs.free, range->bytes));
    sim_streams_advance_past(range->device);
    /* Copies, fills and host functions that have completed may access or free this memory. */
    sim_machine.saw_completion = true;
    sim_run_completions();
    range = find_allocation(address);
    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_machine.config.strict) {
        sim_check_allocation_idle(range);
        sim_registrations_check_allocation(range);
    }
    allocation_destroy(range);
    return CUDA_SUCCESS;
}

static CUresult free_memory(CUdeviceptr address)
{
    struct sim_range *range = find_allocation(address);

    if (address == 0)
        return CUDA_SUCCESS;
    return range == NULL || range->is_ipc ? CUDA_ERROR_INVALID_VALUE : sim_allocation_free(range);
}

void sim_allocations_destroy(unsigned device)
{
    /* In descending order, because destroying a range may compact the array above it. */
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
    *free_bytes = sim_memory_reported_free(device);
    *total_bytes = sim_machine.config.memory_bytes;
    return CUDA_SUCCESS;
}

SIM_ENTRY(MEM_ALLOC, cuMemAlloc_v2, (CUdeviceptr *dptr, size_t bytesize),
          allocate_memory(dptr, bytesize));
SIM_ENTRY_AT(MEM_FREE, cuMemFree_v2, (CUdeviceptr dptr), dptr, 0, free_memory(dptr));
SIM_ENTRY(MEM_GET_INFO, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes),
          get_memory_info(free_bytes, total_bytes));

xseg_status xseg_sim_set_external_memory(unsigned device, uint64_t bytes)
{
    unsigned devices;

    sim_lock();
    devices = sim_machine.config.devices;
    if (device < devices)
        sim_machine.device[device].external_bytes =
            bytes < sim_machine.config.memory_bytes ? bytes : sim_machine.config.memory_bytes;
    sim_host_reclaim();
    sim_unlock();
    if (device < devices)
        return XSEG_OK;
    return sim_error(XSEG_ERR_ARGUMENT,
                     "xseg_sim_set_external_memory: invalid device, %u; pass a device below %u",
                     device, devices);
}

uint64_t xseg_sim_used(unsigned device)
{
    uint64_t used = 0;

    sim_lock();
    sim_physical_free_unused_exports();
    if (device < sim_machine.config.devices)
        used = sim_machine.device[device].used;
    sim_unlock();
    return used;
}

uint64_t xseg_sim_peak(unsigned device)
{
    uint64_t peak = 0;

    sim_lock();
    if (device < sim_machine.config.devices)
        peak = sim_machine.device[device].peak;
    sim_unlock();
    return peak;
}

/* Map memory whose pages are allocated at the first write.  Huge pages would defeat that. */
static void *map_host_pages(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base != MAP_FAILED)
        (void)madvise(base, bytes, MADV_NOHUGEPAGE);
    return base;
}

static CUresult allocate_pinned(void **out, size_t bytes, unsigned flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    struct sim_pinned *pinned;
    void *base;

    if (out == NULL || bytes == 0 || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_machine.config.integrated && !sim_memory_suffices(0, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pinned = calloc(1, sizeof(*pinned));
    base = pinned != NULL ? map_host_pages(bytes) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(pinned);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pinned = (struct sim_pinned){
        .next = sim_machine.pinned,
        .base = (uint64_t)(uintptr_t)base,
        .bytes = bytes,
        .origin = sim_origin_of_call(),
    };
    sim_machine.pinned = pinned;
    sim_machine.pinned_bytes += bytes;
    sim_host_reclaim();
    *out = base;
    return CUDA_SUCCESS;
}

/* In strict mode, end the process with a report if a pending copy accesses the memory. */
static void check_pinned_idle(const struct sim_pinned *pinned)
{
    const struct sim_completion *completion =
        sim_completions_find_copy(pinned->base, pinned->bytes);

    if (completion == NULL || !sim_machine.config.strict)
        return;
    sim_report_begin("queued copy accesses the host memory; synchronize its stream first");
    sim_report_line("memory:", &pinned->origin,
                    "%" PRIu64 " bytes of pinned host memory at 0x%" PRIx64 ", created",
                    pinned->bytes, pinned->base);
    sim_report_line("copy:", NULL, "%" PRIu64 " bytes from 0x%" PRIx64 " to 0x%" PRIx64,
                    completion->bytes, completion->from, completion->to);
    sim_report_end();
}

static void pinned_destroy(struct sim_pinned *pinned)
{
    if (!pinned->is_registered) {
        (void)munmap((void *)(uintptr_t)pinned->base, pinned->bytes);
        sim_machine.pinned_bytes -= pinned->bytes;
    }
    free(pinned);
}

/* Release the pinned memory that begins at an address. */
static CUresult release_pinned(const void *pointer, bool is_registered, CUresult error)
{
    struct sim_pinned **at = &sim_machine.pinned, *pinned;

    while (*at != NULL && (*at)->base != (uint64_t)(uintptr_t)pointer)
        at = &(*at)->next;
    pinned = *at;
    if (pinned == NULL || pinned->is_registered != is_registered)
        return error;
    check_pinned_idle(pinned);
    *at = pinned->next;
    pinned_destroy(pinned);
    return CUDA_SUCCESS;
}

static bool overlaps_pinned(uint64_t base, uint64_t bytes)
{
    for (const struct sim_pinned *pinned = sim_machine.pinned; pinned != NULL;
         pinned = pinned->next)
        if (base < pinned->base + pinned->bytes && pinned->base < base + bytes)
            return true;
    return false;
}

static CUresult register_host(const void *pointer, size_t bytes, unsigned flags)
{
    const uint64_t base = (uint64_t)(uintptr_t)pointer;
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    struct sim_pinned *pinned;

    if (base == 0 || bytes == 0 || bytes > UINT64_MAX - base || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (overlaps_pinned(base, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned = calloc(1, sizeof(*pinned));
    if (pinned == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pinned = (struct sim_pinned){
        .next = sim_machine.pinned,
        .base = base,
        .bytes = bytes,
        .is_registered = true,
        .origin = sim_origin_of_call(),
    };
    sim_machine.pinned = pinned;
    return CUDA_SUCCESS;
}

const struct sim_pinned *sim_pinned_find(uint64_t address)
{
    const struct sim_pinned *pinned = sim_machine.pinned;

    while (pinned != NULL && (address < pinned->base || address - pinned->base >= pinned->bytes))
        pinned = pinned->next;
    return pinned;
}

bool sim_pinned_contains(uint64_t address, uint64_t bytes)
{
    const struct sim_pinned *pinned = sim_pinned_find(address);

    return pinned != NULL && bytes <= pinned->bytes - (address - pinned->base);
}

size_t sim_pinned_count(const struct sim_pinned **example)
{
    size_t count = 0;

    for (const struct sim_pinned *pinned = sim_machine.pinned; pinned != NULL;
         pinned = pinned->next) {
        *example = pinned;
        count++;
    }
    return count;
}

void sim_pinned_destroy_all(void)
{
    struct sim_pinned *next;

    for (struct sim_pinned *pinned = sim_machine.pinned; pinned != NULL; pinned = next) {
        next = pinned->next;
        pinned_destroy(pinned);
    }
    sim_machine.pinned = NULL;
}

SIM_ENTRY(MEM_HOST_ALLOC, cuMemHostAlloc, (void **pp, size_t bytesize, unsigned int Flags),
          allocate_pinned(pp, bytesize, Flags));
SIM_ENTRY(MEM_FREE_HOST, cuMemFreeHost, (void *p),
          release_pinned(p, false, CUDA_ERROR_INVALID_VALUE));
SIM_ENTRY(MEM_HOST_REGISTER, cuMemHostRegister_v2, (void *p, size_t bytesize, unsigned int Flags),
          register_host(p, bytesize, Flags));
SIM_ENTRY(MEM_HOST_UNREGISTER, cuMemHostUnregister, (void *p),
          release_pinned(p, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
