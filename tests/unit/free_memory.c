/* SPDX-License-Identifier: MIT */
/* The free memory of integrated devices: /proc/meminfo. */
#include "vmm/free_memory.h"

#include <stdlib.h>
#include <unistd.h>

#include "tests/support/test.h"

TEST(available_memory_is_found)
{
    uint64_t bytes = 0;

    assert_true(xseg_free_memory_parse("MemTotal:       125524284 kB\nMemFree:  27812140 kB\n"
                                       "MemAvailable:   59063644 kB\nBuffers: 1 kB\n",
                                       &bytes));
    assert_int_equal(bytes, UINT64_C(59063644) * KIB);
    assert_true(xseg_free_memory_parse("MemAvailable: 0 kB", &bytes));
    assert_int_equal(bytes, 0);
}

TEST(malformed_contents_are_rejected)
{
    static const char *const text[] = {
        "",
        "MemTotal: 1 kB",
        "MemTotal: 1 kB\n",
        "MemAvailable:",
        "MemAvailable: kB",
        "MemAvailable: 12",
        "MemAvailable: 12 MB\n",
        "MemAvailable: 99999999999999999999 kB\n",
        "xMemAvailable: 12 kB\n",
        "MemTotal: 1 kB\nMemAvail",
    };
    uint64_t bytes = 7;

    for (unsigned i = 0; i < COUNT_OF(text); i++) {
        assert_false(xseg_free_memory_parse(text[i], &bytes));
        assert_int_equal(bytes, 7);
    }
}

/* The driver is zeroed memory: it has no simulated host, and is not called. */
TEST(available_memory_of_this_host_is_read)
{
    void *const driver = calloc(1, 64 * KIB);
    struct xseg_context context = {
        .driver = driver, .is_integrated = true, .total_bytes = UINT64_MAX};
    uint64_t bytes = 0, total = 0;

    if (access("/proc/meminfo", R_OK) == 0) {
        assert_int_equal(xseg_free_memory_query(&context, &bytes, &total), XSEG_OK);
        assert_int_equal(total, UINT64_MAX);
        assert_in_range(bytes, MIB, 1024 * 1024 * GIB); /* any plausible size */
        /* The device can use less memory than the host has. */
        context.total_bytes = MIB;
        assert_int_equal(xseg_free_memory_query(&context, &bytes, &total), XSEG_OK);
        assert_int_equal(bytes, MIB);
    }
    free(driver);
}
