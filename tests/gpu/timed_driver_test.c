/* SPDX-License-Identifier: MIT */
/*
 * Statistics of libgpu-timed.so, compared with those of the simulator for the same calls.
 *
 *     gpu-timed-test TIMED SIMULATOR
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/symbol.h"
#include "tests/support/test.h"
#include "xseg/sim.h"
#include "xseg/xseg.h"

#define ROWS   256
#define BLOCKS 40u

struct row {
    char call[64], bytes[32];
    uint64_t calls, total, median, p99, max;
    char modeled[32];
};

static const char *timed_driver, *simulator;
static struct row rows[ROWS];
static size_t row_count;

static const struct row *find_row(const char *call, const char *bytes)
{
    for (size_t i = 0; i < row_count; i++)
        if (strcmp(rows[i].call, call) == 0 && strcmp(rows[i].bytes, bytes) == 0)
            return &rows[i];
    return NULL;
}

static void read_rows(const char *path)
{
    char line[512];
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_string_equal(line,
                        "call\tbytes\tcalls\ttotal_ns\tmedian_ns\tp99_ns\tmax_ns\tmodeled_ns\n");
    for (row_count = 0; row_count < ROWS && fgets(line, sizeof(line), file) != NULL; row_count++) {
        struct row *row = &rows[row_count];

        assert_int_equal(sscanf(line,
                                "%63s %31s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                                " %31s",
                                row->call, row->bytes, &row->calls, &row->total, &row->median,
                                &row->p99, &row->max, row->modeled),
                         8);
    }
    assert_int_equal(fclose(file), 0);
}

static void allocate_and_trim(struct xseg_allocator *allocator, size_t bytes)
{
    void *blocks[BLOCKS];
    struct xseg_trim_options options = {sizeof(options)};

    for (unsigned i = 0; i < BLOCKS; i++)
        if (xseg_alloc(allocator, 0, bytes, NULL, &blocks[i]) != XSEG_OK)
            _exit(2);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (xseg_free(allocator, blocks[i]) != XSEG_OK)
            _exit(3);
    options.wait = true;
    if (xseg_trim(allocator, NULL, &options, NULL) != XSEG_OK)
        _exit(4);
}

static void *allocate_large(void *allocator)
{
    for (unsigned i = 0; i < 20; i++)
        allocate_and_trim(allocator, 20 * MIB);
    return NULL;
}

/* Uses an allocator on the timed simulator, and writes the simulator's own counts to a file. */
static void run_child(bool has_two_threads, const char *counts_path)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator;
    pthread_t thread;
    uint64_t (*calls)(const char *);
    uint64_t (*driver_time)(void);

    options.driver = timed_driver;
    if (xseg_open("expandable_segments:True", &options, &allocator) != XSEG_OK)
        _exit(1);
    if (has_two_threads && pthread_create(&thread, NULL, allocate_large, allocator) != 0)
        _exit(5);
    allocate_and_trim(allocator, 4096);
    allocate_and_trim(allocator, 20 * MIB);
    allocate_and_trim(allocator, 6 * MIB);
    if (has_two_threads)
        (void)pthread_join(thread, NULL);
    if (xseg_close(allocator) != XSEG_OK)
        _exit(6);

    void *library = dlopen(simulator, RTLD_NOW | RTLD_NOLOAD);
    FILE *file = fopen(counts_path, "w");
    if (library == NULL || file == NULL)
        _exit(7);
    (void)symbol_find(library, "xseg_sim_calls", &calls);
    (void)symbol_find(library, "xseg_sim_driver_time", &driver_time);
    (void)fprintf(file, "all %" PRIu64 "\n", driver_time());
    static const char *const names[] = {
        "cuInit",           "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemAddressReserve",
        "cuMemAddressFree", "cuMemCreate",      "cuMemRelease",    "cuMemMap",
        "cuMemUnmap",       "cuMemSetAccess",   "cuMemGetInfo",    "cuStreamSynchronize"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)fprintf(file, "%s %" PRIu64 "\n", names[i], calls(names[i]));
    (void)fclose(file);
    exit(0);
}

/* Runs run_child() in a process, whose exit writes the table; compares the table with the simulator's counts; and returns the
 * driver time of the simulator. */
static uint64_t time_and_compare(bool has_two_threads)
{
    char table_path[] = P_tmpdir "/gpu-timed-XXXXXX", counts_path[] = P_tmpdir "/gpu-timed-XXXXXX",
         name[64];
    int fds[2] = {mkstemp(table_path), mkstemp(counts_path)}, status = 0;
    uint64_t count, driver_time = 0;

    assert_true(fds[0] >= 0 && fds[1] >= 0);
    assert_int_equal(setenv("GPU_TIMED_OUT", table_path, 1), 0);
    const pid_t child = fork();
    if (child == 0)
        run_child(has_two_threads, counts_path);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    read_rows(table_path);
    FILE *file = fopen(counts_path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "all %" SCNu64, &driver_time), 1);
    while (fscanf(file, "%63s %" SCNu64, name, &count) == 2) {
        const struct row *row = find_row(name, "all");

        assert_int_equal(row == NULL ? 0 : row->calls, count);
    }
    (void)fclose(file);
    (void)unlink(table_path);
    (void)unlink(counts_path);
    (void)close(fds[0]);
    (void)close(fds[1]);
    return driver_time;
}

TEST(counts_equal_those_of_the_simulator)
{
    uint64_t modeled = 0;

    const uint64_t driver_time = time_and_compare(false);
    for (size_t i = 0; i < row_count; i++) {
        assert_true(rows[i].median <= rows[i].p99 && rows[i].p99 <= rows[i].max);
        assert_true(rows[i].max <= rows[i].total);
        modeled += strcmp(rows[i].bytes, "all") == 0 ? strtoull(rows[i].modeled, NULL, 10) : 0;
    }
    assert_true(driver_time > 0);
    assert_int_equal(modeled, driver_time);
}

TEST(calls_of_all_threads_are_counted)
{
    (void)time_and_compare(true);
    /* The second thread requests 20 times 40 blocks of 20 MiB, which reuse some pages. */
    assert_true(find_row("cuMemCreate", "all")->calls > 100);
}

/* Each size has a row, and cuMemRelease(), which has no size, has the row of the memory that it releases.  Pages have 20 MiB
 * (20971520 bytes) or 2 MiB (2097152 bytes). */
TEST(each_size_has_separate_counts)
{
    (void)time_and_compare(false);
    for (size_t i = 0; i < row_count; i++) {
        uint64_t sum = 0;

        if (strcmp(rows[i].bytes, "all") != 0 || find_row(rows[i].call, "20971520") == NULL)
            continue;
        for (size_t j = 0; j < row_count; j++)
            if (j != i && strcmp(rows[j].call, rows[i].call) == 0)
                sum += rows[j].calls;
        assert_int_equal(sum, rows[i].calls);
    }
    assert_int_equal(find_row("cuMemRelease", "20971520")->calls,
                     find_row("cuMemCreate", "20971520")->calls);
    assert_int_equal(find_row("cuMemRelease", "2097152")->calls,
                     find_row("cuMemCreate", "2097152")->calls);
}

TEST(a_missing_driver_is_an_error_of_open)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator;
    int status = 0;

    const pid_t child = fork();
    if (child == 0) {
        (void)setenv("GPU_TIMED_DRIVER", "/no/such/driver", 1);
        (void)unsetenv("GPU_TIMED_OUT");
        options.driver = timed_driver;
        _exit(xseg_open(NULL, &options, &allocator) == XSEG_ERR_NO_DRIVER ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    timed_driver = argv[1];
    simulator = argv[2];
    (void)setenv("GPU_TIMED_DRIVER", simulator, 1);
    return test_run();
}
