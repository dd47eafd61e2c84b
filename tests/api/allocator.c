/* SPDX-License-Identifier: MIT */
/* Opening, configuring, allocating, freeing and closing; and the errors of these calls. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

/* The log of the allocator that open_logged() opened last. */
static struct env_log logged;

static struct xseg_allocator *open_logged(const char *config)
{
    assert_ok(xseg_sim_reset(NULL));
    return env_open_logged(config, &logged);
}

/* The first test of the program, since the warning is logged once per process. */
TEST_TIMES(self_checks_are_logged_once, 3, open_logged(NULL))
{
    if (XSEG_CHECKS > 0 && i == 0) {
        env_expect_warnings(&logged, 1, "self-checks: ");
        env_expect_warnings(&logged, 1, "--buildtype=release");
    } else
        assert_int_equal(logged.lines, 0);
}

#define UNKNOWN 999 /* CUDA_ERROR_UNKNOWN */

TEST(missing_driver_error_names_the_remedy)
{
    static const char *const words[] = {"libcuda.so.1", "NVIDIA driver", "r525", "CUDA 12.0",
                                        "XSEG_DRIVER=libxseg-sim.so"};
    const char *previous = getenv("XSEG_DRIVER");
    char saved[4096] = "";
    struct xseg_allocator *allocator = NULL;
    void *installed = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (installed != NULL) { /* this host has a driver */
        (void)dlclose(installed);
        return;
    }
    if (previous != NULL)
        (void)snprintf(saved, sizeof(saved), "%s", previous);
    assert_int_equal(unsetenv("XSEG_DRIVER"), 0);
    for (unsigned i = 0; i < COUNT_OF(words); i++)
        assert_error(xseg_open(NULL, NULL, &allocator), NO_DRIVER, words[i]);
    /* XSEG_DRIVER names an invalid driver. */
    assert_int_equal(setenv("XSEG_DRIVER", "libno-such-driver.so", 1), 0);
    assert_error(xseg_open(NULL, NULL, &allocator), NO_DRIVER,
                 "driver library of XSEG_DRIVER cannot be loaded, \"libno-such-driver.so\"");
    if (previous != NULL)
        assert_int_equal(setenv("XSEG_DRIVER", saved, 1), 0);
    else
        assert_int_equal(unsetenv("XSEG_DRIVER"), 0);
}

TEST(unusable_driver_is_named)
{
    struct xseg_options options = {sizeof(options), .driver = "libno-such-driver.so.1"};
    struct xseg_allocator *allocator = NULL;

    assert_error(xseg_open(NULL, &options, &allocator), NO_DRIVER, "libno-such-driver.so.1");
    options.driver = "libm.so.6"; /* a library that exists and is no driver */
    assert_error(xseg_open(NULL, &options, &allocator), NO_DRIVER, "cuGetProcAddress");
    assert_null(allocator);
}

TEST(old_drivers_are_rejected_by_version)
{
    /* A missing entry point or a driver version, and words of the error message. */
    static const char *const cases[][2] = {
        {"cuStreamGetId", "no cuStreamGetId of CUDA 12.0"},
        {"11080", "CUDA 11.8"},
        {"12020", "driver has no visible device"}, /* a supported version, without a device */
    };
    const struct xseg_options options = {sizeof(options), .driver = getenv("XSEG_TEST_OLD_DRIVER")};
    struct xseg_allocator *allocator = NULL;

    assert_non_null(options.driver);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(setenv("XSEG_OLD_DRIVER", cases[i][0], 1), 0);
        assert_error(xseg_open(NULL, &options, &allocator), NO_DRIVER, cases[i][1]);
    }
    assert_null(allocator);
}

TEST(initialization_failure_is_named)
{
    static const struct {
        int error;
        xseg_status status;
        const char *words;
    } cases[] = {
        {100, XSEG_ERR_NO_DRIVER, "driver has no visible device"}, /* CUDA_ERROR_NO_DEVICE */
        {100, XSEG_ERR_NO_DRIVER, "libxseg-sim.so"},
        {UNKNOWN, XSEG_ERR_DRIVER, "cuInit"},
    };
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_sim_reset(NULL));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_ok(xseg_sim_fail("cuInit", 1, cases[i].error));
        env_expect_error(env_try_open(NULL, &allocator), cases[i].status, cases[i].words);
    }
    assert_null(allocator);
}

TEST(unknown_size_of_options_is_rejected)
{
    static const size_t sizes[] = {sizeof(struct xseg_options) + 4096,
                                   sizeof(struct xseg_options) - 1, 0};
    struct xseg_allocator *allocator = NULL;

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const struct xseg_options options = {.struct_size = sizes[i]};

        assert_error(xseg_open(NULL, &options, &allocator), ARGUMENT,
                     "options->struct_size is unknown");
    }
    assert_error(xseg_open(NULL, NULL, NULL), ARGUMENT, "out is NULL");
}

TEST(options_of_a_newer_header_are_accepted_if_new_members_are_zero)
{
    struct {
        struct xseg_options known;
        uint64_t new_member;
    } options = {.known = {.struct_size = sizeof(options), .driver = env_driver()}};
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_open(NULL, &options.known, &allocator));
    assert_ok(xseg_close(allocator));
    options.new_member = 1;
    assert_error(xseg_open(NULL, &options.known, &allocator), ARGUMENT,
                 "options->struct_size is unknown");
}

TEST(options_of_an_older_header_are_accepted)
{
    const struct xseg_options options = {offsetof(struct xseg_options, clock),
                                         .driver = env_driver()};
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_open(NULL, &options, &allocator));
    assert_ok(xseg_close(allocator));
}

TEST_ON(keys_without_effect_are_logged_once,
        open_logged("backend:native,pinned_use_background_threads:True,"
                    "graph_capture_record_stream_reuse:True"))
{
    env_expect_warnings(&logged, 1, "pinned_use_background_threads");
    env_expect_warnings(&logged, 1, "backend");
    assert_null(strstr(logged.line, "reuse")); /* this key has an effect */
    env_free(allocator, env_alloc(allocator, 100, NULL));
    assert_int_equal(logged.lines, 1);
}

static const struct {
    const char *config;
    unsigned lines;
} thresholds[] = {
    {"garbage_collection_threshold:0.8", 1},
    {"garbage_collection_threshold:0.8,per_process_memory_fraction:1", 1},
    {"garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", 0},
    {"garbage_collection_threshold:off", 0},
    {"per_process_memory_fraction:0.5", 0},
};

TEST_TIMES(threshold_without_a_fraction_is_logged_once, COUNT_OF(thresholds),
           open_logged(thresholds[i].config))
{
    const struct xseg_limits limits = {sizeof(limits), .hard_bytes = UINT64_MAX,
                                       .soft_bytes = UINT64_MAX, .fraction = 0.5,
                                       .has_fraction = true};

    env_free(allocator, env_alloc(allocator, 100, NULL));
    assert_ok(xseg_config_set(allocator, "idle_ms:5"));
    assert_int_equal(logged.lines, thresholds[i].lines);
    if (logged.lines > 0)
        env_expect_warnings(&logged, 1, "garbage_collection_threshold has no effect");
    /* A fraction set by xseg_limits_set() is a limit as well. */
    assert_ok(xseg_limits_set(allocator, env_scope(.device = 0), &limits));
    assert_ok(xseg_config_set(allocator, "garbage_collection_threshold:0.5"));
    assert_int_equal(logged.lines, thresholds[i].lines);
}

static struct xseg_allocator *open_logged_device(bool without_vmm)
{
    assert_ok(xseg_sim_reset(
        &(struct xseg_sim_settings){sizeof(struct xseg_sim_settings), .without_vmm = without_vmm}));
    return env_open_logged("expandable_segments:True", &logged);
}

/* A driver without virtual memory management, and a driver that rejects cuMemMap. */
TEST_TIMES(segments_are_classic_without_virtual_memory_management, 2, open_logged_device(i == 0))
{
    if (i != 0)
        assert_ok(xseg_sim_fail("cuMemMap", 1, 801)); /* CUDA_ERROR_NOT_SUPPORTED */
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_false(env_block(allocator, ptr).is_expandable);
    if (i == 0)
        assert_int_equal(env_stats(allocator).segment[XSEG_STAT_ALL].current, 1);
    env_expect_warnings(&logged, 1, i == 0 ? "classic" : "cuMemMap");
    env_free(allocator, ptr);
}

/* The failure is temporary, so only the segment of this request is classic. */
TEST_ON(probe_without_addresses_is_logged, open_logged("expandable_segments:True"))
{
    /* 2 MiB of 128 TiB are free. */
    xseg_sim_set_external_addresses(((uint64_t)1 << 47) - 2 * MIB);
    void *small = env_alloc(allocator, 1000, NULL);
    assert_false(env_block(allocator, small).is_expandable);
    env_expect_warnings(&logged, 1, "out of virtual addresses for expandable segments");
    xseg_sim_set_external_addresses(0);
    void *large = env_alloc(allocator, 5 * MIB, NULL);
    assert_true(env_block(allocator, large).is_expandable);
    env_free(allocator, small, large);
}

/* 2000 allocators, one after the other, reserve more than all addresses of the simulated driver. */
TEST(repeated_opens_succeed)
{
    assert_ok(xseg_sim_reset(NULL));
    for (unsigned i = 0; i < 2000; i++) {
        struct xseg_allocator *allocator = NULL;

        assert_ok(env_try_open("expandable_segments:True", &allocator));
        void *small = env_alloc(allocator, 1000, NULL);
        void *large = env_alloc(allocator, 3 * MIB, NULL);
        assert_true(env_block(allocator, small).is_expandable);
        assert_true(env_block(allocator, large).is_expandable);
        env_free(allocator, small, large);
        env_close(allocator);
    }
}

/* Runs before all other tests that set the variable, since a process logs the line once. */
TEST(string_that_hides_the_variable_is_logged_once)
{
    static const char *const configs[] = {NULL, "expandable_segments:False",
                                          "expandable_segments:True", "expandable_segments:True"};

    assert_int_equal(setenv("XSEG_ALLOC_CONF", "expandable_segments:False", 1), 0);
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = open_logged(configs[i]);

        /* Only the first string that differs from the variable is logged. */
        assert_int_equal(logged.lines, i == 2);
        if (logged.lines > 0)
            assert_string_equal(logged.line,
                                "configuration: XSEG_ALLOC_CONF is ignored, because the "
                                "program passes a string to xseg_open(); pass NULL to "
                                "use the variable");
        env_close(allocator);
    }
    assert_int_equal(unsetenv("XSEG_ALLOC_CONF"), 0);
}

static void expect_source(const char *config, const char *source, bool is_expandable)
{
    struct xseg_allocator *allocator = env_open(config);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);

    assert_string_equal(xseg_config_source(allocator), source);
    assert_int_equal(env_block(allocator, ptr).is_expandable, is_expandable);
    if (strcmp(source, "PYTORCH_CUDA_ALLOC_CONF") == 0)
        assert_int_equal(env_stats(allocator).max_split_size, 64 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

TEST(first_source_is_used_alone)
{
    assert_int_equal(setenv("PYTORCH_ALLOC_CONF", "large_segment_size_mb:24", 1), 0);
    assert_int_equal(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", 1), 0);
    /* A PYTORCH_* string that does not name expandable_segments selects classic segments. */
    expect_source(NULL, "PYTORCH_CUDA_ALLOC_CONF", false);
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "", 1), 0);
    expect_source(NULL, "XSEG_ALLOC_CONF", true);
    expect_source("expandable_segments:False", "argument", false);
    assert_int_equal(unsetenv("XSEG_ALLOC_CONF"), 0);
    assert_int_equal(unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
    assert_int_equal(unsetenv("PYTORCH_ALLOC_CONF"), 0);
    expect_source(NULL, "default", true);
}

TEST(rejected_string_changes_nothing)
{
    struct xseg_allocator *allocator = NULL;
    char before[2048], after[2048];
    size_t needed = 0;

    assert_ok(xseg_sim_reset(NULL));
    assert_error(env_try_open("max_split_size_mb:19", &allocator), CONFIG, "max_split_size_mb");
    allocator = env_open("expandable_segments:True,max_split_size_mb:40");
    assert_ok(xseg_config_get(allocator, before, sizeof(before), &needed));
    assert_int_equal(needed, strlen(before) + 1);
    assert_error(xseg_config_set(allocator, "max_split_size_mb:50,no_such_key:1"), CONFIG,
                 "no_such_key");
    assert_error(xseg_config_set(allocator, NULL), ARGUMENT, "NULL");
    assert_ok(xseg_config_get(allocator, after, sizeof(after), NULL));
    assert_string_equal(before, after);
    /* Only named keys change. */
    assert_ok(xseg_config_set(allocator, "max_split_size_mb:50"));
    assert_int_equal(env_stats(allocator).max_split_size, 50 * MIB);
    assert_ok(xseg_config_get(allocator, after, 10, &needed));
    assert_int_equal(strlen(after), 9);
    env_close(allocator);
}

TEST_ON(extreme_sizes_are_served_or_rejected, env_open(NULL))
{
    static const struct {
        size_t bytes;
        const char *words;
    } failing[] = {
        {SIZE_MAX, "exceeds the maximum allocation size"},
        {(size_t)1 << 60, "exceeds the maximum allocation size"},
        {((size_t)1 << 60) - 1, "out of memory on device 0"},
        {81 * GIB, "free"}, /* the device has 80 GiB */
    };
    void *ptr = env_alloc(allocator, 0, NULL);

    assert_null(ptr);
    assert_ok(xseg_free(allocator, NULL));
    for (size_t i = 0; i < COUNT_OF(failing); i++)
        assert_error(xseg_alloc(allocator, 0, failing[i].bytes, NULL, &ptr), NO_MEMORY,
                     failing[i].words);
    assert_int_equal(env_stats(allocator).num_ooms, COUNT_OF(failing));
    assert_null(ptr);
    for (size_t bytes = 1; bytes <= 4 * MIB; bytes = bytes * 3 + 1) {
        ptr = env_alloc(allocator, bytes, NULL);
        assert_int_equal((uintptr_t)ptr % 512, 0);
        assert_true(env_block(allocator, ptr).bytes >= bytes);
        env_free(allocator, ptr);
    }
}

/* Small, large and guarded blocks, after a block of 512 bytes; the memory before an aligned block remains usable. */
TEST_EACH(addresses_have_the_requested_alignment, env_open(config), "expandable_segments:True",
          "expandable_segments:False", "guard_page:True")
{
    struct xseg_request request = {sizeof(request)};
    void *ptr[96] = {NULL}, *first = env_alloc(allocator, 1, NULL);
    unsigned count = 0;

    for (request.alignment = 1; request.alignment <= 64 * MIB; request.alignment *= 2)
        for (request.bytes = 700; request.bytes < 8 * MIB; request.bytes *= 40) {
            assert_ok(xseg_alloc_with(allocator, &request, &ptr[count]));
            assert_int_equal((uintptr_t)ptr[count] % request.alignment, 0);
            assert_true(env_block(allocator, ptr[count++]).bytes >= request.bytes);
        }
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, count + 1);
    env_free_all(allocator, ptr, sizeof(ptr));
    env_free(allocator, first);
    env_empty_cache(allocator);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.inactive_split[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.inactive_split_bytes[XSEG_STAT_ALL].current, 0);
    request.alignment = 3;
    assert_error(xseg_alloc_with(allocator, &request, &first), ARGUMENT,
                 "alignment is not a power of two up to 1 GiB, 3");
    request.alignment = 2 * GIB;
    assert_error(xseg_alloc_with(allocator, &request, &first), ARGUMENT, "1 GiB");
}

TEST_ON(invalid_frees_report_the_state_of_the_address, env_open(NULL))
{
    char *ptr = env_alloc(allocator, 8 * MIB, NULL);
    const struct {
        void *address;
        const char *words;
    } cases[] = {
        {ptr + 512, " at offset 512 of the block at "},
        {ptr + 9 * MIB, "cached"},
        {ptr + 50 * MIB, "unmapped"},
        {&ptr, "not in memory of this"},
        {(void *)UINTPTR_MAX, "not in memory"},
    };
    const struct xseg_statistics before = env_stats(allocator);

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_error(xseg_free(allocator, cases[i].address), NOT_ALLOCATED, cases[i].words);
    assert_error(xseg_record_stream(allocator, ptr + 1, NULL), NOT_ALLOCATED,
                 "not the start of a block");
    const struct xseg_statistics after = env_stats(allocator);
    assert_memory_equal(&before, &after, sizeof(before));
    env_free(allocator, ptr);
    assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, "cached");
}

TEST_ON(arguments_are_checked, env_open(NULL))
{
    struct xseg_request request = {sizeof(request)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr = NULL;

    assert_error(xseg_alloc(NULL, 0, 1, NULL, &ptr), ARGUMENT, "NULL");
    assert_error(xseg_alloc(allocator, 0, 1, NULL, NULL), ARGUMENT, "out");
    assert_error(xseg_alloc(allocator, 1, 1, NULL, &ptr), ARGUMENT, "device 1 does not exist");
    assert_error(xseg_alloc(allocator, -1, 1, NULL, &ptr), ARGUMENT, "device -1 does not exist");
    assert_error(xseg_alloc(allocator, 0, 1, (xseg_stream)(uintptr_t)0x1234500, &ptr), DRIVER,
                 "cuStreamGetCtx");
    request.struct_size = 3;
    assert_error(xseg_alloc_with(allocator, &request, &ptr), ARGUMENT,
                 "request->struct_size is unknown");
    assert_error(xseg_alloc_with(allocator, NULL, &ptr), ARGUMENT, "request is NULL");
    assert_error(xseg_stats_get(allocator, &scope, &stats), ARGUMENT, "device -1");
    scope.device = 0;
    scope.one_stream = true;
    assert_error(xseg_stats_get(allocator, &scope, &stats), UNSUPPORTED, "stream");
    assert_error(xseg_stats_reset(allocator, &scope, 4), ARGUMENT, "XSEG_RESET");
    assert_error(xseg_trim(NULL, NULL, NULL, NULL), ARGUMENT, "NULL");
    assert_ok(xseg_close(NULL));
    assert_null(ptr);
}

TEST_ON(close_lists_allocated_blocks, env_open(NULL))
{
    void *ptr = env_alloc(allocator, 12345, NULL);

    assert_error(xseg_close(allocator), BUSY, "12345 bytes");
    env_free(allocator, ptr);
}

TEST_ON(devices_are_separate, env_open_sim(NULL, .devices = 3))
{
    void *ptr[3] = {NULL};

    for (int i = 0; i < 3; i += 2)
        ptr[i] = env_alloc_on(allocator, i, (size_t)(i + 1) * MIB);
    /* An unused device has no context. */
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 2);
    assert_int_equal(xseg_sim_used(1), 0);
    assert_int_equal(env_block(allocator, ptr[2]).device, 2);
    const struct xseg_statistics stats = env_stats_on(allocator, 2);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 3 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, xseg_sim_used(2));
    env_free(allocator, ptr[0], ptr[2]);
}

TEST(allocators_are_separate)
{
    struct xseg_allocator *first = env_open("expandable_segments:True"), *second = NULL;

    assert_ok(env_try_open("expandable_segments:False", &second));
    void *a = env_alloc(first, 5 * MIB, NULL), *b = env_alloc(second, 5 * MIB, NULL);
    assert_int_equal(xseg_free(second, a), XSEG_ERR_NOT_ALLOCATED);
    assert_int_equal(xseg_free(first, b), XSEG_ERR_NOT_ALLOCATED);
    assert_int_equal(env_stats(first).allocation[XSEG_STAT_ALL].current, 1);
    env_free(first, a);
    assert_ok(xseg_close(first));
    env_free(second, b);
    env_close(second);
}

TEST_IN_POOL(rejected_close_changes_nothing, env_open_sim(NULL, .devices = 2))
{
    void *ptr = env_alloc_on(allocator, 1, 512);
    assert_error(xseg_close(allocator), BUSY, "blocks are allocated, 1 on device 1; ");
    assert_ok(xseg_pool_retain(pool));
    env_free(allocator, env_alloc_in(allocator, pool, 512, NULL), ptr);

    /* The context of the first device is released, and the release of the second context fails. */
    assert_ok(xseg_sim_fail("cuDevicePrimaryCtxRelease", 2, UNKNOWN));
    assert_error(xseg_close(allocator), DRIVER, "cuDevicePrimaryCtxRelease");
    assert_ok(xseg_pool_retain(pool));
    env_free(allocator, env_alloc_in(allocator, pool, 512, NULL));
}

/* The context of the first device cannot be retained again, so this device is lost; the other device still works. */
TEST_ON(close_that_cannot_be_rolled_back_loses_the_device, env_open_sim(NULL, .devices = 2))
{
    void *ptr = NULL;

    for (int device = 0; device < 2; device++)
        env_free(allocator, env_alloc_on(allocator, device, 512));
    env_fault(0, .call = "cuDevicePrimaryCtxRelease", .nth = 2, .error = UNKNOWN);
    env_fault(1, .call = "cuDevicePrimaryCtxRetain", .error = UNKNOWN);
    assert_error(xseg_close(allocator), DRIVER, "cuDevicePrimaryCtxRelease");
    assert_error(xseg_alloc(allocator, 0, 512, NULL, &ptr), DEVICE_LOST, "device 0 is lost");
    env_free(allocator, env_alloc_on(allocator, 1, 512));
}

TEST_ON(streams_of_other_devices_are_rejected, env_open_sim(NULL, .devices = 2))
{
    void *ptr = env_alloc_on(allocator, 1, 512), *out = NULL;
    xseg_stream stream = env_stream();

    assert_error(xseg_record_stream(allocator, ptr, stream), ARGUMENT, "another device");
    assert_error(xseg_alloc(allocator, 1, 512, stream, &out), ARGUMENT, "another device");
    env_free(allocator, ptr);
}

/* The device is larger than the largest segment of small blocks, 512 GiB. */
TEST_ON(very_large_devices_work, env_open_mib(4096 * KIB, "expandable_segments:True"))
{
    void *small = env_alloc(allocator, 512, NULL), *large = env_alloc(allocator, 700 * GIB, NULL);
    assert_int_equal(env_block(allocator, small).segment_bytes, 512 * GIB);
    assert_ptr_equal(env_block(allocator, (char *)large + 699 * GIB).base, large);
    env_free(allocator, small, large);
}

/* Whether the last error message advises exec and no other xseg_open(), which fails in the child and names the reason. */
static bool advises_exec(void)
{
    struct xseg_allocator *another = NULL;
    char text[512], reason[512];

    (void)xseg_error_message(text, sizeof(text));
    const xseg_status status = env_try_open(NULL, &another);
    (void)xseg_error_message(reason, sizeof(reason));
    return strstr(text, "open another") == NULL && strstr(text, "exec") != NULL &&
           status == XSEG_ERR_DRIVER && strstr(reason, "fork") != NULL &&
           strstr(reason, "exec") != NULL;
}

TEST_ON(calls_of_a_forked_child_fail, env_open(NULL))
{
    struct xseg_block_info info = {sizeof(info)};
    void *ptr = env_alloc(allocator, 512, NULL), *out = NULL;

    env_expect_forked(out == NULL && advises_exec(), xseg_alloc(allocator, 0, 512, NULL, &out),
                      xseg_free(allocator, ptr), xseg_block_query(allocator, ptr, &info),
                      xseg_trim(allocator, NULL, NULL, NULL), xseg_close(allocator));
    env_free(allocator, ptr);
}

TEST(statuses_have_names_and_messages)
{
    char text[8];

#define X(name, number, text) assert_string_equal(xseg_status_name(XSEG_##name), text);
    XSEG_STATUS_MAP(X)
#undef X
    assert_string_equal(xseg_status_name((xseg_status)-99), "unknown status");
    assert_int_equal(xseg_alloc(NULL, 0, 1, NULL, NULL), XSEG_ERR_ARGUMENT);
    assert_true(xseg_error_message(NULL, 0) > 7);
    assert_true(xseg_error_message(text, sizeof(text)) > 7);
    assert_int_equal(strlen(text), 7);
}

/* --- xseg_config_keys(). --- */

static int unset_variables(void **state)
{
    (void)state;
    return unsetenv("XSEG_ALLOC_CONF") | unsetenv("PYTORCH_CUDA_ALLOC_CONF") |
           unsetenv("PYTORCH_ALLOC_CONF");
}

/* The visited values of one key. */
struct visited_key {
    const char *name;
    char value[64], default_value[64];
    bool is_set, is_default, has_effect;
    unsigned visits, found;
};

static bool visit_key(void *context, const struct xseg_config_key *key)
{
    struct visited_key *visited = context;

    assert_int_equal(key->struct_size, sizeof(*key));
    visited->visits++;
    if (strcmp(key->name, visited->name) != 0)
        return true;
    visited->found++;
    (void)snprintf(visited->value, sizeof(visited->value), "%s", key->value);
    (void)snprintf(visited->default_value, sizeof(visited->default_value), "%s",
                   key->default_value);
    visited->is_set = key->is_set;
    visited->is_default = key->is_default;
    visited->has_effect = key->has_effect;
    return true;
}

static struct visited_key query_key(const char *config, const char *name,
                                    const char *expected_source)
{
    struct visited_key visited = {.name = name};
    const char *source = NULL;

    assert_ok(xseg_config_keys(config, &source, visit_key, &visited));
    assert_string_equal(source, expected_source);
    assert_int_equal(visited.found, 1);
    return visited;
}

static bool expect_default_key(void *context, const struct xseg_config_key *key)
{
    unsigned *count = context;

    ++*count;
    assert_true(strlen(key->name) > 0 && strlen(key->values) > 0 && strlen(key->value) > 0);
    assert_true(key->description[strlen(key->description) - 1] == '.');
    assert_null(strstr(key->description, "]("));
    assert_true(key->is_default && !key->is_set);
    assert_string_equal(key->value, key->default_value);
    return true;
}

TEST_WITH(keys_have_defaults_without_a_configuration, unset_variables, NULL)
{
    unsigned count = 0;

    assert_ok(xseg_config_keys(NULL, NULL, expect_default_key, &count));
    assert_true(count > 30);
    assert_string_equal(query_key(NULL, "expandable_segments", "default").value, "True");
    assert_string_equal(query_key(NULL, "max_split_size_mb", "default").value, "unlimited");
}

TEST_WITH(configuration_string_visits_its_keys, unset_variables, NULL)
{
    const char *const config = "max_split_size_mb:64,page_size:fixed";
    struct visited_key key = query_key(config, "max_split_size_mb", "argument");

    assert_string_equal(key.value, "64");
    assert_string_equal(key.default_value, "unlimited");
    assert_true(key.is_set && !key.is_default && key.has_effect);
    key = query_key(config, "page_size", "argument");
    assert_true(key.is_set && key.is_default);
    key = query_key(config, "idle_ms", "argument");
    assert_true(!key.is_set && key.is_default && key.has_effect);
    /* The default of max_non_split_rounding_mb is large_segment_size_mb. */
    key = query_key("large_segment_size_mb:40", "max_non_split_rounding_mb", "argument");
    assert_string_equal(key.value, "40");
    assert_true(!key.is_set && !key.is_default);
}

TEST_WITH(visited_key_reports_whether_it_has_an_effect, unset_variables, NULL)
{
    static const char threshold[] = "garbage_collection_threshold";
    static const struct {
        const char *config, *key;
        bool has_effect;
    } cases[] = {
        {"", "page_size", true},
        {"expandable_segments:False", "page_size", false},
        {"", threshold, true},
        {"garbage_collection_threshold:0.8", threshold, false},
        {"garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", threshold, true},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(query_key(cases[i].config, cases[i].key, "argument").has_effect,
                         cases[i].has_effect);
}

TEST_WITH(environment_is_read_as_by_open, unset_variables, NULL)
{
    assert_int_equal(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:30", 1), 0);
    struct visited_key key = query_key(NULL, "expandable_segments", "PYTORCH_ALLOC_CONF");
    assert_string_equal(key.value, "False");
    assert_false(key.is_set);
    assert_int_equal(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:31", 1), 0);
    assert_string_equal(query_key(NULL, "max_split_size_mb", "PYTORCH_CUDA_ALLOC_CONF").value,
                        "31");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "max_split_size_mb:32", 1), 0);
    key = query_key(NULL, "max_split_size_mb", "XSEG_ALLOC_CONF");
    assert_string_equal(key.value, "32");
    assert_string_equal(query_key(NULL, "expandable_segments", "XSEG_ALLOC_CONF").value, "True");
    assert_string_equal(query_key("", "max_split_size_mb", "argument").value, "unlimited");
}

TEST_WITH(invalid_configuration_is_rejected_before_any_visit, unset_variables, NULL)
{
    struct visited_key key = {.name = "idle_ms"};
    const char *source = "unchanged";

    assert_error(xseg_config_keys("idle_ms:1,idel_ms:2", &source, visit_key, &key), CONFIG,
                 "did you mean idle_ms? (source: argument)");
    assert_int_equal(key.visits, 0);
    assert_string_equal(source, "unchanged");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "idle_ms=5", 1), 0);
    assert_error(xseg_config_keys(NULL, NULL, NULL, NULL), CONFIG, "(source: XSEG_ALLOC_CONF)");
    assert_ok(xseg_config_keys("", NULL, NULL, NULL));
}

static bool end_visits(void *context, const struct xseg_config_key *key)
{
    (void)key;
    return --*(unsigned *)context > 0;
}

TEST_WITH(visitor_ends_the_iteration, unset_variables, NULL)
{
    unsigned remaining = 3;

    assert_ok(xseg_config_keys("", NULL, end_visits, &remaining));
    assert_int_equal(remaining, 0);
}
