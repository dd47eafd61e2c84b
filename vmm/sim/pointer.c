/* SPDX-License-Identifier: MIT */
#include "vmm/sim/pointer.h"

#include <string.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

/* What stands at an address; an allocation has no mapping, a hole neither that nor memory. */
struct place {
    uint64_t address;
    const struct sim_range *range;
    const struct sim_mapping *mapping;
    bool has_memory;
};

/* An answer, in as many bytes as the attribute has. */
struct answer {
    uint64_t value;
    size_t bytes;
};

static struct answer value_of(uint64_t value, size_t bytes)
{
    return (struct answer){value, bytes};
}

static bool find_location(uint64_t address, struct place *place)
{
    place->address = address;
    place->range = sim_range_find(&sim_machine.addresses, address);
    place->mapping = sim_mapping_at(address);
    place->has_memory =
        place->range != NULL && (place->mapping != NULL || place->range->granule == NULL);
    return place->range != NULL;
}

static unsigned location_device(const struct place *place)
{
    return place->mapping != NULL ? place->mapping->physical->device : place->range->device;
}

/* What the current context's device may do there, in the driver's numbers. */
static uint64_t location_access_flags(const struct place *place)
{
    unsigned device;

    if (sim_context_current(&device) != CUDA_SUCCESS)
        return 0;
    return sim_can_reach(device, place->address, 1) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
}

/* About the reservation or allocation; these answers a hole has too. */
static bool get_range_attribute(const struct place *place, int attribute, struct answer *answer)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *answer = value_of(0, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *answer = value_of(place->range->base, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *answer = value_of(place->range->bytes, sizeof(size_t));
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *answer = value_of(place->has_memory, sizeof(unsigned));
        return true;
    default:
        return false;
    }
}

/* About the memory. */
static bool get_memory_attribute(const struct place *place, int attribute, struct answer *answer)
{
    const struct sim_mapping *mapping = place->mapping;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *answer = value_of(CU_MEMORYTYPE_DEVICE, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *answer = value_of(place->address, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *answer = value_of(place->range->syncs, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *answer = value_of(mapping != NULL ? mapping->origin.number : place->range->origin.number,
                           sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *answer = value_of(location_device(place), sizeof(int));
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *answer = value_of(mapping == NULL, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *answer =
            value_of(mapping != NULL ? (uint64_t)mapping->physical->prop.requestedHandleTypes : 0,
                     sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *answer = value_of(location_access_flags(place), sizeof(unsigned));
        return true;
    default:
        return false;
    }
}

/* About the context, which mapped memory does not have, and the mapping, which others lack. */
static bool get_mapping_attribute(const struct place *place, int attribute, struct answer *answer)
{
    const struct sim_mapping *mapping = place->mapping;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *answer = value_of(
            mapping != NULL ? 0 : (uint64_t)(uintptr_t)sim_context_handle(place->range->device),
            sizeof(CUcontext));
        return true;
    case 15: /* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE */
        *answer =
            value_of(mapping == NULL ? sim_machine.rdma != XSEG_SIM_RDMA_ABSENT
                                     : mapping->physical->prop.allocFlags.gpuDirectRDMACapable,
                     sizeof(unsigned));
        return true;
    case 17: /* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE */
        *answer = value_of(0, sizeof(void *));
        return true;
    case 18: /* CU_POINTER_ATTRIBUTE_MAPPING_SIZE */
        *answer = value_of(mapping != NULL ? mapping->bytes : place->range->bytes, sizeof(size_t));
        return true;
    case 19: /* CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR */
        *answer =
            value_of(mapping != NULL ? mapping->address : place->range->base, sizeof(CUdeviceptr));
        return true;
    case 20: /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
        *answer = value_of(mapping != NULL ? mapping->physical->origin.number
                                           : place->range->origin.number,
                           sizeof(unsigned long long));
        return true;
    default:
        return false;
    }
}

static bool get_device_attribute(const struct place *place, int attribute, struct answer *answer)
{
    return get_range_attribute(place, attribute, answer) ||
           (place->has_memory && (get_memory_attribute(place, attribute, answer) ||
                                  get_mapping_attribute(place, attribute, answer)));
}

/* Little-endian hosts only, as are all that have such drivers. */
static void write_value(void *data, const struct answer *answer)
{
    memcpy(data, &answer->value, answer->bytes);
}

/* About pinned host memory, which no device reaches. */
static bool get_host_attribute(uint64_t address, int attribute, struct answer *answer)
{
    const struct sim_host *host = sim_host_at(address);

    if (host == NULL)
        return false;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *answer = value_of(CU_MEMORYTYPE_HOST, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *answer = value_of(address, sizeof(void *));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *answer = value_of(0, sizeof(int));
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *answer = value_of(host->origin.number, sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *answer = value_of(0, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *answer = value_of(host->base, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *answer = value_of(host->bytes, sizeof(size_t));
        return true;
    default:
        return false;
    }
}

static CUresult get_pointer_attribute(void *data, CUpointer_attribute attribute, uint64_t address)
{
    struct answer answer;
    struct place place;

    if (data == NULL ||
        !(find_location(address, &place) ? get_device_attribute(&place, (int)attribute, &answer)
                                         : get_host_attribute(address, (int)attribute, &answer)))
        return CUDA_ERROR_INVALID_VALUE;
    write_value(data, &answer);
    return CUDA_SUCCESS;
}

/* What an attribute is of an address that the driver does not know: nothing, in the right size. */
static CUresult get_null_attribute(void *data, int attribute)
{
    /* An allocation that is asked about only for the sizes. */
    static const struct sim_range nowhere = {.bytes = 1};
    const struct place place = {.range = &nowhere, .has_memory = true};
    struct answer answer;

    if (!get_device_attribute(&place, attribute, &answer))
        return CUDA_ERROR_INVALID_VALUE;
    answer.value =
        attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)CU_DEVICE_INVALID : 0;
    write_value(data, &answer);
    return CUDA_SUCCESS;
}

static CUresult get_pointer_attributes(unsigned count, const CUpointer_attribute *attributes,
                                       void **data, uint64_t address)
{
    struct place place;

    if (count == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    (void)find_location(address, &place);
    for (unsigned i = 0; i < count; i++) {
        struct answer answer;

        if (data[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        if (place.range != NULL ? get_device_attribute(&place, (int)attributes[i], &answer)
                                : get_host_attribute(address, (int)attributes[i], &answer))
            write_value(data[i], &answer);
        else if (get_null_attribute(data[i], (int)attributes[i]) != CUDA_SUCCESS)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The one attribute that can be set; mapped memory cannot have it.  Copies wait in any case here. */
static CUresult set_pointer_attribute(const void *value, CUpointer_attribute attribute,
                                      uint64_t address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    unsigned syncs;

    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->granule != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(&syncs, value, sizeof(syncs));
    range->syncs = syncs != 0;
    return CUDA_SUCCESS;
}

CUresult sim_pointer_range(uint64_t address, uint64_t *base, uint64_t *bytes)
{
    struct place place;

    if (!find_location(address, &place) || !place.has_memory ||
        (place.mapping != NULL && sim_machine.no_address_range))
        return CUDA_ERROR_NOT_FOUND;
    *base = place.mapping != NULL ? place.mapping->address : place.range->base;
    *bytes = place.mapping != NULL ? place.mapping->bytes : place.range->bytes;
    return CUDA_SUCCESS;
}

static CUresult get_address_range(CUdeviceptr *out_base, size_t *out_bytes, uint64_t address)
{
    uint64_t base, bytes;
    const CUresult result = sim_pointer_range(address, &base, &bytes);

    if (result != CUDA_SUCCESS)
        return result;
    if (out_base != NULL)
        *out_base = base;
    if (out_bytes != NULL)
        *out_bytes = bytes;
    return CUDA_SUCCESS;
}

SIM_ENTRY_AT(POINTER_GET_ATTRIBUTE, cuPointerGetAttribute,
             (void *data, CUpointer_attribute attribute, CUdeviceptr ptr), ptr, 0,
             get_pointer_attribute(data, attribute, ptr));
SIM_ENTRY_AT(POINTER_GET_ATTRIBUTES, cuPointerGetAttributes,
             (unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
              CUdeviceptr ptr),
             ptr, 0, get_pointer_attributes(numAttributes, attributes, data, ptr));
SIM_ENTRY_AT(POINTER_SET_ATTRIBUTE, cuPointerSetAttribute,
             (const void *value, CUpointer_attribute attribute, CUdeviceptr ptr), ptr, 0,
             set_pointer_attribute(value, attribute, ptr));
SIM_ENTRY_AT(MEM_GET_ADDRESS_RANGE, cuMemGetAddressRange_v2,
             (CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr), dptr, 0,
             get_address_range(pbase, psize, dptr));
