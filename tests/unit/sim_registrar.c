/* SPDX-License-Identifier: MIT */
/* Memory that others register: dma-bufs. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/unit/sim_setup.h"

#define FD CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

/* CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE. */
enum { PCIE = 1 };

static CUmemAllocationProp for_rdma(int device)
{
    CUmemAllocationProp prop = on_device(device);

    prop.allocFlags.gpuDirectRDMACapable = 1;
    return prop;
}

/* Memory of one mapping, with access for its device. */
static void back_with(CUdeviceptr address, size_t bytes, const CUmemAllocationProp *prop)
{
    const CUmemAccessDesc desc = read_write(prop->location.id);
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cuMemCreate(&handle, bytes, prop, 0));
    ASSERT_OK(cuMemMap(address, bytes, 0, handle, 0));
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_OK(cuMemSetAccess(address, bytes, &desc, 1));
}

static void back_for_rdma(CUdeviceptr address, size_t bytes)
{
    const CUmemAllocationProp prop = for_rdma(0);

    back_with(address, bytes, &prop);
}

/* Eight granules: mappings of 2, 1 and 1, a hole, one without the flag, one of the second device, one without access. */
static CUdeviceptr set_scene(void)
{
    const CUdeviceptr base = reserve(8 * GRANULE);
    const CUmemAllocationProp plain = on_device(0), second = for_rdma(1);
    CUmemAccessDesc desc = read_write(0);

    back_for_rdma(base, 2 * GRANULE);
    back_for_rdma(base + 2 * GRANULE, GRANULE);
    back_for_rdma(base + 3 * GRANULE, GRANULE);
    back_with(base + 5 * GRANULE, GRANULE, &plain);
    back_with(base + 6 * GRANULE, GRANULE, &second);
    back_for_rdma(base + 7 * GRANULE, GRANULE);
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base + 7 * GRANULE, GRANULE, &desc, 1));
    return base;
}

static CUresult handle_of(CUdeviceptr address, size_t bytes, int *file)
{
    return cuMemGetHandleForAddressRange(file, address, bytes, FD, 0);
}

static int new_handle(CUdeviceptr address, size_t bytes)
{
    int file = -1;

    ASSERT_OK(handle_of(address, bytes, &file));
    assert_true(file >= 0);
    return file;
}

/* --- Handles of address ranges. --- */

static void a_handle_is_a_descriptor_of_its_range(void **state)
{
    const CUdeviceptr base = set_scene();
    const int file = new_handle(base + GRANULE + 4096, 2 * GRANULE), again = new_handle(base, 4096);
    char link[64], name[256] = "", expected[160];

    (void)state;
    assert_true(file != again);
    assert_int_equal(lseek(file, 0, SEEK_END), 2 * GRANULE);
    assert_int_equal(lseek(again, 0, SEEK_END), 4096);
    assert_int_equal(fcntl(file, F_GETFD), FD_CLOEXEC);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    assert_true(readlink(link, name, sizeof(name) - 1) > 0);
    (void)snprintf(expected, sizeof(expected),
                   "xseg-sim-dmabuf address 0x%llx bytes 4194304 device 0 memory ",
                   (unsigned long long)base + GRANULE + 4096);
    assert_non_null(strstr(name, expected));
    (void)close(file);
    (void)close(again);
}

static void a_range_must_be_whole_and_of_one_kind(void **state)
{
    const CUdeviceptr base = set_scene();
    CUmemAllocationProp exported = for_rdma(0);
    int file = -7;

    (void)state;
    ASSERT_CU(cuMemGetHandleForAddressRange(NULL, base, GRANULE, FD, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemGetHandleForAddressRange(&file, base, GRANULE, (CUmemRangeHandleType)2, 0),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemGetHandleForAddressRange(&file, base, GRANULE, FD, 2), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemGetHandleForAddressRange(&file, base, GRANULE, FD, PCIE),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(handle_of(base, 0, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base + 512, 4096, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base, 4096 + 512, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(4096, 4096, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base, 5 * GRANULE, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base + 4 * GRANULE, GRANULE, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base + 5 * GRANULE, GRANULE, &file), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(handle_of(base + 6 * GRANULE, 2 * GRANULE, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base + 7 * GRANULE, GRANULE, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(handle_of(base, SIZE_MAX - 4095, &file), CUDA_ERROR_INVALID_VALUE);
    exported.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    back_with(base + 4 * GRANULE, GRANULE, &exported);
    ASSERT_CU(handle_of(base + 3 * GRANULE, 2 * GRANULE, &file), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(file, -7);
    (void)close(new_handle(base + 4 * GRANULE, GRANULE));
    (void)close(new_handle(base + 6 * GRANULE, GRANULE));
}

static void an_allocation_has_handles_of_whole_pages(void **state)
{
    CUdeviceptr address = 0;
    int file = -1;

    (void)state;
    ASSERT_OK(cuMemAlloc(&address, 5000));
    (void)close(new_handle(address, 4096));
    (void)close(new_handle(address, 8192));
    ASSERT_CU(handle_of(address, 3 * 4096, &file), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuMemFree(address));
    ASSERT_CU(handle_of(address, 4096, &file), CUDA_ERROR_INVALID_VALUE);
}

static void an_open_handle_keeps_the_memory(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    size_t left = 0, total = 0;
    int file, copy;

    (void)state;
    back_for_rdma(base, GRANULE);
    back_for_rdma(base + GRANULE, 2 * GRANULE);
    file = new_handle(base + GRANULE, 4096);
    copy = dup(file);
    ASSERT_OK(cuMemUnmap(base, 3 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    (void)close(file);
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    (void)close(copy);
    ASSERT_OK(cuMemGetInfo(&left, &total));
    assert_int_equal(left, total);
    assert_int_equal(xseg_sim_used(0), 0);
    /* The other way round: the memory outlives its handle. */
    back_for_rdma(base, GRANULE);
    (void)close(new_handle(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
    /* The end of a machine ends what its handles hold. */
    back_for_rdma(base, GRANULE);
    file = new_handle(base, GRANULE);
    (void)fresh(NULL);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
    (void)close(file);
}

static void a_handle_takes_two_descriptors(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    const int next = dup(STDIN_FILENO);
    struct rlimit before, few;
    int file = -7;

    (void)state;
    back_for_rdma(base, GRANULE);
    (void)close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    for (int more = 0; more < 2; more++) {
        few.rlim_cur = (rlim_t)(next + more);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        ASSERT_CU(handle_of(base, GRANULE, &file), CUDA_ERROR_OUT_OF_MEMORY);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(file, -7);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_handle_is_a_descriptor_of_its_range, fresh),
        cmocka_unit_test_setup(a_range_must_be_whole_and_of_one_kind, fresh),
        cmocka_unit_test_setup(an_allocation_has_handles_of_whole_pages, fresh),
        cmocka_unit_test_setup(an_open_handle_keeps_the_memory, fresh),
        cmocka_unit_test_setup(a_handle_takes_two_descriptors, fresh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
