/* SPDX-License-Identifier: MIT */
/*
 * The driver calls of `xseg probe`, the calls that failed, and the features of a device.
 *
 * The driver is opened as in gpu.h.  The primary context of one device is current on the calling thread from
 * probe_driver_open() to probe_driver_close().
 *
 * Terms:
 *   purpose  why a call was made; for the list of failures
 *   first    the time of the first successful call of an entry point, in which the driver can load and initialize parts
 *   work     operations that keep the device busy for PROBE_WORK_NS: a launch on the simulator, fills of a scratch allocation
 *            on other drivers
 *   answer   the value of an attribute; PROBE_UNKNOWN if the driver does not know the attribute
 *   probe    the result of a test of a feature: an error number, 0 on success; PROBE_NOT_RUN if there was no test
 *
 * Each function releases the resources that it allocates, also if another call fails.  A release that fails is repeated once.
 *
 * Locking: none; one thread.  A second thread has a copy: probe_driver_split().
 */
#ifndef TOOLS_PROBE_DRIVER_H
#define TOOLS_PROBE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/replay/gpu.h"

#define PROBE_WORK_NS  UINT64_C(5000000)
#define PROBE_FAILURES 32

/* CUmemAllocationProp and CUmemAccessDesc, without cuda.h. */
struct probe_location {
    int type, id; /* 1: the memory of a device */
};
struct probe_properties {
    int type; /* 1: pinned */
    int handle_types;
    struct probe_location location;
    void *win32_metadata;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct probe_access {
    struct probe_location location;
    int flags; /* 3: read and write */
};

/* The binary interface of the driver: member, symbol, parameters. */
/* clang-format off */
#define PROBE_ENTRIES(X)                                                                                                   \
    X(init, "cuInit", (unsigned flags))                                                                                    \
    X(version, "cuDriverGetVersion", (int *version))                                                                       \
    X(error_name, "cuGetErrorName", (int error, const char **name))                                                        \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                      \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                               \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, int device))                                                 \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                                   \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                                            \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                       \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                                                                \
    X(context_pop, "cuCtxPopCurrent_v2", (void **context))                                                                 \
    X(memory_info, "cuMemGetInfo_v2", (size_t *free, size_t *total))                                                       \
    X(memory_alloc, "cuMemAlloc_v2", (uint64_t *address, size_t bytes))                                                    \
    X(memory_free, "cuMemFree_v2", (uint64_t address))                                                                     \
    X(granularity, "cuMemGetAllocationGranularity", (size_t *bytes, const struct probe_properties *properties, int option)) \
    X(reserve, "cuMemAddressReserve", (uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags)) \
    X(unreserve, "cuMemAddressFree", (uint64_t address, size_t bytes))                                                     \
    X(create, "cuMemCreate", (uint64_t *handle, size_t bytes, const struct probe_properties *properties, unsigned long long flags)) \
    X(release, "cuMemRelease", (uint64_t handle))                                                                          \
    X(map, "cuMemMap", (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))         \
    X(unmap, "cuMemUnmap", (uint64_t address, size_t bytes))                                                               \
    X(set_access, "cuMemSetAccess", (uint64_t address, size_t bytes, const struct probe_access *access, size_t count))     \
    X(export_handle, "cuMemExportToShareableHandle", (void *out, uint64_t handle, int type, unsigned long long flags))     \
    X(stream_create, "cuStreamCreate", (struct CUstream_st **stream, unsigned flags))                                      \
    X(stream_destroy, "cuStreamDestroy_v2", (struct CUstream_st *stream))                                                  \
    X(stream_query, "cuStreamQuery", (struct CUstream_st *stream))                                                         \
    X(stream_synchronize, "cuStreamSynchronize", (struct CUstream_st *stream))                                             \
    X(fill_async, "cuMemsetD8Async", (uint64_t address, unsigned char byte, size_t bytes, struct CUstream_st *stream))     \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                                                       \
    X(event_destroy, "cuEventDestroy_v2", (void *event))                                                                   \
    X(event_record, "cuEventRecord", (void *event, struct CUstream_st *stream))                                            \
    X(event_query, "cuEventQuery", (void *event))                                                                          \
    X(stream_wait, "cuStreamWaitEvent", (struct CUstream_st *stream, void *event, unsigned flags))
/* clang-format on */

enum probe_entry {
#define PROBE_ENTRY_(member, name, parameters) PROBE_ENTRY_##member,
    PROBE_ENTRIES(PROBE_ENTRY_)
#undef PROBE_ENTRY_
        PROBE_ENTRY_COUNT
};

struct probe_failure {
    int error;
    char call[40], error_name[48], purpose[48];
};

struct probe_driver {
    void *library;
    const char *path; /* of the library */
    bool is_simulated, retained, pushed;
    int device;                 /* CUdevice */
    void *context;              /* the primary context, while `retained` */
    struct CUstream_st *stream; /* of the work */
    uint64_t scratch;           /* 0: none */
    unsigned fills;             /* of the scratch allocation for one work; 0: no work */
    struct probe_failure failure[PROBE_FAILURES];
    unsigned failures;                 /* including those that did not fit */
    uint64_t began;                    /* start time of a call that can be the first */
    uint64_t first[PROBE_ENTRY_COUNT]; /* nanoseconds */
    bool has_first[PROBE_ENTRY_COUNT];
#define PROBE_MEMBER_(member, name, parameters) int(*member) parameters;
    PROBE_ENTRIES(PROBE_MEMBER_)
#undef PROBE_MEMBER_
};

/* Get the time of the simulator's virtual clock, or of the host, in nanoseconds. */
uint64_t probe_driver_clock(const struct probe_driver *driver);

/* Record the time of a first call.  Returns the result. */
int probe_driver_first(struct probe_driver *driver, enum probe_entry entry, int result);

/* Record a failure; CUDA_ERROR_NOT_READY is none.  Returns the result. */
int probe_driver_record(struct probe_driver *driver, enum probe_entry entry, int result,
                        const char *purpose);

/* Only first calls read the clock, so that it is not part of other measurements. */
static inline void probe_driver_begin(struct probe_driver *driver, enum probe_entry entry)
{
    if (!driver->has_first[entry])
        driver->began = probe_driver_clock(driver);
}

/* A call that is allowed to fail.  Returns its result. */
#define PROBE_TRY(driver, member, ...)                   \
    (probe_driver_begin((driver), PROBE_ENTRY_##member), \
     probe_driver_first((driver), PROBE_ENTRY_##member, (driver)->member(__VA_ARGS__)))

/* A call whose failure is recorded.  Returns its result. */
#define PROBE_CALL(driver, purpose, member, ...)                                                \
    probe_driver_record((driver), PROBE_ENTRY_##member, PROBE_TRY(driver, member, __VA_ARGS__), \
                        (purpose))

/* Documented name of an entry point, without its version suffix. */
struct probe_name {
    char text[40];
};
struct probe_name probe_driver_name(enum probe_entry entry);

/* A call that releases a resource, repeated once if it fails.  Returns whether it succeeded.  Evaluates its arguments twice. */
#define PROBE_RELEASE(driver, purpose, member, ...)           \
    (PROBE_CALL(driver, purpose, member, __VA_ARGS__) == 0 || \
     PROBE_CALL(driver, purpose, member, __VA_ARGS__) == 0)

/* Get the driver's name of an error. */
void probe_driver_error_name(struct probe_driver *driver, int error, char *text, size_t bytes);

/* Open a driver and a device.  On failure, returns false, writes an error message to `error`, and nothing is open. */
bool probe_driver_open(struct probe_driver *driver, const char *library, int ordinal, char *error,
                       size_t error_bytes);
void probe_driver_close(struct probe_driver *driver);

/* Get the arguments for physical memory of the device, and for access by the device. */
struct probe_properties probe_driver_properties(const struct probe_driver *driver);
struct probe_access probe_driver_access(const struct probe_driver *driver);

/* A copy for another thread; enter() makes the context current there, and join() adds the failures of the thread when it has
 * ended. */
struct probe_driver probe_driver_split(const struct probe_driver *driver);
bool probe_driver_enter(struct probe_driver *split);
void probe_driver_leave(struct probe_driver *split);
void probe_driver_join(struct probe_driver *driver, struct probe_driver *split);

/* Prepare for work.  Returns false if the device cannot be kept busy; a call that failed is recorded. */
bool probe_driver_prepare_work(struct probe_driver *driver);

/* Queue work, query whether it is still unfinished, wait for it. */
bool probe_driver_work(struct probe_driver *driver);
bool probe_driver_is_working(struct probe_driver *driver);
bool probe_driver_wait(struct probe_driver *driver);

/* --- The device. --- */

#define PROBE_UNKNOWN (-1)
#define PROBE_NOT_RUN (-1)

struct probe_device {
    char name[96];
    int ordinal, devices, version;
    uint64_t free_bytes, total_bytes;
    int is_integrated; /* the device uses the memory of the host */
    /* Of an integrated device, as xseg sees them: free memory with reclaimable page cache, and the memory that growth leaves
     * free; 0: unknown. */
    uint64_t available_bytes, free_min_bytes;
    int major, minor;
    uint64_t granularity, best_granularity;      /* 0: unknown */
    int has_vmm, has_file, has_fabric, has_rdma; /* answers */
    /* Tests of memory that is exported as a file descriptor or fabric handle, or accessible by GPUDirect RDMA. */
    int file_probe, fabric_probe, rdma_probe;
    /* Tests of two pages: of all calls, of cuMemSetAccess for both pages, of cuMemUnmap for both pages. */
    int vmm_probe, access_probe, unmap_probe;
    const char *vmm_call; /* the call that failed with vmm_probe */
    bool is_partition;    /* a MIG instance, according to its name */
    bool is_wsl;          /* Windows Subsystem for Linux, according to its device file */
};

/* Query and test a device.  Failed calls are recorded; the members remain 0 or unknown. */
void probe_device_describe(struct probe_driver *driver, int ordinal, struct probe_device *device);

/* Get whether xseg uses expandable segments on the device. */
bool probe_device_is_expandable(const struct probe_device *device);

#endif
