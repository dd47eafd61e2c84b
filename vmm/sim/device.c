/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

/*
 * What the devices are: an A100's figures.  Attributes go by number, since older versions of cuda.h do
 * not name the later ones.
 */
static const struct {
    int attribute, value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 108},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 40 << 20},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 164 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0},
    {128 /* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED */, 0},
    {132 /* CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED */, 0},
    {141 /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */, 0},
};

static bool is_device_ordinal(CUdevice device)
{
    return device >= 0 && (unsigned)device < sim_machine.devices;
}

static CUresult initialize_driver(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_machine.initialised = true;
    return CUDA_SUCCESS;
}

static CUresult get_driver_version(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

static CUresult get_device_count(int *count)
{
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_machine.devices;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, int ordinal)
{
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult get_device_name(char *name, int bytes, CUdevice device)
{
    if (name == NULL || bytes <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    (void)snprintf(name, (size_t)bytes, "Simulated device %d", device);
    return CUDA_SUCCESS;
}

/* A device of that number has the same UUID on any machine, so that processes that share one agree. */
static CUresult get_device_uuid(CUuuid *uuid, CUdevice device)
{
    static const char name[sizeof(uuid->bytes)] = "xseg-sim device";

    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, name, sizeof(name));
    uuid->bytes[sizeof(name) - 1] = (char)device;
    return CUDA_SUCCESS;
}

static CUresult get_total_memory(size_t *bytes, CUdevice device)
{
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_machine.memory_bytes;
    return CUDA_SUCCESS;
}

/* What settings decide.  Returns: whether they do. */
static bool get_configured_attribute(CUdevice_attribute attribute, int *value)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = !sim_machine.without_vmm;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = !sim_machine.without_vmm && sim_machine.rdma != XSEG_SIM_RDMA_ABSENT;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        *value = sim_machine.rdma != XSEG_SIM_RDMA_ABSENT;
        return true;
    case 124: /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
        *value = !sim_machine.without_dma_buf;
        return true;
    default:
        return false;
    }
}

/* Attributes that this table lacks are refused, rather than answered with a guess. */
static CUresult get_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (get_configured_attribute(attribute, value))
        return CUDA_SUCCESS;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *value = device + 1;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
        if (attributes[i].attribute == (int)attribute) {
            *value = attributes[i].value;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Each device has a bus of its own, from 1 on. */
static CUresult get_pci_bus_id(char *text, int bytes, CUdevice device)
{
    if (text == NULL || bytes <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    (void)snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1);
    return CUDA_SUCCESS;
}

SIM_ENTRY(INIT, cuInit, (unsigned int Flags), initialize_driver(Flags));
SIM_ENTRY(DRIVER_GET_VERSION, cuDriverGetVersion, (int *driverVersion),
          get_driver_version(driverVersion));
SIM_ENTRY(DEVICE_GET_COUNT, cuDeviceGetCount, (int *count), get_device_count(count));
SIM_ENTRY(DEVICE_GET, cuDeviceGet, (CUdevice *device, int ordinal), get_device(device, ordinal));
SIM_ENTRY(DEVICE_GET_NAME, cuDeviceGetName, (char *name, int len, CUdevice dev),
          get_device_name(name, len, dev));
SIM_ENTRY(DEVICE_GET_UUID, cuDeviceGetUuid, (CUuuid *uuid, CUdevice dev), get_device_uuid(uuid, dev));
SIM_ENTRY(DEVICE_GET_UUID_V2, cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice dev),
          get_device_uuid(uuid, dev));
SIM_ENTRY(DEVICE_TOTAL_MEM, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev),
          get_total_memory(bytes, dev));
SIM_ENTRY(DEVICE_GET_ATTRIBUTE, cuDeviceGetAttribute,
          (int *pi, CUdevice_attribute attrib, CUdevice dev), get_device_attribute(pi, attrib, dev));
SIM_ENTRY(DEVICE_GET_PCI_BUS_ID, cuDeviceGetPCIBusId, (char *pciBusId, int len, CUdevice dev),
          get_pci_bus_id(pciBusId, len, dev));
