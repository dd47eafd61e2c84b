/* SPDX-License-Identifier: MIT */
#include "tests/support/cudart/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

struct driver driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t loaded;

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[DEVICES_MAX];

static __thread int device;
static __thread bool is_current; /* the device's context */
static __thread cudaError_t last_error;

/* Replaces functions that the driver lacks. */
static CUresult not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void resolve(const char *name, int version, void *member)
{
    CUresult (*const missing)(void) = not_supported;
    void *address = NULL;

    if (driver.get_address(name, &address, version, 0, NULL) == CUDA_SUCCESS && address != NULL)
        memcpy(member, &address, sizeof(address));
    else
        memcpy(member, &missing, sizeof(missing));
}

static void load_functions(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;

    loaded = cudaErrorInitializationError;
    if (symbol == NULL)
        return;
    memcpy(&driver.get_address, &symbol, sizeof(symbol));
#define RESOLVE(name) resolve(#name, DRIVER_VERSION, &driver.name);
    DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    /* In version 13.0, this entry point has an argument, unlike the declaration in cuda.h. */
    resolve("cuCtxSynchronize", 2000, &driver.cuCtxSynchronize);
    symbol = dlsym(library, "xseg_sim_launch");
    memcpy(&driver.launch, &symbol, sizeof(symbol));
    loaded = to_error(driver.cuInit(0));
}

cudaError_t load_driver(void)
{
    (void)pthread_once(&once, load_functions);
    return loaded;
}

cudaError_t primary_context(int ordinal, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;

    if (ordinal < 0 || ordinal >= DEVICES_MAX)
        return cudaErrorInvalidDevice;
    (void)pthread_mutex_lock(&contexts_lock);
    if (contexts[ordinal] == NULL)
        result = driver.cuDevicePrimaryCtxRetain(&contexts[ordinal], ordinal);
    *out = contexts[ordinal];
    (void)pthread_mutex_unlock(&contexts_lock);
    return to_error(result);
}

int current_device(void)
{
    return device;
}

cudaError_t set_device(int new_device)
{
    CUcontext context;
    cudaError_t error = primary_context(new_device, &context);

    if (error == cudaSuccess)
        error = to_error(driver.cuCtxSetCurrent(context));
    if (error == cudaSuccess) {
        device = new_device;
        is_current = true;
    }
    return error;
}

cudaError_t enter_context(void)
{
    const cudaError_t error = load_driver();

    return error != cudaSuccess || is_current ? error : set_device(device);
}

cudaError_t record_error(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

EXPORT cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const cudaError_t error = load_driver();

    if (error != cudaSuccess)
        return record_error(error);
    /* PyTorch passes the version of its headers, which may be later than that of the driver. */
    if (version > DRIVER_VERSION)
        version = DRIVER_VERSION;
    *function = NULL;
    (void)driver.get_address(symbol, function, (int)version, flags, &result);
    if (status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)result;
    return cudaSuccess;
}
