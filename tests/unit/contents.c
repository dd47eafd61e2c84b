/* SPDX-License-Identifier: MIT */
/* Contents of device memory are saved to the host or a file, and restored. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/mutex.h"
#include "tests/support/device_context.h"
#include "vmm/contents.h"
#include "vmm/segment.h"

#define BYTES (200 * XSEG_MIB) /* for a file four buffers of 64 MiB, the last one not full */

/* Errors of the driver. */
enum { OUT_OF_MEMORY = 2, UNKNOWN_ERROR = 999 };

static struct xseg_mutex memory_lock;
static struct xseg_page_cache pages;
static struct xseg_segment segment;
static struct xseg_contents contents;
static xseg_stream stream;
static char path[64];

FIXTURE(set_up)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_page_source source = {0};

    xseg_mutex_init(&memory_lock, XSEG_RANK_DEVICE_MEMORY);
    settings.real_bytes = true;
    context_open(&settings);
    xseg_page_cache_init(&pages, &context, &unreleased);
    assert_ok(xseg_segment_reserve(&segment, &context, &pages, BYTES, 20 * XSEG_MIB));
    assert_ok(xseg_segment_map(&segment, 0, segment.granules, &source));
    assert_ok(xseg_driver_stream_create(&context, &stream));
    (void)snprintf(path, sizeof(path), "%s", P_tmpdir "/xseg-contents-XXXXXX");
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(close(file) + unlink(path), 0);
}

FIXTURE(tear_down)
{
    uint32_t unmapped = 0;

    assert_ok(xseg_segment_unmap(&segment, 0, segment.granules, false, &unmapped));
    assert_ok(xseg_driver_stream_destroy(&context, stream));
    xseg_page_cache_fini(&pages);
    assert_ok(xseg_segment_destroy(&segment));
    context_close();
    xseg_mutex_fini(&memory_lock);
}

static void close_contents(void)
{
    xseg_mutex_lock(&memory_lock);
    xseg_contents_close(&contents);
    xseg_mutex_unlock(&memory_lock);
}

static void release_buffer(void)
{
    xseg_mutex_lock(&memory_lock);
    xseg_contents_release_buffer(&contents);
    xseg_mutex_unlock(&memory_lock);
}

static unsigned char *memory(void)
{
    return (unsigned char *)(uintptr_t)segment.base;
}

static void write_pattern(void)
{
    for (uint64_t at = 0; at < BYTES; at += 3 * XSEG_MIB + 77)
        memory()[at] = (unsigned char)(at / 1000 + 1);
    memset(memory() + 64 * XSEG_MIB - 9000, 5, 18000); /* across the end of a buffer */
    memory()[BYTES - 1] = 200;
}

static void expect_pattern(void)
{
    uint64_t sum = 0;

    for (uint64_t at = 0; at < BYTES; at += 3 * XSEG_MIB + 77)
        assert_int_equal(memory()[at], (unsigned char)(at / 1000 + 1));
    for (uint64_t at = 64 * XSEG_MIB - 9000; at < 64 * XSEG_MIB + 9000; at++)
        sum += memory()[at];
    assert_int_equal(sum, 5 * 18000);
    assert_int_equal(memory()[64 * XSEG_MIB + 9000], 0);
    assert_int_equal(memory()[BYTES - 1], 200);
}

/* Save or load the contents in two parts whose boundary is not that of a page. */
static xseg_status copy_contents(bool saves)
{
    xseg_status (*copy)(struct xseg_contents *, uint64_t, uint64_t, uint64_t) =
        saves ? xseg_contents_save : xseg_contents_load;
    const uint64_t boundary = 70 * XSEG_MIB + 4096;
    xseg_status status = copy(&contents, 0, segment.base, boundary);

    if (status == XSEG_OK)
        status = copy(&contents, boundary, segment.base + boundary, BYTES - boundary);
    return status == XSEG_OK ? xseg_contents_wait(&contents) : status;
}

TEST(contents_are_restored)
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_HOST, XSEG_KEEP_FILE};

    for (unsigned i = 0; i < COUNT_OF(keep); i++) {
        (void)set_up(NULL);
        write_pattern();
        assert_ok(xseg_contents_open(&contents, &unreleased, stream, keep[i], path, BYTES));
        assert_ok(copy_contents(true));
        release_buffer();
        memset(memory(), 0xaa, BYTES);
        assert_ok(xseg_contents_acquire_buffer(&contents));
        assert_ok(copy_contents(false));
        expect_pattern();
        close_contents();
        assert_int_not_equal(access(path, F_OK), 0);
        (void)tear_down(NULL);
    }
}

TEST_WITH(truncated_file_is_detected, set_up, tear_down)
{
    memset(memory(), 6, BYTES);
    assert_ok(xseg_contents_open(&contents, &unreleased, stream, XSEG_KEEP_FILE, path, BYTES));
    assert_ok(copy_contents(true));
    assert_int_equal(truncate(path, 100 * XSEG_MIB), 0);
    assert_error(copy_contents(false), FILE, "file has been truncated");
    close_contents();
}

TEST_WITH(pinned_memory_that_fails_to_free_becomes_unreleased, set_up, tear_down)
{
    assert_ok(xseg_contents_open(&contents, &unreleased, stream, XSEG_KEEP_HOST, NULL, BYTES));
    assert_ok(xseg_sim_fail("cuMemFreeHost", 1, UNKNOWN_ERROR));
    close_contents();
    assert_int_equal(unreleased.count, 1);
    assert_int_equal(xseg_unreleased_bytes(&unreleased), 0); /* not memory of the device */
}

/* The callers of open and acquire hold no lock, so a failed call must not free a buffer, which could add a record of unreleased
 * memory. */
TEST_WITH(failed_open_frees_no_buffer, set_up, tear_down)
{
    const struct xseg_sim_fault second_alloc_fails = {
        sizeof(second_alloc_fails), .call = "cuMemHostAlloc", .nth = 2, .error = OUT_OF_MEMORY};
    const struct xseg_sim_fault free_fails = {sizeof(free_fails), .call = "cuMemFreeHost", .nth = 1,
                                              .error = UNKNOWN_ERROR};

    assert_ok(xseg_sim_fault_set(0, &second_alloc_fails));
    assert_ok(xseg_sim_fault_set(1, &free_fails));
    /* A copy of 2 GiB on the host has two buffers. */
    assert_int_equal(
        xseg_contents_open(&contents, &unreleased, stream, XSEG_KEEP_HOST, NULL, 2 * XSEG_GIB),
        XSEG_ERR_HOST_MEMORY);
    assert_int_equal(unreleased.count, 0);
    close_contents();
    assert_int_equal(unreleased.count, 1);
}

TEST_WITH(acquire_succeeds_after_a_failed_acquire, set_up, tear_down)
{
    assert_ok(xseg_contents_open(&contents, &unreleased, stream, XSEG_KEEP_FILE, path, BYTES));
    release_buffer();
    assert_ok(xseg_sim_fail("cuMemHostAlloc", 1, OUT_OF_MEMORY));
    assert_int_equal(xseg_contents_acquire_buffer(&contents), XSEG_ERR_HOST_MEMORY);
    assert_ok(xseg_contents_acquire_buffer(&contents));
    close_contents();
}
