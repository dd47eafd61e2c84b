/* SPDX-License-Identifier: MIT */
/* Faults, and the counters of calls. */
#include "tests/unit/sim_setup.h"

static CUresult try_reserve(void)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAddressReserve(&address, GRANULE, 0, 0, 0);

    if (result != CUDA_SUCCESS)
        assert_int_equal(address, 0);
    return result;
}

static void the_nth_call_of_a_name_fails_once(void **state)
{
    (void)state;
    assert_false(xseg_sim_failed());
    assert_int_equal(xseg_sim_fail("cuMemAddressReserve", 3, 999), XSEG_OK);
    ASSERT_OK(try_reserve());
    (void)create(GRANULE);
    ASSERT_OK(try_reserve());
    assert_false(xseg_sim_failed());
    ASSERT_CU(try_reserve(), CUDA_ERROR_UNKNOWN);
    assert_true(xseg_sim_failed());
    for (int i = 0; i < 10; i++)
        ASSERT_OK(try_reserve());
}

static void any_call_that_can_fail(void **state)
{
    const char *text;
    int version;

    (void)state;
    assert_int_equal(xseg_sim_fail(NULL, 2, 2), XSEG_OK);
    ASSERT_OK(cuGetErrorName(CUDA_SUCCESS, &text));
    ASSERT_OK(cuDriverGetVersion(&version));
    ASSERT_OK(try_reserve());
    ASSERT_OK(cuGetErrorString(CUDA_SUCCESS, &text));
    ASSERT_CU(cuStreamQuery(NULL), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(xseg_sim_failed());
}

static void a_later_fault_replaces_an_earlier_one(void **state)
{
    (void)state;
    assert_int_equal(xseg_sim_fail("cuMemAddressReserve", 1, 2), XSEG_OK);
    assert_int_equal(xseg_sim_fail("cuMemCreate", 1, 2), XSEG_OK);
    ASSERT_OK(try_reserve());
    assert_int_equal(xseg_sim_fail("cuMemAddressReserve", 1, 2), XSEG_OK);
    assert_int_equal(xseg_sim_fail(NULL, 0, 0), XSEG_OK);
    ASSERT_OK(try_reserve());
    assert_false(xseg_sim_failed());
    (void)create(GRANULE);
}

static void a_fault_can_strike_where_others_would(void **state)
{
    /* Also a call that would have been refused, and cuInit. */
    const struct xseg_sim_settings settings = small_machine();

    (void)state;
    assert_int_equal(xseg_sim_fail("cuMemUnmap", 1, 719), XSEG_OK);
    ASSERT_CU(cuMemUnmap(1, 1), CUDA_ERROR_LAUNCH_FAILED);
    ASSERT_CU(cuMemUnmap(1, 1), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    assert_false(xseg_sim_failed());
    assert_int_equal(xseg_sim_fail("cuInit", 1, 100), XSEG_OK);
    ASSERT_CU(cuInit(0), CUDA_ERROR_NO_DEVICE);
    ASSERT_CU(try_reserve(), CUDA_ERROR_NOT_INITIALIZED);
    ASSERT_OK(cuInit(0));
}

static void bad_faults_are_refused(void **state)
{
    (void)state;
    assert_int_equal(xseg_sim_fail("cuMemCreate_v2", 1, 2), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_sim_fail("", 1, 2), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_sim_fail("cuMemCreate", 1, 0), XSEG_ERR_ARGUMENT);
    (void)create(GRANULE);
}

/* A round of everything that memory is used for; every step undoes itself when one fails. */
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

static void a_failed_call_has_done_nothing(void **state)
{
    uint64_t n = 1;

    (void)state;
    for (;; n++) {
        assert_int_equal(xseg_sim_fail(NULL, n, 2), XSEG_OK);
        if (round_trip() == CUDA_SUCCESS)
            break;
        assert_true(xseg_sim_failed());
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(xseg_sim_leaks(NULL, 0), 1); /* the retained context */
    }
    assert_false(xseg_sim_failed());
    assert_int_equal(n, 7 + 1);
}

static void calls_are_counted_also_when_they_fail(void **state)
{
    uint64_t all = xseg_sim_calls(NULL);

    (void)state;
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), 0);
    ASSERT_OK(try_reserve());
    assert_int_equal(xseg_sim_fail("cuMemAddressReserve", 1, 2), XSEG_OK);
    ASSERT_CU(try_reserve(), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemUnmap(0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), 2);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), 1);
    assert_int_equal(xseg_sim_calls(NULL), all + 3);
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve_v2"), 0);
    assert_int_equal(xseg_sim_calls("cuInit"), 1);
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 1);
}

static void calls_of_any_signature_count_as_one_name(void **state)
{
    CUdevice device;
    CUresult (*get_device)(CUdevice *, CUcontext);
    CUdriverProcAddressQueryResult status;
    void *address;

    (void)state;
    ASSERT_OK(cuGetProcAddress("cuCtxGetDevice", &address, 13000, 0, &status));
    memcpy(&get_device, &address, sizeof(get_device));
    ASSERT_OK(cuCtxGetDevice(&device));
    ASSERT_OK(get_device(&device, NULL));
    assert_int_equal(xseg_sim_calls("cuCtxGetDevice"), 2);
    assert_int_equal(xseg_sim_calls("cuGetProcAddress"), 1);
    assert_int_equal(xseg_sim_fail("cuCtxGetDevice", 2, 2), XSEG_OK);
    ASSERT_OK(cuCtxGetDevice(&device));
    ASSERT_CU(get_device(&device, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_nth_call_of_a_name_fails_once, fresh),
        cmocka_unit_test_setup(any_call_that_can_fail, fresh),
        cmocka_unit_test_setup(a_later_fault_replaces_an_earlier_one, fresh),
        cmocka_unit_test_setup(a_fault_can_strike_where_others_would, fresh),
        cmocka_unit_test_setup(bad_faults_are_refused, fresh),
        cmocka_unit_test_setup(a_failed_call_has_done_nothing, fresh),
        cmocka_unit_test_setup(calls_are_counted_also_when_they_fail, fresh),
        cmocka_unit_test_setup(calls_of_any_signature_count_as_one_name, fresh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
