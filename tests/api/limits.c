/* SPDX-License-Identifier: MIT */
/* How much of a device may be taken: the hard limit, and what xseg_limits_set() reads and sets. */
#include "tests/support/env.h"
#include "tests/support/trim_due.h"

#define MS UINT64_C(1000000)

static struct xseg_allocator *open_on(unsigned devices, const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 4 * GIB,
                                         .devices = devices};

    return env_open_with_clock(&settings, config);
}

/* The limits of a device, as they are. */
static struct xseg_limits limits_of(struct xseg_allocator *allocator, int device)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_limits limits = {sizeof(limits), 1, 1, 1, 0, false, 0, false};

    where.device = device;
    assert_ok(xseg_limits_get(allocator, &where, &limits));
    return limits;
}

static void expect_limits(struct xseg_allocator *allocator, int device, uint64_t hard,
                          uint64_t soft, uint64_t keep)
{
    const struct xseg_limits limits = limits_of(allocator, device);

    assert_int_equal(limits.hard_bytes, hard);
    assert_int_equal(limits.soft_bytes, soft);
    assert_int_equal(limits.keep_bytes, keep);
}

static xseg_status set_limits(struct xseg_allocator *allocator, int device, uint64_t hard,
                              uint64_t soft, uint64_t keep)
{
    const struct xseg_limits set = {sizeof(set), hard, soft, keep, 1, false, 1, false};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.device = device;
    return xseg_limits_set(allocator, &where, &set);
}

static void pass(struct xseg_allocator *allocator)
{
    for (unsigned i = 0; i < 3; i++) {
        xseg_sim_advance(200 * MS);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
}

/* --- The hard limit. --- */

TEST(a_hard_limit_counts_pages)
{
    static const char *const config[] = {"hard_limit_mb:120",
                                         "hard_limit_mb:120,expandable_segments:False"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = open_on(1, config[i]);
        void *a = env_alloc(allocator, 100 * MIB, NULL), *b = NULL, *c;

        assert_int_equal(env_stats(allocator).limit_bytes, 120 * MIB);
        env_expect_error(xseg_alloc(allocator, 0, 30 * MIB, NULL, &b), XSEG_ERR_LIMIT,
                         "hard_limit_mb");
        assert_int_equal(env_stats(allocator).num_ooms, 1);
        b = env_alloc(allocator, 20 * MIB, NULL);
        c = NULL;
        env_expect_error(xseg_alloc(allocator, 0, 1, NULL, &c), XSEG_ERR_LIMIT, "limit");
        assert_int_equal(xseg_sim_used(0), 120 * MIB);
        /* Changed while it runs. */
        assert_ok(xseg_config_set(allocator, "hard_limit_mb:122"));
        c = env_alloc(allocator, 1, NULL);
        assert_int_equal(xseg_sim_used(0), 122 * MIB);
        env_free(allocator, a, b, c);
        env_close(allocator);
    }
}

/* Like the end of memory: idle pages of another stream first, without a flush. */
TEST(a_hard_limit_is_climbed)
{
    struct xseg_allocator *allocator = open_on(1, "hard_limit_mb:200");
    const xseg_stream stream = env_stream();
    void *ptr;

    env_free(allocator, env_alloc(allocator, 200 * MIB, stream));
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, ptr);
    env_close(allocator, stream);
}

/* Below what is taken: idle memory goes at once, live memory stays, what is cached serves. */
TEST(a_hard_limit_may_fall)
{
    struct xseg_allocator *allocator = open_on(1, NULL);
    const xseg_stream stream = env_stream();
    void *live = env_alloc(allocator, 100 * MIB, NULL), *ptr = NULL, *busy;

    busy = env_alloc(allocator, 40 * MIB, stream);
    env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)busy, 40 * MIB));
    env_free(allocator, busy);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:260"));
    assert_int_equal(env_reserved(allocator), 260 * MIB);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:50"));
    /* The stream that works keeps its memory. */
    assert_int_equal(env_reserved(allocator), 140 * MIB);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize") + xseg_sim_calls("cuCtxSynchronize"), 0);
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    assert_int_equal(env_reserved(allocator), 140 * MIB);
    env_expect_error(xseg_alloc(allocator, 0, 1, NULL, &ptr), XSEG_ERR_LIMIT, "limit");
    env_free(allocator, live);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:0"));
    assert_int_equal(env_reserved(allocator), 0);
    env_expect_error(
        xseg_alloc(allocator, 0, 1, NULL, &ptr), XSEG_ERR_LIMIT,
        "hard_limit_mb rejects the request on device 0, 1 byte requested, limit 0.00 MiB");
    env_close(allocator, stream);
}

/* In a capture nothing goes, and the limit holds all the same. */
TEST(a_capture_is_left_alone)
{
    struct xseg_allocator *allocator = open_on(1, NULL);
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();
    void *ptr = NULL;

    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    env_capture_begin(pool, stream);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:60"));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_expect_error(xseg_alloc(allocator, 0, 40 * MIB, stream, &ptr), XSEG_ERR_LIMIT,
                     "end the capture");
    env_capture_end(pool, stream);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:60"));
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator, stream);
}

/* The lower of the two counts. */
TEST(a_fraction_stands_beside_it)
{
    struct xseg_allocator *allocator =
        open_on(1, "hard_limit_mb:1024,per_process_memory_fraction:0.5");

    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_stats(allocator).limit_bytes, GIB);
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.125"));
    assert_int_equal(env_stats(allocator).limit_bytes, GIB / 2);
    env_close(allocator);
}

/* --- xseg_limits_set(). --- */

TEST(a_device_has_limits_of_its_own)
{
    struct xseg_allocator *allocator = open_on(2, "hard_limit_mb:1000,keep_mb:10");
    struct xseg_scope where = XSEG_SCOPE_ALL;
    const struct xseg_limits set = {sizeof(set), 600 * MIB, UINT64_MAX, 0, 1, false, 1, false};
    struct xseg_limits was = XSEG_LIMITS_INIT;
    void *ptr = NULL;

    expect_limits(allocator, 0, 1000 * MIB, UINT64_MAX, 10 * MIB);
    where.device = 1;
    assert_ok(xseg_limits_get(allocator, &where, &was));
    assert_ok(xseg_limits_set(allocator, &where, &set));
    assert_int_equal(was.hard_bytes, 1000 * MIB);
    assert_int_equal(was.keep_bytes, 10 * MIB);
    expect_limits(allocator, 1, 600 * MIB, UINT64_MAX, 0);
    expect_limits(allocator, 0, 1000 * MIB, UINT64_MAX, 10 * MIB);
    assert_int_equal(xseg_alloc(allocator, 1, 700 * MIB, NULL, &ptr), XSEG_ERR_LIMIT);
    env_free(allocator, env_alloc(allocator, 700 * MIB, NULL));
    /* A key that is named holds for all again, and the others do not move. */
    assert_ok(xseg_config_set(allocator, "keep_mb:20"));
    expect_limits(allocator, 1, 600 * MIB, UINT64_MAX, 20 * MIB);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:500"));
    expect_limits(allocator, 0, 500 * MIB, UINT64_MAX, 20 * MIB);
    expect_limits(allocator, 1, 500 * MIB, UINT64_MAX, 20 * MIB);
    /* A limit that is lowered by hand gives back at once, too. */
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_ok(set_limits(allocator, 0, 100 * MIB, UINT64_MAX, 0));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_close(allocator);
}

static xseg_status set_fraction(struct xseg_allocator *allocator, int device, double fraction)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_limits set = limits_of(allocator, device);

    where.device = device;
    set.fraction = fraction;
    set.has_fraction = true;
    return xseg_limits_set(allocator, &where, &set);
}

/* The fraction of one device may fall and rise, whatever the configuration says; keys that are named count again. */
TEST(a_device_has_a_fraction_of_its_own)
{
    struct xseg_allocator *allocator = open_on(2, "per_process_memory_fraction:0.5");
    void *ptr = NULL;

    assert_true(limits_of(allocator, 0).has_fraction && limits_of(allocator, 0).fraction == 0.5);
    assert_ok(set_fraction(allocator, 1, 0.75));
    assert_ok(xseg_alloc(allocator, 1, 3 * GIB, NULL, &ptr));
    env_free(allocator, ptr);
    ptr = NULL;
    env_expect_error(xseg_alloc(allocator, 0, 3 * GIB, NULL, &ptr), XSEG_ERR_LIMIT,
                     "per_process_memory_fraction rejects the request on device 0, 3072.00 MiB "
                     "requested, limit 2048.00 MiB (0.5 of the device)");
    /* Below what is taken: idle memory goes at once. */
    assert_ok(set_fraction(allocator, 1, 0.25));
    assert_true(xseg_sim_used(1) <= GIB);
    env_expect_error(xseg_alloc(allocator, 1, 2 * GIB, NULL, &ptr), XSEG_ERR_LIMIT,
                     "raise per_process_memory_fraction to 0.5");
    /* Other limits leave the fraction as it is. */
    assert_ok(set_limits(allocator, 1, 2 * GIB, UINT64_MAX, 0));
    assert_true(limits_of(allocator, 1).fraction == 0.25);
    env_expect_error(set_fraction(allocator, 1, 1.5), XSEG_ERR_ARGUMENT,
                     "fraction is out of range, 1.5; ");
    env_expect_error(set_fraction(allocator, 1, -1), XSEG_ERR_ARGUMENT,
                     "-1; use a number from 0 to 1");
    assert_true(limits_of(allocator, 1).fraction == 0.25);
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.125"));
    assert_true(limits_of(allocator, 0).fraction == 0.125);
    assert_true(limits_of(allocator, 1).fraction == 0.125);
    env_close(allocator);
}

/* What is reserved after an idle block of 600 MiB was passed over by a larger request. */
static uint64_t reserved_after_growth(struct xseg_allocator *allocator)
{
    env_free(allocator, env_alloc(allocator, 600 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 700 * MIB, NULL));
    const uint64_t after = env_reserved(allocator);

    assert_ok(xseg_trim(allocator, NULL, NULL, NULL));
    return after;
}

/* Garbage is collected by the fraction that is set for the device, and not without one. */
TEST(garbage_counts_by_the_fraction_of_the_device)
{
    struct xseg_allocator *allocator =
        open_on(1, "garbage_collection_threshold:0.5,expandable_segments:False");

    assert_int_equal(reserved_after_growth(allocator), 1300 * MIB);
    /* 1 GiB is allowed, and above 0.5 GiB old memory goes. */
    assert_ok(set_fraction(allocator, 0, 0.25));
    env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    assert_int_equal(reserved_after_growth(allocator), 700 * MIB);
    assert_ok(set_fraction(allocator, 0, 1));
    assert_int_equal(reserved_after_growth(allocator), 1300 * MIB);
    assert_ok(set_fraction(allocator, 0, 0.25));
    assert_ok(xseg_config_set(allocator, "garbage_collection_threshold:off"));
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_int_equal(env_reserved(allocator), 600 * MIB);
    env_close(allocator);
}

/* A soft limit takes effect on that device alone, without a key of the configuration. */
TEST(a_device_has_a_soft_limit_of_its_own)
{
    struct xseg_allocator *allocator = open_on(1, NULL);

    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    pass(allocator);
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_ok(set_limits(allocator, 0, UINT64_MAX, 200 * MIB, 0));
    pass(allocator);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    /* Calls of the user are enough. */
    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    for (unsigned i = 0; i < 200; i++) {
        xseg_sim_advance(200 * MS);
        env_free(allocator, env_alloc(allocator, 1, NULL));
    }
    /* Full pages, and one small page that is in use. */
    assert_int_equal(env_reserved(allocator), 182 * MIB);
    assert_ok(set_limits(allocator, 0, UINT64_MAX, UINT64_MAX, 0));
    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    pass(allocator);
    assert_int_equal(env_reserved(allocator), 502 * MIB);
    env_close(allocator);
}

TEST(a_pool_has_a_hard_limit)
{
    struct xseg_allocator *allocator = open_on(1, NULL);
    struct xseg_pool_options options = {sizeof(options), .limit_bytes = 40 * MIB};
    struct xseg_request request = {sizeof(request)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_limits set = XSEG_LIMITS_INIT, was = XSEG_LIMITS_INIT;
    struct xseg_pool *pool = NULL;
    void *ptr = NULL, *more = NULL, *third = NULL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    request.pool = where.pool = pool;
    request.bytes = 40 * MIB;
    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    assert_int_equal(xseg_alloc_with(allocator, &request, &more), XSEG_ERR_LIMIT);
    set.hard_bytes = 80 * MIB;
    assert_ok(xseg_limits_get(allocator, &where, &was));
    assert_ok(xseg_limits_set(allocator, &where, &set));
    assert_int_equal(was.hard_bytes, 40 * MIB);
    assert_ok(xseg_alloc_with(allocator, &request, &more));
    set.soft_bytes = MIB;
    env_expect_error(xseg_limits_set(allocator, &where, &set), XSEG_ERR_UNSUPPORTED,
                     "no soft_bytes");
    set.soft_bytes = UINT64_MAX;
    set.keep_bytes = MIB;
    env_expect_error(xseg_limits_set(allocator, &where, &set), XSEG_ERR_UNSUPPORTED,
                     "no keep_bytes");
    set.keep_bytes = 0;
    set.has_fraction = true;
    env_expect_error(xseg_limits_set(allocator, &where, &set), XSEG_ERR_UNSUPPORTED, "no fraction");
    set.has_fraction = false;
    /* Below what it has: it keeps that, and gets no more. */
    set.keep_bytes = 0;
    set.hard_bytes = 20 * MIB;
    assert_ok(xseg_limits_get(allocator, &where, &was));
    assert_ok(xseg_limits_set(allocator, &where, &set));
    assert_int_equal(was.hard_bytes, 80 * MIB);
    env_free(allocator, more);
    assert_ok(xseg_alloc_with(allocator, &request, &more));
    request.bytes = 2 * MIB;
    assert_int_equal(xseg_alloc_with(allocator, &request, &third), XSEG_ERR_LIMIT);
    env_free(allocator, ptr, more);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* --- "Please shrink to N". --- */

TEST(the_answer_says_what_was_achieved)
{
    struct xseg_allocator *allocator = open_on(1, NULL);
    void *live = env_alloc(allocator, 95 * MIB, NULL);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options how = {sizeof(how)};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    how.target_bytes = 300 * MIB;
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    assert_int_equal(done.remaining, 300 * MIB);
    assert_int_equal(done.remaining, xseg_sim_used(0));
    /* Less than what is live: as far as it goes, with the reason. */
    how.target_bytes = 50 * MIB;
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    where.device = 0;
    assert_ok(xseg_trim(allocator, &where, &how, &done));
    assert_int_equal(done.remaining, 120 * MIB);
    assert_int_equal(done.remaining, xseg_sim_used(0));
    assert_int_equal(done.kept_failed, 20 * MIB);
    assert_int_equal(done.kept_fragmented, 5 * MIB);
    assert_ok(xseg_trim(allocator, &where, &how, &done));
    assert_int_equal(done.remaining, 100 * MIB);
    env_free(allocator, live);
    env_close(allocator);
}

/* --- Bad input. --- */

/* A change that is refused, with a sentence, and nothing is changed. */
static void expect_refused(struct xseg_allocator *allocator, const char *config, const char *word)
{
    char before[2048], after[2048];
    const struct xseg_limits limits = limits_of(allocator, 0);

    assert_ok(xseg_config_get(allocator, before, sizeof(before), NULL));
    env_expect_error(xseg_config_set(allocator, config), XSEG_ERR_CONFIG, word);
    assert_ok(xseg_config_get(allocator, after, sizeof(after), NULL));
    assert_string_equal(before, after);
    expect_limits(allocator, 0, limits.hard_bytes, limits.soft_bytes, limits.keep_bytes);
}

TEST(contradictory_keys_are_refused)
{
    struct xseg_allocator *allocator =
        open_on(1, "keep_mb:100,soft_limit_mb:200,hard_limit_mb:300");

    expect_refused(allocator, "soft_limit_mb:301", "at most hard_limit_mb, which is 300");
    expect_refused(allocator, "hard_limit_mb:199", "at least soft_limit_mb, which is 200");
    expect_refused(allocator, "keep_mb:250,soft_limit_mb:240", "at most soft_limit_mb");
    expect_refused(allocator, "hard_limit_mb:-1", "a whole number of MiB");
    expect_refused(allocator, "soft_limit_mb:-1", "a whole number of MiB");
    expect_refused(allocator, "keep_mb:-1", "a whole number of MiB");
    expect_refused(allocator, "device_free_min_mb:-1", "a whole number of MiB");
    expect_refused(allocator, "idle_ms:-5,hard_limit_mb:400", "or -1 (never)");
    expect_refused(allocator, "keep_window_s:-1", "a whole number of seconds");
    expect_refused(allocator, "hard_limit_mb:400,soft_limit_mb:x", "whole number");
    /* With what has been set for one device. */
    assert_ok(set_limits(allocator, 0, 900 * MIB, 800 * MIB, 700 * MIB));
    expect_refused(allocator, "hard_limit_mb:600", "device 0, soft_bytes exceeds hard_bytes");
    expect_refused(allocator, "soft_limit_mb:250", "device 0, keep_bytes exceeds soft_bytes");
    assert_ok(xseg_config_set(allocator, "keep_mb:1,soft_limit_mb:2,hard_limit_mb:3"));
    expect_limits(allocator, 0, 3 * MIB, 2 * MIB, MIB);
    env_close(allocator);
}

TEST(contradictory_limits_are_refused)
{
    struct xseg_allocator *allocator = open_on(1, NULL);
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_limits odd = XSEG_LIMITS_INIT;

    env_expect_error(set_limits(allocator, 0, 2, 3, 1), XSEG_ERR_ARGUMENT,
                     "soft_bytes exceeds hard_bytes");
    env_expect_error(set_limits(allocator, 0, 9, 3, 4), XSEG_ERR_ARGUMENT,
                     "keep_bytes exceeds soft_bytes");
    env_expect_error(set_limits(allocator, 0, 3, UINT64_MAX, 4), XSEG_ERR_ARGUMENT,
                     "keep_bytes exceeds hard_bytes");
    env_expect_error(set_limits(allocator, -1, 3, 2, 1), XSEG_ERR_ARGUMENT,
                     "device -1 does not exist");
    env_expect_error(set_limits(allocator, 7, 3, 2, 1), XSEG_ERR_ARGUMENT,
                     "device 7 does not exist");
    expect_limits(allocator, 0, UINT64_MAX, UINT64_MAX, 0);
    env_expect_error(xseg_limits_get(NULL, &where, &odd), XSEG_ERR_ARGUMENT, "NULL");
    env_expect_error(xseg_limits_get(allocator, NULL, &odd), XSEG_ERR_ARGUMENT, "scope is NULL");
    env_expect_error(xseg_limits_set(allocator, &where, NULL), XSEG_ERR_ARGUMENT, "limits is NULL");
    where.device = 0;
    odd.struct_size = 3;
    env_expect_error(xseg_limits_set(allocator, &where, &odd), XSEG_ERR_ARGUMENT,
                     "struct_size is unknown, 3");
    env_expect_error(xseg_limits_get(allocator, &where, &odd), XSEG_ERR_ARGUMENT,
                     "struct_size is unknown, 3");
    odd.struct_size = sizeof(odd);
    where.one_stream = true;
    env_expect_error(xseg_limits_get(allocator, &where, &odd), XSEG_ERR_UNSUPPORTED,
                     "scope selects a stream");
    env_expect_error(xseg_limits_set(allocator, &where, &odd), XSEG_ERR_UNSUPPORTED,
                     "scope selects a stream");
    env_close(allocator);
}
