/* SPDX-License-Identifier: MIT */
/* Queries of the driver by libraries that register memory, and their results. */
#include "tests/gpu/facts/driver.h"

#include <fcntl.h>
#include <unistd.h>

/* --- FACT-RDMA: memory that libraries register. --- */

#define DMA_BUF CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

/* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE. */
enum { RDMA_CAPABLE = 15, HOST_PAGE = 4096 };

static CUmemGenericAllocationHandle create_for_rdma(size_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

/* Access is set, and memory unmapped, by one call per mapping, because other facts cover calls for several mappings. */
static void back_with(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    ASSERT_OK(cu.MemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(allow(address, bytes));
}

static void back_for_rdma(CUdeviceptr address, size_t bytes)
{
    back_with(address, bytes, create_for_rdma(bytes));
}

/* Memory without the flag. */
static void back_without_rdma(CUdeviceptr address, size_t bytes)
{
    back_with(address, bytes, create(bytes));
}

static CUresult handle_of(CUdeviceptr address, size_t bytes, int *file)
{
    return cu.MemGetHandleForAddressRange(file, address, bytes, DMA_BUF, 0);
}

static unsigned is_capable(CUdeviceptr address)
{
    unsigned value = 2;

    ASSERT_OK(cu.PointerGetAttribute(&value, (CUpointer_attribute)RDMA_CAPABLE, address));
    return value;
}

FACT("FACT-RDMA-1", an_address_range_is_one_mapping, VMM)
{
    const CUdeviceptr base = reserve(3 * GRANULE);
    CUdeviceptr start = 0;
    size_t bytes = 0;

    back_without_rdma(base, GRANULE);
    back_without_rdma(base + GRANULE, 2 * GRANULE);
    ASSERT_OK(cu.MemGetAddressRange(&start, &bytes, base + 2 * GRANULE + 5));
    ASSERT_EQUAL(start, base + GRANULE);
    ASSERT_EQUAL(bytes, 2 * GRANULE);
    ASSERT_OK(cu.MemGetAddressRange(&start, &bytes, base + 5));
    ASSERT_EQUAL(start, base);
    ASSERT_EQUAL(bytes, GRANULE);
    UNBACK(base, 1, 2);
}

FACT("FACT-RDMA-2", memory_can_be_created_with_the_rdma_flag, VMM | RDMA)
{
    const CUdeviceptr base = reserve(GRANULE);

    back_for_rdma(base, GRANULE);
    fill(base, GRANULE, 0x66);
    ASSERT_EQUAL(byte_at(base + GRANULE - 1), 0x66);
    UNBACK(base, 1);
}

FACT("FACT-RDMA-3", an_address_reports_whether_it_is_rdma_capable, VMM | RDMA)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    back_for_rdma(base, GRANULE);
    back_without_rdma(base + GRANULE, GRANULE);
    ASSERT_EQUAL(is_capable(base), 1);
    ASSERT_EQUAL(is_capable(base + GRANULE), 0);
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-4", equal_mappings_share_one_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    int file = -1;

    back_for_rdma(base, GRANULE);
    back_for_rdma(base + GRANULE, 2 * GRANULE);
    back_for_rdma(base + 3 * GRANULE, GRANULE);
    ASSERT_OK(handle_of(base, 4 * GRANULE, &file));
    ASSERT_EQUAL(close(file), 0);
    ASSERT_OK(handle_of(base + HOST_PAGE, 3 * GRANULE, &file));
    ASSERT_EQUAL(close(file), 0);
    UNBACK(base, 1, 2, 1);
}

FACT("FACT-RDMA-5", a_descriptor_is_as_long_as_its_range, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    int file = -1;

    back_for_rdma(base, 2 * GRANULE);
    ASSERT_OK(handle_of(base, GRANULE + HOST_PAGE, &file));
    ASSERT_EQUAL(lseek(file, 0, SEEK_END), GRANULE + HOST_PAGE);
    ASSERT((fcntl(file, F_GETFD) & FD_CLOEXEC) != 0);
    ASSERT_EQUAL(close(file), 0);
    UNBACK(base, 2);
}

FACT("FACT-RDMA-6", a_part_of_a_host_page_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(GRANULE);
    int file = -1;

    back_for_rdma(base, GRANULE);
    ASSERT_CU(handle_of(base + 512, HOST_PAGE, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base, HOST_PAGE + 512, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base, 0, &file), CUDA_ERROR_INVALID_VALUE);
    UNBACK(base, 1);
}

FACT("FACT-RDMA-7", a_range_with_an_unmapped_part_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(3 * GRANULE);
    int file = -1;

    back_for_rdma(base, GRANULE);
    back_for_rdma(base + 2 * GRANULE, GRANULE);
    ASSERT_FAILS(handle_of(base, 3 * GRANULE, &file));
    ASSERT_FAILS(handle_of(base, 2 * GRANULE, &file));
    ASSERT_EQUAL(file, -1);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

FACT("FACT-RDMA-8", a_range_without_access_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    int file = -1;

    back_for_rdma(base, GRANULE);
    back_for_rdma(base + GRANULE, GRANULE);
    ASSERT_OK(cu.MemSetAccess(base + GRANULE, GRANULE, &none, 1));
    ASSERT_FAILS(handle_of(base, 2 * GRANULE, &file));
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-9", a_range_with_and_without_the_flag_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    int file = -1;

    back_for_rdma(base, GRANULE);
    back_without_rdma(base + GRANULE, GRANULE);
    ASSERT_FAILS(handle_of(base, 2 * GRANULE, &file));
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-10", memory_without_the_flag_has_no_descriptor, VMM | DMA_BUFS)
{
    const CUdeviceptr base = reserve(GRANULE);
    int file = -1;

    back_without_rdma(base, GRANULE);
    ASSERT_FAILS(handle_of(base, GRANULE, &file));
    UNBACK(base, 1);
}

FACT("FACT-RDMA-11", an_open_descriptor_retains_the_memory, VMM | RDMA | DMA_BUFS)
{
    const size_t before = free_memory();
    int file = -1;

    need_memory(64 * MIB);
    const CUdeviceptr base = reserve(64 * MIB);
    back_for_rdma(base, 64 * MIB);
    ASSERT_OK(handle_of(base, 64 * MIB, &file));
    UNBACK(base, 64 * MIB / GRANULE);
    ASSERT(free_memory() + 64 * MIB <= before);
    ASSERT_EQUAL(close(file), 0);
    ASSERT(free_memory() + SLACK >= before);
}

FACT("FACT-RDMA-12", an_allocation_has_a_descriptor, DMA_BUFS)
{
    CUdeviceptr address = 0;
    int file = -1;

    ASSERT_OK(cu.MemAlloc(&address, 2 * GRANULE));
    ASSERT_OK(handle_of(address + GRANULE, GRANULE, &file));
    ASSERT_EQUAL(close(file), 0);
    ASSERT_OK(cu.MemFree(address));
}

FACT("FACT-RDMA-13", mapped_memory_cannot_have_synchronous_copies, VMM)
{
    const unsigned on = 1;
    CUdeviceptr address = 0, base = reserve(GRANULE);
    unsigned value = 0;

    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    ASSERT_OK(cu.PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    ASSERT_EQUAL(value, 1);
    back_without_rdma(base, GRANULE);
    ASSERT_EQUAL(cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base),
                 CUDA_ERROR_NOT_SUPPORTED);
    UNBACK(base, 1);
    ASSERT_OK(cu.MemFree(address));
}
