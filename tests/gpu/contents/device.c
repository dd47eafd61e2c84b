/* SPDX-License-Identifier: MIT */
#include "tests/gpu/contents/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "tests/gpu/contents/journal.h"
#include "tests/support/symbol.h"

struct device_calls cu;
struct device_simulator sim;
struct device device;

static char problem[512];

/* cuda.h names a later, identical signature. */
typedef CUresult(CUDAAPI *proc_address)(const char *, void **, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult *);
static proc_address get_proc_address;

/* Returns the name if the driver does not have the function, else NULL. */
static const char *find_call(const char *name, int version, void *function)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *symbol = NULL;

    if (get_proc_address(name, &symbol, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) !=
            CUDA_SUCCESS ||
        symbol == NULL)
        return name;
    memcpy(function, &symbol, sizeof(symbol));
    return NULL;
}

static const char *find_calls(void)
{
    const char *missing = NULL;

#define X(name, version) \
    missing = missing != NULL ? missing : find_call("cu" #name, version, &cu.name);
    DEVICE_CALLS(X)
    if (!device.is_simulated) {
        DEVICE_GPU_CALLS(X)
    }
#undef X
    return missing;
}

__attribute__((format(printf, 1, 2))) static const char *set_problem(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(problem, sizeof(problem), format, arguments);
    va_end(arguments);
    return problem;
}

static const char *open_library(void)
{
    const char *name = getenv("XSEG_DRIVER"), *missing;

    name = name != NULL && *name != '\0' ? name : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return set_problem("there is no driver: %s", dlerror());
    (void)symbol_find(library, "xseg_sim_launch", &sim.launch);
    (void)symbol_find(library, "xseg_sim_launch_accessing", &sim.launch_accessing);
    (void)symbol_find(library, "xseg_sim_advance", &sim.advance);
    (void)symbol_find(library, "xseg_sim_leaks", &sim.leaks);
    device.is_simulated = sim.launch != NULL;
    (void)symbol_find(library, "cuGetProcAddress_v2", &get_proc_address);
    if (get_proc_address == NULL)
        return "the driver has no cuGetProcAddress_v2: it is older than R525 (CUDA 12.0)";
    missing = find_calls();
    return missing != NULL
               ? set_problem("the driver has no %s: R525 (CUDA 12.0) or later is required", missing)
               : NULL;
}

const char *device_error(CUresult result)
{
    const char *name = NULL;

    return cu.GetErrorName(result, &name) == CUDA_SUCCESS && name != NULL
               ? name
               : "an error without a name";
}

int device_attribute(CUdevice_attribute attribute)
{
    int value = 0;

    return cu.DeviceGetAttribute(&value, attribute, device.ordinal) == CUDA_SUCCESS ? value : 0;
}

static bool has_failed(CUresult result, const char *operation)
{
    if (result != CUDA_SUCCESS)
        (void)set_problem("%s: %s (%d)", operation, device_error(result), (int)result);
    return result != CUDA_SUCCESS;
}

static const char *open_device(void)
{
    if (has_failed(cu.Init(0), "cuInit") ||
        has_failed(cu.DeviceGet(&device.ordinal, 0), "there is no device 0") ||
        has_failed(cu.DevicePrimaryCtxRetain(&device.context, device.ordinal),
                   "device 0 has no context"))
        return problem;
    device.has_vmm = device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    device.clock_khz = device_attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    return has_failed(cu.CtxPushCurrent(device.context), "cuCtxPushCurrent") ? problem : NULL;
}

const char *device_open(void)
{
    /* A simulated driver keeps the contents of memory only if the variable is set before its first call. */
    if (setenv("XSEG_SIM_BYTES", "1", 1) != 0)
        return "setenv: out of host memory";
    const char *message = open_library();
    return message != NULL ? message : open_device();
}

void device_close(void)
{
    device_leave();
    CU(DevicePrimaryCtxRelease, device.ordinal);
}

void device_enter(void)
{
    CU(CtxPushCurrent, device.context);
}

void device_leave(void)
{
    CUcontext context;

    CU(CtxPopCurrent, &context);
}

void device_check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        journal_stop("%s returned %s (%d), possibly an error of earlier queued work", call,
                     device_error(result), (int)result);
}

size_t device_free_memory(void)
{
    size_t free_bytes = 0, total = 0;

    CU(MemGetInfo, &free_bytes, &total);
    return free_bytes;
}

CUstream device_new_stream(void)
{
    CUstream stream = NULL;

    CU(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return stream;
}

CUevent device_new_event(void)
{
    CUevent event = NULL;

    CU(EventCreate, &event, CU_EVENT_DISABLE_TIMING);
    return event;
}

void device_order(CUstream later, CUstream earlier, CUevent event)
{
    CU(EventRecord, event, earlier);
    CU(StreamWaitEvent, later, event, 0);
}

bool device_is_busy(CUstream stream)
{
    const CUresult result = cu.StreamQuery(stream);

    if (result == CUDA_ERROR_NOT_READY)
        return true;
    device_check(result, "cuStreamQuery");
    return false;
}
