/* SPDX-License-Identifier: MIT */
/* Registration of memory by other components: dma-bufs, registrars, and missing support. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/unit/sim_setup.h"

#define FD CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

/* CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE and CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE. */
enum { PCIE = 1, RDMA_CAPABLE = 15 };

static CUmemAllocationProp for_rdma(int device)
{
    CUmemAllocationProp prop = on_device(device);

    prop.allocFlags.gpuDirectRDMACapable = 1;
    return prop;
}

/* Map new memory, which is released when it is unmapped, with access for its device. */
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

/* Eight granules: mappings of 2, 1 and 1, an unmapped one, one without the flag, one of the second device, one
 * without access. */
static CUdeviceptr set_scene(void)
{
    const CUdeviceptr base = reserve(8 * GRANULE);
    const CUmemAllocationProp without_flag = on_device(0), second = for_rdma(1);
    CUmemAccessDesc desc = read_write(0);

    back_for_rdma(base, 2 * GRANULE);
    back_for_rdma(base + 2 * GRANULE, GRANULE);
    back_for_rdma(base + 3 * GRANULE, GRANULE);
    back_with(base + 5 * GRANULE, GRANULE, &without_flag);
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

static unsigned is_capable(CUdeviceptr address)
{
    unsigned value = 9;

    ASSERT_OK(cuPointerGetAttribute(&value, (CUpointer_attribute)RDMA_CAPABLE, address));
    return value;
}

/* As expect_rejected(), for a status of either kind. */
static void expect_unsupported(xseg_status status, const char *words)
{
    assert_int_equal(status, XSEG_ERR_UNSUPPORTED);
    expect_rejected(XSEG_ERR_ARGUMENT, words);
}

/* The end of a message: "..., 0xADDRESS (range: ..." */
static const char *at_page(const char *reason, CUdeviceptr address)
{
    static char text[128];

    (void)snprintf(text, sizeof(text), "%s, 0x%llx (range: ", reason, (unsigned long long)address);
    return text;
}

/* A message about a range that does not end in one mapping or allocation. */
static const char *past_end(uint64_t bytes, CUdeviceptr address, CUdeviceptr end)
{
    static char text[192];

    (void)snprintf(text, sizeof(text),
                   "range exceeds its mapping or allocation, %llu bytes at 0x%llx; end the range "
                   "at 0x%llx or before",
                   (unsigned long long)bytes, (unsigned long long)address, (unsigned long long)end);
    return text;
}

/* --- Handles of address ranges. --- */

SIM_TEST(a_handle_is_a_descriptor_of_its_range)
{
    const CUdeviceptr base = set_scene();
    const size_t page = page_bytes();
    const int file = new_handle(base + GRANULE + page, 2 * GRANULE),
              second = new_handle(base, page);
    char link[64], name[256] = "", expected[160];

    assert_true(file != second);
    assert_int_equal(lseek(file, 0, SEEK_END), 2 * GRANULE);
    assert_int_equal(lseek(second, 0, SEEK_END), page);
    assert_int_equal(fcntl(file, F_GETFD), FD_CLOEXEC);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    assert_true(readlink(link, name, sizeof(name) - 1) > 0);
    (void)snprintf(expected, sizeof(expected),
                   "xseg-sim-dmabuf address 0x%llx bytes 4194304 device 0 memory ",
                   (unsigned long long)base + GRANULE + page);
    assert_non_null(strstr(name, expected));
    (void)close(file);
    (void)close(second);
}

SIM_TEST(exported_range_must_be_whole_and_of_one_kind)
{
    const CUdeviceptr base = set_scene();
    CUmemAllocationProp exported = for_rdma(0);
    int file = -7;

    ASSERT_INVALID(cuMemGetHandleForAddressRange(NULL, base, GRANULE, FD, 0));
    ASSERT_INVALID(cuMemGetHandleForAddressRange(&file, base, GRANULE, (CUmemRangeHandleType)2, 0));
    ASSERT_INVALID(cuMemGetHandleForAddressRange(&file, base, GRANULE, FD, 2));
    ASSERT_CU(cuMemGetHandleForAddressRange(&file, base, GRANULE, FD, PCIE),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_INVALID(handle_of(base, 0, &file));
    ASSERT_INVALID(handle_of(base + 512, page_bytes(), &file));
    ASSERT_INVALID(handle_of(base, page_bytes() + 512, &file));
    ASSERT_INVALID(handle_of(page_bytes(), page_bytes(), &file));
    ASSERT_INVALID(handle_of(base, 5 * GRANULE, &file));
    ASSERT_INVALID(handle_of(base + 4 * GRANULE, GRANULE, &file));
    ASSERT_CU(handle_of(base + 5 * GRANULE, GRANULE, &file), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_INVALID(handle_of(base + 6 * GRANULE, 2 * GRANULE, &file));
    ASSERT_INVALID(handle_of(base + 7 * GRANULE, GRANULE, &file));
    ASSERT_INVALID(handle_of(base, SIZE_MAX - page_bytes() + 1, &file));
    exported.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    back_with(base + 4 * GRANULE, GRANULE, &exported);
    ASSERT_INVALID(handle_of(base + 3 * GRANULE, 2 * GRANULE, &file));
    assert_int_equal(file, -7);
    (void)close(new_handle(base + 4 * GRANULE, GRANULE));
    (void)close(new_handle(base + 6 * GRANULE, GRANULE));
}

SIM_TEST(an_allocation_has_handles_of_whole_pages)
{
    int file = -1;
    CUdeviceptr address = allocate(page_bytes() + 1000);

    (void)close(new_handle(address, page_bytes()));
    (void)close(new_handle(address, 2 * page_bytes()));
    ASSERT_INVALID(handle_of(address, 3 * page_bytes(), &file));
    ASSERT_OK(cuMemFree(address));
    ASSERT_INVALID(handle_of(address, page_bytes(), &file));
}

SIM_TEST(an_open_handle_keeps_the_memory)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    back_for_rdma(base, GRANULE);
    back_for_rdma(base + GRANULE, 2 * GRANULE);
    int file = new_handle(base + GRANULE, page_bytes()), copy = dup(file);
    ASSERT_OK(cuMemUnmap(base, 3 * GRANULE));
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    (void)close(file);
    assert_int_equal(xseg_sim_used(0), 2 * GRANULE);
    (void)close(copy);
    assert_int_equal(free_memory(), total_memory(0));
    assert_int_equal(xseg_sim_used(0), 0);
    /* A mapping keeps its memory after the handle was closed. */
    back_for_rdma(base, GRANULE);
    (void)close(new_handle(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
    /* A reset of the machine releases the memory of open handles. */
    back_for_rdma(base, GRANULE);
    file = new_handle(base, GRANULE);
    (void)fresh(NULL);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
    (void)close(file);
}

SIM_TEST(handle_uses_two_descriptors)
{
    const CUdeviceptr base = reserve(GRANULE);
    const int lowest_free = dup(STDIN_FILENO);
    struct rlimit before;
    int file = -7;

    back_for_rdma(base, GRANULE);
    (void)close(lowest_free);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit limit = before;
    for (int extra = 0; extra < 2; extra++) {
        limit.rlim_cur = (rlim_t)(lowest_free + extra);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        ASSERT_CU(handle_of(base, GRANULE, &file), CUDA_ERROR_OUT_OF_MEMORY);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(file, -7);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
}

/* --- Registrations. --- */

static xseg_status peermem(CUdeviceptr address, uint64_t bytes, uint64_t *id)
{
    return xseg_sim_register(address, bytes, XSEG_SIM_PEERMEM, id);
}

static xseg_status dmabuf(CUdeviceptr address, uint64_t bytes, uint64_t *id)
{
    return xseg_sim_register(address, bytes, XSEG_SIM_DMABUF, id);
}

static xseg_status nccl(CUdeviceptr address, uint64_t bytes, uint64_t *id)
{
    return xseg_sim_register(address, bytes, XSEG_SIM_NCCL, id);
}

SIM_TEST(registrations_are_counted)
{
    const CUdeviceptr base = set_scene();
    uint64_t first = 0, second = 0, third = 0;

    assert_int_equal(xseg_sim_registered(), 0);
    assert_int_equal(peermem(base + 100, 2 * GRANULE - 100, &first), XSEG_OK);
    assert_int_equal(dmabuf(base, 1, &second), XSEG_OK);
    const size_t leaks = xseg_sim_leaks(NULL, 0);
    assert_int_equal(nccl(base + 5, 4 * GRANULE - 5, &third), XSEG_OK);
    assert_true(first != second && second != third && first != 0);
    expect_leak(leaks + 1, "registrations: 3, first: ");
    assert_int_equal(xseg_sim_registered(), (2 * GRANULE - 100) + 1 + (4 * GRANULE - 5));
    assert_int_equal(xseg_sim_unregister(second), XSEG_OK);
    expect_rejected(xseg_sim_unregister(second), "xseg_sim_unregister: unknown registration, ID ");
    assert_int_equal(xseg_sim_unregister(first), XSEG_OK);
    assert_int_equal(xseg_sim_registered(), 4 * GRANULE - 5);
    expect_leak(leaks - 1, "registrations: 1, first: 8388603 bytes at 0x");
    expect_leak(leaks - 1, " for NCCL\n");
    assert_int_equal(xseg_sim_unregister(third), XSEG_OK);
    assert_int_equal(xseg_sim_registered(), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(peermem(base, GRANULE, &first), XSEG_OK);
    assert_int_equal(xseg_sim_registered(), 100 * GRANULE);
    assert_int_equal(xseg_sim_registrations(), 3 + 100);
    (void)fresh(NULL);
    assert_int_equal(xseg_sim_registered(), 0);
    assert_int_equal(xseg_sim_registrations(), 0);
    expect_rejected(xseg_sim_unregister(first), "xseg_sim_unregister: unknown registration, ID ");
}

/* Expect that every registrar rejects a range, with the reason and the first invalid page in the error message. */
static void expect_rejected_by_all(CUdeviceptr address, uint64_t bytes, CUdeviceptr page,
                                   const char *reason)
{
    uint64_t id = 77;

    expect_rejected(peermem(address, bytes, &id), at_page(reason, page));
    expect_rejected(dmabuf(address, bytes, &id), at_page(reason, page));
    expect_rejected(nccl(address, bytes, &id), at_page(reason, page));
    assert_int_equal(id, 77);
}

SIM_TEST(every_registrar_validates_the_memory)
{
    const CUdeviceptr base = set_scene();
    uint64_t id = 77;

    expect_rejected_by_all(base + 4 * GRANULE + page_bytes() + 900, 1,
                           base + 4 * GRANULE + page_bytes(), "page is not mapped");
    expect_rejected_by_all(base + 7 * GRANULE + 1, 1, base + 7 * GRANULE,
                           "page is not accessible to its device");
    expect_rejected_by_all(2 * page_bytes(), 1, 2 * page_bytes(), "page is not mapped");
    for (int kind = XSEG_SIM_PEERMEM; kind <= XSEG_SIM_NCCL; kind++) {
        const enum xseg_sim_registrar registrar = (enum xseg_sim_registrar)kind;

        expect_unsupported(
            xseg_sim_register(base + 5 * GRANULE, GRANULE, registrar, &id),
            at_page("page was created without gpuDirectRDMACapable", base + 5 * GRANULE));
        expect_rejected(xseg_sim_register(base, 0, registrar, &id),
                        "range is empty or wraps around");
        expect_rejected(xseg_sim_register(base, UINT64_MAX, registrar, &id),
                        "range is empty or wraps around");
        expect_rejected(xseg_sim_register(base, 1, registrar, NULL), "id is NULL");
    }
    expect_rejected(xseg_sim_register(base, 1, (enum xseg_sim_registrar)3, &id),
                    "unknown kind, 3;");
    assert_int_equal(id, 77);
    assert_int_equal(xseg_sim_registered(), 0);
    assert_int_equal(xseg_sim_registrations(), 0);
}

SIM_TEST(some_registrars_accept_one_mapping_only)
{
    const CUdeviceptr base = set_scene();
    CUmemAllocationProp exported = for_rdma(0);
    uint64_t id = 0;

    expect_rejected(peermem(base + GRANULE, GRANULE + 1, &id),
                    past_end(GRANULE + 1, base + GRANULE, base + 2 * GRANULE));
    expect_rejected(dmabuf(base + 2 * GRANULE, 2 * GRANULE, &id),
                    past_end(2 * GRANULE, base + 2 * GRANULE, base + 3 * GRANULE));
    assert_int_equal(nccl(base + GRANULE, 3 * GRANULE, &id), XSEG_OK);
    expect_rejected(nccl(base, 5 * GRANULE, &id),
                    at_page("page is not mapped", base + 4 * GRANULE));
    exported.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    back_with(base + 4 * GRANULE, GRANULE, &exported);
    expect_rejected(nccl(base, 5 * GRANULE, &id),
                    at_page("page has other properties than the first page", base + 4 * GRANULE));
    ASSERT_OK(cuMemUnmap(base + 4 * GRANULE, GRANULE));
    back_for_rdma(base + 4 * GRANULE, GRANULE);
    expect_unsupported(
        nccl(base + 3 * GRANULE, 3 * GRANULE, &id),
        at_page("page was created without gpuDirectRDMACapable", base + 5 * GRANULE));
    ASSERT_OK(cuMemUnmap(base + 5 * GRANULE, GRANULE));
    back_for_rdma(base + 5 * GRANULE, GRANULE);
    expect_rejected(nccl(base + 5 * GRANULE, 2 * GRANULE, &id),
                    at_page("page is on another device than the first page", base + 6 * GRANULE));
}

SIM_TEST(allocations_can_be_registered)
{
    uint64_t id = 0;
    CUdeviceptr address = allocate(5000);

    for (int kind = XSEG_SIM_PEERMEM; kind <= XSEG_SIM_NCCL; kind++) {
        assert_int_equal(xseg_sim_register(address + 1, 4999, (enum xseg_sim_registrar)kind, &id),
                         XSEG_OK);
        assert_int_equal(xseg_sim_unregister(id), XSEG_OK);
    }
    expect_rejected(peermem(address, 5001, &id), past_end(5001, address, address + 5000));
    expect_rejected(dmabuf(address, 5001, &id), past_end(5001, address, address + 5000));
    expect_rejected(nccl(address, 2 * page_bytes() + 1, &id),
                    "page is past the end of the reservation or allocation");
    ASSERT_OK(cuMemFree(address));
}

SIM_TEST(a_descriptor_is_registered)
{
    const CUdeviceptr base = set_scene();
    const int file = new_handle(base + GRANULE, 3 * GRANULE);
    uint64_t id = 0;

    expect_rejected(xseg_sim_register_descriptor(file, GRANULE, 2 * GRANULE + 1, &id),
                    "range exceeds the dma-buf of 6291456 bytes, 4194305 bytes at offset 2097152");
    expect_rejected(xseg_sim_register_descriptor(file, 4 * GRANULE, 1, &id),
                    "range exceeds the dma-buf of");
    expect_rejected(xseg_sim_register_descriptor(file, 0, 0, &id),
                    "range is empty or wraps around");
    expect_rejected(xseg_sim_register_descriptor(file, 0, 1, NULL), "id is NULL");
    expect_rejected(xseg_sim_register_descriptor(-1, 0, 1, &id),
                    "descriptor is not a dma-buf of this process, -1;");
    expect_rejected(xseg_sim_register_descriptor(STDIN_FILENO, 0, 1, &id),
                    "descriptor is not a dma-buf of this process, 0;");
    assert_int_equal(xseg_sim_register_descriptor(file, 5, 3 * GRANULE - 5, &id), XSEG_OK);
    (void)close(file);
    assert_int_equal(xseg_sim_registered(), 3 * GRANULE - 5);
    assert_int_equal(xseg_sim_unregister(id), XSEG_OK);
}

SIM_TEST(a_descriptor_of_remapped_memory_is_rejected)
{
    const CUdeviceptr base = set_scene();
    const int file = new_handle(base, 3 * GRANULE);
    uint64_t id = 0;

    ASSERT_OK(cuMemUnmap(base + 2 * GRANULE, GRANULE));
    expect_rejected(
        xseg_sim_register_descriptor(file, GRANULE, 2 * GRANULE, &id),
        at_page("page was remapped after the descriptor was created", base + 2 * GRANULE));
    back_for_rdma(base + 2 * GRANULE, GRANULE);
    expect_rejected(xseg_sim_register_descriptor(file, 2 * GRANULE, 1, &id),
                    "page was remapped after the descriptor was created");
    assert_int_equal(xseg_sim_register_descriptor(file, 0, 2 * GRANULE, &id), XSEG_OK);
    (void)close(file);
    CUdeviceptr address = allocate(1);
    int descriptor = new_handle(address, page_bytes());
    assert_int_equal(xseg_sim_register_descriptor(descriptor, 0, 4096, &id), XSEG_OK);
    assert_int_equal(xseg_sim_unregister(id), XSEG_OK);
    ASSERT_OK(cuMemFree(address));
    expect_rejected(xseg_sim_register_descriptor(descriptor, 0, 4096, &id),
                    "page was remapped after the descriptor was created");
    (void)close(descriptor);
}

/* --- Calls that end in a report. --- */

static void unmap_registered(void)
{
    CUdeviceptr base = set_scene();
    uint64_t id;

    (void)nccl(base + 2 * GRANULE, 2 * GRANULE, &id);
    (void)cuMemUnmap(base + 2 * GRANULE, GRANULE);
}

static void unmap_memory_of_a_descriptor(void)
{
    CUdeviceptr base = set_scene();
    uint64_t id;

    (void)xseg_sim_register_descriptor(new_handle(base, page_bytes()), 4095, 1, &id);
    (void)cuMemUnmap(base, 2 * GRANULE);
}

static void free_registered(void)
{
    CUdeviceptr address = allocate(100);
    uint64_t id;

    (void)peermem(address, 1, &id);
    (void)cuMemFree(address);
}

SIM_TEST(release_of_registered_memory_is_reported)
{
    EXPECT_REPORT(
        unmap_registered, "xseg-sim: cuMemUnmap: undefined behavior, memory is registered",
        "call:         cuMemUnmap",
        "mapping:      2097152 bytes at 0x200400000, created by cuMemMap",
        "memory:       2097152 bytes on device 0, created by cuMemCreate", "registration: ID ",
        ", 4194304 bytes at 0x200400000 for NCCL, created by xseg_sim_register, call", "stack:");
    EXPECT_REPORT(unmap_memory_of_a_descriptor,
                  "1 bytes at 0x200000fff for descriptor user, created by "
                  "xseg_sim_register_descriptor, call");
    EXPECT_REPORT(free_registered, "cuMemFree: undefined behavior, memory is registered",
                  "call:         cuMemFree", "100 bytes on device 0", "registration: ID ",
                  "for nvidia_peermem");
}

SIM_TEST(memory_next_to_a_registration_can_be_released)
{
    CUdeviceptr base = set_scene();
    uint64_t id = 0;

    assert_int_equal(peermem(base + 2 * GRANULE, GRANULE, &id), XSEG_OK);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cuMemUnmap(base + 3 * GRANULE, GRANULE));
    assert_int_equal(xseg_sim_unregister(id), XSEG_OK);
    ASSERT_OK(cuMemUnmap(base + 2 * GRANULE, GRANULE));
    /* Fast mode does not check. */
    start_with((struct xseg_sim_settings){.skip_checks = true});
    base = set_scene();
    assert_int_equal(peermem(base, GRANULE, &id), XSEG_OK);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
}

/* --- Machines without support. --- */

static void start_with_rdma(enum xseg_sim_rdma rdma, bool dma_buf, bool address_range)
{
    start_with((struct xseg_sim_settings){
        .rdma = rdma, .without_dma_buf = !dma_buf, .without_address_range = !address_range});
}

/* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED and DMA_BUF_SUPPORTED. */
static void expect_attributes(int rdma, int rdma_of_mapped, int dma_buf)
{
    assert_int_equal(device_attribute(116), rdma);
    assert_int_equal(device_attribute(110), rdma_of_mapped);
    assert_int_equal(device_attribute(124), dma_buf);
}

SIM_TEST(memory_for_rdma_can_be_unsupported)
{
    const CUmemAllocationProp prop = for_rdma(0), without_flag = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    uint64_t id = 0;

    start_with_rdma(XSEG_SIM_RDMA_CREATE_FAILS, true, true);
    expect_attributes(1, 1, 1);
    ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &without_flag, 0));
    CUdeviceptr address = allocate(1);
    assert_int_equal(peermem(address, 1, &id), XSEG_OK);

    start_with_rdma(XSEG_SIM_RDMA_ABSENT, true, true);
    expect_attributes(0, 0, 1);
    ASSERT_CU(cuMemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &without_flag, 0));
    address = allocate(1);
    assert_int_equal(is_capable(address), 0);
    expect_unsupported(peermem(address, 1, &id), "RDMA is not supported by the simulated machine");
    expect_unsupported(xseg_sim_register_descriptor(new_handle(address, page_bytes()), 0, 1, &id),
                       "RDMA is not supported by the simulated machine");
}

SIM_TEST(memory_for_rdma_can_be_denied_or_ignored)
{
    const CUmemAllocationProp prop = for_rdma(0);
    CUmemAccessDesc desc = read_write(0);
    CUmemGenericAllocationHandle handle = 0;

    start_with_rdma(XSEG_SIM_RDMA_ACCESS_FAILS, true, true);
    expect_attributes(1, 1, 1);
    CUdeviceptr base = reserve(2 * GRANULE);
    back(base, GRANULE);
    ASSERT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
    ASSERT_OK(cuMemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_CU(cuMemSetAccess(base, 2 * GRANULE, &desc, 1), CUDA_ERROR_UNKNOWN);
    assert_int_equal(access_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ASSERT_OK(cuMemSetAccess(base, 2 * GRANULE, &desc, 1));

    start_with_rdma(XSEG_SIM_RDMA_IGNORED, true, true);
    expect_attributes(1, 1, 1);
    base = reserve(GRANULE);
    back_for_rdma(base, GRANULE);
    assert_int_equal(is_capable(base), 0);
    start_with_rdma(XSEG_SIM_RDMA_WORKS, true, true);
    base = reserve(GRANULE);
    back_for_rdma(base, GRANULE);
    assert_int_equal(is_capable(base), 1);
}

SIM_TEST(dma_bufs_can_be_unsupported)
{
    uint64_t id = 0;
    int file = -1;

    start_with_rdma(XSEG_SIM_RDMA_WORKS, false, true);
    expect_attributes(1, 1, 0);
    CUdeviceptr base = set_scene();
    ASSERT_CU(handle_of(base, GRANULE, &file), CUDA_ERROR_NOT_SUPPORTED);
    expect_unsupported(dmabuf(base, GRANULE, &id),
                       "dma-bufs are not supported by the simulated machine");
    assert_int_equal(peermem(base, 2 * GRANULE, &id), XSEG_OK);
    assert_int_equal(nccl(base, 2 * GRANULE, &id), XSEG_OK);
    expect_rejected(nccl(base, 3 * GRANULE, &id), past_end(3 * GRANULE, base, base + 2 * GRANULE));
}

SIM_TEST(rdma_queries_can_be_unsupported)
{
    CUdeviceptr start_address = 0;
    size_t bytes = 0;
    uint64_t id = 0;

    start_with_rdma(XSEG_SIM_RDMA_WORKS, true, false);
    CUdeviceptr base = set_scene();
    ASSERT_CU(cuMemGetAddressRange(&start_address, &bytes, base), CUDA_ERROR_NOT_FOUND);
    (void)close(new_handle(base, 4 * GRANULE));
    assert_int_equal(peermem(base, 2 * GRANULE, &id), XSEG_OK);
    expect_unsupported(dmabuf(base, GRANULE, &id),
                       at_page("page is not found by cuMemGetAddressRange", base));
    expect_unsupported(nccl(base, GRANULE, &id),
                       at_page("page is not found by cuMemGetAddressRange", base));
    expect_rejected(nccl(base + 4 * GRANULE, 1, &id), "page is not mapped");
    CUdeviceptr address = allocate(1);
    ASSERT_OK(cuMemGetAddressRange(&start_address, &bytes, address));
    assert_int_equal(dmabuf(address, 1, &id), XSEG_OK);
    assert_int_equal(nccl(address, 1, &id), XSEG_OK);
}
