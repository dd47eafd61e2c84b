/* SPDX-License-Identifier: MIT */
#include "originals.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const char *name;
    size_t offset;
};

/* The first entry of each table exists in every runtime or driver. */
#define ENTRY(name, member)                    \
    {                                          \
        name, offsetof(struct runtime, member) \
    }
static const struct entry runtime_entries[] = {
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
    ENTRY("cudaGetDriverEntryPointByVersion", entry_point_by_version),
    ENTRY("cudaGetDriverEntryPointByVersion_ptsz", entry_point_by_version_ptsz),
};
#undef ENTRY
#define ENTRY(name, member)                   \
    {                                         \
        name, offsetof(struct driver, member) \
    }
static const struct entry driver_entries[] = {
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

/* Find a loaded library that has a symbol.  Returns RTLD_NEXT if the symbol is in the global scope. */
static void *find_library(const char *symbol, const char *const *names, size_t count)
{
    if (dlsym(RTLD_NEXT, symbol))
        return RTLD_NEXT;
    for (size_t i = 0; i < count; i++) {
        void *library = names[i] ? dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (library && dlsym(library, symbol))
            return library; /* not closed, because its functions are called */
        if (library)
            (void)dlclose(library);
    }
    return NULL;
}

/*
 * Look up the entries and publish their table in `found`.  Concurrent lookups find the same functions; the first table is
 * published, the others are discarded.
 */
static void find_functions(_Atomic(void *) *found, size_t bytes, const struct entry *entries,
                           size_t entry_count, const char *const *names, size_t name_count)
{
    void *library = find_library(entries[0].name, names, name_count), *expected = NULL;
    char *table = library ? calloc(1, bytes) : NULL;

    for (size_t i = 0; table && i < entry_count; i++) {
        void *symbol = dlsym(library, entries[i].name);
        /* ISO C has no cast to a function pointer. */
        memcpy(table + entries[i].offset, &symbol, sizeof(symbol));
    }
    if (table && !atomic_compare_exchange_strong(found, &expected, table))
        free(table);
}

const struct runtime *get_runtime(void)
{
    static _Atomic(void *) found;
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so"};

    if (!atomic_load_explicit(&found, memory_order_acquire))
        find_functions(&found, sizeof(struct runtime), runtime_entries, COUNT(runtime_entries),
                       names, COUNT(names));
    return atomic_load(&found);
}

const struct driver *get_driver(void)
{
    static _Atomic(void *) found;
    const char *names[] = {secure_getenv("XSEG_DRIVER"), "libcuda.so.1", "libcuda.so"};

    if (!atomic_load_explicit(&found, memory_order_acquire))
        find_functions(&found, sizeof(struct driver), driver_entries, COUNT(driver_entries), names,
                       COUNT(names));
    return atomic_load(&found);
}
