/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"
#include "tests/gpu/facts/work.h"

/* --- FACT-MAP: mappings. --- */

FACT("FACT-MAP-1", unaligned_mappings_and_flags_are_rejected, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    ASSERT_CU(cu.MemMap(base + GRANULE / 2, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, GRANULE / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT(!is_mapped(base));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-MAP-2", a_mapping_outside_a_reservation_fails, VMM)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
    ASSERT_CU(cu.MemMap(base, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemRelease(handle));
}

FACT("FACT-MAP-3", a_mapping_over_another_one_fails, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    ASSERT_OK(cu.MemMap(base + GRANULE, 2 * GRANULE, 0, handle, 0));
    ASSERT_CU(cu.MemMap(base + GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base + 2 * GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT(!is_mapped(base));
    ASSERT(!is_mapped(base + 3 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-MAP-4", a_mapping_longer_than_its_handle_fails, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    ASSERT_CU(cu.MemMap(base, 4 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-MAP-5", a_new_mapping_has_no_access_rights, VMM)
{
    const CUdeviceptr base = reserve(GRANULE);

    back(base, GRANULE);
    ASSERT_EQUAL(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    unmap_and_free(base, GRANULE);
}

FACT("FACT-MAP-6", a_handle_can_be_mapped_twice, VMM)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(GRANULE);

    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(allow(base + GRANULE, GRANULE));
    fill(base, GRANULE, 0x5a);
    ASSERT_EQUAL(byte_at(base + GRANULE + 77), 0x5a);
    fill(base + GRANULE, GRANULE, 0xa5);
    ASSERT_EQUAL(byte_at(base + 77), 0xa5);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

/* --- FACT-ACC: access rights. --- */

FACT("FACT-ACC-1", one_call_sets_access_for_several_mappings, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    BACK(base, 1, 2, 1);
    ASSERT_OK(allow(base, 4 * GRANULE));
    for (unsigned i = 0; i < 4; i++)
        ASSERT_EQUAL(rights_of(base + i * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill(base, 4 * GRANULE, 0x11);
    ASSERT_EQUAL(byte_at(base + 4 * GRANULE - 1), 0x11);
    UNBACK(base, 1, 2, 1);
}

FACT("FACT-ACC-2", access_to_a_range_with_an_unmapped_part_is_rejected, VMM)
{
    const CUdeviceptr base = reserve(3 * GRANULE);

    back(base, GRANULE);
    back(base + 2 * GRANULE, GRANULE);
    ASSERT_CU(allow(base, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

FACT("FACT-ACC-3", access_to_a_part_of_a_mapping_is_rejected, VMM)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    back(base, 2 * GRANULE);
    ASSERT_CU(allow(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base, 2 * GRANULE - 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(allow(base, 2 * GRANULE));
    unmap_and_free(base, 2 * GRANULE);
}

FACT("FACT-ACC-4", access_for_an_unknown_device_is_rejected, VMM)
{
    const CUmemAccessDesc desc = rights(device_count, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const CUdeviceptr base = reserve(GRANULE);

    back(base, GRANULE);
    ASSERT_CU(cu.MemSetAccess(base, GRANULE, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
    unmap_and_free(base, GRANULE);
}

FACT("FACT-ACC-5", access_can_be_removed_and_set_again, VMM)
{
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    const CUdeviceptr base = map(GRANULE);

    fill(base, GRANULE, 0x21);
    ASSERT_OK(cu.MemSetAccess(base, GRANULE, &none, 1));
    ASSERT_EQUAL(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_EQUAL(byte_at(base), 0x21);
    unmap_and_free(base, GRANULE);
}

FACT("FACT-ACC-6", a_peer_device_has_separate_access_rights, VMM | TWO_DEVICES)
{
    const CUmemAccessDesc desc = rights(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const CUdeviceptr base = map(GRANULE);
    int is_peer = 0;

    ASSERT_EQUAL(rights_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cu.DeviceCanAccessPeer(&is_peer, 1, 0));
    if (is_peer) {
        ASSERT_OK(cu.MemSetAccess(base, GRANULE, &desc, 1));
        ASSERT_EQUAL(rights_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ASSERT_EQUAL(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    } else {
        ASSERT_FAILS(cu.MemSetAccess(base, GRANULE, &desc, 1));
    }
    unmap_and_free(base, GRANULE);
}

/* --- FACT-UNM: unmapping. --- */

FACT("FACT-UNM-1", a_part_of_a_mapping_cannot_be_unmapped, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    BACK(base, 2, 2);
    ASSERT_CU(cu.MemUnmap(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base, 2 * GRANULE - 1), CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < 4; i++)
        ASSERT(is_mapped(base + i * GRANULE));
    UNBACK(base, 2, 2);
}

FACT("FACT-UNM-2", one_call_unmaps_several_mappings, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    BACK(base, 1, 2, 1);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(allow(base + 3 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 3 * GRANULE));
    ASSERT(is_mapped(base));
    for (unsigned i = 1; i < 4; i++)
        ASSERT(!is_mapped(base + i * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-UNM-3", an_unmap_with_an_unmapped_part_fails, VMM)
{
    const CUdeviceptr base = reserve(3 * GRANULE);

    back(base, GRANULE);
    back(base + 2 * GRANULE, GRANULE);
    ASSERT_CU(cu.MemUnmap(base, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT(is_mapped(base));
    ASSERT(is_mapped(base + 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_CU(cu.MemUnmap(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

FACT("FACT-UNM-4", an_unmapped_range_can_be_mapped_again, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    BACK(base, 2, 2);
    ASSERT_OK(allow(base, 2 * GRANULE));
    ASSERT_OK(allow(base + 2 * GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, 2 * GRANULE));
    back(base + GRANULE, 2 * GRANULE);
    ASSERT_EQUAL(rights_of(base + GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

FACT("FACT-UNM-5", unmapped_memory_keeps_its_contents, VMM)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(GRANULE);

    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, GRANULE));
    fill(base, GRANULE, 0x3c);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base + GRANULE, GRANULE));
    ASSERT_EQUAL(byte_at(base + GRANULE), 0x3c);
    ASSERT_EQUAL(byte_at(base + 2 * GRANULE - 1), 0x3c);
    ASSERT_OK(cu.MemUnmap(base + GRANULE, GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

FACT("FACT-UNM-6", unmap_does_not_wait_for_work, VMM)
{
    const CUdeviceptr base = map(GRANULE);
    const CUstream stream = new_stream();

    keep_busy(stream);
    const double start_us = microseconds();
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    fact_report("cuMemUnmap took %.0f us during work", microseconds() - start_us);
    const CUresult result = cu.StreamQuery(stream);
    wait_for_work(stream);
    ASSERT_RESULT("cuStreamQuery of the busy stream after cuMemUnmap", result,
                  CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

FACT("FACT-UNM-7", growth_does_not_wait_for_work, VMM)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUstream stream = new_stream();

    keep_busy(stream);
    const double start_us = microseconds();
    back(base, GRANULE);
    const double mapped_us = microseconds();
    ASSERT_OK(allow(base, GRANULE));
    fact_report("during work, cuMemCreate, cuMemMap and cuMemRelease took %.0f us, "
                "cuMemSetAccess took %.0f us",
                mapped_us - start_us, microseconds() - mapped_us);
    const CUresult result = cu.StreamQuery(stream);
    wait_for_work(stream);
    ASSERT_RESULT("cuStreamQuery of the busy stream after growth", result, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamDestroy(stream));
    unmap_and_free(base, GRANULE);
}

/* --- FACT-REL: references to memory. --- */

FACT("FACT-REL-1", released_memory_remains_valid_while_it_is_mapped, VMM)
{
    const size_t free_before = free_memory();

    require_memory(64 * MIB);
    const CUdeviceptr base = reserve(64 * MIB);
    back(base, 64 * MIB); /* releases the handle */
    ASSERT_OK(allow(base, 64 * MIB));
    fill(base + 64 * MIB - GRANULE, GRANULE, 0x42);
    const size_t free_during = free_memory();
    ASSERT(free_during + 64 * MIB <= free_before);
    ASSERT_EQUAL(byte_at(base + 64 * MIB - 1), 0x42);
    ASSERT_OK(cu.MemUnmap(base, 64 * MIB));
    ASSERT(free_memory() >= free_during + 64 * MIB);
    ASSERT_OK(cu.MemAddressFree(base, 64 * MIB));
}

FACT("FACT-REL-2", a_mapped_address_retains_the_same_handle, VMM)
{
    CUmemGenericAllocationHandle handle, first = 0, middle = 0;

    require_memory(64 * MIB);
    const CUdeviceptr base = reserve(64 * MIB);
    handle = create(64 * MIB);
    ASSERT_OK(cu.MemMap(base, 64 * MIB, 0, handle, 0));
    ASSERT_OK(cu.MemRetainAllocationHandle(&first, (void *)(uintptr_t)base));
    ASSERT_OK(cu.MemRetainAllocationHandle(&middle, (void *)(uintptr_t)(base + 32 * MIB + 5)));
    ASSERT_EQUAL(first, handle);
    ASSERT_EQUAL(middle, handle);
    ASSERT_OK(cu.MemUnmap(base, 64 * MIB));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemRelease(first));
    const size_t retained = free_memory();
    ASSERT_OK(cu.MemRelease(middle));
    ASSERT(free_memory() >= retained + 64 * MIB);
    ASSERT_OK(cu.MemAddressFree(base, 64 * MIB));
}

FACT("FACT-REL-3", an_unmapped_address_has_no_handle, VMM)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    CUmemGenericAllocationHandle handle = 0;

    back(base, GRANULE);
    ASSERT_CU(cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)(base + GRANULE)),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_CU(cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)base),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}
