/* SPDX-License-Identifier: MIT */
/* Debugging features and zeroed requests.  With real contents, the tests read and write memory instead of kernels. */
#include "tests/support/child.h"
#include "tests/support/env.h"

#include <stdio.h>
#include <string.h>

/* Entry points of the driver for captures, with plain C types. */
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, void **graph);
int cuGraphGetNodes(void *graph, void **nodes, size_t *count);
int cuGraphDestroy(void *graph);

#define UNKNOWN 999 /* CUDA_ERROR_UNKNOWN */

/* Errors and warnings in the log of the allocator that open_logged() opened last. */
static struct {
    unsigned errors, warnings;
    char last[1024];
} logged;

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    logged.errors += level == XSEG_LOG_ERROR;
    logged.warnings += level == XSEG_LOG_WARNING;
    if (level != XSEG_LOG_INFO)
        (void)snprintf(logged.last, sizeof(logged.last), "%s", line);
}

static struct xseg_allocator *open_logged_on(const struct xseg_sim_settings *settings,
                                             const char *config)
{
    const struct xseg_options options = {
        sizeof(options),
        .driver = env_driver(),
        .log = log_line,
    };
    struct xseg_allocator *allocator = NULL;

    memset(&logged, 0, sizeof(logged));
    assert_ok(xseg_sim_reset(settings));
    assert_ok(xseg_open(config, &options, &allocator));
    return allocator;
}

static struct xseg_allocator *open_logged(const char *config)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB,
                                               .real_bytes = true};

    return open_logged_on(&settings, config);
}

static void expect_logged(const char *words)
{
    if (strstr(logged.last, words) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", logged.last, words);
}

static bool is_pattern(const unsigned char *bytes, size_t count)
{
    static const unsigned char pattern[4] = {0xfd, 0xff, 0xfd, 0xff};

    for (size_t i = 0; i < count; i++)
        if (bytes[i] != pattern[i % 4])
            return false;
    return true;
}

static void finish_work(void)
{
    xseg_sim_finish_all();
    xseg_sim_advance(1);
}

static const char *const fill_configs[] = {
    "debug_fill:True",
    "debug_fill:True,expandable_segments:False",
};

TEST_EACH(a_write_after_the_free_is_reported, open_logged(config),
          "debug_fill:True,history:all,history_stacks:all",
          "debug_fill:True,expandable_segments:False")
{
    static const char late[] = {'l', 'a', 't', 'e'};
    unsigned char *ptr = env_alloc(allocator, 3 * MIB, NULL);
    char expected[128];

    memset(ptr, 7, 3 * MIB);
    env_free(allocator, ptr);
    finish_work();
    assert_true(is_pattern(ptr, 3 * MIB));
    memcpy(ptr + 2 * MIB + 104, late, sizeof(late));
    assert_ptr_equal(env_alloc(allocator, 3 * MIB, NULL), ptr);
    assert_int_equal(logged.errors, 1);
    expect_logged("freed memory was overwritten, 4 of 3145728 bytes");
    (void)snprintf(expected, sizeof(expected), "first at %p, offset %zu, found 6c 61 74 65 fd",
                   (void *)(ptr + 2 * MIB + 104), 2 * MIB + 104);
    expect_logged(expected);
    if (i == 0)
        expect_logged(" ms ago by thread ");
    assert_int_equal(env_stats(allocator).overwrites, 1);

    /* The next free fills the block again, so it is reported once. */
    env_free(allocator, ptr);
    assert_ptr_equal(env_alloc(allocator, 3 * MIB, NULL), ptr);
    assert_int_equal(logged.errors, 1);
    env_free(allocator, ptr);
}

/* A block is checked in pieces of 256 KiB: its first and last byte, and the last and first byte of adjacent pieces. */
TEST_ON(every_byte_of_a_block_is_checked, open_logged("debug_fill:True"))
{
    static const size_t offset[] = {0, 256 * KIB - 1, 256 * KIB, 2 * MIB + 511};
    unsigned char *ptr = env_alloc(allocator, 2 * MIB + 512, NULL);

    for (unsigned i = 0; i < COUNT_OF(offset); i++) {
        env_free(allocator, ptr);
        finish_work();
        ptr[offset[i]] ^= 1;
        assert_ptr_equal(env_alloc(allocator, 2 * MIB + 512, NULL), ptr);
        assert_int_equal(env_stats(allocator).overwrites, i + 1);
        expect_logged("1 of 2097664 bytes");
    }
    env_free(allocator, ptr);
}

/* Splits, coalescing, growth, trims and pending blocks cause no report. */
TEST_TIMES(freed_memory_without_writes_is_not_reported, COUNT_OF(fill_configs),
           open_logged(fill_configs[i]))
{
    static const size_t sizes[] = {700, 5000, 300 * KIB, 2 * MIB, 5 * MIB, 1};
    const xseg_stream side = env_stream();
    void *blocks[7] = {NULL};

    for (unsigned k = 0; k < 200; k++) {
        const size_t size = sizes[k % COUNT_OF(sizes)];
        void **slot = &blocks[(size_t)k * 5 % COUNT_OF(blocks)];

        env_free(allocator, *slot);
        *slot = env_alloc(allocator, size, k % 3 == 0 ? side : NULL);
        memset(*slot, (int)k, size);
        if (k % 4 == 0) {
            assert_ok(xseg_sim_launch(side, 100));
            assert_ok(xseg_record_stream(allocator, *slot, side));
        }
        if (k % 40 == 39)
            env_empty_cache(allocator);
    }
    env_free_all(allocator, blocks, sizeof(blocks));
    assert_int_equal(env_stats(allocator).overwrites, 0);
    assert_int_equal(logged.errors, 0);
    /* 200 allocations were checked, some of them by several reads. */
    assert_true(xseg_sim_calls("cuMemcpyDtoHAsync") > 200);
}

TEST_EACH(new_memory_has_the_debug_pattern, open_logged(config), "debug_fill:True",
          "debug_fill:True,expandable_segments:False")
{
    unsigned char *small = env_alloc(allocator, 1000, NULL);
    unsigned char *large = env_alloc(allocator, 25 * MIB, NULL);

    finish_work();
    assert_true(is_pattern(small, 1000));
    assert_true(is_pattern(large, 25 * MIB));
    env_free(allocator, small, large);
}

TEST_ON(pending_block_is_filled_when_it_completes, open_logged("debug_fill:True"))
{
    const xseg_stream side = env_stream();
    unsigned char *ptr = env_alloc(allocator, 4 * KIB, NULL);

    memset(ptr, 7, 4 * KIB);
    env_free_in_use(allocator, ptr, side);
    xseg_sim_advance(1);
    assert_int_equal(ptr[0], 7);
    assert_int_equal(ptr[4 * KIB - 1], 7);
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, env_alloc(allocator, 100, NULL));
    finish_work();
    assert_true(is_pattern(ptr, 4 * KIB));
    ptr[5] = 1;
    assert_ptr_equal(env_alloc(allocator, 4 * KIB, NULL), ptr);
    assert_int_equal(env_stats(allocator).overwrites, 1);
    env_free(allocator, ptr);
}

/* A block is not checked if its fill fails, or if its contents cannot be read. */
TEST_ON(failed_fill_disables_the_check_of_the_block, open_logged("debug_fill:True"))
{
    unsigned char *ptr = env_alloc(allocator, 2 * MIB, NULL);

    memset(ptr, 7, 2 * MIB);
    assert_ok(xseg_sim_fail("cuMemsetD32Async", 1, UNKNOWN));
    env_free(allocator, ptr);
    assert_true(xseg_sim_failed());
    assert_int_equal(ptr[0], 7);
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 0);
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);

    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);
    env_free(allocator, ptr);
    finish_work();
    assert_true(is_pattern(ptr, 2 * MIB));
    ptr[9] = 0;
    /* The second of 8 pieces cannot be read. */
    assert_ok(xseg_sim_fail("cuMemcpyDtoHAsync", 2, UNKNOWN));
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);
    assert_true(xseg_sim_failed());
    assert_int_equal(logged.errors, 0);
    assert_int_equal(env_stats(allocator).overwrites, 0);
    env_free(allocator, ptr);
}

/* After the first check fails, no memory is read any more. */
TEST(pattern_is_not_read_if_the_driver_keeps_no_contents)
{
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB};
    struct xseg_allocator *allocator = open_logged_on(&settings, "debug_fill:True");

    env_free(allocator, env_alloc(allocator, 5000, NULL));
    const uint64_t reads = xseg_sim_calls("cuMemcpyDtoHAsync");
    const uint64_t fills = xseg_sim_calls("cuMemsetD32Async");
    /* The block, and a word that the library wrote to find out whether memory has contents. */
    assert_int_equal(reads, 2);
    for (unsigned i = 0; i < 50; i++)
        env_free(allocator, env_alloc(allocator, 5000, NULL));
    assert_int_equal(xseg_sim_calls("cuMemcpyDtoHAsync"), reads);
    assert_int_equal(xseg_sim_calls("cuMemsetD32Async"), fills + 50);
    assert_int_equal(logged.errors, 0);
    env_close(allocator);
}

/* Only memory that has been filled is checked. */
TEST_ON(debug_fill_can_be_changed_at_any_time, open_logged("debug_fill:False"))
{
    unsigned char *ptr = env_alloc(allocator, 2 * MIB, NULL);

    memset(ptr, 7, 2 * MIB);
    env_free(allocator, ptr);
    assert_ok(xseg_config_set(allocator, "debug_fill:True"));
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);
    env_free(allocator, ptr);
    finish_work();
    assert_true(is_pattern(ptr, 2 * MIB));
    ptr[0] = 0;
    assert_ok(xseg_config_set(allocator, "debug_fill:False"));
    uint64_t calls = xseg_sim_calls(NULL);
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);
    env_free(allocator, ptr);
    assert_int_equal(xseg_sim_calls(NULL), calls);

    /* A block that is freed while the key is off, in memory that was filled before. */
    env_empty_cache(allocator);
    assert_ok(xseg_config_set(allocator, "debug_fill:True"));
    ptr = env_alloc(allocator, 2 * MIB, NULL);
    memset(ptr, 7, 2 * MIB);
    assert_ok(xseg_config_set(allocator, "debug_fill:False"));
    env_free(allocator, ptr);
    assert_ok(xseg_config_set(allocator, "debug_fill:True"));
    assert_ptr_equal(env_alloc(allocator, 2 * MIB, NULL), ptr);
    assert_int_equal(logged.errors, 0);
    env_free(allocator, ptr);
}

/* A graph may write to cached memory of its pool. */
TEST_IN_POOL(debugging_keys_do_not_apply_to_private_pools,
             open_logged("debug_fill:True,unmap_on_free:True,guard_page:True"))
{
    void *ptr = env_alloc_in(allocator, pool, 3 * MIB, NULL);

    memset(ptr, 7, 3 * MIB);
    env_free(allocator, ptr);
    assert_int_equal(xseg_sim_calls("cuMemsetD32Async"), 0);
    assert_int_equal(xseg_sim_calls("cuMemcpyDtoHAsync"), 0);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
    assert_ptr_equal(env_alloc_in(allocator, pool, 3 * MIB, NULL), ptr);
    env_free(allocator, ptr);
}

/* End a capture, which must be valid; returns the number of its nodes. */
static size_t end_capture(xseg_stream stream)
{
    void *graph = NULL;
    size_t nodes = 0;

    assert_int_equal(cuStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cuGraphGetNodes(graph, NULL, &nodes), 0);
    assert_int_equal(cuGraphDestroy(graph), 0);
    return nodes;
}

/* The debugging keys queue no work on a captured stream, and make no call that invalidates a capture. */
TEST_EACH(debugging_keys_do_not_affect_a_capture, open_logged(config), "debug_fill:True",
          "unmap_on_free:True", "guard_page:True,debug_fill:True")
{
    const xseg_stream captured = env_stream(), not_captured = env_stream();
    void *before = env_alloc(allocator, 5000, captured);

    /* Mode 0 is global: an unsafe call on any stream invalidates the capture. */
    env_context_push(0);
    assert_int_equal(cuStreamBeginCapture_v2(captured, 0), 0);
    void *during = env_alloc(allocator, 3 * MIB, captured);
    env_free(allocator, before, during);
    during = env_alloc(allocator, 3 * MIB, captured);
    for (unsigned round = 0; round < 2; round++)
        env_free(allocator, env_alloc(allocator, 2 * MIB, not_captured));
    env_free(allocator, during);
    assert_int_equal(end_capture(captured), 0);
    env_context_pop(0);
    assert_int_equal(logged.errors, 0);

    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

/* Expect that a function aborts its process with a report that contains a word. */
static void expect_report(void (*part)(void), const char *word)
{
    char text[8192];
    const int status = child_run_without_argument(part, text, sizeof(text));

    if (!child_aborted(status) || strstr(text, word) == NULL)
        fail_msg("wait status 0x%x, and\n%s", (unsigned)status, text);
}

static uint64_t address_of(const void *ptr)
{
    return (uint64_t)(uintptr_t)ptr;
}

static void read_after_free(void)
{
    struct xseg_allocator *allocator = env_open("unmap_on_free:True");
    void *ptr = env_alloc(allocator, 5000, NULL);

    env_context_push(0);
    (void)xseg_sim_launch_on(NULL, 1000, address_of(ptr), 5000);
    env_free(allocator, ptr);
    (void)env_alloc(allocator, 5000, NULL);
    (void)xseg_sim_launch_on(NULL, 1000, address_of(ptr), 16);
}

static void write_past_the_end(void)
{
    struct xseg_allocator *allocator = env_open("guard_page:True");
    const uint64_t address = address_of(env_alloc(allocator, 5 * MIB + 512, NULL));

    env_context_push(0);
    (void)env_alloc(allocator, 5 * MIB + 512, NULL);
    (void)xseg_sim_launch_on(NULL, 1000, address, 5 * MIB + 512);
    (void)xseg_sim_launch_on(NULL, 1000, address + 5 * MIB + 500, 16);
}

TEST(accesses_after_a_free_and_past_the_end_fault)
{
    expect_report(read_after_free, "access to an unmapped address");
    expect_report(write_past_the_end, "access to an unmapped address");
}

/* A guarded block begins at the start of its pages, or with guard_page ends at their end. */
static const char *const guard_configs[] = {"unmap_on_free:True", "guard_page:True",
                                            "unmap_on_free:True,guard_page:True"};

TEST_TIMES(guarded_blocks_have_separate_pages, COUNT_OF(guard_configs), env_open(guard_configs[i]))
{
    static const size_t sizes[] = {1, 512, 5000, MIB, 2 * MIB, 5 * MIB + 1};
    void *ptr[COUNT_OF(sizes)];

    for (unsigned k = 0; k < COUNT_OF(sizes); k++) {
        const size_t rounded = (sizes[k] + 511) / 512 * 512;
        const size_t mapped = (rounded + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;

        ptr[k] = env_alloc(allocator, sizes[k], NULL);
        const struct xseg_block_info info = env_block(allocator, ptr[k]);
        assert_int_equal(info.bytes, rounded);
        assert_int_equal(info.requested, sizes[k]);
        assert_int_equal(info.segment_bytes, mapped);
        assert_int_equal(info.segment_mapped, mapped);
        assert_int_equal(address_of(info.segment_base) % (2 * MIB), 0);
        assert_null(info.pool);
        assert_int_equal(info.free_before, i == 0 ? 0 : mapped - rounded);
        assert_int_equal(info.free_after, i == 0 ? mapped - rounded : 0);
        assert_int_equal(xseg_free(allocator, (char *)info.segment_base + mapped),
                         XSEG_ERR_NOT_ALLOCATED);
    }
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, COUNT_OF(sizes));
    assert_int_equal(env_reserved(allocator), xseg_sim_used(0));
    env_free_all(allocator, ptr, sizeof(ptr));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
}

/* The quarantine has the last 2048 to 4096 freed blocks. */
TEST_ON(freed_addresses_are_quarantined, env_open("unmap_on_free:True,history:all"))
{
    char *first = env_alloc(allocator, 5000, NULL), *last = NULL;

    env_free(allocator, first);
    const xseg_status status = xseg_free(allocator, first);
    assert_error(status, NOT_ALLOCATED, "has been freed and unmapped");
    assert_error(status, NOT_ALLOCATED, "; last freed ");
    assert_int_equal(env_block(allocator, first).state, XSEG_BLOCK_UNMAPPED);
    env_empty_cache(allocator);
    assert_error(xseg_free(allocator, first), NOT_ALLOCATED, "has been freed and unmapped");
    for (unsigned i = 0; i < 4200; i++) {
        last = env_alloc(allocator, 5000, NULL);
        env_free(allocator, last);
    }
    assert_error(xseg_free(allocator, first), NOT_ALLOCATED, "not in memory of this");
    assert_error(xseg_free(allocator, last), NOT_ALLOCATED, "has been freed and unmapped");
    /* Each block has 2 MiB of pages and 2 MiB of unmapped addresses. */
    assert_true(env_stats(allocator).address_bytes <= 4097ul * 4 * MIB);
    assert_true(env_stats(allocator).address_bytes >= 2048ul * 4 * MIB);
}

/* The addresses of 300 blocks of 8 MiB exceed 1 GiB. */
TEST_ON(quarantine_ends_before_a_request_fails,
        env_open_sim("unmap_on_free:True", .memory_bytes = GIB, .address_bytes = GIB))
{
    for (unsigned i = 0; i < 300; i++)
        env_free(allocator, env_alloc(allocator, 8 * MIB, NULL));
    assert_int_equal(env_stats(allocator).num_ooms, 0);
}

TEST_ON(free_of_a_guarded_block_waits_for_every_stream, env_open("unmap_on_free:True"))
{
    const xseg_stream stream = env_stream(), side = env_stream();
    void *ptr = env_alloc(allocator, 5000, stream);

    env_context_push(0);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, address_of(ptr), 5000));
    assert_ok(xseg_sim_launch_on(side, UINT64_MAX, address_of(ptr), 5000));
    assert_ok(xseg_record_stream(allocator, ptr, side));
    /* The simulator aborts if work on the memory is still queued. */
    env_free(allocator, ptr);
    env_context_pop(0);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
}

static const struct {
    struct xseg_sim_settings settings;
    const char *config, *words;
} classic_cases[] = {
    {{sizeof(struct xseg_sim_settings)}, "expandable_segments:False,guard_page:True", "guard_page"},
    {{sizeof(struct xseg_sim_settings), .without_vmm = true},
     "guard_page:True",
     "segments are classic, unmap_on_free and guard_page have no effect, "},
};

TEST_TIMES(guarded_blocks_without_expandable_segments_are_logged, COUNT_OF(classic_cases),
           open_logged_on(&classic_cases[i].settings, classic_cases[i].config))
{
    env_free(allocator, env_alloc(allocator, 5000, NULL));
    assert_int_equal(logged.warnings, 1);
    expect_logged(classic_cases[i].words);
    assert_int_equal(env_reserved(allocator), 2 * MIB);
}

TEST_ON(double_free_reports_the_first_free,
        env_open("history:all,history_stacks:all,history_events:16"))
{
    void *ptr = env_alloc(allocator, 8 * MIB, NULL), *later[3];
    char thread[64];

    for (unsigned i = 0; i < 3; i++)
        later[i] = env_alloc(allocator, 2 * MIB, NULL);
    env_free(allocator, ptr, later[0], later[1]);
    (void)snprintf(thread, sizeof(thread), " ms ago by thread %d with", (int)gettid());
    const char *const words[] = {" in cached memory; ", "; last freed ", thread,
                                 "with the block of 8388608 bytes at ", "test-api-debug+0x"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, words[i]);
    /* An address inside the block. */
    assert_error(xseg_record_stream(allocator, (char *)ptr + 7 * MIB, NULL), NOT_ALLOCATED,
                 "with the block of 8388608 bytes at ");
    /* The events of 16 later blocks replace the event of the free. */
    for (unsigned i = 0; i < 16; i++)
        env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, "; check for a double free");
    assert_int_equal(
        xseg_error_message(NULL, 0),
        strlen(
            "xseg_free: block is not allocated, 0x000000000 in cached memory; check for a double "
            "free or an invalid pointer"));
    env_free(allocator, later[2]);
}

TEST_ON(failed_free_is_not_recorded, env_open("history:all"))
{
    const xseg_stream side = env_stream();
    void *ptr = env_alloc(allocator, 5000, NULL);
    char text[1024];

    env_use(allocator, ptr, side);
    assert_ok(xseg_sim_fail("cuEventRecord", 1, UNKNOWN));
    assert_int_equal(xseg_free(allocator, ptr), XSEG_ERR_DRIVER);
    env_free(allocator, env_alloc(allocator, 3000, NULL));
    /* The second free succeeds and is not recorded. */
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    env_free(allocator, ptr);
    assert_int_equal(xseg_free(allocator, ptr), XSEG_ERR_NOT_ALLOCATED);
    (void)xseg_error_message(text, sizeof(text));
    assert_null(strstr(text, "ms ago"));
}

TEST_EACH(zeroed_memory_is_zero, open_logged(config), "expandable_segments:True", "debug_fill:True",
          "guard_page:True")
{
    static const unsigned char zeros[3000];
    const struct xseg_request request = {sizeof(request), .bytes = 2999, .zeroed = true};
    unsigned char *ptr = env_alloc(allocator, 3000, NULL);
    void *zeroed = NULL;

    memset(ptr, 7, 3000);
    env_free(allocator, ptr);
    assert_ok(xseg_alloc_with(allocator, &request, &zeroed));
    if (i < 2)
        assert_ptr_equal(zeroed, ptr);
    finish_work();
    assert_memory_equal(zeroed, zeros, 2999);
    env_free(allocator, zeroed);

    /* If the fill fails, the block is freed. */
    assert_ok(xseg_sim_fail("cuMemsetD32Async", 1, UNKNOWN));
    zeroed = NULL;
    assert_error(xseg_alloc_with(allocator, &request, &zeroed), DRIVER, "cuMemsetD32Async");
    assert_null(zeroed);
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(env_stats(allocator).requested_bytes[XSEG_STAT_ALL].current, 0);
}

TEST_ON(zeroing_runs_after_the_queued_work_of_the_stream, open_logged("expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    unsigned char *ptr = env_alloc(allocator, 3000, stream);

    memset(ptr, 7, 3000);
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_free(allocator, ptr);
    void *zeroed = env_alloc_with(allocator, .bytes = 3000, .stream = stream, .zeroed = true);
    assert_ptr_equal(zeroed, ptr);
    assert_int_equal(ptr[0], 7);
    finish_work();
    assert_int_equal(ptr[0], 0);
    assert_int_equal(ptr[2999], 0);
    env_free(allocator, ptr);
}

TEST_ON(zeroing_in_a_capture_is_a_node_of_the_graph, open_logged("expandable_segments:True"))
{
    const xseg_stream stream = env_stream();

    env_context_push(0);
    assert_int_equal(cuStreamBeginCapture_v2(stream, 0), 0);
    void *ptr = env_alloc_with(allocator, .bytes = 3000, .stream = stream, .zeroed = true);
    assert_int_equal(end_capture(stream), 1);
    env_context_pop(0);
    env_free(allocator, ptr);
}

/* The structure of the caller ends before `zeroed`, whose bytes are not read. */
TEST_ON(requests_of_an_older_header_are_accepted, env_open(NULL))
{
    struct xseg_request request = {sizeof(request), .bytes = 3000, .zeroed = true};
    void *ptr = NULL;

    request.struct_size = offsetof(struct xseg_request, zeroed);
    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    assert_int_equal(xseg_sim_calls("cuMemsetD32Async"), 0);
    env_free(allocator, ptr);
    request.struct_size = offsetof(struct xseg_request, alignment);
    assert_int_equal(xseg_alloc_with(allocator, &request, &ptr), XSEG_ERR_ARGUMENT);
}

TEST_ON(requests_of_a_newer_header_are_accepted_if_new_members_are_zero, env_open(NULL))
{
    struct {
        struct xseg_request known;
        uint64_t new_member;
    } newer = {.known = {.struct_size = sizeof(newer), .bytes = 3000}, .new_member = 1};
    void *ptr = NULL;

    assert_int_equal(xseg_alloc_with(allocator, &newer.known, &ptr), XSEG_ERR_ARGUMENT);
    assert_null(ptr);
    newer.new_member = 0;
    assert_ok(xseg_alloc_with(allocator, &newer.known, &ptr));
    env_free(allocator, ptr);
}
