/* SPDX-License-Identifier: MIT */
/* Opening, configuring, allocating, freeing, closing; and everything a caller can get wrong. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/env.h"

struct self_check_log {
    unsigned count;
    enum xseg_log_level level;
    char line[256];
};

/* Lines about self-checks. */
static void log_self_checks(void *context, enum xseg_log_level level, const char *line)
{
    struct self_check_log *self_check_log = context;

    if (strstr(line, "self-checks: ") == NULL)
        return;
    self_check_log->count++;
    self_check_log->level = level;
    (void)snprintf(self_check_log->line, sizeof(self_check_log->line), "%s", line);
}

/* The first test of the program, since the warning is logged once per process. */
TEST(self_checks_are_logged_once)
{
    struct self_check_log self_check_log = {0};
    struct xseg_options options = {sizeof(options)};

    assert_ok(xseg_sim_reset(NULL));
    options.driver = env_driver();
    options.log = log_self_checks;
    options.log_context = &self_check_log;
    for (int i = 0; i < 3; i++) {
        struct xseg_allocator *allocator = NULL;

        assert_ok(xseg_open(NULL, &options, &allocator));
        env_close(allocator);
    }
    if (XSEG_CHECKS > 0) {
        assert_int_equal(self_check_log.count, 1);
        assert_int_equal(self_check_log.level, XSEG_LOG_WARNING);
        assert_non_null(strstr(self_check_log.line, "--buildtype=release"));
    } else
        assert_int_equal(self_check_log.count, 0);
}

#define UNKNOWN 999 /* of CUresult */

/* --- Opening. --- */

TEST(missing_driver_error_names_the_remedy)
{
    static const char *const word[] = {"libcuda.so.1", "NVIDIA driver", "r525", "CUDA 12.0",
                                       "XSEG_DRIVER=libxseg-sim.so"};
    const char *set = getenv("XSEG_DRIVER");
    char kept[4096] = "";
    struct xseg_allocator *allocator = NULL;
    void *present = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (present != NULL) { /* of this machine: nothing is missing */
        (void)dlclose(present);
        return;
    }
    if (set != NULL)
        (void)snprintf(kept, sizeof(kept), "%s", set);
    assert_int_equal(unsetenv("XSEG_DRIVER"), 0);
    for (unsigned i = 0; i < COUNT_OF(word); i++)
        env_expect_error(xseg_open(NULL, NULL, &allocator), XSEG_ERR_NO_DRIVER, word[i]);
    /* XSEG_DRIVER names an invalid driver. */
    assert_int_equal(setenv("XSEG_DRIVER", "libno-such-driver.so", 1), 0);
    env_expect_error(xseg_open(NULL, NULL, &allocator), XSEG_ERR_NO_DRIVER,
                     "driver library of XSEG_DRIVER cannot be loaded, \"libno-such-driver.so\"");
    if (set != NULL)
        assert_int_equal(setenv("XSEG_DRIVER", kept, 1), 0);
    else
        assert_int_equal(unsetenv("XSEG_DRIVER"), 0);
}

TEST(drivers_that_cannot_be_had_are_named)
{
    struct xseg_options options = {sizeof(options), .driver = "libno-such-driver.so.1"};
    struct xseg_allocator *allocator = NULL;

    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_NO_DRIVER,
                     "libno-such-driver.so.1");
    /* A library that is there, but is no driver. */
    options.driver = "libm.so.6";
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_NO_DRIVER, "cuGetProcAddress");
    assert_null(allocator);
}

TEST(old_drivers_are_rejected_by_version)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    options.driver = getenv("XSEG_TEST_OLD_DRIVER");
    assert_non_null(options.driver);
    assert_int_equal(setenv("XSEG_OLD_DRIVER", "cuStreamGetId", 1), 0);
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_NO_DRIVER,
                     "no cuStreamGetId of CUDA 12.0");
    assert_int_equal(setenv("XSEG_OLD_DRIVER", "11080", 1), 0);
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_NO_DRIVER, "CUDA 11.8");
    /* A new one that shows no device. */
    assert_int_equal(setenv("XSEG_OLD_DRIVER", "12020", 1), 0);
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_NO_DRIVER,
                     "driver has no visible device");
    assert_null(allocator);
}

TEST(failures_to_start_are_named)
{
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_sim_reset(NULL));
    assert_ok(xseg_sim_fail("cuInit", 1, 100)); /* CUDA_ERROR_NO_DEVICE */
    env_expect_error(env_try_open(NULL, &allocator), XSEG_ERR_NO_DRIVER,
                     "driver has no visible device");
    assert_ok(xseg_sim_fail("cuInit", 1, 100));
    env_expect_error(env_try_open(NULL, &allocator), XSEG_ERR_NO_DRIVER, "libxseg-sim.so");
    assert_ok(xseg_sim_fail("cuInit", 1, 999));
    env_expect_error(env_try_open(NULL, &allocator), XSEG_ERR_DRIVER, "cuInit");
    assert_null(allocator);
}

TEST(unknown_options_are_rejected)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    options.struct_size = sizeof(options) + 4096;
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_ARGUMENT,
                     "options->struct_size is unknown");
    options.struct_size = sizeof(options) - 1;
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_ARGUMENT,
                     "options->struct_size is unknown");
    options.struct_size = 0;
    env_expect_error(xseg_open(NULL, &options, &allocator), XSEG_ERR_ARGUMENT,
                     "options->struct_size is unknown");
    env_expect_error(xseg_open(NULL, NULL, NULL), XSEG_ERR_ARGUMENT, "out is NULL");
}

TEST(options_of_a_newer_header_do)
{
    struct {
        struct xseg_options known;
        uint64_t more;
    } options = {{sizeof(struct xseg_options)}, 0};
    struct xseg_allocator *allocator = NULL;

    options.known.struct_size = sizeof(options);
    options.known.driver = env_driver();
    assert_ok(xseg_open(NULL, &options.known, &allocator));
    assert_ok(xseg_close(allocator));
    options.more = 1;
    env_expect_error(xseg_open(NULL, &options.known, &allocator), XSEG_ERR_ARGUMENT,
                     "options->struct_size is unknown");
}

TEST(options_of_an_older_header_are_accepted)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver()};
    struct xseg_allocator *allocator = NULL;

    options.struct_size = offsetof(struct xseg_options, clock);
    assert_ok(xseg_open(NULL, &options, &allocator));
    assert_ok(xseg_close(allocator));
}

struct logged {
    char line[512];
    unsigned lines;
};

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    struct logged *logged = context;

    if (level == XSEG_LOG_INFO)
        return;
    assert_int_equal(level, XSEG_LOG_WARNING);
    strncpy(logged->line, line, sizeof(logged->line) - 1);
    logged->lines++;
}

TEST(keys_without_effect_are_logged_once)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = log_line};
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {{0}, 0};

    options.log_context = &logged;
    assert_ok(xseg_sim_reset(NULL));
    assert_ok(xseg_open("backend:native,pinned_use_background_threads:True,"
                        "graph_capture_record_stream_reuse:True",
                        &options, &allocator));
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.line, "pinned_use_background_threads"));
    assert_non_null(strstr(logged.line, "backend"));
    assert_null(strstr(logged.line, "reuse")); /* capture.h says what it does */
    env_free(allocator, env_alloc(allocator, 100, NULL));
    assert_int_equal(logged.lines, 1);
    env_close(allocator);
}

TEST(threshold_without_a_fraction_is_logged_once)
{
    static const struct {
        const char *config;
        unsigned lines;
    } cases[] = {
        {"garbage_collection_threshold:0.8", 1},
        {"garbage_collection_threshold:0.8,per_process_memory_fraction:1", 1},
        {"garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", 0},
        {"garbage_collection_threshold:off", 0},
        {"per_process_memory_fraction:0.5", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct xseg_options options = {sizeof(options)};
        struct xseg_limits limits = {
            .struct_size = sizeof(limits), .hard_bytes = UINT64_MAX, .soft_bytes = UINT64_MAX};
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_allocator *allocator = NULL;
        struct logged logged = {{0}, 0};

        options.driver = env_driver();
        options.log = log_line;
        options.log_context = &logged;
        assert_ok(xseg_sim_reset(NULL));
        assert_ok(xseg_open(cases[i].config, &options, &allocator));
        env_free(allocator, env_alloc(allocator, 100, NULL));
        assert_ok(xseg_config_set(allocator, "idle_ms:5"));
        assert_int_equal(logged.lines, cases[i].lines);
        if (logged.lines > 0)
            assert_non_null(strstr(logged.line, "garbage_collection_threshold has no effect"));
        /* A fraction that a call has set is a limit, too. */
        where.device = 0;
        limits.fraction = 0.5;
        limits.has_fraction = true;
        assert_ok(xseg_limits_set(allocator, &where, &limits));
        assert_ok(xseg_config_set(allocator, "garbage_collection_threshold:0.5"));
        assert_int_equal(logged.lines, cases[i].lines);
        env_close(allocator);
    }
}

TEST(without_vmm_segments_are_classic)
{
    struct xseg_sim_settings settings = {sizeof(settings), .without_vmm = true};
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = log_line};
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {{0}, 0};

    options.log_context = &logged;
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_false(env_block(allocator, ptr).is_expandable);
    assert_int_equal(env_stats(allocator).segment[XSEG_STAT_ALL].current, 1);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.line, "classic"));
    env_free(allocator, ptr);
    env_close(allocator);
}

/* A driver that offers virtual memory management and rejects its calls. */
TEST(a_failing_trial_falls_back)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = log_line};
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {{0}, 0};

    options.log_context = &logged;
    assert_ok(xseg_sim_reset(NULL));
    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    assert_ok(xseg_sim_fail("cuMemMap", 1, 801)); /* CUDA_ERROR_NOT_SUPPORTED */
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_false(env_block(allocator, ptr).is_expandable);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.line, "cuMemMap"));
    env_free(allocator, ptr);
    env_close(allocator);
}

/* --- Configuration. --- */

/* The failure is temporary, so it does not select classic segments. */
TEST(probe_without_addresses_is_logged)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {{0}, 0};

    assert_ok(xseg_sim_reset(NULL));
    options.driver = env_driver();
    options.log = log_line;
    options.log_context = &logged;
    xseg_sim_set_external_addresses(((uint64_t)1 << 47) - 2 * MIB);
    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    void *small = env_alloc(allocator, 1000, NULL);
    assert_false(env_block(allocator, small).is_expandable);
    assert_non_null(strstr(logged.line, "out of virtual addresses for expandable segments"));
    assert_int_equal(logged.lines, 1);
    xseg_sim_set_external_addresses(0);
    void *large = env_alloc(allocator, 5 * MIB, NULL);
    assert_true(env_block(allocator, large).is_expandable);
    env_free(allocator, small, large);
    env_close(allocator);
}

/* Allocators open one after the other on one simulated machine, until all its addresses have been used
 * once. */
TEST(repeated_opens_succeed)
{
    assert_ok(xseg_sim_reset(NULL));
    for (unsigned i = 0; i < 2000; i++) {
        struct xseg_allocator *allocator = NULL;

        assert_ok(env_try_open("expandable_segments:True", &allocator));
        void *small = env_alloc(allocator, 1000, NULL),
             *large = env_alloc(allocator, 3 * MIB, NULL);
        assert_true(env_block(allocator, small).is_expandable);
        assert_true(env_block(allocator, large).is_expandable);
        env_free(allocator, small, large);
        env_close(allocator);
    }
}

/* Runs before all other tests that set the variable, since a process logs the line once. */
TEST(string_that_hides_the_variable_is_logged_once)
{
    static const struct {
        const char *config;
        unsigned lines;
    } cases[] = {{NULL, 0},
                 {"expandable_segments:False", 0},
                 {"expandable_segments:True", 1},
                 {"expandable_segments:True", 0}};
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = log_line};
    struct logged logged = {{0}, 0};

    assert_ok(xseg_sim_reset(NULL));
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "expandable_segments:False", 1), 0);
    options.log_context = &logged;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct xseg_allocator *allocator = NULL;

        logged.lines = 0;
        assert_ok(xseg_open(cases[i].config, &options, &allocator));
        assert_int_equal(logged.lines, cases[i].lines);
        env_close(allocator);
    }
    assert_string_equal(
        logged.line,
        "configuration: XSEG_ALLOC_CONF is ignored, because the program passes a string to "
        "xseg_open(); pass NULL to use the variable");
    assert_int_equal(unsetenv("XSEG_ALLOC_CONF"), 0);
}

TEST(the_first_source_wins_whole)
{
    assert_int_equal(setenv("PYTORCH_ALLOC_CONF", "large_segment_size_mb:24", 1), 0);
    assert_int_equal(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", 1), 0);
    struct xseg_allocator *allocator = env_open(NULL);
    assert_string_equal(xseg_config_source(allocator), "PYTORCH_CUDA_ALLOC_CONF");
    assert_int_equal(env_stats(allocator).max_split_size, 64 * MIB);
    /* A string of PyTorch's that does not name expandable segments means classic ones. */
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_false(env_block(allocator, ptr).is_expandable);
    env_free(allocator, ptr);
    env_close(allocator);

    assert_int_equal(setenv("XSEG_ALLOC_CONF", "", 1), 0);
    allocator = env_open(NULL);
    assert_string_equal(xseg_config_source(allocator), "XSEG_ALLOC_CONF");
    ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_true(env_block(allocator, ptr).is_expandable);
    env_free(allocator, ptr);
    env_close(allocator);

    allocator = env_open("expandable_segments:False");
    assert_string_equal(xseg_config_source(allocator), "argument");
    env_close(allocator);
    assert_int_equal(unsetenv("XSEG_ALLOC_CONF"), 0);
    assert_int_equal(unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
    assert_int_equal(unsetenv("PYTORCH_ALLOC_CONF"), 0);
    allocator = env_open(NULL);
    assert_string_equal(xseg_config_source(allocator), "default");
    env_close(allocator);
}

TEST(bad_strings_change_nothing)
{
    struct xseg_allocator *allocator = NULL;
    char before[2048], after[2048];
    size_t needed = 0;

    assert_ok(xseg_sim_reset(NULL));
    env_expect_error(env_try_open("max_split_size_mb:19", &allocator), XSEG_ERR_CONFIG,
                     "max_split_size_mb");
    allocator = env_open("expandable_segments:True,max_split_size_mb:40");
    assert_ok(xseg_config_get(allocator, before, sizeof(before), &needed));
    assert_int_equal(needed, strlen(before) + 1);
    env_expect_error(xseg_config_set(allocator, "max_split_size_mb:50,no_such_key:1"),
                     XSEG_ERR_CONFIG, "no_such_key");
    env_expect_error(xseg_config_set(allocator, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_ok(xseg_config_get(allocator, after, sizeof(after), NULL));
    assert_string_equal(before, after);
    /* Only what is named changes. */
    assert_ok(xseg_config_set(allocator, "max_split_size_mb:50"));
    assert_int_equal(env_stats(allocator).max_split_size, 50 * MIB);
    assert_ok(xseg_config_get(allocator, after, 10, &needed));
    assert_int_equal(strlen(after), 9);
    env_close(allocator);
}

/* --- Allocating and freeing. --- */

TEST(sizes_at_the_edges)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = &ptr;

    assert_ok(xseg_alloc(allocator, 0, 0, NULL, &ptr));
    assert_null(ptr);
    assert_ok(xseg_free(allocator, NULL));
    env_expect_error(xseg_alloc(allocator, 0, SIZE_MAX, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "exceeds the maximum allocation size");
    env_expect_error(xseg_alloc(allocator, 0, (size_t)1 << 60, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "exceeds the maximum allocation size");
    env_expect_error(xseg_alloc(allocator, 0, ((size_t)1 << 60) - 1, NULL, &ptr),
                     XSEG_ERR_NO_MEMORY, "out of memory on device 0");
    env_expect_error(xseg_alloc(allocator, 0, 81 * GIB, NULL, &ptr), XSEG_ERR_NO_MEMORY, "free");
    assert_int_equal(env_stats(allocator).num_ooms, 4);
    assert_null(ptr);
    for (size_t bytes = 1; bytes <= 4 * MIB; bytes = bytes * 3 + 1) {
        ptr = env_alloc(allocator, bytes, NULL);
        assert_int_equal((uintptr_t)ptr % 512, 0);
        assert_true(env_block(allocator, ptr).bytes >= bytes);
        env_free(allocator, ptr);
    }
    env_close(allocator);
}

/* Every power of two, small and large, in both modes; what lies before stays usable. */
TEST(addresses_have_the_requested_alignment)
{
    static const char *const config[] = {"expandable_segments:True", "expandable_segments:False"};

    for (unsigned mode = 0; mode < COUNT_OF(config); mode++) {
        struct xseg_allocator *allocator = env_open(config[mode]);
        struct xseg_request request = {sizeof(request)};
        void *ptr[40], *odd = env_alloc(allocator, 1, NULL);
        unsigned count = 0;

        for (size_t alignment = 1; alignment <= 64 * MIB; alignment *= 8)
            for (size_t bytes = 700; bytes < 8 * MIB; bytes *= 40) {
                request.bytes = bytes;
                request.alignment = alignment;
                assert_ok(xseg_alloc_with(allocator, &request, &ptr[count]));
                assert_int_equal((uintptr_t)ptr[count] % alignment, 0);
                assert_true(env_block(allocator, ptr[count]).bytes >= bytes);
                count++;
            }
        assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, count + 1);
        while (count > 0)
            env_free(allocator, ptr[--count]);
        env_free(allocator, odd);
        env_empty_cache(allocator);
        assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
        assert_int_equal(env_stats(allocator).inactive_split[XSEG_STAT_ALL].current, 0);
        assert_int_equal(env_stats(allocator).inactive_split_bytes[XSEG_STAT_ALL].current, 0);
        request.alignment = 3;
        env_expect_error(xseg_alloc_with(allocator, &request, &odd), XSEG_ERR_ARGUMENT,
                         "alignment is not a power of two up to 1 GiB, 3");
        request.alignment = 2 * GIB;
        env_expect_error(xseg_alloc_with(allocator, &request, &odd), XSEG_ERR_ARGUMENT, "1 GiB");
        env_close(allocator);
    }
}

TEST(invalid_frees_report_the_state_of_the_address)
{
    struct xseg_allocator *allocator = env_open(NULL);
    char *ptr = env_alloc(allocator, 8 * MIB, NULL);
    struct xseg_statistics before = env_stats(allocator);
    int local = 0;

    env_expect_error(xseg_free(allocator, ptr + 512), XSEG_ERR_NOT_ALLOCATED,
                     " at offset 512 of the block at ");
    env_expect_error(xseg_free(allocator, ptr + 9 * MIB), XSEG_ERR_NOT_ALLOCATED, "cached");
    env_expect_error(xseg_free(allocator, ptr + 50 * MIB), XSEG_ERR_NOT_ALLOCATED, "unmapped");
    env_expect_error(xseg_free(allocator, &local), XSEG_ERR_NOT_ALLOCATED, "not in memory of this");
    env_expect_error(xseg_free(allocator, (void *)UINTPTR_MAX), XSEG_ERR_NOT_ALLOCATED,
                     "not in memory");
    env_expect_error(xseg_record_stream(allocator, ptr + 1, NULL), XSEG_ERR_NOT_ALLOCATED,
                     "not the start of a block");
    struct xseg_statistics after = env_stats(allocator);
    assert_memory_equal(&before, &after, sizeof(before));
    env_free(allocator, ptr);
    env_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_ALLOCATED, "cached");
    env_close(allocator);
}

TEST(arguments_are_checked)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_request request = {sizeof(request)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr = NULL;

    env_expect_error(xseg_alloc(NULL, 0, 1, NULL, &ptr), XSEG_ERR_ARGUMENT, "NULL");
    env_expect_error(xseg_alloc(allocator, 0, 1, NULL, NULL), XSEG_ERR_ARGUMENT, "out");
    env_expect_error(xseg_alloc(allocator, 1, 1, NULL, &ptr), XSEG_ERR_ARGUMENT,
                     "device 1 does not exist");
    env_expect_error(xseg_alloc(allocator, -1, 1, NULL, &ptr), XSEG_ERR_ARGUMENT,
                     "device -1 does not exist");
    env_expect_error(xseg_alloc(allocator, 0, 1, (xseg_stream)(uintptr_t)0x1234500, &ptr),
                     XSEG_ERR_DRIVER, "cuStreamGetCtx");
    request.struct_size = 3;
    env_expect_error(xseg_alloc_with(allocator, &request, &ptr), XSEG_ERR_ARGUMENT,
                     "request->struct_size is unknown");
    env_expect_error(xseg_alloc_with(allocator, NULL, &ptr), XSEG_ERR_ARGUMENT, "request is NULL");
    env_expect_error(xseg_stats_get(allocator, &where, &stats), XSEG_ERR_ARGUMENT, "device -1");
    where.device = 0;
    where.one_stream = true;
    env_expect_error(xseg_stats_get(allocator, &where, &stats), XSEG_ERR_UNSUPPORTED, "stream");
    env_expect_error(xseg_stats_reset(allocator, &where, 4), XSEG_ERR_ARGUMENT, "XSEG_RESET");
    env_expect_error(xseg_trim(NULL, NULL, NULL, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_ok(xseg_close(NULL));
    assert_null(ptr);
    env_close(allocator);
}

TEST(close_lists_allocated_blocks)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = env_alloc(allocator, 12345, NULL);

    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "12345 bytes");
    env_free(allocator, ptr);
    env_close(allocator);
}

/* --- Several at once. --- */

TEST(devices_are_separate)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 3};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr[3] = {NULL, NULL, NULL};

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    for (int i = 0; i < 3; i += 2)
        assert_ok(xseg_alloc(allocator, i, (size_t)(i + 1) * MIB, NULL, &ptr[i]));
    /* An unused device has no context. */
    assert_int_equal(xseg_sim_calls("cuDevicePrimaryCtxRetain"), 2);
    assert_int_equal(xseg_sim_used(1), 0);
    assert_int_equal(env_block(allocator, ptr[2]).device, 2);
    where.device = 2;
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 3 * MIB);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, xseg_sim_used(2));
    env_free(allocator, ptr[0], ptr[2]);
    env_close(allocator);
}

TEST(allocators_are_separate)
{
    struct xseg_allocator *first = env_open("expandable_segments:True"), *second = NULL;

    assert_ok(env_try_open("expandable_segments:False", &second));
    void *a = env_alloc(first, 5 * MIB, NULL);
    void *b = env_alloc(second, 5 * MIB, NULL);
    assert_int_equal(xseg_free(second, a), XSEG_ERR_NOT_ALLOCATED);
    assert_int_equal(xseg_free(first, b), XSEG_ERR_NOT_ALLOCATED);
    assert_int_equal(env_stats(first).allocation[XSEG_STAT_ALL].current, 1);
    env_free(first, a);
    assert_ok(xseg_close(first));
    env_free(second, b);
    env_close(second);
}

static int child(struct xseg_allocator *allocator, void *ptr)
{
    struct xseg_block_info info = {sizeof(info)};
    void *other = NULL;

    if (xseg_alloc(allocator, 0, 512, NULL, &other) != XSEG_ERR_FORKED || other != NULL)
        return 1;
    if (xseg_free(allocator, ptr) != XSEG_ERR_FORKED)
        return 2;
    if (xseg_block_query(allocator, ptr, &info) != XSEG_ERR_FORKED)
        return 3;
    if (xseg_trim(allocator, NULL, NULL, NULL) != XSEG_ERR_FORKED)
        return 4;
    if (xseg_close(allocator) != XSEG_ERR_FORKED)
        return 5;
    /* The advice of the message works: another allocator fails, with a reason. */
    char text[512];
    (void)xseg_error_message(text, sizeof(text));
    if (strstr(text, "open another") != NULL || strstr(text, "exec") == NULL)
        return 6;
    struct xseg_allocator *mine = NULL;
    if (env_try_open(NULL, &mine) != XSEG_ERR_DRIVER)
        return 7;
    (void)xseg_error_message(text, sizeof(text));
    return strstr(text, "fork") != NULL && strstr(text, "exec") != NULL ? 0 : 8;
}

/* A close that fails leaves everything usable: on every device, pools and all. */
TEST(rejected_close_changes_nothing)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_pool *pool = NULL;
    void *ptr = NULL, *inside = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    assert_ok(xseg_alloc(allocator, 1, 512, NULL, &ptr));
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "blocks are allocated, 1 on device 1; ");
    assert_ok(xseg_pool_retain(pool));
    inside = env_alloc_in(allocator, pool, 512, NULL);
    env_free(allocator, inside, ptr);

    /* The driver keeps the context of a later device: the close ends nothing, either. */
    assert_ok(xseg_sim_fail("cuDevicePrimaryCtxRelease", 2, UNKNOWN));
    env_expect_error(xseg_close(allocator), XSEG_ERR_DRIVER, "cuDevicePrimaryCtxRelease");
    assert_ok(xseg_pool_retain(pool));
    inside = env_alloc_in(allocator, pool, 512, NULL);
    env_free(allocator, inside);
    env_close(allocator);
}

/* If the earlier context cannot be had again, its device is lost, and the rest goes on. */
TEST(a_close_that_cannot_be_undone_loses_the_device)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    void *ptr = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    for (int device = 0; device < 2; device++) {
        assert_ok(xseg_alloc(allocator, device, 512, NULL, &ptr));
        env_free(allocator, ptr);
    }
    ptr = NULL;
    fault.call = "cuDevicePrimaryCtxRelease";
    fault.error = UNKNOWN;
    fault.nth = 2;
    assert_ok(xseg_sim_fault_set(0, &fault));
    fault.call = "cuDevicePrimaryCtxRetain";
    fault.nth = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    env_expect_error(xseg_close(allocator), XSEG_ERR_DRIVER, "cuDevicePrimaryCtxRelease");
    env_expect_error(xseg_alloc(allocator, 0, 512, NULL, &ptr), XSEG_ERR_DEVICE_LOST,
                     "device 0 is lost");
    assert_ok(xseg_alloc(allocator, 1, 512, NULL, &ptr));
    env_free(allocator, ptr);
    env_close(allocator);
}

TEST(streams_of_other_devices_are_rejected)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    void *ptr = NULL, *other = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    xseg_stream stream = env_stream();
    assert_ok(xseg_alloc(allocator, 1, 512, NULL, &ptr));
    env_expect_error(xseg_record_stream(allocator, ptr, stream), XSEG_ERR_ARGUMENT,
                     "another device");
    env_expect_error(xseg_alloc(allocator, 1, 512, stream, &other), XSEG_ERR_ARGUMENT,
                     "another device");
    env_free(allocator, ptr);
    env_close(allocator, stream);
}

/* Larger than the largest segment of small blocks. */
TEST(very_large_devices_work)
{
    struct xseg_allocator *allocator = env_open_mib(4096 * KIB, "expandable_segments:True");
    void *small = env_alloc(allocator, 512, NULL);
    void *large = env_alloc(allocator, 700 * GIB, NULL);
    assert_int_equal(env_block(allocator, small).segment_bytes, 512 * GIB);
    assert_ptr_equal(env_block(allocator, (char *)large + 699 * GIB).base, large);
    env_free(allocator, small, large);
    env_close(allocator);
}

TEST(calls_of_a_forked_child_fail)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = env_alloc(allocator, 512, NULL);
    int status = -1;

    const pid_t pid = fork();
    if (pid == 0)
        _exit(child(allocator, ptr));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    env_free(allocator, ptr);
    env_close(allocator);
}

TEST(statuses_have_sentences)
{
    char text[8];

    for (int i = 0; i >= -13; i--)
        assert_string_not_equal(xseg_status_name((xseg_status)i), "unknown status");
    assert_string_equal(xseg_status_name((xseg_status)-99), "unknown status");
    assert_int_equal(xseg_alloc(NULL, 0, 1, NULL, NULL), XSEG_ERR_ARGUMENT);
    assert_true(xseg_error_message(NULL, 0) > 7);
    assert_true(xseg_error_message(text, sizeof(text)) > 7);
    assert_int_equal(strlen(text), 7);
}

/* --- The keys of the configuration as a program can ask for them. --- */

static const char *const variables[] = {"XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                                        "PYTORCH_ALLOC_CONF"};

static int without_variables(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        assert_int_equal(unsetenv(variables[i]), 0);
    return 0;
}

/* The visited values of one key. */
struct notified {
    const char *name;
    char value[64], standard[64];
    bool is_named, is_standard, has_effect;
    unsigned visits, times;
};

static bool note_key(void *context, const struct xseg_config_key *key)
{
    struct notified *notified = context;

    assert_int_equal(key->struct_size, sizeof(*key));
    notified->visits++;
    if (strcmp(key->name, notified->name) != 0)
        return true;
    notified->times++;
    (void)strncpy(notified->value, key->value, sizeof(notified->value) - 1);
    (void)strncpy(notified->standard, key->default_value, sizeof(notified->standard) - 1);
    notified->is_named = key->is_set;
    notified->is_standard = key->is_default;
    notified->has_effect = key->has_effect;
    return true;
}

static struct notified ask(const char *config, const char *name, const char *source)
{
    struct notified notified = {.name = name};
    const char *from = NULL;

    assert_ok(xseg_config_keys(config, &from, note_key, &notified));
    assert_string_equal(from, source);
    assert_int_equal(notified.times, 1);
    return notified;
}

static bool check_texts(void *context, const struct xseg_config_key *key)
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

TEST_WITH(keys_have_defaults_without_a_configuration, without_variables, NULL)
{
    unsigned count = 0;

    assert_ok(xseg_config_keys(NULL, NULL, check_texts, &count));
    assert_true(count > 30);
    assert_string_equal(ask(NULL, "expandable_segments", "default").value, "True");
    assert_string_equal(ask(NULL, "max_split_size_mb", "default").value, "unlimited");
}

TEST_WITH(configuration_string_visits_its_keys, without_variables, NULL)
{
    const char *const config = "max_split_size_mb:64,page_size:fixed";
    struct notified notified = ask(config, "max_split_size_mb", "argument");

    assert_string_equal(notified.value, "64");
    assert_string_equal(notified.standard, "unlimited");
    assert_true(notified.is_named && !notified.is_standard && notified.has_effect);
    notified = ask(config, "page_size", "argument");
    assert_true(notified.is_named && notified.is_standard);
    notified = ask(config, "idle_ms", "argument");
    assert_true(!notified.is_named && notified.is_standard && notified.has_effect);
    /* Another key follows. */
    notified = ask("large_segment_size_mb:40", "max_non_split_rounding_mb", "argument");
    assert_string_equal(notified.value, "40");
    assert_true(!notified.is_named && !notified.is_standard);
}

TEST_WITH(some_have_no_effect, without_variables, NULL)
{
    assert_true(ask("", "page_size", "argument").has_effect);
    assert_false(ask("expandable_segments:False", "page_size", "argument").has_effect);
}

TEST_WITH(threshold_applies_with_a_fraction, without_variables, NULL)
{
    static const char key[] = "garbage_collection_threshold";

    assert_true(ask("", key, "argument").has_effect);
    assert_false(ask("garbage_collection_threshold:0.8", key, "argument").has_effect);
    assert_true(
        ask("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", key, "argument")
            .has_effect);
}

/* The order of sources is that of xseg_open(). */
TEST_WITH(environment_is_read_as_by_open, without_variables, NULL)
{
    assert_int_equal(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:30", 1), 0);
    struct notified notified = ask(NULL, "expandable_segments", "PYTORCH_ALLOC_CONF");
    assert_string_equal(notified.value, "False");
    assert_false(notified.is_named);
    assert_int_equal(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:31", 1), 0);
    assert_string_equal(ask(NULL, "max_split_size_mb", "PYTORCH_CUDA_ALLOC_CONF").value, "31");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "max_split_size_mb:32", 1), 0);
    notified = ask(NULL, "max_split_size_mb", "XSEG_ALLOC_CONF");
    assert_string_equal(notified.value, "32");
    assert_string_equal(ask(NULL, "expandable_segments", "XSEG_ALLOC_CONF").value, "True");
    assert_string_equal(ask("", "max_split_size_mb", "argument").value, "unlimited");
}

TEST_WITH(invalid_configuration_is_rejected_before_any_visit, without_variables, NULL)
{
    struct notified notified = {.name = "idle_ms"};
    const char *from = "untouched";

    env_expect_error(xseg_config_keys("idle_ms:1,idel_ms:2", &from, note_key, &notified),
                     XSEG_ERR_CONFIG, "did you mean idle_ms? (source: argument)");
    assert_int_equal(notified.visits, 0);
    assert_string_equal(from, "untouched");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "idle_ms=5", 1), 0);
    env_expect_error(xseg_config_keys(NULL, NULL, NULL, NULL), XSEG_ERR_CONFIG,
                     "(source: XSEG_ALLOC_CONF)");
    assert_ok(xseg_config_keys("", NULL, NULL, NULL));
}

static bool end_visits(void *context, const struct xseg_config_key *key)
{
    (void)key;
    return --*(unsigned *)context > 0;
}

TEST_WITH(visitor_ends_the_iteration, without_variables, NULL)
{
    unsigned left = 3;

    assert_ok(xseg_config_keys("", NULL, end_visits, &left));
    assert_int_equal(left, 0);
}
