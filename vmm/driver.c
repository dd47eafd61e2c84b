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

/* The name and version of each entry point, and the member that receives its address. */
static const struct {
    const char *name;
    int version;
    size_t offset;
} entry_points[] = {
#define X(name, version)           {"cu" #name, version, offsetof(struct xseg_driver, call_##name)},
#define TYPED(name, version, type) X(name, version)
    XSEG_ENTRY_POINTS(X, TYPED)
#undef X
#undef TYPED
};

_Static_assert(XSEG_ENTRY_COUNT <= XSEG_DRIVER_CALLS_MAX, "arrays of callers are large enough");

CUresult xseg_driver_count_call(struct xseg_driver *driver, enum xseg_entry entry, CUresult result,
                                uint64_t start_ns)
{
    if (start_ns != 0)
        atomic_fetch_add_explicit(&driver->nanoseconds[entry],
                                  xseg_driver_call_start(entry) - start_ns, memory_order_relaxed);
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

/* Whether every later call fails after a result: the device is broken until the process ends, other
 * code has reset the context, or the driver has shut down. */
static bool is_device_lost(CUresult result)
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

/* Whether a call creates pages or makes them usable. */
static bool is_page_call(enum xseg_entry entry)
{
    return entry == XSEG_ENTRY_MemAddressReserve || entry == XSEG_ENTRY_MemCreate ||
           entry == XSEG_ENTRY_MemMap || entry == XSEG_ENTRY_MemSetAccess;
}

xseg_status xseg_driver_status(struct xseg_driver *driver, struct xseg_context *context,
                               enum xseg_entry entry, CUresult result, xseg_status oom_status,
                               uint64_t bytes)
{
    xseg_status status = XSEG_ERR_DRIVER;

    if (result == CUDA_SUCCESS)
        return XSEG_OK;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = oom_status;
    /* A retained context that cannot be pushed was destroyed; an invalid context of another call is
     * an error of the caller. */
    if (context != NULL && (is_device_lost(result) || (entry == XSEG_ENTRY_CtxPushCurrent &&
                                                       result == CUDA_ERROR_INVALID_CONTEXT))) {
        xseg_driver_mark_lost(context, result_name(driver, result));
        status = XSEG_ERR_DEVICE_LOST;
    }
    if (context != NULL && status == XSEG_ERR_DRIVER && is_page_call(entry))
        atomic_fetch_add_explicit(&context->page_failures, 1, memory_order_relaxed);
    if (context != NULL && status == XSEG_ERR_NO_MEMORY)
        atomic_store_explicit(&context->last_oom_call, entry_points[entry].name,
                              memory_order_relaxed);
    (void)xseg_fail(status, "%s failed, %s (%d)", entry_points[entry].name,
                    result_name(driver, result), (int)result);
    if (bytes != 0)
        xseg_fail_append(" for %" PRIu64 " bytes", bytes);
    return status;
}

void xseg_driver_mark_lost(struct xseg_context *context, const char *reason)
{
    const char *expected = NULL;

    if (atomic_compare_exchange_strong(&context->lost, &expected, reason))
        atomic_fetch_or(&context->slow_path, XSEG_CONTEXT_LOSS);
}

xseg_status xseg_driver_fail_lost(const struct xseg_context *context)
{
    return xseg_fail(XSEG_ERR_DEVICE_LOST,
                     "device %d is lost, %s; restart the process to use the device",
                     context->ordinal, atomic_load_explicit(&context->lost, memory_order_relaxed));
}

/* A context that could not be popped remains on the stack of the calling thread.  It is not popped
 * later, because by then the caller may have pushed the same context.  While it is current, no
 * other context is pushed on top of it. */
static _Thread_local struct {
    CUcontext context;
    bool skipped_push; /* the last xseg_driver_push_context() made no push */
} unpopped;

/* Whether any thread has such a context; while false, no thread checks its own. */
static atomic_bool any_unpopped;

xseg_status xseg_driver_push_context(struct xseg_context *context)
{
    CUcontext current = NULL;

    if (__builtin_expect(atomic_load_explicit(&any_unpopped, memory_order_relaxed), 0) &&
        unpopped.context == context->primary) {
        const xseg_status status =
            CALL_STATUS_ON(context, CtxGetCurrent, XSEG_ERR_DRIVER, 0, &current);

        unpopped.skipped_push = status == XSEG_OK && current == context->primary;
        if (status != XSEG_OK || unpopped.skipped_push)
            return status;
    }
    return CALL_STATUS_ON(context, CtxPushCurrent, XSEG_ERR_DRIVER, 0, context->primary);
}

/* Pop the context.  A pop that fails for an unknown reason is retried once, so that the context of
 * the caller becomes current again. */
void xseg_driver_pop_context(struct xseg_context *context)
{
    CUcontext popped = NULL;

    if (__builtin_expect(atomic_load_explicit(&any_unpopped, memory_order_relaxed), 0) &&
        unpopped.skipped_push) {
        unpopped.skipped_push = false;
        return;
    }
    if (CALL(context->driver, CtxPopCurrent, &popped) == CUDA_SUCCESS ||
        CALL(context->driver, CtxPopCurrent, &popped) == CUDA_SUCCESS)
        return;
    unpopped.context = context->primary;
    atomic_store_explicit(&any_unpopped, true, memory_order_relaxed);
}

/* --- Loading. --- */

#define DEFAULT_LIBRARY "libcuda.so.1"
#define SIMULATE        "set XSEG_DRIVER=libxseg-sim.so to simulate a GPU"
#define INSTALL         "install NVIDIA driver r525 (CUDA 12.0) or later, or " SIMULATE

typedef __typeof__(CUresult(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *)) *get_proc_address_function;

static xseg_status resolve_entry_points(struct xseg_driver *driver, const char *library)
{
    get_proc_address_function get_proc_address;
    void *symbol = dlsym(driver->library, "cuGetProcAddress_v2");

    if (symbol == NULL)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver has no cuGetProcAddress_v2, %s; " INSTALL,
                         library);
    memcpy(&get_proc_address, &symbol, sizeof(symbol));
    for (unsigned i = 0; i < XSEG_ENTRY_COUNT; i++) {
        CUdriverProcAddressQueryResult symbol_status = CU_GET_PROC_ADDRESS_SUCCESS;
        void *function = NULL;
        const int version = entry_points[i].version;
        const CUresult result = get_proc_address(entry_points[i].name, &function, version,
                                                 CU_GET_PROC_ADDRESS_LEGACY_STREAM, &symbol_status);

        if (result != CUDA_SUCCESS || function == NULL)
            return xseg_fail(XSEG_ERR_NO_DRIVER, "driver has no %s of CUDA %d.%d, %s; " INSTALL,
                             entry_points[i].name, version / 1000, version % 1000 / 10, library);
        memcpy((char *)driver + entry_points[i].offset, &function, sizeof(function));
    }
    return XSEG_OK;
}

/* The host of the simulated driver is simulated as well. */
static void resolve_simulated_host(struct xseg_driver *driver)
{
    void *symbol = dlsym(driver->library, "xseg_sim_meminfo");

    if (symbol != NULL)
        memcpy(&driver->simulated_meminfo, &symbol, sizeof(symbol));
}

size_t xseg_driver_simulated_meminfo(const struct xseg_driver *driver, char *text, size_t bytes)
{
    return driver->simulated_meminfo != NULL ? driver->simulated_meminfo(text, bytes) : 0;
}

static xseg_status fail_without_device(const char *library)
{
    return xseg_fail(XSEG_ERR_NO_DRIVER,
                     "driver has no visible device, %s; check CUDA_VISIBLE_DEVICES and nvidia-smi, "
                     "or " SIMULATE,
                     library);
}

static xseg_status initialize_driver(struct xseg_driver *driver, const char *library)
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
    xseg_status status = CALL_STATUS(driver, DriverGetVersion, &version);
    if (status != XSEG_OK)
        return status;
    if (version < 12000)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver is too old, %s with CUDA %d.%d; " INSTALL,
                         library, version / 1000, version % 1000 / 10);
    status = CALL_STATUS(driver, DeviceGetCount, &driver->devices);
    if (status != XSEG_OK)
        return status;
    if (driver->devices < 1)
        return fail_without_device(library);
    driver->poll_counts = calloc((size_t)driver->devices, sizeof(*driver->poll_counts));
    driver->kept_context = calloc((size_t)driver->devices, sizeof(CUcontext));
    if (driver->poll_counts == NULL || driver->kept_context == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, counters of driver calls");
    return XSEG_OK;
}

/* Choose the library to load.  *source: origin of its name, for messages; "" for the default */
static const char *choose_library(const char *argument, const char **source)
{
    const char *variable = argument == NULL ? secure_getenv("XSEG_DRIVER") : NULL;

    *source = "struct xseg_options";
    if (argument != NULL && argument[0] != '\0')
        return argument;
    *source = "XSEG_DRIVER";
    if (variable != NULL && variable[0] != '\0')
        return variable;
    *source = "";
    return DEFAULT_LIBRARY;
}

static xseg_status fail_to_load_library(const char *library, const char *source)
{
    const char *reason = dlerror();

    if (source[0] != '\0')
        return xseg_fail(XSEG_ERR_NO_DRIVER, "driver library of %s cannot be loaded, \"%s\", %s",
                         source, library, reason != NULL ? reason : "unknown error");
    return xseg_fail(XSEG_ERR_NO_DRIVER, "NVIDIA driver cannot be loaded, %s; " INSTALL,
                     reason != NULL ? reason : library);
}

xseg_status xseg_driver_open(const char *library, struct xseg_driver **out)
{
    struct xseg_driver *driver = calloc(1, sizeof(*driver));
    const char *source;
    xseg_status status;

    if (driver == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, driver table");
    library = choose_library(library, &source);
    driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        status = fail_to_load_library(library, source);
        goto free_driver;
    }
    status = resolve_entry_points(driver, library);
    resolve_simulated_host(driver);
    if (status == XSEG_OK)
        status = initialize_driver(driver, library);
    if (status != XSEG_OK)
        goto close_library;
    *out = driver;
    return XSEG_OK;

close_library:
    (void)dlclose(driver->library);
free_driver:
    free(driver->poll_counts);
    free(driver->kept_context);
    free(driver);
    return status;
}

void xseg_driver_close(struct xseg_driver *driver)
{
    (void)dlclose(driver->library);
    free(driver->poll_counts);
    free(driver->kept_context);
    free(driver);
}

int xseg_driver_device_count(const struct xseg_driver *driver)
{
    return driver->devices;
}

/* Sum up the calls of an entry point that are counted by device (struct
 * xseg_driver_poll_counts). */
static uint64_t count_polls(const struct xseg_driver *driver, size_t entry)
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
        calls[i].name = entry_points[i].name;
        calls[i].count =
            atomic_load_explicit(&driver->count[i], memory_order_relaxed) + count_polls(driver, i);
        calls[i].failed = atomic_load_explicit(&driver->failed[i], memory_order_relaxed);
    }
    return XSEG_ENTRY_COUNT;
}

bool xseg_driver_call_time(const struct xseg_driver *driver, size_t entry, uint64_t *nanoseconds)
{
    XSEG_ASSERT(entry < XSEG_ENTRY_COUNT);
    *nanoseconds = atomic_load_explicit(&driver->nanoseconds[entry], memory_order_relaxed);
    return xseg_driver_is_timed((enum xseg_entry)entry);
}
