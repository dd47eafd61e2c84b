/* SPDX-License-Identifier: MIT */
/* The report of what was not given back. */
#include <stdio.h>

#include "tests/unit/sim_setup.h"

SIM_TEST(a_clean_machine_reports_nothing)
{
    char text[64] = "unchanged";

    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

SIM_TEST(default_streams_are_not_leaks)
{
    unsigned long long id;

    ASSERT_OK(cuStreamGetId(NULL, &id));
    ASSERT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    assert_int_equal(xseg_sim_leaks(NULL, 0), 1);
}

SIM_TEST(each_kind_of_leak_has_a_line)
{
    CUdeviceptr base = reserve(4 * GRANULE), second = reserve(GRANULE), address = 0;
    CUgraph graph = NULL;
    char expected[1024], text[1024];
    CUstream stream;
    unsigned long long id = 0;

    (void)create(GRANULE);
    back(base + GRANULE, GRANULE);
    ASSERT_OK(cuMemAlloc(&address, 100));
    ASSERT_OK(cuMemAlloc(&address, 100));
    stream = new_stream();
    ASSERT_OK(cuStreamGetId(stream, &id));
    (void)new_event();
    ASSERT_OK(cuEventRecord(new_event(), stream));
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(stream, 1);
    launch(stream, 1);
    ASSERT_OK(cuStreamEndCapture(stream, &graph));
    (void)enter(1);
    (void)enter(0);

    (void)snprintf(expected, sizeof(expected),
                   "physical memory: 2, first: 2097152 bytes on device 0, 1 reference, 0 "
                   "mappings\n"
                   "mappings: 1, first: 2097152 bytes at 0x%llx\n"
                   "reservations: 2, first: 8388608 bytes at 0x%llx\n"
                   "allocations: 2, first: 100 bytes at 0x%llx\n"
                   "streams: 1, first: stream %llu of device 0\n"
                   "events: 2, first: on device 0, never recorded\n"
                   "graphs: 1, first: 2 nodes\n"
                   "retained contexts: 2, first: device 0, 2 references\n",
                   base + GRANULE, base, second + GRANULE, id);
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 2 + 1 + 2 + 2 + 1 + 2 + 1 + 2);
    assert_string_equal(text, expected);
}

SIM_TEST(leak_report_is_truncated_to_fit)
{
    char whole[512], text[512];

    (void)create(GRANULE);
    (void)reserve(GRANULE);
    (void)xseg_sim_leaks(whole, sizeof(whole));
    assert_true(strlen(whole) > 100 && strlen(whole) < sizeof(whole));
    for (size_t bytes = 1; bytes < strlen(whole) + 3; bytes++) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(xseg_sim_leaks(text, bytes), 3);
        assert_int_equal(strlen(text), bytes <= strlen(whole) ? bytes - 1 : strlen(whole));
        assert_memory_equal(text, whole, strlen(text));
        assert_int_equal(text[bytes], 'x');
    }
}
