/* SPDX-License-Identifier: MIT */
/* Injected faults, and counters of calls. */
#include "tests/unit/sim_setup.h"

static CUresult try_reserve(void)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAddressReserve(&address, GRANULE, 0, 0, 0);

    if (result != CUDA_SUCCESS)
        assert_int_equal(address, 0);
    return result;
}

static void fail_once(const char *call, uint64_t nth, int error)
{
    assert_int_equal(xseg_sim_fail(call, nth, error), XSEG_OK);
}

SIM_TEST(the_nth_call_of_a_name_fails_once)
{
    assert_false(xseg_sim_failed());
    fail_once("cuMemAddressReserve", 3, 999);
    ASSERT_OK(try_reserve());
    (void)create(GRANULE);
    ASSERT_OK(try_reserve());
    assert_false(xseg_sim_failed());
    ASSERT_CU(try_reserve(), CUDA_ERROR_UNKNOWN);
    assert_true(xseg_sim_failed());
    for (int i = 0; i < 10; i++)
        ASSERT_OK(try_reserve());
    /* A later fault replaces an earlier one. */
    fail_once("cuMemAddressReserve", 1, 2);
    fail_once("cuMemCreate", 1, 2);
    ASSERT_OK(try_reserve());
    fail_once("cuMemAddressReserve", 1, 2);
    fail_once(NULL, 0, 0);
    ASSERT_OK(try_reserve());
    assert_false(xseg_sim_failed());
    (void)create(GRANULE);
}

SIM_TEST(any_fallible_call_can_be_failed)
{
    const char *text;
    int version;

    fail_once(NULL, 2, 2);
    ASSERT_OK(cuGetErrorName(CUDA_SUCCESS, &text));
    ASSERT_OK(cuDriverGetVersion(&version));
    ASSERT_OK(try_reserve());
    ASSERT_OK(cuGetErrorString(CUDA_SUCCESS, &text));
    ASSERT_CU(cuStreamQuery(NULL), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(xseg_sim_failed());
}

/* A fault also applies to a call with invalid arguments, and to cuInit(). */
SIM_TEST(fault_precedes_the_checks_of_the_call)
{
    const struct xseg_sim_settings settings = small_machine();

    fail_once("cuMemUnmap", 1, 719);
    ASSERT_CU(cuMemUnmap(1, 1), CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_INVALID(cuMemUnmap(1, 1));
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    assert_false(xseg_sim_failed());
    fail_once("cuInit", 1, 100);
    ASSERT_CU(cuInit(0), CUDA_ERROR_NO_DEVICE);
    ASSERT_CU(try_reserve(), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(cuInit(0));
}

#define FAULT(...) (&(struct xseg_sim_fault){sizeof(struct xseg_sim_fault), __VA_ARGS__})

static void set_fault(unsigned slot, const struct xseg_sim_fault *fault)
{
    assert_int_equal(xseg_sim_fault_set(slot, fault), XSEG_OK);
}

SIM_TEST(every_nth_call_fails)
{
    set_fault(0, FAULT("cuMemAddressReserve", .nth = 2, .every = 3, .error = 999));
    for (int i = 1; i <= 12; i++)
        ASSERT_CU(try_reserve(), i % 3 == 2 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
    assert_int_equal(xseg_sim_fault_count(0), 4);
    assert_true(xseg_sim_failed());
    set_fault(0, NULL);
    ASSERT_OK(try_reserve());
    ASSERT_OK(try_reserve());
    assert_int_equal(xseg_sim_fault_count(0), 4);
}

SIM_TEST(memory_runs_out_at_a_chosen_call)
{
    set_fault(1, FAULT("cuMemCreate", .nth = 3, .every = 1, .error = 2));
    (void)create(GRANULE);
    (void)create(GRANULE);
    for (int i = 0; i < 5; i++)
        ASSERT_CU(try_create(GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_TEST(fault_applies_to_calls_on_its_addresses)
{
    CUdeviceptr base = reserve(4 * GRANULE);
    struct xseg_sim_fault fault = *FAULT(NULL, base + GRANULE, GRANULE, 1, 1, .error = 719);

    for (unsigned i = 0; i < 4; i++)
        back(base + i * GRANULE, GRANULE);
    set_fault(3, &fault);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_CU(cuMemUnmap(base + GRANULE, GRANULE), CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_CU(cuMemUnmap(base + GRANULE, 2 * GRANULE), CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_OK(cuMemUnmap(base + 2 * GRANULE, GRANULE));
    ASSERT_OK(try_reserve());
    fault.call = "cuMemMap";
    set_fault(3, &fault);
    ASSERT_OK(cuMemUnmap(base + GRANULE, GRANULE));
    ASSERT_CU(cuMemMap(base + GRANULE, GRANULE, 0, create(GRANULE), 0), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(xseg_sim_fault_count(3), 1);
}

SIM_TEST(faults_are_independent)
{
    set_fault(2, FAULT("cuMemAddressReserve", .nth = 2, .error = 2));
    set_fault(5, FAULT(NULL, .nth = 4, .error = 999));
    set_fault(7, FAULT("cuMemAddressReserve", .nth = 2, .error = 719));
    ASSERT_OK(try_reserve());
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(try_reserve());
    ASSERT_CU(try_reserve(), CUDA_ERROR_UNKNOWN);
    ASSERT_OK(try_reserve());
    assert_int_equal(xseg_sim_fault_count(2), 1);
    assert_int_equal(xseg_sim_fault_count(5), 1);
    assert_int_equal(xseg_sim_fault_count(7), 1);
    assert_int_equal(xseg_sim_fault_count(0), 0);
    assert_int_equal(xseg_sim_fault_count(XSEG_SIM_FAULTS), 0);
}

SIM_TEST(a_batch_fails_half_way)
{
    struct xseg_sim_fault fault = *FAULT("cuMemUnmap", .nth = 1, .error = 2);
    const CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base = reserve(4 * GRANULE);

    for (uint64_t completed = 1; completed <= 5; completed++) {
        const uint64_t remaining = completed < 4 ? 4 - completed : 0;

        for (unsigned i = 0; i < 4; i++)
            back(base + i * GRANULE, GRANULE);
        fault.halfway = completed;
        set_fault(0, &fault);
        ASSERT_CU(cuMemUnmap(base, 4 * GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
        assert_true(xseg_sim_failed());
        assert_int_equal(xseg_sim_used(0), remaining * GRANULE);
        ASSERT_INVALID(cuMemUnmap(base, 4 * GRANULE));
        if (remaining != 0)
            ASSERT_OK(cuMemUnmap(base + (4 - remaining) * GRANULE, remaining * GRANULE));
    }
    for (unsigned i = 0; i < 4; i++)
        back(base + i * GRANULE, GRANULE);
    fault.call = "cuMemSetAccess";
    fault.halfway = 3;
    set_fault(0, &fault);
    ASSERT_CU(cuMemSetAccess(base, 4 * GRANULE, &desc, 1), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(access_of(base + 2 * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_int_equal(access_of(base + 3 * GRANULE, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    ASSERT_OK(cuMemSetAccess(base, 4 * GRANULE, &desc, 1));
    /* A fault with `halfway` follows the check of the arguments. */
    set_fault(0, &fault);
    ASSERT_INVALID(cuMemSetAccess(base, 0, &desc, 1));
    ASSERT_OK(cuMemSetAccess(base, 4 * GRANULE, &desc, 1));
}

SIM_TEST(memory_and_addresses_of_other_processes_are_unavailable)
{
    CUmemGenericAllocationHandle handle = create(4 * GRANULE);
    CUdeviceptr address = 0;
    size_t free_bytes = 0, total = 0;

    assert_int_equal(xseg_sim_set_external_memory(0, 1024 * MIB - 6 * GRANULE), XSEG_OK);
    ASSERT_OK(cuMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, 2 * GRANULE);
    assert_int_equal(total, 1024 * MIB);
    ASSERT_CU(try_create(3 * GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemAlloc(&address, 3 * GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
    /* External memory above the free memory occupies all of it. */
    assert_int_equal(xseg_sim_set_external_memory(0, UINT64_MAX), XSEG_OK);
    assert_int_equal(free_memory(), 0);
    ASSERT_OK(cuMemRelease(handle));
    ASSERT_CU(try_create(GRANULE), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(xseg_sim_set_external_memory(0, 0), XSEG_OK);
    ASSERT_OK(try_create(1024 * MIB));
    expect_rejected(xseg_sim_set_external_memory(2, 0),
                    "xseg_sim_set_external_memory: invalid device, 2; pass a device below 2");

    xseg_sim_set_external_addresses((uint64_t)128 << 40);
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    xseg_sim_set_external_addresses(((uint64_t)128 << 40) - GRANULE);
    ASSERT_OK(try_reserve());
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    xseg_sim_set_external_addresses(UINT64_MAX);
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    xseg_sim_set_external_addresses(0);
    ASSERT_OK(try_reserve());
}

/* The driver cannot be used after a fork; a new machine can be used in the child. */
SIM_TEST(calls_of_a_forked_child_fail)
{
    const pid_t child = fork();

    if (child == 0) {
        CUdeviceptr address;
        int version, failures = 0;

        failures += cuMemAddressReserve(&address, GRANULE, 0, 0, 0) != CUDA_ERROR_NOT_INITIALIZED;
        failures += cuInit(0) != CUDA_ERROR_NOT_INITIALIZED;
        failures += cuDriverGetVersion(&version) != CUDA_SUCCESS;
        failures += fresh(NULL) != 0;
        failures += cuMemAddressReserve(&address, GRANULE, 0, 0, 0) != CUDA_SUCCESS;
        _exit(failures);
    }
    child_expect_success(child);
    ASSERT_OK(try_reserve());
}

SIM_TEST(invalid_faults_are_rejected)
{
    static const char without_halfway[] = "halfway does not apply to the call, ";
    const struct {
        unsigned slot;
        struct xseg_sim_fault *fault;
        const char *words;
    } rows[] = {
        {XSEG_SIM_FAULTS, FAULT("cuMemCreate", .nth = 1, .error = 2), "invalid slot, 16;"},
        {XSEG_SIM_FAULTS, NULL, "invalid slot, 16;"},
        {0, FAULT("cuMemCreate", .nth = 1, .error = 2, .halfway = 1), without_halfway},
        {0, FAULT(NULL, .nth = 1, .error = 2, .halfway = 1), without_halfway},
        {0, FAULT("cuNone", .nth = 1, .error = 2),
         "xseg_sim_fault_set: unknown driver call, 'cuNone'"},
        {0, FAULT("cuMemCreate", .error = 2), "xseg_sim_fault_set: nth is 0;"},
        {0, FAULT("cuMemCreate", .nth = 1), "xseg_sim_fault_set: error is CUDA_SUCCESS, 0;"},
        {0,
         &(struct xseg_sim_fault){sizeof(struct xseg_sim_fault) - 1, "cuMemCreate", .nth = 1,
                                  .error = 2},
         "struct_size"},
    };
    char text[8];

    for (size_t i = 0; i < COUNT_OF(rows); i++)
        expect_rejected(xseg_sim_fault_set(rows[i].slot, rows[i].fault), rows[i].words);
    expect_rejected(
        xseg_sim_fail("cuMemCreate_v2", 1, 2),
        "xseg_sim_fail: unknown driver call, 'cuMemCreate_v2'; use a name without version suffix");
    expect_rejected(xseg_sim_fail("", 1, 2), "unknown driver call, ''");
    expect_rejected(xseg_sim_fail("cuMemCreate", 1, 0), "error is CUDA_SUCCESS, 0;");
    assert_true(xseg_sim_error_message(NULL, 0) > 7);
    assert_true(xseg_sim_error_message(text, sizeof(text)) > 7);
    assert_string_equal(text, "xseg_si");
    (void)create(GRANULE);
}

/* Reserve, create, map, set access, unmap, release and free.  A failure is rolled back. */
static CUresult round_trip(void)
{
    const CUmemAllocationProp prop = on_device(0);
    const CUmemAccessDesc desc = read_write(0);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    CUresult result = cuMemAddressReserve(&base, 2 * GRANULE, 0, 0, 0);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemCreate(&handle, 2 * GRANULE, &prop, 0);
    if (result == CUDA_SUCCESS) {
        result = cuMemMap(base, 2 * GRANULE, 0, handle, 0);
        if (result == CUDA_SUCCESS) {
            result = cuMemSetAccess(base, 2 * GRANULE, &desc, 1);
            if (cuMemUnmap(base, 2 * GRANULE) != CUDA_SUCCESS) {
                result = CUDA_ERROR_UNKNOWN;
                ASSERT_OK(cuMemUnmap(base, 2 * GRANULE));
            }
        }
        if (cuMemRelease(handle) != CUDA_SUCCESS) {
            result = CUDA_ERROR_UNKNOWN;
            ASSERT_OK(cuMemRelease(handle));
        }
    }
    if (cuMemAddressFree(base, 2 * GRANULE) != CUDA_SUCCESS) {
        result = CUDA_ERROR_UNKNOWN;
        ASSERT_OK(cuMemAddressFree(base, 2 * GRANULE));
    }
    return result;
}

SIM_TEST(failed_call_has_no_effect)
{
    uint64_t n = 1;

    for (;; n++) {
        fail_once(NULL, n, 2);
        if (round_trip() == CUDA_SUCCESS)
            break;
        assert_true(xseg_sim_failed());
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(xseg_sim_leaks(NULL, 0), 1); /* the retained context */
    }
    assert_false(xseg_sim_failed());
    assert_int_equal(n, 7 + 1); /* round_trip() makes 7 calls */
}

SIM_TEST(calls_are_counted_also_when_they_fail)
{
    uint64_t all = xseg_sim_calls(NULL);

    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), 0);
    ASSERT_OK(try_reserve());
    fail_once("cuMemAddressReserve", 1, 2);
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_INVALID(cuMemUnmap(0, 0));
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), 2);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), 1);
    assert_int_equal(xseg_sim_calls(NULL), all + 3);
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve_v2"), 0);
    assert_int_equal(xseg_sim_calls("cuInit"), 1);
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 1);
}

SIM_TEST(calls_of_any_signature_count_as_one_name)
{
    CUdevice device;
    CUresult (*get_device)(CUdevice *, CUcontext);
    CUdriverProcAddressQueryResult status;
    void *address;

    ASSERT_OK(cuGetProcAddress("cuCtxGetDevice", &address, 13000, 0, &status));
    memcpy(&get_device, &address, sizeof(get_device));
    ASSERT_OK(cuCtxGetDevice(&device));
    ASSERT_OK(get_device(&device, NULL));
    assert_int_equal(xseg_sim_calls("cuCtxGetDevice"), 2);
    assert_int_equal(xseg_sim_calls("cuGetProcAddress"), 1);
    fail_once("cuCtxGetDevice", 2, 2);
    ASSERT_OK(cuCtxGetDevice(&device));
    ASSERT_CU(get_device(&device, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Expect the count of a call, and the output of the query on standard error. */
static void expect_calls(const char *call, uint64_t count, const char *expected)
{
    char text[1024] = "";
    FILE *file = tmpfile();
    const int saved_stderr = dup(STDERR_FILENO);

    assert_non_null(file);
    assert_true(saved_stderr >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const uint64_t calls = xseg_sim_calls(call);
    assert_true(dup2(saved_stderr, STDERR_FILENO) >= 0);
    assert_int_equal(close(saved_stderr), 0);
    assert_int_equal(calls, count);
    rewind(file);
    (void)!fread(text, 1, sizeof(text) - 1, file);
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, expected);
}

#define ADVICE "; use a name without version suffix, such as cuMemCreate\n"

/* With a misspelled name a test of a fault would pass without the fault. */
SIM_TEST(unknown_call_names_are_reported)
{
    ASSERT_OK(try_reserve());
    expect_calls("cuMemAddressReserve", 1, "");
    expect_calls("cuMemMap", 0, "");
    expect_calls("cuMemCreat", 0,
                 "xseg-sim: xseg_sim_calls: unknown driver call, 'cuMemCreat'" ADVICE);
    expect_calls("cuMemAddressReserve_v2", 0,
                 "xseg-sim: xseg_sim_calls: unknown driver call, 'cuMemAddressReserve_v2'" ADVICE);
    expect_calls("\033[2J", 0, "xseg-sim: xseg_sim_calls: unknown driver call, '\\x1b[2J'" ADVICE);
}
