/* SPDX-License-Identifier: MIT */
#include "tests/support/runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_SUPPORTED 801

static int last_error;

static int keep(int result)
{
    if (result != 0)
        last_error = result;
    return result;
}

/* As the runtime does: from the driver that it opens itself, past whatever stands before that. */
static void resolve(const char *name, void *function)
{
    static void *driver;
    void *symbol;

    if (!driver)
        driver = dlopen(getenv("XSEG_DRIVER"), RTLD_NOW);
    symbol = driver ? dlsym(driver, name) : NULL;
    if (!symbol) {
        (void)fprintf(stderr, "the stand-in of the runtime finds no %s\n", name);
        abort();
    }
    memcpy(function, &symbol, sizeof(symbol));
}

static void start(void)
{
    static int is_started;
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
    void *context = NULL;

    if (is_started)
        return;
    is_started = 1;
    resolve("cuInit", &init);
    resolve("cuDevicePrimaryCtxRetain", &retain);
    resolve("cuCtxSetCurrent", &set);
    if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0)
        abort();
}

int cudaMalloc(void **out, size_t bytes)
{
    int (*call)(void **, size_t);

    start();
    resolve("cuMemAlloc_v2", &call);
    return keep(call(out, bytes));
}

int cudaMallocAsync(void **out, size_t bytes, struct CUstream_st *stream)
{
    (void)out;
    (void)bytes;
    (void)stream;
    return keep(NOT_SUPPORTED);
}

int cudaFree(void *ptr)
{
    int (*call)(void *);

    start();
    resolve("cuMemFree_v2", &call);
    if (ptr && cudaDeviceSynchronize() != 0)
        return last_error;
    return ptr ? keep(call(ptr)) : 0;
}

int cudaFreeAsync(void *ptr, struct CUstream_st *stream)
{
    (void)ptr;
    (void)stream;
    return keep(NOT_SUPPORTED);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    int (*call)(size_t *, size_t *);

    start();
    resolve("cuMemGetInfo_v2", &call);
    return keep(call(free_bytes, total));
}

int cudaGetDevice(int *device)
{
    start();
    *device = 0;
    return 0;
}

int cudaDeviceSynchronize(void)
{
    int (*call)(void);

    start();
    resolve("cuCtxSynchronize", &call);
    return keep(call());
}

int cudaStreamCreateWithFlags(struct CUstream_st **out, unsigned flags)
{
    int (*call)(struct CUstream_st **, unsigned);

    start();
    resolve("cuStreamCreate", &call);
    return keep(call(out, flags));
}

int cudaStreamDestroy(struct CUstream_st *stream)
{
    int (*call)(struct CUstream_st *);

    resolve("cuStreamDestroy_v2", &call);
    return keep(call(stream));
}

int cudaStreamIsCapturing(struct CUstream_st *stream, int *status)
{
    int (*call)(struct CUstream_st *, int *);

    resolve("cuStreamIsCapturing", &call);
    return keep(call(stream, status));
}

int cudaGetLastError(void)
{
    int result = last_error;

    last_error = 0;
    return result;
}
