/* SPDX-License-Identifier: MIT */
/* Pinned host memory, and copies that skip unmapped memory. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/support/emulator.h"
#include "tests/unit/sim_setup.h"

#define LARGE ((size_t)64 << 20)

static unsigned char *allocate_pinned(size_t bytes)
{
    void *host = NULL;

    ASSERT_OK(cuMemHostAlloc(&host, bytes, 0));
    return host;
}

SIM_TEST(invalid_arguments_are_rejected)
{
    unsigned char *host = NULL;
    int local = 0;

    ASSERT_INVALID(cuMemHostAlloc(NULL, 4096, 0));
    ASSERT_INVALID(cuMemHostAlloc((void **)&host, 0, 0));
    ASSERT_INVALID(cuMemHostAlloc((void **)&host, 4096, 64));
    ASSERT_INVALID(cuMemFreeHost(&local));
    host = allocate_pinned(4096);
    ASSERT_INVALID(cuMemFreeHost(host + 1));
    ASSERT_OK(cuMemFreeHost(host));
    ASSERT_INVALID(cuMemFreeHost(host));
}

/* Registered memory is pinned like allocated memory, and still belongs to the program. */
SIM_TEST(program_memory_can_be_pinned)
{
    unsigned char *memory = malloc(8192), *allocated = allocate_pinned(4096);

    assert_non_null(memory);
    memset(memory, 7, 8192);
    ASSERT_INVALID(cuMemHostRegister(NULL, 4096, 0));
    ASSERT_INVALID(cuMemHostRegister(memory, 0, 0));
    ASSERT_INVALID(cuMemHostRegister(memory, 4096, 64));
    ASSERT_CU(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ASSERT_OK(cuMemHostRegister(memory, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    ASSERT_CU(cuMemHostRegister(memory + 4095, 2, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ASSERT_CU(cuMemHostRegister(allocated, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ASSERT_INVALID(cuMemFreeHost(memory));
    ASSERT_CU(cuMemHostUnregister(allocated), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ASSERT_CU(cuMemHostUnregister(memory + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    ASSERT_OK(cuMemHostUnregister(memory));
    ASSERT_OK(cuMemHostRegister(memory, 8192, 0));
    ASSERT_OK(cuMemHostUnregister(memory));
    assert_int_equal(memory[8191], 7);
    ASSERT_OK(cuMemFreeHost(allocated));
    free(memory);
}

static unsigned attribute_at(const void *address, CUpointer_attribute attribute)
{
    unsigned value = 0;

    ASSERT_OK(cuPointerGetAttribute(&value, attribute, (CUdeviceptr)(uintptr_t)address));
    return value;
}

SIM_TEST(pinned_memory_has_pointer_attributes)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    unsigned char *host = allocate_pinned(4096);
    unsigned type = 0;
    CUdeviceptr device_pointer = 1;
    void *values[] = {&type, &device_pointer}, *pointer = NULL;

    assert_int_equal(attribute_at(host + 4095, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
                     CU_MEMORYTYPE_HOST);
    assert_int_equal(attribute_at(host, CU_POINTER_ATTRIBUTE_MAPPED), 0);
    ASSERT_OK(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                    (CUdeviceptr)(uintptr_t)(host + 5)));
    assert_ptr_equal(pointer, host + 5);
    ASSERT_OK(cuPointerGetAttributes(2, attributes, values, (CUdeviceptr)(uintptr_t)host));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    assert_int_equal(device_pointer, 0);
    ASSERT_OK(cuMemFreeHost(host));
    ASSERT_INVALID(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                         (CUdeviceptr)(uintptr_t)host));
}

SIM_TEST_BYTES(a_stream_writes_a_value)
{
    const CUdeviceptr base = usable(GRANULE);
    const CUstream stream = new_stream();

    ASSERT_INVALID(cuStreamWriteValue32(stream, base + 2, 1, 0));
    ASSERT_INVALID(cuStreamWriteValue32(stream, base, 1, 8));
    ASSERT_INVALID(cuStreamWriteValue32(stream, 4096, 1, 0));
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuStreamWriteValue32(stream, base + 4, 0x01020304, 0));
    assert_int_equal(bytes_at(base)[4], 0);
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(bytes_at(base)[4], 4);
    assert_int_equal(bytes_at(base)[7], 1);
    assert_int_equal(bytes_at(base)[8], 0);
}

/* A stream of either device can copy from one device to the other. */
SIM_TEST_BYTES(copy_moves_bytes_between_devices)
{
    const CUcontext first = enter(0), second = enter(1);
    const CUstream stream = new_stream();
    CUdeviceptr to = allocate(GRANULE);

    ASSERT_OK(cuCtxSetCurrent(first));
    CUdeviceptr from = allocate(GRANULE);
    ASSERT_OK(cuMemsetD8(from, 9, GRANULE));
    ASSERT_CU(cuMemcpyPeerAsync(to, NULL, from, first, 64, stream), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cuMemcpyPeerAsync(to, second, from, first, 64, stream));
    ASSERT_OK(cuCtxSetCurrent(second));
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(bytes_at(to)[63], 9);
    assert_int_equal(bytes_at(to)[64], 0);
    ASSERT_OK(cuMemFree(to));
    ASSERT_OK(cuMemFree(from));
}

SIM_TEST(unfreed_host_memory_is_a_leak)
{
    unsigned char *host = allocate_pinned(12345);

    expect_leak(2, "pinned host memory: 1, first: 12345 bytes");
    ASSERT_OK(cuMemFreeHost(host));
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
    (void)allocate_pinned(100); /* freed with the machine */
}

/* Between pinned and device memory an asynchronous copy runs in stream order, not in the call. */
SIM_TEST_BYTES(copies_run_in_stream_order)
{
    const CUdeviceptr base = usable(GRANULE);
    const CUstream stream = new_stream();
    unsigned char *host = allocate_pinned(4096);

    memset(host, 1, 4096);
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuMemcpyHtoDAsync(base, host, 4096, stream));
    memset(host, 2, 4096);
    finish(stream);
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(bytes_at(base)[4095], 2);
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuMemcpyDtoHAsync(host, base, 4096, stream));
    memset(bytes_at(base), 3, 4096);
    assert_int_equal(host[0], 2);
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(host[0], 3);
    /* Work that a free waits for runs before the memory is unmapped. */
    CUdeviceptr freed = allocate(GRANULE);
    launch(stream, 1000000);
    ASSERT_OK(cuMemsetD8Async(freed, 7, 4096, stream));
    ASSERT_OK(cuMemcpyDtoHAsync(host, freed, 4096, stream));
    ASSERT_OK(cuMemFree(freed));
    assert_int_equal(host[4095], 7);
    ASSERT_OK(cuMemFreeHost(host));
    ASSERT_OK(cuStreamDestroy(stream));
}

static void free_during_a_copy(void)
{
    (void)with_bytes(NULL);
    const CUdeviceptr base = usable(GRANULE);
    const CUstream stream = new_stream();
    unsigned char *host = allocate_pinned(4096);

    launch(stream, UINT64_MAX);
    ASSERT_OK(cuMemcpyDtoHAsync(host, base, 4096, stream));
    (void)cuMemFreeHost(host);
}

SIM_TEST_BYTES(free_during_a_copy_is_reported)
{
    EXPECT_REPORT(free_during_a_copy,
                  "queued copy accesses the host memory; synchronize its stream first",
                  "xseg-sim: cuMemFreeHost: ", "4096 bytes");
}

static size_t count_resident(const unsigned char *start, size_t bytes)
{
    const size_t pages = bytes / page_bytes();
    unsigned char *is_resident = calloc(pages, 1);
    size_t count = 0;

    assert_non_null(is_resident);
    assert_int_equal(mincore((void *)(uintptr_t)start, bytes, is_resident), 0);
    for (size_t i = 0; i < pages; i++)
        count += is_resident[i] & 1;
    free(is_resident);
    return count;
}

/* Two pages of a large range have contents: the target of a copy has few resident pages, and is zero elsewhere. */
SIM_TEST_BYTES(copies_skip_pages_without_contents)
{
    const CUdeviceptr base = usable(LARGE), second = usable(LARGE);
    unsigned char *host = allocate_pinned(LARGE);

    bytes_at(base)[5000] = 7;
    bytes_at(base)[LARGE - 1] = 8;
    memset(host, 9, 3 * MIB); /* all of it must be overwritten */
    memset(bytes_at(second), 9, 3 * MIB);
    ASSERT_OK(cuMemcpyDtoH(host, base, LARGE));
    assert_true(count_resident(host, LARGE) <= 16);
    ASSERT_OK(cuMemcpyHtoD(second, host, LARGE));
    for (size_t at = 0; at < 3 * MIB; at++) {
        assert_int_equal(host[at], at == 5000 ? 7 : 0);
        assert_int_equal(bytes_at(second)[at], at == 5000 ? 7 : 0);
    }
    assert_int_equal(bytes_at(second)[LARGE - 1], 8);
    /* A part that starts and ends inside pages. */
    ASSERT_OK(cuMemcpyDtoD(base + 100, second + 4096, LARGE / 2));
    assert_int_equal(bytes_at(base)[100 + 5000 - 4096], 7);
    ASSERT_OK(cuMemsetD8(base + 50, 0, LARGE - 51));
    assert_int_equal(bytes_at(base)[100 + 5000 - 4096], 0);
    assert_int_equal(bytes_at(base)[LARGE - 1], 8);
}

/* The flags of the mapping at an address from /proc/self/smaps; "" if there is none. */
static void read_flags(const void *address, char *flags, size_t bytes)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    uintptr_t from, to;
    bool is_mapping = false;
    char line[512];

    flags[0] = '\0';
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            is_mapping = (uintptr_t)address >= from && (uintptr_t)address < to;
        else if (is_mapping && strncmp(line, "VmFlags:", 8) == 0)
            (void)snprintf(flags, bytes, "%s", line);
    }
    if (maps != NULL)
        (void)fclose(maps);
}

/* With transparent huge pages, one byte would occupy 2 MiB. */
SIM_TEST_BYTES(no_memory_uses_huge_pages)
{
    const void *const memory[] = {allocate_pinned(LARGE), bytes_at(usable(LARGE))};
    char flags[512];

    read_flags(memory[0], flags, sizeof(flags));
    if (is_emulated() || flags[0] == '\0' ||
        access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) {
        print_message(
            "# skipped: this host has no transparent huge pages, or does not report them\n");
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        read_flags(memory[i], flags, sizeof(flags));
        assert_non_null(strstr(flags, " nh"));
    }
}
