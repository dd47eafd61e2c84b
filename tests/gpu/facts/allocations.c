/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

/* --- FACT-ALC: allocations of the classic kind. --- */

FACT("FACT-ALC-1", an_allocation_of_nothing_is_refused, DEVICE)
{
    CUdeviceptr address = 0;

    ASSERT_CU(cu.MemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-ALC-2", small_allocations_are_aligned_to_512, DEVICE)
{
    static const size_t bytes[] = {1, 511, 513, 4096, 100000};
    CUdeviceptr address[5] = {0}, all = 0;

    for (unsigned i = 0; i < 5; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], bytes[i]));
        all |= address[i];
    }
    fact_say("aligned to %zu bytes", alignment_of(all));
    ASSERT_EQUAL(all % 512, 0);
    for (unsigned i = 0; i < 5; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

FACT("FACT-ALC-3", large_allocations_are_aligned_to_2_mib, DEVICE)
{
    static const size_t mib[] = {2, 20, 22};
    CUdeviceptr address[3] = {0}, all = 0;

    need_memory(64 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], mib[i] * MIB));
        all |= address[i];
    }
    fact_say("aligned to %zu KiB", alignment_of(all) >> 10);
    ASSERT_EQUAL(all % GRANULE, 0);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

FACT("FACT-ALC-4", only_the_start_can_be_freed_and_once, DEVICE)
{
    CUdeviceptr address = 0;

    need_memory(20 * MIB);
    ASSERT_OK(cu.MemAlloc(&address, 20 * MIB));
    ASSERT_CU(cu.MemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemFree(address));
    ASSERT_CU(cu.MemFree(address), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-ALC-5", mapped_memory_is_no_allocation, VMM)
{
    const CUdeviceptr base = map(GRANULE);

    ASSERT_CU(cu.MemFree(base), CUDA_ERROR_INVALID_VALUE);
    ASSERT(is_mapped(base));
    unmap_and_free(base, GRANULE);
}

FACT("FACT-ALC-6", an_allocation_too_large_is_refused_and_no_more, DEVICE)
{
    const size_t before = free_memory();
    CUdeviceptr address = 0;
    size_t total = 0;

    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    ASSERT_CU(cu.MemAlloc(&address, 2 * total), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(free_memory() + SLACK >= before);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
}

FACT("FACT-ALC-7", an_allocation_counts_until_it_is_freed, DEVICE)
{
    const size_t before = free_memory();
    CUdeviceptr address = 0;

    need_memory(64 * MIB);
    ASSERT_OK(cu.MemAlloc(&address, 64 * MIB));
    const size_t between = free_memory();
    fact_say("64 MiB took %lld KiB", ((long long)before - (long long)between) / 1024);
    ASSERT(between + 64 * MIB <= before);
    ASSERT_OK(cu.MemFree(address));
    ASSERT(free_memory() >= between + 64 * MIB);
}

/* --- FACT-INFO: what the driver tells. --- */

FACT("FACT-INFO-1", the_total_is_that_of_the_device, DEVICE)
{
    size_t free_bytes = 0, total = 0, of_device = 0;

    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    ASSERT_OK(cu.DeviceTotalMem(&of_device, 0));
    fact_say("%zu MiB", total / MIB);
    ASSERT_EQUAL(total, of_device);
    ASSERT(free_bytes <= total);
}

FACT("FACT-INFO-2", a_mapped_address_tells_its_reservation, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    unsigned type = 0;
    int ordinal = -1;
    CUdeviceptr start = 0;
    size_t bytes = 0;

    back(base + GRANULE, 2 * GRANULE);
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(
        cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base + GRANULE + 100));
    ASSERT_EQUAL(type, CU_MEMORYTYPE_DEVICE);
    ASSERT_OK(
        cu.PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base + GRANULE));
    ASSERT_EQUAL(ordinal, 0);
    ASSERT_OK(
        cu.PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + GRANULE));
    ASSERT_EQUAL(start, base);
    ASSERT_OK(cu.PointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base + GRANULE));
    ASSERT_EQUAL(bytes, 4 * GRANULE);
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-INFO-3", only_allocations_have_legacy_ipc_handles, VMM)
{
    const CUdeviceptr base = map(GRANULE);
    unsigned mapped_can = 1, allocation_can = 0;
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(
        cu.PointerGetAttribute(&mapped_can, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    ASSERT_OK(cu.PointerGetAttribute(&allocation_can,
                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    ASSERT_EQUAL(mapped_can, 0);
    ASSERT_EQUAL(allocation_can, 1);
    ASSERT_OK(cu.MemFree(address));
    unmap_and_free(base, GRANULE);
}

static bool says_mapped(CUdeviceptr address)
{
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MAPPED;
    unsigned answer = 7;
    void *answers = &answer;

    ASSERT_OK(cu.PointerGetAttributes(1, &asked, &answers, address));
    ASSERT(answer <= 1);
    return answer == 1;
}

/* With and without access rights; an address that is not mapped, or not reserved, is no error. */
FACT("FACT-INFO-4", any_address_tells_whether_it_is_mapped, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    ASSERT(!says_mapped(base));
    back(base + GRANULE, 2 * GRANULE);
    ASSERT(says_mapped(base + GRANULE));
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT(says_mapped(base + 2 * GRANULE + 77));
    ASSERT(!says_mapped(base));
    ASSERT(!says_mapped(base + 3 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT(!says_mapped(base + GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
    ASSERT(!says_mapped(base));
    ASSERT(!says_mapped(4096));
}

/* --- FACT-HOST: pinned memory of the host. --- */

FACT("FACT-HOST-1", pinned_memory_is_freed_by_its_start_and_once, DEVICE)
{
    unsigned char *host = NULL;

    ASSERT_OK(cu.MemHostAlloc((void **)&host, MIB, 0));
    memset(host, 1, MIB);
    ASSERT_REFUSED(cu.MemFreeHost(host + 4096));
    ASSERT_OK(cu.MemFreeHost(host));
    ASSERT_REFUSED(cu.MemFreeHost(host));
}

FACT("FACT-HOST-2", copies_of_pinned_memory_keep_the_order_of_their_stream, VMM)
{
    const CUdeviceptr base = map(GRANULE);
    const CUstream stream = new_stream();
    unsigned char *from = NULL, *to = NULL;

    ASSERT_OK(cu.MemHostAlloc((void **)&from, GRANULE, 0));
    ASSERT_OK(cu.MemHostAlloc((void **)&to, GRANULE, 0));
    for (size_t i = 0; i < GRANULE; i++)
        from[i] = (unsigned char)(i * 7 + i / 4096);
    memset(to, 0, GRANULE);
    ASSERT_OK(cu.MemcpyHtoDAsync(base, from, GRANULE, stream));
    ASSERT_OK(cu.MemcpyDtoHAsync(to, base, GRANULE, stream));
    ASSERT_OK(cu.StreamSynchronize(stream));
    ASSERT(memcmp(to, from, GRANULE) == 0);
    ASSERT_OK(cu.MemFreeHost(from));
    ASSERT_OK(cu.MemFreeHost(to));
    ASSERT_OK(cu.StreamDestroy(stream));
    unmap_and_free(base, GRANULE);
}
