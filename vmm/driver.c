/* SPDX-License-Identifier: MIT */
#include "vmm/driver.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "vmm/driver_entry.h"

/* The member that gets the address of each entry point, and the version to ask for. */
static const struct {
    const char *name;
    int version;
    size_t offset;
} entry_place[] = {
#define X(name, version)           {"cu" #name, version, offsetof(struct xseg_driver, call_##name)},
#define TYPED(name, version, type) X(name, version)
    XSEG_ENTRY_POINTS(X, TYPED)
#undef X
#undef TYPED
};

_Static_assert(XSEG_ENTRY_COUNT <= XSEG_DRIVER_CALLS_MAX, "arrays of other files have room");

CUresult xseg_driver_count_call(struct xseg_driver *driver, enum xseg_entry entry, CUresult result,
                                uint64_t begun)
{
    if (begun != 0)
        atomic_fetch_add_explicit(&driver->spent[entry], xseg_driver_call_start(entry) - begun,
                                  memory_order_relaxed);
    atomic_fetch_add_explicit(&driver->count[entry], 1, memory_order_relaxed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        atomic_fetch_add_explicit(&driver->failed[entry], 1, memory_order_relaxed);
    return result;
}

static const char *result_name(struct xseg_driver *driver, CUresult result)
{
    const char *name = NULL;

    if (driver->call_GetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return "unknown error";
    return name;
}

/*
 * Whether no call works after a result: the device is broken until the process ends, the context was reset
 * by other code, or the driver has been shut down.
 */
static bool means_lost(CUresult result)
{
    switch ((int)result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

/* Whether a call makes pages, or makes them usable. */
static bool makes_pages(enum xseg_entry entry)
{
    return entry == XSEG_ENTRY_MemAddressReserve || entry == XSEG_ENTRY_MemCreate ||
           entry == XSEG_ENTRY_MemMap || entry == XSEG_ENTRY_MemSetAccess;
}

xseg_status xseg_driver_status(struct xseg_driver *driver, struct xseg_context *context,
                               enum xseg_entry entry, CUresult result, xseg_status shortage,
                               uint64_t bytes)
{
    xseg_status status = XSEG_ERR_DRIVER;

    if (result == CUDA_SUCCESS)
        return XSEG_OK;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = shortage;
    /* A retained context that cannot be pushed is gone; elsewhere a wrong context is the caller's. */
    if (context != NULL && (means_lost(result) || (entry == XSEG_ENTRY_CtxPushCurrent &&
                                                   result == CUDA_ERROR_INVALID_CONTEXT))) {
        xseg_driver_mark_lost(context, result_name(driver, result));
        status = XSEG_ERR_DEVICE_LOST;
    }
    if (context != NULL && status == XSEG_ERR_DRIVER && makes_pages(entry))
        atomic_fetch_add_explicit(&context->page_failures, 1, memory_order_relaxed);
    if (context != NULL && status == XSEG_ERR_NO_MEMORY)
        atomic_store_explicit(&context->last_oom_call, entry_place[entry].name,
                              memory_order_relaxed);
    (void)xseg_fail(status, "%s failed, %s (%d)", entry_place[entry].name,
                    result_name(driver, result), (int)result);
    if (bytes != 0)
        xseg_fail_append(" for %" PRIu64 " bytes", bytes);
    return status;
}

void xseg_driver_mark_lost(struct xseg_context *context, const char *why)
{
    const char *none = NULL;

    if (atomic_compare_exchange_strong(&context->lost, &none, why))
        atomic_fetch_or(&context->slow_path, XSEG_CONTEXT_LOSS);
}

xseg_status xseg_driver_fail_lost(const struct xseg_context *context)
{
    return xseg_fail(XSEG_ERR_DEVICE_LOST,
                     "device %d is lost, %s; restart the process to use the device",
                     context->ordinal, atomic_load_explicit(&context->lost, memory_order_relaxed));
}

/*
 * A context that could not be popped stays on the calling thread's stack.  It is not popped later, because the
 * caller may have pushed it, too, by then.  As long as it is current, no other context is pushed on top of it.
 */
static _Thread_local struct {
    CUcontext context;
    bool is_entered; /* the last xseg_driver_push_context() made no push */
} left;

/* Whether a context was left on the stack of any thread; while false, no thread needs to look. */
static atomic_bool any_left;

static bool is_any_left(void)
{
    return __builtin_expect(atomic_load_explicit(&any_left, memory_order_relaxed), 0);
}

xseg_status xseg_driver_push_context(struct xseg_context *context)
{
    CUcontext current = NULL;

    if (is_any_left() && left.context == context->primary) {
        const xseg_status status = STATUS_ON(context, CtxGetCurrent, XSEG_ERR_DRIVER, 0, &current);

        left.is_entered = status == XSEG_OK && current == context->primary;
        if (status != XSEG_OK || left.is_entered)
            return status;
    }
    return STATUS_ON(context, CtxPushCurrent, XSEG_ERR_DRIVER, 0, context->primary);
}

/* Pop the context.  A pop that fails, for which there is no known reason, is tried once more, so that the caller's
 * context is current again. */
void xseg_driver_pop_context(struct xseg_context *context)
{
    CUcontext popped = NULL;

    if (is_any_left() && left.is_entered) {
        left.is_entered = false;
        return;
    }
    if (CALL(context->driver, CtxPopCurrent, &popped) == CUDA_SUCCESS ||
        CALL(context->driver, CtxPopCurrent, &popped) == CUDA_SUCCESS)
        return;
    left.context = context->primary;
    atomic_store_explicit(&any_left, true, memory_order_relaxed);
}

/* --- Loading. --- */

#define DEFAULT_LIBRARY "libcuda.so.1"
#define SIMULATE        "set XSEG_DRIVER=libxseg-sim.so to simulate a GPU"
#define INSTALL         "install NVIDIA driver r525 (CUDA 12.0) or later, or " SIMULATE

typedef __typeof__(CUresult(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *)) *proc_address;

static xseg_status resolve_all(struct xseg_driver *driver, const char *library)
{
    proc_address find;
    void *symbol = dlsym(driver->library, "cuGetProcAddress_v2");

    if (symbol == NULL)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver has no cuGetProcAddress_v2, %s; " INSTALL,
                         library);
    memcpy(&find, &symbol, sizeof(symbol));
    for (unsigned i = 0; i < XSEG_ENTRY_COUNT; i++) {
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
        void *function = NULL;
        const int version = entry_place[i].version;
        const CUresult result = find(entry_place[i].name, &function, version,
                                     CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);

        if (result != CUDA_SUCCESS || function == NULL)
            return xseg_fail(XSEG_ERR_NO_DRIVER, "driver has no %s of CUDA %d.%d, %s; " INSTALL,
                             entry_place[i].name, version / 1000, version % 1000 / 10, library);
        memcpy((char *)driver + entry_place[i].offset, &function, sizeof(function));
    }
    return XSEG_OK;
}

static xseg_status fail_without_device(const char *library)
{
    return xseg_fail(XSEG_ERR_NO_DRIVER,
                     "driver has no visible device, %s; check CUDA_VISIBLE_DEVICES and nvidia-smi, "
                     "or " SIMULATE,
                     library);
}

static xseg_status start(struct xseg_driver *driver, const char *library)
{
    int version = 0;
    XSEG_ASSERT(driver->call_Init != NULL);
    const CUresult result = CALL(driver, Init, 0);

    if (result == CUDA_ERROR_NO_DEVICE)
        return fail_without_device(library);
    if (result != CUDA_SUCCESS)
        (void)xseg_driver_status(driver, NULL, XSEG_ENTRY_Init, result, XSEG_ERR_DRIVER, 0);
    if (result == CUDA_ERROR_NOT_INITIALIZED)
        xseg_fail_append(
            "; a forked child cannot use a driver that its parent has initialized, start the "
            "child with exec() (in Python: start method \"spawn\") or fork earlier");
    if (result != CUDA_SUCCESS)
        return XSEG_ERR_DRIVER;
    xseg_status status = STATUS(driver, DriverGetVersion, &version);
    if (status != XSEG_OK)
        return status;
    if (version < 12000)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver is too old, %s with CUDA %d.%d; " INSTALL,
                         library, version / 1000, version % 1000 / 10);
    status = STATUS(driver, DeviceGetCount, &driver->devices);
    if (status != XSEG_OK)
        return status;
    if (driver->devices < 1)
        return fail_without_device(library);
    driver->poll_counts = calloc((size_t)driver->devices, sizeof(*driver->poll_counts));
    driver->kept = calloc((size_t)driver->devices, sizeof(CUcontext));
    if (driver->poll_counts == NULL || driver->kept == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, counters of driver calls");
    return XSEG_OK;
}

/* The library to load.  *named: origin of its name, for messages; "" for the default one */
static const char *choose_library(const char *argument, const char **named)
{
    const char *variable = argument == NULL ? secure_getenv("XSEG_DRIVER") : NULL;

    *named = "struct xseg_options";
    if (argument != NULL && argument[0] != '\0')
        return argument;
    *named = "XSEG_DRIVER";
    if (variable != NULL && variable[0] != '\0')
        return variable;
    *named = "";
    return DEFAULT_LIBRARY;
}

static xseg_status fail_to_load(const char *library, const char *named)
{
    const char *reason = dlerror();

    if (named[0] != '\0')
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver library of %s cannot be loaded, \"%s\", %s",
                         named, library, reason != NULL ? reason : "unknown error");
    return xseg_fail(XSEG_ERR_NO_DRIVER, "NVIDIA driver cannot be loaded, %s; " INSTALL,
                     reason != NULL ? reason : library);
}

xseg_status xseg_driver_open(const char *library, struct xseg_driver **out)
{
    struct xseg_driver *driver = calloc(1, sizeof(*driver));
    const char *named;
    xseg_status status;

    if (driver == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, driver table");
    library = choose_library(library, &named);
    driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        status = fail_to_load(library, named);
        goto free_driver;
    }
    status = resolve_all(driver, library);
    if (status == XSEG_OK)
        status = start(driver, library);
    if (status != XSEG_OK)
        goto close_library;
    *out = driver;
    return XSEG_OK;

close_library:
    (void)dlclose(driver->library);
free_driver:
    free(driver->poll_counts);
    free(driver->kept);
    free(driver);
    return status;
}

void xseg_driver_close(struct xseg_driver *driver)
{
    (void)dlclose(driver->library);
    free(driver->poll_counts);
    free(driver->kept);
    free(driver);
}

int xseg_driver_device_count(const struct xseg_driver *driver)
{
    return driver->devices;
}

/* The calls of an entry point that are counted by device (struct xseg_driver_poll_counts). */
static uint64_t asked(const struct xseg_driver *driver, size_t entry)
{
    uint64_t sum = 0;

    for (int i = 0; i < driver->devices; i++) {
        const struct xseg_driver_poll_counts *device = &driver->poll_counts[i];

        if (entry == XSEG_ENTRY_EventQuery)
            sum += atomic_load_explicit(&device->events, memory_order_relaxed);
        if (entry == XSEG_ENTRY_ThreadExchangeStreamCaptureMode)
            sum += atomic_load_explicit(&device->modes, memory_order_relaxed);
    }
    return sum;
}

size_t xseg_driver_call_counts(const struct xseg_driver *driver, struct xseg_driver_call *calls,
                               size_t capacity)
{
    for (size_t i = 0; i < XSEG_ENTRY_COUNT && i < capacity; i++) {
        calls[i].name = entry_place[i].name;
        calls[i].count =
            atomic_load_explicit(&driver->count[i], memory_order_relaxed) + asked(driver, i);
        calls[i].failed = atomic_load_explicit(&driver->failed[i], memory_order_relaxed);
    }
    return XSEG_ENTRY_COUNT;
}

bool xseg_driver_call_time(const struct xseg_driver *driver, size_t entry, uint64_t *nanoseconds)
{
    XSEG_ASSERT(entry < XSEG_ENTRY_COUNT);
    *nanoseconds = atomic_load_explicit(&driver->spent[entry], memory_order_relaxed);
    return xseg_driver_is_timed((enum xseg_entry)entry);
}
