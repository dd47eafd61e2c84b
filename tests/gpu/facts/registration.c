/* SPDX-License-Identifier: MIT */
/* Queries of the driver that libraries make before they register memory. */
#include "tests/gpu/facts/driver.h"

#include <fcntl.h>
#include <unistd.h>

/* --- FACT-RDMA: memory that libraries register. --- */

#define DMA_BUF CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

enum {
    RDMA_CAPABLE = 15, /* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE */
    HOST_PAGE = 4096
};

static CUmemGenericAllocationHandle create_for_rdma(size_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.allocFlags.gpuDirectRDMACapable = 1;
    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

/* One call per mapping sets access, and one unmaps it, because other facts cover calls for several mappings. */
static void map_handle(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    ASSERT_OK(cu.MemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(allow(address, bytes));
}

static void map_for_rdma(CUdeviceptr address, size_t bytes)
{
    map_handle(address, bytes, create_for_rdma(bytes));
}

static void map_without_rdma(CUdeviceptr address, size_t bytes)
{
    map_handle(address, bytes, create(bytes));
}

static CUresult export_dma_buf(CUdeviceptr address, size_t bytes, int *fd)
{
    return cu.MemGetHandleForAddressRange(fd, address, bytes, DMA_BUF, 0);
}

static unsigned rdma_capable(CUdeviceptr address)
{
    unsigned value = 2; /* neither 0 nor 1 */

    ASSERT_OK(cu.PointerGetAttribute(&value, (CUpointer_attribute)RDMA_CAPABLE, address));
    return value;
}

FACT("FACT-RDMA-1", an_address_range_is_one_mapping, VMM)
{
    const CUdeviceptr base = reserve(3 * GRANULE);
    CUdeviceptr start = 0;
    size_t bytes = 0;

    map_without_rdma(base, GRANULE);
    map_without_rdma(base + GRANULE, 2 * GRANULE);
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

    map_for_rdma(base, GRANULE);
    fill(base, GRANULE, 0x66);
    ASSERT_EQUAL(byte_at(base + GRANULE - 1), 0x66);
    UNBACK(base, 1);
}

FACT("FACT-RDMA-3", an_address_reports_whether_it_is_rdma_capable, VMM | RDMA)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    map_for_rdma(base, GRANULE);
    map_without_rdma(base + GRANULE, GRANULE);
    ASSERT_EQUAL(rdma_capable(base), 1);
    ASSERT_EQUAL(rdma_capable(base + GRANULE), 0);
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-4", equal_mappings_share_one_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    int fd = -1;

    map_for_rdma(base, GRANULE);
    map_for_rdma(base + GRANULE, 2 * GRANULE);
    map_for_rdma(base + 3 * GRANULE, GRANULE);
    ASSERT_OK(export_dma_buf(base, 4 * GRANULE, &fd));
    ASSERT_EQUAL(close(fd), 0);
    ASSERT_OK(export_dma_buf(base + HOST_PAGE, 3 * GRANULE, &fd));
    ASSERT_EQUAL(close(fd), 0);
    UNBACK(base, 1, 2, 1);
}

FACT("FACT-RDMA-5", a_descriptor_is_as_long_as_its_range, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    int fd = -1;

    map_for_rdma(base, 2 * GRANULE);
    ASSERT_OK(export_dma_buf(base, GRANULE + HOST_PAGE, &fd));
    ASSERT_EQUAL(lseek(fd, 0, SEEK_END), GRANULE + HOST_PAGE);
    ASSERT((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    ASSERT_EQUAL(close(fd), 0);
    UNBACK(base, 2);
}

FACT("FACT-RDMA-6", a_part_of_a_host_page_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(GRANULE);
    int fd = -1;

    map_for_rdma(base, GRANULE);
    ASSERT_CU(export_dma_buf(base + 512, HOST_PAGE, &fd), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(export_dma_buf(base, HOST_PAGE + 512, &fd), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(export_dma_buf(base, 0, &fd), CUDA_ERROR_INVALID_VALUE);
    UNBACK(base, 1);
}

FACT("FACT-RDMA-7", a_range_with_an_unmapped_part_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(3 * GRANULE);
    int fd = -1;

    map_for_rdma(base, GRANULE);
    map_for_rdma(base + 2 * GRANULE, GRANULE);
    ASSERT_FAILS(export_dma_buf(base, 3 * GRANULE, &fd));
    ASSERT_FAILS(export_dma_buf(base, 2 * GRANULE, &fd));
    ASSERT_EQUAL(fd, -1);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

FACT("FACT-RDMA-8", a_range_without_access_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    int fd = -1;

    map_for_rdma(base, GRANULE);
    map_for_rdma(base + GRANULE, GRANULE);
    ASSERT_OK(cu.MemSetAccess(base + GRANULE, GRANULE, &none, 1));
    ASSERT_FAILS(export_dma_buf(base, 2 * GRANULE, &fd));
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-9", a_range_with_and_without_the_flag_has_no_descriptor, VMM | RDMA | DMA_BUFS)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    int fd = -1;

    map_for_rdma(base, GRANULE);
    map_without_rdma(base + GRANULE, GRANULE);
    ASSERT_FAILS(export_dma_buf(base, 2 * GRANULE, &fd));
    UNBACK(base, 1, 1);
}

FACT("FACT-RDMA-10", memory_without_the_flag_has_no_descriptor, VMM | DMA_BUFS)
{
    const CUdeviceptr base = reserve(GRANULE);
    int fd = -1;

    map_without_rdma(base, GRANULE);
    ASSERT_FAILS(export_dma_buf(base, GRANULE, &fd));
    UNBACK(base, 1);
}

FACT("FACT-RDMA-11", an_open_descriptor_retains_the_memory, VMM | RDMA | DMA_BUFS)
{
    const size_t free_before = free_memory();
    int fd = -1;

    require_memory(64 * MIB);
    const CUdeviceptr base = reserve(64 * MIB);
    map_for_rdma(base, 64 * MIB);
    ASSERT_OK(export_dma_buf(base, 64 * MIB, &fd));
    UNBACK(base, 64 * MIB / GRANULE);
    ASSERT(free_memory() + 64 * MIB <= free_before);
    ASSERT_EQUAL(close(fd), 0);
    ASSERT(free_memory() + SLACK >= free_before);
}

FACT("FACT-RDMA-12", an_allocation_has_a_descriptor, DMA_BUFS)
{
    CUdeviceptr address = 0;
    int fd = -1;

    ASSERT_OK(cu.MemAlloc(&address, 2 * GRANULE));
    ASSERT_OK(export_dma_buf(address + GRANULE, GRANULE, &fd));
    ASSERT_EQUAL(close(fd), 0);
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
    map_without_rdma(base, GRANULE);
    ASSERT_EQUAL(cu.PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base),
                 CUDA_ERROR_NOT_SUPPORTED);
    UNBACK(base, 1);
    ASSERT_OK(cu.MemFree(address));
}
