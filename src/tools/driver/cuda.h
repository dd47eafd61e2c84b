/* SPDX-License-Identifier: MIT */
/*
 * A CUDA driver that the tool opens itself: its entry points, and the primary context of one device, which stays
 * current on the calling thread between cuda_open() and cuda_close().
 *
 * The driver is opened by name, so that the tool needs no driver to start and no header of it to build.
 *
 * Locking: none; all calls come from the thread that opened it.
 */
#ifndef TOOLS_CUDA_H
#define TOOLS_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_NOT_READY           600
#define CUDA_STREAM_NON_BLOCKING 1u

struct CUstream_st;

/*
 * A driver is named by its library, as xseg_options.driver takes it.  CUDA_SIMULATED stands for the
 * simulator of simulator.h, whose clock and scene the tool has in hand; the same library by its path is a
 * driver like any other.
 */
#define CUDA_SIMULATED NULL

/* What `--driver` names: NULL (not given) and "sim" are CUDA_SIMULATED, "cuda" is this machine's driver. */
const char *cuda_driver_of(const char *text);

/* The path or name of a driver's library; NULL if the simulator is meant and not open. */
const char *cuda_library(const char *driver);

/* CUmemAllocationProp and CUmemAccessDesc, spelled in plain C. */
struct cuda_place {
    int type, id; /* 1: the memory of a device */
};
struct cuda_properties {
    int type; /* 1: pinned */
    int handle_types;
    struct cuda_place place;
    void *windows;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct cuda_access {
    struct cuda_place place;
    int flags; /* 3: read and write */
};

/* Member, name in the library, parameters: the driver's binary interface. */
/* clang-format off */
#define CUDA_ENTRIES(X)                                                                                                   \
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
    X(granularity, "cuMemGetAllocationGranularity", (size_t *bytes, const struct cuda_properties *properties, int option)) \
    X(reserve, "cuMemAddressReserve", (uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags)) \
    X(unreserve, "cuMemAddressFree", (uint64_t address, size_t bytes))                                                     \
    X(create, "cuMemCreate", (uint64_t *handle, size_t bytes, const struct cuda_properties *properties, unsigned long long flags)) \
    X(release, "cuMemRelease", (uint64_t handle))                                                                          \
    X(map, "cuMemMap", (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))         \
    X(unmap, "cuMemUnmap", (uint64_t address, size_t bytes))                                                               \
    X(set_access, "cuMemSetAccess", (uint64_t address, size_t bytes, const struct cuda_access *access, size_t count))     \
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
    X(stream_wait, "cuStreamWaitEvent", (struct CUstream_st *stream, void *event, unsigned flags))                        \
    X(context_synchronize, "cuCtxSynchronize", (void))                                                                    \
    X(exchange_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                                    \
    X(is_capturing, "cuStreamIsCapturing", (struct CUstream_st *stream, int *status))                                     \
    X(capture_begin, "cuStreamBeginCapture_v2", (struct CUstream_st *stream, int mode))                                   \
    X(capture_end, "cuStreamEndCapture", (struct CUstream_st *stream, void **graph))                                      \
    X(graph_destroy, "cuGraphDestroy", (void *graph))
/* clang-format on */

enum cuda_entry {
#define CUDA_ENTRY_(member, name, parameters) CUDA_ENTRY_##member,
    CUDA_ENTRIES(CUDA_ENTRY_)
#undef CUDA_ENTRY_
        CUDA_ENTRY_COUNT
};

struct cuda {
    void *library; /* NULL: it is not open */
    int device;    /* CUdevice */
    void *context; /* its primary one, while `retained` */
    bool retained, pushed;
#define CUDA_MEMBER_(member, name, parameters) int(*member) parameters;
    CUDA_ENTRIES(CUDA_MEMBER_)
#undef CUDA_MEMBER_
};

/* The name of an entry point in the library. */
const char *cuda_entry_name(enum cuda_entry entry);

/* Find a driver's entry points.  Returns false with a sentence in `problem`; there is nothing to close then. */
bool cuda_load(struct cuda *cuda, const char *driver, char *problem, size_t problem_bytes);

/* Make a device's context current.  Returns the first result that is no success, with the call's name; 0: none. */
int cuda_enter(struct cuda *cuda, int ordinal, const char **call);

/*
 * Let go of the context and the library.  Results are not looked at: nothing can be done about a driver that takes nothing
 * back.
 */
void cuda_close(struct cuda *cuda);

#endif
