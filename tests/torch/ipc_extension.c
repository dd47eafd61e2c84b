/* SPDX-License-Identifier: MIT */
/*
 * A compiled extension of an engine, which links the CUDA runtime and the driver (legacy_ipc.py compiles it).
 *
 *   send_*, open_*   legacy IPC, as the custom all-reduce of vLLM: the start of the reservation, a handle of that address,
 *                    and the offset; or as SGLang's: the start of the physical page
 *   export_*, map_*  SGLang's newer path: the allocation handle of an address as a file descriptor
 *
 * All functions return an error code of CUDA.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT           __attribute__((visibility("default")))
#define RANGE_START_ADDR 11 /* CU_POINTER_ATTRIBUTE_RANGE_START_ADDR */
#define LAZY_PEER_ACCESS 1u
#define COPY_ANY         4 /* cudaMemcpyDefault */
#define POSIX_FD         1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

struct handle {
    unsigned char bytes[64];
};

struct access {
    int location_type, device, flags;
};

int cudaIpcGetMemHandle(struct handle *handle, void *ptr);
int cudaIpcOpenMemHandle(void **out, struct handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *ptr);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cuPointerGetAttribute(void *data, int attribute, uint64_t ptr);
int cuMemRetainAllocationHandle(uint64_t *handle, void *ptr);
int cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags);
int cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type);
int cuMemRelease(uint64_t handle);
int cuMemAddressReserve(uint64_t *out, size_t bytes, size_t alignment, uint64_t near,
                        unsigned long long flags);
int cuMemAddressFree(uint64_t ptr, size_t bytes);
int cuMemMap(uint64_t ptr, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemUnmap(uint64_t ptr, size_t bytes);
int cuMemSetAccess(uint64_t ptr, size_t bytes, const struct access *access, size_t count);
int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t ptr);

EXPORT int send_address(void *ptr, struct handle *handle, uint64_t *offset)
{
    void *base = NULL;
    const int result = cuPointerGetAttribute(&base, RANGE_START_ADDR, (uintptr_t)ptr);

    *offset = (uint64_t)((char *)ptr - (char *)base);
    return result != 0 ? result : cudaIpcGetMemHandle(handle, base);
}

EXPORT int send_page(void *ptr, struct handle *handle, uint64_t *offset)
{
    uint64_t base = 0;
    size_t bytes = 0;
    const int result = cuMemGetAddressRange_v2(&base, &bytes, (uintptr_t)ptr);

    *offset = (uintptr_t)ptr - base;
    return result != 0 ? result : cudaIpcGetMemHandle(handle, (void *)(uintptr_t)base);
}

EXPORT int open_address(const struct handle *handle, void **base)
{
    return cudaIpcOpenMemHandle(base, *handle, LAZY_PEER_ACCESS);
}

EXPORT int close_address(void *base)
{
    return cudaIpcCloseMemHandle(base);
}

EXPORT int copy(void *to, const void *from, size_t bytes)
{
    return cudaMemcpy(to, from, bytes, COPY_ANY);
}

/* Exports the physical page of an address as a file descriptor, and returns its start and size. */
EXPORT int export_page(void *ptr, int *descriptor, uint64_t *base, size_t *bytes)
{
    uint64_t handle = 0;
    int result = cuMemGetAddressRange_v2(base, bytes, (uintptr_t)ptr);

    if (result == 0)
        result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)*base);
    if (result != 0)
        return result;
    result = cuMemExportToShareableHandle(descriptor, handle, POSIX_FD, 0);
    (void)cuMemRelease(handle);
    return result;
}

EXPORT int map_page(int descriptor, size_t bytes, uint64_t *out)
{
    const struct access access = {1 /* device */, 0, 3 /* read and write */};
    uint64_t handle = 0;
    int result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, POSIX_FD);

    if (result == 0)
        result = cuMemAddressReserve(out, bytes, 0, 0, 0);
    if (result == 0)
        result = cuMemMap(*out, bytes, 0, handle, 0);
    if (result == 0)
        result = cuMemSetAccess(*out, bytes, &access, 1);
    (void)cuMemRelease(handle);
    return result;
}

EXPORT int unmap_page(uint64_t ptr, size_t bytes)
{
    const int result = cuMemUnmap(ptr, bytes);

    return result != 0 ? result : cuMemAddressFree(ptr, bytes);
}
