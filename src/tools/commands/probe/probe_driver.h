/* SPDX-License-Identifier: MIT */
/*
 * A driver as `xseg probe` uses it: every call that it makes, with a list of those that failed.
 *
 * The driver is opened as gpu.h names it, and one device's primary context stays current on the
 * calling thread between probe_driver_open() and probe_driver_close().
 *
 * Terms:
 *   doing    what a call was made for, a few words that a reader of the list of failures understands
 *   first    what the first call of each kind took that went well: a driver loads and sets up things
 *            then that later calls find
 *   work     something that keeps the device busy for PROBE_WORK_NS: on the simulator of its own kind,
 *            elsewhere fills of a scratch allocation, as many as it takes
 *
 * Invariants: what a call has taken is given back by the one who made it, whatever else fails; what
 * the driver does not take back is offered twice.
 *
 * Locking: none; one thread.  A second one has a copy of its own: probe_driver_split().
 */
#ifndef TOOLS_PROBE_DRIVER_H
#define TOOLS_PROBE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/replay/gpu.h"

#define PROBE_WORK_NS  UINT64_C(5000000)
#define PROBE_FAILURES 32

/* CUmemAllocationProp and CUmemAccessDesc, spelled in plain C. */
struct probe_place {
    int type, id; /* 1: the memory of a device */
};
struct probe_properties {
    int type; /* 1: pinned */
    int handle_types;
    struct probe_place place;
    void *windows;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct probe_access {
    struct probe_place place;
    int flags; /* 3: read and write */
};

/* Member, name in the library, parameters: the driver's binary interface. */
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
    char call[40], error_name[48], doing[48];
};

struct probe_driver {
    void *library;
    bool is_simulated, retained, pushed;
    int device;                 /* CUdevice */
    void *context;              /* its primary one, while `retained` */
    struct CUstream_st *stream; /* that work is queued on */
    uint64_t scratch;           /* 0: none */
    unsigned fills;             /* of the scratch allocation that make up one work; 0: no work */
    struct probe_failure failure[PROBE_FAILURES];
    unsigned failures;                 /* how many there were; the first are kept */
    uint64_t began;                    /* when a call began that may be the first of its kind */
    uint64_t first[PROBE_ENTRY_COUNT]; /* nanoseconds */
    bool has_first[PROBE_ENTRY_COUNT];
#define PROBE_MEMBER_(member, name, parameters) int(*member) parameters;
    PROBE_ENTRIES(PROBE_MEMBER_)
#undef PROBE_MEMBER_
};

/* Nanoseconds: the simulator's virtual clock, or the machine's. */
uint64_t probe_driver_clock(const struct probe_driver *driver);

/* The end of a call that may be the first of its kind.  Returns the result. */
int probe_driver_first(struct probe_driver *driver, enum probe_entry entry, int result);

/* Note a result unless it is a success, or the answer of a query.  Returns the result. */
int probe_driver_note(struct probe_driver *driver, enum probe_entry entry, int result,
                      const char *doing);

/* The clock is read for the first call only: what is timed from outside is the call alone. */
static inline void probe_driver_begin(struct probe_driver *driver, enum probe_entry entry)
{
    if (!driver->has_first[entry])
        driver->began = probe_driver_clock(driver);
}

/* A call that may fail: its result. */
#define PROBE_TRY(driver, member, ...)                   \
    (probe_driver_begin((driver), PROBE_ENTRY_##member), \
     probe_driver_first((driver), PROBE_ENTRY_##member, (driver)->member(__VA_ARGS__)))

/* A call whose failure is noted: its result. */
#define PROBE_CALL(driver, doing, member, ...)                                                \
    probe_driver_note((driver), PROBE_ENTRY_##member, PROBE_TRY(driver, member, __VA_ARGS__), \
                      (doing))

/* The name that people call an entry point: without its version. */
struct probe_name {
    char text[40];
};
struct probe_name probe_driver_name(enum probe_entry entry);

/*
 * A call that gives something back, tried a second time when it fails: whether it succeeded.  So the
 * arguments may be evaluated twice.
 */
#define PROBE_RETURN(driver, doing, member, ...)            \
    (PROBE_CALL(driver, doing, member, __VA_ARGS__) == 0 || \
     PROBE_CALL(driver, doing, member, __VA_ARGS__) == 0)

/* The driver's name for an error. */
void probe_driver_error_name(struct probe_driver *driver, int error, char *text, size_t bytes);

/*
 * Open a driver and a device of it.  Returns false if there is nothing to probe; `problem` is then a
 * sentence, and nothing is held.
 */
bool probe_driver_open(struct probe_driver *driver, const char *library, int ordinal, char *problem,
                       size_t problem_bytes);
void probe_driver_close(struct probe_driver *driver);

/* Physical memory of the device, and access for it. */
struct probe_properties probe_driver_properties(const struct probe_driver *driver);
struct probe_access probe_driver_access(const struct probe_driver *driver);

/*
 * A driver for another thread, which makes its context current there; what that thread found wrong is
 * taken over when it has ended.
 */
struct probe_driver probe_driver_split(const struct probe_driver *driver);
bool probe_driver_enter(struct probe_driver *split);
void probe_driver_leave(struct probe_driver *split);
void probe_driver_join(struct probe_driver *driver, struct probe_driver *split);

/* Prepare for work.  Returns false, with the reason noted if a call failed, when there can be none. */
bool probe_driver_prepare_work(struct probe_driver *driver);

/* Queue work; whether it is still unfinished; wait for it. */
bool probe_driver_work(struct probe_driver *driver);
bool probe_driver_is_working(struct probe_driver *driver);
bool probe_driver_settle(struct probe_driver *driver);

#endif
