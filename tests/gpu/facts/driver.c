/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <dlfcn.h>

#include "tests/gpu/facts/work.h"
#include "tests/support/symbol.h"

#define STRING_OF(text) #text
#define STRING(text)    STRING_OF(text)

struct entry_points cu;
struct simulator sim;
CUcontext primary;
int device_count;
size_t free_at_start;

static bool has_vmm, has_export, has_rdma, has_dma_bufs;
static char no_driver[320] = "the driver has not been opened", no_device[160];
static const char *_Atomic missing_call;

/* --- Entry points. --- */

static CUresult fail_missing(const char *name)
{
    const char *first_call = NULL;

    (void)atomic_compare_exchange_strong(&missing_call, &first_call, name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The stub of a missing call has no parameters, because calling conventions permit arguments that are not read. */
#define X(name, version)                 \
    static CUresult missing_##name(void) \
    {                                    \
        return fail_missing("cu" #name); \
    }
ENTRY_POINTS(X)
X(StreamGetCaptureInfo, 11030)
X(GetProcAddress, 12000)
#undef X

const char *driver_missing(void)
{
    return atomic_load(&missing_call);
}

void driver_clear_missing(void)
{
    atomic_store(&missing_call, NULL);
}

/* `symbol` is the name in the library, for a driver without cuGetProcAddress_v2. */
static bool find_entry(void *library, const char *name, const char *symbol, int version,
                       void *function)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *entry = NULL;

    if (cu.GetProcAddress == NULL)
        return symbol_find(library, symbol, function);
    if (cu.GetProcAddress(name, &entry, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) !=
            CUDA_SUCCESS ||
        entry == NULL)
        return false;
    memcpy(function, &entry, sizeof(entry));
    return true;
}

static char all_missing[2048];

static void add_missing(const char *name)
{
    const size_t length = strlen(all_missing);

    (void)snprintf(all_missing + length, sizeof(all_missing) - length, "%s%s",
                   length > 0 ? ", " : "", name);
}

const char *driver_all_missing(void)
{
    return all_missing;
}

/* cuGetProcAddress_v2 finds the other entry points, so its stub is set last. */
static void find_entries(void *library)
{
    (void)symbol_find(library, "cuGetProcAddress_v2", &cu.GetProcAddress);
#define X(name, version)                                                         \
    if (!find_entry(library, "cu" #name, STRING(cu##name), version, &cu.name)) { \
        CUresult (*stub)(void) = missing_##name;                                 \
        memcpy(&cu.name, &stub, sizeof(stub));                                   \
        add_missing("cu" #name);                                                 \
    }
    ENTRY_POINTS(X)
#undef X
    if (!find_entry(library, "cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030,
                    &cu.StreamGetCaptureInfo)) {
        CUresult (*stub)(void) = missing_StreamGetCaptureInfo;
        memcpy(&cu.StreamGetCaptureInfo, &stub, sizeof(stub));
        add_missing("cuStreamGetCaptureInfo");
    }
    if (cu.GetProcAddress == NULL) {
        CUresult (*stub)(void) = missing_GetProcAddress;
        memcpy(&cu.GetProcAddress, &stub, sizeof(stub));
        add_missing("cuGetProcAddress_v2");
    }
    (void)symbol_find(library, "xseg_sim_launch", &sim.launch);
    (void)symbol_find(library, "xseg_sim_leaks", &sim.leaks);
}

const char *driver_open(void)
{
    const char *name = getenv("XSEG_DRIVER");
    void *library =
        dlopen(name != NULL && *name != '\0' ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)snprintf(no_driver, sizeof(no_driver), "there is no driver: %s", dlerror());
        return no_driver;
    }
    no_driver[0] = '\0';
    find_entries(library);
    return NULL;
}

void driver_name_result(CUresult result, char *name, size_t bytes)
{
    const char *error = NULL;

    if (cu.GetErrorName(result, &error) == CUDA_SUCCESS && error != NULL)
        (void)snprintf(name, bytes, "%s", error);
    else
        (void)snprintf(name, bytes, "error %d", (int)result);
}

/* --- The devices. --- */

/* The attribute is an integer, because older versions of cuda.h do not declare the later attributes. */
static int attribute_value(int attribute)
{
    int value = 0;

    return cu.DeviceGetAttribute(&value, (CUdevice_attribute)attribute, 0) == CUDA_SUCCESS ? value
                                                                                           : 0;
}

static bool has_succeeded(CUresult result, const char *call)
{
    char name[64];

    if (result == CUDA_SUCCESS)
        return true;
    driver_name_result(result, name, sizeof(name));
    (void)snprintf(no_device, sizeof(no_device), "no device can be used: %s: %s", call, name);
    return false;
}

const char *driver_enter(void)
{
    size_t total = 0;

    if (!has_succeeded(cu.Init(0), "cuInit") ||
        !has_succeeded(cu.DeviceGetCount(&device_count), "cuDeviceGetCount"))
        return no_device;
    if (device_count == 0) {
        (void)snprintf(no_device, sizeof(no_device), "the driver has no device");
        return no_device;
    }
    has_vmm = attribute_value(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    has_export =
        attribute_value(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
    has_rdma = attribute_value(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    has_dma_bufs = attribute_value(124 /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */) != 0;
    if (!has_succeeded(cu.DevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain") ||
        !has_succeeded(cu.CtxPushCurrent(primary), "cuCtxPushCurrent") ||
        !has_succeeded(cu.MemGetInfo(&free_at_start, &total), "cuMemGetInfo"))
        return no_device;
    return NULL;
}

const char *driver_lacks(unsigned needs)
{
    if (no_driver[0] != '\0')
        return no_driver;
    if (needs == NOTHING)
        return NULL;
    if (no_device[0] != '\0')
        return no_device;
    if ((needs & (VMM | EXPORT)) != 0 && !has_vmm)
        return "the device has no virtual memory management";
    if ((needs & EXPORT) != 0 && !has_export)
        return "the device exports no memory by file descriptor";
    if ((needs & RDMA) != 0 && !has_rdma)
        return "the device has no mapped memory for RDMA";
    if ((needs & DMA_BUFS) != 0 && !has_dma_bufs)
        return "the device has no dma-bufs of its memory";
    if ((needs & TWO_DEVICES) != 0 && device_count < 2)
        return "there is one device only";
    return NULL;
}

bool driver_leave(void)
{
    CUcontext popped = NULL;
    char leaks[512] = "";

    if (end_work() != CUDA_SUCCESS || cu.CtxPopCurrent(&popped) != CUDA_SUCCESS ||
        cu.DevicePrimaryCtxRelease(0) != CUDA_SUCCESS)
        return false;
    if (sim.leaks == NULL || sim.leaks(leaks, sizeof(leaks)) == 0)
        return true;
    (void)fprintf(stderr, "leaked objects:\n%s", leaks);
    return false;
}

/* --- Within a check. --- */

CUmemAllocationProp on_device(int device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

CUmemAccessDesc rights(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc;

    memset(&desc, 0, sizeof(desc));
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = flags;
    return desc;
}

CUmemGenericAllocationHandle create(size_t bytes)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

void back(CUdeviceptr address, size_t bytes)
{
    const CUmemGenericAllocationHandle handle = create(bytes);

    ASSERT_OK(cu.MemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cu.MemRelease(handle));
}

CUresult allow(CUdeviceptr address, size_t bytes)
{
    const CUmemAccessDesc desc = rights(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    return cu.MemSetAccess(address, bytes, &desc, 1);
}

CUdeviceptr map(size_t bytes)
{
    const CUdeviceptr base = reserve(bytes);

    back(base, bytes);
    ASSERT_OK(allow(base, bytes));
    return base;
}

void unmap_and_free(CUdeviceptr base, size_t bytes)
{
    ASSERT_OK(cu.MemUnmap(base, bytes));
    ASSERT_OK(cu.MemAddressFree(base, bytes));
}

void back_all(CUdeviceptr base, const size_t *granules)
{
    for (; *granules != 0; base += *granules++ * GRANULE)
        back(base, *granules * GRANULE);
}

void unmap_all_and_free(CUdeviceptr base, const size_t *granules)
{
    size_t bytes = 0;

    for (; *granules != 0; bytes += *granules++ * GRANULE)
        ASSERT_OK(cu.MemUnmap(base + bytes, *granules * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, bytes));
}

CUmemAccess_flags rights_of(CUdeviceptr address, int device)
{
    const CUmemAccessDesc desc = rights(device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    unsigned long long flags = ~0ull;

    ASSERT_OK(cu.MemGetAccess(&flags, &desc.location, address));
    return (CUmemAccess_flags)flags;
}

bool is_mapped(CUdeviceptr address)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);

    if (result != CUDA_SUCCESS) {
        ASSERT_RESULT("cuMemRetainAllocationHandle of an unmapped address", result,
                      CUDA_ERROR_INVALID_VALUE);
        return false;
    }
    ASSERT_OK(cu.MemRelease(handle));
    return true;
}

void fill(CUdeviceptr address, size_t bytes, unsigned char value)
{
    ASSERT_OK(cu.MemsetD8(address, value, bytes));
    ASSERT_OK(cu.CtxSynchronize());
}

unsigned byte_at(CUdeviceptr address)
{
    unsigned char byte = 0;

    ASSERT_OK(cu.MemcpyDtoH(&byte, address, 1));
    return byte;
}

size_t free_memory(void)
{
    size_t free_bytes = 0, total = 0;

    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    return free_bytes;
}

CUstream new_stream(void)
{
    CUstream stream = NULL;

    ASSERT_OK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUevent new_event(void)
{
    CUevent event = NULL;

    ASSERT_OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

void destroy(CUstream stream, CUevent event)
{
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(stream));
}

unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;

    ASSERT_OK(cu.StreamGetId(stream, &id));
    return id;
}

size_t alignment_of(CUdeviceptr address)
{
    return (size_t)(address & (~address + 1));
}

void require_memory(size_t bytes)
{
    const size_t free_bytes = free_memory();

    if (free_bytes < bytes)
        fact_skip("%zu MiB of free memory, %zu MiB required", free_bytes / MIB, bytes / MIB);
}

double microseconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
