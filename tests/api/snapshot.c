/* SPDX-License-Identifier: MIT */
/* Snapshot files, also of failed requests.  tests/python/snapshot.py reads the contents. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/emulator.h"
#include "tests/support/folder.h"

/* Remove the files of the folder.  Returns their number; *largest is raised to the size of the largest file. */
static unsigned remove_files(uint64_t *largest)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    struct stat info;
    unsigned count = 0;

    assert_non_null(directory);
    while ((entry = readdir(directory)) != NULL) {
        const char *path = folder_path(entry->d_name);

        if (entry->d_name[0] == '.')
            continue;
        assert_int_equal(stat(path, &info), 0);
        if (largest != NULL && (uint64_t)info.st_size > *largest)
            *largest = (uint64_t)info.st_size;
        if (strstr(entry->d_name, ".part") != NULL)
            fail_msg("%s was not removed", entry->d_name);
        assert_int_equal(unlink(path), 0);
        count++;
    }
    assert_int_equal(closedir(directory), 0);
    return count;
}

static int remove_folder(void **state)
{
    (void)remove_files(NULL);
    return folder_remove(state);
}

/* Check the first and last bytes of a snapshot. */
static void expect_complete(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    char first[2] = "", last = 0;

    assert_true(file >= 0);
    assert_int_equal(read(file, first, 2), 2);
    assert_memory_equal(first, "\x80\x04", 2);
    assert_true(lseek(file, -1, SEEK_END) > 2);
    assert_int_equal(read(file, &last, 1), 1);
    assert_int_equal(last, '.');
    assert_int_equal(close(file), 0);
}

/* The block of 40 MiB of the allocator that open_with_events() opened last. */
static void *block;

/* An allocator with this many events, and 40 of 256 MiB allocated. */
static struct xseg_allocator *open_with_events(const char *keys, unsigned events)
{
    char config[512];

    (void)snprintf(config, sizeof(config), "history:all%s", keys);
    struct xseg_allocator *allocator = env_open_mib(256, config);
    block = env_alloc(allocator, 40 * MIB, NULL);
    for (unsigned i = 0; i < events; i += 3) /* ALLOC, FREE_REQUESTED, FREE_COMPLETED */
        env_free(allocator, env_alloc(allocator, 4096, NULL));
    return allocator;
}

static void close_with_events(struct xseg_allocator *allocator)
{
    env_free(allocator, block);
    env_close(allocator);
}

/* Configuration keys, with oom_snapshot of the folder. */
static const char *keys_with_folder(const char *keys)
{
    static char text[160];

    (void)snprintf(text, sizeof(text), "%s,oom_snapshot:%s", keys, folder);
    return text;
}

TEST_ON(arguments_are_checked, env_open(NULL))
{
    struct xseg_snapshot_options options = {sizeof(options)};

    assert_error(xseg_snapshot(allocator, NULL, NULL), ARGUMENT, "path is NULL or empty");
    assert_error(xseg_snapshot(allocator, "", NULL), ARGUMENT, "path is NULL or empty");
    assert_error(xseg_snapshot(NULL, "file", NULL), ARGUMENT, "allocator");
    options.struct_size = 3;
    assert_error(xseg_snapshot(allocator, "file", &options), ARGUMENT,
                 "options->struct_size is unknown, 3");
}

static void expect_file_error(struct xseg_allocator *allocator, const char *path, int error_number)
{
    assert_error(xseg_snapshot(allocator, path, NULL), FILE, strerror(error_number));
    assert_error(xseg_snapshot(allocator, path, NULL), FILE, path);
}

/* Each error has a message and leaves no file, and the next snapshot succeeds. */
TEST_ON(unwritable_path_is_an_error, open_with_events("", 0))
{
    const unsigned open_files = env_open_fds();
    const char *path = folder_path("folder");

    expect_file_error(allocator, folder_path("none/file"), ENOENT);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_file_error(allocator, path, EISDIR);
    if (geteuid() != 0) {
        assert_int_equal(chmod(path, 0500), 0);
        expect_file_error(allocator, folder_path("folder/file"), EACCES);
    }
    assert_int_equal(rmdir(path), 0);
    expect_file_error(allocator, "/dev/full", ENOSPC);
    assert_int_equal(access("/dev/full", F_OK), 0);
    assert_int_equal(remove_files(NULL), 0);
    assert_int_equal(env_open_fds(), open_files);
    path = folder_path("file");
    assert_ok(xseg_snapshot(allocator, path, NULL));
    expect_complete(path);
    env_free(allocator, block);
}

static xseg_status write_snapshot(const char *path)
{
    static struct xseg_allocator *allocator;

    if (allocator == NULL)
        allocator = open_with_events("", 3000);
    return xseg_snapshot(allocator, path, NULL);
}

TEST(snapshot_file_is_replaced_atomically)
{
    const char *path = folder_path("file");

    folder_expect_atomic_write(path, 4 * KIB, write_snapshot);
    expect_complete(path);
    assert_int_equal(remove_files(NULL), 1);
}

TEST_ON(calls_of_a_forked_child_fail, open_with_events("", 0))
{
    env_expect_forked(true, xseg_snapshot(allocator, folder_path("file"), NULL));
    assert_int_equal(remove_files(NULL), 0);
    env_free(allocator, block);
}

/* A pipe receives the complete snapshot, also after max_ms. */
TEST_ON(a_pipe_is_written_into, open_with_events("", 30))
{
    static unsigned char bytes[65536];
    const char *path = folder_path("pipe");

    assert_int_equal(mkfifo(path, 0600), 0);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    struct xseg_snapshot_options options = {sizeof(options), .max_ms = 1};
    assert_ok(xseg_snapshot(allocator, path, &options));
    const ssize_t length = read(file, bytes, sizeof(bytes));
    assert_true(length > 1000 && length < (ssize_t)sizeof(bytes));
    assert_memory_equal(bytes, "\x80\x04", 2);
    assert_int_equal(bytes[length - 1], '.');
    assert_int_equal(close(file), 0);
    assert_int_equal(remove_files(NULL), 1);
    env_free(allocator, block);
}

static uint64_t count_calls(struct xseg_allocator *allocator)
{
    struct xseg_driver_call calls[128];
    uint64_t sum = 0;
    size_t count = 0;

    assert_ok(xseg_driver_calls(allocator, calls, COUNT_OF(calls), &count));
    for (size_t i = 0; i < count; i++)
        sum += calls[i].count;
    return sum;
}

/* The result of a failed request, which must be the same with and without a snapshot. */
struct oom_result {
    xseg_status status;
    char message[2048];
    int error_number;      /* errno */
    uint64_t driver_calls; /* of the request */
};

static struct oom_result request_too_much(struct xseg_allocator *allocator)
{
    struct oom_result result = {.driver_calls = count_calls(allocator)};
    void *ptr = NULL;

    errno = ENOTTY;
    result.status = xseg_alloc(allocator, 0, 4 * GIB, NULL, &ptr);
    result.error_number = errno;
    (void)xseg_error_message(result.message, sizeof(result.message));
    result.driver_calls = count_calls(allocator) - result.driver_calls;
    assert_null(ptr);
    return result;
}

static struct oom_result request_with(const char *keys)
{
    struct xseg_allocator *allocator = open_with_events(keys, 300);
    const struct oom_result result = request_too_much(allocator);

    close_with_events(allocator);
    return result;
}

TEST(snapshot_does_not_change_the_oom_error)
{
    const struct oom_result without = request_with("");
    assert_int_equal(without.status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(remove_files(NULL), 0);
    const struct oom_result with = request_with(keys_with_folder(""));
    assert_int_equal(remove_files(NULL), 1);
    assert_int_equal(with.status, without.status);
    assert_string_equal(with.message, without.message);
    assert_int_equal(with.error_number, without.error_number);
    assert_int_equal(with.driver_calls, without.driver_calls);
    /* The error is the same if the snapshot cannot be written. */
    const struct oom_result unwritable = request_with(",oom_snapshot:/nowhere/at/all");
    assert_string_equal(unwritable.message, without.message);
    assert_int_equal(unwritable.status, without.status);
    assert_int_equal(unwritable.error_number, without.error_number);
    assert_int_equal(unwritable.driver_calls, without.driver_calls);
}

static char last_line[1024]; /* of the log */

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context, (void)level;
    (void)snprintf(last_line, sizeof(last_line), "%s", line);
}

/* The log contains the path of the snapshot, or the reason why it was not written. */
TEST(log_reports_the_snapshot_file)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = record_line};
    char config[160];

    for (unsigned is_written = 0; is_written < 2; is_written++) {
        struct xseg_allocator *allocator = NULL;

        (void)snprintf(config, sizeof(config), "oom_snapshot:%s", is_written ? folder : "/nowhere");
        assert_ok(xseg_open(config, &options, &allocator));
        (void)request_too_much(allocator);
        assert_int_equal(strstr(last_line, "wrote memory snapshot to") != NULL, is_written);
        assert_int_equal(strstr(last_line, "no snapshot written") != NULL, !is_written);
        assert_non_null(strstr(last_line, is_written ? folder : strerror(ENOENT)));
        assert_int_equal(remove_files(NULL), is_written);
        env_close(allocator);
    }
}

TEST(oom_snapshot_is_complete_when_the_call_returns)
{
    char name[64];

    assert_int_equal(setenv("RANK", "3", 1), 0);
    struct xseg_allocator *allocator = open_with_events(keys_with_folder(""), 300);
    (void)request_too_much(allocator);
    (void)snprintf(name, sizeof(name), "oom-rank3-pid%ld-1.pickle", (long)getpid());
    expect_complete(folder_path(name));
    assert_int_equal(unsetenv("RANK"), 0);
    close_with_events(allocator);
    assert_int_equal(remove_files(NULL), 1);
}

TEST(key_overrides_the_folder_of_the_variable)
{
    assert_int_equal(setenv("XSEG_OOM_SNAPSHOT", folder, 1), 0);
    (void)request_with("");
    assert_int_equal(remove_files(NULL), 1);
    (void)request_with(",oom_snapshot:none");
    assert_int_equal(remove_files(NULL), 0);
    assert_int_equal(setenv("XSEG_OOM_SNAPSHOT", "/nowhere", 1), 0);
    (void)request_with(keys_with_folder(""));
    assert_int_equal(remove_files(NULL), 1);
    assert_int_equal(setenv("XSEG_OOM_SNAPSHOT", "", 1), 0);
    (void)request_with("");
    assert_int_equal(remove_files(NULL), 0);
    assert_int_equal(unsetenv("XSEG_OOM_SNAPSHOT"), 0);
}

/* Files of other allocators, and of an earlier process with the same ID, are not overwritten. */
TEST(existing_snapshots_are_not_overwritten)
{
    for (unsigned i = 0; i < 3; i++)
        (void)request_with(keys_with_folder(""));
    assert_int_equal(remove_files(NULL), 3);
}

TEST(number_and_size_of_snapshots_are_bounded)
{
    uint64_t unbounded = 0, largest = 0;

    struct xseg_allocator *allocator = open_with_events(keys_with_folder(""), 60000);
    for (unsigned i = 0; i < 5; i++)
        (void)request_too_much(allocator);
    close_with_events(allocator);
    assert_int_equal(remove_files(&unbounded), 3);
    assert_true(unbounded > 2 * MIB);
    allocator = open_with_events(keys_with_folder(",oom_snapshot_mb:1"), 60000);
    (void)request_too_much(allocator);
    close_with_events(allocator);
    assert_int_equal(remove_files(&largest), 1);
    assert_in_range(largest, MIB / 2, MIB);
    /* A request that throw_on_cudamalloc_oom rejects writes no snapshot. */
    (void)request_with(keys_with_folder(",throw_on_cudamalloc_oom:True"));
    assert_int_equal(remove_files(NULL), 0);
}

static struct xseg_allocator *hooked_allocator;

static uint32_t gather_frames(void *context)
{
    (void)context;
    return 7;
}

/* Name frames for a snapshot, during which another request fails. */
static bool fail_while_naming_frames(void *context, uint32_t frames, char *text, size_t bytes)
{
    (void)frames;
    ++*(unsigned *)context;
    assert_int_equal(env_try_alloc(hooked_allocator, 4 * GIB, NULL), XSEG_ERR_NO_MEMORY);
    (void)snprintf(text, bytes, "a line");
    return true;
}

TEST(concurrent_failure_writes_no_second_file)
{
    unsigned calls = 0;

    hooked_allocator = open_with_events(keys_with_folder(",history_stacks:all"), 0);
    struct xseg_history_hook hook = {sizeof(hook), .gather = gather_frames,
                                     .name = fail_while_naming_frames, .context = &calls};
    assert_ok(xseg_history_set_hook(hooked_allocator, &hook));
    (void)request_too_much(hooked_allocator);
    assert_true(calls > 0);
    close_with_events(hooked_allocator);
    assert_int_equal(remove_files(NULL), 1);
}

static atomic_bool stop;

static void *allocate_and_fail(void *allocator)
{
    void *ptr = NULL;

    while (!atomic_load(&stop)) {
        if (xseg_alloc(allocator, 0, 20 * MIB, NULL, &ptr) == XSEG_OK)
            assert_ok(xseg_free(allocator, ptr));
        if (xseg_alloc(allocator, 0, 4 * GIB, NULL, &ptr) == XSEG_OK)
            assert_ok(xseg_free(allocator, ptr));
    }
    return NULL;
}

TEST(concurrent_failures_return_together)
{
    const char *path = folder_path("requested");
    pthread_t thread[2];

    struct xseg_allocator *allocator = open_with_events(keys_with_folder(""), 0);
    atomic_store(&stop, false);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, allocate_and_fail, allocator), 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_ok(xseg_snapshot(allocator, path, NULL));
        expect_complete(path);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    close_with_events(allocator);
    assert_in_range(remove_files(NULL), 2, 4);
}

/* A value of /proc/self/status in bytes. */
static uint64_t status_bytes(const char *key)
{
    FILE *file = fopen("/proc/self/status", "r");
    unsigned long long kib = 0;
    char line[256];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoull(line + strlen(key), NULL, 10);
    assert_int_equal(fclose(file), 0);
    assert_true(kib > 0);
    return (uint64_t)kib << 10;
}

/* Reset the peak of resident memory to its current value. */
static bool reset_peak(void)
{
    const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    const bool is_reset = file >= 0 && write(file, "5", 1) == 1;

    return (file < 0 || close(file) == 0) && is_reset;
}

#define BLOCKS_MIN 100000u
#define BLOCKS_MAX 150000u
#define EVENTS     1200000u /* as history_events */

/* With a full history, and with BLOCKS_MAX and then BLOCKS_MIN allocated blocks. */
TEST_ON(host_memory_is_bounded,
        env_open("expandable_segments:True,history:all,history_events:1200000"))
{
    static void *blocks[BLOCKS_MAX];
    const char *path = folder_path("requested");

    if (ENV_IS_SANITIZED || is_emulated() || !reset_peak()) {
        print_message("# not measurable with a sanitizer, an emulator or this kernel\n");
        return;
    }
    for (unsigned i = 0; i < BLOCKS_MAX; i++)
        blocks[i] = env_alloc(allocator, 4096, NULL);
    for (unsigned i = 0; i < EVENTS / 3; i++)
        env_free(allocator, env_alloc(allocator, 4096, NULL));
    for (unsigned count = BLOCKS_MAX; count >= BLOCKS_MIN; count -= BLOCKS_MAX - BLOCKS_MIN) {
        const uint64_t before = status_bytes("VmRSS:");

        assert_true(reset_peak());
        assert_ok(xseg_snapshot(allocator, path, NULL));
        const uint64_t growth = status_bytes("VmHWM:") - before;
        print_message("# %u allocated blocks: %llu bytes\n", count, (unsigned long long)growth);
        /* 64 bytes for each further block. */
        assert_in_range(growth, 48 * MIB, 64 * MIB + (uint64_t)(count - BLOCKS_MIN) * 64);
        for (unsigned i = count; i > BLOCKS_MIN; i--)
            env_free(allocator, blocks[i - 1]);
    }
    env_free_all(allocator, blocks, BLOCKS_MIN * sizeof(*blocks));
    assert_int_equal(remove_files(NULL), 1);
}

TEST_GROUP_FIXTURE(folder_create, remove_folder)
