/* SPDX-License-Identifier: MIT */
/*
 * What the tests of driver facts stand on: a driver that is opened by name, its entry points, and
 * short ways to make things with them.
 *
 * The driver is whatever XSEG_DRIVER names, else libcuda.so.1; the program links none.  Where it is
 * the simulator, work without an end and the count of what is left come from its own functions.
 */
#ifndef XSEG_TESTS_GPU_DRIVER_H
#define XSEG_TESTS_GPU_DRIVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda.h>
#include <dlfcn.h>

#include "xseg/sim.h"

#define GRANULE ((size_t)2 << 20)
#define MIB     ((size_t)1 << 20)
#define GIB     ((size_t)1 << 30)

#define ASSERT_CU(call, expected) assert_int_equal((int)(call), (int)(expected))
#define ASSERT_OK(call)           ASSERT_CU(call, CUDA_SUCCESS)

/* As in vmm/driver.c: the name without its cu, and the version that brought the signature. */
#define ENTRY_POINTS(X)                       \
    X(Init, 2000)                             \
    X(DriverGetVersion, 2020)                 \
    X(GetErrorName, 6000)                     \
    X(DeviceGetCount, 2000)                   \
    X(DeviceGet, 2000)                        \
    X(DeviceTotalMem, 3020)                   \
    X(DeviceGetAttribute, 2000)               \
    X(DeviceGetUuid, 11040)                   \
    X(DeviceCanAccessPeer, 4000)              \
    X(DevicePrimaryCtxRetain, 7000)           \
    X(DevicePrimaryCtxRelease, 11000)         \
    X(DevicePrimaryCtxGetState, 7000)         \
    X(CtxPushCurrent, 4000)                   \
    X(CtxPopCurrent, 4000)                    \
    X(CtxGetCurrent, 4000)                    \
    X(CtxSynchronize, 2000)                   \
    X(MemGetInfo, 3020)                       \
    X(MemAlloc, 3020)                         \
    X(MemFree, 3020)                          \
    X(MemGetAllocationGranularity, 10020)     \
    X(MemAddressReserve, 10020)               \
    X(MemAddressFree, 10020)                  \
    X(MemCreate, 10020)                       \
    X(MemRelease, 10020)                      \
    X(MemMap, 10020)                          \
    X(MemUnmap, 10020)                        \
    X(MemSetAccess, 10020)                    \
    X(MemGetAccess, 10020)                    \
    X(MemRetainAllocationHandle, 11000)       \
    X(MemExportToShareableHandle, 10020)      \
    X(MemImportFromShareableHandle, 10020)    \
    X(PointerGetAttribute, 4000)              \
    X(PointerGetAttributes, 7000)             \
    X(MemHostAlloc, 2020)                     \
    X(MemFreeHost, 2000)                      \
    X(MemcpyDtoH, 3020)                       \
    X(MemcpyDtoHAsync, 3020)                  \
    X(MemcpyHtoDAsync, 3020)                  \
    X(MemsetD8, 3020)                         \
    X(MemsetD8Async, 3020)                    \
    X(StreamCreate, 2000)                     \
    X(StreamDestroy, 4000)                    \
    X(StreamGetCtx, 9020)                     \
    X(StreamGetId, 12000)                     \
    X(StreamQuery, 2000)                      \
    X(StreamSynchronize, 2000)                \
    X(StreamWaitEvent, 3020)                  \
    X(StreamBeginCapture, 10010)              \
    X(StreamEndCapture, 10000)                \
    X(ThreadExchangeStreamCaptureMode, 10010) \
    X(LaunchHostFunc, 10000)                  \
    X(GraphDestroy, 10000)                    \
    X(EventCreate, 2000)                      \
    X(EventDestroy, 4000)                     \
    X(EventRecord, 2000)                      \
    X(EventQuery, 2000)                       \
    X(EventSynchronize, 2000)

/* cuda.h names a later signature of this one, whose extra answer nobody here asks for. */
typedef CUresult(CUDAAPI *capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
                                        const CUgraphNode **, size_t *);
typedef CUresult(CUDAAPI *proc_address)(const char *, void **, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult *);

static struct {
#define X(name, version) __typeof__(&cu##name) name;
    ENTRY_POINTS(X)
#undef X
    capture_info StreamGetCaptureInfo;
    proc_address GetProcAddress;
} cu;

/* NULL unless the driver is the simulator. */
static struct {
    __typeof__(&xseg_sim_launch) launch;
    __typeof__(&xseg_sim_leaks) leaks;
} sim;

static CUcontext primary; /* of device 0; the program retains it once */

/* A function's address is not an object's in C, so it is copied byte by byte. */
static inline void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    memcpy(function, &symbol, sizeof(symbol));
}

static inline const char *find_entry(const char *name, int version, void *function)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *symbol = NULL;

    if (cu.GetProcAddress(name, &symbol, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) !=
            CUDA_SUCCESS ||
        symbol == NULL)
        return name;
    memcpy(function, &symbol, sizeof(symbol));
    return NULL;
}

/* Returns: NULL, or why there is no driver. */
static inline const char *open_driver(void)
{
    const char *name = getenv("XSEG_DRIVER");
    void *library = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;

    if (library == NULL)
        return "the driver library cannot be loaded";
    find(library, "cuGetProcAddress_v2", &cu.GetProcAddress);
    if (cu.GetProcAddress == NULL)
        return "the driver has no cuGetProcAddress_v2";
#define X(name, version) \
    missing = missing != NULL ? missing : find_entry("cu" #name, version, &cu.name);
    ENTRY_POINTS(X)
#undef X
    if (missing == NULL)
        missing = find_entry("cuStreamGetCaptureInfo", 11030, &cu.StreamGetCaptureInfo);
    find(library, "xseg_sim_launch", &sim.launch);
    find(library, "xseg_sim_leaks", &sim.leaks);
    return missing;
}

static inline CUmemAllocationProp on_device(int device)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static inline CUmemAccessDesc rights(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc;

    memset(&desc, 0, sizeof(desc));
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = flags;
    return desc;
}

static inline CUmemGenericAllocationHandle create(size_t bytes)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

/* Memory that lives as long as its mapping. */
static inline void back(CUdeviceptr address, size_t bytes)
{
    const CUmemGenericAllocationHandle handle = create(bytes);

    ASSERT_OK(cu.MemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cu.MemRelease(handle));
}

static inline CUresult allow(CUdeviceptr address, size_t bytes)
{
    const CUmemAccessDesc desc = rights(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    return cu.MemSetAccess(address, bytes, &desc, 1);
}

static inline CUmemAccess_flags rights_of(CUdeviceptr address, int device)
{
    const CUmemAccessDesc desc = rights(device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    unsigned long long flags = ~0ull;

    ASSERT_OK(cu.MemGetAccess(&flags, &desc.location, address));
    return (CUmemAccess_flags)flags;
}

static inline bool is_mapped(CUdeviceptr address)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);

    if (result != CUDA_SUCCESS) {
        ASSERT_CU(result, CUDA_ERROR_INVALID_VALUE);
        return false;
    }
    ASSERT_OK(cu.MemRelease(handle));
    return true;
}

static inline void fill(CUdeviceptr address, size_t bytes, unsigned char value)
{
    ASSERT_OK(cu.MemsetD8(address, value, bytes));
    ASSERT_OK(cu.CtxSynchronize());
}

static inline unsigned byte_at(CUdeviceptr address)
{
    unsigned char byte = 0;

    ASSERT_OK(cu.MemcpyDtoH(&byte, address, 1));
    return byte;
}

static inline size_t free_memory(void)
{
    size_t free_bytes = 0, total = 0;

    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static inline CUstream new_stream(void)
{
    CUstream stream = NULL;

    ASSERT_OK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static inline CUevent new_event(void)
{
    CUevent event = NULL;

    ASSERT_OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

/*
 * Keep a stream busy until somebody waits for it: on the simulator for ever, on a GPU for a tenth of
 * a second or more, with fills of `scratch`.
 */
static inline CUdeviceptr keep_busy(CUstream stream)
{
    CUdeviceptr scratch = 0;

    if (sim.launch != NULL) {
        assert_int_equal(sim.launch(stream, UINT64_MAX), XSEG_OK);
        return 0;
    }
    ASSERT_OK(cu.MemAlloc(&scratch, 256 * MIB));
    for (unsigned i = 0; i < 800; i++)
        ASSERT_OK(cu.MemsetD8Async(scratch, 1, 256 * MIB, stream));
    return scratch;
}

static inline void let_rest(CUstream stream, CUdeviceptr scratch)
{
    ASSERT_OK(cu.StreamSynchronize(stream));
    if (scratch != 0)
        ASSERT_OK(cu.MemFree(scratch));
}

#endif
