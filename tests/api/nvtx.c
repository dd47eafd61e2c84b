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
static unsigned (*read_others)(void);

static int load_tool(void **state)
{
    void *const tool = dlopen(INJECTION, RTLD_NOW);

    (void)state;
    if (tool == NULL || setenv("NVTX_INJECTION64_PATH", INJECTION, 1) != 0)
        return -1;
    void *symbol = dlsym(tool, "injection_read");
    memcpy(&read_count, &symbol, sizeof(symbol));
    symbol = dlsym(tool, "injection_others");
    memcpy(&read_others, &symbol, sizeof(symbol));
    return read_count == NULL || read_others == NULL;
}

/* Ranges of this name since the previous call; all must have ended. */
static unsigned count_new(const char *name)
{
    static struct {
        const char *name;
        unsigned begun;
    } before[8];
    const struct injection_count count = read_count(name);
    unsigned at = 0;

    assert_int_equal(count.begun, count.ended);
    assert_int_equal(read_others(), 0);
    while (before[at].name != NULL && strcmp(before[at].name, name) != 0)
        at++;
    assert_in_range(at, 0, COUNT_OF(before) - 2);
    before[at].name = name;
    const unsigned begun = count.begun - before[at].begun;
    before[at].begun = count.begun;
    return begun;
}

static const char *const names[] = {"growth", "fallback", "trim", "decay", "pause", "resume"};

/* Expect the number of new ranges of each name, in the order of `names`. */
static void expect(const unsigned expected[COUNT_OF(names)])
{
    for (unsigned i = 0; i < COUNT_OF(names); i++) {
        const unsigned count = count_new(names[i]);

        if (count != expected[i])
            print_error("%u ranges of %s, expected %u\n", count, names[i], expected[i]);
        assert_int_equal(count, expected[i]);
    }
}

static void discard_counts(void)
{
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        (void)count_new(names[i]);
}

TEST_IN_POOL(calls_have_nvtx_ranges_and_hits_do_not, env_open("expandable_segments:True"))
{
    discard_counts();
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    expect((unsigned[]){1, 0, 0, 0, 0, 0});
    assert_int_equal(read_count("growth").bytes, 30 * MIB);
    for (unsigned i = 0; i < 100; i++) {
        env_free(allocator, block);
        block = env_alloc(allocator, 30 * MIB, NULL);
    }
    expect((unsigned[]){0, 0, 0, 0, 0, 0});
    env_free(allocator, block);
    env_empty_cache(allocator);
    expect((unsigned[]){0, 0, 1, 0, 0, 0});
    assert_int_equal(read_count("trim").bytes, 40 * MIB);
    block = env_alloc_in(allocator, pool, 5 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect((unsigned[]){1, 0, 0, 0, 1, 0});
    assert_int_equal(read_count("pause").bytes, 20 * MIB);
    assert_ok(xseg_pool_resume(pool));
    expect((unsigned[]){0, 0, 0, 0, 0, 1});
    assert_int_equal(read_count("resume").bytes, 20 * MIB);
    assert_int_equal(xseg_pool_resume(pool), XSEG_ERR_ARGUMENT);
    expect((unsigned[]){0, 0, 0, 0, 0, 1});
    env_free(allocator, block);
}

TEST_ON(nvtx_ranges_of_a_failed_request_end, env_open_mib(100, "expandable_segments:True"))
{
    void *live = env_alloc(allocator, 60 * MIB, NULL);
    discard_counts();
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(count_new("fallback"), 1);
    assert_in_range(count_new("growth"), 2, 20);
    assert_int_equal(count_new("trim"), 1);
    env_free(allocator, live);
}

TEST_ON(garbage_collection_is_a_trim_range,
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.5"))
{
    env_free(allocator, env_alloc(allocator, 260 * MIB, NULL));
    discard_counts();
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    env_free(allocator, block);
    expect((unsigned[]){0, 0, 0, 0, 0, 0});
    block = env_alloc(allocator, 270 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_device_free, 1);
    expect((unsigned[]){1, 0, 1, 0, 0, 0});
    assert_int_equal(read_count("trim").bytes, 260 * MIB);
    env_free(allocator, block);
}

TEST_ON(decay_has_an_nvtx_range, env_open_with_clock(NULL, "expandable_segments:True,idle_ms:1000"))
{
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(trim_due(allocator, 1000));
    discard_counts();
    xseg_sim_advance(UINT64_C(2000000000));
    assert_ok(trim_due(allocator, 1000));
    expect((unsigned[]){0, 0, 0, 1, 0, 0});
    xseg_sim_advance(UINT64_C(2000000000));
    assert_ok(trim_due(allocator, 1000000));
    discard_counts();
    xseg_sim_advance(UINT64_C(2000000000));
    assert_ok(trim_due(allocator, 1000));
    expect((unsigned[]){0, 0, 0, 0, 0, 0});
}

TEST_GROUP_FIXTURE(load_tool, NULL)

#else

int main(void)
{
    (void)printf("1..0 # SKIP built without nvtx3/nvToolsExt.h of a CUDA toolkit\n");
    return 0;
}

#endif
