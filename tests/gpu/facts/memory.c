/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

/* --- FACT-GRAN: granularity. --- */

FACT("FACT-GRAN-1", the_granularity_is_2_mib, VMM)
{
    const CUmemAllocationProp prop = on_device(0);
    size_t min = 0;

    ASSERT_OK(cu.MemGetAllocationGranularity(&min, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    fact_report("%zu KiB", min >> 10);
    ASSERT_EQUAL(min, GRANULE);
}

FACT("FACT-GRAN-2", the_recommended_granularity_is_a_multiple, VMM)
{
    const CUmemAllocationProp prop = on_device(0);
    size_t min = 0, recommended = 0;

    ASSERT_OK(cu.MemGetAllocationGranularity(&min, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ASSERT_OK(
        cu.MemGetAllocationGranularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    fact_report("%zu KiB", recommended >> 10);
    ASSERT(recommended >= min);
    ASSERT_EQUAL(recommended % min, 0);
}

/* --- FACT-RES: reserved addresses. --- */

FACT("FACT-RES-1", invalid_reservations_are_rejected, VMM)
{
    CUdeviceptr base = 0;

    ASSERT_CU(cu.MemAddressReserve(&base, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE, 3 * GRANULE, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-RES-2", a_reservation_has_the_requested_alignment, VMM)
{
    CUdeviceptr first = 0, second = 0;

    ASSERT_OK(cu.MemAddressReserve(&first, GIB, GIB, 0, 0));
    ASSERT_OK(cu.MemAddressReserve(&second, GIB, GIB, 0, 0));
    ASSERT_EQUAL(first % GIB, 0);
    ASSERT_EQUAL(second % GIB, 0);
    ASSERT_OK(cu.MemAddressFree(first, GIB));
    ASSERT_OK(cu.MemAddressFree(second, GIB));
}

FACT("FACT-RES-3", a_reservation_is_aligned_to_the_granularity, VMM)
{
    const CUdeviceptr first = reserve(GRANULE), second = reserve(3 * GRANULE);
    const size_t alignment = alignment_of(first | second);

    fact_report("aligned to %zu KiB", alignment >> 10);
    ASSERT_EQUAL(first % GRANULE, 0);
    ASSERT_EQUAL(second % GRANULE, 0);
    ASSERT_OK(cu.MemAddressFree(first, GRANULE));
    ASSERT_OK(cu.MemAddressFree(second, 3 * GRANULE));
}

FACT("FACT-RES-4", a_too_large_reservation_fails_as_out_of_memory, VMM)
{
    CUdeviceptr base = 0;

    ASSERT_CU(cu.MemAddressReserve(&base, (size_t)1 << 50, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    base = reserve(GRANULE);
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

FACT("FACT-RES-5", a_range_is_freed_once_as_a_whole, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    ASSERT_CU(cu.MemAddressFree(base, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressFree(base + GRANULE, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
    ASSERT_CU(cu.MemAddressFree(base, 4 * GRANULE), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-RES-6", a_range_with_mappings_cannot_be_freed, VMM)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    back(base + GRANULE, GRANULE);
    ASSERT_CU(cu.MemAddressFree(base, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT(is_mapped(base + GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

FACT("FACT-RES-7", reserved_addresses_use_no_memory, VMM)
{
    const size_t free_before = free_memory();
    const CUdeviceptr base = reserve(64 * GIB);

    fact_report("64 GiB of addresses took %lld KiB",
                ((long long)free_before - (long long)free_memory()) / 1024);
    ASSERT(free_memory() + SLACK >= free_before);
    ASSERT_OK(cu.MemAddressFree(base, 64 * GIB));
}

/* --- FACT-CRE: physical memory. --- */

FACT("FACT-CRE-1", invalid_sizes_and_flags_are_rejected, VMM)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_CU(cu.MemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 1), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-CRE-2", invalid_properties_are_rejected, VMM)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = on_device(device_count);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
}

FACT("FACT-CRE-3", mem_get_info_counts_memory_from_its_creation, VMM)
{
    const size_t free_before = free_memory();

    require_memory(64 * MIB);
    const CUmemGenericAllocationHandle handle = create(64 * MIB);
    const size_t free_during = free_memory();
    fact_report("64 MiB took %lld KiB", ((long long)free_before - (long long)free_during) / 1024);
    ASSERT(free_during + 64 * MIB <= free_before);
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT(free_memory() >= free_during + 64 * MIB);
}

FACT("FACT-CRE-4", creation_without_free_memory_fails_as_out_of_memory, VMM)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    const size_t free_before = free_memory();
    size_t total = 0;

    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    total = (2 * total + GRANULE - 1) / GRANULE * GRANULE;
    ASSERT_CU(cu.MemCreate(&handle, total, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(free_memory() + SLACK >= free_before);
    handle = create(GRANULE);
    ASSERT_OK(cu.MemRelease(handle));
}

/* Users of Jetson boards have reported out-of-memory errors with most of the memory free. */
FACT("FACT-CRE-5", creation_with_free_memory_succeeds, VMM)
{
    require_memory(256 * MIB);
    for (unsigned i = 0; i < 8; i++)
        ASSERT_OK(cu.MemRelease(create(GRANULE)));
}
