/* SPDX-License-Identifier: MIT */
/*
 * The sweep over snapshots and files of metrics: each host allocation fails once, and then onwards, and each call for the
 * file fails once.  Then there is a complete file or no file, no descriptor remains open, and the error of a failed request
 * is unchanged.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/host_faults.h"
#include "tests/support/emulator.h"
#include "tests/support/env.h"
#include "tests/support/wrapped.h"

WRAPPED(int, close, int file);
WRAPPED(int, ftruncate64, int file, off_t bytes);
int __real_open64(const char *path, int flags, ...);
WRAPPED(int, rename, const char *from, const char *to);
WRAPPED(ssize_t, write, int file, const void *bytes, size_t count);
int __wrap_ftruncate(int file, off_t bytes);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode);

static char folder[] = P_tmpdir "/xseg-fault-snapshot-XXXXXX";
static uint64_t calls_until_fault; /* 0: no call fails */
static unsigned file_faults;

/* Count a call for the file.  Returns whether it fails. */
static bool file_call_fails(int error)
{
    if (calls_until_fault == 0 || --calls_until_fault > 0)
        return false;
    file_faults++;
    errno = error;
    return true;
}

/* As on Linux, a failed close() closes the file. */
int __wrap_close(int file)
{
    const bool failed = file_call_fails(EIO);
    const int result = __real_close(file);

    if (failed)
        errno = EIO;
    return failed ? -1 : result;
}

int __wrap_ftruncate(int file, off_t bytes)
{
    return file_call_fails(EIO) ? -1 : __real_ftruncate64(file, bytes);
}

int __wrap_ftruncate64(int file, off_t bytes)
{
    return __wrap_ftruncate(file, bytes);
}

int __wrap_open(const char *path, int flags, mode_t mode)
{
    return file_call_fails(EMFILE) ? -1 : __real_open64(path, flags, mode);
}

int __wrap_open64(const char *path, int flags, mode_t mode)
{
    return __wrap_open(path, flags, mode);
}

int __wrap_rename(const char *from, const char *to)
{
    return file_call_fails(EACCES) ? -1 : __real_rename(from, to);
}

/* Every second successful write is short. */
ssize_t __wrap_write(int file, const void *bytes, size_t count)
{
    static unsigned writes;

    if (file_call_fails(ENOSPC))
        return -1;
    return __real_write(
        file, bytes, calls_until_fault != 0 && writes++ % 2 == 0 && count > 1 ? count / 2 : count);
}

/* Remove the files, which must be complete; returns their number. */
static unsigned remove_files(void)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    unsigned count = 0;

    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL) {
        char path[400], last = 0;

        if (entry->d_name[0] == '.')
            continue;
        assert_null(strstr(entry->d_name, ".part"));
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        const int file = __real_open64(path, O_RDONLY | O_CLOEXEC);
        assert_true(file >= 0);
        assert_true(lseek(file, -1, SEEK_END) > 0);
        assert_int_equal(read(file, &last, 1), 1);
        assert_true(last == '.' || last == '\n');
        assert_int_equal(__real_close(file), 0);
        assert_int_equal(unlink(path), 0);
        count++;
    }
    assert_int_equal(closedir(directory), 0);
    return count;
}

/* An allocator with blocks and segments, two pools, one of them paused, events and stacks. */
struct run {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    void *blocks[3];
};

static struct run set_up_run(void)
{
    struct run run;
    char config[256];

    (void)snprintf(config, sizeof(config),
                   "expandable_segments:True,history:all,history_stacks:all,oom_snapshot:%s",
                   folder);
    run.allocator = env_open(config);
    run.pool = env_pool(run.allocator);
    run.blocks[0] = env_alloc(run.allocator, 30 * MIB, NULL);
    run.blocks[1] = env_alloc(run.allocator, 1000, NULL);
    run.blocks[2] = env_alloc_in(run.allocator, run.pool, 5 * MIB, NULL);
    for (unsigned i = 0; i < 1500; i++)
        env_free(run.allocator, env_alloc(run.allocator, 3 * MIB, NULL));
    assert_ok(xseg_pool_pause(run.pool, XSEG_KEEP_NOTHING, NULL));
    return run;
}

static void tear_down_run(struct run *run)
{
    assert_ok(xseg_pool_resume(run->pool));
    for (unsigned i = 0; i < 3; i++)
        env_free(run->allocator, run->blocks[i]);
    assert_ok(xseg_pool_release(run->pool));
    env_close(run->allocator);
}

/* Write a snapshot with a fault; returns whether the fault was injected. */
static bool write_snapshot(struct run *run, uint64_t host_nth, bool onward, uint64_t file_nth)
{
    struct xseg_snapshot_options options = {sizeof(options)};
    const unsigned open_fds = env_open_fds();
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/requested", folder);
    options.max_ms = file_nth % 2 == 1 ? 2 : 0;
    file_faults = 0;
    host_fault_set(host_nth, onward);
    calls_until_fault = file_nth;
    const xseg_status status = xseg_snapshot(run->allocator, path, &options);
    calls_until_fault = 0;
    host_fault_clear();
    if (status != XSEG_OK) {
        assert_int_equal(status, host_nth != 0 ? XSEG_ERR_HOST_MEMORY : XSEG_ERR_FILE);
        assert_true(host_fault_count() + file_faults > 0);
        assert_true(xseg_error_message(NULL, 0) > 10);
    }
    const unsigned written = remove_files();
    assert_int_equal(written, status == XSEG_OK ? 1 : 0);
    assert_int_equal(env_open_fds(), open_fds);
    return host_fault_count() + file_faults > 0;
}

static void snapshot_fails_without_host_memory(void **state)
{
    struct run run = set_up_run();
    uint64_t nth = 1;

    (void)state;
    for (unsigned onward = 0; onward < 2; onward++) {
        for (nth = 1; write_snapshot(&run, nth, onward != 0, 0); nth++)
            assert_in_range(nth, 1, 10000);
        assert_in_range(nth, 15, 10000);
    }
    tear_down_run(&run);
}

static void snapshot_fails_with_the_file(void **state)
{
    struct run run = set_up_run();
    unsigned failed = 0;

    (void)state;
    /* With max_ms the number of calls depends on the time, so the number of iterations is fixed. */
    for (uint64_t nth = 1; nth < 40; nth++)
        failed += write_snapshot(&run, 0, false, nth);
    assert_in_range(failed, 6, 40);
    tear_down_run(&run);
}

/* If the snapshot of a failed request cannot be written, the error of the request is unchanged. */
static void snapshot_keeps_the_oom_error(void **state)
{
    struct run run = set_up_run();
    char expected[1024], text[1024];
    void *ptr = NULL;
    unsigned missing_snapshots = 0;

    (void)state;
    const uint64_t bytes = UINT64_C(1) << 45;
    assert_int_equal(xseg_alloc(run.allocator, 0, bytes, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    (void)xseg_error_message(expected, sizeof(expected));
    assert_int_equal(remove_files(), 1);
    for (uint64_t nth = 1; nth < 60; nth++) {
        if (nth % 3 == 0) { /* an allocator writes at most three snapshots */
            tear_down_run(&run);
            run = set_up_run();
        }
        /* The trim and the fallback chain allocate host memory before the snapshot, so the first faults occur in them. */
        host_fault_set(nth % 2 == 0 ? nth : 0, true);
        calls_until_fault = nth % 2 == 1 ? nth / 2 + 1 : 0;
        assert_int_equal(xseg_alloc(run.allocator, 0, bytes, NULL, &ptr), XSEG_ERR_NO_MEMORY);
        calls_until_fault = 0;
        host_fault_clear();
        (void)xseg_error_message(text, sizeof(text));
        assert_string_equal(text, expected);
        missing_snapshots += remove_files() == 0;
    }
    assert_in_range(missing_snapshots, 10, 59);
    tear_down_run(&run);
}

/* --- Metrics. --- */

/* Write metrics with a fault; returns whether the fault was injected. */
static bool write_metrics(struct run *run, uint64_t host_nth, bool onward, uint64_t file_nth)
{
    const unsigned open_fds = env_open_fds();
    char path[128], text[16 << 10];
    size_t needed = 0;

    (void)snprintf(path, sizeof(path), "%s/xseg.prom", folder);
    file_faults = 0;
    host_fault_set(host_nth, onward);
    calls_until_fault = file_nth;
    const xseg_status status = xseg_metrics_write(run->allocator, path);
    calls_until_fault = 0;
    host_fault_clear();
    const uint64_t failures = host_fault_count() + file_faults;
    if (status != XSEG_OK)
        assert_int_equal(status, host_nth != 0 ? XSEG_ERR_HOST_MEMORY : XSEG_ERR_FILE);
    assert_int_equal(status != XSEG_OK, failures > 0);
    assert_int_equal(remove_files(), status == XSEG_OK ? 1 : 0);
    assert_int_equal(env_open_fds(), open_fds);
    host_fault_set(host_nth, onward);
    const xseg_status read = xseg_metrics(run->allocator, text, sizeof(text), &needed);
    host_fault_clear();
    assert_int_equal(read, host_fault_count() > 0 ? XSEG_ERR_HOST_MEMORY : XSEG_OK);
    assert_true(read != XSEG_OK || strlen(text) + 1 == needed);
    return failures > 0;
}

static void metrics_fail_with_the_file(void **state)
{
    struct run run = set_up_run();
    uint64_t nth;

    (void)state;
    for (unsigned onward = 0; onward < 2; onward++) {
        for (nth = 1; write_metrics(&run, nth, onward != 0, 0); nth++)
            assert_in_range(nth, 1, 100);
        assert_in_range(nth, 4, 100);
    }
    for (nth = 1; write_metrics(&run, 0, false, nth); nth++)
        assert_in_range(nth, 1, 100);
    assert_in_range(nth, 5, 100); /* open, write, close, rename */
    tear_down_run(&run);
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshot_fails_without_host_memory),
        cmocka_unit_test(snapshot_fails_with_the_file),
        cmocka_unit_test(snapshot_keeps_the_oom_error),
        cmocka_unit_test(metrics_fail_with_the_file),
    };

    /* qemu-user 7.2 uses 24 bytes for each page that was ever mapped: 20 GB for this test. */
    if (is_emulated()) {
        (void)puts("1..0 # SKIP the mappings of this test exceed the memory of an emulator");
        return 0;
    }
    return cmocka_run_group_tests_name("snapshot", tests, set_up, tear_down);
}
