/* SPDX-License-Identifier: MIT */
/*
 * The device of the sections: the driver that XSEG_DRIVER names, its entry points, and device 0 with its current
 * primary context.
 *
 * A failed driver call ends the section: device_check() reports the call and the last operations.  Most errors of a
 * real driver are sticky, so later results would be meaningless.
 *
 * A simulated driver runs no kernels and no graphs.  For it, `device.is_simulated` is true, `sim` has its own
 * functions, and the entry points for modules, launches and graph launches are NULL.
 */
#ifndef XSEG_TESTS_GPU_CONTENTS_DEVICE_H
#define XSEG_TESTS_GPU_CONTENTS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "xseg/sim.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* The name without its cu prefix, and the version of CUDA that introduced the signature. */
#define DEVICE_CALLS(X)               \
    X(Init, 2000)                     \
    X(GetErrorName, 6000)             \
    X(DeviceGet, 2000)                \
    X(DeviceGetName, 2000)            \
    X(DeviceGetAttribute, 2000)       \
    X(DevicePrimaryCtxRetain, 7000)   \
    X(DevicePrimaryCtxRelease, 11000) \
    X(CtxPushCurrent, 4000)           \
    X(CtxPopCurrent, 4000)            \
    X(CtxSynchronize, 2000)           \
    X(MemGetInfo, 3020)               \
    X(MemAlloc, 3020)                 \
    X(MemFree, 3020)                  \
    X(MemHostAlloc, 2020)             \
    X(MemFreeHost, 2000)              \
    X(MemcpyDtoHAsync, 3020)          \
    X(MemcpyHtoDAsync, 3020)          \
    X(MemsetD8Async, 3020)            \
    X(StreamCreate, 2000)             \
    X(StreamDestroy, 4000)            \
    X(StreamQuery, 2000)              \
    X(StreamSynchronize, 2000)        \
    X(StreamWaitEvent, 3020)          \
    X(StreamBeginCapture, 10010)      \
    X(StreamEndCapture, 10000)        \
    X(LaunchHostFunc, 10000)          \
    X(GraphDestroy, 10000)            \
    X(EventCreate, 2000)              \
    X(EventDestroy, 4000)             \
    X(EventRecord, 2000)              \
    X(EventQuery, 2000)               \
    X(EventSynchronize, 2000)

/* Entry points that only a GPU's driver has. */
#define DEVICE_GPU_CALLS(X)             \
    X(ModuleLoadDataEx, 2010)           \
    X(ModuleGetFunction, 2000)          \
    X(ModuleUnload, 2000)               \
    X(LaunchKernel, 4000)               \
    X(GraphInstantiateWithFlags, 11040) \
    X(GraphLaunch, 10000)               \
    X(GraphExecDestroy, 10000)

struct device_calls {
#define X(name, version) __typeof__(&cu##name) name;
    DEVICE_CALLS(X)
    DEVICE_GPU_CALLS(X)
#undef X
};

extern struct device_calls cu;

struct device_simulator {
    __typeof__(&xseg_sim_launch) launch;
    __typeof__(&xseg_sim_launch_accessing) launch_accessing;
    __typeof__(&xseg_sim_advance) advance;
    __typeof__(&xseg_sim_leaks) leaks;
};

extern struct device_simulator sim;

struct device {
    bool is_simulated, has_vmm;
    CUdevice ordinal;
    CUcontext context;
    int clock_khz; /* of the multiprocessors; kernel_spin() counts cycles */
};

extern struct device device;

/* Open the driver and device 0, and make its context current; returns NULL, or an error message. */
const char *device_open(void);

/* Release the context. Streams, events and memory must have been destroyed. */
void device_close(void);

/* Make the context current in another thread. */
void device_enter(void);
void device_leave(void);

/* End the section unless the driver succeeded. */
void device_check(CUresult result, const char *call);
#define CU(name, ...) device_check(cu.name(__VA_ARGS__), "cu" #name)

const char *device_error(CUresult result);

int device_attribute(CUdevice_attribute attribute);

size_t device_free_memory(void);

CUstream device_new_stream(void);
CUevent device_new_event(void);

/* Future work on `later` waits for the current work of `earlier`. */
void device_order(CUstream later, CUstream earlier, CUevent event);

bool device_is_busy(CUstream stream);

#endif
