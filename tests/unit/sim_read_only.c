/* SPDX-License-Identifier: MIT */
/* Memory that a device may read and not write: rights of each place, what they forbid, and work that only reads. */
#include <stdlib.h>

#include "tests/unit/sim_setup.h"

static CUmemAccessDesc right(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc = read_write(device);

    desc.flags = flags;
    return desc;
}

static CUresult allow(CUdeviceptr address, int device, CUmemAccess_flags flags)
{
    const CUmemAccessDesc desc = right(device, flags);

    return cuMemSetAccess(address, GRANULE, &desc, 1);
}

#define NONE  CU_MEM_ACCESS_FLAGS_PROT_NONE
#define READ  CU_MEM_ACCESS_FLAGS_PROT_READ
#define WRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* Two granules with the same memory: device 0 may write the first and only read the second. */
static CUdeviceptr two_places(void)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(GRANULE);

    ASSERT_OK(cuMemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_OK(allow(base, 0, WRITE));
    ASSERT_OK(allow(base + GRANULE, 0, READ));
    return base;
}

/* --- Rights. --- */

static void each_place_has_rights_of_its_own(void **state)
{
    const CUdeviceptr base = two_places(), second = base + GRANULE;
    unsigned flags = 0;

    (void)state;
    assert_int_equal(access_of(base, 0), WRITE);
    assert_int_equal(access_of(second, 0), READ);
    assert_int_equal(access_of(second, 1), NONE);
    ASSERT_OK(allow(base, 1, READ));
    ASSERT_OK(allow(second, 1, WRITE));
    assert_int_equal(access_of(base, 0), WRITE);
    assert_int_equal(access_of(base, 1), READ);
    assert_int_equal(access_of(second, 0), READ);
    assert_int_equal(access_of(second, 1), WRITE);
    ASSERT_OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, second));
    assert_int_equal(flags, READ);
    /* The memory is used once, and lives as long as either place. */
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    assert_int_equal(access_of(second, 0), READ);
    assert_int_equal(xseg_sim_used(0), GRANULE);
    ASSERT_OK(cuMemUnmap(second, GRANULE));
    assert_int_equal(xseg_sim_used(0), 0);
}

static void one_call_covers_several_places(void **state)
{
    const CUdeviceptr base = two_places();
    const CUmemAccessDesc both[2] = {right(0, READ), right(1, READ)};

    (void)state;
    ASSERT_OK(cuMemSetAccess(base, 2 * GRANULE, both, 2));
    for (int i = 0; i < 4; i++)
        assert_int_equal(access_of(base + (CUdeviceptr)(i / 2) * GRANULE, i % 2), READ);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
}

static void a_machine_can_refuse_it(void **state)
{
    struct xseg_sim_settings settings = small_machine();
    const CUmemAccessDesc both[2] = {right(0, WRITE), right(1, READ)};
    CUdeviceptr base;

    (void)state;
    settings.without_read_only = true;
    start(&settings);
    base = reserve(GRANULE);
    back(base, GRANULE);
    ASSERT_CU(cuMemSetAccess(base, GRANULE, both, 2), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(access_of(base, 0), NONE);
    assert_int_equal(access_of(base, 1), NONE);
    ASSERT_OK(allow(base, 0, WRITE));
    ASSERT_CU(allow(base, 0, READ), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(access_of(base, 0), WRITE);
}

/* --- Contents. --- */

static unsigned char *seen(CUdeviceptr address)
{
    return (unsigned char *)(uintptr_t)address;
}

/* Whether the process survives writing there. */
static bool can_write(CUdeviceptr address)
{
    const pid_t child = fork();
    int result = 0;

    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        *(volatile unsigned char *)seen(address) = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFEXITED(result) && WEXITSTATUS(result) == 0;
}

static void what_one_place_writes_the_other_reads(void **state)
{
    const CUdeviceptr base = two_places(), second = base + GRANULE;
    unsigned char *const back = malloc(GRANULE);
    CUdeviceptr own = 0;

    (void)state;
    assert_non_null(back);
    ASSERT_OK(cuMemAlloc(&own, GRANULE));
    ASSERT_OK(cuMemsetD8(base, 7, GRANULE));
    assert_int_equal(seen(second)[GRANULE - 1], 7);
    ASSERT_OK(cuMemcpyDtoH(back, second, GRANULE));
    assert_int_equal(back[GRANULE - 1], 7);
    ASSERT_OK(cuMemcpyDtoD(own, second, GRANULE));
    assert_int_equal(seen(own)[0], 7);
    ASSERT_OK(cuMemsetD8(base, 0, GRANULE)); /* a hole of the file */
    ASSERT_OK(cuMemcpyDtoD(own, second, GRANULE));
    assert_int_equal(seen(own)[0], 0);
    free(back);
    ASSERT_OK(cuMemFree(own));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
}

static void the_host_writes_where_any_device_may(void **state)
{
    const CUdeviceptr base = two_places(), second = base + GRANULE;

    (void)state;
    assert_true(can_write(base));
    assert_false(can_write(second));
    assert_int_equal(seen(second)[0], 1);
    ASSERT_OK(allow(second, 1, WRITE));
    assert_true(can_write(second));
    ASSERT_OK(allow(second, 1, READ));
    assert_false(can_write(second));
    ASSERT_OK(allow(second, 0, NONE));
    assert_int_equal(seen(second)[0], 1);
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
}

/* --- What is a report. --- */

/* The second of two places of a fresh machine. */
static CUdeviceptr read_only(void)
{
    (void)fresh(NULL);
    return two_places() + GRANULE;
}

static void fill_it(void)
{
    const CUdeviceptr address = read_only();

    (void)cuMemsetD32Async(address, 1, 8, new_stream());
}

static void fill_into_it(void)
{
    (void)cuMemsetD8(read_only() - 8, 1, 16);
}

static void copy_to_it_from_the_host(void)
{
    const char letter = 'x';

    (void)cuMemcpyHtoD(read_only(), &letter, 1);
}

static void copy_to_it_from_its_other_place(void)
{
    const CUdeviceptr address = read_only();

    (void)cuMemcpyDtoDAsync(address + 8, address - GRANULE, 8, NULL);
}

static void copy_to_it_by_any_call(void)
{
    const CUdeviceptr address = read_only();

    (void)cuMemcpy(address + 8, address, 8);
}

static void copy_to_it_as_a_peer(void)
{
    const CUdeviceptr address = read_only();
    CUcontext own = NULL;

    (void)cuCtxGetCurrent(&own);
    (void)cuMemcpyPeerAsync(address + 8, own, address, own, 8, NULL);
}

static void write_a_value_to_it(void)
{
    const CUdeviceptr address = read_only();

    (void)cuStreamWriteValue32(new_stream(), address, 1, 0);
}

static void run_a_kernel_on_it(void)
{
    (void)xseg_sim_launch_on(NULL, 1, read_only(), 1);
}

static void launch_a_graph_after_it_became_read_only(void)
{
    const CUdeviceptr address = read_only() - GRANULE;
    CUstream stream = new_stream();
    CUgraphExec executable = NULL;
    CUgraph graph = NULL;

    (void)cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    (void)cuMemsetD8Async(address, 1, 8, stream);
    (void)cuStreamEndCapture(stream, &graph);
    (void)cuGraphInstantiateWithFlags(&executable, graph, 0);
    if (allow(address, 0, READ) == CUDA_SUCCESS)
        (void)cuGraphLaunch(executable, stream);
}

static void what_writes_ends_in_a_report(void **state)
{
    static const struct {
        void (*part)(void);
        const char *call;
    } rows[] = {
        {fill_it, "cuMemsetD32Async"},
        {fill_into_it, "cuMemsetD8"},
        {copy_to_it_from_the_host, "cuMemcpyHtoD"},
        {copy_to_it_from_its_other_place, "cuMemcpyDtoDAsync"},
        {copy_to_it_by_any_call, "cuMemcpy,"},
        {copy_to_it_as_a_peer, "cuMemcpyPeerAsync"},
        {write_a_value_to_it, "cuStreamWriteValue32"},
        {run_a_kernel_on_it, "xseg_sim_launch_on"},
        {launch_a_graph_after_it_became_read_only, "cuGraphLaunch"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        EXPECT_REPORT(rows[i].part, "a read-only address is written", rows[i].call,
                      "touched by device 0", "mapping: 2097152 bytes");
}

/* Where nothing is checked, transfers are refused as for memory that cannot be reached. */
static void a_lenient_machine_refuses_it(void **state)
{
    struct xseg_sim_settings settings = small_machine();
    CUdeviceptr base;

    (void)state;
    settings.fast = true;
    start(&settings);
    (void)enter(0);
    base = two_places();
    ASSERT_CU(cuMemsetD8(base + GRANULE, 1, 8), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuMemcpyDtoD(base + GRANULE, base, 8), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuMemcpyDtoD(base, base + GRANULE + 8, 8));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
}

/* --- Work that only reads. --- */

static void work_that_only_reads_may_read(void **state)
{
    const CUdeviceptr base = two_places(), second = base + GRANULE;
    CUstream stream = new_stream();

    (void)state;
    assert_int_equal(xseg_sim_launch_reading(stream, UINT64_MAX, second, GRANULE), XSEG_OK);
    assert_int_equal(xseg_sim_launch_reading(stream, UINT64_MAX, base, 2 * GRANULE), XSEG_OK);
    /* A right to write may go under it, and come. */
    ASSERT_OK(allow(base, 0, READ));
    ASSERT_OK(allow(second, 0, WRITE));
    ASSERT_OK(allow(second, 0, READ));
    ASSERT_OK(cuStreamSynchronize(stream));
    ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
    expect_refused(xseg_sim_launch_reading((CUstream)(uintptr_t)5, 1, base, 1), "no stream");
}

/* Rights of the same work in a graph are looked at when it is launched. */
static void a_graph_keeps_that_it_only_reads(void **state)
{
    const CUdeviceptr second = two_places() + GRANULE;
    CUstream stream = new_stream();
    CUgraphExec executable = NULL;
    CUgraph graph = NULL;

    (void)state;
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(xseg_sim_launch_reading(stream, 10, second, GRANULE), XSEG_OK);
    ASSERT_OK(cuStreamEndCapture(stream, &graph));
    ASSERT_OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    ASSERT_OK(cuGraphLaunch(executable, stream));
    ASSERT_OK(cuStreamSynchronize(stream));
}

static void unmap_under_it(void)
{
    const CUdeviceptr address = read_only();

    (void)xseg_sim_launch_reading(NULL, UINT64_MAX, address, 8);
    (void)cuMemUnmap(address, GRANULE);
}

static void take_the_right_to_read_under_it(void)
{
    const CUdeviceptr address = read_only();

    (void)xseg_sim_launch_reading(NULL, UINT64_MAX, address, 8);
    (void)allow(address, 0, NONE);
}

static void take_the_right_to_read_under_a_copy(void)
{
    const CUdeviceptr address = read_only();
    CUstream stream = new_stream();

    (void)xseg_sim_launch(stream, 1000);
    (void)cuMemcpyDtoDAsync(address - GRANULE, address, 8, stream);
    (void)allow(address, 0, NONE);
}

static void take_the_right_to_write_under_a_fill(void)
{
    const CUdeviceptr address = read_only() - GRANULE;
    CUstream stream = new_stream();

    (void)xseg_sim_launch(stream, 1000);
    (void)cuMemsetD8Async(address, 1, 8, stream);
    (void)allow(address, 0, READ);
}

/* Open work behind open work is one piece, which here has only read so far. */
static void take_the_right_to_write_under_what_reads_and_writes(void)
{
    const CUdeviceptr address = read_only() - GRANULE;
    CUstream stream = new_stream();

    (void)xseg_sim_launch_reading(stream, UINT64_MAX, address, 8);
    (void)xseg_sim_launch_on(stream, UINT64_MAX, address, 8);
    (void)allow(address, 0, READ);
}

static void read_without_rights(void)
{
    const CUdeviceptr address = read_only();

    (void)allow(address, 0, NONE);
    (void)xseg_sim_launch_reading(NULL, 1, address, 1);
}

static void rights_that_work_needs_stay(void **state)
{
    (void)state;
    EXPECT_REPORT(unmap_under_it, "memory is taken away that queued work touches",
                  "which reads 8 bytes", "xseg_sim_launch_reading");
    EXPECT_REPORT(take_the_right_to_read_under_it, "memory is taken away that queued work touches",
                  "which reads 8 bytes", "call:    cuMemSetAccess");
    EXPECT_REPORT(take_the_right_to_read_under_a_copy, "memory is taken away", "which reads",
                  "cuMemcpyDtoDAsync");
    EXPECT_REPORT(take_the_right_to_write_under_a_fill,
                  "memory becomes read-only that queued work writes", "which touches 8 bytes",
                  "call:    cuMemSetAccess");
    EXPECT_REPORT(take_the_right_to_write_under_what_reads_and_writes,
                  "memory becomes read-only that queued work writes", "xseg_sim_launch_on");
    EXPECT_REPORT(read_without_rights, "an address is touched without access rights",
                  "xseg_sim_launch_reading");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_place_has_rights_of_its_own, fresh),
        cmocka_unit_test_setup(one_call_covers_several_places, fresh),
        cmocka_unit_test(a_machine_can_refuse_it),
        cmocka_unit_test_setup(what_one_place_writes_the_other_reads, with_bytes),
        cmocka_unit_test_setup(the_host_writes_where_any_device_may, with_bytes),
        cmocka_unit_test(what_writes_ends_in_a_report),
        cmocka_unit_test(a_lenient_machine_refuses_it),
        cmocka_unit_test_setup(work_that_only_reads_may_read, fresh),
        cmocka_unit_test_setup(a_graph_keeps_that_it_only_reads, fresh),
        cmocka_unit_test(rights_that_work_needs_stay),
    };

    return cmocka_run_group_tests_name("sim_read_only", tests, NULL, NULL);
}
