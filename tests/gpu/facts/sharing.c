/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/gpu/facts/child.h"

/* --- FACT-SHR: memory of other processes, by file descriptor. --- */

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemGenericAllocationHandle create_exportable(size_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.requestedHandleTypes = FD;
    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static int export_fd(CUmemGenericAllocationHandle handle)
{
    int fd = -1;

    ASSERT_OK(cu.MemExportToShareableHandle(&fd, handle, FD, 0));
    ASSERT(fd >= 0);
    return fd;
}

static CUmemGenericAllocationHandle import_fd(int fd)
{
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD));
    return handle;
}

FACT("FACT-SHR-1", each_export_returns_a_new_descriptor, EXPORT)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int first = export_fd(handle), second = export_fd(handle);

    ASSERT(first != second);
    ASSERT(fcntl(first, F_GETFD) >= 0 && fcntl(second, F_GETFD) >= 0);
    ASSERT_EQUAL(close(first), 0);
    ASSERT_EQUAL(close(second), 0);
    ASSERT_OK(cu.MemRelease(handle));
}

FACT("FACT-SHR-2", only_exportable_memory_is_exported, EXPORT)
{
    const CUmemGenericAllocationHandle handle = create(GRANULE);
    int fd = -1;

    ASSERT_FAILS(cu.MemExportToShareableHandle(&fd, handle, FD, 0));
    ASSERT_OK(cu.MemRelease(handle));
}

FACT("FACT-SHR-3", an_import_outlives_its_descriptor, EXPORT)
{
    const CUmemGenericAllocationHandle handle = create_exportable(2 * GRANULE);
    const int fd = export_fd(handle);
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle imported = import_fd(fd);

    ASSERT_EQUAL(close(fd), 0);
    ASSERT_OK(cu.MemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemMap(base + 2 * GRANULE, 2 * GRANULE, 0, imported, 0));
    /* The mapping retains the memory. */
    ASSERT_OK(cu.MemRelease(imported));
    ASSERT_OK(allow(base, 2 * GRANULE));
    ASSERT_EQUAL(rights_of(base + 2 * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base + 2 * GRANULE, 2 * GRANULE));
    fill(base, 2 * GRANULE, 0x33);
    ASSERT_EQUAL(byte_at(base + 4 * GRANULE - 1), 0x33);
    fill(base + 2 * GRANULE, 2 * GRANULE, 0x44);
    ASSERT_EQUAL(byte_at(base), 0x44);
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-SHR-4", a_mapping_longer_than_the_import_fails, EXPORT)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int fd = export_fd(handle);
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle imported = import_fd(fd);

    ASSERT_EQUAL(close(fd), 0);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, imported, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT(!is_mapped(base));
    ASSERT_OK(cu.MemRelease(imported));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

FACT("FACT-SHR-5", importers_and_descriptors_retain_exported_memory, EXPORT)
{
    const size_t free_before = free_memory();

    require_memory(64 * MIB);
    const CUmemGenericAllocationHandle handle = create_exportable(64 * MIB);
    const int fd = export_fd(handle);
    const CUdeviceptr base = reserve(64 * MIB);
    /* The exporter releases the memory; the open descriptor retains it. */
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT(free_memory() + 64 * MIB <= free_before);
    const CUmemGenericAllocationHandle imported = import_fd(fd);
    ASSERT_EQUAL(close(fd), 0);
    ASSERT_OK(cu.MemMap(base, 64 * MIB, 0, imported, 0));
    ASSERT_OK(cu.MemRelease(imported));
    ASSERT_OK(allow(base, 64 * MIB));
    fill(base + 64 * MIB - GRANULE, GRANULE, 0x55);
    ASSERT(free_memory() + 64 * MIB <= free_before);
    ASSERT_EQUAL(byte_at(base + 64 * MIB - 1), 0x55);
    unmap_and_free(base, 64 * MIB);
    ASSERT(free_memory() + SLACK >= free_before);
}

FACT("FACT-SHR-6", a_descriptor_of_another_kind_is_rejected, EXPORT)
{
    CUmemGenericAllocationHandle handle = 0;
    int ends[2];

    ASSERT_EQUAL(pipe(ends), 0);
    ASSERT_FAILS(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)ends[0], FD));
    ASSERT_EQUAL(handle, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    /* The failed import sets no sticky error. */
    ASSERT_OK(cu.CtxSynchronize());
}

/* The child of FACT-SHR-7: prints the UUID of its device, reads 7 from memory of the parent process, and writes 8.  Returns
 * the exit status: 0 on success. */
int use_shared(void)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    CUuuid uuid;
    unsigned char byte = 0;

    if (cu.Init(0) != CUDA_SUCCESS || cu.DevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS ||
        cu.CtxPushCurrent(primary) != CUDA_SUCCESS || cu.DeviceGetUuid(&uuid, 0) != CUDA_SUCCESS ||
        write(STDOUT_FILENO, uuid.bytes, sizeof(uuid.bytes)) != (ssize_t)sizeof(uuid.bytes))
        return 1;
    if (cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)CHILD_FD, FD) != CUDA_SUCCESS ||
        close(CHILD_FD) != 0 || cu.MemAddressReserve(&base, GRANULE, 0, 0, 0) != CUDA_SUCCESS ||
        cu.MemMap(base, GRANULE, 0, handle, 0) != CUDA_SUCCESS ||
        allow(base, GRANULE) != CUDA_SUCCESS || cu.MemcpyDtoH(&byte, base, 1) != CUDA_SUCCESS ||
        byte != 7)
        return 2;
    return cu.MemsetD8(base, 8, GRANULE) != CUDA_SUCCESS || cu.CtxSynchronize() != CUDA_SUCCESS;
}

FACT("FACT-SHR-7", another_process_shares_contents_and_device_uuid, EXPORT)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int fd = export_fd(handle);
    const CUdeviceptr base = reserve(GRANULE);
    struct child_result result;
    CUuuid uuid;

    ASSERT_OK(cu.DeviceGetUuid(&uuid, 0));
    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, GRANULE));
    fill(base, GRANULE, 7);
    child_run((const char *const[]){"--use-shared", NULL}, fd, &result);
    ASSERT_EQUAL(result.status, 0);
    ASSERT_EQUAL(result.bytes, sizeof(uuid));
    ASSERT(memcmp(&uuid, result.output, sizeof(uuid)) == 0);
    ASSERT_EQUAL(close(fd), 0);
    ASSERT_EQUAL(byte_at(base + GRANULE - 1), 8);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

FACT("FACT-SHR-8", two_devices_have_two_uuids, TWO_DEVICES)
{
    CUuuid first, second;

    ASSERT_OK(cu.DeviceGetUuid(&first, 0));
    ASSERT_OK(cu.DeviceGetUuid(&second, 1));
    ASSERT(memcmp(&first, &second, sizeof(first)) != 0);
}
