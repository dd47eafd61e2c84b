/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- FACT-ALC: classic allocations. --- */

FACT("FACT-ALC-1", an_allocation_of_0_bytes_is_rejected, DEVICE)
{
    CUdeviceptr address = 0;

    ASSERT_CU(cu.MemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-ALC-2", small_allocations_are_aligned_to_512, DEVICE)
{
    static const size_t bytes[] = {1, 511, 513, 4096, 100000};
    CUdeviceptr address[5] = {0}, address_bits = 0;

    for (unsigned i = 0; i < 5; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], bytes[i]));
        address_bits |= address[i];
    }
    fact_report("aligned to %zu bytes", alignment_of(address_bits));
    ASSERT_EQUAL(address_bits % 512, 0);
    for (unsigned i = 0; i < 5; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

FACT("FACT-ALC-3", large_allocations_are_aligned_to_2_mib, DEVICE)
{
    static const size_t mib[] = {2, 20, 22};
    CUdeviceptr address[3] = {0}, address_bits = 0;

    require_memory(64 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], mib[i] * MIB));
        address_bits |= address[i];
    }
    fact_report("aligned to %zu KiB", alignment_of(address_bits) >> 10);
    ASSERT_EQUAL(address_bits % GRANULE, 0);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

FACT("FACT-ALC-4", an_allocation_is_freed_once_by_its_start, DEVICE)
{
    CUdeviceptr address = 0;

    require_memory(20 * MIB);
    ASSERT_OK(cu.MemAlloc(&address, 20 * MIB));
    ASSERT_CU(cu.MemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemFree(address));
    ASSERT_CU(cu.MemFree(address), CUDA_ERROR_INVALID_VALUE);
}

FACT("FACT-ALC-5", mapped_memory_cannot_be_freed_as_an_allocation, VMM)
{
    const CUdeviceptr base = map(GRANULE);

    ASSERT_CU(cu.MemFree(base), CUDA_ERROR_INVALID_VALUE);
    ASSERT(is_mapped(base));
    unmap_and_free(base, GRANULE);
}

FACT("FACT-ALC-6", a_too_large_allocation_fails_without_side_effects, DEVICE)
{
    const size_t free_before = free_memory();
    CUdeviceptr address = 0;
    size_t total = 0;

    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    ASSERT_CU(cu.MemAlloc(&address, 2 * total), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(free_memory() + SLACK >= free_before);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
}

FACT("FACT-ALC-7", mem_get_info_counts_an_allocation_until_it_is_freed, DEVICE)
{
    const size_t free_before = free_memory();
    CUdeviceptr address = 0;

    require_memory(64 * MIB);
    ASSERT_OK(cu.MemAlloc(&address, 64 * MIB));
    const size_t free_during = free_memory();
    fact_report("64 MiB took %lld KiB", ((long long)free_before - (long long)free_during) / 1024);
    ASSERT(free_during + 64 * MIB <= free_before);
    ASSERT_OK(cu.MemFree(address));
    ASSERT(free_memory() >= free_during + 64 * MIB);
}

/* --- FACT-INFO: queries of memory and addresses. --- */

FACT("FACT-INFO-1", both_calls_report_the_same_total_memory, DEVICE)
{
    size_t free_bytes = 0, total = 0, device_total = 0;

    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    ASSERT_OK(cu.DeviceTotalMem(&device_total, 0));
    fact_report("%zu MiB", total / MIB);
    ASSERT_EQUAL(total, device_total);
    ASSERT(free_bytes <= total);
}

/* A value of /proc/meminfo in bytes; 0 if there is none. */
static size_t meminfo(const char *key)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long kib = 0;
    char line[128];

    while (file != NULL && kib == 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoul(line + strlen(key), NULL, 10);
    if (file != NULL)
        (void)fclose(file);
    return (size_t)kib * 1024;
}

FACT("FACT-INFO-5", an_integrated_device_reports_at_most_the_available_host_memory, DEVICE)
{
    size_t free_bytes = 0, total = 0;
    int is_integrated = 0;

    ASSERT_OK(cu.DeviceGetAttribute(&is_integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    fact_report(is_integrated ? "integrated, %zu MiB of %zu MiB free, MemAvailable %zu MiB"
                              : "not integrated, %zu MiB of %zu MiB free, MemAvailable %zu MiB",
                free_bytes / MIB, total / MIB, meminfo("MemAvailable:") / MIB);
    if (!is_integrated)
        return;
    /* The tolerance is an eighth of the memory. */
    ASSERT(total <= meminfo("MemTotal:") + total / 8);
    ASSERT(free_bytes <= meminfo("MemAvailable:") + total / 8);
}

FACT("FACT-INFO-2", a_mapped_address_reports_its_reservation, VMM)
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
    unsigned mapping_is_capable = 1, allocation_is_capable = 0;
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.PointerGetAttribute(&mapping_is_capable,
                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    ASSERT_OK(cu.PointerGetAttribute(&allocation_is_capable,
                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    ASSERT_EQUAL(mapping_is_capable, 0);
    ASSERT_EQUAL(allocation_is_capable, 1);
    ASSERT_OK(cu.MemFree(address));
    unmap_and_free(base, GRANULE);
}

static bool reports_mapped(CUdeviceptr address)
{
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MAPPED;
    unsigned value = 7; /* neither 0 nor 1 */
    void *values = &value;

    ASSERT_OK(cu.PointerGetAttributes(1, &attribute, &values, address));
    ASSERT(value <= 1);
    return value == 1;
}

/* The attribute is independent of access rights, and the query of an unmapped or unreserved address succeeds. */
FACT("FACT-INFO-4", any_address_reports_whether_it_is_mapped, VMM)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    ASSERT(!reports_mapped(base));
    back(base + GRANULE, 2 * GRANULE);
    ASSERT(reports_mapped(base + GRANULE));
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT(reports_mapped(base + 2 * GRANULE + 77));
    ASSERT(!reports_mapped(base));
    ASSERT(!reports_mapped(base + 3 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT(!reports_mapped(base + GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
    ASSERT(!reports_mapped(base));
    ASSERT(!reports_mapped(4096));
}

/* --- FACT-HOST: pinned host memory. --- */

FACT("FACT-HOST-1", pinned_memory_is_freed_once_by_its_start, DEVICE)
{
    unsigned char *host = NULL;

    ASSERT_OK(cu.MemHostAlloc((void **)&host, MIB, 0));
    memset(host, 1, MIB);
    ASSERT_FAILS(cu.MemFreeHost(host + 4096));
    ASSERT_OK(cu.MemFreeHost(host));
    ASSERT_FAILS(cu.MemFreeHost(host));
}

FACT("FACT-HOST-2", copies_of_pinned_memory_are_ordered_by_their_stream, VMM)
{
    const CUdeviceptr base = map(GRANULE);
    const CUstream stream = new_stream();
    unsigned char *source = NULL, *destination = NULL;

    ASSERT_OK(cu.MemHostAlloc((void **)&source, GRANULE, 0));
    ASSERT_OK(cu.MemHostAlloc((void **)&destination, GRANULE, 0));
    for (size_t i = 0; i < GRANULE; i++)
        source[i] = (unsigned char)(i * 7 + i / 4096); /* differs between bytes and between pages */
    memset(destination, 0, GRANULE);
    ASSERT_OK(cu.MemcpyHtoDAsync(base, source, GRANULE, stream));
    ASSERT_OK(cu.MemcpyDtoHAsync(destination, base, GRANULE, stream));
    ASSERT_OK(cu.StreamSynchronize(stream));
    ASSERT(memcmp(destination, source, GRANULE) == 0);
    ASSERT_OK(cu.MemFreeHost(source));
    ASSERT_OK(cu.MemFreeHost(destination));
    ASSERT_OK(cu.StreamDestroy(stream));
    unmap_and_free(base, GRANULE);
}
