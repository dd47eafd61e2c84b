/* SPDX-License-Identifier: MIT */
/* Metrics agree with other reports, and reading changes nothing.  tests/python/metrics.py reads them with parsers. */
#include "tests/support/folder.h"
#include "tests/support/null_registrar.h"
#include "tests/support/trim_due.h"

#include <fcntl.h>
#include <sys/wait.h>

/* The metrics page, which is valid until the next call. */
static const char *read_page(struct xseg_allocator *allocator)
{
    static char text[MIB];
    size_t needed = 0;

    assert_ok(xseg_metrics(allocator, NULL, 0, &needed));
    assert_true(needed + 4096 <= sizeof(text));
    assert_ok(xseg_metrics(allocator, text, sizeof(text), NULL));
    assert_true(text[0] == '#');
    return text;
}

/* The value of a series; -1 if the page does not have it. */
static double value_of(const char *page, const char *series)
{
    const size_t length = strlen(series);

    for (const char *line = page; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, length) == 0 && (line[length] == ' ' || line[length] == '{'))
            return strtod(strchr(line + length, ' '), NULL);
    }
    return -1;
}

/* The current value of a series. */
static double current_value(struct xseg_allocator *allocator, const char *series)
{
    return value_of(read_page(allocator), series);
}

/* The sum of a family over all its series. */
static uint64_t sum_of(const char *page, const char *family)
{
    const size_t length = strlen(family);
    uint64_t sum = 0;

    for (const char *match = page; (match = strstr(match, family)) != NULL; match += length)
        if (match[length] == '{' && (match == page || match[-1] == '\n'))
            sum += strtoull(strstr(match, "\"} ") + 3, NULL, 10);
    return sum;
}

static void expect_metric(struct xseg_allocator *allocator, const char *series, uint64_t value)
{
    const double actual = current_value(allocator, series);

    if (actual != (double)value)
        print_error("%s is %.0f\n", series, actual);
    assert_true(actual == (double)value);
}

TEST_ON(arguments_are_checked, env_open(NULL))
{
    assert_error(xseg_metrics(NULL, NULL, 0, NULL), ARGUMENT, "allocator");
    assert_error(xseg_metrics(allocator, NULL, 1, NULL), ARGUMENT, "text is NULL");
    assert_error(xseg_metrics_write(allocator, NULL), ARGUMENT, "path is NULL or empty");
    assert_error(xseg_metrics_write(allocator, ""), ARGUMENT, "path is NULL or empty");
    assert_error(xseg_metrics_write(NULL, "file"), ARGUMENT, "allocator");
}

TEST_IN_POOL(registered_bytes_are_reported_by_pool, env_open("expandable_segments:True"))
{
    const struct xseg_registrar registrar = null_registrar(false);
    uint64_t id = 0;

    char *const block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    assert_ok(xseg_register(allocator, block, 30 * MIB, &registrar, &id));
    const char *const page = read_page(allocator);
    assert_true(value_of(page, "xseg_registered_bytes{device=\"0\",pool=\"default\",name=\"\"}") ==
                0.0);
    assert_true(value_of(page, "xseg_registered_bytes{device=\"0\",pool=\"1\",name=\"\"}") ==
                (double)(30 * MIB));
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
}

TEST_ON(page_is_complete_or_empty, env_open(NULL))
{
    size_t needed = 0, size = 0;

    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    assert_ok(xseg_metrics(allocator, NULL, 0, &needed));
    char *text = malloc(needed);
    assert_non_null(text);
    for (size_t bytes = 1; bytes < needed; bytes++) {
        memset(text, 'x', needed);
        assert_ok(xseg_metrics(allocator, text, bytes, &size));
        assert_int_equal(size, needed);
        assert_int_equal(text[0], '\0');
        assert_int_equal(text[bytes], 'x');
    }
    assert_ok(xseg_metrics(allocator, text, needed, NULL));
    assert_int_equal(strlen(text), needed - 1);
    assert_int_equal(text[needed - 2], '\n');
    free(text);
}

/* Unopened devices have no metrics, and a scrape opens no device. */
TEST_ON(metrics_exist_before_the_first_block, env_open(NULL))
{
    const uint64_t calls = xseg_sim_calls(NULL);
    const char *page = read_page(allocator);

    assert_null(strstr(page, "xseg_allocated_bytes"));
    assert_true(value_of(page, "xseg_driver_calls_total{call=\"cuInit\"}") == 1);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

static void expect_sums(struct xseg_allocator *allocator)
{
    const char *page = read_page(allocator);
    const struct xseg_statistics stats = env_stats(allocator);

    assert_int_equal(sum_of(page, "xseg_allocated_bytes"),
                     stats.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum_of(page, "xseg_pending_bytes"),
                     stats.active_bytes[XSEG_STAT_ALL].current -
                         stats.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum_of(page, "xseg_reserved_bytes"),
                     stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum_of(page, "xseg_cached_bytes"),
                     stats.reserved_bytes[XSEG_STAT_ALL].current -
                         stats.active_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum_of(page, "xseg_page_cache_bytes"), stats.idle_page_bytes);
    assert_int_equal(sum_of(page, "xseg_unreleased_bytes"), stats.unreleased_bytes);
    assert_int_equal(sum_of(page, "xseg_device_bytes"), stats.device_bytes);
}

TEST_EACH(pools_add_up_to_the_statistics, env_open(config),
          "expandable_segments:True,page_cache_mb:64", "expandable_segments:False",
          "expandable_segments:True,unmap_on_free:True")
{
    struct xseg_pool *pool = env_pool(allocator), *released = env_pool(allocator);
    xseg_stream stream = env_stream();
    void *block[] = {env_alloc(allocator, 100, NULL), env_alloc(allocator, 30 * MIB, NULL),
                     env_alloc_in(allocator, pool, 3 * MIB, NULL)};
    void *pending = env_alloc(allocator, 9 * MIB, NULL);

    expect_sums(allocator);
    env_free_in_use(allocator, pending, stream);
    env_free(allocator, env_alloc_in(allocator, released, 50 * MIB, NULL));
    assert_ok(xseg_pool_release(released));
    expect_sums(allocator);
    env_empty_cache(allocator);
    expect_sums(allocator);
    env_free_all(allocator, block, sizeof(block));
    expect_sums(allocator);
    assert_ok(xseg_pool_release(pool));
}

TEST_ON(series_have_pool_ids_names_and_limits, env_open(NULL))
{
    struct xseg_pool *pool[] = {
        env_pool_of(allocator, .name = "kv cache", .limit_bytes = 64 * MIB),
        env_pool_of(allocator, .name = "kv cache"),
        env_pool_of(allocator, .name = "a\"b\\c\nd\te\xff\xc3\xa9"),
    };
    void *block = env_alloc_in(allocator, pool[1], 3 * MIB, NULL);

    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"default\",name=\"\"}", 0);
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"1\",name=\"kv cache\"}", 0);
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"2\",name=\"kv cache\"}",
                  3 * MIB);
    expect_metric(
        allocator,
        "xseg_allocated_bytes{device=\"0\",pool=\"3\",name=\"a\\\"b\\\\c\\nd?e?\xc3\xa9\"}", 0);
    expect_metric(allocator, "xseg_pool_limit_bytes{device=\"0\",pool=\"1\",name=\"kv cache\"}",
                  64 * MIB);
    assert_true(current_value(allocator,
                              "xseg_pool_limit_bytes{device=\"0\",pool=\"2\",name=\"kv cache\"}") <
                0);
    assert_true(current_value(allocator, "xseg_limit_bytes{device=\"0\"}") < 0);
    env_set_hard_limit(allocator, NULL, 1 * GIB);
    expect_metric(allocator, "xseg_limit_bytes{device=\"0\"}", 1 * GIB);
    expect_metric(allocator, "xseg_pools{device=\"0\"}", 3);
    env_free(allocator, block);
    for (unsigned i = 0; i < COUNT_OF(pool); i++)
        assert_ok(xseg_pool_release(pool[i]));
}

static size_t count_lines(const char *page, const char *series)
{
    size_t count = 0;

    for (const char *match = page; (match = strstr(match, series)) != NULL; match += strlen(series))
        count++;
    return count;
}

/* The first 128 pools have separate series, and the series of all pools add up to the statistics. */
TEST_ON(number_of_pool_series_is_bounded, env_open(NULL))
{
    struct xseg_pool *pool[150];
    void *block[COUNT_OF(pool)];

    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        pool[i] = env_pool(allocator);
        block[i] = env_alloc_in(allocator, pool[i], 512, NULL);
    }
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"1\",name=\"\"}", 512);
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"128\",name=\"\"}", 512);
    assert_true(
        current_value(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"129\",name=\"\"}") < 0);
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"other\",name=\"\"}",
                  (150 - 128) * 512);
    expect_metric(allocator, "xseg_pools{device=\"0\"}", 150);
    const char *page = read_page(allocator);
    assert_int_equal(count_lines(page, "\nxseg_allocated_bytes{"),
                     1 + 128 + 1); /* default pool, listed pools, other pools */
    expect_sums(allocator);
    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        env_free(allocator, block[i]);
        assert_ok(xseg_pool_release(pool[i]));
    }
    page = read_page(allocator);
    /* The default pool, and all released pools in one series. */
    assert_int_equal(count_lines(page, "\nxseg_allocated_bytes{"), 2);
    assert_true(value_of(page, "xseg_reserved_bytes{device=\"0\",pool=\"retired\",name=\"\"}") > 0);
    expect_sums(allocator);
}

TEST_IN_POOL(paused_memory_is_reported_separately, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_metric(allocator, "xseg_paused_bytes{device=\"0\"}", 20 * MIB);
    expect_metric(allocator, "xseg_allocated_bytes{device=\"0\",pool=\"1\",name=\"\"}", 20 * MIB);
    expect_metric(allocator, "xseg_reserved_bytes{device=\"0\",pool=\"1\",name=\"\"}", 0);
    expect_metric(allocator, "xseg_cached_bytes{device=\"0\",pool=\"1\",name=\"\"}", 0);
    assert_ok(xseg_pool_resume(pool));
    expect_metric(allocator, "xseg_paused_bytes{device=\"0\"}", 0);
    env_free(allocator, block);
}

TEST_ON(errors_and_driver_calls_are_counted, env_open_mib(100, NULL))
{
    struct xseg_driver_call calls[64];
    size_t count = 0;

    void *block = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 999));           /* CUDA_ERROR_UNKNOWN */
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL)); /* succeeds with a retry */
    assert_true(xseg_sim_failed());
    const struct xseg_statistics stats = env_stats(allocator);
    expect_metric(allocator, "xseg_out_of_memory_total{device=\"0\"}", 1);
    expect_metric(allocator, "xseg_rejections_total{device=\"0\"}", 0);
    expect_metric(allocator, "xseg_retries_total{device=\"0\"}", stats.num_alloc_retries);
    assert_true(stats.num_alloc_retries > 0);
    assert_ok(xseg_driver_calls(allocator, calls, COUNT_OF(calls), &count));
    assert_in_range(count, 40, COUNT_OF(calls));
    unsigned timed = 0, failed = 0;
    const char *page = read_page(allocator);
    for (size_t i = 0; i < count; i++) {
        char line[128];

        (void)snprintf(line, sizeof(line), "xseg_driver_calls_total{call=\"%s\"}", calls[i].name);
        assert_true(value_of(page, line) == (calls[i].count == 0 ? -1 : (double)calls[i].count));
        (void)snprintf(line, sizeof(line), "xseg_driver_call_failures_total{call=\"%s\"}",
                       calls[i].name);
        assert_true(value_of(page, line) == (calls[i].count == 0 ? -1 : (double)calls[i].failed));
        failed += calls[i].failed != 0;
        (void)snprintf(line, sizeof(line), "xseg_driver_call_seconds_total{call=\"%s\"}",
                       calls[i].name);
        const double seconds = value_of(page, line);
        assert_true(seconds < 600);
        timed += seconds > 0;
    }
    assert_true(failed > 0);
    assert_in_range(timed, 5, count);
    assert_true(value_of(page, "xseg_driver_call_seconds_total{call=\"cuMemCreate\"}") > 0);
    assert_true(value_of(page, "xseg_driver_call_seconds_total{call=\"cuEventQuery\"}") < 0);
    env_free(allocator, block);
}

/* Seconds have nine decimal places, including leading zeros. */
static void expect_nanoseconds(struct xseg_allocator *allocator, const char *series)
{
    const char *page = read_page(allocator), *match = strstr(page, series);

    assert_non_null(match);
    assert_int_equal(strspn(match + strlen(series), "0123456789"), 9);
    assert_int_equal(match[strlen(series)], '0');
}

/* Memory on the page of an allocated block is fragmented; the memory of an idle page is not. */
TEST_IN_POOL(fragmented_memory_is_that_of_the_last_scan,
             env_open_with_clock(NULL, "expandable_segments:True,idle_ms:100000"))
{
    struct xseg_explain_result sums = {sizeof(sums)};
    void *idle = env_alloc(allocator, 40 * MIB, NULL);
    void *allocated = env_alloc(allocator, 15 * MIB, NULL);
    void *of_pool = env_alloc_in(allocator, pool, 5 * MIB, NULL);

    env_free(allocator, idle);
    assert_ok(xseg_explain(allocator, NULL, NULL, NULL, &sums));
    /* 20 - 15 = 5 MiB.  The memory of a retained pool is kept, so it does not count as fragmented. */
    expect_metric(allocator, "xseg_fragmented_bytes{device=\"0\"}", 5 * MIB);
    xseg_sim_advance(UINT64_C(7000000000));
    const double age = current_value(allocator, "xseg_fragmented_age_seconds{device=\"0\"}");
    assert_true(age >= 7 && age < 7.1);
    expect_nanoseconds(allocator, "xseg_fragmented_age_seconds{device=\"0\"} 7.");
    env_free(allocator, allocated);
    assert_ok(trim_due(allocator, 1));
    expect_metric(allocator, "xseg_fragmented_bytes{device=\"0\"}", 0);
    assert_true(current_value(allocator, "xseg_fragmented_age_seconds{device=\"0\"}") < 0.1);
    allocated = env_alloc(allocator, 15 * MIB, NULL);
    xseg_sim_advance(UINT64_C(1000000000));
    assert_ok(trim_due(allocator, 1));
    const double after_trim = current_value(allocator, "xseg_fragmented_bytes{device=\"0\"}");
    assert_ok(xseg_explain(allocator, NULL, NULL, NULL, &sums));
    assert_true(after_trim == current_value(allocator, "xseg_fragmented_bytes{device=\"0\"}"));
    env_free(allocator, allocated, of_pool);
}

TEST_ON(external_memory_is_that_of_the_last_driver_query,
        env_open_sim_with_clock(NULL, .memory_bytes = 100 * MIB))
{
    struct xseg_allocator *second = NULL;

    assert_ok(env_try_open("expandable_segments:False", &second));
    void *external = env_alloc(second, 40 * MIB, NULL),
         *block = env_alloc(allocator, 20 * MIB, NULL);
    assert_true(current_value(allocator, "xseg_used_by_others_bytes{device=\"0\"}") < 0);
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    expect_metric(allocator, "xseg_used_by_others_bytes{device=\"0\"}", 40 * MIB);
    xseg_sim_advance(UINT64_C(3000000000));
    const double age = current_value(allocator, "xseg_used_by_others_age_seconds{device=\"0\"}");
    assert_true(age >= 3 && age < 3.1);
    env_free(allocator, block);
    env_free(second, external);
    assert_ok(xseg_close(second));
}

TEST_IN_POOL(peak_lasts_until_its_reset, env_open(NULL))
{
    static const char device_peak[] = "xseg_device_reserved_peak_bytes{device=\"0\"}";
    static const char pool_peak[] = "xseg_reserved_peak_bytes{device=\"0\",pool=\"1\",name=\"\"}";
    void *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};

    assert_true(current_value(allocator, "xseg_fragmented_bytes{device=\"0\"}") < 0);
    assert_true(current_value(allocator, "xseg_fragmented_age_seconds{device=\"0\"}") < 0);
    env_free(allocator, block);
    struct xseg_trim_result result = {sizeof(result)};
    assert_ok(xseg_trim(allocator, &scope, NULL, &result));
    assert_int_equal(result.released, 100 * MIB);
    expect_metric(allocator, "xseg_reserved_bytes{device=\"0\",pool=\"1\",name=\"\"}", 0);
    expect_metric(allocator, device_peak, 100 * MIB);
    expect_metric(allocator, pool_peak, 100 * MIB);
    assert_ok(xseg_stats_reset(allocator, &scope, XSEG_RESET_PEAK));
    expect_metric(allocator, pool_peak, 0);
    expect_metric(allocator, device_peak, 100 * MIB);
    scope.pool = NULL;
    scope.device = 0;
    assert_ok(xseg_stats_reset(allocator, &scope, XSEG_RESET_PEAK));
    expect_metric(allocator, device_peak, 0);
}

/* The file has the complete page, and no other file is created. */
TEST_ON(metrics_file_has_the_page, env_open(NULL))
{
    const unsigned files = env_open_fds();
    const char *path = folder_path("xseg.prom");
    char text[16 << 10] = "";

    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    for (unsigned i = 0; i < 2; i++) {
        const char *page = read_page(allocator);

        assert_ok(xseg_metrics_write(allocator, path));
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(file >= 0);
        const ssize_t length = read(file, text, sizeof(text) - 1);
        assert_true(length > 0);
        text[length] = '\0';
        assert_string_equal(text, page);
        assert_int_equal(close(file), 0);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(env_open_fds(), files);
}

static void expect_file_error(struct xseg_allocator *allocator, const char *path, int error)
{
    assert_error(xseg_metrics_write(allocator, path), FILE, strerror(error));
    assert_error(xseg_metrics_write(allocator, path), FILE, path);
}

TEST_ON(unwritable_path_is_an_error, env_open(NULL))
{
    char longest[9000];

    expect_file_error(allocator, folder_path("none/xseg.prom"), ENOENT);
    expect_file_error(allocator, folder, EISDIR);
    expect_file_error(allocator, "/dev/full", ENOSPC);
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(xseg_metrics_write(allocator, longest), XSEG_ERR_FILE);
    assert_ok(xseg_metrics_write(allocator, "/dev/null"));
}

static xseg_status write_metrics(const char *path)
{
    static struct xseg_allocator *allocator;

    if (allocator == NULL)
        allocator = env_open(NULL);
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    return xseg_metrics_write(allocator, path);
}

TEST(metrics_file_is_replaced_atomically)
{
    folder_expect_atomic_write(folder_path("xseg.prom"), 512, write_metrics);
    assert_int_equal(unlink(folder_path("xseg.prom")), 0);
}

/* The target of a symbolic link is replaced and keeps its mode; the link stays. */
TEST_ON(target_of_a_link_is_replaced, env_open(NULL))
{
    const char *path = folder_path("link.prom"), *target = folder_path("target.prom");
    struct stat status;

    const int file = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(fchmod(file, 0640), 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_ok(xseg_metrics_write(allocator, path));
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(lstat(target, &status), 0);
    assert_int_equal(status.st_mode, S_IFREG | 0640);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(target), 0);
}

/* A path to standard output, such as /dev/stdout, appends to its file. */
TEST(standard_output_is_written_in_place)
{
    const char *path = folder_path("link.prom"), *target = folder_path("output");
    struct stat before, after;

    assert_int_equal(symlink("/proc/self/fd/1", path), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct xseg_allocator *allocator = env_open(NULL);
        const int file = open(target, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        char first[6] = "";
        bool succeeds = dup2(file, STDOUT_FILENO) == STDOUT_FILENO &&
                        write(file, "first\n", 6) == 6 && fstat(file, &before) == 0;

        env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
        succeeds = succeeds && xseg_metrics_write(allocator, path) == XSEG_OK;
        succeeds = succeeds && stat(target, &after) == 0 && after.st_ino == before.st_ino &&
                   after.st_size > 512 && pread(file, first, 6, 0) == 6 &&
                   memcmp(first, "first\n", 6) == 0 && lstat(path, &after) == 0 &&
                   S_ISLNK(after.st_mode);
        _exit(succeeds ? 0 : 1);
    }
    assert_int_equal(env_wait(child), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(target), 0);
}

TEST_ON(calls_of_a_forked_child_fail, env_open(NULL))
{
    env_expect_forked(true, xseg_metrics(allocator, NULL, 0, NULL),
                      xseg_metrics_write(allocator, "/dev/null"));
}

TEST_GROUP_FIXTURE(folder_create, folder_remove)
