/* SPDX-License-Identifier: MIT */
#include "src/tools/driver/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/driver/simulator.h"

/* Where each entry point's address goes. */
static const struct {
    const char *name;
    size_t offset;
} entries[] = {
#define PLACE(member, name, parameters) \
    [CUDA_ENTRY_##member] = {(name), offsetof(struct cuda, member)},
    CUDA_ENTRIES(PLACE)
#undef PLACE
};

const char *cuda_driver_of(const char *text)
{
    if (!text || strcmp(text, "sim") == 0)
        return CUDA_SIMULATED;
    return strcmp(text, "cuda") == 0 ? "libcuda.so.1" : text;
}

const char *cuda_library(const char *driver)
{
    return driver == CUDA_SIMULATED ? simulator_path() : driver;
}

const char *cuda_entry_name(enum cuda_entry entry)
{
    return entries[entry].name;
}

static bool resolve(struct cuda *cuda, char *problem, size_t problem_bytes)
{
    for (size_t i = 0; i < CUDA_ENTRY_COUNT; i++) {
        void *symbol = dlsym(cuda->library, entries[i].name);

        if (!symbol) {
            (void)snprintf(problem, problem_bytes, "the driver has no entry point %s",
                           entries[i].name);
            return false;
        }
        /* A function's address is not an object's in C, so it is copied byte by byte. */
        memcpy((char *)cuda + entries[i].offset, &symbol, sizeof(symbol));
    }
    return true;
}

bool cuda_load(struct cuda *cuda, const char *driver, char *problem, size_t problem_bytes)
{
    const char *library = cuda_library(driver);

    *cuda = (struct cuda){.library = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL};
    if (!library)
        (void)snprintf(problem, problem_bytes, "the simulator is not open");
    else if (!cuda->library)
        (void)snprintf(problem, problem_bytes, "the driver cannot be loaded: %s", dlerror());
    else if (resolve(cuda, problem, problem_bytes))
        return true;
    cuda_close(cuda);
    return false;
}

int cuda_enter(struct cuda *cuda, int ordinal, const char **call)
{
    int result;

    *call = "cuInit";
    if ((result = cuda->init(0)) != 0)
        return result;
    *call = "cuDeviceGet";
    if ((result = cuda->device_get(&cuda->device, ordinal)) != 0)
        return result;
    *call = "cuDevicePrimaryCtxRetain";
    if ((result = cuda->context_retain(&cuda->context, cuda->device)) != 0)
        return result;
    cuda->retained = true;
    *call = "cuCtxPushCurrent";
    result = cuda->context_push(cuda->context);
    cuda->pushed = result == 0;
    return result;
}

void cuda_close(struct cuda *cuda)
{
    void *context;

    if (cuda->pushed)
        (void)cuda->context_pop(&context);
    if (cuda->retained)
        (void)cuda->context_release(cuda->device);
    if (cuda->library)
        (void)dlclose(cuda->library);
    *cuda = (struct cuda){0};
}
