/* SPDX-License-Identifier: MIT */
/* The out-of-memory message: the exhausted limit or device, amounts of memory that add up, and sufficient advice. */
#include "tests/support/env.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message of an expected failure, without the operation. */
static const char *error_message(xseg_status status, xseg_status expected)
{
    static char message[2048];

    assert_int_equal(status, expected);
    assert_in_range(xseg_error_message(message, sizeof(message)), 1, 1000);
    assert_memory_equal(message, "xseg_", strlen("xseg_"));
    return strstr(message, ": ") + strlen(": ");
}

static void expect_start(const char *message, const char *start)
{
    if (strncmp(message, start, strlen(start)) != 0)
        fail_msg("\"%s\" does not begin \"%s\"", message, start);
}

static void expect_no_advice(const char *message)
{
    static const char *const phrases[] = {"raise", "lower", "end the", "release unused", "set "};

    for (unsigned i = 0; i < COUNT_OF(phrases); i++)
        if (strstr(message, phrases[i]) != NULL)
            fail_msg("\"%s\" has advice", message);
}

/* The amount of memory before a term, in MiB; 0 if the term does not occur. */
static double amount(const char *message, const char *term)
{
    const size_t length = strlen(term);
    const char *position = message;

    while ((position = strstr(position, term)) != NULL && strchr(",;:", position[length]) == NULL)
        position += length;
    if (position == NULL)
        return 0;
    if (position - message < 6 || strncmp(position - 5, " MiB ", 5) != 0)
        fail_msg("\"%s\" has no amount in MiB before \"%s\"", message, term);
    for (position -= 5; position > message && strchr("0123456789.", position[-1]) != NULL;)
        position--;
    return strtod(position, NULL);
}

/* The value after the prefix of an advice; 0 if the message does not have the advice. */
static double advised_value(const char *message, const char *prefix)
{
    const char *position = strstr(message, prefix);

    return position != NULL ? strtod(position + strlen(prefix), NULL) : 0;
}

/* Expect that the terms add up to the memory of this allocator, and together with free memory and memory of others to the
 * memory of the device, in MiB. */
static void expect_amounts_add_up(const char *message, double total)
{
    static const char *const terms[] = {
        "allocated",
        "pending free",
        "cached",
        "fragmented",
        "cached by private pools",
        "cached and pinned",
        "cached and exported",
        "claimed by other threads",
        "in the page cache",
        "unreleased",
    };
    char free_memory[64];
    double sum = 0;

    for (unsigned i = 0; i < COUNT_OF(terms); i++)
        sum += amount(message, terms[i]);
    assert_null(strstr(message, "GiB"));
    assert_null(strstr(message, "bytes needed"));
    if (fabs(sum - amount(message, "used by this allocator")) > 0.05)
        fail_msg("the sum of the terms is %.2f: \"%s\"", sum, message);
    (void)snprintf(free_memory, sizeof(free_memory), " of %.2f MiB free", total);
    const char *position = strstr(message, free_memory);
    assert_non_null(position);
    while (position > message && position[-1] != ',')
        position--;
    sum += strtod(position, NULL) + amount(message, "used by others");
    if (fabs(sum - total) > 0.05)
        fail_msg("the sum of all memory is %.2f: \"%s\"", sum, message);
}

/* A request of 81 GiB on an empty device of 80 GiB. */
TEST_ON(error_reports_an_empty_device_as_free, env_open_mib(81920, NULL))
{
    const char *message =
        error_message(env_try_alloc(allocator, 81 * GIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_string_equal(
        message, "out of memory on device 0, 82944.00 MiB requested; 82944.00 MiB needed from "
                 "the driver, 81920.00 MiB of 81920.00 MiB free, 0.00 MiB used by this "
                 "allocator");
}

TEST_ON(error_has_the_requested_and_the_mapped_size, env_open_mib(20, NULL))
{
    void *allocated = env_alloc(allocator, 20 * MIB, NULL);

    expect_start(error_message(env_try_alloc(allocator, 700, NULL), XSEG_ERR_NO_MEMORY),
                 "out of memory on device 0, 700 bytes requested; 2.00 MiB needed from the driver, "
                 "0.00 MiB of 20.00");
    expect_start(error_message(env_try_alloc(allocator, 3 * MIB / 2, NULL), XSEG_ERR_NO_MEMORY),
                 "out of memory on device 0, 1.50 MiB requested; 2.00 MiB needed from the driver, "
                 "0.00 MiB of 20.00");
    env_free(allocator, allocated);
}

/* Memory of most terms that the message lists. */
TEST_IN_POOL(amounts_of_the_error_add_up, env_open_mib(400, "page_cache_mb:1000"))
{
    const xseg_stream side = env_stream();
    void *allocated = env_alloc(allocator, 50 * MIB, NULL),
         *small = env_alloc(allocator, 1000, NULL);

    xseg_sim_set_external_memory(0, 60 * MIB);
    env_free(allocator, env_alloc_in(allocator, pool, 70 * MIB, NULL));
    void *pending = env_alloc(allocator, 30 * MIB, NULL);
    env_use(allocator, pending, side);
    void *pinned = env_alloc(allocator, 40 * MIB, NULL);
    assert_ok(xseg_pin(allocator, pinned, 40 * MIB));
    env_free(allocator, pinned, pending);
    const char *message =
        error_message(env_try_alloc(allocator, 300 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    expect_amounts_add_up(message, 400);
    assert_true(amount(message, "used by others") == 60);
    /* 70 MiB are on four pages of 20 MiB, or on three of 20 MiB and five of 2 MiB. */
    const double cached = amount(message, "cached by private pools");
    assert_true(cached == 80 || cached == 70);
    assert_true(amount(message, "cached and pinned") >= 20);
    assert_ok(xseg_unpin(allocator, pinned, 40 * MIB));

    /* During a capture the request does not wait, so pending frees stay pending. */
    struct xseg_pool *graph_pool = env_pool(allocator);
    const xseg_stream capturing = env_stream();
    pending = env_alloc(allocator, 30 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, pending, side));
    env_capture_begin(graph_pool, capturing);
    env_free(allocator, pending);
    message = error_message(env_try_alloc(allocator, 300 * MIB, capturing), XSEG_ERR_NO_MEMORY);
    expect_amounts_add_up(message, 400);
    assert_true(amount(message, "pending free") >= 30);
    env_capture_end(graph_pool, capturing);
    env_free(allocator, small, allocated);
}

/* The driver fails although it reports enough free memory. */
TEST_EACH(error_has_the_driver_result, env_open_mib(1000, config), ENV_KINDS)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemAlloc"};
    char failure[64];
    void *small = env_alloc(allocator, 100, NULL);

    /* If only page creation fails, segments become classic (api/vmm_fallback). */
    for (unsigned j = 0; j < COUNT_OF(calls); j++)
        env_fault(j, .call = calls[j], .every = 1);
    const char *message =
        error_message(env_try_alloc(allocator, 100 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    (void)snprintf(failure, sizeof(failure), "; %s failed, CUDA_ERROR_OUT_OF_MEMORY", calls[i]);
    if (strstr(message, failure) == NULL)
        fail_msg("\"%s\" does not contain %s", message, calls[i]);
    expect_start(message,
                 "out of memory on device 0, 100.00 MiB requested; 100.00 MiB needed from the "
                 "driver, 998.00");
    expect_no_advice(message);
    for (unsigned j = 0; j < COUNT_OF(calls); j++)
        assert_ok(xseg_sim_fault_set(j, NULL));
    env_free(allocator, small);
}

/* A request of 100 MiB on a device of 200 MiB, which fails because of the device, a limit or the memory functions. */
static const struct {
    const char *config;
    size_t pool_mib, limit_mib; /* limits of the pool, and of xseg_limits_set(); 0: none */
    bool has_memory_functions;
    xseg_status status;
    const char *start;
} limit_rows[] = {
    {NULL, 0, 0, false, XSEG_ERR_NO_MEMORY, "out of memory on device 0, 100.00 MiB requested; "},
    {"hard_limit_mb:90", 0, 0, false, XSEG_ERR_LIMIT,
     "hard_limit_mb rejects the request on device 0, 100.00 MiB requested, limit 90.00 MiB; "},
    {NULL, 0, 80, false, XSEG_ERR_LIMIT,
     "hard_bytes of xseg_limits_set() rejects the request on device 0, 100.00 MiB requested, "
     "limit 80.00 MiB; "},
    {"per_process_memory_fraction:0.25", 0, 0, false, XSEG_ERR_LIMIT,
     "per_process_memory_fraction rejects the request on device 0, 100.00 MiB requested, limit "
     "50.00 MiB (0.25 of the device); "},
    {"per_process_memory_fraction:0.25,hard_limit_mb:40", 0, 0, false, XSEG_ERR_LIMIT,
     "hard_limit_mb rejects the request on device 0, 100.00 MiB requested, limit 40.00 MiB; "},
    {"device_free_min_mb:110", 0, 0, false, XSEG_ERR_LIMIT,
     "device_free_min_mb rejects the request on device 0, 100.00 MiB requested, minimum 110.00 MiB "
     "free; "},
    {"device_free_min_mb:110,hard_limit_mb:80", 0, 0, false, XSEG_ERR_LIMIT,
     "hard_limit_mb rejects the request on device 0, 100.00 MiB requested, limit 80.00 MiB; "},
    {NULL, 64, 0, false, XSEG_ERR_LIMIT,
     "limit_bytes of pool 1 rejects the request on device 0, 100.00 MiB requested, limit 64.00 "
     "MiB; "},
    {NULL, 0, 0, true, XSEG_ERR_NO_MEMORY,
     "memory functions of pool 1 returned no memory on device 0, 100.00 MiB requested; 100.00 "
     "MiB needed from the memory functions, "},
};

TEST_TIMES(error_begins_with_the_limit_or_device, COUNT_OF(limit_rows),
           env_open_mib(200, limit_rows[i].config))
{
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    if (limit_rows[i].limit_mib != 0)
        env_set_hard_limit(allocator, NULL, limit_rows[i].limit_mib * MIB);
    struct xseg_pool_options options = {sizeof(options),
                                        .limit_bytes = limit_rows[i].pool_mib * MIB};
    if (limit_rows[i].has_memory_functions)
        options.memory = env_no_memory;
    if (limit_rows[i].pool_mib != 0 || limit_rows[i].has_memory_functions)
        pool = env_pool_with(allocator, &options);
    if (i == 0) /* the only case without a limit */
        xseg_sim_set_external_memory(0, 150 * MIB);
    const char *message =
        error_message(env_try_alloc_in(allocator, pool, 100 * MIB, &ptr), limit_rows[i].status);
    expect_start(message, limit_rows[i].start);
    if (limit_rows[i].has_memory_functions || i == 0)
        expect_no_advice(message);
}

TEST_IN_POOL(resume_error_begins_with_the_limit_or_device, env_open_mib(200, NULL))
{
    void *pool_block = env_alloc_in(allocator, pool, 100 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    void *ptr = env_alloc(allocator, 120 * MIB, NULL);
    assert_error(xseg_pool_resume(pool), NO_MEMORY,
                 "out of memory on device 0, 100.00 MiB requested; 120.00 MiB of 200.00 MiB "
                 "used by this allocator; pool 1 is still paused, free memory and resume it "
                 "again");
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:180"));
    assert_error(xseg_pool_resume(pool), NO_MEMORY, "out of memory on device 0");
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:199"));
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 100 * MIB, NULL);
    assert_error(xseg_pool_resume(pool), LIMIT,
                 "hard_limit_mb rejects the request on device 0, 100.00 MiB requested, limit "
                 "199.00 MiB; 100.00 MiB of 200.00 MiB used by this allocator");
    env_free(allocator, ptr, pool_block);
    assert_ok(xseg_pool_resume(pool));
}

/* --- Advice: with the recommended change, the request that failed succeeds. --- */

/* An allocator with blocks, and optionally a pool and a stream; its last request fails. */
struct workload {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    xseg_stream stream;
    void *block[16];
    unsigned blocks;
    bool is_capturing;
};

static void keep_block(struct workload *workload, void *ptr)
{
    workload->block[workload->blocks++] = ptr;
}

static void end_workload(struct workload *workload)
{
    if (workload->is_capturing)
        env_capture_end(workload->pool, workload->stream);
    env_free_all(workload->allocator, workload->block, sizeof(workload->block));
    assert_ok(xseg_close(workload->allocator));
    if (workload->stream != NULL)
        env_stream_destroy(workload->stream);
}

/* Request a block, which is kept if the request succeeds. */
static xseg_status request(struct workload *workload, struct xseg_pool *pool, size_t bytes)
{
    void *ptr = NULL;
    const xseg_status status = env_try_alloc_in(workload->allocator, pool, bytes, &ptr);

    if (ptr != NULL)
        keep_block(workload, ptr);
    return status;
}

/* Allocate 100 MiB, then request 30 MiB. */
static xseg_status run_two_blocks(struct workload *workload, size_t device_mib, const char *config)
{
    workload->allocator = env_open_mib(device_mib, config);
    keep_block(workload, env_alloc(workload->allocator, 100 * MIB, NULL));
    return request(workload, NULL, 30 * MIB);
}

/* Append `key` with the value that follows the prefix of an advice to a configuration string. */
static void append_advice(const char *message, const char *prefix, const char *key, char *config,
                          size_t bytes)
{
    const char *position = strstr(message, prefix);
    double value;

    if (position == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", message, prefix);
    value = strtod(position + strlen(prefix), NULL);
    (void)snprintf(config + strlen(config), bytes - strlen(config), "%s%s:%.10g",
                   config[0] != '\0' ? "," : "", key, value);
}

/* The message has exactly the limits that deny the request.  With the values of the message the request succeeds, also in a new
 * allocator, and a further request of 2 MiB fails. */
TEST(raised_limits_serve_the_request)
{
    static const struct {
        const char *config;
        bool raises_hard_limit, raises_fraction, lowers_free_min;
    } rows[] = {
        {"hard_limit_mb:120", true, false, false},
        {"hard_limit_mb:120,expandable_segments:False", true, false, false},
        {"per_process_memory_fraction:0.12", false, true, false},
        {"per_process_memory_fraction:0.12,expandable_segments:False", false, true, false},
        {"per_process_memory_fraction:0.12,hard_limit_mb:110", true, true, false},
        {"per_process_memory_fraction:0.11,hard_limit_mb:120", true, true, false},
        {"per_process_memory_fraction:0.12,hard_limit_mb:800", false, true, false},
        {"per_process_memory_fraction:0.9,hard_limit_mb:120", true, false, false},
        {"device_free_min_mb:880", false, false, true},
        {"device_free_min_mb:880,expandable_segments:False", false, false, true},
        {"device_free_min_mb:880,hard_limit_mb:125", true, false, true},
        {"device_free_min_mb:890,per_process_memory_fraction:0.12", false, true, true},
        {"device_free_min_mb:500,hard_limit_mb:120", true, false, false},
    };

    for (unsigned i = 0; i < COUNT_OF(rows); i++) {
        struct workload workload = {0}, repeated = {0};
        char advised[256] = "", config[512];
        const char *message =
            error_message(run_two_blocks(&workload, 1000, rows[i].config), XSEG_ERR_LIMIT);

        expect_amounts_add_up(message, 1000);
        if (rows[i].raises_hard_limit)
            append_advice(message, "hard_limit_mb to ", "hard_limit_mb", advised, sizeof(advised));
        if (rows[i].raises_fraction)
            append_advice(message, "per_process_memory_fraction to ", "per_process_memory_fraction",
                          advised, sizeof(advised));
        if (rows[i].lowers_free_min)
            append_advice(message, "lower device_free_min_mb to ", "device_free_min_mb", advised,
                          sizeof(advised));
        assert_int_equal(strstr(message, "hard_limit_mb to ") != NULL, rows[i].raises_hard_limit);
        assert_int_equal(strstr(message, "per_process_memory_fraction to ") != NULL,
                         rows[i].raises_fraction);
        assert_int_equal(strstr(message, "device_free_min_mb to ") != NULL,
                         rows[i].lowers_free_min);

        assert_ok(xseg_config_set(workload.allocator, advised));
        assert_ok(request(&workload, NULL, 30 * MIB));
        assert_int_equal(request(&workload, NULL, 2 * MIB), XSEG_ERR_LIMIT);
        end_workload(&workload);

        (void)snprintf(config, sizeof(config), "%s,%s",
                       strstr(rows[i].config, "False") != NULL ? "expandable_segments:False"
                                                               : "expandable_segments:True",
                       advised);
        assert_ok(run_two_blocks(&repeated, 1000, config));
        end_workload(&repeated);
    }
}

/* The message recommends no higher limit if the device is out of memory. */
TEST(advice_does_not_exceed_the_device)
{
    static const char *const configs[] = {"hard_limit_mb:120", "per_process_memory_fraction:0.96",
                                          "hard_limit_mb:120,expandable_segments:False"};

    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct workload workload = {0};
        const xseg_status status = run_two_blocks(&workload, 126, configs[i]);

        assert_int_not_equal(status, XSEG_OK);
        expect_no_advice(error_message(status, status));
        end_workload(&workload);

        /* Others use the memory that a higher limit would allow. */
        workload = (struct workload){.allocator = env_open_mib(200, configs[i])};
        keep_block(&workload, env_alloc(workload.allocator, 100 * MIB, NULL));
        xseg_sim_set_external_memory(0, 90 * MIB);
        const xseg_status status_under_pressure = request(&workload, NULL, 30 * MIB);
        assert_int_not_equal(status_under_pressure, XSEG_OK);
        expect_no_advice(error_message(status_under_pressure, status_under_pressure));
        end_workload(&workload);
    }
}

TEST(raised_hard_bytes_serve_the_request)
{
    struct workload workload = {.allocator = env_open_mib(1000, NULL)};

    keep_block(&workload, env_alloc(workload.allocator, 100 * MIB, NULL));
    env_set_hard_limit(workload.allocator, NULL, 120 * MIB);
    const char *message = error_message(request(&workload, NULL, 30 * MIB), XSEG_ERR_LIMIT);
    env_set_hard_limit(
        workload.allocator, NULL,
        (uint64_t)advised_value(message, "raise hard_bytes of xseg_limits_set() to ") * MIB);
    assert_ok(request(&workload, NULL, 30 * MIB));
    end_workload(&workload);
}

/* Cached memory of the default pool is released for the pool: with hard_limit_mb:140 only the limit of the pool denies the
 * request, with 110 both limits do. */
TEST(raised_pool_limit_serves_the_request)
{
    static const char *const configs[] = {"hard_limit_mb:140", "hard_limit_mb:110"};

    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct workload workload = {.allocator = env_open_mib(200, configs[i])};
        char advised[64] = "";

        workload.pool = env_pool_of(workload.allocator, .limit_bytes = 100 * MIB);
        env_free(workload.allocator, env_alloc(workload.allocator, 20 * MIB, NULL));
        keep_block(&workload, env_alloc_in(workload.allocator, workload.pool, 80 * MIB, NULL));
        const char *message =
            error_message(request(&workload, workload.pool, 50 * MIB), XSEG_ERR_LIMIT);
        const double limit_mib = advised_value(message, "raise limit_bytes of pool 1 to ");
        assert_int_equal(strstr(message, "hard_limit_mb") != NULL, i == 1);
        if (i == 1)
            append_advice(message, "and hard_limit_mb to ", "hard_limit_mb", advised,
                          sizeof(advised));
        env_set_hard_limit(workload.allocator, workload.pool, (uint64_t)limit_mib * MIB);
        if (i == 1) { /* the pool limit alone is not sufficient */
            assert_int_equal(request(&workload, workload.pool, 50 * MIB), XSEG_ERR_LIMIT);
            assert_ok(xseg_config_set(workload.allocator, advised));
        }
        assert_ok(request(&workload, workload.pool, 50 * MIB));
        end_workload(&workload);
    }
}

/* During a capture a request neither releases idle memory (case 0) nor waits for pending frees (case 1).  In case 2 the end of
 * the capture is not sufficient: 100 + 20 MiB are free or idle. */
TEST(end_of_capture_serves_the_request)
{
    static const size_t bytes[] = {120 * MIB, 60 * MIB, 122 * MIB};

    for (unsigned i = 0; i < COUNT_OF(bytes); i++) {
        struct workload workload = {.allocator = env_open_mib(200, NULL)};
        void *pending;

        workload.stream = env_stream();
        workload.pool = env_pool(workload.allocator);
        void *idle = env_alloc(workload.allocator, i == 2 ? 20 * MIB : 100 * MIB, NULL);
        pending = env_alloc(workload.allocator, 80 * MIB, NULL);
        assert_ok(xseg_record_stream(workload.allocator, pending, workload.stream));
        env_capture_begin(workload.pool, workload.stream);
        workload.is_capturing = true;
        if (i != 1)
            env_free(workload.allocator, idle);
        else
            env_free(workload.allocator, pending);
        const char *message = error_message(request(&workload, NULL, bytes[i]), XSEG_ERR_NO_MEMORY);
        expect_amounts_add_up(message, 200);
        if (i == 2) {
            expect_no_advice(message);
        } else {
            assert_non_null(strstr(message, "end the capture first"));
            env_capture_end(workload.pool, workload.stream);
            workload.is_capturing = false;
            assert_ok(request(&workload, NULL, bytes[i]));
        }
        keep_block(&workload, i != 1 ? pending : idle);
        end_workload(&workload);
    }
}

/* 80 MiB are cached in a retained pool.  In the last three cases they are not sufficient. */
TEST(released_pools_serve_the_request)
{
    static const char *const configs[] = {NULL, "expandable_segments:False", "hard_limit_mb:190"};

    for (unsigned i = 0; i < 2 * COUNT_OF(configs); i++) {
        struct workload workload = {.allocator = env_open_mib(200, configs[i % COUNT_OF(configs)])};
        const bool is_effective = i < COUNT_OF(configs);

        workload.pool = env_pool(workload.allocator);
        keep_block(&workload,
                   env_alloc(workload.allocator, is_effective ? 50 * MIB : 100 * MIB, NULL));
        env_free(workload.allocator,
                 env_alloc_in(workload.allocator, workload.pool, 80 * MIB, NULL));
        const xseg_status status = request(&workload, NULL, 120 * MIB);
        assert_int_not_equal(status, XSEG_OK);
        const char *message = error_message(status, status);
        expect_amounts_add_up(message, 200);
        if (!is_effective) {
            expect_no_advice(message);
        } else {
            assert_non_null(strstr(message, "; release unused private pools"));
            assert_ok(xseg_pool_release(workload.pool));
            assert_ok(request(&workload, NULL, 120 * MIB));
        }
        end_workload(&workload);
    }
}

/* Cache 60 MiB in each of three segments of 90 MiB, then request a block. */
static xseg_status run_large_segments(struct workload *workload, size_t device_mib,
                                      const char *config, size_t bytes)
{
    void *cached[3];

    workload->allocator = env_open_mib(device_mib, config);
    for (unsigned i = 0; i < COUNT_OF(cached); i++) {
        env_free(workload->allocator, env_alloc(workload->allocator, 90 * MIB, NULL));
        cached[i] = env_alloc(workload->allocator, 60 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 30 * MIB, NULL));
    }
    env_free_all(workload->allocator, cached, sizeof(cached));
    return request(workload, NULL, bytes);
}

/* Expandable segments or a higher limit would serve the request, and the message recommends both. */
TEST(error_at_a_limit_recommends_expandable_segments)
{
    static const char *const limits[] = {"hard_limit_mb:280", "per_process_memory_fraction:0.28"};
    static const char *const keys[] = {"hard_limit_mb", "per_process_memory_fraction"};

    for (unsigned i = 0; i < COUNT_OF(limits); i++) {
        struct workload classic = {0}, expandable = {0};
        char config[128], prefix[64], advised[64] = "";

        (void)snprintf(config, sizeof(config), "expandable_segments:False,%s", limits[i]);
        const char *message =
            error_message(run_large_segments(&classic, 1000, config, 100 * MIB), XSEG_ERR_LIMIT);
        expect_amounts_add_up(message, 1000);
        assert_non_null(
            strstr(message, "; set expandable_segments:True to avoid fragmentation, or raise "));
        (void)snprintf(prefix, sizeof(prefix), "or raise %s to ", keys[i]);
        append_advice(message, prefix, keys[i], advised, sizeof(advised));
        assert_ok(xseg_config_set(classic.allocator, advised));
        assert_ok(request(&classic, NULL, 100 * MIB));
        end_workload(&classic);
        (void)snprintf(config, sizeof(config), "expandable_segments:True,%s", limits[i]);
        assert_ok(run_large_segments(&expandable, 1000, config, 100 * MIB));
        end_workload(&expandable);
    }
}

TEST(error_at_a_limit_recommends_the_release_of_pools)
{
    struct workload workload = {.allocator = env_open_mib(1000, "hard_limit_mb:200")};

    workload.pool = env_pool(workload.allocator);
    env_free(workload.allocator, env_alloc_in(workload.allocator, workload.pool, 120 * MIB, NULL));
    const char *message = error_message(request(&workload, NULL, 100 * MIB), XSEG_ERR_LIMIT);
    assert_non_null(
        strstr(message, "; release unused private pools, or raise hard_limit_mb to 220 or more"));
    assert_ok(xseg_pool_release(workload.pool));
    assert_ok(request(&workload, NULL, 100 * MIB));
    end_workload(&workload);
}

/* Cache 24 MiB in each of eight segments of 30 MiB, then request a block.  Pages of 2 MiB can be remapped from more of this
 * memory than pages of 20 MiB. */
static xseg_status run_small_segments(struct workload *workload, const char *config, size_t bytes)
{
    void *cached[8];

    workload->allocator = env_open_mib(240, config);
    for (unsigned i = 0; i < COUNT_OF(cached); i++) {
        env_free(workload->allocator, env_alloc(workload->allocator, 30 * MIB, NULL));
        cached[i] = env_alloc(workload->allocator, 24 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 6 * MIB, NULL));
    }
    env_free_all(workload->allocator, cached, sizeof(cached));
    return request(workload, NULL, bytes);
}

/* Cache 11 MiB and allocate 9 MiB on each of two pages of 20 MiB, then request a block.  With pages of 2 MiB, 10 of the 11 MiB
 * can be remapped. */
static xseg_status run_shared_pages(struct workload *workload, const char *config, size_t bytes)
{
    void *cached[2];

    workload->allocator = env_open_mib(40, config);
    for (unsigned i = 0; i < COUNT_OF(cached); i++) {
        cached[i] = env_alloc(workload->allocator, 11 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 9 * MIB, NULL));
    }
    env_free_all(workload->allocator, cached, sizeof(cached));
    return request(workload, NULL, bytes);
}

/* Cache 60 of 100 MiB for another stream, then request a block, for which these pages must be released or remapped. */
static xseg_status run_idle_on_another_stream(struct workload *workload, const char *config,
                                              size_t bytes)
{
    workload->allocator = env_open_mib(100, config);
    workload->stream = env_stream();
    env_free(workload->allocator, env_alloc(workload->allocator, 60 * MIB, workload->stream));
    return request(workload, NULL, bytes);
}

static xseg_status run_large_segments_on_280_mib(struct workload *workload, const char *config,
                                                 size_t bytes)
{
    return run_large_segments(workload, 280, config, bytes);
}

/* The recommended configuration serves the request.  If the message has no advice, the configuration may serve it as well. */
TEST(advised_configuration_serves_the_request)
{
    static const struct {
        xseg_status (*run_workload)(struct workload *workload, const char *config, size_t bytes);
        const char *config, *advice, *advised;
        size_t device_mib, requested_mib;
        bool is_advised, is_served;
    } rows[] = {
#define SEGMENTS "expandable_segments:False", "expandable_segments:True", "expandable_segments:True"
        {run_large_segments_on_280_mib, SEGMENTS, 280, 80, true, true},
        {run_large_segments_on_280_mib, SEGMENTS, 280, 100, true, true},
        {run_large_segments_on_280_mib, SEGMENTS, 280, 185, false, false},
        {run_large_segments_on_280_mib, SEGMENTS, 280, 250, false, false},
#define SEGMENTS_AND_PAGES                                                                  \
    "expandable_segments:False", "; set expandable_segments:True,page_size:small to avoid", \
        "expandable_segments:True,page_size:small"
        {run_small_segments, SEGMENTS_AND_PAGES, 240, 100, true, true},
        {run_small_segments, SEGMENTS_AND_PAGES, 240, 170, true, true},
        {run_small_segments, SEGMENTS_AND_PAGES, 240, 190, false, true},
#define PAGES "page_size:fixed", "page_size:small", "page_size:small"
        {run_shared_pages, PAGES, 40, 20, true, true},
        {run_shared_pages, PAGES, 40, 21, false, false},
#define REJECTION \
    "throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:False", "throw_on_cudamalloc_oom:False"
        {run_idle_on_another_stream, REJECTION, 100, 80, true, true},
        {run_idle_on_another_stream, REJECTION, 100, 120, false, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const size_t bytes = rows[i].requested_mib * MIB;
        struct workload workload = {0}, repeated = {0};
        const char *message = error_message(rows[i].run_workload(&workload, rows[i].config, bytes),
                                            XSEG_ERR_NO_MEMORY);

        expect_amounts_add_up(message, (double)rows[i].device_mib);
        assert_int_equal(strstr(message, rows[i].advice) != NULL, rows[i].is_advised);
        if (!rows[i].is_advised)
            expect_no_advice(message);
        end_workload(&workload);
        assert_int_equal(rows[i].run_workload(&repeated, rows[i].advised, bytes),
                         rows[i].is_served ? XSEG_OK : XSEG_ERR_NO_MEMORY);
        end_workload(&repeated);
    }
}
