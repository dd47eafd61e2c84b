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

/* In the place of a function that the driver lacks, whatever its arguments. */
static CUresult absent(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void resolve(const char *name, int version, void *member)
{
    CUresult (*const nothing)(void) = absent;
    void *found = NULL;

    if (driver.get_address(name, &found, version, 0, NULL) == CUDA_SUCCESS && found != NULL)
        memcpy(member, &found, sizeof(found));
    else
        memcpy(member, &nothing, sizeof(nothing));
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;

    loaded = cudaErrorInitializationError;
    if (found == NULL)
        return;
    memcpy(&driver.get_address, &found, sizeof(found));
#define RESOLVE(name) resolve(#name, DRIVER_VERSION, &driver.name);
    DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    /* From 13.0 on the name denotes a call with an argument, but not in cuda.h. */
    resolve("cuCtxSynchronize", 2000, &driver.cuCtxSynchronize);
    found = dlsym(library, "xseg_sim_launch");
    memcpy(&driver.launch, &found, sizeof(found));
    loaded = error_of(driver.cuInit(0));
}

cudaError_t begin(void)
{
    (void)pthread_once(&once, load);
    return loaded;
}

cudaError_t context_of(int of, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;

    if (of < 0 || of >= DEVICES_MAX)
        return cudaErrorInvalidDevice;
    (void)pthread_mutex_lock(&contexts_lock);
    if (contexts[of] == NULL)
        result = driver.cuDevicePrimaryCtxRetain(&contexts[of], of);
    *out = contexts[of];
    (void)pthread_mutex_unlock(&contexts_lock);
    return error_of(result);
}

int device_here(void)
{
    return device;
}

cudaError_t device_set(int wanted)
{
    CUcontext context;
    cudaError_t error = context_of(wanted, &context);

    if (error == cudaSuccess)
        error = error_of(driver.cuCtxSetCurrent(context));
    if (error == cudaSuccess) {
        device = wanted;
        is_current = true;
    }
    return error;
}

cudaError_t enter(void)
{
    const cudaError_t error = begin();

    return error != cudaSuccess || is_current ? error : device_set(device);
}

cudaError_t answer(cudaError_t error)
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
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const cudaError_t error = begin();

    if (error != cudaSuccess)
        return answer(error);
    /* PyTorch asks with the version of its headers, which may be later than the driver. */
    if (version > DRIVER_VERSION)
        version = DRIVER_VERSION;
    *function = NULL;
    (void)driver.get_address(symbol, function, (int)version, flags, &found);
    if (status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return cudaSuccess;
}
