/* SPDX-License-Identifier: MIT */
/*
 * The basis of the checks: a driver that is opened by name, its entry points, and functions that create objects with
 * them.
 *
 * XSEG_DRIVER names the driver; the default is libcuda.so.1.  The program is not linked with a driver.  On the
 * simulator, work without end and the leak check use functions of the simulator.
 *
 * A driver may be too old for an entry point.  A call of a missing entry point fails and is recorded, and the fact is
 * skipped, so all facts that the driver supports are verified.
 */
#ifndef XSEG_TESTS_GPU_FACTS_DRIVER_H
#define XSEG_TESTS_GPU_FACTS_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "tests/gpu/facts/fact.h"
#include "xseg/sim.h"

#define GRANULE ((size_t)2 << 20)
#define MIB     ((size_t)1 << 20)
#define GIB     ((size_t)1 << 30)

/* Tolerance for memory that other processes, or the driver itself, allocate. */
#define SLACK (16 * MIB)

/* As in vmm/driver.c: the name without its cu prefix, and the version of CUDA that introduced the signature. */
#define ENTRY_POINTS(X)                       \
    X(Init, 2000)                             \
    X(DriverGetVersion, 2020)                 \
    X(GetErrorName, 6000)                     \
    X(DeviceGetCount, 2000)                   \
    X(DeviceGet, 2000)                        \
    X(DeviceGetName, 2000)                    \
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
    X(MemGetAddressRange, 3020)               \
    X(MemGetHandleForAddressRange, 11070)     \
    X(PointerGetAttribute, 4000)              \
    X(PointerGetAttributes, 7000)             \
    X(PointerSetAttribute, 6000)              \
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

/* cuda.h names a later signature, whose additional result is not needed here. */
typedef CUresult(CUDAAPI *capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
                                        const CUgraphNode **, size_t *);
typedef CUresult(CUDAAPI *proc_address)(const char *, void **, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult *);

/* Never NULL once the driver is open. */
struct entry_points {
#define X(name, version) __typeof__(&cu##name) name;
    ENTRY_POINTS(X)
#undef X
    capture_info StreamGetCaptureInfo;
    proc_address GetProcAddress;
};
extern struct entry_points cu;

/* NULL unless the driver is the simulator. */
struct simulator {
    __typeof__(&xseg_sim_launch) launch;
    __typeof__(&xseg_sim_leaks) leaks;
};
extern struct simulator sim;

extern CUcontext primary; /* of device 0; the process retains it once */
extern int device_count;
extern size_t free_at_start; /* of device 0 */

/* Find the entry points. Returns NULL, or the reason why there is no driver. */
const char *driver_open(void);

/* Query the devices, and make the context of device 0 current. Returns NULL, or the reason why there is none. */
const char *driver_enter(void);

/* Release the context. Returns whether nothing has leaked, which only the simulator can report. */
bool driver_leave(void);

/* The missing capabilities of enum need, as a message; NULL: none. */
const char *driver_lacks(unsigned needs);

/* The first missing entry point that was called since the last driver_clear_missing(); NULL: none. */
const char *driver_missing(void);
void driver_clear_missing(void);

/* All missing entry points, separated by commas. */
const char *driver_all_missing(void);

void driver_name_result(CUresult result, char *name, size_t bytes);

/* --- Within a check: a failure ends the check. --- */

CUmemAllocationProp on_device(int device);
CUmemAccessDesc rights(int device, CUmemAccess_flags flags);
CUmemGenericAllocationHandle create(size_t bytes);
CUdeviceptr reserve(size_t bytes);
/* Creates and maps memory, and releases its handle, so the mapping owns the memory. */
void back(CUdeviceptr address, size_t bytes);
/* Sets read and write access for device 0. */
CUresult allow(CUdeviceptr address, size_t bytes);
/* Reserves a range, and maps it as a whole, with access. */
CUdeviceptr map(size_t bytes);
void unmap_and_free(CUdeviceptr base, size_t bytes);
/* BACK(base, 1, 2) creates mappings of 1 and 2 granules; UNBACK() unmaps each and frees the range. */
#define BACK(base, ...)   back_all((base), (const size_t[]){__VA_ARGS__, 0})
#define UNBACK(base, ...) unmap_all_and_free((base), (const size_t[]){__VA_ARGS__, 0})
void back_all(CUdeviceptr base, const size_t *granules);
void unmap_all_and_free(CUdeviceptr base, const size_t *granules);
void destroy(CUstream stream, CUevent event);
CUmemAccess_flags rights_of(CUdeviceptr address, int device);
bool is_mapped(CUdeviceptr address);
void fill(CUdeviceptr address, size_t bytes, unsigned char value);
unsigned byte_at(CUdeviceptr address);
size_t free_memory(void);
CUstream new_stream(void);
CUevent new_event(void);
unsigned long long id_of(CUstream stream);
/* The largest power of two that divides the address. */
size_t alignment_of(CUdeviceptr address);
/* Skips the fact if less memory is free. */
void require_memory(size_t bytes);

double microseconds(void);

#endif
