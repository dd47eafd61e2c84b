/* SPDX-License-Identifier: MIT */
/* The out-of-memory message: the exhausted limit or device, consistent figures, and effective advice. */
#include "tests/support/env.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message of an expected failure, without the operation. */
static const char *error_message(xseg_status status, xseg_status expected)
{
    static char text[2048];

    assert_int_equal(status, expected);
    assert_in_range(xseg_error_message(text, sizeof(text)), 1, 1000);
    assert_memory_equal(text, "xseg_", strlen("xseg_"));
    return strstr(text, ": ") + strlen(": ");
}

static void expect_start(const char *text, const char *start)
{
    if (strncmp(text, start, strlen(start)) != 0)
        fail_msg("\"%s\" does not begin \"%s\"", text, start);
}

static void expect_no_advice(const char *text)
{
    static const char *const word[] = {"raise", "lower", "end the", "release unused", "set "};

    for (unsigned i = 0; i < COUNT_OF(word); i++)
        if (strstr(text, word[i]) != NULL)
            fail_msg("\"%s\" has ineffective advice", text);
}

/* The figure before a term, in MiB; 0 if the term does not occur. */
static double figure(const char *text, const char *term)
{
    const size_t length = strlen(term);
    const char *at = text;

    while ((at = strstr(at, term)) != NULL && strchr(",;:", at[length]) == NULL)
        at += length;
    if (at == NULL)
        return 0;
    if (at - text < 6 || strncmp(at - 5, " MiB ", 5) != 0)
        fail_msg("\"%s\" has no figure in MiB before \"%s\"", text, term);
    for (at -= 5; at > text && strchr("0123456789.", at[-1]) != NULL;)
        at--;
    return strtod(at, NULL);
}

/* The value after the words of an advice; 0 if the message does not have the advice. */
static double advised_value(const char *text, const char *words)
{
    const char *at = strstr(text, words);

    return at != NULL ? strtod(at + strlen(words), NULL) : 0;
}

/* The parts add up to the memory of this allocator, and together with free and other memory to the device, in MiB. */
static void expect_figures_agree(const char *text, double total)
{
    static const char *const part[] = {
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
    char words[64];
    double sum = 0;

    for (unsigned i = 0; i < COUNT_OF(part); i++)
        sum += figure(text, part[i]);
    assert_null(strstr(text, "GiB"));
    assert_null(strstr(text, "bytes needed"));
    if (fabs(sum - figure(text, "used by this allocator")) > 0.05)
        fail_msg("the sum of the parts is %.2f: \"%s\"", sum, text);
    (void)snprintf(words, sizeof(words), " of %.2f MiB free", total);
    const char *at = strstr(text, words);
    assert_non_null(at);
    while (at > text && at[-1] != ',')
        at--;
    sum += strtod(at, NULL) + figure(text, "used by others");
    if (fabs(sum - total) > 0.05)
        fail_msg("the sum of all memory is %.2f: \"%s\"", sum, text);
}

/* A request of 81 GiB on an empty device of 80 GiB. */
TEST_ON(error_reports_an_empty_device_as_free, env_open_mib(81920, NULL))
{
    const char *text = error_message(env_try_alloc(allocator, 81 * GIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_string_equal(
        text, "out of memory on device 0, 82944.00 MiB requested; 82944.00 MiB needed from "
              "the driver, 81920.00 MiB of 81920.00 MiB free, 0.00 MiB used by this "
              "allocator");
}

TEST_ON(error_has_the_requested_and_the_mapped_size, env_open_mib(20, NULL))
{
    void *all = env_alloc(allocator, 20 * MIB, NULL);

    expect_start(error_message(env_try_alloc(allocator, 700, NULL), XSEG_ERR_NO_MEMORY),
                 "out of memory on device 0, 700 bytes requested; 2.00 MiB needed from the driver, "
                 "0.00 MiB of 20.00");
    expect_start(error_message(env_try_alloc(allocator, 3 * MIB / 2, NULL), XSEG_ERR_NO_MEMORY),
                 "out of memory on device 0, 1.50 MiB requested; 2.00 MiB needed from the driver, "
                 "0.00 MiB of 20.00");
    env_free(allocator, all);
}

/* Memory in most states that the message lists. */
TEST_IN_POOL(figures_of_the_error_add_up, env_open_mib(400, "page_cache_mb:1000"))
{
    const xseg_stream other = env_stream();
    void *live = env_alloc(allocator, 50 * MIB, NULL), *small = env_alloc(allocator, 1000, NULL);

    xseg_sim_set_external_memory(0, 60 * MIB);
    env_free(allocator, env_alloc_in(allocator, pool, 70 * MIB, NULL));
    void *pending = env_alloc(allocator, 30 * MIB, NULL);
    env_use(allocator, pending, other);
    void *pinned = env_alloc(allocator, 40 * MIB, NULL);
    assert_ok(xseg_pin(allocator, pinned, 40 * MIB));
    env_free(allocator, pinned, pending);
    const char *text = error_message(env_try_alloc(allocator, 300 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    expect_figures_agree(text, 400);
    assert_true(figure(text, "used by others") == 60);
    const double cached = figure(text, "cached by private pools");
    assert_true(cached == 80 || cached == 70);
    assert_true(figure(text, "cached and pinned") >= 20);
    assert_ok(xseg_unpin(allocator, pinned, 40 * MIB));
    /* A capture does not wait, so pending frees stay pending. */
    struct xseg_pool *graph = env_pool(allocator);
    const xseg_stream stream = env_stream();
    pending = env_alloc(allocator, 30 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, pending, other));
    env_capture_begin(graph, stream);
    env_free(allocator, pending);
    text = error_message(env_try_alloc(allocator, 300 * MIB, stream), XSEG_ERR_NO_MEMORY);
    expect_figures_agree(text, 400);
    assert_true(figure(text, "pending free") >= 30);
    env_capture_end(graph, stream);
    env_free(allocator, small, live);
}

/* The driver fails although it reports enough free memory. */
TEST_EACH(error_has_the_driver_result, env_open_mib(1000, config), ENV_KINDS)
{
    static const char *const call[] = {"cuMemCreate", "cuMemAlloc"};
    char words[64];
    void *ptr = env_alloc(allocator, 100, NULL);

    /* If only page creation fails, segments become classic (api/vmm_fallback). */
    for (unsigned k = 0; k < COUNT_OF(call); k++)
        env_fault(k, .call = call[k], .every = 1);
    const char *text = error_message(env_try_alloc(allocator, 100 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    (void)snprintf(words, sizeof(words), "; %s failed, CUDA_ERROR_OUT_OF_MEMORY", call[i]);
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not contain %s", text, call[i]);
    expect_start(text,
                 "out of memory on device 0, 100.00 MiB requested; 100.00 MiB needed from the "
                 "driver, 998.00");
    expect_no_advice(text);
    for (unsigned k = 0; k < COUNT_OF(call); k++)
        assert_ok(xseg_sim_fault_set(k, NULL));
    env_free(allocator, ptr);
}

static const struct {
    const char *config;
    size_t pool_mib, limit_mib; /* 0: none */
    bool has_own_memory;
    xseg_status status;
    const char *start;
} limit_rows[] = {
    {NULL, 0, 0, false, XSEG_ERR_NO_MEMORY, "out of memory on device 0, 100.00 MiB requested; "},
    {"hard_limit_mb:90", 0, 0, false, XSEG_ERR_LIMIT,
     "hard_limit_mb rejects the request on device 0, 100.00 MiB requested, limit 90.00 MiB; "},
    {NULL, 0, 80, false, XSEG_ERR_LIMIT,
     "hard_bytes of xseg_limits_set() rejects the request on device 0, 100.00 MiB requested, "
     "limit "
     "80.00 MiB; "},
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
    /* Only in the first case the device is out of memory. */
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    if (limit_rows[i].limit_mib != 0)
        env_limit(allocator, NULL, limit_rows[i].limit_mib * MIB);
    struct xseg_pool_options options = {sizeof(options),
                                        .limit_bytes = limit_rows[i].pool_mib * MIB};
    if (limit_rows[i].has_own_memory)
        options.memory = env_no_memory;
    if (limit_rows[i].pool_mib != 0 || limit_rows[i].has_own_memory)
        pool = env_pool_with(allocator, &options);
    if (i == 0)
        xseg_sim_set_external_memory(0, 150 * MIB);
    const char *text =
        error_message(env_try_alloc_in(allocator, pool, 100 * MIB, &ptr), limit_rows[i].status);
    expect_start(text, limit_rows[i].start);
    if (limit_rows[i].has_own_memory || i == 0)
        expect_no_advice(text);
}

TEST_IN_POOL(resume_error_begins_with_the_limit_or_device, env_open_mib(200, NULL))
{
    void *inside = env_alloc_in(allocator, pool, 100 * MIB, NULL);

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
    env_free(allocator, ptr, inside);
    assert_ok(xseg_pool_resume(pool));
}

/* A workload with one failing request; `advised` is the change that the message recommends. */
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

static xseg_status request(struct workload *workload, struct xseg_pool *pool, size_t bytes)
{
    void *ptr = NULL;
    const xseg_status status = env_try_alloc_in(workload->allocator, pool, bytes, &ptr);

    if (ptr != NULL)
        keep_block(workload, ptr);
    return status;
}

/* Allocate 100 MiB, then request 30 MiB. */
static xseg_status two_blocks(struct workload *workload, size_t device_mib, const char *config)
{
    workload->allocator = env_open_mib(device_mib, config);
    keep_block(workload, env_alloc(workload->allocator, 100 * MIB, NULL));
    return request(workload, NULL, 30 * MIB);
}

/* Append the advice that follows `form` in a message to a configuration string. */
static void apply(const char *text, const char *form, const char *key, char *config, size_t bytes)
{
    const char *at = strstr(text, form);
    double value;

    if (at == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, form);
    value = strtod(at + strlen(form), NULL);
    (void)snprintf(config + strlen(config), bytes - strlen(config), "%s%s:%.10g",
                   config[0] != '\0' ? "," : "", key, value);
}

/* Raise each key of the message: the request succeeds, also with the raised limits from the start; 2 MiB more fail. */
TEST(raised_limits_serve_the_request)
{
    static const struct {
        const char *config;
        bool hard, fraction, free_min;
    } row[] = {
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

    for (unsigned i = 0; i < COUNT_OF(row); i++) {
        struct workload workload = {0}, again = {0};
        char advised[256] = "", whole[512];
        const char *text =
            error_message(two_blocks(&workload, 1000, row[i].config), XSEG_ERR_LIMIT);

        expect_figures_agree(text, 1000);
        if (row[i].hard)
            apply(text, "hard_limit_mb to ", "hard_limit_mb", advised, sizeof(advised));
        if (row[i].fraction)
            apply(text, "per_process_memory_fraction to ", "per_process_memory_fraction", advised,
                  sizeof(advised));
        if (row[i].free_min)
            apply(text, "lower device_free_min_mb to ", "device_free_min_mb", advised,
                  sizeof(advised));
        assert_int_equal(strstr(text, "hard_limit_mb to ") != NULL, row[i].hard);
        assert_int_equal(strstr(text, "per_process_memory_fraction to ") != NULL, row[i].fraction);
        assert_int_equal(strstr(text, "device_free_min_mb to ") != NULL, row[i].free_min);
        assert_ok(xseg_config_set(workload.allocator, advised));
        assert_ok(request(&workload, NULL, 30 * MIB));
        assert_int_equal(request(&workload, NULL, 2 * MIB), XSEG_ERR_LIMIT);
        end_workload(&workload);
        (void)snprintf(whole, sizeof(whole), "%s,%s",
                       strstr(row[i].config, "False") != NULL ? "expandable_segments:False"
                                                              : "expandable_segments:True",
                       advised);
        assert_ok(two_blocks(&again, 1000, whole));
        end_workload(&again);
    }
}

/* The message recommends no higher limit if the device is out of memory. */
TEST(advice_does_not_exceed_the_device)
{
    static const char *const config[] = {"hard_limit_mb:120", "per_process_memory_fraction:0.96",
                                         "hard_limit_mb:120,expandable_segments:False"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct workload workload = {0};
        const xseg_status status = two_blocks(&workload, 126, config[i]);

        assert_int_not_equal(status, XSEG_OK);
        expect_no_advice(error_message(status, status));
        end_workload(&workload);
        workload = (struct workload){.allocator = env_open_mib(200, config[i])};
        keep_block(&workload, env_alloc(workload.allocator, 100 * MIB, NULL));
        xseg_sim_set_external_memory(0, 90 * MIB);
        const xseg_status again = request(&workload, NULL, 30 * MIB);
        assert_int_not_equal(again, XSEG_OK);
        expect_no_advice(error_message(again, again));
        end_workload(&workload);
    }
}

TEST(raised_hard_bytes_serve_the_request)
{
    struct workload workload = {.allocator = env_open_mib(1000, NULL)};

    keep_block(&workload, env_alloc(workload.allocator, 100 * MIB, NULL));
    env_limit(workload.allocator, NULL, 120 * MIB);
    const char *text = error_message(request(&workload, NULL, 30 * MIB), XSEG_ERR_LIMIT);
    env_limit(workload.allocator, NULL,
              (uint64_t)advised_value(text, "raise hard_bytes of xseg_limits_set() to ") * MIB);
    assert_ok(request(&workload, NULL, 30 * MIB));
    end_workload(&workload);
}

/* Cached memory of the default pool can serve the pool, so with 140 MiB the message has only the pool limit. */
TEST(raised_pool_limit_serves_the_request)
{
    static const char *const config[] = {"hard_limit_mb:140", "hard_limit_mb:110"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct workload workload = {.allocator = env_open_mib(200, config[i])};
        char advised[64] = "";

        workload.pool = env_pool_of(workload.allocator, .limit_bytes = 100 * MIB);
        env_free(workload.allocator, env_alloc(workload.allocator, 20 * MIB, NULL));
        keep_block(&workload, env_alloc_in(workload.allocator, workload.pool, 80 * MIB, NULL));
        const char *text =
            error_message(request(&workload, workload.pool, 50 * MIB), XSEG_ERR_LIMIT);
        const double limit_mib = advised_value(text, "raise limit_bytes of pool 1 to ");
        assert_int_equal(strstr(text, "hard_limit_mb") != NULL, i == 1);
        if (i == 1)
            apply(text, "and hard_limit_mb to ", "hard_limit_mb", advised, sizeof(advised));
        env_limit(workload.allocator, workload.pool, (uint64_t)limit_mib * MIB);
        if (i == 1) {
            assert_int_equal(request(&workload, workload.pool, 50 * MIB), XSEG_ERR_LIMIT);
            assert_ok(xseg_config_set(workload.allocator, advised));
        }
        assert_ok(request(&workload, workload.pool, 50 * MIB));
        end_workload(&workload);
    }
}

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
        const char *text = error_message(request(&workload, NULL, bytes[i]), XSEG_ERR_NO_MEMORY);
        expect_figures_agree(text, 200);
        if (i == 2) { /* 20 MiB are not enough */
            expect_no_advice(text);
        } else {
            assert_non_null(strstr(text, "end the capture first"));
            env_capture_end(workload.pool, workload.stream);
            workload.is_capturing = false;
            assert_ok(request(&workload, NULL, bytes[i]));
        }
        keep_block(&workload, i != 1 ? pending : idle);
        end_workload(&workload);
    }
}

TEST(released_pools_serve_the_request)
{
    static const char *const config[] = {NULL, "expandable_segments:False", "hard_limit_mb:190"};

    for (unsigned i = 0; i < 2 * COUNT_OF(config); i++) {
        struct workload workload = {.allocator = env_open_mib(200, config[i % COUNT_OF(config)])};
        const bool is_effective = i < COUNT_OF(config);

        workload.pool = env_pool(workload.allocator);
        keep_block(&workload,
                   env_alloc(workload.allocator, is_effective ? 50 * MIB : 100 * MIB, NULL));
        env_free(workload.allocator,
                 env_alloc_in(workload.allocator, workload.pool, 80 * MIB, NULL));
        const xseg_status status = request(&workload, NULL, 120 * MIB);
        assert_int_not_equal(status, XSEG_OK);
        const char *text = error_message(status, status);
        expect_figures_agree(text, 200);
        if (!is_effective) {
            expect_no_advice(text);
        } else if (config[i] == NULL || i == 1) {
            assert_non_null(strstr(text, "; release unused private pools"));
            assert_ok(xseg_pool_release(workload.pool));
            assert_ok(request(&workload, NULL, 120 * MIB));
        }
        end_workload(&workload);
    }
}

/* Segments of 90 MiB with 60 MiB cached in each. */
static xseg_status half_free_segments(struct workload *workload, size_t device_mib,
                                      const char *config, size_t bytes)
{
    void *idle[3];

    workload->allocator = env_open_mib(device_mib, config);
    for (unsigned i = 0; i < COUNT_OF(idle); i++) {
        env_free(workload->allocator, env_alloc(workload->allocator, 90 * MIB, NULL));
        idle[i] = env_alloc(workload->allocator, 60 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 30 * MIB, NULL));
    }
    env_free_all(workload->allocator, idle, sizeof(idle));
    return request(workload, NULL, bytes);
}

/* Expandable segments and a higher limit would each serve the request, and the message recommends both. */
TEST(error_at_a_limit_recommends_expandable_segments)
{
    static const char *const limit[] = {"hard_limit_mb:280", "per_process_memory_fraction:0.28"};
    static const char *const raised[] = {"hard_limit_mb", "per_process_memory_fraction"};

    for (unsigned i = 0; i < COUNT_OF(limit); i++) {
        struct workload classic = {0}, expandable = {0};
        char config[128], form[64], advised[64] = "";

        (void)snprintf(config, sizeof(config), "expandable_segments:False,%s", limit[i]);
        const char *text =
            error_message(half_free_segments(&classic, 1000, config, 100 * MIB), XSEG_ERR_LIMIT);
        expect_figures_agree(text, 1000);
        assert_non_null(
            strstr(text, "; set expandable_segments:True to avoid fragmentation, or raise "));
        (void)snprintf(form, sizeof(form), "or raise %s to ", raised[i]);
        apply(text, form, raised[i], advised, sizeof(advised));
        assert_ok(xseg_config_set(classic.allocator, advised));
        assert_ok(request(&classic, NULL, 100 * MIB));
        end_workload(&classic);
        (void)snprintf(config, sizeof(config), "expandable_segments:True,%s", limit[i]);
        assert_ok(half_free_segments(&expandable, 1000, config, 100 * MIB));
        end_workload(&expandable);
    }
}

TEST(error_at_a_limit_recommends_the_release_of_pools)
{
    struct workload workload = {.allocator = env_open_mib(1000, "hard_limit_mb:200")};

    workload.pool = env_pool(workload.allocator);
    env_free(workload.allocator, env_alloc_in(workload.allocator, workload.pool, 120 * MIB, NULL));
    const char *text = error_message(request(&workload, NULL, 100 * MIB), XSEG_ERR_LIMIT);
    assert_non_null(
        strstr(text, "; release unused private pools, or raise hard_limit_mb to 220 or more"));
    assert_ok(xseg_pool_release(workload.pool));
    assert_ok(request(&workload, NULL, 100 * MIB));
    end_workload(&workload);
}

/* Classic segments of 30 MiB with 24 MiB cached in each: small pages use them better than full pages of 20 MiB. */
static xseg_status small_pieces(struct workload *workload, const char *config, size_t bytes)
{
    void *idle[8];

    workload->allocator = env_open_mib(240, config);
    for (unsigned i = 0; i < COUNT_OF(idle); i++) {
        env_free(workload->allocator, env_alloc(workload->allocator, 30 * MIB, NULL));
        idle[i] = env_alloc(workload->allocator, 24 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 6 * MIB, NULL));
    }
    env_free_all(workload->allocator, idle, sizeof(idle));
    return request(workload, NULL, bytes);
}

/* Pages of 20 MiB, each with 11 MiB cached and 9 MiB allocated: with small pages 10 of the 11 MiB can be remapped. */
static xseg_status shared_pages(struct workload *workload, const char *config, size_t bytes)
{
    void *idle[2];

    workload->allocator = env_open_mib(40, config);
    for (unsigned i = 0; i < COUNT_OF(idle); i++) {
        idle[i] = env_alloc(workload->allocator, 11 * MIB, NULL);
        keep_block(workload, env_alloc(workload->allocator, 9 * MIB, NULL));
    }
    env_free_all(workload->allocator, idle, sizeof(idle));
    return request(workload, NULL, bytes);
}

/* 60 of 100 MiB are idle pages of another stream, which must be released or remapped. */
static xseg_status idle_elsewhere(struct workload *workload, const char *config, size_t bytes)
{
    workload->allocator = env_open_mib(100, config);
    workload->stream = env_stream();
    env_free(workload->allocator, env_alloc(workload->allocator, 60 * MIB, workload->stream));
    return request(workload, NULL, bytes);
}

static xseg_status half_free_on_280(struct workload *workload, const char *config, size_t bytes)
{
    return half_free_segments(workload, 280, config, bytes);
}

/* The recommended configuration serves the request.  A row without advice may have a configuration that does, too. */
TEST(advised_configuration_serves_the_request)
{
    static const struct {
        xseg_status (*run)(struct workload *workload, const char *config, size_t bytes);
        const char *config, *advice, *advised;
        size_t device_mib, requested_mib;
        bool is_advised, is_served;
    } rows[] = {
#define SEGMENTS "expandable_segments:False", "expandable_segments:True", "expandable_segments:True"
        {half_free_on_280, SEGMENTS, 280, 80, true, true},
        {half_free_on_280, SEGMENTS, 280, 100, true, true},
        {half_free_on_280, SEGMENTS, 280, 185, false, false},
        {half_free_on_280, SEGMENTS, 280, 250, false, false},
#define BOTH                                                                                \
    "expandable_segments:False", "; set expandable_segments:True,page_size:small to avoid", \
        "expandable_segments:True,page_size:small"
        {small_pieces, BOTH, 240, 100, true, true},
        {small_pieces, BOTH, 240, 170, true, true},
        {small_pieces, BOTH, 240, 190, false, true},
#define PAGES "page_size:fixed", "page_size:small", "page_size:small"
        {shared_pages, PAGES, 40, 20, true, true},
        {shared_pages, PAGES, 40, 21, false, false},
#define REJECTION \
    "throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:False", "throw_on_cudamalloc_oom:False"
        {idle_elsewhere, REJECTION, 100, 80, true, true},
        {idle_elsewhere, REJECTION, 100, 120, false, false},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const size_t bytes = rows[i].requested_mib * MIB;
        struct workload workload = {0}, again = {0};
        const char *text =
            error_message(rows[i].run(&workload, rows[i].config, bytes), XSEG_ERR_NO_MEMORY);

        expect_figures_agree(text, (double)rows[i].device_mib);
        assert_int_equal(strstr(text, rows[i].advice) != NULL, rows[i].is_advised);
        if (!rows[i].is_advised)
            expect_no_advice(text);
        end_workload(&workload);
        assert_int_equal(rows[i].run(&again, rows[i].advised, bytes),
                         rows[i].is_served ? XSEG_OK : XSEG_ERR_NO_MEMORY);
        end_workload(&again);
    }
}
