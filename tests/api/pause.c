/* SPDX-License-Identifier: MIT */
/* Pause and resume: memory is released and mapped again at the same addresses. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/env.h"

static struct xseg_allocator *open_with_bytes(uint64_t memory, const char *config)
{
    return env_open_sim(config, .memory_bytes = memory, .real_bytes = true);
}

/* A path in the temporary folder at which no file exists; the caller frees it. */
static char *new_path(void)
{
    char template[] = P_tmpdir "/xseg-pause-XXXXXX";
    char *path = malloc(sizeof(template) + 16);
    const int file = mkstemp(template);

    assert_non_null(path);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(template), 0);
    (void)snprintf(path, sizeof(template) + 16, "%s", template);
    return path;
}

static bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Write 4 KiB of each 2 MiB of a block, with different contents. */
static void write_pattern(void *ptr, size_t bytes, uint64_t seed)
{
    for (size_t offset = 0; offset < bytes; offset += 2 * MIB) {
        uint64_t *words = (uint64_t *)(void *)((char *)ptr + offset);

        for (size_t i = 0; i < 512 && offset + i * 8 < bytes; i++)
            words[i] = (seed + offset + i) * UINT64_C(0x9E3779B97F4A7C15);
    }
}

static bool has_pattern(const void *ptr, size_t bytes, uint64_t seed)
{
    for (size_t offset = 0; offset < bytes; offset += 2 * MIB) {
        const uint64_t *words = (const uint64_t *)(const void *)((const char *)ptr + offset);

        for (size_t i = 0; i < 512 && offset + i * 8 < bytes; i++)
            if (words[i] != (seed + offset + i) * UINT64_C(0x9E3779B97F4A7C15))
                return false;
    }
    return true;
}

TEST_IN_POOL(pause_releases_memory_and_keeps_addresses, env_open(NULL))
{
    void *large = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    void *small = env_alloc_in(allocator, pool, 1000, NULL),
         *default_block = env_alloc(allocator, MIB, NULL);

    const uint64_t used = xseg_sim_used(0), unmaps = xseg_sim_calls("cuMemUnmap");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    /* A run of three large pages, and a small page. */
    assert_int_equal(xseg_sim_used(0), used - (3 * 20 + 2) * MIB);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), unmaps + 2);
    const struct xseg_statistics paused = env_stats(allocator);
    assert_int_equal(paused.reserved_bytes[XSEG_STAT_ALL].current, 2 * MIB);
    assert_int_equal(paused.paused_bytes, 62 * MIB);
    assert_int_equal(paused.allocation[XSEG_STAT_ALL].current, 3);
    assert_int_equal(env_block(allocator, large).state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(env_block(allocator, small).requested, 1000);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(xseg_sim_used(0), used);
    assert_int_equal(env_reserved(allocator), 64 * MIB);
    assert_int_equal(env_stats(allocator).paused_bytes, 0);
    /* Work on the device can use the blocks again. */
    env_launch(allocator, NULL, large);
    env_launch(allocator, NULL, small);
    xseg_sim_finish_all();
    env_free(allocator, large, small, default_block);
}

/* The disk blocks of a file.  Some file systems allocate them only when the data is written, so the file is synchronized. */
static off_t disk_blocks(const char *path)
{
    const int file = open(path, O_RDWR);
    struct stat info = {0};

    assert_true(file >= 0);
    assert_int_equal(fsync(file) + fstat(file, &info) + close(file), 0);
    return info.st_blocks;
}

/* The disk blocks of a sparse file with 4 KiB in each 2 MiB, which depend on the file system. */
static off_t disk_blocks_of_pattern(size_t bytes)
{
    char *path = new_path(), data[4 * KIB];
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);

    memset(data, 1, sizeof(data));
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)bytes), 0);
    for (size_t offset = 0; offset < bytes; offset += 2 * MIB)
        assert_int_equal(pwrite(file, data, sizeof(data), (off_t)offset), sizeof(data));
    assert_int_equal(close(file), 0);
    const off_t blocks = disk_blocks(path);
    assert_int_equal(unlink(path), 0);
    free(path);
    return blocks;
}

TEST_IN_POOL(contents_are_kept, open_with_bytes(GIB, NULL))
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_HOST, XSEG_KEEP_FILE};
    const xseg_stream stream = env_stream();
    void *large = env_alloc_in(allocator, pool, 90 * MIB, stream);
    void *small = env_alloc_in(allocator, pool, 3000, NULL);
    char *path = new_path();

    for (unsigned i = 0; i < COUNT_OF(keep); i++) {
        struct stat file = {0};

        write_pattern(large, 90 * MIB, i);
        write_pattern(small, 3000, 77 + i);
        assert_ok(xseg_pool_pause(pool, keep[i], keep[i] == XSEG_KEEP_FILE ? path : NULL));
        assert_int_equal(xseg_sim_used(0), 0);
        if (keep[i] == XSEG_KEEP_FILE) {
            assert_int_equal(stat(path, &file), 0);
            /* Five large pages and a small page, of which zeros are not written. */
            assert_int_equal(file.st_size, (5 * 20 + 2) * MIB);
            assert_true(disk_blocks(path) <= 2 * disk_blocks_of_pattern(102 * MIB));
        }
        assert_ok(xseg_pool_resume(pool));
        assert_false(file_exists(path));
        assert_true(has_pattern(large, 90 * MIB, i));
        assert_true(has_pattern(small, 3000, 77 + i));
    }
    free(path);
    env_free(allocator, large, small);
}

TEST_IN_POOL(memory_of_a_paused_pool_serves_other_requests, open_with_bytes(200 * MIB, NULL))
{
    void *weights = env_alloc_in(allocator, pool, 120 * MIB, NULL);

    write_pattern(weights, 120 * MIB, 1);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    void *default_block = env_alloc(allocator, 120 * MIB, NULL);
    write_pattern(default_block, 120 * MIB, 2);
    assert_error(xseg_pool_resume(pool), NO_MEMORY, "still paused");
    assert_true(has_pattern(default_block, 120 * MIB, 2));
    /* The resume reclaims cached memory. */
    env_free(allocator, default_block);
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(weights, 120 * MIB, 1));
    env_free(allocator, weights);
}

TEST_IN_POOL(resume_without_memory_stays_paused, open_with_bytes(400 * MIB, NULL))
{
    void *ptr = env_alloc_in(allocator, pool, 150 * MIB, NULL);
    char *path = new_path();

    write_pattern(ptr, 150 * MIB, 3);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, path));
    assert_ok(xseg_sim_set_external_memory(0, 300 * MIB));
    for (unsigned i = 0; i < 3; i++) {
        assert_error(xseg_pool_resume(pool), NO_MEMORY, "still paused");
        assert_int_equal(xseg_sim_used(0), 0);
    }
    assert_ok(xseg_sim_set_external_memory(0, 0));
    env_set_hard_limit(allocator, NULL, 100 * MIB);
    assert_error(xseg_pool_resume(pool), LIMIT, "limit");
    env_set_hard_limit(allocator, NULL, UINT64_MAX);
    assert_true(file_exists(path));
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(ptr, 150 * MIB, 3));
    free(path);
    env_free(allocator, ptr);
}

/* Requests of a paused pool are rejected.  Frees and queries of its blocks make no driver call. */
TEST_IN_POOL(a_paused_pool_supports_host_operations, open_with_bytes(GIB, NULL))
{
    const xseg_stream stream = env_stream();
    void *kept = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    void *freed = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    void *small[2] = {env_alloc_in(allocator, pool, 600, NULL),
                      env_alloc_in(allocator, pool, 600, NULL)};
    void *ptr = NULL;

    write_pattern(kept, 30 * MIB, 4);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    const uint64_t calls = xseg_sim_calls(NULL);
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};
    assert_error(env_try_alloc_in(allocator, pool, 100, &ptr), PAUSED, "xseg_pool_resume");
    assert_error(env_try_alloc_in(allocator, pool, 500 * MIB, &ptr), PAUSED, "paused");
    assert_error(xseg_prewarm(allocator, &scope, 100), PAUSED, "paused");
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_error(xseg_alloc(allocator, 0, 100, NULL, &small[0]), PAUSED, "paused");
    assert_ok(xseg_route_end(pool));
    assert_error(xseg_capture_begin(pool, stream), PAUSED, "paused");
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), PAUSED, "paused");
    env_free(allocator, freed, small[1]);
    assert_error(env_try_alloc_in(allocator, pool, 100, &ptr), PAUSED, "paused");
    struct xseg_trim_result result = {sizeof(result)};
    assert_ok(xseg_trim(allocator, &scope, NULL, &result));
    assert_int_equal(result.released + result.kept_pool + result.kept_fragmented, 0);
    /* Only xseg_capture_begin() makes driver calls, which query the new stream. */
    assert_true(xseg_sim_calls(NULL) <= calls + 8);
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(kept, 30 * MIB, 4));
    /* Memory freed during the pause is reused. */
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), freed);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, freed, kept, small[0]);
}

TEST_IN_POOL(pending_work_blocks_a_pause, env_open(NULL))
{
    const xseg_stream first = env_stream(), second = env_stream(), third = env_stream();
    void *block = env_alloc_in(allocator, pool, 30 * MIB, first);
    const uint64_t used = xseg_sim_used(0);

    /* Work on the stream of the block. */
    env_launch(allocator, first, block);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "has pending work");
    assert_ok(xseg_sim_finish(first));
    /* Work on other streams that use the block, which is pending on one of them until the end of the test. */
    assert_ok(xseg_record_stream(allocator, block, second));
    assert_ok(xseg_record_stream(allocator, block, third));
    for (unsigned i = 0; i < 2; i++) {
        env_launch(allocator, i == 0 ? third : second, block);
        assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "has pending work");
        if (i == 0)
            assert_ok(xseg_sim_finish(third));
    }
    void *freed = env_alloc_in(allocator, pool, 5 * MIB, first);
    assert_ok(xseg_record_stream(allocator, freed, second));
    env_free(allocator, freed);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "pending free");
    assert_int_equal(xseg_sim_used(0), used);
    /* The pool still serves requests. */
    env_free(allocator, env_alloc_in(allocator, pool, 1000, first));
    assert_ok(xseg_sim_finish(second));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
}

TEST_IN_POOL(invalid_calls_change_nothing, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, MIB, NULL);
    char *path = new_path();

    assert_error(xseg_pool_pause(NULL, XSEG_KEEP_NOTHING, NULL), ARGUMENT, "NULL");
    assert_error(xseg_pool_resume(NULL), ARGUMENT, "NULL");
    assert_error(xseg_pool_pause(pool, (enum xseg_keep)7, NULL), ARGUMENT, "7");
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, NULL), ARGUMENT, "file is NULL");
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, path), ARGUMENT, "file is set");
    assert_error(xseg_pool_resume(pool), ARGUMENT, "not paused");
    /* An existing file is not overwritten; the folder must exist. */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, path), FILE, path);
    assert_true(file_exists(path));
    assert_int_equal(unlink(path), 0);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, "no/such/folder/file"), FILE,
                 "no/such/folder/file");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), PAUSED, "is paused");
    assert_ok(xseg_pool_resume(pool));
    assert_error(xseg_pool_resume(pool), ARGUMENT, "not paused");
    assert_ok(xseg_pool_release(env_pool_of(allocator, .memory = env_no_memory)));
    free(path);
    env_free(allocator, block);
}

/* A classic segment cannot keep its addresses without memory.  A pool with classic and expandable segments cannot be paused. */
TEST_ON(classic_segments_cannot_be_paused, env_open("expandable_segments:False"))
{
    struct xseg_pool *classic_pool = env_pool(allocator), *expandable_pool = env_pool(allocator);
    void *classic_block = env_alloc_in(allocator, classic_pool, 30 * MIB, NULL);

    assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
    void *expandable_block = env_alloc_in(allocator, expandable_pool, 30 * MIB, NULL);
    void *mixed_block = env_alloc_in(allocator, classic_pool, 30 * MIB, NULL);
    assert_error(xseg_pool_pause(classic_pool, XSEG_KEEP_NOTHING, NULL), UNSUPPORTED,
                 "classic segments");
    assert_ok(xseg_pool_pause(expandable_pool, XSEG_KEEP_NOTHING, NULL));
    env_launch(allocator, NULL, classic_block);
    env_launch(allocator, NULL, mixed_block);
    xseg_sim_finish_all();
    assert_ok(xseg_pool_resume(expandable_pool));
    env_free(allocator, classic_block, expandable_block, mixed_block);
}

/* A graph also uses memory that was freed in its capture, so this memory is mapped again as well. */
TEST_IN_POOL(graphs_stay_valid, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    void *allocated = env_alloc(allocator, 30 * MIB, stream);
    void *temporary = env_alloc(allocator, 50 * MIB, stream);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "capture");
    env_free(allocator, temporary);
    struct CUgraph_st *graph = env_capture_end_graph(pool, stream);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    struct xseg_pool *second_pool = env_pool(allocator);
    env_capture_begin(second_pool, stream);
    assert_error(xseg_pool_resume(pool), BUSY, "capture");
    env_capture_end(second_pool, stream);
    assert_ok(xseg_pool_resume(pool));
    /* A launch of the graph uses the allocated and the freed block. */
    assert_ok(xseg_sim_launch_on(stream, 1000, (uintptr_t)allocated, 30 * MIB));
    assert_ok(xseg_sim_launch_on(stream, 1000, (uintptr_t)temporary, 50 * MIB));
    xseg_sim_finish_all();
    env_graph_destroy(graph);
    env_free(allocator, allocated);
}

/* A paused pool that is released keeps its contents while it has a block; afterwards a trim or the close discards them. */
TEST(a_released_pool_is_discarded_with_its_last_block)
{
    struct xseg_allocator *allocator = open_with_bytes(GIB, NULL);
    struct xseg_pool *pool = env_observed_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    char *path = new_path();

    write_pattern(block, 30 * MIB, 5);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, path));
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(block, 30 * MIB, 5));
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, path), ARGUMENT, "pool has been released");
    env_free(allocator, block);

    pool = env_pool(allocator);
    block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, path));
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, block);
    assert_true(file_exists(path));
    env_empty_cache(allocator);
    assert_false(file_exists(path));
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    assert_int_equal(env_stats(allocator).paused_bytes, 0);

    /* A close discards paused pools as well. */
    pool = env_pool(allocator);
    env_free(allocator, env_alloc_in(allocator, pool, 30 * MIB, NULL));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, path));
    env_close(allocator);
    assert_false(file_exists(path));
    free(path);
}

TEST_ON(exportable_pool_stays_paused_if_the_driver_fails,
        open_with_bytes(GIB, "expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    uint64_t *value = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    *value = 7;
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 801));
    assert_error(xseg_pool_resume(pool), UNSUPPORTED, "cuMemCreate failed");
    assert_int_equal(env_reserved(allocator), 0);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(*value, 7);
    env_free(allocator, value);
    assert_ok(xseg_pool_release(pool));
}

TEST_IN_POOL(failed_resume_retains_no_memory, open_with_bytes(GIB, NULL))
{
    static const char *const calls[] = {"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync"};
    void *ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL);

    write_pattern(ptr, 50 * MIB, 6);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    for (unsigned i = 0; i < COUNT_OF(calls); i++) {
        env_fail_every(calls[i], 999);
        assert_error(xseg_pool_resume(pool), DRIVER, "still paused");
        assert_ok(xseg_sim_fault_set(0, NULL));
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(env_stats(allocator).physical_bytes, 0);
        assert_int_equal(env_stats(allocator).paused_bytes, 3 * 20 * MIB);
    }
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(ptr, 50 * MIB, 6));
    env_free(allocator, ptr);
}

TEST_IN_POOL(an_empty_pool_can_be_paused, env_open(NULL))
{
    void *ptr = NULL;

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_error(env_try_alloc_in(allocator, pool, 100, &ptr), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, env_alloc_in(allocator, pool, 100, NULL));
}

#define HALF   (5 * GIB) /* 256 pages of 20 MiB */
#define BLOCKS 10u

/* From now on driver calls on this memory fail. */
static void fail_calls_on(const void *address, uint64_t bytes)
{
    env_fault(0, .address = (uintptr_t)address, .bytes = bytes, .every = 1, .error = 999);
}

/* No call has failed, and from now on no call fails. */
static void expect_no_failed_call(void)
{
    assert_int_equal(xseg_sim_fault_count(0), 0);
    assert_ok(xseg_sim_fault_set(0, NULL));
}

/* Of 10 GiB, a half is paused, while work uses the other half; no driver call names the memory of that half. */
TEST_IN_POOL(half_of_the_pools_pause_while_the_others_serve, open_with_bytes(16 * GIB, NULL))
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_NOTHING, XSEG_KEEP_HOST, XSEG_KEEP_FILE};
    const xseg_stream serving = env_stream();
    void *active = env_alloc(allocator, HALF, serving), *paused[BLOCKS];
    char *path = new_path();

    for (unsigned i = 0; i < BLOCKS; i++)
        paused[i] = env_alloc_in(allocator, pool, HALF / BLOCKS, NULL);
    write_pattern(active, HALF, 1000);
    env_launch(allocator, serving, active);
    for (unsigned mode = 0; mode < COUNT_OF(keep); mode++) {
        for (unsigned i = 0; i < BLOCKS; i++)
            write_pattern(paused[i], HALF / BLOCKS, mode * BLOCKS + i);
        const uint64_t used = xseg_sim_used(0);
        fail_calls_on(active, HALF);
        assert_ok(xseg_pool_pause(pool, keep[mode], keep[mode] == XSEG_KEEP_FILE ? path : NULL));
        assert_int_equal(xseg_sim_used(0), used - HALF);
        void *block = env_alloc(allocator, 2 * GIB, serving);
        env_launch(allocator, serving, block);
        env_free(allocator, block);
        assert_ok(xseg_pool_resume(pool));
        expect_no_failed_call();
        for (unsigned i = 0; i < BLOCKS && keep[mode] != XSEG_KEEP_NOTHING; i++)
            assert_true(has_pattern(paused[i], HALF / BLOCKS, mode * BLOCKS + i));
    }
    assert_true(has_pattern(active, HALF, 1000));
    free(path);
    env_free_all(allocator, paused, BLOCKS * sizeof(*paused));
    env_free(allocator, active);
    xseg_sim_finish_all();
}

/* --- The file with the contents of a pool: exactly this file is removed, although paths change. --- */

#define BLOCK_BYTES (4 * MIB)

/* A pool with contents, and two folders, of which `folder` is the current folder. */
static struct {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned char *block;
    char folder[64], second_folder[64];
    int initial_folder;  /* the current folder before the test */
    unsigned open_files; /* number of open descriptors before the test */
} fixture;

static void make_folder(char *path, size_t bytes)
{
    (void)snprintf(path, bytes, "%s", P_tmpdir "/xseg-kept-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static int set_up(void **state)
{
    (void)state;
    fixture.allocator = env_open_sim(NULL, .memory_bytes = GIB, .real_bytes = true);
    fixture.pool = env_pool(fixture.allocator);
    fixture.block = env_alloc_in(fixture.allocator, fixture.pool, BLOCK_BYTES, NULL);
    memset(fixture.block, 0x5A, BLOCK_BYTES);
    make_folder(fixture.folder, sizeof(fixture.folder));
    make_folder(fixture.second_folder, sizeof(fixture.second_folder));
    fixture.initial_folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fixture.initial_folder >= 0);
    assert_int_equal(chdir(fixture.folder), 0);
    fixture.open_files = env_open_fds();
    return 0;
}

/* Both folders must be empty; `folder` may have been renamed. */
static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(env_open_fds(), fixture.open_files);
    assert_int_equal(fchdir(fixture.initial_folder), 0);
    assert_int_equal(close(fixture.initial_folder), 0);
    (void)rmdir(fixture.folder);
    assert_int_not_equal(access(fixture.folder, F_OK), 0);
    assert_int_equal(rmdir(fixture.second_folder), 0);
    env_free(fixture.allocator, fixture.block);
    env_close(fixture.allocator);
    return 0;
}

static void pause_pool(const char *path)
{
    assert_ok(xseg_pool_pause(fixture.pool, XSEG_KEEP_FILE, path));
    assert_int_equal(access(path, F_OK), 0);
}

static void resume_pool(void)
{
    assert_ok(xseg_pool_resume(fixture.pool));
    for (size_t i = 0; i < BLOCK_BYTES; i += 511)
        assert_int_equal(fixture.block[i], 0x5A);
}

static void write_file(const char *path)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);

    assert_true(file >= 0);
    assert_int_equal(write(file, "mine", 4), 4);
    assert_int_equal(close(file), 0);
}

/* Remove a file that write_file() created, and expect its contents. */
static void remove_written(const char *path)
{
    char contents[8] = "";
    const int file = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(read(file, contents, sizeof(contents)), 4);
    assert_memory_equal(contents, "mine", 4);
    assert_int_equal(close(file) + unlink(path), 0);
}

TEST_WITH(relative_path_refers_to_the_folder_at_the_pause, set_up, tear_down)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "%s/kept", fixture.folder);
    pause_pool("kept");
    assert_int_equal(chdir(fixture.second_folder), 0);
    write_file("kept");
    resume_pool();
    remove_written("kept");
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST_WITH(discarded_pool_removes_its_file, set_up, tear_down)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "%s/kept", fixture.folder);
    pause_pool("./kept");
    assert_int_equal(chdir(fixture.second_folder), 0);
    write_file("kept");
    assert_ok(xseg_pool_release(fixture.pool));
    env_free(fixture.allocator, fixture.block);
    fixture.block = NULL;
    env_empty_cache(fixture.allocator);
    assert_int_not_equal(access(path, F_OK), 0);
    remove_written("kept");
}

TEST_WITH(replaced_file_is_not_removed, set_up, tear_down)
{
    pause_pool("kept");
    assert_int_equal(unlink("kept"), 0);
    write_file("kept");
    resume_pool();
    remove_written("kept");

    pause_pool("kept");
    write_file("other");
    assert_int_equal(rename("other", "kept"), 0);
    resume_pool();
    remove_written("kept");
}

/* A link to the renamed file is another file. */
TEST_WITH(replaced_link_is_not_removed, set_up, tear_down)
{
    pause_pool("kept");
    assert_int_equal(rename("kept", "moved"), 0);
    assert_int_equal(symlink("moved", "kept"), 0);
    resume_pool();
    assert_int_equal(unlink("kept") + unlink("moved"), 0);
}

TEST_WITH(file_is_removed_from_a_renamed_folder, set_up, tear_down)
{
    char moved_folder[80], path[96];

    (void)snprintf(moved_folder, sizeof(moved_folder), "%s/moved", fixture.second_folder);
    (void)snprintf(path, sizeof(path), "%s/kept", fixture.folder);
    pause_pool(path);
    assert_int_equal(rename(fixture.folder, moved_folder), 0);
    assert_int_equal(mkdir(fixture.folder, S_IRWXU), 0);
    write_file(path);
    resume_pool();
    remove_written(path);
    assert_int_equal(rmdir(moved_folder), 0); /* fails unless empty */
}

TEST_WITH(removed_folder_is_no_error, set_up, tear_down)
{
    char folder[80], path[96];

    (void)snprintf(folder, sizeof(folder), "%s/folder", fixture.folder);
    (void)snprintf(path, sizeof(path), "%s/kept", folder);
    assert_int_equal(mkdir(folder, S_IRWXU), 0);
    pause_pool(path);
    assert_int_equal(unlink(path) + rmdir(folder), 0);
    resume_pool();

    /* A file of the same path in another folder is not removed. */
    assert_int_equal(mkdir(folder, S_IRWXU), 0);
    pause_pool("folder/kept");
    assert_int_equal(unlink(path) + rmdir(folder) + mkdir(folder, S_IRWXU), 0);
    write_file(path);
    resume_pool();
    remove_written(path);
    assert_int_equal(rmdir(folder), 0);
}

TEST_WITH(paths_without_a_file_name_are_rejected, set_up, tear_down)
{
    static const char *const paths[] = {"", "/", ".", "..", "./", "new/", "file/kept", "no/kept"};
    char link[] = "link";

    write_file("file");
    assert_int_equal(symlink("nowhere", link), 0);
    for (unsigned i = 0; i < COUNT_OF(paths); i++)
        assert_error(xseg_pool_pause(fixture.pool, XSEG_KEEP_FILE, paths[i]), FILE, paths[i]);
    assert_error(xseg_pool_pause(fixture.pool, XSEG_KEEP_FILE, link), FILE, "exists");
    assert_error(xseg_pool_pause(fixture.pool, XSEG_KEEP_FILE, "file"), FILE, "exists");
    assert_int_not_equal(access("nowhere", F_OK), 0);
    remove_written("file");
    assert_int_equal(unlink(link), 0);
}

TEST_WITH(file_is_readable_by_its_owner_only, set_up, tear_down)
{
    const mode_t mask = umask(0);
    struct stat info = {0};

    pause_pool("kept");
    (void)umask(mask);
    assert_int_equal(stat("kept", &info), 0);
    assert_int_equal(info.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO), S_IRUSR | S_IWUSR);
    resume_pool();
}
