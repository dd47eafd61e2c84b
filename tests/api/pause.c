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

/* The path of a file that does not exist; free() it. */
static char *new_name(void)
{
    char folder[] = P_tmpdir "/xseg-pause-XXXXXX";
    char *name = malloc(sizeof(folder) + 16);
    const int file = mkstemp(folder);

    assert_non_null(name);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(folder), 0);
    (void)snprintf(name, sizeof(folder) + 16, "%s", folder);
    return name;
}

static bool exists(const char *name)
{
    return access(name, F_OK) == 0;
}

/* Write 4 KiB of each 2 MiB of a block, with different contents. */
static void write_pattern(void *ptr, size_t bytes, uint64_t seed)
{
    for (size_t at = 0; at < bytes; at += 2 * MIB) {
        uint64_t *word = (uint64_t *)(void *)((char *)ptr + at);

        for (size_t i = 0; i < 512 && at + i * 8 < bytes; i++)
            word[i] = (seed + at + i) * UINT64_C(0x9E3779B97F4A7C15);
    }
}

static bool has_pattern(const void *ptr, size_t bytes, uint64_t seed)
{
    for (size_t at = 0; at < bytes; at += 2 * MIB) {
        const uint64_t *word = (const uint64_t *)(const void *)((const char *)ptr + at);

        for (size_t i = 0; i < 512 && at + i * 8 < bytes; i++)
            if (word[i] != (seed + at + i) * UINT64_C(0x9E3779B97F4A7C15))
                return false;
    }
    return true;
}

TEST_IN_POOL(pause_releases_memory_and_keeps_addresses, env_open(NULL))
{
    void *large = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    void *small = env_alloc_in(allocator, pool, 1000, NULL),
         *other = env_alloc(allocator, MIB, NULL);

    const uint64_t used = xseg_sim_used(0), calls = xseg_sim_calls("cuMemUnmap");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_sim_used(0), used - 62 * MIB); /* three large pages and a small one */
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), calls + 2);
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
    env_free(allocator, large, small, other);
}

/* Disk blocks of a file.  Some file systems allocate them only when the data is written. */
static off_t disk_blocks(const char *name)
{
    const int file = open(name, O_RDWR);
    struct stat status = {0};

    assert_true(file >= 0);
    assert_int_equal(fsync(file) + fstat(file, &status) + close(file), 0);
    return status.st_blocks;
}

/* The disk blocks of a sparse file with 4 KiB in each 2 MiB, which depend on the file system. */
static off_t disk_blocks_of_pattern(size_t bytes)
{
    char *name = new_name(), some[4 * KIB];
    const int file = open(name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);

    memset(some, 1, sizeof(some));
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)bytes), 0);
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        assert_int_equal(pwrite(file, some, sizeof(some), (off_t)at), sizeof(some));
    assert_int_equal(close(file), 0);
    const off_t blocks = disk_blocks(name);
    assert_int_equal(unlink(name), 0);
    free(name);
    return blocks;
}

TEST_IN_POOL(contents_are_kept, open_with_bytes(GIB, NULL))
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_HOST, XSEG_KEEP_FILE};
    const xseg_stream stream = env_stream();
    void *large = env_alloc_in(allocator, pool, 90 * MIB, stream);
    void *small = env_alloc_in(allocator, pool, 3000, NULL);
    char *name = new_name();

    for (unsigned i = 0; i < COUNT_OF(keep); i++) {
        struct stat file = {0};

        write_pattern(large, 90 * MIB, i);
        write_pattern(small, 3000, 77 + i);
        assert_ok(xseg_pool_pause(pool, keep[i], keep[i] == XSEG_KEEP_FILE ? name : NULL));
        assert_int_equal(xseg_sim_used(0), 0);
        if (keep[i] == XSEG_KEEP_FILE) {
            assert_int_equal(stat(name, &file), 0);
            assert_int_equal(file.st_size, 102 * MIB);
            assert_true(disk_blocks(name) <=
                        2 * disk_blocks_of_pattern(102 * MIB)); /* zero pages are not written */
        }
        assert_ok(xseg_pool_resume(pool));
        assert_false(exists(name));
        assert_true(has_pattern(large, 90 * MIB, i));
        assert_true(has_pattern(small, 3000, 77 + i));
    }
    free(name);
    env_free(allocator, large, small);
}

TEST_IN_POOL(memory_of_a_paused_pool_serves_other_requests, open_with_bytes(200 * MIB, NULL))
{
    void *weights = env_alloc_in(allocator, pool, 120 * MIB, NULL);

    write_pattern(weights, 120 * MIB, 1);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    void *other = env_alloc(allocator, 120 * MIB, NULL);
    write_pattern(other, 120 * MIB, 2);
    assert_error(xseg_pool_resume(pool), NO_MEMORY, "still paused");
    assert_true(has_pattern(other, 120 * MIB, 2));
    /* The resume reclaims cached memory. */
    env_free(allocator, other);
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(weights, 120 * MIB, 1));
    env_free(allocator, weights);
}

TEST_IN_POOL(resume_without_memory_stays_paused, open_with_bytes(400 * MIB, NULL))
{
    void *ptr = env_alloc_in(allocator, pool, 150 * MIB, NULL);
    char *name = new_name();

    write_pattern(ptr, 150 * MIB, 3);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, name));
    assert_ok(xseg_sim_set_external_memory(0, 300 * MIB));
    for (unsigned i = 0; i < 3; i++) {
        assert_error(xseg_pool_resume(pool), NO_MEMORY, "still paused");
        assert_int_equal(xseg_sim_used(0), 0);
    }
    assert_ok(xseg_sim_set_external_memory(0, 0));
    env_limit(allocator, NULL, 100 * MIB);
    assert_error(xseg_pool_resume(pool), LIMIT, "limit");
    env_limit(allocator, NULL, UINT64_MAX);
    assert_true(exists(name));
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(ptr, 150 * MIB, 3));
    free(name);
    env_free(allocator, ptr);
}

/* Calls on a paused pool and its blocks. */
TEST_IN_POOL(a_paused_pool_supports_host_operations, open_with_bytes(GIB, NULL))
{
    const xseg_stream stream = env_stream();
    void *keep = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    void *freed = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    void *small[2] = {env_alloc_in(allocator, pool, 600, NULL),
                      env_alloc_in(allocator, pool, 600, NULL)};
    void *other = NULL;

    write_pattern(keep, 30 * MIB, 4);
    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    const uint64_t calls = xseg_sim_calls(NULL);
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};
    assert_error(env_try_alloc_in(allocator, pool, 100, &other), PAUSED, "xseg_pool_resume");
    assert_error(env_try_alloc_in(allocator, pool, 500 * MIB, &other), PAUSED, "paused");
    assert_error(xseg_prewarm(allocator, &scope, 100), PAUSED, "paused");
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    assert_error(xseg_alloc(allocator, 0, 100, NULL, &small[0]), PAUSED, "paused");
    assert_ok(xseg_route_end(pool));
    assert_error(xseg_capture_begin(pool, stream), PAUSED, "paused");
    assert_error(xseg_pool_restore(pool, checkpoint, NULL, NULL), PAUSED, "paused");
    env_free(allocator, freed, small[1]);
    assert_error(env_try_alloc_in(allocator, pool, 100, &other), PAUSED, "paused");
    struct xseg_trim_result done = {sizeof(done)};
    assert_ok(xseg_trim(allocator, &scope, NULL, &done));
    assert_int_equal(done.released + done.kept_pool + done.kept_fragmented, 0);
    assert_true(xseg_sim_calls(NULL) <= calls + 8); /* queries of the new stream */
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(keep, 30 * MIB, 4));
    /* Memory freed during the pause is reused. */
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), freed);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, freed, keep, small[0]);
}

TEST_IN_POOL(pending_work_blocks_a_pause, env_open(NULL))
{
    const xseg_stream own = env_stream(), other = env_stream(), third = env_stream();
    void *ptr = env_alloc_in(allocator, pool, 30 * MIB, own);
    const uint64_t used = xseg_sim_used(0);

    env_launch(allocator, own, ptr);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "has pending work");
    assert_ok(xseg_sim_finish(own));
    assert_ok(xseg_record_stream(allocator, ptr, other));
    assert_ok(xseg_record_stream(allocator, ptr, third));
    for (unsigned i = 0; i < 2; i++) {
        env_launch(allocator, i == 0 ? third : other, ptr);
        assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "has pending work");
        if (i == 0)
            assert_ok(xseg_sim_finish(third));
    }
    void *freed = env_alloc_in(allocator, pool, 5 * MIB, own);
    assert_ok(xseg_record_stream(allocator, freed, other));
    env_free(allocator, freed);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "pending free");
    assert_int_equal(xseg_sim_used(0), used);
    /* The pool still serves requests. */
    env_free(allocator, env_alloc_in(allocator, pool, 1000, own));
    assert_ok(xseg_sim_finish(other));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, ptr);
}

TEST_IN_POOL(invalid_calls_change_nothing, env_open(NULL))
{
    void *ptr = env_alloc_in(allocator, pool, MIB, NULL);
    char *name = new_name();

    assert_error(xseg_pool_pause(NULL, XSEG_KEEP_NOTHING, NULL), ARGUMENT, "NULL");
    assert_error(xseg_pool_resume(NULL), ARGUMENT, "NULL");
    assert_error(xseg_pool_pause(pool, (enum xseg_keep)7, NULL), ARGUMENT, "7");
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, NULL), ARGUMENT, "file is NULL");
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, name), ARGUMENT, "file is set");
    assert_error(xseg_pool_resume(pool), ARGUMENT, "not paused");
    /* An existing file is not overwritten; the folder must exist. */
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, name), FILE, name);
    assert_true(exists(name));
    assert_int_equal(unlink(name), 0);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, "no/such/folder/file"), FILE,
                 "no/such/folder/file");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), PAUSED, "is paused");
    assert_ok(xseg_pool_resume(pool));
    assert_error(xseg_pool_resume(pool), ARGUMENT, "not paused");
    assert_ok(xseg_pool_release(env_pool_of(allocator, .memory = env_no_memory)));
    free(name);
    env_free(allocator, ptr);
}

/* A classic segment cannot keep its addresses without memory.  Pools without classic segments can be paused. */
TEST_ON(classic_segments_cannot_be_paused, env_open("expandable_segments:False"))
{
    struct xseg_pool *classic = env_pool(allocator), *pool = env_pool(allocator);
    void *old = env_alloc_in(allocator, classic, 30 * MIB, NULL);

    assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
    void *ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    void *mixed = env_alloc_in(allocator, classic, 30 * MIB, NULL);
    assert_error(xseg_pool_pause(classic, XSEG_KEEP_NOTHING, NULL), UNSUPPORTED,
                 "classic segments");
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    env_launch(allocator, NULL, old);
    env_launch(allocator, NULL, mixed);
    xseg_sim_finish_all();
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, old, ptr, mixed);
}

/* The memory of a graph includes memory that was freed in the capture. */
TEST_IN_POOL(graphs_stay_valid, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_capture_begin(pool, stream);
    void *held = env_alloc(allocator, 30 * MIB, stream);
    void *temporary = env_alloc(allocator, 50 * MIB, stream);
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), BUSY, "capture");
    env_free(allocator, temporary);
    struct CUgraph_st *graph = env_capture_end_graph(pool, stream);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    struct xseg_pool *other = env_pool(allocator);
    env_capture_begin(other, stream);
    assert_error(xseg_pool_resume(pool), BUSY, "capture");
    env_capture_end(other, stream);
    assert_ok(xseg_pool_resume(pool));
    /* A replay uses the block and the freed block. */
    assert_ok(xseg_sim_launch_on(stream, 1000, (uintptr_t)held, 30 * MIB));
    assert_ok(xseg_sim_launch_on(stream, 1000, (uintptr_t)temporary, 50 * MIB));
    xseg_sim_finish_all();
    env_graph_destroy(graph);
    env_free(allocator, held);
}

/* A paused pool that is released is destroyed with its last block. */
TEST(a_released_pool_is_discarded_with_its_last_block)
{
    struct xseg_allocator *allocator = open_with_bytes(GIB, NULL);
    struct xseg_pool *pool = env_observed_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    char *name = new_name();

    write_pattern(ptr, 30 * MIB, 5);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, name));
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(ptr, 30 * MIB, 5));
    assert_error(xseg_pool_pause(pool, XSEG_KEEP_FILE, name), ARGUMENT, "pool has been released");
    env_free(allocator, ptr);
    pool = env_pool(allocator);
    ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, name));
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, ptr);
    assert_true(exists(name));
    env_empty_cache(allocator);
    assert_false(exists(name));
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    assert_int_equal(env_stats(allocator).paused_bytes, 0);
    /* A close discards paused pools as well. */
    pool = env_pool(allocator);
    env_free(allocator, env_alloc_in(allocator, pool, 30 * MIB, NULL));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_FILE, name));
    env_close(allocator);
    assert_false(exists(name));
    free(name);
}

TEST_ON(exportable_pool_stays_paused_if_the_driver_fails,
        open_with_bytes(GIB, "expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .exportable = true);
    uint64_t *word = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    *word = 7;
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 801));
    assert_error(xseg_pool_resume(pool), UNSUPPORTED, "cuMemCreate failed");
    assert_int_equal(env_reserved(allocator), 0);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(*word, 7);
    env_free(allocator, word);
    assert_ok(xseg_pool_release(pool));
}

TEST_IN_POOL(failed_resume_retains_no_memory, open_with_bytes(GIB, NULL))
{
    static const char *const call[] = {"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync"};
    void *ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL);

    write_pattern(ptr, 50 * MIB, 6);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    for (unsigned i = 0; i < COUNT_OF(call); i++) {
        env_fail_every(call[i], 999);
        assert_error(xseg_pool_resume(pool), DRIVER, "still paused");
        assert_ok(xseg_sim_fault_set(0, NULL));
        assert_int_equal(xseg_sim_used(0), 0);
        assert_int_equal(env_stats(allocator).physical_bytes, 0);
        assert_int_equal(env_stats(allocator).paused_bytes, 60 * MIB);
    }
    assert_ok(xseg_pool_resume(pool));
    assert_true(has_pattern(ptr, 50 * MIB, 6));
    env_free(allocator, ptr);
}

TEST_IN_POOL(an_empty_pool_can_be_paused, env_open(NULL))
{
    void *other = NULL;

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_error(env_try_alloc_in(allocator, pool, 100, &other), PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, env_alloc_in(allocator, pool, 100, NULL));
}

#define HALF   (5 * GIB) /* whole pages */
#define PIECES 10u

/* While `watched`, driver calls on the pages that are not paused fail. */
static void watch_calls(uint64_t base, uint64_t bytes, bool watched)
{
    if (watched) {
        env_fault(0, .address = base, .bytes = bytes, .every = 1, .error = 999);
    } else {
        assert_int_equal(xseg_sim_fault_count(0), 0);
        assert_ok(xseg_sim_fault_set(0, NULL));
    }
}

/* 10 GiB in total, with queued work throughout. */
TEST_IN_POOL(half_of_the_pools_pause_while_the_others_serve, open_with_bytes(16 * GIB, NULL))
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_NOTHING, XSEG_KEEP_HOST, XSEG_KEEP_FILE};
    const xseg_stream serving = env_stream();
    void *active = env_alloc(allocator, HALF, serving), *paused[PIECES];
    char *name = new_name();

    for (unsigned i = 0; i < PIECES; i++)
        paused[i] = env_alloc_in(allocator, pool, HALF / PIECES, NULL);
    write_pattern(active, HALF, 1000);
    env_launch(allocator, serving, active);
    for (unsigned mode = 0; mode < COUNT_OF(keep); mode++) {
        for (unsigned i = 0; i < PIECES; i++)
            write_pattern(paused[i], HALF / PIECES, mode * PIECES + i);
        const uint64_t used = xseg_sim_used(0);
        watch_calls((uintptr_t)active, HALF, true);
        assert_ok(xseg_pool_pause(pool, keep[mode], keep[mode] == XSEG_KEEP_FILE ? name : NULL));
        assert_int_equal(xseg_sim_used(0), used - HALF);
        void *request = env_alloc(allocator, 2 * GIB, serving);
        env_launch(allocator, serving, request);
        env_free(allocator, request);
        assert_ok(xseg_pool_resume(pool));
        watch_calls((uintptr_t)active, HALF, false);
        for (unsigned i = 0; i < PIECES && keep[mode] != XSEG_KEEP_NOTHING; i++)
            assert_true(has_pattern(paused[i], HALF / PIECES, mode * PIECES + i));
    }
    assert_true(has_pattern(active, HALF, 1000));
    free(name);
    env_free_all(allocator, paused, PIECES * sizeof(*paused));
    env_free(allocator, active);
    xseg_sim_finish_all();
}

/* --- The file with the contents of a pool: exactly this file is removed, although paths change. --- */

#define BYTES (4 * MIB)

/* A pool with contents, and two folders; the first is the current folder. */
static struct {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned char *block;
    char here[64], there[64];
    int before;     /* the initial current folder */
    unsigned files; /* initial number of open descriptors */
} f;

static void make_folder(char *name, size_t bytes)
{
    (void)snprintf(name, bytes, "%s", P_tmpdir "/xseg-kept-XXXXXX");
    assert_non_null(mkdtemp(name));
}

static int set_up(void **state)
{
    (void)state;
    f.allocator = env_open_sim(NULL, .memory_bytes = GIB, .real_bytes = true);
    f.pool = env_pool(f.allocator);
    f.block = env_alloc_in(f.allocator, f.pool, BYTES, NULL);
    memset(f.block, 0x5A, BYTES);
    make_folder(f.here, sizeof(f.here));
    make_folder(f.there, sizeof(f.there));
    f.before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(f.before >= 0);
    assert_int_equal(chdir(f.here), 0);
    f.files = env_open_fds();
    return 0;
}

/* Both folders must be empty; `here` may have been renamed. */
static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(env_open_fds(), f.files);
    assert_int_equal(fchdir(f.before), 0);
    assert_int_equal(close(f.before), 0);
    (void)rmdir(f.here);
    assert_int_not_equal(access(f.here, F_OK), 0);
    assert_int_equal(rmdir(f.there), 0);
    env_free(f.allocator, f.block);
    env_close(f.allocator);
    return 0;
}

static void pause_pool(const char *name)
{
    assert_ok(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, name));
    assert_int_equal(access(name, F_OK), 0);
}

static void resume_pool(void)
{
    assert_ok(xseg_pool_resume(f.pool));
    for (size_t at = 0; at < BYTES; at += 511)
        assert_int_equal(f.block[at], 0x5A);
}

static void write_file(const char *name)
{
    const int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);

    assert_true(file >= 0);
    assert_int_equal(write(file, "mine", 4), 4);
    assert_int_equal(close(file), 0);
}

/* Remove a file after a check that write_file() created it. */
static void remove_written(const char *name)
{
    char text[8] = "";
    const int file = open(name, O_RDONLY | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(read(file, text, sizeof(text)), 4);
    assert_memory_equal(text, "mine", 4);
    assert_int_equal(close(file) + unlink(name), 0);
}

TEST_WITH(relative_path_refers_to_the_folder_at_the_pause, set_up, tear_down)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "%s/kept", f.here);
    pause_pool("kept");
    assert_int_equal(chdir(f.there), 0);
    write_file("kept");
    resume_pool();
    remove_written("kept");
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST_WITH(discarded_pool_removes_its_file, set_up, tear_down)
{
    char path[80];

    (void)snprintf(path, sizeof(path), "%s/kept", f.here);
    pause_pool("./kept");
    assert_int_equal(chdir(f.there), 0);
    write_file("kept");
    assert_ok(xseg_pool_release(f.pool));
    env_free(f.allocator, f.block);
    f.block = NULL;
    env_empty_cache(f.allocator);
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
    char moved[80], path[96];

    (void)snprintf(moved, sizeof(moved), "%s/moved", f.there);
    (void)snprintf(path, sizeof(path), "%s/kept", f.here);
    pause_pool(path);
    assert_int_equal(rename(f.here, moved), 0);
    assert_int_equal(mkdir(f.here, S_IRWXU), 0);
    write_file(path);
    resume_pool();
    remove_written(path);
    assert_int_equal(rmdir(moved), 0); /* fails unless empty */
}

TEST_WITH(removed_folder_is_no_error, set_up, tear_down)
{
    char folder[80], path[96];

    (void)snprintf(folder, sizeof(folder), "%s/folder", f.here);
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
    static const char *const names[] = {"", "/", ".", "..", "./", "new/", "file/kept", "no/kept"};
    char link[] = "link";

    write_file("file");
    assert_int_equal(symlink("nowhere", link), 0);
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        assert_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, names[i]), FILE, names[i]);
    assert_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, link), FILE, "exists");
    assert_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, "file"), FILE, "exists");
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
