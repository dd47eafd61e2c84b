/* SPDX-License-Identifier: MIT */
/* Contents of memory are saved to the host or a file, and restored. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/mutex.h"
#include "tests/support/env.h"
#include "vmm/contents.h"
#include "vmm/context.h"
#include "vmm/segment.h"

#define BYTES (200 * XSEG_MIB) /* several buffers, the last one not full */

struct fixture {
    struct xseg_driver *driver;
    struct xseg_mutex memory_lock;
    struct xseg_context context;
    struct xseg_unreleased_list unreleased;
    struct xseg_page_cache pages;
    struct xseg_segment segment;
    xseg_stream stream;
    char path[64];
};

static void set_up(struct fixture *f)
{
    struct xseg_page_source plain = {.use_small = false};
    struct xseg_sim_settings settings = {sizeof(settings)};
    char why[128];

    memset(f, 0, sizeof(*f));
    xseg_mutex_init(&f->memory_lock, XSEG_RANK_DEVICE_MEMORY);
    settings.real_bytes = true;
    assert_ok(xseg_sim_reset(&settings));
    assert_ok(xseg_driver_open(env_driver(), &f->driver));
    assert_ok(xseg_unreleased_init(&f->unreleased, &f->context));
    assert_ok(xseg_context_open(&f->context, f->driver, 0, &f->unreleased, why, sizeof(why)));
    xseg_page_cache_init(&f->pages, &f->context, &f->unreleased);
    assert_ok(xseg_segment_reserve(&f->segment, &f->context, &f->pages, BYTES, 20 * XSEG_MIB));
    assert_ok(xseg_segment_map(&f->segment, 0, f->segment.granules, &plain));
    assert_ok(xseg_driver_stream_create(&f->context, &f->stream));
    (void)snprintf(f->path, sizeof(f->path), "%s", P_tmpdir "/xseg-contents-XXXXXX");
    const int file = mkstemp(f->path);
    assert_true(file >= 0);
    assert_int_equal(close(file) + unlink(f->path), 0);
}

static void tear_down(struct fixture *f)
{
    uint32_t done = 0;

    assert_ok(xseg_segment_unmap(&f->segment, 0, f->segment.granules, false, &done));
    assert_ok(xseg_driver_stream_destroy(&f->context, f->stream));
    xseg_page_cache_fini(&f->pages);
    assert_ok(xseg_segment_destroy(&f->segment));
    assert_ok(xseg_unreleased_retry(&f->unreleased));
    assert_ok(xseg_driver_release_context(&f->context));
    xseg_unreleased_fini(&f->unreleased);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    xseg_mutex_fini(&f->memory_lock);
}

static void close_contents(struct fixture *f, struct xseg_contents *contents)
{
    xseg_mutex_lock(&f->memory_lock);
    xseg_contents_close(contents);
    xseg_mutex_unlock(&f->memory_lock);
}

static void release_buffer(struct fixture *f, struct xseg_contents *contents)
{
    xseg_mutex_lock(&f->memory_lock);
    xseg_contents_release_buffer(contents);
    xseg_mutex_unlock(&f->memory_lock);
}

static unsigned char *memory_of(const struct fixture *f)
{
    return (unsigned char *)(uintptr_t)f->segment.base;
}

static void write_some(struct fixture *f)
{
    for (uint64_t at = 0; at < BYTES; at += 3 * XSEG_MIB + 77)
        memory_of(f)[at] = (unsigned char)(at / 1000 + 1);
    memset(memory_of(f) + 64 * XSEG_MIB - 9000, 5, 18000); /* across the end of a buffer */
    memory_of(f)[BYTES - 1] = 200;
}

static void expect_written(struct fixture *f)
{
    uint64_t sum = 0;

    for (uint64_t at = 0; at < BYTES; at += 3 * XSEG_MIB + 77)
        assert_int_equal(memory_of(f)[at], (unsigned char)(at / 1000 + 1));
    for (uint64_t at = 64 * XSEG_MIB - 9000; at < 64 * XSEG_MIB + 9000; at++)
        sum += memory_of(f)[at];
    assert_int_equal(sum, 5 * 18000);
    assert_int_equal(memory_of(f)[64 * XSEG_MIB + 9000], 0);
    assert_int_equal(memory_of(f)[BYTES - 1], 200);
}

/* Move the contents in two parts whose border is not a page border. */
static xseg_status move(struct fixture *f, struct xseg_contents *contents, bool saves)
{
    xseg_status (*copy)(struct xseg_contents *, uint64_t, uint64_t, uint64_t) =
        saves ? xseg_contents_save : xseg_contents_load;
    const uint64_t border = 70 * XSEG_MIB + 4096;
    xseg_status status = copy(contents, 0, f->segment.base, border);

    if (status == XSEG_OK)
        status = copy(contents, border, f->segment.base + border, BYTES - border);
    return status == XSEG_OK ? xseg_contents_wait(contents) : status;
}

TEST(contents_are_restored)
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_HOST, XSEG_KEEP_FILE};

    for (unsigned i = 0; i < COUNT_OF(keep); i++) {
        struct xseg_contents contents;
        struct fixture f;

        (void)state;
        set_up(&f);
        write_some(&f);
        assert_ok(xseg_contents_open(&contents, &f.unreleased, f.stream, keep[i], f.path, BYTES));
        assert_ok(move(&f, &contents, true));
        release_buffer(&f, &contents);
        memset(memory_of(&f), 0xaa, BYTES);
        assert_ok(xseg_contents_acquire_buffer(&contents));
        assert_ok(move(&f, &contents, false));
        expect_written(&f);
        close_contents(&f, &contents);
        assert_int_not_equal(access(f.path, F_OK), 0);
        tear_down(&f);
    }
}

TEST(truncated_file_is_detected)
{
    struct xseg_contents contents;
    struct fixture f;

    set_up(&f);
    memset(memory_of(&f), 6, BYTES);
    assert_ok(
        xseg_contents_open(&contents, &f.unreleased, f.stream, XSEG_KEEP_FILE, f.path, BYTES));
    assert_ok(move(&f, &contents, true));
    assert_int_equal(truncate(f.path, 100 * XSEG_MIB), 0);
    env_expect_error(move(&f, &contents, false), XSEG_ERR_FILE, "file has been truncated");
    close_contents(&f, &contents);
    tear_down(&f);
}

TEST(pinned_memory_that_fails_to_free_becomes_unreleased)
{
    struct xseg_contents contents;
    struct fixture f;

    set_up(&f);
    assert_ok(xseg_contents_open(&contents, &f.unreleased, f.stream, XSEG_KEEP_HOST, NULL, BYTES));
    assert_ok(xseg_sim_fail("cuMemFreeHost", 1, 999));
    close_contents(&f, &contents);
    assert_int_equal(f.unreleased.count, 1);
    assert_int_equal(xseg_unreleased_bytes(&f.unreleased), 0); /* not memory of the device */
    tear_down(&f);
}

/* The caller of an open and of an acquire holds no lock, so neither may add a record of unreleased memory. */
TEST(failed_open_frees_no_buffer)
{
    const struct xseg_sim_fault no_second = {sizeof(no_second), .call = "cuMemHostAlloc", .nth = 2,
                                             .error = 2};
    const struct xseg_sim_fault no_free = {sizeof(no_free), .call = "cuMemFreeHost", .nth = 1,
                                           .error = 999};
    struct xseg_contents contents;
    struct fixture f;

    set_up(&f);
    assert_ok(xseg_sim_fault_set(0, &no_second));
    assert_ok(xseg_sim_fault_set(1, &no_free));
    assert_int_equal(
        xseg_contents_open(&contents, &f.unreleased, f.stream, XSEG_KEEP_HOST, NULL, 2 * XSEG_GIB),
        XSEG_ERR_HOST_MEMORY);
    assert_int_equal(f.unreleased.count, 0);
    close_contents(&f, &contents);
    assert_int_equal(f.unreleased.count, 1);
    tear_down(&f);
}

TEST(acquire_succeeds_after_a_failed_acquire)
{
    struct xseg_contents contents;
    struct fixture f;

    set_up(&f);
    assert_ok(
        xseg_contents_open(&contents, &f.unreleased, f.stream, XSEG_KEEP_FILE, f.path, BYTES));
    release_buffer(&f, &contents);
    assert_ok(xseg_sim_fail("cuMemHostAlloc", 1, 2));
    assert_int_equal(xseg_contents_acquire_buffer(&contents), XSEG_ERR_HOST_MEMORY);
    assert_ok(xseg_contents_acquire_buffer(&contents));
    close_contents(&f, &contents);
    tear_down(&f);
}
