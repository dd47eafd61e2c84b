/* SPDX-License-Identifier: MIT */
/* Settings from the environment. */
#include <stdlib.h>

#include "tests/unit/sim_setup.h"

static const char *const names[] = {
    "XSEG_SIM_DEVICES", "XSEG_SIM_MEMORY_MB", "XSEG_SIM_ADDRESSES_MB", "XSEG_SIM_COSTS",
    "XSEG_SIM_BATCH",   "XSEG_SIM_VMM",       "XSEG_SIM_FAIL",         "XSEG_SIM_STRICT",  "XSEG_SIM_BYTES",    "XSEG_SIM_PEERS", "XSEG_SIM_TAILS",
};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_int_equal(unsetenv(names[i]), 0);
    return 0;
}

static void set(const char *name, const char *text)
{
    assert_int_equal(setenv(name, text, 1), 0);
}

static int count_of_devices(void)
{
    int count = 0;

    ASSERT_OK(cuInit(0));
    ASSERT_OK(cuDeviceGetCount(&count));
    return count;
}

/* Has to be the first test: main() has set the variables, and nothing was called yet. */
static void the_first_call_reads_the_environment(void **state)
{
    (void)state;
    assert_int_equal(count_of_devices(), 3);
    assert_int_equal(xseg_sim_calls(NULL), 2);
}

static void defaults(void **state)
{
    size_t bytes = 0;
    int value = 0;

    (void)state;
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 1);
    ASSERT_OK(cuDeviceTotalMem(&bytes, 0));
    assert_int_equal(bytes, (size_t)80 * 1024 * MIB);
    ASSERT_OK(
        cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    assert_int_equal(value, 1);
    (void)reserve(GRANULE);
    assert_int_equal(xseg_sim_driver_time(), 2000);
    /* Settings that say nothing mean the same. */
    {
        const struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

        start(&settings);
        ASSERT_OK(cuDeviceTotalMem(&bytes, 0));
        assert_int_equal(bytes, (size_t)80 * 1024 * MIB);
        (void)reserve(GRANULE);
        assert_int_equal(xseg_sim_driver_time(), 2000);
    }
}

static void every_variable_counts(void **state)
{
    CUdeviceptr base, out = 0;
    size_t bytes = 0;

    (void)state;
    set("XSEG_SIM_DEVICES", "64");
    set("XSEG_SIM_MEMORY_MB", "10");
    set("XSEG_SIM_ADDRESSES_MB", "12");
    set("XSEG_SIM_COSTS", "consumer");
    set("XSEG_SIM_BATCH", "0");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 64);
    ASSERT_OK(cuDeviceTotalMem(&bytes, 63));
    assert_int_equal(bytes, 10 * MIB);
    ASSERT_CU(cuMemAddressReserve(&out, 14 * MIB, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    base = reserve(12 * MIB);
    assert_int_equal(xseg_sim_driver_time(), 2 * 9000);
    back(base, GRANULE);
    back(base + GRANULE, GRANULE);
    ASSERT_CU(cuMemUnmap(base, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);

    set("XSEG_SIM_VMM", "0");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    ASSERT_OK(cuInit(0));
    ASSERT_CU(cuMemAddressReserve(&out, GRANULE, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void a_fault_from_the_environment(void **state)
{
    (void)state;
    set("XSEG_SIM_FAIL", "cuDeviceGetCount:2:46");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    assert_int_equal(count_of_devices(), 1);
    {
        int count;

        ASSERT_CU(cuDeviceGetCount(&count), CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    assert_true(xseg_sim_failed());
    set("XSEG_SIM_FAIL", "cuDeviceGetCount:2+2:46,cuInit:2:999");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    for (int i = 1; i <= 6; i++) {
        int count;

        ASSERT_CU(cuInit(0), i == 2 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS);
        ASSERT_CU(cuDeviceGetCount(&count),
                  i % 2 == 0 ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS);
    }
    set("XSEG_SIM_FAIL", ":1");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    ASSERT_CU(cuInit(0), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_OK(cuInit(0));
}

static void what_cannot_be_understood_is_refused(void **state)
{
    static const char *const bad[][2] = {
        {"XSEG_SIM_DEVICES", "0"},
        {"XSEG_SIM_DEVICES", "65"},
        {"XSEG_SIM_DEVICES", "-1"},
        {"XSEG_SIM_DEVICES", "two"},
        {"XSEG_SIM_DEVICES", "2x"},
        {"XSEG_SIM_DEVICES", " 2"},
        {"XSEG_SIM_MEMORY_MB", "3"},
        {"XSEG_SIM_MEMORY_MB", "0"},
        {"XSEG_SIM_MEMORY_MB", "1.5"},
        {"XSEG_SIM_MEMORY_MB", "99999999999999999999"},
        {"XSEG_SIM_ADDRESSES_MB", "0"},
        {"XSEG_SIM_ADDRESSES_MB", "20000000000000"},
        {"XSEG_SIM_COSTS", "A100"},
        {"XSEG_SIM_BATCH", "2"},
        {"XSEG_SIM_BATCH", "yes"},
        {"XSEG_SIM_VMM", "-0"},
        {"XSEG_SIM_FAIL", "cuMemCreate"},
        {"XSEG_SIM_FAIL", "cuMemCreate:"},
        {"XSEG_SIM_FAIL", "cuMemCreate:0"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1:"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1:0"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1:2:3"},
        {"XSEG_SIM_FAIL", "cuNone:1"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1,"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1+"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1+0"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1:2+3"},
        {"XSEG_SIM_FAIL", ":1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1,:1"},
        {"XSEG_SIM_STRICT", "on"},
        {"XSEG_SIM_BYTES", "2"},
        {"XSEG_SIM_PEERS", "no"},
        {"XSEG_SIM_TAILS", "-1"},
        {"XSEG_SIM_FAIL", "cuMemCreate:1:99999999999"},
        {"XSEG_SIM_FAIL",
         "cuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreatecuMemCreate:1"},
    };

    (void)state;
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    ASSERT_OK(cuInit(0));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)clear(NULL);
        set(bad[i][0], bad[i][1]);
        if (xseg_sim_reset(NULL) != XSEG_ERR_ARGUMENT)
            fail_msg("%s=%s was accepted", bad[i][0], bad[i][1]);
    }
    /* Nothing has changed: the machine is started still. */
    (void)reserve(GRANULE);
    (void)clear(NULL);
    set("XSEG_SIM_DEVICES", "");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
}

static void use_destroyed_event(void)
{
    CUevent event;

    (void)xseg_sim_reset(NULL);
    (void)cuInit(0);
    (void)enter(0);
    event = new_event();
    (void)cuEventDestroy(event);
    (void)cuEventQuery(event);
}

static void strict_unless_told_otherwise(void **state)
{
    (void)state;
    EXPECT_REPORT(use_destroyed_event, "cuEventQuery");
    set("XSEG_SIM_STRICT", "1");
    EXPECT_REPORT(use_destroyed_event, "cuEventQuery");
    set("XSEG_SIM_STRICT", "0");
    use_destroyed_event();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_first_call_reads_the_environment, clear),
        cmocka_unit_test_teardown(defaults, clear),
        cmocka_unit_test_teardown(every_variable_counts, clear),
        cmocka_unit_test_teardown(a_fault_from_the_environment, clear),
        cmocka_unit_test_teardown(strict_unless_told_otherwise, clear),
        cmocka_unit_test_teardown(what_cannot_be_understood_is_refused, clear),
    };

    (void)clear(NULL);
    set("XSEG_SIM_DEVICES", "3");
    /* One that makes no sense is reported, and the others count all the same. */
    set("XSEG_SIM_MEMORY_MB", "much");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
