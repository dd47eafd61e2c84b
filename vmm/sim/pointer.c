/* SPDX-License-Identifier: MIT */
#include "vmm/sim/mapping.h"

#include <string.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/memory.h"

/* An address in a range.  An allocation has no mapping; an unmapped address has no memory. */
struct location {
    uint64_t address;
    const struct sim_range *range;
    const struct sim_mapping *mapping;
    bool has_memory;
};

/* Value of an attribute, of the size of its type. */
struct value {
    uint64_t value;
    size_t bytes;
};

static struct value value_of(uint64_t value, size_t bytes)
{
    return (struct value){value, bytes};
}

static bool find_location(uint64_t address, struct location *location)
{
    location->address = address;
    location->range = sim_range_find(&sim_machine.addresses, address);
    location->mapping = sim_mapping_at(address);
    location->has_memory =
        location->range != NULL && (location->mapping != NULL || location->range->granule == NULL);
    return location->range != NULL;
}

static unsigned location_device(const struct location *location)
{
    return location->mapping != NULL ? location->mapping->physical->device
                                     : location->range->device;
}

/* Get the access rights of the device of the current context. */
static uint64_t location_access_flags(const struct location *location)
{
    unsigned device;

    if (sim_context_current(&device) != CUDA_SUCCESS)
        return 0;
    return sim_is_accessible(device, location->address, 1) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
}

/* Get an attribute of the range, which unmapped addresses have, too. */
static bool get_range_attribute(const struct location *location, int attribute, struct value *value)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *value = value_of(0, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *value = value_of(location->range->base, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *value = value_of(location->range->bytes, sizeof(size_t));
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *value = value_of(location->has_memory, sizeof(unsigned));
        return true;
    default:
        return false;
    }
}

/* Get an attribute of the memory. */
static bool get_memory_attribute(const struct location *location, int attribute,
                                 struct value *value)
{
    const struct sim_mapping *mapping = location->mapping;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *value = value_of(CU_MEMORYTYPE_DEVICE, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *value = value_of(location->address, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *value = value_of(location->range->sync_memops, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *value = value_of(mapping != NULL ? mapping->origin.number : location->range->origin.number,
                          sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *value = value_of(location_device(location), sizeof(int));
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *value = value_of(mapping == NULL, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *value =
            value_of(mapping != NULL ? (uint64_t)mapping->physical->prop.requestedHandleTypes : 0,
                     sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *value = value_of(location_access_flags(location), sizeof(unsigned));
        return true;
    default:
        return false;
    }
}

/* Get an attribute of the context, which mapped memory does not have, or of the mapping or allocation. */
static bool get_mapping_attribute(const struct location *location, int attribute,
                                  struct value *value)
{
    const struct sim_mapping *mapping = location->mapping;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *value = value_of(
            mapping != NULL ? 0 : (uint64_t)(uintptr_t)sim_context_handle(location->range->device),
            sizeof(CUcontext));
        return true;
    case 15: /* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE */
        *value = value_of(mapping == NULL ? sim_machine.config.rdma != XSEG_SIM_RDMA_ABSENT
                                          : mapping->physical->prop.allocFlags.gpuDirectRDMACapable,
                          sizeof(unsigned));
        return true;
    case 17: /* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE */
        *value = value_of(0, sizeof(void *));
        return true;
    case 18: /* CU_POINTER_ATTRIBUTE_MAPPING_SIZE */
        *value =
            value_of(mapping != NULL ? mapping->bytes : location->range->bytes, sizeof(size_t));
        return true;
    case 19: /* CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR */
        *value = value_of(mapping != NULL ? mapping->address : location->range->base,
                          sizeof(CUdeviceptr));
        return true;
    case 20: /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
        *value = value_of(mapping != NULL ? mapping->physical->origin.number
                                          : location->range->origin.number,
                          sizeof(unsigned long long));
        return true;
    default:
        return false;
    }
}

static bool get_device_attribute(const struct location *location, int attribute,
                                 struct value *value)
{
    return get_range_attribute(location, attribute, value) ||
           (location->has_memory && (get_memory_attribute(location, attribute, value) ||
                                     get_mapping_attribute(location, attribute, value)));
}

/* Hosts are little-endian. */
static void write_value(void *data, const struct value *value)
{
    memcpy(data, &value->value, value->bytes);
}

/* Get an attribute of pinned host memory, which devices cannot access. */
static bool get_host_attribute(uint64_t address, int attribute, struct value *value)
{
    const struct sim_pinned *pinned = sim_pinned_find(address);

    if (pinned == NULL)
        return false;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *value = value_of(CU_MEMORYTYPE_HOST, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *value = value_of(address, sizeof(void *));
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *value = value_of(0, sizeof(int));
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *value = value_of(pinned->origin.number, sizeof(unsigned long long));
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *value = value_of(0, sizeof(unsigned));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *value = value_of(pinned->base, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *value = value_of(pinned->bytes, sizeof(size_t));
        return true;
    default:
        return false;
    }
}

static CUresult get_pointer_attribute(void *data, CUpointer_attribute attribute, uint64_t address)
{
    struct value value;
    struct location location;

    if (data == NULL || !(find_location(address, &location)
                              ? get_device_attribute(&location, (int)attribute, &value)
                              : get_host_attribute(address, (int)attribute, &value)))
        return CUDA_ERROR_INVALID_VALUE;
    write_value(data, &value);
    return CUDA_SUCCESS;
}

/* Write the value of an attribute for an unknown address: zero, of the size of its type. */
static CUresult get_null_attribute(void *data, int attribute)
{
    static const struct sim_range nowhere = {.bytes = 1};
    const struct location location = {.range = &nowhere, .has_memory = true};
    struct value value;

    if (!get_device_attribute(&location, attribute, &value))
        return CUDA_ERROR_INVALID_VALUE;
    value.value =
        attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)CU_DEVICE_INVALID : 0;
    write_value(data, &value);
    return CUDA_SUCCESS;
}

static CUresult get_pointer_attributes(unsigned count, const CUpointer_attribute *attributes,
                                       void **data, uint64_t address)
{
    struct location location;

    if (count == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    (void)find_location(address, &location);
    for (unsigned i = 0; i < count; i++) {
        struct value value;

        if (data[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        if (location.range != NULL ? get_device_attribute(&location, (int)attributes[i], &value)
                                   : get_host_attribute(address, (int)attributes[i], &value))
            write_value(data[i], &value);
        else if (get_null_attribute(data[i], (int)attributes[i]) != CUDA_SUCCESS)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Set SYNC_MEMOPS, which is stored without effect.  Mapped memory does not have it. */
static CUresult set_pointer_attribute(const void *value, CUpointer_attribute attribute,
                                      uint64_t address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    unsigned sync_memops;

    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->granule != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(&sync_memops, value, sizeof(sync_memops));
    range->sync_memops = sync_memops != 0;
    return CUDA_SUCCESS;
}

CUresult sim_address_range(uint64_t address, uint64_t *base, uint64_t *bytes)
{
    struct location location;

    if (!find_location(address, &location) || !location.has_memory ||
        (location.mapping != NULL && sim_machine.config.without_address_range))
        return CUDA_ERROR_NOT_FOUND;
    *base = location.mapping != NULL ? location.mapping->address : location.range->base;
    *bytes = location.mapping != NULL ? location.mapping->bytes : location.range->bytes;
    return CUDA_SUCCESS;
}

static CUresult get_address_range(CUdeviceptr *out_base, size_t *out_bytes, uint64_t address)
{
    uint64_t base, bytes;
    const CUresult result = sim_address_range(address, &base, &bytes);

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
