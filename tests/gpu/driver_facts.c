/* SPDX-License-Identifier: MIT */
/*
 * What xseg takes for granted about a CUDA driver, one case each.
 *
 *   driver_facts [--skip-without-gpu]
 *
 * Every run of the tests asks the simulator, which has to answer as drivers do; where there is a
 * GPU, its driver is asked the same.  docs/internals/driver-facts.md has a row for each number: what
 * the header says, and which code relies on it.
 */
#include "tests/gpu/driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

/* What others allocate should not be taken for ours, nor what little the driver allocates itself. */
#define SLACK (16 * MIB)

static int device_count;
static CUstream capturing; /* the stream on which a case has begun a capture and not ended it */

/* --- FACT-OPEN: the entry points. --- */

static void every_entry_point_is_found(void **state)
{
    (void)state;
#define X(name, version) assert_non_null(cu.name);
    ENTRY_POINTS(X)
#undef X
    assert_non_null(cu.StreamGetCaptureInfo);
}

static void an_unknown_name_gives_no_function(void **state)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &found;

    (void)state;
    (void)cu.GetProcAddress("cuXsegHasNoSuchCall", &function, 12000, 0, &found);
    assert_null(function);
    assert_int_equal(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

static void a_later_signature_is_not_given_to_an_older_version(void **state)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &found;

    (void)state;
    (void)cu.GetProcAddress("cuStreamGetId", &function, 11080, 0, &found);
    assert_null(function);
    assert_int_equal(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void the_driver_is_of_cuda_12_or_later(void **state)
{
    int version = 0;

    (void)state;
    ASSERT_OK(cu.DriverGetVersion(&version));
    assert_true(version >= 12000);
}

static void init_may_be_called_again(void **state)
{
    (void)state;
    ASSERT_OK(cu.Init(0));
}

static void a_device_that_is_not_there_is_refused(void **state)
{
    CUdevice device = -1;

    (void)state;
    ASSERT_OK(cu.DeviceGet(&device, device_count - 1));
    ASSERT_CU(cu.DeviceGet(&device, device_count), CUDA_ERROR_INVALID_DEVICE);
}

static void errors_have_names_and_other_numbers_none(void **state)
{
    const char *name = NULL;

    (void)state;
    ASSERT_OK(cu.GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    assert_string_equal(name, "CUDA_ERROR_OUT_OF_MEMORY");
    ASSERT_CU(cu.GetErrorName((CUresult)123456, &name), CUDA_ERROR_INVALID_VALUE);
    assert_null(name);
}

/* --- FACT-CTX: the primary context. --- */

static void a_context_lives_until_its_last_release(void **state)
{
    CUcontext again = NULL;
    unsigned flags = 0;
    int active = 0;

    (void)state;
    ASSERT_OK(cu.DevicePrimaryCtxRetain(&again, 0));
    assert_ptr_equal(again, primary);
    ASSERT_OK(cu.DevicePrimaryCtxRelease(0));
    ASSERT_OK(cu.DevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 1);
    (void)free_memory();
}

static void what_is_not_retained_cannot_be_released(void **state)
{
    CUcontext popped = NULL;
    CUresult pushed;

    (void)state;
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.DevicePrimaryCtxRelease(0));
    ASSERT_CU(cu.DevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    pushed = cu.CtxPushCurrent(primary);
    ASSERT_OK(cu.DevicePrimaryCtxRetain(&primary, 0));
    ASSERT_OK(cu.CtxPushCurrent(primary));
    assert_true(pushed == CUDA_ERROR_INVALID_CONTEXT || pushed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static void push_and_pop_are_a_stack(void **state)
{
    CUcontext popped = NULL, current = NULL;

    (void)state;
    ASSERT_OK(cu.CtxPushCurrent(primary));
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    assert_ptr_equal(popped, primary);
    ASSERT_OK(cu.CtxGetCurrent(&current));
    assert_ptr_equal(current, primary);
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.CtxGetCurrent(&current));
    assert_null(current);
    ASSERT_CU(cu.CtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(primary));
}

static void virtual_memory_needs_no_context(void **state)
{
    CUcontext popped = NULL;
    CUdeviceptr base;

    (void)state;
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    base = reserve(GRANULE);
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    assert_true(is_mapped(base));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
    ASSERT_OK(cu.CtxPushCurrent(popped));
}

static void allocations_and_streams_need_a_context(void **state)
{
    size_t free_bytes = 0, total = 0;
    CUcontext popped = NULL;
    CUdeviceptr address = 0;
    CUstream stream = NULL;
    CUevent event = NULL;

    (void)state;
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_CU(cu.MemAlloc(&address, GRANULE), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.MemGetInfo(&free_bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.CtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(popped));
}

static void a_forked_child_is_refused(void **state)
{
    int result = 0;
    pid_t child;

    (void)state;
    (void)fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        size_t free_bytes, total;

        _exit((int)cu.MemGetInfo(&free_bytes, &total));
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), CUDA_ERROR_NOT_INITIALIZED);
    (void)free_memory();
}

/* --- FACT-GRAN: granularity. --- */

static void the_granularity_is_2_mib(void **state)
{
    const CUmemAllocationProp prop = on_device(0);
    size_t least = 0;

    (void)state;
    ASSERT_OK(cu.MemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    assert_int_equal(least, GRANULE);
}

static void the_recommended_granularity_is_a_multiple(void **state)
{
    const CUmemAllocationProp prop = on_device(0);
    size_t least = 0, best = 0;

    (void)state;
    ASSERT_OK(cu.MemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    ASSERT_OK(cu.MemGetAllocationGranularity(&best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    assert_true(best >= least);
    assert_int_equal(best % least, 0);
}

/* --- FACT-RES: reserved addresses. --- */

static void bad_reservations_are_refused(void **state)
{
    CUdeviceptr base = 0;

    (void)state;
    ASSERT_CU(cu.MemAddressReserve(&base, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE, 3 * GRANULE, 0, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressReserve(&base, GRANULE, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

static void a_reservation_is_aligned_as_asked(void **state)
{
    CUdeviceptr first = 0, second = 0;

    (void)state;
    ASSERT_OK(cu.MemAddressReserve(&first, GIB, GIB, 0, 0));
    ASSERT_OK(cu.MemAddressReserve(&second, GIB, GIB, 0, 0));
    assert_int_equal(first % GIB, 0);
    assert_int_equal(second % GIB, 0);
    ASSERT_OK(cu.MemAddressFree(first, GIB));
    ASSERT_OK(cu.MemAddressFree(second, GIB));
}

static void a_reservation_is_aligned_to_the_granularity(void **state)
{
    const CUdeviceptr first = reserve(GRANULE), second = reserve(3 * GRANULE);

    (void)state;
    assert_int_equal(first % GRANULE, 0);
    assert_int_equal(second % GRANULE, 0);
    ASSERT_OK(cu.MemAddressFree(first, GRANULE));
    ASSERT_OK(cu.MemAddressFree(second, 3 * GRANULE));
}

static void addresses_can_run_out(void **state)
{
    CUdeviceptr base = 0;

    (void)state;
    ASSERT_CU(cu.MemAddressReserve(&base, (size_t)1 << 50, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    base = reserve(GRANULE);
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void a_range_is_given_back_whole(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    ASSERT_CU(cu.MemAddressFree(base, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemAddressFree(base + GRANULE, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
    ASSERT_CU(cu.MemAddressFree(base, 4 * GRANULE), CUDA_ERROR_INVALID_VALUE);
}

static void a_range_with_mappings_stays(void **state)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    (void)state;
    back(base + GRANULE, GRANULE);
    ASSERT_CU(cu.MemAddressFree(base, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    assert_true(is_mapped(base + GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

static void addresses_take_no_memory(void **state)
{
    const size_t before = free_memory();
    const CUdeviceptr base = reserve(64 * GIB);

    (void)state;
    assert_true(free_memory() + SLACK >= before);
    ASSERT_OK(cu.MemAddressFree(base, 64 * GIB));
}

/* --- FACT-CRE: physical memory. --- */

static void bad_sizes_and_flags_are_refused(void **state)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    (void)state;
    ASSERT_CU(cu.MemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE / 2, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 1), CUDA_ERROR_INVALID_VALUE);
}

static void bad_properties_are_refused(void **state)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    (void)state;
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = on_device(device_count);
    ASSERT_CU(cu.MemCreate(&handle, GRANULE, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
}

static void memory_counts_from_its_creation(void **state)
{
    const size_t before = free_memory();
    const CUmemGenericAllocationHandle handle = create(64 * MIB);
    const size_t between = free_memory();

    (void)state;
    assert_true(between + 64 * MIB <= before);
    ASSERT_OK(cu.MemRelease(handle));
    assert_true(free_memory() >= between + 64 * MIB);
}

static void memory_can_run_out(void **state)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    const size_t before = free_memory();
    size_t total = 0;

    (void)state;
    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    total = (2 * total + GRANULE - 1) / GRANULE * GRANULE;
    ASSERT_CU(cu.MemCreate(&handle, total, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(free_memory() + SLACK >= before);
    handle = create(GRANULE);
    ASSERT_OK(cu.MemRelease(handle));
}

/* --- FACT-MAP: mappings. --- */

static void odd_mappings_are_refused(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    (void)state;
    ASSERT_CU(cu.MemMap(base + GRANULE / 2, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, GRANULE / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
    assert_false(is_mapped(base));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void a_mapping_lies_in_a_reservation(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    (void)state;
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
    ASSERT_CU(cu.MemMap(base, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemRelease(handle));
}

static void a_mapped_address_is_not_mapped_over(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    (void)state;
    ASSERT_OK(cu.MemMap(base + GRANULE, 2 * GRANULE, 0, handle, 0));
    ASSERT_CU(cu.MemMap(base + GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemMap(base + 2 * GRANULE, 2 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    assert_false(is_mapped(base));
    assert_false(is_mapped(base + 3 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void a_mapping_is_at_most_its_memory(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(2 * GRANULE);

    (void)state;
    ASSERT_CU(cu.MemMap(base, 4 * GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void a_fresh_mapping_has_no_access(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);

    (void)state;
    back(base, GRANULE);
    assert_int_equal(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void the_same_memory_at_two_addresses(void **state)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(GRANULE);

    (void)state;
    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, 2 * GRANULE));
    fill(base, GRANULE, 0x5a);
    assert_int_equal(byte_at(base + GRANULE + 77), 0x5a);
    fill(base + GRANULE, GRANULE, 0xa5);
    assert_int_equal(byte_at(base + 77), 0xa5);
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

/* --- FACT-ACC: access rights. --- */

static void one_call_gives_access_to_several_mappings(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    back(base, GRANULE);
    back(base + GRANULE, 2 * GRANULE);
    back(base + 3 * GRANULE, GRANULE);
    ASSERT_OK(allow(base, 4 * GRANULE));
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(rights_of(base + i * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill(base, 4 * GRANULE, 0x11);
    assert_int_equal(byte_at(base + 4 * GRANULE - 1), 0x11);
    ASSERT_OK(cu.MemUnmap(base, 4 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void a_hole_gets_no_access(void **state)
{
    const CUdeviceptr base = reserve(3 * GRANULE);

    (void)state;
    back(base, GRANULE);
    back(base + 2 * GRANULE, GRANULE);
    ASSERT_CU(allow(base, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

static void part_of_a_mapping_gets_no_access(void **state)
{
    const CUdeviceptr base = reserve(2 * GRANULE);

    (void)state;
    back(base, 2 * GRANULE);
    ASSERT_CU(allow(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(allow(base, 2 * GRANULE - 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(allow(base, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

static void a_device_that_is_not_there_gets_no_access(void **state)
{
    const CUmemAccessDesc desc = rights(device_count, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const CUdeviceptr base = reserve(GRANULE);

    (void)state;
    back(base, GRANULE);
    ASSERT_CU(cu.MemSetAccess(base, GRANULE, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void access_can_be_taken_away_and_given_again(void **state)
{
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    const CUdeviceptr base = reserve(GRANULE);

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    fill(base, GRANULE, 0x21);
    ASSERT_OK(cu.MemSetAccess(base, GRANULE, &none, 1));
    assert_int_equal(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base, GRANULE));
    assert_int_equal(byte_at(base), 0x21);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void another_device_needs_rights_of_its_own(void **state)
{
    const CUmemAccessDesc desc = rights(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    const CUdeviceptr base = reserve(GRANULE);
    int reaches = 0;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    assert_int_equal(rights_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cu.DeviceCanAccessPeer(&reaches, 1, 0));
    if (reaches) {
        ASSERT_OK(cu.MemSetAccess(base, GRANULE, &desc, 1));
        assert_int_equal(rights_of(base, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        assert_int_equal(rights_of(base, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    } else {
        assert_int_not_equal(cu.MemSetAccess(base, GRANULE, &desc, 1), CUDA_SUCCESS);
    }
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

/* --- FACT-UNM: unmapping. --- */

static void part_of_a_mapping_is_not_unmapped(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    back(base, 2 * GRANULE);
    back(base + 2 * GRANULE, 2 * GRANULE);
    ASSERT_CU(cu.MemUnmap(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base, 2 * GRANULE - 1), CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < 4; i++)
        assert_true(is_mapped(base + i * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void one_call_unmaps_several_mappings(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    back(base, GRANULE);
    back(base + GRANULE, 2 * GRANULE);
    back(base + 3 * GRANULE, GRANULE);
    ASSERT_OK(allow(base, 4 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 3 * GRANULE));
    assert_true(is_mapped(base));
    for (unsigned i = 1; i < 4; i++)
        assert_false(is_mapped(base + i * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void a_hole_is_not_unmapped(void **state)
{
    const CUdeviceptr base = reserve(3 * GRANULE);

    (void)state;
    back(base, GRANULE);
    back(base + 2 * GRANULE, GRANULE);
    ASSERT_CU(cu.MemUnmap(base, 3 * GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cu.MemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_INVALID_VALUE);
    assert_true(is_mapped(base));
    assert_true(is_mapped(base + 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_CU(cu.MemUnmap(base, GRANULE), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 3 * GRANULE));
}

static void an_unmapped_range_can_be_mapped_again(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    back(base, 2 * GRANULE);
    back(base + 2 * GRANULE, 2 * GRANULE);
    ASSERT_OK(allow(base, 4 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base, 4 * GRANULE));
    back(base + GRANULE, 2 * GRANULE);
    assert_int_equal(rights_of(base + GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void memory_keeps_its_bytes_while_unmapped(void **state)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle handle = create(GRANULE);

    (void)state;
    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, GRANULE));
    fill(base, GRANULE, 0x3c);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemMap(base + GRANULE, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base + GRANULE, GRANULE));
    assert_int_equal(byte_at(base + GRANULE), 0x3c);
    assert_int_equal(byte_at(base + 2 * GRANULE - 1), 0x3c);
    ASSERT_OK(cu.MemUnmap(base + GRANULE, GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

static void unmap_waits_for_no_work(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUstream stream = new_stream();
    CUdeviceptr scratch;
    CUresult result;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    scratch = keep_busy(stream);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    result = cu.StreamQuery(stream);
    let_rest(stream, scratch);
    ASSERT_CU(result, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void growing_waits_for_no_work(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUstream stream = new_stream();
    const CUdeviceptr scratch = keep_busy(stream);
    CUresult result;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    result = cu.StreamQuery(stream);
    let_rest(stream, scratch);
    ASSERT_CU(result, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

/* --- FACT-REL: references to memory. --- */

static void released_memory_stays_while_it_is_mapped(void **state)
{
    const CUdeviceptr base = reserve(64 * MIB);
    const size_t before = free_memory();
    size_t between;

    (void)state;
    back(base, 64 * MIB); /* which releases the handle */
    ASSERT_OK(allow(base, 64 * MIB));
    fill(base, 64 * MIB, 0x42);
    between = free_memory();
    assert_true(between + 64 * MIB <= before);
    assert_int_equal(byte_at(base + 64 * MIB - 1), 0x42);
    ASSERT_OK(cu.MemUnmap(base, 64 * MIB));
    assert_true(free_memory() >= between + 64 * MIB);
    ASSERT_OK(cu.MemAddressFree(base, 64 * MIB));
}

static void a_retained_handle_is_the_same_and_counts(void **state)
{
    const CUdeviceptr base = reserve(64 * MIB);
    const CUmemGenericAllocationHandle handle = create(64 * MIB);
    CUmemGenericAllocationHandle first = 0, middle = 0;
    size_t held;

    (void)state;
    ASSERT_OK(cu.MemMap(base, 64 * MIB, 0, handle, 0));
    ASSERT_OK(cu.MemRetainAllocationHandle(&first, (void *)(uintptr_t)base));
    ASSERT_OK(cu.MemRetainAllocationHandle(&middle, (void *)(uintptr_t)(base + 32 * MIB + 5)));
    assert_int_equal(first, handle);
    assert_int_equal(middle, handle);
    ASSERT_OK(cu.MemUnmap(base, 64 * MIB));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemRelease(first));
    held = free_memory();
    ASSERT_OK(cu.MemRelease(middle));
    assert_true(free_memory() >= held + 64 * MIB);
    ASSERT_OK(cu.MemAddressFree(base, 64 * MIB));
}

static void an_unmapped_address_has_no_handle(void **state)
{
    const CUdeviceptr base = reserve(2 * GRANULE);
    CUmemGenericAllocationHandle handle = 0;

    (void)state;
    back(base, GRANULE);
    ASSERT_CU(cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)(base + GRANULE)),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_CU(cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)base),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

/* --- FACT-SHR: memory of other processes, by file descriptor. --- */

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemGenericAllocationHandle create_exportable(size_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    prop.requestedHandleTypes = FD;
    ASSERT_OK(cu.MemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static int export_of(CUmemGenericAllocationHandle handle)
{
    int file = -1;

    ASSERT_OK(cu.MemExportToShareableHandle(&file, handle, FD, 0));
    assert_true(file >= 0);
    return file;
}

static CUmemGenericAllocationHandle import_of(int file)
{
    CUmemGenericAllocationHandle handle = 0;

    ASSERT_OK(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)file, FD));
    return handle;
}

static void each_export_is_a_descriptor_of_its_own(void **state)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int first = export_of(handle), second = export_of(handle);

    (void)state;
    assert_true(first != second);
    assert_true(fcntl(first, F_GETFD) >= 0 && fcntl(second, F_GETFD) >= 0);
    assert_int_equal(close(first), 0);
    assert_int_equal(close(second), 0);
    ASSERT_OK(cu.MemRelease(handle));
}

static void only_memory_made_for_it_is_exported(void **state)
{
    const CUmemGenericAllocationHandle handle = create(GRANULE);
    int file = -1;

    (void)state;
    assert_true(cu.MemExportToShareableHandle(&file, handle, FD, 0) != CUDA_SUCCESS);
    ASSERT_OK(cu.MemRelease(handle));
}

static void an_import_needs_its_descriptor_no_more(void **state)
{
    const CUmemGenericAllocationHandle handle = create_exportable(2 * GRANULE);
    const int file = export_of(handle);
    const CUdeviceptr base = reserve(4 * GRANULE);
    const CUmemGenericAllocationHandle again = import_of(file);

    (void)state;
    assert_int_equal(close(file), 0);
    ASSERT_OK(cu.MemMap(base, 2 * GRANULE, 0, handle, 0));
    ASSERT_OK(cu.MemMap(base + 2 * GRANULE, 2 * GRANULE, 0, again, 0));
    /* The mapping keeps the memory, as with a handle of one's own. */
    ASSERT_OK(cu.MemRelease(again));
    ASSERT_OK(allow(base, 2 * GRANULE));
    assert_int_equal(rights_of(base + 2 * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(allow(base + 2 * GRANULE, 2 * GRANULE));
    fill(base, 2 * GRANULE, 0x33);
    assert_int_equal(byte_at(base + 4 * GRANULE - 1), 0x33);
    fill(base + 2 * GRANULE, 2 * GRANULE, 0x44);
    assert_int_equal(byte_at(base), 0x44);
    ASSERT_OK(cu.MemUnmap(base, 4 * GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static void an_import_maps_no_more_than_its_memory(void **state)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int file = export_of(handle);
    const CUdeviceptr base = reserve(2 * GRANULE);
    const CUmemGenericAllocationHandle again = import_of(file);

    (void)state;
    assert_int_equal(close(file), 0);
    ASSERT_CU(cu.MemMap(base, 2 * GRANULE, 0, again, 0), CUDA_ERROR_INVALID_VALUE);
    assert_false(is_mapped(base));
    ASSERT_OK(cu.MemRelease(again));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

static void exported_memory_stays_until_nobody_has_it(void **state)
{
    const size_t before = free_memory();
    const CUmemGenericAllocationHandle handle = create_exportable(64 * MIB);
    const int file = export_of(handle);
    const CUdeviceptr base = reserve(64 * MIB);
    CUmemGenericAllocationHandle again;

    (void)state;
    /* The exporter lets go; an open descriptor is enough to keep the memory. */
    ASSERT_OK(cu.MemRelease(handle));
    assert_true(free_memory() + 64 * MIB <= before);
    again = import_of(file);
    assert_int_equal(close(file), 0);
    ASSERT_OK(cu.MemMap(base, 64 * MIB, 0, again, 0));
    ASSERT_OK(cu.MemRelease(again));
    ASSERT_OK(allow(base, 64 * MIB));
    fill(base, 64 * MIB, 0x55);
    assert_true(free_memory() + 64 * MIB <= before);
    assert_int_equal(byte_at(base + 64 * MIB - 1), 0x55);
    ASSERT_OK(cu.MemUnmap(base, 64 * MIB));
    ASSERT_OK(cu.MemAddressFree(base, 64 * MIB));
    assert_true(free_memory() + SLACK >= before);
}

static void another_descriptor_is_not_imported(void **state)
{
    CUmemGenericAllocationHandle handle = 0;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_true(cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)ends[0], FD) !=
                CUDA_SUCCESS);
    assert_int_equal(handle, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    /* The refused import leaves no error behind. */
    ASSERT_OK(cu.CtxSynchronize());
}

/* The number under which another process finds the descriptor. */
#define THEIR_FILE 100

/* What another process does with memory of this one: 0 if it saw 7 there; it leaves 8 behind. */
static int use_shared(void)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    CUuuid uuid;
    unsigned char byte = 0;

    if (cu.Init(0) != CUDA_SUCCESS || cu.DevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS ||
        cu.CtxPushCurrent(primary) != CUDA_SUCCESS || cu.DeviceGetUuid(&uuid, 0) != CUDA_SUCCESS ||
        write(STDOUT_FILENO, uuid.bytes, sizeof(uuid.bytes)) != (ssize_t)sizeof(uuid.bytes))
        return 1;
    if (cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)THEIR_FILE, FD) !=
            CUDA_SUCCESS ||
        close(THEIR_FILE) != 0 || cu.MemAddressReserve(&base, GRANULE, 0, 0, 0) != CUDA_SUCCESS ||
        cu.MemMap(base, GRANULE, 0, handle, 0) != CUDA_SUCCESS ||
        allow(base, GRANULE) != CUDA_SUCCESS || cu.MemcpyDtoH(&byte, base, 1) != CUDA_SUCCESS ||
        byte != 7)
        return 2;
    return cu.MemsetD8(base, 8, GRANULE) != CUDA_SUCCESS || cu.CtxSynchronize() != CUDA_SUCCESS;
}

/* Run this program with a descriptor, until it ends well; what it says of the device is kept. */
static void let_another_use(int file, CUuuid *uuid)
{
    extern char **environ;
    char self[] = "/proc/self/exe", use[] = "--use-shared";
    char *arguments[] = {self, use, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], result = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, file, THEIR_FILE), 0);
    assert_int_equal(posix_spawn(&child, self, &actions, NULL, arguments, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], uuid->bytes, sizeof(uuid->bytes)), sizeof(uuid->bytes));
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
}

static void another_process_has_the_same_bytes(void **state)
{
    const CUmemGenericAllocationHandle handle = create_exportable(GRANULE);
    const int file = export_of(handle);
    const CUdeviceptr base = reserve(GRANULE);
    CUuuid ours, theirs;

    (void)state;
    ASSERT_OK(cu.DeviceGetUuid(&ours, 0));
    ASSERT_OK(cu.MemMap(base, GRANULE, 0, handle, 0));
    ASSERT_OK(allow(base, GRANULE));
    fill(base, GRANULE, 7);
    let_another_use(file, &theirs);
    assert_memory_equal(&ours, &theirs, sizeof(ours));
    assert_int_equal(close(file), 0);
    assert_int_equal(byte_at(base + GRANULE - 1), 8);
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemRelease(handle));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void two_devices_have_two_uuids(void **state)
{
    CUuuid first, second;

    (void)state;
    ASSERT_OK(cu.DeviceGetUuid(&first, 0));
    ASSERT_OK(cu.DeviceGetUuid(&second, 1));
    assert_memory_not_equal(&first, &second, sizeof(first));
}

/* --- FACT-ALC: allocations of the classic kind. --- */

static void an_allocation_of_nothing_is_refused(void **state)
{
    CUdeviceptr address = 0;

    (void)state;
    ASSERT_CU(cu.MemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

static void small_allocations_are_aligned_to_512(void **state)
{
    static const size_t bytes[] = {1, 511, 513, 4096, 100000};
    CUdeviceptr address[5] = {0};

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], bytes[i]));
        assert_int_equal(address[i] % 512, 0);
    }
    for (unsigned i = 0; i < 5; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

static void large_allocations_are_aligned_to_2_mib(void **state)
{
    static const size_t mib[] = {2, 20, 22};
    CUdeviceptr address[3] = {0};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        ASSERT_OK(cu.MemAlloc(&address[i], mib[i] * MIB));
        assert_int_equal(address[i] % GRANULE, 0);
    }
    for (unsigned i = 0; i < 3; i++)
        ASSERT_OK(cu.MemFree(address[i]));
}

static void only_the_start_can_be_freed_and_once(void **state)
{
    CUdeviceptr address = 0;

    (void)state;
    ASSERT_OK(cu.MemAlloc(&address, 20 * MIB));
    ASSERT_CU(cu.MemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cu.MemFree(address));
    ASSERT_CU(cu.MemFree(address), CUDA_ERROR_INVALID_VALUE);
}

static void mapped_memory_is_no_allocation(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_CU(cu.MemFree(base), CUDA_ERROR_INVALID_VALUE);
    assert_true(is_mapped(base));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

static void an_allocation_too_large_is_refused_and_no_more(void **state)
{
    const size_t before = free_memory();
    CUdeviceptr address = 0;
    size_t total = 0;

    (void)state;
    ASSERT_OK(cu.DeviceTotalMem(&total, 0));
    ASSERT_CU(cu.MemAlloc(&address, 2 * total), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(free_memory() + SLACK >= before);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
}

static void an_allocation_counts_until_it_is_freed(void **state)
{
    const size_t before = free_memory();
    CUdeviceptr address = 0;
    size_t between;

    (void)state;
    ASSERT_OK(cu.MemAlloc(&address, 64 * MIB));
    between = free_memory();
    assert_true(between + 64 * MIB <= before);
    ASSERT_OK(cu.MemFree(address));
    assert_true(free_memory() >= between + 64 * MIB);
}

/* --- FACT-INFO: what the driver tells. --- */

static void the_total_is_that_of_the_device(void **state)
{
    size_t free_bytes = 0, total = 0, of_device = 0;

    (void)state;
    ASSERT_OK(cu.MemGetInfo(&free_bytes, &total));
    ASSERT_OK(cu.DeviceTotalMem(&of_device, 0));
    assert_int_equal(total, of_device);
    assert_true(free_bytes <= total);
}

static void a_mapped_address_tells_its_reservation(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);
    unsigned type = 0;
    int ordinal = -1;
    CUdeviceptr start = 0;
    size_t bytes = 0;

    (void)state;
    back(base + GRANULE, 2 * GRANULE);
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(
        cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base + GRANULE + 100));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    ASSERT_OK(
        cu.PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base + GRANULE));
    assert_int_equal(ordinal, 0);
    ASSERT_OK(
        cu.PointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + GRANULE));
    assert_int_equal(start, base);
    ASSERT_OK(cu.PointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base + GRANULE));
    assert_int_equal(bytes, 4 * GRANULE);
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
}

static bool says_mapped(CUdeviceptr address)
{
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MAPPED;
    unsigned answer = 7;
    void *answers = &answer;

    ASSERT_OK(cu.PointerGetAttributes(1, &asked, &answers, address));
    assert_true(answer <= 1);
    return answer == 1;
}

/* With rights or without; and one that is not mapped, or not reserved, is no error. */
static void any_address_tells_whether_it_is_mapped(void **state)
{
    const CUdeviceptr base = reserve(4 * GRANULE);

    (void)state;
    assert_false(says_mapped(base));
    back(base + GRANULE, 2 * GRANULE);
    assert_true(says_mapped(base + GRANULE));
    ASSERT_OK(allow(base + GRANULE, 2 * GRANULE));
    assert_true(says_mapped(base + 2 * GRANULE + 77));
    assert_false(says_mapped(base));
    assert_false(says_mapped(base + 3 * GRANULE));
    ASSERT_OK(cu.MemUnmap(base + GRANULE, 2 * GRANULE));
    assert_false(says_mapped(base + GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 4 * GRANULE));
    assert_false(says_mapped(base));
    assert_false(says_mapped(4096));
}

static void only_allocations_have_legacy_ipc_handles(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    unsigned mapped_can = 1, allocation_can = 0;
    CUdeviceptr address = 0;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(
        cu.PointerGetAttribute(&mapped_can, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base));
    ASSERT_OK(cu.PointerGetAttribute(&allocation_can,
                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    assert_int_equal(mapped_can, 0);
    assert_int_equal(allocation_can, 1);
    ASSERT_OK(cu.MemFree(address));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

/* --- FACT-HOST: pinned memory of the host. --- */

static void pinned_memory_is_freed_by_its_start_and_once(void **state)
{
    unsigned char *host = NULL;

    (void)state;
    ASSERT_OK(cu.MemHostAlloc((void **)&host, MIB, 0));
    memset(host, 1, MIB);
    assert_int_not_equal(cu.MemFreeHost(host + 4096), CUDA_SUCCESS);
    ASSERT_OK(cu.MemFreeHost(host));
    assert_int_not_equal(cu.MemFreeHost(host), CUDA_SUCCESS);
}

static void copies_of_pinned_memory_keep_the_order_of_their_stream(void **state)
{
    const CUdeviceptr base = reserve(GRANULE);
    const CUstream stream = new_stream();
    unsigned char *from = NULL, *to = NULL;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(cu.MemHostAlloc((void **)&from, GRANULE, 0));
    ASSERT_OK(cu.MemHostAlloc((void **)&to, GRANULE, 0));
    for (size_t i = 0; i < GRANULE; i++)
        from[i] = (unsigned char)(i * 7 + i / 4096);
    memset(to, 0, GRANULE);
    ASSERT_OK(cu.MemcpyHtoDAsync(base, from, GRANULE, stream));
    ASSERT_OK(cu.MemcpyDtoHAsync(to, base, GRANULE, stream));
    ASSERT_OK(cu.StreamSynchronize(stream));
    assert_memory_equal(to, from, GRANULE);
    ASSERT_OK(cu.MemFreeHost(from));
    ASSERT_OK(cu.MemFreeHost(to));
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.MemUnmap(base, GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, GRANULE));
}

/* --- FACT-STR: streams. --- */

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;

    ASSERT_OK(cu.StreamGetId(stream, &id));
    return id;
}

static void a_stream_id_never_comes_again(void **state)
{
    unsigned long long seen[32];

    (void)state;
    for (unsigned i = 0; i < 32; i++) {
        const CUstream stream = new_stream();

        seen[i] = id_of(stream);
        assert_int_equal(id_of(stream), seen[i]);
        for (unsigned k = 0; k < i; k++)
            assert_int_not_equal(seen[k], seen[i]);
        ASSERT_OK(cu.StreamDestroy(stream));
    }
}

static void the_default_stream_has_one_id_by_both_names(void **state)
{
    (void)state;
    assert_int_equal(id_of(NULL), id_of(CU_STREAM_LEGACY));
    assert_int_not_equal(id_of(NULL), id_of(CU_STREAM_PER_THREAD));
    assert_int_equal(id_of(CU_STREAM_PER_THREAD), id_of(CU_STREAM_PER_THREAD));
}

static void *id_elsewhere(void *out)
{
    CUcontext popped = NULL;
    unsigned long long *id = out;

    if (cu.CtxPushCurrent(primary) != CUDA_SUCCESS)
        return NULL;
    if (cu.StreamGetId(CU_STREAM_PER_THREAD, &id[0]) != CUDA_SUCCESS ||
        cu.StreamGetId(NULL, &id[1]) != CUDA_SUCCESS)
        id[0] = id[1] = 0;
    (void)cu.CtxPopCurrent(&popped);
    return NULL;
}

static void each_thread_has_a_default_stream_of_its_own(void **state)
{
    unsigned long long there[2] = {0, 0};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, id_elsewhere, there), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_not_equal(there[0], 0);
    assert_int_not_equal(there[0], id_of(CU_STREAM_PER_THREAD));
    assert_int_equal(there[1], id_of(NULL));
}

static void a_stream_tells_its_context(void **state)
{
    const CUstream stream = new_stream();
    CUcontext popped = NULL, owner = NULL;

    (void)state;
    ASSERT_OK(cu.StreamGetCtx(NULL, &owner));
    assert_ptr_equal(owner, primary);
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    owner = NULL;
    ASSERT_OK(cu.StreamGetCtx(stream, &owner));
    assert_ptr_equal(owner, primary);
    ASSERT_CU(cu.StreamGetCtx(NULL, &owner), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(popped));
    ASSERT_OK(cu.StreamDestroy(stream));
}

static void a_stream_is_busy_until_its_work_has_ended(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr scratch;
    CUresult busy;

    (void)state;
    ASSERT_OK(cu.StreamQuery(stream));
    scratch = keep_busy(stream);
    busy = cu.StreamQuery(stream);
    let_rest(stream, scratch);
    ASSERT_CU(busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamQuery(stream));
    ASSERT_OK(cu.StreamDestroy(stream));
}

static void a_busy_stream_can_be_destroyed_and_goes_on(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    const CUdeviceptr scratch = keep_busy(stream);
    CUresult before, after;

    (void)state;
    ASSERT_OK(cu.EventRecord(event, stream));
    before = cu.EventQuery(event);
    ASSERT_OK(cu.StreamDestroy(stream));
    after = cu.EventQuery(event);
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventQuery(event));
    if (scratch != 0)
        ASSERT_OK(cu.MemFree(scratch));
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_CU(before, CUDA_ERROR_NOT_READY);
    ASSERT_CU(after, CUDA_ERROR_NOT_READY);
}

static void the_context_waits_for_every_stream(void **state)
{
    const CUstream stream = new_stream();
    const CUdeviceptr scratch = keep_busy(stream);

    (void)state;
    ASSERT_OK(cu.CtxSynchronize());
    ASSERT_OK(cu.StreamQuery(stream));
    let_rest(stream, scratch);
    ASSERT_OK(cu.StreamDestroy(stream));
}

static void *be_busy_elsewhere(void *out)
{
    CUcontext popped = NULL;

    if (cu.CtxPushCurrent(primary) != CUDA_SUCCESS)
        return NULL;
    *(CUdeviceptr *)out = keep_busy(CU_STREAM_PER_THREAD);
    (void)cu.CtxPopCurrent(&popped);
    return out;
}

static void the_legacy_stream_waits_for_other_threads_default_streams(void **state)
{
    const CUevent behind = new_event(), beside = new_event();
    const CUstream apart = new_stream();
    CUdeviceptr scratch = 0;
    CUresult before, unrelated;
    void *was_busy = NULL;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, be_busy_elsewhere, &scratch), 0);
    assert_int_equal(pthread_join(thread, &was_busy), 0);
    assert_non_null(was_busy);
    ASSERT_OK(cu.EventRecord(behind, NULL));
    ASSERT_OK(cu.EventRecord(beside, apart));
    before = cu.EventQuery(behind);
    unrelated = cu.EventQuery(beside);
    ASSERT_OK(cu.EventSynchronize(behind));
    ASSERT_OK(cu.CtxSynchronize());
    if (scratch != 0)
        ASSERT_OK(cu.MemFree(scratch));
    ASSERT_OK(cu.EventDestroy(behind));
    ASSERT_OK(cu.EventDestroy(beside));
    ASSERT_OK(cu.StreamDestroy(apart));
    ASSERT_CU(before, CUDA_ERROR_NOT_READY);
    ASSERT_OK(unrelated);
}

static void blocking_streams_wait_for_the_legacy_one(void **state)
{
    const CUevent behind = new_event(), beside = new_event();
    const CUstream apart = new_stream();
    CUstream blocking = NULL;
    CUdeviceptr scratch;
    CUresult before, unrelated;

    (void)state;
    ASSERT_OK(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
    scratch = keep_busy(NULL);
    ASSERT_OK(cu.EventRecord(behind, blocking));
    ASSERT_OK(cu.EventRecord(beside, apart));
    before = cu.EventQuery(behind);
    unrelated = cu.EventQuery(beside);
    let_rest(NULL, scratch);
    ASSERT_OK(cu.EventSynchronize(behind));
    ASSERT_OK(cu.EventDestroy(behind));
    ASSERT_OK(cu.EventDestroy(beside));
    ASSERT_OK(cu.StreamDestroy(blocking));
    ASSERT_OK(cu.StreamDestroy(apart));
    ASSERT_CU(before, CUDA_ERROR_NOT_READY);
    ASSERT_OK(unrelated);
}

struct gate {
    CUstream stream;
    CUresult launched;
    sem_t entered, opened;
};

static void CUDA_CB pass_gate(void *argument)
{
    struct gate *gate = argument;

    (void)sem_post(&gate->entered);
    while (sem_wait(&gate->opened) != 0)
        continue;
}

/* In a thread, because a driver may run a host function in the thread that launches it. */
static void *launch_gate(void *argument)
{
    struct gate *gate = argument;
    CUcontext popped = NULL;

    gate->launched = cu.CtxPushCurrent(primary);
    if (gate->launched == CUDA_SUCCESS) {
        gate->launched = cu.LaunchHostFunc(gate->stream, pass_gate, gate);
        (void)cu.CtxPopCurrent(&popped);
    }
    if (gate->launched != CUDA_SUCCESS)
        (void)sem_post(&gate->entered);
    return NULL;
}

static void a_query_waits_for_no_host_function(void **state)
{
    struct gate gate = {.stream = new_stream()};
    const CUevent event = new_event();
    CUresult stream_busy, recorded, event_busy;
    pthread_t thread;

    (void)state;
    (void)sem_init(&gate.entered, 0, 0);
    (void)sem_init(&gate.opened, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, launch_gate, &gate), 0);
    while (sem_wait(&gate.entered) != 0)
        continue;
    stream_busy = cu.StreamQuery(gate.stream);
    recorded = cu.EventRecord(event, gate.stream);
    event_busy = cu.EventQuery(event);
    (void)sem_post(&gate.opened);
    assert_int_equal(pthread_join(thread, NULL), 0);
    ASSERT_OK(gate.launched);
    ASSERT_OK(recorded);
    ASSERT_CU(stream_busy, CUDA_ERROR_NOT_READY);
    ASSERT_CU(event_busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamSynchronize(gate.stream));
    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(gate.stream));
    (void)sem_destroy(&gate.entered);
    (void)sem_destroy(&gate.opened);
}

/* --- FACT-EVT: events. --- */

static void an_event_that_was_never_recorded_is_done(void **state)
{
    const CUevent event = new_event();

    (void)state;
    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventDestroy(event));
}

static void an_event_is_done_with_the_work_before_it(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    const CUdeviceptr scratch = keep_busy(stream);
    CUresult busy;

    (void)state;
    ASSERT_OK(cu.EventRecord(event, stream));
    busy = cu.EventQuery(event);
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventQuery(event));
    let_rest(stream, scratch);
    ASSERT_CU(busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(stream));
}

static void an_event_does_not_mind_later_work(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    CUdeviceptr scratch;
    CUresult done, busy;

    (void)state;
    ASSERT_OK(cu.EventRecord(event, stream));
    ASSERT_OK(cu.StreamSynchronize(stream));
    scratch = keep_busy(stream);
    done = cu.EventQuery(event);
    ASSERT_OK(cu.EventRecord(event, stream));
    busy = cu.EventQuery(event);
    let_rest(stream, scratch);
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_CU(done, CUDA_SUCCESS);
    ASSERT_CU(busy, CUDA_ERROR_NOT_READY); /* recorded again, it stands for the later work */
}

static void an_unfinished_event_can_be_destroyed(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    const CUdeviceptr scratch = keep_busy(stream);
    CUresult busy;

    (void)state;
    ASSERT_OK(cu.EventRecord(event, stream));
    ASSERT_OK(cu.EventDestroy(event));
    busy = cu.StreamQuery(stream);
    let_rest(stream, scratch);
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_CU(busy, CUDA_ERROR_NOT_READY);
}

static void a_stream_waits_for_an_event(void **state)
{
    const CUstream first = new_stream(), second = new_stream();
    const CUevent event = new_event();
    const CUdeviceptr scratch = keep_busy(first);
    CUresult busy;

    (void)state;
    ASSERT_OK(cu.EventRecord(event, first));
    ASSERT_OK(cu.StreamWaitEvent(second, event, 0));
    busy = cu.StreamQuery(second);
    let_rest(first, scratch);
    ASSERT_OK(cu.StreamSynchronize(second));
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(first));
    ASSERT_OK(cu.StreamDestroy(second));
    ASSERT_CU(busy, CUDA_ERROR_NOT_READY);
}

static void an_event_belongs_to_its_context(void **state)
{
    const CUevent event = new_event();
    CUcontext other = NULL, popped = NULL;
    CUstream stream = NULL;

    (void)state;
    ASSERT_OK(cu.DevicePrimaryCtxRetain(&other, 1));
    ASSERT_OK(cu.CtxPushCurrent(other));
    stream = new_stream();
    ASSERT_CU(cu.EventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    /* Anybody may look at it. */
    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.StreamWaitEvent(stream, event, 0));
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.DevicePrimaryCtxRelease(1));
    ASSERT_OK(cu.EventDestroy(event));
}

/* --- FACT-CAP: stream capture. --- */

static CUstreamCaptureStatus capture_of(CUstream stream, cuuint64_t *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    ASSERT_OK(cu.StreamGetCaptureInfo(stream, &status, id, NULL, NULL, NULL));
    return status;
}

static void begin(CUstream stream, CUstreamCaptureMode mode)
{
    ASSERT_OK(cu.StreamBeginCapture(stream, mode));
    capturing = stream;
    assert_int_equal(capture_of(stream, NULL), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

/* A capture that has to be whole, or spoilt. */
static void finish(CUstream stream, CUresult expected)
{
    CUgraph graph = NULL;
    const CUstreamCaptureStatus status = capture_of(stream, NULL);

    capturing = NULL;
    ASSERT_CU(cu.StreamEndCapture(stream, &graph), expected);
    if (expected == CUDA_SUCCESS) {
        assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_non_null(graph);
        ASSERT_OK(cu.GraphDestroy(graph));
    } else {
        assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        assert_null(graph);
    }
    assert_int_equal(capture_of(stream, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    ASSERT_OK(cu.StreamDestroy(stream));
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    ASSERT_OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

static void each_capture_has_an_id_of_its_own(void **state)
{
    cuuint64_t id[2] = {0, 0};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const CUstream stream = new_stream();

        assert_int_equal(capture_of(stream, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
        begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        (void)capture_of(stream, &id[i]);
        finish(stream, CUDA_SUCCESS);
    }
    assert_int_not_equal(id[0], 0);
    assert_int_not_equal(id[0], id[1]);
}

static void a_stream_that_waits_joins_the_capture(void **state)
{
    const CUstream first = new_stream(), second = new_stream();
    const CUevent event = new_event();
    cuuint64_t id = 0, joined = 0;

    (void)state;
    begin(first, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_OK(cu.EventRecord(event, first));
    ASSERT_OK(cu.StreamWaitEvent(second, event, 0));
    assert_int_equal(capture_of(second, &joined), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    (void)capture_of(first, &id);
    assert_int_equal(joined, id);
    ASSERT_OK(cu.EventRecord(event, second));
    ASSERT_OK(cu.StreamWaitEvent(first, event, 0));
    finish(first, CUDA_SUCCESS);
    assert_int_equal(capture_of(second, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    ASSERT_OK(cu.StreamDestroy(second));
    ASSERT_OK(cu.EventDestroy(event));
}

static void a_capturing_stream_is_not_queried(void **state)
{
    const CUstream stream = new_stream();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cu.StreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_capturing_stream_is_not_waited_for(void **state)
{
    const CUstream stream = new_stream();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cu.StreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_capturing_context_is_not_waited_for(void **state)
{
    const CUstream stream = new_stream();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cu.CtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_captured_event_is_not_queried(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    CUstreamCaptureMode old;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.EventRecord(event, stream));
    old = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    (void)exchange(old);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_OK(cu.EventDestroy(event));
}

static void an_event_query_spoils_a_global_capture(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.EventDestroy(event));
}

static void a_relaxed_thread_may_query_events(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    CUstreamCaptureMode old;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    old = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.EventQuery(event));
    (void)exchange(old);
    finish(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventDestroy(event));
}

static void an_allocation_spoils_a_global_capture(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr address = 0;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cu.MemAlloc(&address, GRANULE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_free_spoils_a_global_capture(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr address = 0;

    (void)state;
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cu.MemFree(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.MemFree(address));
}

static void a_relaxed_thread_may_allocate_and_free(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr address = 0;
    CUstreamCaptureMode old;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    old = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
    (void)exchange(old);
    finish(stream, CUDA_SUCCESS);
}

static void a_relaxed_capture_lets_everybody_allocate(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr address = 0;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
    finish(stream, CUDA_SUCCESS);
}

static void memory_can_be_mapped_in_a_capture(void **state)
{
    const CUstream stream = new_stream();
    CUdeviceptr base = 0;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    base = reserve(2 * GRANULE);
    back(base, GRANULE);
    back(base + GRANULE, GRANULE);
    ASSERT_OK(allow(base, 2 * GRANULE));
    finish(stream, CUDA_SUCCESS);
    fill(base, 2 * GRANULE, 0x77);
    assert_int_equal(byte_at(base + GRANULE), 0x77);
    ASSERT_OK(cu.MemUnmap(base, 2 * GRANULE));
    ASSERT_OK(cu.MemAddressFree(base, 2 * GRANULE));
}

static void questions_do_not_harm_a_capture(void **state)
{
    const CUstream stream = new_stream(), other = new_stream();
    CUcontext owner = NULL;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_not_equal(id_of(stream), id_of(other));
    ASSERT_OK(cu.StreamGetCtx(stream, &owner));
    assert_ptr_equal(owner, primary);
    assert_int_equal(capture_of(other, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    (void)free_memory();
    finish(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.StreamDestroy(other));
}

static void events_can_be_made_and_recorded_beside_a_capture(void **state)
{
    const CUstream stream = new_stream(), other = new_stream();
    CUevent event = NULL;

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    event = new_event();
    ASSERT_OK(cu.EventRecord(event, other));
    finish(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_OK(cu.StreamDestroy(other));
}

struct elsewhere {
    CUstreamCaptureMode mode, old;
    CUevent event;
    CUresult result;
};

static void *query_elsewhere(void *argument)
{
    struct elsewhere *there = argument;
    CUcontext popped = NULL;

    there->old = there->mode;
    if (cu.CtxPushCurrent(primary) != CUDA_SUCCESS ||
        cu.ThreadExchangeStreamCaptureMode(&there->old) != CUDA_SUCCESS)
        return NULL;
    there->result = cu.EventQuery(there->event);
    (void)cu.CtxPopCurrent(&popped);
    return NULL;
}

static struct elsewhere query_in_thread(CUevent event, CUstreamCaptureMode mode)
{
    struct elsewhere there = {.mode = mode, .event = event, .result = CUDA_ERROR_UNKNOWN};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, query_elsewhere, &there), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return there;
}

static void a_global_capture_stands_against_other_threads(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(query_in_thread(event, CU_STREAM_CAPTURE_MODE_GLOBAL).result,
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    finish(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.EventDestroy(event));
}

static void a_thread_can_leave_others_captures_aside(void **state)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    (void)state;
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_OK(query_in_thread(event, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).result);
    ASSERT_OK(query_in_thread(event, CU_STREAM_CAPTURE_MODE_RELAXED).result);
    finish(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventDestroy(event));
}

static void the_capture_mode_is_a_threads_own(void **state)
{
    const CUevent event = new_event();
    struct elsewhere there;

    (void)state;
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_GLOBAL);
    there = query_in_thread(event, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    assert_int_equal(there.old, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_GLOBAL), CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.EventDestroy(event));
}

/* --- FACT-LATE: touching what is gone, in a process of its own, since it may not survive. --- */

/* Exit statuses of that process; 0 is an access that went well. */
enum late { LATE_WENT_WELL, LATE_REFUSED, LATE_UNPREPARED };

static int touch_late(const char *what)
{
    const CUmemAllocationProp prop = on_device(0);
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    unsigned char byte = 0;
    bool ready =
        cu.Init(0) == CUDA_SUCCESS && cu.DevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS &&
        cu.CtxPushCurrent(primary) == CUDA_SUCCESS &&
        cu.MemAddressReserve(&base, GRANULE, 0, 0, 0) == CUDA_SUCCESS &&
        cu.MemCreate(&handle, GRANULE, &prop, 0) == CUDA_SUCCESS &&
        cu.MemMap(base, GRANULE, 0, handle, 0) == CUDA_SUCCESS &&
        allow(base, GRANULE) == CUDA_SUCCESS && cu.MemsetD8(base, 1, GRANULE) == CUDA_SUCCESS &&
        cu.CtxSynchronize() == CUDA_SUCCESS && cu.MemcpyDtoH(&byte, base, 1) == CUDA_SUCCESS &&
        byte == 1;

    if (ready && strcmp(what, "unmapped") == 0)
        ready = cu.MemUnmap(base, GRANULE) == CUDA_SUCCESS;
    else if (ready)
        ready = cu.MemSetAccess(base, GRANULE, &none, 1) == CUDA_SUCCESS;
    if (!ready)
        return LATE_UNPREPARED;
    if (write(STDOUT_FILENO, "now", 3) != 3)
        return LATE_UNPREPARED;
    if (cu.MemsetD8(base, 2, GRANULE) != CUDA_SUCCESS || cu.CtxSynchronize() != CUDA_SUCCESS)
        return LATE_REFUSED;
    return LATE_WENT_WELL;
}

static void expect_no_late_access(const char *what)
{
    extern char **environ;
    char self[] = "/proc/self/exe", late[] = "--touch-late", name[16], said[4] = "";
    char *arguments[] = {self, late, name, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], result = 0;
    pid_t child;

    (void)snprintf(name, sizeof(name), "%s", what);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
    assert_int_equal(posix_spawn_file_actions_addclose(&actions, ends[0]), 0);
    assert_int_equal(
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0), 0);
    assert_int_equal(posix_spawn(&child, self, &actions, NULL, arguments, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], said, 3), 3);
    (void)close(ends[0]);
    assert_string_equal(said, "now");
    assert_int_equal(waitpid(child, &result, 0), child);
    /* Refused, or ended by the simulator's report. */
    assert_true((WIFEXITED(result) && WEXITSTATUS(result) == LATE_REFUSED) ||
                (WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT));
}

static void an_unmapped_address_is_not_touched_unnoticed(void **state)
{
    (void)state;
    expect_no_late_access("unmapped");
}

static void memory_without_rights_is_not_touched_unnoticed(void **state)
{
    (void)state;
    expect_no_late_access("without-rights");
}

/* --- The facts, by number. --- */

struct fact {
    const char *id, *name;
    void (*check)(void **state);
    int devices; /* how many it needs */
};

#define FACT(number, function)         \
    {                                  \
        number, #function, function, 1 \
    }
#define FACT_OF_2(number, function)    \
    {                                  \
        number, #function, function, 2 \
    }

static const struct fact facts[] = {
    FACT("FACT-OPEN-1", every_entry_point_is_found),
    FACT("FACT-OPEN-2", an_unknown_name_gives_no_function),
    FACT("FACT-OPEN-3", a_later_signature_is_not_given_to_an_older_version),
    FACT("FACT-OPEN-4", the_driver_is_of_cuda_12_or_later),
    FACT("FACT-OPEN-5", init_may_be_called_again),
    FACT("FACT-OPEN-6", a_device_that_is_not_there_is_refused),
    FACT("FACT-OPEN-7", errors_have_names_and_other_numbers_none),
    FACT("FACT-CTX-1", a_context_lives_until_its_last_release),
    FACT("FACT-CTX-2", what_is_not_retained_cannot_be_released),
    FACT("FACT-CTX-3", push_and_pop_are_a_stack),
    FACT("FACT-CTX-4", virtual_memory_needs_no_context),
    FACT("FACT-CTX-5", allocations_and_streams_need_a_context),
    FACT("FACT-CTX-6", a_forked_child_is_refused),
    FACT("FACT-GRAN-1", the_granularity_is_2_mib),
    FACT("FACT-GRAN-2", the_recommended_granularity_is_a_multiple),
    FACT("FACT-RES-1", bad_reservations_are_refused),
    FACT("FACT-RES-2", a_reservation_is_aligned_as_asked),
    FACT("FACT-RES-3", a_reservation_is_aligned_to_the_granularity),
    FACT("FACT-RES-4", addresses_can_run_out),
    FACT("FACT-RES-5", a_range_is_given_back_whole),
    FACT("FACT-RES-6", a_range_with_mappings_stays),
    FACT("FACT-RES-7", addresses_take_no_memory),
    FACT("FACT-CRE-1", bad_sizes_and_flags_are_refused),
    FACT("FACT-CRE-2", bad_properties_are_refused),
    FACT("FACT-CRE-3", memory_counts_from_its_creation),
    FACT("FACT-CRE-4", memory_can_run_out),
    FACT("FACT-MAP-1", odd_mappings_are_refused),
    FACT("FACT-MAP-2", a_mapping_lies_in_a_reservation),
    FACT("FACT-MAP-3", a_mapped_address_is_not_mapped_over),
    FACT("FACT-MAP-4", a_mapping_is_at_most_its_memory),
    FACT("FACT-MAP-5", a_fresh_mapping_has_no_access),
    FACT("FACT-MAP-6", the_same_memory_at_two_addresses),
    FACT("FACT-ACC-1", one_call_gives_access_to_several_mappings),
    FACT("FACT-ACC-2", a_hole_gets_no_access),
    FACT("FACT-ACC-3", part_of_a_mapping_gets_no_access),
    FACT("FACT-ACC-4", a_device_that_is_not_there_gets_no_access),
    FACT("FACT-ACC-5", access_can_be_taken_away_and_given_again),
    FACT_OF_2("FACT-ACC-6", another_device_needs_rights_of_its_own),
    FACT("FACT-UNM-1", part_of_a_mapping_is_not_unmapped),
    FACT("FACT-UNM-2", one_call_unmaps_several_mappings),
    FACT("FACT-UNM-3", a_hole_is_not_unmapped),
    FACT("FACT-UNM-4", an_unmapped_range_can_be_mapped_again),
    FACT("FACT-UNM-5", memory_keeps_its_bytes_while_unmapped),
    FACT("FACT-UNM-6", unmap_waits_for_no_work),
    FACT("FACT-UNM-7", growing_waits_for_no_work),
    FACT("FACT-REL-1", released_memory_stays_while_it_is_mapped),
    FACT("FACT-REL-2", a_retained_handle_is_the_same_and_counts),
    FACT("FACT-REL-3", an_unmapped_address_has_no_handle),
    FACT("FACT-SHR-1", each_export_is_a_descriptor_of_its_own),
    FACT("FACT-SHR-2", only_memory_made_for_it_is_exported),
    FACT("FACT-SHR-3", an_import_needs_its_descriptor_no_more),
    FACT("FACT-SHR-4", an_import_maps_no_more_than_its_memory),
    FACT("FACT-SHR-5", exported_memory_stays_until_nobody_has_it),
    FACT("FACT-SHR-6", another_descriptor_is_not_imported),
    FACT("FACT-SHR-7", another_process_has_the_same_bytes),
    FACT_OF_2("FACT-SHR-8", two_devices_have_two_uuids),
    FACT("FACT-ALC-1", an_allocation_of_nothing_is_refused),
    FACT("FACT-ALC-2", small_allocations_are_aligned_to_512),
    FACT("FACT-ALC-3", large_allocations_are_aligned_to_2_mib),
    FACT("FACT-ALC-4", only_the_start_can_be_freed_and_once),
    FACT("FACT-ALC-5", mapped_memory_is_no_allocation),
    FACT("FACT-ALC-6", an_allocation_too_large_is_refused_and_no_more),
    FACT("FACT-ALC-7", an_allocation_counts_until_it_is_freed),
    FACT("FACT-INFO-1", the_total_is_that_of_the_device),
    FACT("FACT-INFO-2", a_mapped_address_tells_its_reservation),
    FACT("FACT-INFO-3", only_allocations_have_legacy_ipc_handles),
    FACT("FACT-INFO-4", any_address_tells_whether_it_is_mapped),
    FACT("FACT-HOST-1", pinned_memory_is_freed_by_its_start_and_once),
    FACT("FACT-HOST-2", copies_of_pinned_memory_keep_the_order_of_their_stream),
    FACT("FACT-STR-1", a_stream_id_never_comes_again),
    FACT("FACT-STR-2", the_default_stream_has_one_id_by_both_names),
    FACT("FACT-STR-3", each_thread_has_a_default_stream_of_its_own),
    FACT("FACT-STR-4", a_stream_tells_its_context),
    FACT("FACT-STR-5", a_stream_is_busy_until_its_work_has_ended),
    FACT("FACT-STR-6", a_busy_stream_can_be_destroyed_and_goes_on),
    FACT("FACT-STR-7", the_context_waits_for_every_stream),
    FACT("FACT-STR-8", a_query_waits_for_no_host_function),
    FACT("FACT-STR-9", the_legacy_stream_waits_for_other_threads_default_streams),
    FACT("FACT-STR-10", blocking_streams_wait_for_the_legacy_one),
    FACT("FACT-EVT-1", an_event_that_was_never_recorded_is_done),
    FACT("FACT-EVT-2", an_event_is_done_with_the_work_before_it),
    FACT("FACT-EVT-3", an_event_does_not_mind_later_work),
    FACT("FACT-EVT-4", an_unfinished_event_can_be_destroyed),
    FACT("FACT-EVT-5", a_stream_waits_for_an_event),
    FACT_OF_2("FACT-EVT-6", an_event_belongs_to_its_context),
    FACT("FACT-CAP-1", each_capture_has_an_id_of_its_own),
    FACT("FACT-CAP-2", a_stream_that_waits_joins_the_capture),
    FACT("FACT-CAP-3", a_capturing_stream_is_not_queried),
    FACT("FACT-CAP-4", a_capturing_stream_is_not_waited_for),
    FACT("FACT-CAP-5", a_capturing_context_is_not_waited_for),
    FACT("FACT-CAP-6", a_captured_event_is_not_queried),
    FACT("FACT-CAP-7", an_event_query_spoils_a_global_capture),
    FACT("FACT-CAP-8", a_relaxed_thread_may_query_events),
    FACT("FACT-CAP-9", an_allocation_spoils_a_global_capture),
    FACT("FACT-CAP-10", a_free_spoils_a_global_capture),
    FACT("FACT-CAP-11", a_relaxed_thread_may_allocate_and_free),
    FACT("FACT-CAP-12", a_relaxed_capture_lets_everybody_allocate),
    FACT("FACT-CAP-13", memory_can_be_mapped_in_a_capture),
    FACT("FACT-CAP-14", questions_do_not_harm_a_capture),
    FACT("FACT-CAP-15", events_can_be_made_and_recorded_beside_a_capture),
    FACT("FACT-CAP-16", a_global_capture_stands_against_other_threads),
    FACT("FACT-CAP-17", a_thread_can_leave_others_captures_aside),
    FACT("FACT-CAP-18", the_capture_mode_is_a_threads_own),
    FACT("FACT-LATE-1", an_unmapped_address_is_not_touched_unnoticed),
    FACT("FACT-LATE-2", memory_without_rights_is_not_touched_unnoticed),
};

#define FACT_COUNT (sizeof(facts) / sizeof(facts[0]))

/* Returns: NULL, or why nothing can be asked here. */
static const char *start(void)
{
    const char *problem = open_driver();
    int has_vmm = 0;

    if (problem != NULL)
        return problem;
    if (cu.Init(0) != CUDA_SUCCESS || cu.DeviceGetCount(&device_count) != CUDA_SUCCESS ||
        device_count == 0)
        return "the driver has no device";
    if (cu.DeviceGetAttribute(&has_vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                              0) != CUDA_SUCCESS ||
        !has_vmm)
        return "the device has no virtual memory management";
    if (cu.DevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS ||
        cu.CtxPushCurrent(primary) != CUDA_SUCCESS)
        return "the device cannot be used";
    return NULL;
}

/* A case that has failed must not spoil the next one. */
static int tidy(void **state)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUcontext current = NULL;
    CUgraph graph = NULL;

    (void)state;
    if (capturing != NULL && cu.StreamEndCapture(capturing, &graph) == CUDA_SUCCESS)
        (void)cu.GraphDestroy(graph);
    capturing = NULL;
    if (cu.ThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS ||
        cu.CtxGetCurrent(&current) != CUDA_SUCCESS)
        return 1;
    return current == primary || cu.CtxPushCurrent(primary) == CUDA_SUCCESS ? 0 : 1;
}

/* What cannot be asked of one device alone is left out, and said. */
static size_t collect(struct CMUnitTest *tests, char (*names)[96])
{
    size_t count = 0;

    for (size_t i = 0; i < FACT_COUNT; i++) {
        if (facts[i].devices > device_count) {
            (void)printf("# %s needs %d devices\n", facts[i].id, facts[i].devices);
            continue;
        }
        (void)snprintf(names[count], sizeof(names[count]), "%s %s", facts[i].id, facts[i].name);
        tests[count].name = names[count];
        tests[count].teardown_func = tidy;
        tests[count++].test_func = facts[i].check;
    }
    return count;
}

/* Everything is given back; on the simulator that can be seen. */
static int stop(void)
{
    CUcontext popped = NULL;
    char left[512] = "";

    if (cu.CtxPopCurrent(&popped) != CUDA_SUCCESS || cu.DevicePrimaryCtxRelease(0) != CUDA_SUCCESS)
        return 1;
    if (sim.leaks == NULL || sim.leaks(left, sizeof(left)) == 0)
        return 0;
    (void)fprintf(stderr, "left over:\n%s", left);
    return 1;
}

int main(int count, char **arguments)
{
    static struct CMUnitTest tests[FACT_COUNT];
    static char names[FACT_COUNT][96];
    const bool may_skip = count > 1 && strcmp(arguments[1], "--skip-without-gpu") == 0;
    const char *problem;
    int failed;

    if (count > 2 && strcmp(arguments[1], "--touch-late") == 0)
        return open_driver() == NULL ? touch_late(arguments[2]) : LATE_UNPREPARED;
    if (count > 1 && strcmp(arguments[1], "--use-shared") == 0)
        return open_driver() == NULL ? use_shared() : 1;
    problem = start();
    if (problem != NULL) {
        (void)printf(may_skip ? "1..0 # SKIP %s\n" : "Bail out! %s\n", problem);
        return may_skip ? 0 : 1;
    }
    failed = _cmocka_run_group_tests("driver facts", tests, collect(tests, names), NULL, NULL);
    return stop() != 0 || failed != 0;
}
