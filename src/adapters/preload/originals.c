/* SPDX-License-Identifier: MIT */
#include "originals.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const char *name;
    size_t place;
};

/* The first of each is what a runtime or a driver has in any case. */
#define ENTRY(name, member)                    \
    {                                          \
        name, offsetof(struct runtime, member) \
    }
static const struct entry of_runtime[] = {
    ENTRY("cudaMalloc", malloc),
    ENTRY("cudaMallocAsync", malloc_async),
    ENTRY("cudaFree", free),
    ENTRY("cudaFreeAsync", free_async),
    ENTRY("cudaMemGetInfo", mem_get_info),
    ENTRY("cudaGetDevice", get_device),
    ENTRY("cudaDeviceSynchronize", synchronize),
    ENTRY("cudaStreamCreateWithFlags", stream_create),
    ENTRY("cudaStreamDestroy", stream_destroy),
    ENTRY("cudaStreamIsCapturing", stream_is_capturing),
};
#undef ENTRY
#define ENTRY(name, member)                   \
    {                                         \
        name, offsetof(struct driver, member) \
    }
static const struct entry of_driver[] = {
    ENTRY("cuMemAlloc_v2", mem_alloc),
    ENTRY("cuMemFree_v2", mem_free),
    ENTRY("cuMemGetInfo_v2", mem_get_info),
    ENTRY("cuCtxGetCurrent", get_current),
    ENTRY("cuCtxGetDevice", get_device),
    ENTRY("cuCtxSynchronize", synchronize),
    ENTRY("cuDevicePrimaryCtxRetain", primary_retain),
    ENTRY("cuDevicePrimaryCtxRelease_v2", primary_release),
    ENTRY("cuStreamCreate", stream_create),
    ENTRY("cuStreamDestroy_v2", stream_destroy),
};
#undef ENTRY
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct runtime runtime;
static struct driver driver;
static atomic_bool has_runtime, has_driver;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A library that is loaded already and has the symbol; RTLD_NEXT where all may see it. */
static void *library_with(const char *symbol, const char *const *names, size_t count)
{
    if (dlsym(RTLD_NEXT, symbol))
        return RTLD_NEXT;
    for (size_t i = 0; i < count; i++) {
        void *library = names[i] ? dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (library && dlsym(library, symbol))
            return library; /* held from now on: its functions are called */
        if (library)
            (void)dlclose(library);
    }
    return NULL;
}

static void find(void *out, atomic_bool *is_there, const struct entry *entries, size_t entry_count,
                 const char *const *names, size_t name_count)
{
    void *library;

    (void)pthread_mutex_lock(&lock);
    library = atomic_load(is_there) ? NULL : library_with(entries[0].name, names, name_count);
    for (size_t i = 0; library && i < entry_count; i++) {
        void *symbol = dlsym(library, entries[i].name);
        memcpy((char *)out + entries[i].place, &symbol,
               sizeof(symbol)); /* C has no cast for this */
    }
    if (library)
        atomic_store(is_there, true);
    (void)pthread_mutex_unlock(&lock);
}

const struct runtime *runtime_found(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so"};

    if (!atomic_load_explicit(&has_runtime, memory_order_acquire))
        find(&runtime, &has_runtime, of_runtime, COUNT(of_runtime), names, COUNT(names));
    return atomic_load(&has_runtime) ? &runtime : NULL;
}

const struct driver *driver_found(void)
{
    const char *names[] = {secure_getenv("XSEG_DRIVER"), "libcuda.so.1", "libcuda.so"};

    if (!atomic_load_explicit(&has_driver, memory_order_acquire))
        find(&driver, &has_driver, of_driver, COUNT(of_driver), names, COUNT(names));
    return atomic_load(&has_driver) ? &driver : NULL;
}
