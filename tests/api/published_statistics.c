/* SPDX-License-Identifier: MIT */
/* The key publish: contents, updates and ownership of the file that other processes read. */
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

static struct xseg_published seen;

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

/* The current sample of the only file. */
static const struct xseg_published_sample *read_sample(void)
{
    int file = -1;

    assert_int_equal(find_files(&file), 1);
    assert_int_equal(pread(file, &seen, sizeof(seen), 0), sizeof(seen));
    return &seen.samples[seen.sequence % 2];
}

static void pass_time(void)
{
    const struct timespec moment = {0, 12000000};

    (void)nanosleep(&moment, NULL);
}

/* Advance until a due trim publishes, which takes at most 1 % of the time. */
static void await_sample(struct xseg_allocator *allocator)
{
    const uint64_t sequence = (read_sample(), seen.sequence);

    for (unsigned i = 0; i < 5000 && seen.sequence == sequence; i++) {
        pass_time();
        assert_ok(trim_due(allocator, 1));
        (void)read_sample();
    }
    assert_true(seen.sequence > sequence);
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
    assert_memory_equal(seen.magic, "xseg-top", 8);
    assert_int_equal(seen.version, XSEG_PUBLISHED_VERSION);
    assert_int_equal(seen.pid, getpid());
    assert_true(seen.start_ticks > 0);
    assert_int_equal(seen.bytes, sizeof(seen));
    assert_int_equal(sample->device_count, 0);
    assert_true(sample->time_ns > 0);
    assert_int_equal(find_files(&file), 1);
    assert_int_equal(fstat(file, &info), 0);
    assert_int_equal(info.st_size, sizeof(seen));
    assert_int_equal(fcntl(file, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
                     F_SEAL_SHRINK | F_SEAL_GROW);
    env_close(allocator);
    assert_int_equal(find_files(&file), 0);
}

static void expect_as_statistics(struct xseg_allocator *allocator)
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

    char *const block = env_alloc(allocator, 30 * MIB, NULL);
    char *const own = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_ok(xseg_register(allocator, block, 10 * MIB, &registrar, &id[0]));
    assert_ok(xseg_register(allocator, own, 50 * MIB, &registrar, &id[1]));
    /* Registrations are published immediately. */
    assert_ok(xseg_register(allocator, own, 20 * MIB, &registrar, &id[2]));
    expect_as_statistics(allocator);
    assert_int_equal(find_pool(read_sample(), "default")->registered, 10 * MIB);
    assert_int_equal(find_pool(read_sample(), "1")->registered, 70 * MIB);
    /* Memory of a released pool stays registered. */
    env_free(allocator, own);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_register(allocator, block, MIB, &registrar, &id[3]));
    expect_as_statistics(allocator);
    assert_int_equal(find_pool(read_sample(), "retired")->registered, 70 * MIB);
    for (unsigned i = 0; i < 4; i++)
        assert_ok(xseg_unregister(allocator, id[i]));
    env_free(allocator, block);
}

TEST_IN_POOL(published_values_equal_the_statistics, env_open("publish:True,page_cache_mb:100"))
{
    xseg_stream stream = env_stream();

    void *const large = env_alloc(allocator, 30 * MIB, NULL);
    expect_as_statistics(allocator);
    void *const used = env_alloc(allocator, 5 * MIB, NULL);
    void *const own = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    expect_as_statistics(allocator);
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
    assert_int_equal(row->number, 1);
    /* A block that another stream uses is pending. */
    env_free_in_use(allocator, used, stream);
    await_sample(allocator);
    expect_as_statistics(allocator);
    assert_int_equal(read_sample()->devices[0].pending, 5 * MIB);
    assert_int_equal(find_pool(read_sample(), "default")->pending, 5 * MIB);
    assert_int_equal(env_try_alloc(allocator, (size_t)1 << 45, NULL), XSEG_ERR_NO_MEMORY);
    expect_as_statistics(allocator);
    assert_int_equal(read_sample()->devices[0].ooms, 1);
    env_free(allocator, large, own);
    env_empty_cache(allocator);
    expect_as_statistics(allocator);
}

TEST_ON(rejection_is_published_immediately, env_open("publish:True,throw_on_cudamalloc_oom:True"))
{
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    for (uint64_t i = 1; i < 4; i++) {
        assert_int_equal(env_try_alloc(allocator, (size_t)1 << 45, NULL), XSEG_ERR_NO_MEMORY);
        assert_int_equal(read_sample()->devices[0].rejections, i);
        assert_int_equal(read_sample()->devices[0].ooms, 0);
        expect_as_statistics(allocator);
    }
}

TEST_ON(pool_names_are_published, env_open("publish:True"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .name = "kv cache");

    void *const ptr = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    assert_non_null(find_pool(read_sample(), "\"kv cache\""));
    env_free(allocator, ptr);
    /* The cached memory of a destroyed pool is one row. */
    assert_ok(xseg_pool_release(pool));
    await_sample(allocator);
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
    uint64_t live = 0, reserved = 0, id[2];

    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        pool[i] = env_pool(allocator);
        ptr[i] = env_alloc_in(allocator, pool[i], 1024 * (i + 1), NULL);
    }
    /* Register memory of a pool with a row, and of a pool without. */
    assert_ok(xseg_register(allocator, ptr[0], 1024, &registrar, &id[0]));
    assert_ok(xseg_register(allocator, ptr[COUNT_OF(pool) - 1], 2048, &registrar, &id[1]));
    /* The two rows of guarded blocks and retired pools are empty. */
    const unsigned own = XSEG_PUBLISHED_POOLS - 4;
    const struct xseg_published_sample *sample = read_sample();
    assert_int_equal(sample->pool_count, 1 + own + 1);
    for (unsigned i = 0; i < sample->pool_count; i++) {
        live += sample->pools[i].allocated;
        reserved += sample->pools[i].reserved;
    }
    assert_int_equal(live, sample->devices[0].allocated);
    assert_int_equal(reserved, sample->devices[0].reserved);
    for (unsigned i = 1; i <= own; i++) {
        assert_int_equal(sample->pools[i].number, i);
        assert_int_equal(sample->pools[i].allocated, env_block(allocator, ptr[i - 1]).bytes);
    }
    const struct xseg_published_pool *others = find_pool(sample, "others");
    assert_ptr_equal(others, &sample->pools[1 + own]);
    assert_int_equal(others->kind, XSEG_PUBLISHED_OTHERS);
    assert_int_equal(others->count, COUNT_OF(pool) - own);
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
    void *ptr[40];

    for (int i = 0; i < (int)COUNT_OF(ptr); i++)
        ptr[i] = env_alloc_on(allocator, i, (size_t)(i + 1) * 2 * MIB);
    const struct xseg_published_sample *sample = read_sample();
    assert_int_equal(sample->device_count, XSEG_PUBLISHED_DEVICES);
    assert_int_equal(sample->pool_count, XSEG_PUBLISHED_DEVICES);
    for (unsigned i = 0; i < XSEG_PUBLISHED_DEVICES; i++) {
        assert_int_equal(sample->devices[i].ordinal, i);
        assert_int_equal(sample->devices[i].allocated, (i + 1) * 2 * MIB);
        assert_int_equal(sample->pools[i].ordinal, i);
    }
    env_free_all(allocator, ptr, sizeof(ptr));
}

TEST_ON(only_a_due_trim_publishes_hits, env_open("publish:True"))
{
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    env_free(allocator, env_alloc(allocator, 4096, NULL));
    const uint64_t sequence = (read_sample(), seen.sequence);
    pass_time();
    void *const ptr = env_alloc(allocator, 4096, NULL);
    for (unsigned i = 0; i < 100; i++)
        env_free(allocator, env_alloc(allocator, 4096, NULL));
    /* Recorded streams and scrapes do not publish, either. */
    assert_ok(xseg_record_stream(allocator, ptr, NULL));
    assert_ok(xseg_metrics(allocator, NULL, 0, NULL));
    (void)read_sample();
    assert_int_equal(seen.sequence, sequence);
    await_sample(allocator);
    assert_int_equal(read_sample()->devices[0].allocated, 4096);
    env_free(allocator, ptr);
}

/* Each sample has the result of the previous call. */
TEST_IN_POOL(calls_that_map_memory_publish, env_open("publish:True"))
{
    xseg_stream stream = env_stream();

    void *const own = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    const uint64_t reserved = read_sample()->devices[0].reserved;
    assert_true(reserved >= 30 * MIB);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, 0);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    env_free(allocator, env_alloc(allocator, 40 * MIB, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, reserved + 40 * MIB);
    env_limit(allocator, NULL, reserved);
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    /* After memory pressure a capture begins with a trim. */
    assert_int_equal(env_try_alloc(allocator, 20 * MIB, NULL), XSEG_ERR_LIMIT);
    env_limit(allocator, NULL, reserved + 20 * MIB);
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_int_equal(read_sample()->devices[0].reserved, reserved + 20 * MIB);
    assert_ok(xseg_capture_begin(pool, stream));
    assert_int_equal(read_sample()->devices[0].reserved, reserved);
    assert_ok(xseg_capture_end(pool));
    env_free(allocator, own);
}

TEST_ON(background_thread_publishes, env_open("publish:True,background_thread:True,idle_ms:10"))
{
    uint64_t live = 0;

    env_free(allocator, env_alloc(allocator, 4096, NULL));
    void *const ptr = env_alloc(allocator, 8192, NULL);
    for (unsigned i = 0; i < 1000 && live != 8192; i++) {
        pass_time();
        live = read_sample()->devices[0].allocated;
    }
    assert_int_equal(live, 8192);
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

static atomic_bool ends;

static void *work(void *self)
{
    void *ptr = NULL;

    while (!atomic_load(&ends)) {
        ptr = env_alloc(self, 24 * MIB, NULL);
        assert_ok(xseg_free(self, ptr));
        assert_ok(xseg_trim(self, NULL, NULL, NULL));
    }
    return NULL;
}

static void *reconfigure(void *self)
{
    while (!atomic_load(&ends)) {
        assert_ok(xseg_config_set(self, "publish:False"));
        assert_ok(xseg_config_set(self, "publish:True"));
    }
    return NULL;
}

TEST_ON(file_is_published_while_threads_run, env_open("publish:True"))
{
    pthread_t thread[3];

    atomic_store(&ends, false);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, allocator), 0);
    for (unsigned i = 0; i < 2000; i++) {
        const struct xseg_published_sample *sample = read_sample();
        uint64_t after = 0;
        int file = -1;

        assert_int_equal(find_files(&file), 1);
        assert_int_equal(pread(file, &after, 8, offsetof(struct xseg_published, sequence)), 8);
        if (after != seen.sequence || sample->device_count == 0)
            continue;
        assert_in_range(sample->devices[0].allocated, 0, 48 * MIB);
        assert_int_equal(sample->devices[0].allocated % (24 * MIB), 0);
    }
    assert_int_equal(pthread_create(&thread[2], NULL, reconfigure, allocator), 0);
    pass_time();
    atomic_store(&ends, true);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

TEST_ON(forked_child_does_not_publish, env_open("publish:True"))
{
    void *const ptr = env_alloc(allocator, 30 * MIB, NULL);
    const uint64_t sequence = (read_sample(), seen.sequence);
    env_expect_forked(true, trim_due(allocator, 1));
    (void)read_sample();
    assert_int_equal(seen.sequence, sequence);
    env_free(allocator, ptr);
}

static char logged[1024];

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context, (void)level;
    if (strstr(line, "publish") != NULL)
        (void)snprintf(logged, sizeof(logged), "%s", line);
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
    struct rlimit none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const xseg_status status = xseg_config_set(allocator, "publish:True");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(status);
    assert_non_null(strstr(logged, "Too many open files"));
    assert_int_equal(find_files(&file), 0);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ok(trim_due(allocator, 1));
    assert_ok(xseg_free(allocator, ptr));
    /* The next configuration retries. */
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
