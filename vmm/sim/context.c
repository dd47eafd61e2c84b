/* SPDX-License-Identifier: MIT */
#include "vmm/sim/context.h"

#include <stdio.h>
#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/stream.h"

/* Attributes of an A100.  Older versions of cuda.h lack the names of some. */
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
    return device >= 0 && (unsigned)device < sim_machine.config.devices;
}

static CUresult initialize_driver(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_machine.initialized = true;
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
    *count = (int)sim_machine.config.devices;
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

/* The UUID depends on the ordinal only, so that processes of a shared machine agree. */
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
    *bytes = sim_machine.config.memory_bytes;
    return CUDA_SUCCESS;
}

/* Get an attribute that settings determine.  Returns false for other attributes. */
static bool get_configured_attribute(CUdevice_attribute attribute, int *value)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = !sim_machine.config.without_vmm;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = !sim_machine.config.without_vmm && sim_machine.config.rdma != XSEG_SIM_RDMA_ABSENT;
        return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        *value = sim_machine.config.rdma != XSEG_SIM_RDMA_ABSENT;
        return true;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        *value = sim_machine.config.integrated;
        return true;
    case 124: /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
        *value = !sim_machine.config.without_dma_buf;
        return true;
    default:
        return false;
    }
}

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
SIM_ENTRY(DEVICE_GET_UUID, cuDeviceGetUuid, (CUuuid *uuid, CUdevice dev),
          get_device_uuid(uuid, dev));
SIM_ENTRY(DEVICE_GET_UUID_V2, cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice dev),
          get_device_uuid(uuid, dev));
SIM_ENTRY(DEVICE_TOTAL_MEM, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev),
          get_total_memory(bytes, dev));
SIM_ENTRY(DEVICE_GET_ATTRIBUTE, cuDeviceGetAttribute,
          (int *pi, CUdevice_attribute attrib, CUdevice dev),
          get_device_attribute(pi, attrib, dev));
SIM_ENTRY(DEVICE_GET_PCI_BUS_ID, cuDeviceGetPCIBusId, (char *pciBusId, int len, CUdevice dev),
          get_pci_bus_id(pciBusId, len, dev));

CUcontext sim_context_handle(unsigned device)
{
    return (CUcontext)(uintptr_t)sim_handle_make(SIM_KIND_CONTEXT, device, sim_machine.epoch);
}

CUresult sim_context_device(CUcontext context, unsigned *device)
{
    uint32_t index, epoch;

    if (!sim_handle_parts((uint64_t)(uintptr_t)context, SIM_KIND_CONTEXT, &index, &epoch) ||
        epoch != sim_machine.epoch || index >= sim_machine.config.devices ||
        !sim_machine.device[index].active)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = index;
    return CUDA_SUCCESS;
}

/* CU_CTX_FLAGS_MASK of CUDA 12 */
#define FLAGS_KNOWN 0xffu

CUresult sim_context_current(unsigned *device)
{
    const struct sim_thread *thread = sim_thread();

    if (thread->depth == 0 || thread->stack[thread->depth - 1] == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = thread->stack[thread->depth - 1] - 1u;
    return sim_machine.device[*device].active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void sim_context_destroy(unsigned device)
{
    sim_events_destroy(device);
    sim_completions_discard(device);
    sim_streams_destroy(device);
    sim_allocations_destroy(device);
    sim_machine.device[device].active = false;
    sim_machine.device[device].peers = 0;
    sim_machine.device[device].flags = 0;
    for (unsigned i = 0; i < sim_machine.config.devices; i++)
        sim_machine.device[i].peers &= ~((uint64_t)1 << device);
}

static CUresult find_device(CUdevice device, unsigned *ordinal)
{
    if (!is_device_ordinal(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *ordinal = (unsigned)device;
    return CUDA_SUCCESS;
}

static CUresult retain_primary_context(CUcontext *out, CUdevice device)
{
    unsigned ordinal;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!sim_machine.device[ordinal].active)
        sim_machine.device[ordinal].context_number++;
    sim_machine.device[ordinal].retained++;
    sim_machine.device[ordinal].active = true;
    *out = sim_context_handle(ordinal);
    return CUDA_SUCCESS;
}

static CUresult release_primary_context(CUdevice device)
{
    unsigned ordinal;

    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (sim_machine.device[ordinal].retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--sim_machine.device[ordinal].retained == 0)
        sim_context_destroy(ordinal);
    sim_user_objects_run_destructors();
    return CUDA_SUCCESS;
}

static CUresult reset_primary_context(CUdevice device)
{
    unsigned ordinal;

    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    sim_context_destroy(ordinal);
    sim_user_objects_run_destructors();
    return CUDA_SUCCESS;
}

static CUresult get_primary_context_state(CUdevice device, unsigned *flags, int *active)
{
    unsigned ordinal;

    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = sim_machine.device[ordinal].flags;
    *active = sim_machine.device[ordinal].active;
    return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
    struct sim_thread *thread = sim_thread();
    unsigned device;

    if (sim_context_device(context, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == SIM_STACK_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = (unsigned char)(device + 1);
    return CUDA_SUCCESS;
}

static CUcontext current_context(const struct sim_thread *thread)
{
    const unsigned top = thread->depth == 0 ? 0 : thread->stack[thread->depth - 1];

    return top == 0 ? NULL : sim_context_handle(top - 1);
}

static CUresult pop_context(CUcontext *out)
{
    struct sim_thread *thread = sim_thread();

    if (thread->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out != NULL)
        *out = current_context(thread);
    thread->depth--;
    return CUDA_SUCCESS;
}

static CUresult get_current_context(CUcontext *out)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = current_context(sim_thread());
    return CUDA_SUCCESS;
}

/* Replace the top of the stack; NULL pops it. */
static CUresult set_current_context(CUcontext context)
{
    struct sim_thread *thread = sim_thread();
    unsigned device;

    if (context == NULL) {
        thread->depth -= thread->depth != 0;
        return CUDA_SUCCESS;
    }
    if (sim_context_device(context, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == 0)
        return push_context(context);
    thread->stack[thread->depth - 1] = (unsigned char)(device + 1);
    return CUDA_SUCCESS;
}

/* Get the device of a context; NULL denotes the current one. */
static CUresult resolve_context(CUcontext context, unsigned *device)
{
    return context == NULL ? sim_context_current(device) : sim_context_device(context, device);
}

static CUresult get_context_device(CUdevice *out, CUcontext context)
{
    unsigned device;
    CUresult result;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = resolve_context(context, &device);
    if (result == CUDA_SUCCESS)
        *out = (CUdevice)device;
    return result;
}

static CUresult get_context_flags(unsigned *out)
{
    unsigned device;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_current(&device);
    if (result == CUDA_SUCCESS)
        *out = sim_machine.device[device].flags;
    return result;
}

static CUresult set_context_flags(unsigned flags)
{
    unsigned device;

    if ((flags & ~FLAGS_KNOWN) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_current(&device);
    if (result == CUDA_SUCCESS)
        sim_machine.device[device].flags = flags;
    return result;
}

/* IDs are unique until a reset of the machine. */
static CUresult get_context_id(CUcontext context, unsigned long long *id)
{
    unsigned device;
    CUresult result;

    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = resolve_context(context, &device);
    if (result == CUDA_SUCCESS)
        *id = sim_machine.device[device].context_number * SIM_DEVICES_MAX + device;
    return result;
}

static CUresult synchronize_context(CUcontext context)
{
    unsigned device;
    CUresult result = resolve_context(context, &device);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_device_wait(device);
    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_machine.config.costs.synchronize);
    sim_streams_wait(device);
    return CUDA_SUCCESS;
}

SIM_ENTRY(PRIMARY_CTX_RETAIN, cuDevicePrimaryCtxRetain, (CUcontext *pctx, CUdevice dev),
          retain_primary_context(pctx, dev));
SIM_ENTRY(PRIMARY_CTX_RELEASE, cuDevicePrimaryCtxRelease_v2, (CUdevice dev),
          release_primary_context(dev));
SIM_ENTRY(PRIMARY_CTX_RESET, cuDevicePrimaryCtxReset_v2, (CUdevice dev),
          reset_primary_context(dev));
SIM_ENTRY(PRIMARY_CTX_GET_STATE, cuDevicePrimaryCtxGetState,
          (CUdevice dev, unsigned int *flags, int *active),
          get_primary_context_state(dev, flags, active));
SIM_ENTRY(CTX_PUSH_CURRENT, cuCtxPushCurrent_v2, (CUcontext ctx), push_context(ctx));
SIM_ENTRY(CTX_POP_CURRENT, cuCtxPopCurrent_v2, (CUcontext *pctx), pop_context(pctx));
SIM_ENTRY(CTX_GET_CURRENT, cuCtxGetCurrent, (CUcontext *pctx), get_current_context(pctx));
SIM_ENTRY(CTX_SET_CURRENT, cuCtxSetCurrent, (CUcontext ctx), set_current_context(ctx));
SIM_ENTRY(CTX_GET_DEVICE, cuCtxGetDevice, (CUdevice *device), get_context_device(device, NULL));
SIM_ENTRY(CTX_GET_DEVICE_V2, cuCtxGetDevice_v2, (CUdevice *device, CUcontext ctx),
          get_context_device(device, ctx));
SIM_ENTRY(CTX_GET_ID, cuCtxGetId, (CUcontext ctx, unsigned long long *ctxId),
          get_context_id(ctx, ctxId));
SIM_ENTRY(CTX_GET_FLAGS, cuCtxGetFlags, (unsigned int *flags), get_context_flags(flags));
SIM_ENTRY(CTX_SET_FLAGS, cuCtxSetFlags, (unsigned int flags), set_context_flags(flags));
SIM_ENTRY(CTX_SYNCHRONIZE, cuCtxSynchronize, (void), synchronize_context(NULL));
SIM_ENTRY(CTX_SYNCHRONIZE_V2, cuCtxSynchronize_v2, (CUcontext ctx), synchronize_context(ctx));

#define PEERS_MAX 8 /* per device, approximately as in real drivers */

static CUresult can_access_peer(int *out, CUdevice device, CUdevice peer)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device_ordinal(device) || !is_device_ordinal(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *out = device != peer && !sim_machine.config.without_peers;
    return CUDA_SUCCESS;
}

static CUresult find_peer_pair(CUcontext context, unsigned *device, unsigned *peer)
{
    CUresult result = sim_context_current(device);

    if (result == CUDA_SUCCESS)
        result = sim_context_device(context, peer);
    if (result == CUDA_SUCCESS && *device == *peer)
        result = CUDA_ERROR_INVALID_DEVICE;
    return result;
}

static CUresult enable_peer_access(CUcontext context, unsigned flags)
{
    unsigned device, peer;
    CUresult result;

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_peer_pair(context, &device, &peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (sim_machine.config.without_peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if ((sim_machine.device[device].peers >> peer & 1) != 0)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (__builtin_popcountll(sim_machine.device[device].peers) == PEERS_MAX)
        return CUDA_ERROR_TOO_MANY_PEERS;
    sim_machine.device[device].peers |= (uint64_t)1 << peer;
    return CUDA_SUCCESS;
}

static CUresult disable_peer_access(CUcontext context)
{
    unsigned device, peer;
    CUresult result = find_peer_pair(context, &device, &peer);

    if (result != CUDA_SUCCESS)
        return result;
    if ((sim_machine.device[device].peers >> peer & 1) == 0)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    sim_machine.device[device].peers &= ~((uint64_t)1 << peer);
    return CUDA_SUCCESS;
}

SIM_ENTRY(DEVICE_CAN_ACCESS_PEER, cuDeviceCanAccessPeer,
          (int *canAccessPeer, CUdevice dev, CUdevice peerDev),
          can_access_peer(canAccessPeer, dev, peerDev));
SIM_ENTRY(CTX_ENABLE_PEER, cuCtxEnablePeerAccess, (CUcontext peerContext, unsigned int Flags),
          enable_peer_access(peerContext, Flags));
SIM_ENTRY(CTX_DISABLE_PEER, cuCtxDisablePeerAccess, (CUcontext peerContext),
          disable_peer_access(peerContext));
