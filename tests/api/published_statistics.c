/* SPDX-License-Identifier: MIT */
/* The key publish: contents, updates and lifetime of the file that other processes read. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/published.h"
#include "tests/support/env.h"
#include "tests/support/null_registrar.h"
#include "tests/support/trim_due.h"
#include "xseg/stats.h"

/* The contents of the file at the last read_sample(). */
static struct xseg_published published;

/* More than the memory of a device. */
#define TOO_MANY_BYTES ((size_t)1 << 45)

/* Count the published files among the descriptors of this process; *file is the last descriptor. */
static unsigned find_files(int *file)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    unsigned count = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        char target[64] = "";

        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
            strcmp(target, "/memfd:xseg-top (deleted)") == 0) {
            *file = (int)strtol(entry->d_name, NULL, 10);
            count++;
        }
    }
    assert_int_equal(closedir(folder), 0);
    return count;
}

/* Read the only file; returns its current sample. */
static const struct xseg_published_sample *read_sample(void)
{
    int file = -1;

    assert_int_equal(find_files(&file), 1);
    assert_int_equal(pread(file, &published, sizeof(published), 0), sizeof(published));
    return &published.samples[published.sequence % 2];
}

/* Longer than the minimum interval between two samples, 10 ms. */
static void sleep_12_ms(void)
{
    const struct timespec duration = {0, 12000000};

    (void)nanosleep(&duration, NULL);
}

/* Wait until a trim with due_only publishes a new sample; its interval is at least 100 times the duration of a measurement. */
static void wait_for_sample(struct xseg_allocator *allocator)
{
    (void)read_sample();
    const uint64_t sequence = published.sequence;

    for (unsigned i = 0; i < 5000 && published.sequence == sequence; i++) {
        sleep_12_ms();
        assert_ok(trim_due(allocator, 1));
        (void)read_sample();
    }
    assert_true(published.sequence > sequence);
}

static const struct xseg_published_pool *find_pool(const struct xseg_published_sample *sample,
                                                   const char *label)
{
    for (uint32_t i = 0; i < sample->pool_count; i++)
        if (strcmp(sample->pools[i].label, label) == 0)
            return &sample->pools[i];
    return NULL;
}

TEST_ON(no_file_is_published_without_the_key, env_open("publish:False"))
{
    int file = -1;

    assert_int_equal(find_files(&file), 0);
}

TEST(header_identifies_the_process)
{
    struct xseg_allocator *allocator = env_open("publish:True");
    struct stat info;
    int file = -1;

    const struct xseg_published_sample *sample = read_sample();
    assert_memory_equal(published.magic, "xseg-top", 8);
    assert_int_equal(published.version, XSEG_PUBLISHED_VERSION);
    assert_int_equal(published.pid, getpid());
    assert_true(published.start_ticks > 0);
    assert_int_equal(published.bytes, sizeof(published));
    assert_int_equal(sample->device_count, 0);
    assert_true(sample->time_ns > 0);
    assert_int_equal(find_files(&file), 1);
    assert_int_equal(fstat(file, &info), 0);
    assert_int_equal(info.st_size, sizeof(published));
    assert_int_equal(fcntl(file, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
                     F_SEAL_SHRINK | F_SEAL_GROW);
    env_close(allocator);
    assert_int_equal(find_files(&file), 0);
}

static void expect_equal_statistics(struct xseg_allocator *allocator)
{
    const struct xseg_published_device *device = &read_sample()->devices[0];
    const struct xseg_statistics stats = env_stats(allocator);

    assert_int_equal(device->allocated, stats.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(device->pending,
                     stats.active_bytes[XSEG_STAT_ALL].current - device->allocated);
    assert_int_equal(device->reserved, stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(device->cached, device->reserved - device->allocated - device->pending);
    assert_int_equal(device->allocated_peak, stats.allocated_bytes[XSEG_STAT_ALL].peak);
    assert_int_equal(device->reserved_peak, stats.reserved_bytes[XSEG_STAT_ALL].peak);
    assert_int_equal(device->ooms, stats.num_ooms);
    assert_int_equal(device->rejections, stats.num_oom_rejections);
    assert_int_equal(device->retries, stats.num_alloc_retries);
    assert_int_equal(device->total, stats.device_bytes);
    assert_int_equal(device->limit, stats.limit_bytes);
    assert_int_equal(device->page_cache, stats.idle_page_bytes);
    assert_int_equal(device->unreleased, stats.unreleased_bytes);
    assert_int_equal(device->paused, stats.paused_bytes);
    assert_int_equal(device->registered, stats.registered_bytes);
}

TEST_ON(registered_bytes_are_reported_by_pool, env_open("publish:True,expandable_segments:True"))
{
    const struct xseg_registrar registrar = null_registrar(true);
    struct xseg_pool *pool = env_pool(allocator);
    uint64_t id[4];

    char *const default_block = env_alloc(allocator, 30 * MIB, NULL);
    char *const pool_block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_ok(xseg_register(allocator, default_block, 10 * MIB, &registrar, &id[0]));
    assert_ok(xseg_register(allocator, pool_block, 50 * MIB, &registrar, &id[1]));
    /* Registrations are published immediately; a byte counts once for each registration. */
    assert_ok(xseg_register(allocator, pool_block, 20 * MIB, &registrar, &id[2]));
    expect_equal_statistics(allocator);
    assert_int_equal(find_pool(read_sample(), "default")->registered, 10 * MIB);
    assert_int_equal(find_pool(read_sample(), "1")->registered, 70 * MIB);
    /* Memory of a released pool stays registered. */
    env_free(allocator, pool_block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_register(allocator, default_block, MIB, &registrar, &id[3]));
    expect_equal_statistics(allocator);
    assert_int_equal(find_pool(read_sample(), "retired")->registered, 70 * MIB);
    for (unsigned i = 0; i < 4; i++)
        assert_ok(xseg_unregister(allocator, id[i]));
    env_free(allocator, default_block);
}

TEST_IN_POOL(published_values_equal_the_statistics, env_open("publish:True,page_cache_mb:100"))
{
    xseg_stream stream = env_stream();

    void *const block = env_alloc(allocator, 30 * MIB, NULL);
    expect_equal_statistics(allocator);
    void *const pending = env_alloc(allocator, 5 * MIB, NULL);
    void *const pool_block = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    expect_equal_statistics(allocator);
    assert_int_equal(read_sample()->device_count, 1);
    assert_int_equal(read_sample()->pool_count, 2);
    const struct xseg_published_pool *row = find_pool(read_sample(), "default");
    assert_non_null(row);
    assert_int_equal(row->allocated, 35 * MIB);
    assert_int_equal(row->kind, XSEG_PUBLISHED_DEFAULT);
    row = find_pool(read_sample(), "1");
    assert_non_null(row);
    assert_int_equal(row->allocated, 3 * MIB);
    assert_int_equal(row->reserved, 20 * MIB);
    assert_int_equal(row->cached, 17 * MIB);
    assert_int_equal(row->kind, XSEG_PUBLISHED_PRIVATE);
    assert_int_equal(row->id, 1);
    /* A block that another stream uses is pending. */
    env_free_in_use(allocator, pending, stream);
    wait_for_sample(allocator);
    expect_equal_statistics(allocator);
    assert_int_equal(read_sample()->devices[0].pending, 5 * MIB);
    assert_int_equal(find_pool(read_sample(), "default")->pending, 5 * MIB);
    assert_int_equal(env_try_alloc(allocator, TOO_MANY_BYTES, NULL), XSEG_ERR_NO_MEMORY);
    expect_equal_statistics(allocator);
    assert_int_equal(read_sample()->devices[0].ooms, 1);
    env_free(allocator, block, pool_block);
    env_empty_cache(allocator);
    expect_equal_statistics(allocator);
}

TEST_ON(rejection_is_published_immediately, env_open("publish:True,throw_on_cudamalloc_oom:True"))
{
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    for (uint64_t i = 1; i < 4; i++) {
        assert_int_equal(env_try_alloc(allocator, TOO_MANY_BYTES, NULL), XSEG_ERR_NO_MEMORY);
        assert_int_equal(read_sample()->devices[0].rejections, i);
        assert_int_equal(read_sample()->devices[0].ooms, 0);
        expect_equal_statistics(allocator);
    }
}

TEST_ON(pool_names_are_published, env_open("publish:True"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .name = "kv cache");

    void *const ptr = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    assert_non_null(find_pool(read_sample(), "\"kv cache\""));
    env_free(allocator, ptr);
    /* The cached memory of all released pools is one row. */
    assert_ok(xseg_pool_release(pool));
    wait_for_sample(allocator);
    assert_null(find_pool(read_sample(), "\"kv cache\""));
    const struct xseg_published_pool *row = find_pool(read_sample(), "retired");
    assert_non_null(row);
    assert_int_equal(row->cached, 20 * MIB);
}

TEST_ON(pools_without_a_row_are_summed_up, env_open("publish:True"))
{
    struct xseg_pool *pool[300];
    void *ptr[COUNT_OF(pool)];
    const struct xseg_registrar registrar = null_registrar(false);
    uint64_t allocated = 0, reserved = 0, id[2];

    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        pool[i] = env_pool(allocator);
        ptr[i] = env_alloc_in(allocator, pool[i], 1024 * (i + 1), NULL);
    }
    /* Register memory of a pool with a row, and of a pool without. */
    assert_ok(xseg_register(allocator, ptr[0], 1024, &registrar, &id[0]));
    assert_ok(xseg_register(allocator, ptr[COUNT_OF(pool) - 1], 2048, &registrar, &id[1]));
    /* Four rows are not for private pools.  Two of them, for guarded blocks and retired pools, are omitted without memory. */
    const unsigned private_rows = XSEG_PUBLISHED_POOLS - 4;
    const struct xseg_published_sample *sample = read_sample();
    assert_int_equal(sample->pool_count, 1 + private_rows + 1);
    for (unsigned i = 0; i < sample->pool_count; i++) {
        allocated += sample->pools[i].allocated;
        reserved += sample->pools[i].reserved;
    }
    assert_int_equal(allocated, sample->devices[0].allocated);
    assert_int_equal(reserved, sample->devices[0].reserved);
    for (unsigned i = 1; i <= private_rows; i++) {
        assert_int_equal(sample->pools[i].id, i);
        assert_int_equal(sample->pools[i].allocated, env_block(allocator, ptr[i - 1]).bytes);
    }
    const struct xseg_published_pool *others = find_pool(sample, "others");
    assert_ptr_equal(others, &sample->pools[1 + private_rows]);
    assert_int_equal(others->kind, XSEG_PUBLISHED_OTHERS);
    assert_int_equal(others->count, COUNT_OF(pool) - private_rows);
    assert_int_equal(others->reserved_peak, others->reserved);
    assert_int_equal(others->registered, 2048);
    assert_int_equal(sample->pools[1].registered, 1024);
    assert_int_equal(sample->devices[0].registered, 1024 + 2048);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_unregister(allocator, id[i]));
    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        env_free(allocator, ptr[i]);
        assert_ok(xseg_pool_release(pool[i]));
    }
}

TEST_ON(each_open_device_has_rows, env_open_sim("publish:True", .devices = 40))
{
    void *block[40];

    for (int i = 0; i < (int)COUNT_OF(block); i++)
        block[i] = env_alloc_on(allocator, i, (size_t)(i + 1) * 2 * MIB);
    const struct xseg_published_sample *sample = read_sample();
    assert_int_equal(sample->device_count, XSEG_PUBLISHED_DEVICES);
    assert_int_equal(sample->pool_count, XSEG_PUBLISHED_DEVICES);
    for (unsigned i = 0; i < XSEG_PUBLISHED_DEVICES; i++) {
        assert_int_equal(sample->devices[i].ordinal, i);
        assert_int_equal(sample->devices[i].allocated, (i + 1) * 2 * MIB);
        assert_int_equal(sample->pools[i].ordinal, i);
    }
    env_free_all(allocator, block, sizeof(block));
}

TEST_ON(only_a_due_trim_publishes_hits, env_open("publish:True"))
{
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    (void)read_sample();
    const uint64_t sequence = published.sequence;
    sleep_12_ms();
    void *const ptr = env_alloc(allocator, 4096, NULL);
    for (unsigned i = 0; i < 100; i++)
        env_free(allocator, env_alloc(allocator, 4096, NULL));
    /* xseg_record_stream() and xseg_metrics() do not publish, either. */
    assert_ok(xseg_record_stream(allocator, ptr, NULL));
    assert_ok(xseg_metrics(allocator, NULL, 0, NULL));
    (void)read_sample();
    assert_int_equal(published.sequence, sequence);
    wait_for_sample(allocator);
    assert_int_equal(read_sample()->devices[0].allocated, 4096);
    env_free(allocator, ptr);
}

/* Calls that map or unmap memory publish a sample before they return. */
TEST_IN_POOL(calls_that_map_memory_publish, env_open("publish:True"))
{
    xseg_stream stream = env_stream();

    void *const pool_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    const uint64_t reserved = read_sample()->devices[0].reserved;
    assert_true(reserved >= 30 * MIB);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, 0);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    env_free(allocator, env_alloc(allocator, 40 * MIB, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, reserved + 40 * MIB);
    env_set_hard_limit(allocator, NULL, reserved);
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    /* After memory pressure a capture begins with a trim. */
    assert_int_equal(env_try_alloc(allocator, 20 * MIB, NULL), XSEG_ERR_LIMIT);
    env_set_hard_limit(allocator, NULL, reserved + 20 * MIB);
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, reserved + 20 * MIB);
    assert_ok(xseg_capture_begin(pool, stream));
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    assert_ok(xseg_capture_end(pool));
    env_free(allocator, pool_block);
}

TEST_ON(background_thread_publishes, env_open("publish:True,background_thread:True,idle_ms:10"))
{
    uint64_t allocated = 0;

    env_free(allocator, env_alloc(allocator, 4096, NULL));
    void *const ptr = env_alloc(allocator, 8192, NULL);
    for (unsigned i = 0; i < 1000 && allocated != 8192; i++) {
        sleep_12_ms();
        allocated = read_sample()->devices[0].allocated;
    }
    assert_int_equal(allocated, 8192);
    env_free(allocator, ptr);
}

TEST_ON(publish_can_be_changed_at_any_time, env_open(NULL))
{
    int file = -1;

    void *const ptr = env_alloc(allocator, 30 * MIB, NULL);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(xseg_config_set(allocator, "publish:True"));
        assert_int_equal(read_sample()->devices[0].allocated, 30 * MIB);
        assert_ok(xseg_config_set(allocator, "publish:False"));
        assert_int_equal(find_files(&file), 0);
    }
    env_free(allocator, ptr);
}

static atomic_bool stop;

static void *allocate_and_trim(void *allocator)
{
    void *ptr = NULL;

    while (!atomic_load(&stop)) {
        ptr = env_alloc(allocator, 24 * MIB, NULL);
        assert_ok(xseg_free(allocator, ptr));
        assert_ok(xseg_trim(allocator, NULL, NULL, NULL));
    }
    return NULL;
}

static void *reconfigure(void *allocator)
{
    while (!atomic_load(&stop)) {
        assert_ok(xseg_config_set(allocator, "publish:False"));
        assert_ok(xseg_config_set(allocator, "publish:True"));
    }
    return NULL;
}

TEST_ON(file_is_published_while_threads_run, env_open("publish:True"))
{
    pthread_t thread[3];

    atomic_store(&stop, false);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, allocate_and_trim, allocator), 0);
    for (unsigned i = 0; i < 2000; i++) {
        const struct xseg_published_sample *sample = read_sample();
        uint64_t sequence = 0;
        int file = -1;

        assert_int_equal(find_files(&file), 1);
        assert_int_equal(pread(file, &sequence, 8, offsetof(struct xseg_published, sequence)), 8);
        /* The sample was complete if the sequence has not changed. */
        if (sequence != published.sequence || sample->device_count == 0)
            continue;
        /* Each of the two threads has at most one block. */
        assert_in_range(sample->devices[0].allocated, 0, 2 * 24 * MIB);
        assert_int_equal(sample->devices[0].allocated % (24 * MIB), 0);
    }
    assert_int_equal(pthread_create(&thread[2], NULL, reconfigure, allocator), 0);
    sleep_12_ms();
    atomic_store(&stop, true);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

TEST_ON(forked_child_does_not_publish, env_open("publish:True"))
{
    void *const ptr = env_alloc(allocator, 30 * MIB, NULL);
    (void)read_sample();
    const uint64_t sequence = published.sequence;
    env_expect_forked(true, trim_due(allocator, 1));
    (void)read_sample();
    assert_int_equal(published.sequence, sequence);
    env_free(allocator, ptr);
}

static char last_line[1024]; /* of the log, about publishing */

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context, (void)level;
    if (strstr(line, "publish") != NULL)
        (void)snprintf(last_line, sizeof(last_line), "%s", line);
}

/* Without a free descriptor the allocator works, and the log has the reason why nothing is published. */
TEST(failed_publishing_does_not_affect_allocation)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = record_line};
    struct xseg_allocator *allocator = NULL;
    struct rlimit before;
    int file = -1;

    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit no_files = before;
    no_files.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &no_files), 0);
    const xseg_status status = xseg_config_set(allocator, "publish:True");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(status);
    assert_non_null(strstr(last_line, "Too many open files"));
    assert_int_equal(find_files(&file), 0);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ok(trim_due(allocator, 1));
    assert_ok(xseg_free(allocator, ptr));
    /* The next xseg_config_set() retries. */
    assert_ok(xseg_config_set(allocator, "idle_ms:1000"));
    assert_int_equal(find_files(&file), 1);
    assert_ok(xseg_close(allocator));
}

TEST(allocators_publish_separate_files)
{
    struct xseg_allocator *first = env_open("publish:True"), *second = NULL;
    int file = -1;

    assert_ok(env_try_open("publish:True", &second));
    assert_int_equal(find_files(&file), 2);
    assert_ok(xseg_close(second));
    assert_int_equal(find_files(&file), 1);
    env_close(first);
}
