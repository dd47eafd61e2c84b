/* SPDX-License-Identifier: MIT */
#include "originals.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const char *name;
    size_t place;
};

/* The first entry of each table exists in every runtime or driver. */
#define ENTRY(name, member)                    \
    {                                          \
        name, offsetof(struct runtime, member) \
    }
static const struct entry of_runtime[] = {
    ENTRY("cudaMalloc", malloc),
    ENTRY("cudaMallocAsync", malloc_async),
    ENTRY("cudaMallocAsync_ptsz", malloc_async_ptsz),
    ENTRY("cudaFree", free),
    ENTRY("cudaFreeAsync", free_async),
    ENTRY("cudaFreeAsync_ptsz", free_async_ptsz),
    ENTRY("cudaMemGetInfo", mem_get_info),
    ENTRY("cudaGetDevice", get_device),
    ENTRY("cudaSetDevice", set_device),
    ENTRY("cudaDeviceSynchronize", synchronize),
    ENTRY("cudaDeviceReset", device_reset),
    ENTRY("cudaThreadExit", thread_exit),
    ENTRY("cudaStreamDestroy", stream_destroy),
    ENTRY("cudaGetDriverEntryPoint", entry_point),
    ENTRY("cudaGetDriverEntryPoint_ptsz", entry_point_ptsz),
    ENTRY("cudaGetDriverEntryPointByVersion", entry_point_of),
    ENTRY("cudaGetDriverEntryPointByVersion_ptsz", entry_point_of_ptsz),
};
#undef ENTRY
#define ENTRY(name, member)                   \
    {                                         \
        name, offsetof(struct driver, member) \
    }
static const struct entry of_driver[] = {
    ENTRY("cuMemAlloc_v2", mem_alloc),
    ENTRY("cuMemAllocAsync", mem_alloc_async),
    ENTRY("cuMemAllocAsync_ptsz", mem_alloc_async_ptsz),
    ENTRY("cuMemFree_v2", mem_free),
    ENTRY("cuMemFreeAsync", mem_free_async),
    ENTRY("cuMemFreeAsync_ptsz", mem_free_async_ptsz),
    ENTRY("cuMemGetInfo_v2", mem_get_info),
    ENTRY("cuCtxGetCurrent", get_current),
    ENTRY("cuCtxSetCurrent", set_current),
    ENTRY("cuCtxPushCurrent_v2", push_current),
    ENTRY("cuCtxPopCurrent_v2", pop_current),
    ENTRY("cuCtxGetDevice", get_device),
    ENTRY("cuCtxGetId", get_id),
    ENTRY("cuCtxSynchronize", synchronize),
    ENTRY("cuDevicePrimaryCtxRetain", primary_retain),
    ENTRY("cuDevicePrimaryCtxRelease_v2", primary_release),
    ENTRY("cuDevicePrimaryCtxGetState", primary_state),
    ENTRY("cuDevicePrimaryCtxReset", primary_reset),
    ENTRY("cuDevicePrimaryCtxReset_v2", primary_reset_v2),
    ENTRY("cuStreamCreate", stream_create),
    ENTRY("cuStreamDestroy_v2", stream_destroy),
    ENTRY("cuStreamSynchronize", stream_synchronize),
    ENTRY("cuStreamIsCapturing", stream_is_capturing),
    ENTRY("cuThreadExchangeStreamCaptureMode", exchange_mode),
    ENTRY("cuStreamGetCtx", stream_get_context),
    ENTRY("cuGetProcAddress", proc_address),
    ENTRY("cuGetProcAddress_v2", proc_address_v2),
};
#undef ENTRY
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A library that is loaded already and has the symbol; RTLD_NEXT if the symbol is in the global scope. */
static void *library_with(const char *symbol, const char *const *names, size_t count)
{
    if (dlsym(RTLD_NEXT, symbol))
        return RTLD_NEXT;
    for (size_t i = 0; i < count; i++) {
        void *library = names[i] ? dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (library && dlsym(library, symbol))
            return library; /* stays open, because its functions are called */
        if (library)
            (void)dlclose(library);
    }
    return NULL;
}

/*
 * Look the entries up and publish the table in `found`.  Threads that look up at the same time find the same functions;
 * the first table is published, the others are discarded.
 */
static void find(_Atomic(void *) *found, size_t bytes, const struct entry *entries,
                 size_t entry_count, const char *const *names, size_t name_count)
{
    void *library = library_with(entries[0].name, names, name_count), *none = NULL;
    char *table = library ? calloc(1, bytes) : NULL;

    for (size_t i = 0; table && i < entry_count; i++) {
        void *symbol = dlsym(library, entries[i].name);
        memcpy(table + entries[i].place, &symbol, sizeof(symbol)); /* C has no cast for this */
    }
    if (table && !atomic_compare_exchange_strong(found, &none, table))
        free(table);
}

const struct runtime *runtime_found(void)
{
    static _Atomic(void *) found;
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so"};

    if (!atomic_load_explicit(&found, memory_order_acquire))
        find(&found, sizeof(struct runtime), of_runtime, COUNT(of_runtime), names, COUNT(names));
    return atomic_load(&found);
}

const struct driver *driver_found(void)
{
    static _Atomic(void *) found;
    const char *names[] = {secure_getenv("XSEG_DRIVER"), "libcuda.so.1", "libcuda.so"};

    if (!atomic_load_explicit(&found, memory_order_acquire))
        find(&found, sizeof(struct driver), of_driver, COUNT(of_driver), names, COUNT(names));
    return atomic_load(&found);
}
