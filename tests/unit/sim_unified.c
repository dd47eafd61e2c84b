/* SPDX-License-Identifier: MIT */
/* Integrated devices: memory that the devices share with the host. */
#include <stdlib.h>

#include "tests/unit/sim_setup.h"

#include "tests/support/sim_shared.h"

/* A host of 1024 MiB, of which host programs use 200 and the page cache 300: 524 MiB are free, and 824 are available. */
static struct xseg_sim_settings integrated(void)
{
    const struct xseg_sim_settings settings = {
        sizeof(settings),   .memory_bytes = 1024 * MIB, .costs = "none",
        .integrated = true, .host_bytes = 200 * MIB,    .page_cache_bytes = 300 * MIB};

    return settings;
}

static int start_integrated(void **state)
{
    const struct xseg_sim_settings settings = integrated();

    (void)state;
    start(&settings);
    (void)enter(0);
    return 0;
}

#define UNIFIED_TEST(name) TEST_WITH(name, start_integrated, NULL)

/* A line of the simulated /proc/meminfo, in MiB. */
static unsigned long meminfo(const char *key)
{
    char text[512];

    assert_in_range(xseg_sim_meminfo(text, sizeof(text)), 1, sizeof(text) - 1);
    const char *line = strstr(text, key);
    assert_non_null(line);
    return strtoul(line + strlen(key), NULL, 10) / 1024;
}

static void expect_host(uint64_t free_mib, uint64_t available_mib)
{
    size_t free = 0, total = 0;

    ASSERT_OK(cuMemGetInfo(&free, &total));
    assert_int_equal(total, 1024 * MIB);
    assert_int_equal(free, free_mib * MIB);
    assert_int_equal(meminfo("MemTotal:"), 1024);
    assert_int_equal(meminfo("MemFree:"), free_mib);
    assert_int_equal(meminfo("MemAvailable:"), available_mib);
    assert_int_equal(meminfo("Cached:"), available_mib - free_mib);
}

UNIFIED_TEST(driver_counts_the_page_cache_as_used)
{
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED), 1);
    expect_host(524, 824);
    assert_int_equal(xseg_sim_set_host_memory(100 * MIB, 900 * MIB), XSEG_OK);
    expect_host(24, 924);
}

UNIFIED_TEST(allocations_reclaim_the_page_cache)
{
    const CUdeviceptr first = allocate(500 * MIB);

    expect_host(24, 324);
    const CUmemGenericAllocationHandle handle = create(200 * MIB);
    expect_host(0, 124);
    ASSERT_OK(cuMemRelease(handle));
    expect_host(200, 324);
    ASSERT_OK(cuMemFree(first));
    /* Pinned memory is memory of the host. */
    void *host = NULL;
    ASSERT_OK(cuMemHostAlloc(&host, 800 * MIB, 0));
    expect_host(0, 24);
    ASSERT_OK(cuMemFreeHost(host));
    expect_host(800, 824);
    assert_int_equal(xseg_sim_set_external_memory(0, 700 * MIB), XSEG_OK);
    expect_host(100, 124);
}

/* The devices of a machine have the same memory. */
TEST(devices_share_the_host)
{
    struct xseg_sim_settings settings = integrated();

    settings.devices = 2;
    start(&settings);
    (void)enter(0);
    (void)allocate(400 * MIB);
    (void)enter(1);
    expect_host(124, 424);
}

static void allocate_too_much(void)
{
    CUdeviceptr address = 0;

    (void)start_integrated(NULL);
    (void)allocate(800 * MIB);
    (void)cuMemAlloc(&address, 40 * MIB);
}

static void create_too_much(void)
{
    const CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle = 0;

    (void)start_integrated(NULL);
    (void)cuMemCreate(&handle, 900 * MIB, &prop, 0);
}

static void pin_too_much(void)
{
    void *host = NULL;

    (void)start_integrated(NULL);
    (void)allocate(800 * MIB);
    (void)cuMemHostAlloc(&host, 40 * MIB, 0);
}

static void grow_host(void)
{
    (void)start_integrated(NULL);
    (void)allocate(800 * MIB);
    (void)xseg_sim_set_host_memory(230 * MIB, 0);
}

TEST(host_that_is_out_of_memory_ends_the_process)
{
    static const struct {
        void (*part)(void);
        const char *call;
    } rows[] = {
        {allocate_too_much, "cuMemAlloc"},
        {create_too_much, "cuMemCreate"},
        {pin_too_much, "cuMemHostAlloc"},
        {grow_host, "xseg_sim_set_host_memory"},
    };
    char text[4096], words[128];

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        assert_true(child_aborted(child_run_without_argument(rows[i].part, text, sizeof(text))));
        (void)snprintf(words, sizeof(words),
                       "%s: undefined behavior, the host is out of memory and stops responding",
                       rows[i].call);
        if (strstr(text, words) == NULL || strstr(text, "host:") == NULL)
            fail_msg("\"%s\" does not report the host in %s", text, rows[i].call);
    }
}

/* Without strict mode the calls fail, and the process continues. */
TEST(calls_run_out_of_memory_without_strict_mode)
{
    struct xseg_sim_settings settings = integrated();
    CUdeviceptr address = 0;
    void *host = NULL;

    settings.skip_checks = true;
    start(&settings);
    (void)enter(0);
    ASSERT_CU(cuMemAlloc(&address, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT_CU(cuMemHostAlloc(&host, 900 * MIB, 0), CUDA_ERROR_OUT_OF_MEMORY);
    (void)allocate(800 * MIB);
    assert_int_equal(xseg_sim_set_host_memory(300 * MIB, 0), XSEG_OK);
    expect_host(0, 0);
}

TEST(discrete_machine_has_no_host)
{
    char text[64] = "x";

    (void)fresh(NULL);
    assert_int_equal(device_attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED), 0);
    assert_int_equal(xseg_sim_meminfo(text, sizeof(text)), 0);
    assert_string_equal(text, "");
    expect_rejected(xseg_sim_set_host_memory(MIB, 0), "machine is not integrated");
}

TEST(host_memory_is_at_most_that_of_the_machine)
{
    struct xseg_sim_settings settings = integrated();

    settings.page_cache_bytes = 825 * MIB;
    expect_rejected(xseg_sim_reset(&settings), "host_bytes and page_cache_bytes are invalid");
    settings.page_cache_bytes = 0;
    settings.host_bytes = 1025 * MIB;
    expect_rejected(xseg_sim_reset(&settings), "host_bytes and page_cache_bytes are invalid");
    settings.host_bytes = 1024 * MIB;
    settings.integrated = false;
    expect_rejected(xseg_sim_reset(&settings), "host_bytes and page_cache_bytes are invalid");
}

TEST(variables_configure_the_host)
{
    assert_int_equal(setenv("XSEG_SIM_MEMORY_MB", "1024", 1), 0);
    assert_int_equal(setenv("XSEG_SIM_INTEGRATED", "1", 1), 0);
    assert_int_equal(setenv("XSEG_SIM_HOST_MB", "200", 1), 0);
    assert_int_equal(setenv("XSEG_SIM_PAGE_CACHE_MB", "300", 1), 0);
    start(NULL);
    (void)enter(0);
    expect_host(524, 824);
    assert_int_equal(unsetenv("XSEG_SIM_INTEGRATED"), 0);
    expect_rejected(xseg_sim_reset(NULL), "XSEG_SIM_HOST_MB and XSEG_SIM_PAGE_CACHE_MB");
    assert_int_equal(unsetenv("XSEG_SIM_HOST_MB"), 0);
    assert_int_equal(unsetenv("XSEG_SIM_PAGE_CACHE_MB"), 0);
    assert_int_equal(unsetenv("XSEG_SIM_MEMORY_MB"), 0);
}

/* Another process of the machine allocates 100 MiB and sets the memory of the host. */
TEST(processes_share_the_host)
{
    struct xseg_sim_settings settings = integrated();
    char name[64], byte = 0;
    int socket = -1, status = 0;

    if (!sim_shared_name(name, sizeof(name)))
        return;
    settings.shared = name;
    start(&settings);
    (void)enter(0);
    const pid_t child = child_fork_with_socket(&socket);
    if (child == 0) {
        settings.integrated = false;
        settings.host_bytes = settings.page_cache_bytes = 0;
        start(&settings);
        (void)enter(0);
        (void)allocate(100 * MIB);
        const xseg_status set_status = xseg_sim_set_host_memory(400 * MIB, 300 * MIB);
        const bool is_done = write(socket, "x", 1) == 1 && read(socket, &byte, 1) == 1;
        _exit(xseg_sim_reset(NULL) == XSEG_OK && set_status == XSEG_OK && is_done ? 0 : 1);
    }
    assert_int_equal(read(socket, &byte, 1), 1);
    expect_host(224, 524);
    assert_int_equal(write(socket, "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    (void)close(socket);
    expect_host(324, 624);
    start_with((struct xseg_sim_settings){0});
}
