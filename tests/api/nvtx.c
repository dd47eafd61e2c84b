/* SPDX-License-Identifier: MIT */
/* NVTX ranges, counted by an injection library (support/injection.c): every range ends, and a hit has no range. */
#include <stdio.h>

#if XSEG_HAVE_NVTX

#include "tests/support/env.h"
#include "tests/support/trim_due.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/injection.h"

static struct injection_count (*read_count)(const char *name);
static unsigned (*read_unbalanced)(void);

static int load_injection(void **state)
{
    void *const library = dlopen(INJECTION, RTLD_NOW);

    (void)state;
    if (library == NULL || setenv("NVTX_INJECTION64_PATH", INJECTION, 1) != 0)
        return -1;
    void *symbol = dlsym(library, "injection_read");
    memcpy(&read_count, &symbol, sizeof(symbol));
    symbol = dlsym(library, "injection_errors");
    memcpy(&read_unbalanced, &symbol, sizeof(symbol));
    return read_count == NULL || read_unbalanced == NULL;
}

/* Ranges of this name since the previous call; all must have ended. */
static unsigned count_new(const char *name)
{
    static struct {
        const char *name;
        unsigned begun;
    } previous[8];
    const struct injection_count count = read_count(name);
    unsigned i = 0;

    assert_int_equal(count.begun, count.ended);
    assert_int_equal(read_unbalanced(), 0);
    while (previous[i].name != NULL && strcmp(previous[i].name, name) != 0)
        i++;
    assert_in_range(i, 0, COUNT_OF(previous) - 2);
    previous[i].name = name;
    const unsigned begun = count.begun - previous[i].begun;
    previous[i].begun = count.begun;
    return begun;
}

enum { GROWTH, FALLBACK, TRIM, DECAY, PAUSE, RESUME, NAMES };
static const char *const names[NAMES] = {"growth", "fallback", "trim", "decay", "pause", "resume"};

/* expect_new([TRIM] = 1, ...): the number of new ranges of each name, by default 0. */
#define expect_new(...) expect_new_ranges((const unsigned[NAMES]){__VA_ARGS__})

static void expect_new_ranges(const unsigned expected[NAMES])
{
    for (unsigned i = 0; i < NAMES; i++) {
        const unsigned count = count_new(names[i]);

        if (count != expected[i])
            print_error("%u ranges of %s, expected %u\n", count, names[i], expected[i]);
        assert_int_equal(count, expected[i]);
    }
}

static void discard_counts(void)
{
    for (unsigned i = 0; i < NAMES; i++)
        (void)count_new(names[i]);
}

TEST_IN_POOL(calls_have_nvtx_ranges_and_hits_do_not, env_open("expandable_segments:True"))
{
    discard_counts();
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    expect_new([GROWTH] = 1);
    assert_int_equal(read_count("growth").bytes, 30 * MIB);
    /* Hits and frees have no range. */
    for (unsigned i = 0; i < 100; i++) {
        env_free(allocator, block);
        block = env_alloc(allocator, 30 * MIB, NULL);
    }
    expect_new(0);
    /* A trim range has the reserved bytes: 30 MiB are on two pages of 20 MiB. */
    env_free(allocator, block);
    env_empty_cache(allocator);
    expect_new([TRIM] = 1);
    assert_int_equal(read_count("trim").bytes, 40 * MIB);
    /* The pool has one page of 20 MiB. */
    block = env_alloc_in(allocator, pool, 5 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_new([GROWTH] = 1, [PAUSE] = 1);
    assert_int_equal(read_count("pause").bytes, 20 * MIB);
    assert_ok(xseg_pool_resume(pool));
    expect_new([RESUME] = 1);
    assert_int_equal(read_count("resume").bytes, 20 * MIB);
    /* The range of a rejected call ends as well. */
    assert_int_equal(xseg_pool_resume(pool), XSEG_ERR_ARGUMENT);
    expect_new([RESUME] = 1);
    env_free(allocator, block);
}

TEST_ON(nvtx_ranges_of_a_failed_request_end, env_open_mib(100, "expandable_segments:True"))
{
    void *allocated = env_alloc(allocator, 60 * MIB, NULL);
    discard_counts();
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(count_new("fallback"), 1);
    /* The first growth, and one or more for the steps of the fallback chain. */
    assert_in_range(count_new("growth"), 2, 20);
    assert_int_equal(count_new("trim"), 1);
    env_free(allocator, allocated);
}

/* The limit is 500 MiB, so garbage is collected above 250 MiB. */
TEST_ON(garbage_collection_is_a_trim_range,
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.5"))
{
    env_free(allocator, env_alloc(allocator, 260 * MIB, NULL));
    discard_counts();
    /* A hit does not collect garbage. */
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    env_free(allocator, block);
    expect_new(0);
    block = env_alloc(allocator, 270 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_device_free, 1);
    expect_new([GROWTH] = 1, [TRIM] = 1);
    assert_int_equal(read_count("trim").bytes, 260 * MIB);
    env_free(allocator, block);
}

#define SECOND UINT64_C(1000000000) /* in nanoseconds */

TEST_ON(decay_has_an_nvtx_range, env_open_with_clock(NULL, "expandable_segments:True,idle_ms:1000"))
{
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    /* The first pass starts the measurement of ages. */
    assert_ok(trim_due(allocator, 1000));
    discard_counts();
    /* Both pages are older than idle_ms. */
    xseg_sim_advance(2 * SECOND);
    assert_ok(trim_due(allocator, 1000));
    expect_new([DECAY] = 1);
    /* A pass without idle memory has no range. */
    xseg_sim_advance(2 * SECOND);
    assert_ok(trim_due(allocator, 1000000));
    discard_counts();
    xseg_sim_advance(2 * SECOND);
    assert_ok(trim_due(allocator, 1000));
    expect_new(0);
}

TEST_GROUP_FIXTURE(load_injection, NULL)

#else

int main(void)
{
    (void)printf("1..0 # SKIP built without nvtx3/nvToolsExt.h of a CUDA toolkit\n");
    return 0;
}

#endif
