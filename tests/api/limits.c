/* SPDX-License-Identifier: MIT */
/* Limits of a device: the hard limit, and xseg_limits_get() and xseg_limits_set(). */
#include "tests/support/process.h"
#include "tests/support/trim_due.h"

#define MS UINT64_C(1000000)

static struct xseg_allocator *open_on(unsigned devices, const char *config)
{
    return env_open_sim_with_clock(config, .memory_bytes = 4 * GIB, .devices = devices);
}

/* The current limits of a device. */
static struct xseg_limits limits_of(struct xseg_allocator *allocator, int device)
{
    struct xseg_limits limits = {sizeof(limits), 1, 1, 1, 0, false, 0, false};

    assert_ok(xseg_limits_get(allocator, env_scope(.device = device), &limits));
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
    const struct xseg_limits limits = {sizeof(limits), hard, soft, keep, 1, false, 1, false};

    return xseg_limits_set(allocator, env_scope(.device = device), &limits);
}

TEST_EACH(a_hard_limit_counts_pages, open_on(1, config), "hard_limit_mb:120",
          "hard_limit_mb:120,expandable_segments:False")
{
    void *a = env_alloc(allocator, 100 * MIB, NULL);

    assert_int_equal(env_stats(allocator).limit_bytes, 120 * MIB);
    assert_error(env_try_alloc(allocator, 30 * MIB, NULL), LIMIT, "hard_limit_mb");
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    void *b = env_alloc(allocator, 20 * MIB, NULL);
    assert_error(env_try_alloc(allocator, 1, NULL), LIMIT, "limit");
    assert_int_equal(xseg_sim_used(0), 120 * MIB);
    /* The limit changes while memory is allocated. */
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:122"));
    void *c = env_alloc(allocator, 1, NULL);
    assert_int_equal(xseg_sim_used(0), 122 * MIB);
    env_free(allocator, a, b, c);
}

/* Idle pages of another stream are remapped, and the cache is not emptied. */
TEST_ON(hard_limit_remaps_idle_pages, open_on(1, "hard_limit_mb:200"))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 200 * MIB, stream));
    const uint64_t created = xseg_sim_calls("cuMemCreate");
    void *ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, ptr);
}

/* Idle memory is released immediately; allocated memory stays, and cached memory serves requests. */
TEST_ON(lowered_hard_limit_releases_idle_memory, open_on(1, NULL))
{
    const xseg_stream stream = env_stream();
    void *allocated = env_alloc(allocator, 100 * MIB, NULL);

    void *busy = env_alloc(allocator, 40 * MIB, stream);
    env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)busy, 40 * MIB));
    env_free(allocator, busy);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:260"));
    assert_int_equal(env_reserved(allocator), 260 * MIB);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:50"));
    /* The allocated 100 MiB, and 40 MiB of the busy stream, stay mapped. */
    assert_int_equal(env_reserved(allocator), 140 * MIB);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize") + xseg_sim_calls("cuCtxSynchronize"), 0);
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    assert_int_equal(env_reserved(allocator), 140 * MIB);
    assert_error(env_try_alloc(allocator, 1, NULL), LIMIT, "limit");
    env_free(allocator, allocated);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:0"));
    assert_int_equal(env_reserved(allocator), 0);
    assert_error(env_try_alloc(allocator, 1, NULL), LIMIT,
                 "hard_limit_mb rejects the request on device 0, 1 byte requested, limit 0.00 MiB");
}

/* During a capture the limit releases no memory, but it rejects requests. */
TEST_IN_POOL(hard_limit_releases_nothing_during_a_capture, open_on(1, NULL))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    env_capture_begin(pool, stream);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:60"));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    assert_error(env_try_alloc(allocator, 40 * MIB, stream), LIMIT, "end the capture");
    env_capture_end(pool, stream);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:60"));
    assert_int_equal(env_reserved(allocator), 60 * MIB);
}

TEST_ON(fraction_and_hard_limit_combine,
        open_on(1, "hard_limit_mb:1024,per_process_memory_fraction:0.5"))
{
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_stats(allocator).limit_bytes, GIB);
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.125"));
    assert_int_equal(env_stats(allocator).limit_bytes, GIB / 2);
}

TEST_ON(limits_apply_to_one_device, open_on(2, "hard_limit_mb:1000,keep_mb:10"))
{
    const struct xseg_limits lower = {sizeof(lower), 600 * MIB, UINT64_MAX, 0, 1, false, 1, false};
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    void *ptr = NULL;

    expect_limits(allocator, 0, 1000 * MIB, UINT64_MAX, 10 * MIB);
    struct xseg_scope scope = {sizeof(scope), .device = 1};
    assert_ok(xseg_limits_get(allocator, &scope, &limits));
    assert_ok(xseg_limits_set(allocator, &scope, &lower));
    assert_int_equal(limits.hard_bytes, 1000 * MIB);
    assert_int_equal(limits.keep_bytes, 10 * MIB);
    expect_limits(allocator, 1, 600 * MIB, UINT64_MAX, 0);
    expect_limits(allocator, 0, 1000 * MIB, UINT64_MAX, 10 * MIB);
    assert_int_equal(xseg_alloc(allocator, 1, 700 * MIB, NULL, &ptr), XSEG_ERR_LIMIT);
    env_free(allocator, env_alloc(allocator, 700 * MIB, NULL));
    /* A key of a new configuration applies to all devices; other limits are unchanged. */
    assert_ok(xseg_config_set(allocator, "keep_mb:20"));
    expect_limits(allocator, 1, 600 * MIB, UINT64_MAX, 20 * MIB);
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:500"));
    expect_limits(allocator, 0, 500 * MIB, UINT64_MAX, 20 * MIB);
    expect_limits(allocator, 1, 500 * MIB, UINT64_MAX, 20 * MIB);
    /* xseg_limits_set() releases immediately as well. */
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_ok(set_limits(allocator, 0, 100 * MIB, UINT64_MAX, 0));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
}

static xseg_status set_fraction(struct xseg_allocator *allocator, int device, double fraction)
{
    struct xseg_limits limits = limits_of(allocator, device);

    limits.fraction = fraction;
    limits.has_fraction = true;
    return xseg_limits_set(allocator, env_scope(.device = device), &limits);
}

/* The fraction of one device overrides that of the configuration, until a new configuration has the key. */
TEST_ON(fraction_applies_to_one_device, open_on(2, "per_process_memory_fraction:0.5"))
{
    assert_true(limits_of(allocator, 0).has_fraction && limits_of(allocator, 0).fraction == 0.5);
    assert_ok(set_fraction(allocator, 1, 0.75));
    void *ptr = env_alloc_on(allocator, 1, 3 * GIB);
    env_free(allocator, ptr);
    ptr = NULL;
    assert_error(env_try_alloc(allocator, 3 * GIB, NULL), LIMIT,
                 "per_process_memory_fraction rejects the request on device 0, 3072.00 MiB "
                 "requested, limit 2048.00 MiB (0.5 of the device)");
    /* A fraction below the memory in use releases idle memory immediately. */
    assert_ok(set_fraction(allocator, 1, 0.25));
    assert_true(xseg_sim_used(1) <= GIB);
    assert_error(xseg_alloc(allocator, 1, 2 * GIB, NULL, &ptr), LIMIT,
                 "raise per_process_memory_fraction to 0.5");
    /* Changes of other limits keep the fraction. */
    assert_ok(set_limits(allocator, 1, 2 * GIB, UINT64_MAX, 0));
    assert_true(limits_of(allocator, 1).fraction == 0.25);
    assert_error(set_fraction(allocator, 1, 1.5), ARGUMENT, "fraction is out of range, 1.5; ");
    assert_error(set_fraction(allocator, 1, -1), ARGUMENT, "-1; use a number from 0 to 1");
    assert_true(limits_of(allocator, 1).fraction == 0.25);
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.125"));
    assert_true(limits_of(allocator, 0).fraction == 0.125);
    assert_true(limits_of(allocator, 1).fraction == 0.125);
}

/* Reserved bytes after a request of 700 MiB that does not fit in an idle segment of 600 MiB. */
static uint64_t reserved_after_growth(struct xseg_allocator *allocator)
{
    env_free(allocator, env_alloc(allocator, 600 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 700 * MIB, NULL));
    const uint64_t reserved = env_reserved(allocator);

    assert_ok(xseg_trim(allocator, NULL, NULL, NULL));
    return reserved;
}

/* Garbage collection uses the fraction of the device; without a fraction there is none. */
TEST_ON(garbage_collection_uses_the_fraction_of_the_device,
        open_on(1, "garbage_collection_threshold:0.5,expandable_segments:False"))
{
    assert_int_equal(reserved_after_growth(allocator), (600 + 700) * MIB);
    /* 1 GiB is allowed, and old memory above 0.5 GiB is released. */
    assert_ok(set_fraction(allocator, 0, 0.25));
    env_free(allocator, env_alloc(allocator, 300 * MIB, NULL));
    assert_int_equal(reserved_after_growth(allocator), 700 * MIB);
    assert_ok(set_fraction(allocator, 0, 1));
    assert_int_equal(reserved_after_growth(allocator), (600 + 700) * MIB);
    assert_ok(set_fraction(allocator, 0, 0.25));
    assert_ok(xseg_config_set(allocator, "garbage_collection_threshold:off"));
    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_int_equal(env_reserved(allocator), (200 + 400) * MIB);
}

/* The soft limit of a device needs no key of the configuration. */
TEST_ON(soft_limit_applies_to_one_device, open_on(1, NULL))
{
    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    env_advance_and_trim(allocator, 3, 200);
    assert_int_equal(env_reserved(allocator), 500 * MIB);
    assert_ok(set_limits(allocator, 0, UINT64_MAX, 200 * MIB, 0));
    env_advance_and_trim(allocator, 3, 200);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    /* Allocations and frees run the decay passes as well. */
    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    for (unsigned i = 0; i < 200; i++) {
        xseg_sim_advance(200 * MS);
        env_free(allocator, env_alloc(allocator, 1, NULL));
    }
    /* Nine full pages are below the limit, and one small page is in use. */
    assert_int_equal(env_reserved(allocator), (9 * 20 + 2) * MIB);
    assert_ok(set_limits(allocator, 0, UINT64_MAX, UINT64_MAX, 0));
    env_free(allocator, env_alloc(allocator, 500 * MIB, NULL));
    env_advance_and_trim(allocator, 3, 200);
    assert_int_equal(env_reserved(allocator), (500 + 2) * MIB);
}

TEST_ON(a_pool_has_a_hard_limit, open_on(1, NULL))
{
    struct xseg_pool *pool = env_pool_of(allocator, .limit_bytes = 40 * MIB);
    const struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};
    const struct {
        struct xseg_limits limits;
        const char *words;
    } cases[] = {
        {{sizeof(cases->limits), 80 * MIB, MIB, 0, 1, false, 1, false}, "no soft_bytes"},
        {{sizeof(cases->limits), 80 * MIB, UINT64_MAX, MIB, 1, false, 1, false}, "no keep_bytes"},
        {{sizeof(cases->limits), 80 * MIB, UINT64_MAX, 0, 1, true, 1, false}, "no fraction"},
    };
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    void *first = env_alloc_in(allocator, pool, 40 * MIB, NULL), *out = NULL;

    assert_int_equal(env_try_alloc_in(allocator, pool, 40 * MIB, &out), XSEG_ERR_LIMIT);
    assert_ok(xseg_limits_get(allocator, &scope, &limits));
    assert_int_equal(limits.hard_bytes, 40 * MIB);
    env_set_hard_limit(allocator, pool, 80 * MIB);
    void *second = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(cases); i++)
        assert_error(xseg_limits_set(allocator, &scope, &cases[i].limits), UNSUPPORTED,
                     cases[i].words);
    /* A limit below the reserved memory releases nothing, and the pool does not grow. */
    assert_ok(xseg_limits_get(allocator, &scope, &limits));
    assert_int_equal(limits.hard_bytes, 80 * MIB);
    env_set_hard_limit(allocator, pool, 20 * MIB);
    env_free(allocator, second);
    second = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    assert_int_equal(env_try_alloc_in(allocator, pool, 2 * MIB, &out), XSEG_ERR_LIMIT);
    env_free(allocator, first, second);
    assert_ok(xseg_pool_release(pool));
}

TEST_ON(trim_to_a_target_reports_the_remainder, open_on(1, NULL))
{
    void *allocated = env_alloc(allocator, 95 * MIB, NULL);
    struct xseg_trim_result result = {sizeof(result)};

    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    struct xseg_trim_options options = {sizeof(options), .target_bytes = 300 * MIB};
    assert_ok(xseg_trim(allocator, NULL, &options, &result));
    assert_int_equal(result.remaining, 300 * MIB);
    assert_int_equal(result.remaining, xseg_sim_used(0));
    /* With a target below the allocated memory, the trim releases all idle memory and reports why other memory remains. */
    options.target_bytes = 50 * MIB;
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999)); /* CUDA_ERROR_UNKNOWN */
    struct xseg_scope scope = {sizeof(scope), .device = 0};
    assert_ok(xseg_trim(allocator, &scope, &options, &result));
    /* 95 MiB are allocated on 5 pages; the driver did not release one page. */
    assert_int_equal(result.remaining, (100 + 20) * MIB);
    assert_int_equal(result.remaining, xseg_sim_used(0));
    assert_int_equal(result.kept_failed, 20 * MIB);
    assert_int_equal(result.kept_fragmented, 5 * MIB);
    assert_ok(xseg_trim(allocator, &scope, &options, &result));
    assert_int_equal(result.remaining, 100 * MIB);
    env_free(allocator, allocated);
}

/* Expect that a configuration is rejected and changes nothing. */
static void expect_rejected(struct xseg_allocator *allocator, const char *config, const char *word)
{
    char before[2048], after[2048];
    const struct xseg_limits limits = limits_of(allocator, 0);

    assert_ok(xseg_config_get(allocator, before, sizeof(before), NULL));
    assert_error(xseg_config_set(allocator, config), CONFIG, word);
    assert_ok(xseg_config_get(allocator, after, sizeof(after), NULL));
    assert_string_equal(before, after);
    expect_limits(allocator, 0, limits.hard_bytes, limits.soft_bytes, limits.keep_bytes);
}

TEST_ON(contradictory_keys_are_rejected,
        open_on(1, "keep_mb:100,soft_limit_mb:200,hard_limit_mb:300"))
{
    expect_rejected(allocator, "soft_limit_mb:301", "at most hard_limit_mb, which is 300");
    expect_rejected(allocator, "hard_limit_mb:199", "at least soft_limit_mb, which is 200");
    expect_rejected(allocator, "keep_mb:250,soft_limit_mb:240", "at most soft_limit_mb");
    expect_rejected(allocator, "hard_limit_mb:-1", "a whole number of MiB");
    expect_rejected(allocator, "soft_limit_mb:-1", "a whole number of MiB");
    expect_rejected(allocator, "keep_mb:-1", "a whole number of MiB");
    expect_rejected(allocator, "device_free_min_mb:-1", "auto, or a whole number of MiB");
    expect_rejected(allocator, "idle_ms:-5,hard_limit_mb:400", "or -1 (never)");
    expect_rejected(allocator, "keep_window_s:-1", "a whole number of seconds");
    expect_rejected(allocator, "hard_limit_mb:400,soft_limit_mb:x", "whole number");
    /* The keys contradict the limits of device 0. */
    assert_ok(set_limits(allocator, 0, 900 * MIB, 800 * MIB, 700 * MIB));
    expect_rejected(allocator, "hard_limit_mb:600", "device 0, soft_bytes exceeds hard_bytes");
    expect_rejected(allocator, "soft_limit_mb:250", "device 0, keep_bytes exceeds soft_bytes");
    assert_ok(xseg_config_set(allocator, "keep_mb:1,soft_limit_mb:2,hard_limit_mb:3"));
    expect_limits(allocator, 0, 3 * MIB, 2 * MIB, MIB);
}

TEST_ON(contradictory_limits_are_rejected, open_on(1, NULL))
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    assert_error(set_limits(allocator, 0, 2, 3, 1), ARGUMENT, "soft_bytes exceeds hard_bytes");
    assert_error(set_limits(allocator, 0, 9, 3, 4), ARGUMENT, "keep_bytes exceeds soft_bytes");
    assert_error(set_limits(allocator, 0, 3, UINT64_MAX, 4), ARGUMENT,
                 "keep_bytes exceeds hard_bytes");
    assert_error(set_limits(allocator, -1, 3, 2, 1), ARGUMENT, "device -1 does not exist");
    assert_error(set_limits(allocator, 7, 3, 2, 1), ARGUMENT, "device 7 does not exist");
    expect_limits(allocator, 0, UINT64_MAX, UINT64_MAX, 0);
    assert_error(xseg_limits_get(NULL, &scope, &limits), ARGUMENT, "NULL");
    assert_error(xseg_limits_get(allocator, NULL, &limits), ARGUMENT, "scope is NULL");
    assert_error(xseg_limits_set(allocator, &scope, NULL), ARGUMENT, "limits is NULL");
    scope.device = 0;
    limits.struct_size = 3;
    assert_error(xseg_limits_set(allocator, &scope, &limits), ARGUMENT,
                 "struct_size is unknown, 3");
    assert_error(xseg_limits_get(allocator, &scope, &limits), ARGUMENT,
                 "struct_size is unknown, 3");
    limits.struct_size = sizeof(limits);
    scope.one_stream = true;
    assert_error(xseg_limits_get(allocator, &scope, &limits), UNSUPPORTED,
                 "scope selects a stream");
    assert_error(xseg_limits_set(allocator, &scope, &limits), UNSUPPORTED,
                 "scope selects a stream");
}

/* --- Two allocators on a device of 1 GiB, of one process or of two: the neighbor releases idle memory for the requester,
 * because of a soft limit or on request. --- */

#define SECOND UINT64_C(1000000000) /* in nanoseconds */

/* Memory of the neighbor: its peak, its allocated blocks after the peak, and its reserved memory after it has shrunk. */
#define PEAK      (700 * MIB)
#define ALLOCATED (100 * MIB)
#define SHARE     (200 * MIB)
/* A request of the requester: more than the free memory, less than free and idle memory. */
#define BURST (600 * MIB)

static struct xseg_sim_settings settings_of_1_gib(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1 * GIB};

    return settings;
}

static struct xseg_allocator *open_neighbor(const char *config)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .clock = env_clock};
    struct xseg_allocator *allocator = NULL;

    return xseg_open(config, &options, &allocator) == XSEG_OK ? allocator : NULL;
}

/* --- The neighbor; it also runs in a second process, so it has no assertions. --- */

struct neighbor {
    struct xseg_allocator *allocator;
    void *block;
};

/* Allocate PEAK, and free all of it except ALLOCATED. */
static bool allocate_peak(struct neighbor *neighbor)
{
    void *temporary = NULL;

    return xseg_alloc(neighbor->allocator, 0, ALLOCATED, NULL, &neighbor->block) == XSEG_OK &&
           xseg_alloc(neighbor->allocator, 0, PEAK - ALLOCATED, NULL, &temporary) == XSEG_OK &&
           xseg_free(neighbor->allocator, temporary) == XSEG_OK;
}

/* The timer of a service, on the simulated clock. */
static bool pass_second(struct xseg_allocator *allocator)
{
    xseg_sim_advance(SECOND);
    return trim_due(allocator, 1000000) == XSEG_OK;
}

/* Set the soft limit, and run a decay pass. */
static bool limit_to_share(struct neighbor *neighbor)
{
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    limits.soft_bytes = SHARE;
    return xseg_limits_set(neighbor->allocator, env_scope(.device = 0), &limits) == XSEG_OK &&
           pass_second(neighbor->allocator);
}

/* Release idle memory down to SHARE.  Returns whether the trim reaches the target. */
static bool shrink_to_share(struct neighbor *neighbor)
{
    struct xseg_trim_options options = {sizeof(options), .target_bytes = SHARE};
    struct xseg_trim_result result = {sizeof(result)};

    return xseg_trim(neighbor->allocator, NULL, &options, &result) == XSEG_OK &&
           result.remaining <= SHARE && result.released >= PEAK - SHARE - 20 * MIB;
}

static bool end_neighbor(struct neighbor *neighbor)
{
    return xseg_free(neighbor->allocator, neighbor->block) == XSEG_OK &&
           xseg_close(neighbor->allocator) == XSEG_OK;
}

/* --- Two allocators in one process. --- */

static struct neighbor idle;

/* Open the neighbor, `idle`, and the requester, which is returned. */
static struct xseg_allocator *open_two_allocators(const char *config)
{
    const struct xseg_sim_settings settings = settings_of_1_gib();

    assert_ok(xseg_sim_reset(&settings));
    idle.allocator = open_neighbor(config);
    assert_non_null(idle.allocator);
    assert_true(allocate_peak(&idle));
    struct xseg_allocator *requester = open_neighbor(NULL);
    assert_non_null(requester);
    return requester;
}

static void expect_burst(struct xseg_allocator *requester, bool is_served)
{
    void *burst = NULL;
    const xseg_status status = xseg_alloc(requester, 0, BURST, NULL, &burst);

    assert_int_equal(status, is_served ? XSEG_OK : XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_free(requester, burst));
}

/* A test of two allocators, the neighbor `idle` and `requester`. */
#define TEST_OF_TWO(name, config)                                       \
    static void name##_of(struct xseg_allocator *requester);            \
    TEST(name)                                                          \
    {                                                                   \
        struct xseg_allocator *requester = open_two_allocators(config); \
        name##_of(requester);                                           \
        assert_true(end_neighbor(&idle));                               \
        env_close(requester);                                           \
    }                                                                   \
    static void name##_of(struct xseg_allocator *requester)

TEST_OF_TWO(idle_memory_stays_without_a_limit, NULL)
{
    assert_true(pass_second(idle.allocator));
    expect_burst(requester, false);
    assert_int_equal(env_reserved(idle.allocator), PEAK);
}

TEST_OF_TWO(soft_limit_releases_memory_for_the_neighbor, "soft_limit_mb:200")
{
    assert_true(pass_second(idle.allocator));
    assert_true(env_reserved(idle.allocator) <= SHARE);
    expect_burst(requester, true);
}

TEST_OF_TWO(soft_limit_can_be_set_on_demand, NULL)
{
    expect_burst(requester, false);
    assert_true(limit_to_share(&idle));
    expect_burst(requester, true);
    /* A soft limit never denies a request, so the neighbor can reach its peak again. */
    env_empty_cache(requester);
    env_free(idle.allocator, env_alloc(idle.allocator, PEAK - ALLOCATED, NULL));
}

TEST_OF_TWO(decay_keeps_device_memory_free_for_others, NULL)
{
    /* The peak exceeds the memory that the key permits. */
    assert_ok(xseg_config_set(idle.allocator, "device_free_min_mb:400"));
    void *block = env_alloc(requester, 200 * MIB, NULL);
    assert_true(pass_second(idle.allocator));
    assert_true(env_reserved(idle.allocator) <= (1024 - 400 - 200) * MIB);
    env_free(requester, block);
}

static bool shrink_neighbor(void *context, const struct xseg_oom_info *oom)
{
    return oom->attempt == 0 && shrink_to_share(context);
}

TEST_OF_TWO(neighbor_shrinks_on_request, NULL)
{
    const uint64_t id = env_observe(requester, .context = &idle, .on_low_memory = shrink_neighbor);
    expect_burst(requester, true);
    assert_int_equal(env_stats(requester).num_ooms, 0);
    assert_true(env_reserved(idle.allocator) <= SHARE);
    assert_ok(xseg_observer_remove(requester, id));
}

/* --- Two processes. --- */

/* A second process that executes commands of one byte and responds with y or n. */
static void run_neighbor(int socket, const struct xseg_sim_settings *settings)
{
    struct neighbor neighbor = {0};
    char command;

    if (xseg_sim_reset(settings) != XSEG_OK || !(neighbor.allocator = open_neighbor(NULL)))
        _exit(1);
    while (read(socket, &command, 1) == 1) {
        const bool succeeds = command == 'b'   ? allocate_peak(&neighbor)
                              : command == 'l' ? limit_to_share(&neighbor)
                              : command == 's' ? shrink_to_share(&neighbor)
                                               : end_neighbor(&neighbor);

        if (write(socket, succeeds ? "y" : "n", 1) != 1)
            _exit(2);
    }
    /* The last process removes the simulated machine; after a failure of the test that is this process. */
    _exit(xseg_sim_reset(NULL) == XSEG_OK ? 0 : 3);
}

static bool call_neighbor(const struct process *process, char command)
{
    return write(process->socket, &command, 1) == 1 && process_responds_yes(process);
}

/* Another process and an allocator of this process on one device of 1 GiB; NULL if processes cannot share a device. */
static struct xseg_allocator *start_process(struct process *process)
{
    const struct xseg_sim_settings settings = settings_of_1_gib();

    if (!process_start(process, &settings, run_neighbor))
        return NULL;
    struct xseg_allocator *requester = open_neighbor(NULL);
    assert_non_null(requester);
    assert_true(call_neighbor(process, 'b'));
    return requester;
}

static void end_process(const struct process *process, struct xseg_allocator *requester)
{
    const struct xseg_sim_settings unshared = settings_of_1_gib();

    assert_true(call_neighbor(process, 'e'));
    process_end(process, requester, &unshared);
}

static bool shrink_process(void *context, const struct xseg_oom_info *oom)
{
    return oom->attempt == 0 && call_neighbor(context, 's');
}

/* The neighbor shrinks because of a soft limit, or on request. */
TEST(other_process_shrinks)
{
    for (unsigned on_request = 0; on_request < 2; on_request++) {
        struct process process = {0};
        struct xseg_allocator *requester = start_process(&process);

        if (requester == NULL)
            return;
        expect_burst(requester, false);
        if (on_request)
            (void)env_observe(requester, .context = &process, .on_low_memory = shrink_process);
        else
            assert_true(call_neighbor(&process, 'l'));
        expect_burst(requester, true);
        assert_int_equal(env_stats(requester).num_ooms, 1);
        end_process(&process, requester);
    }
}
