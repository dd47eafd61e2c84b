/* SPDX-License-Identifier: MIT */
/*
 * Exports of whole segments: one token for all mapped pages, importers that stay connected, and the end of an export by
 * pool release, pause and close.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"

#define BLOCK_BYTES (40 * MIB)
#define STRIDE      (64 * KIB)

static const struct xseg_sim_settings sim_settings = {sizeof(struct xseg_sim_settings),
                                                      .memory_bytes = 1 * GIB, .real_bytes = true};

static struct xseg_allocator *allocator;

static void fill(void *ptr, unsigned char value)
{
    for (size_t offset = 0; offset < BLOCK_BYTES; offset += STRIDE)
        ((volatile unsigned char *)ptr)[offset] = value;
}

static bool holds(const void *ptr, unsigned char value)
{
    for (size_t offset = 0; offset < BLOCK_BYTES; offset += STRIDE)
        if (((const volatile unsigned char *)ptr)[offset] != value)
            return false;
    return true;
}

static void *segment_base(const void *block)
{
    return env_block(allocator, block).segment_base;
}

static struct xseg_export_token export_segment(const void *address)
{
    struct xseg_export_token token;

    assert_ok(xseg_export_segment(allocator, address, &token));
    return token;
}

static bool is_equal(struct xseg_export_token first, struct xseg_export_token second)
{
    return memcmp(&first, &second, sizeof(first)) == 0;
}

static uint64_t imported_bytes(void)
{
    return env_stats(allocator).imported_bytes;
}

static void *import(struct xseg_export_token token)
{
    void *base = NULL;

    assert_ok(xseg_import(allocator, 0, &token, &base));
    return base;
}

/* --- A second process that imports segments: it executes commands, and its responses are y or n. --- */

enum command { IMPORT, READ, WRITE, CLOSE, IMPORT_FAILS, EXIT };

struct message {
    enum command command;
    unsigned char value;
    struct xseg_export_token token;
    uint64_t offset; /* of a block from the imported address */
};

static bool execute(const struct message *message, char **base)
{
    void *imported = NULL;

    switch (message->command) {
    case IMPORT:
        if (xseg_import(allocator, 0, &message->token, &imported) != XSEG_OK)
            return false;
        *base = imported;
        return true;
    case READ:
        return holds(*base + message->offset, message->value);
    case WRITE:
        fill(*base + message->offset, message->value);
        return true;
    case CLOSE:
        return xseg_import_close(allocator, *base) == XSEG_OK;
    case IMPORT_FAILS:
        return xseg_import(allocator, 0, &message->token, &imported) == XSEG_ERR_NOT_ALLOCATED;
    default:
        return xseg_close(allocator) == XSEG_OK && xseg_sim_leaks(NULL, 0) == 0;
    }
}

static void run_importer(int socket, const struct xseg_sim_settings *settings)
{
    struct message message;
    char *base = NULL;

    if (xseg_sim_reset(settings) != XSEG_OK || env_try_open(NULL, &allocator) != XSEG_OK)
        _exit(1);
    while (read(socket, &message, sizeof(message)) == (ssize_t)sizeof(message))
        if (write(socket, execute(&message, &base) ? "y" : "n", 1) != 1)
            _exit(2);
    _exit(0);
}

static bool send_message(const struct process *process, struct message message)
{
    assert_int_equal(write(process->socket, &message, sizeof(message)), sizeof(message));
    return process_responds_yes(process);
}

#define SEND(process, ...) assert_true(send_message(&(process), (struct message){__VA_ARGS__}))

/* Returns false if processes cannot share a simulated device. */
static bool start_process(struct process *process)
{
    if (!process_start(process, &sim_settings, run_importer))
        return false;
    assert_ok(env_try_open("exportable:True", &allocator));
    return true;
}

static void end_process(const struct process *process)
{
    struct xseg_sim_settings unshared_settings = sim_settings;

    unshared_settings.real_bytes = false;
    SEND(*process, EXIT);
    process_end(process, allocator, &unshared_settings);
}

/* Pause a pool after the exporter has handled the disconnection of its importer, which may take a moment. */
static xseg_status pause_after_disconnect(struct xseg_pool *pool)
{
    xseg_status status = XSEG_ERR_BUSY;

    for (unsigned i = 0; i < 500 && status == XSEG_ERR_BUSY; i++) {
        status = xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL);
        if (status == XSEG_ERR_BUSY)
            (void)usleep(10000);
    }
    return status;
}

static struct xseg_pool *create_pool(void)
{
    return env_pool_of(allocator, .exportable = true);
}

/* --- Two processes. --- */

TEST(importer_maps_all_blocks_of_a_segment)
{
    struct process process = {0};

    if (!start_process(&process))
        return;
    unsigned char *first = env_alloc(allocator, BLOCK_BYTES, NULL);
    void *middle = env_alloc(allocator, BLOCK_BYTES, NULL);
    unsigned char *last = env_alloc(allocator, BLOCK_BYTES, NULL);
    env_free(allocator, middle);
    env_empty_cache(allocator);
    fill(first, 11);
    fill(last, 12);
    /* The pages of the middle block are unmapped. */
    const char *base = segment_base(last);
    const struct xseg_export_token token = export_segment(base);
    const uint64_t first_offset = (uint64_t)((char *)first - base);
    const uint64_t last_offset = (uint64_t)((char *)last - base);
    SEND(process, IMPORT, .token = token);
    SEND(process, READ, 11, .offset = first_offset);
    SEND(process, READ, 12, .offset = last_offset);
    SEND(process, WRITE, 13, .offset = last_offset);
    assert_true(holds(last, 13));
    SEND(process, CLOSE);
    env_free(allocator, first);
    env_free(allocator, last);
    end_process(&process);
}

TEST(importer_maps_a_segment_whose_first_page_is_unmapped)
{
    struct process process = {0};

    if (!start_process(&process))
        return;
    void *first = env_alloc(allocator, BLOCK_BYTES, NULL);
    unsigned char *last = env_alloc(allocator, BLOCK_BYTES, NULL);
    const char *base = segment_base(last);
    env_free(allocator, first);
    env_empty_cache(allocator);
    fill(last, 21);
    SEND(process, IMPORT, .token = export_segment(base));
    SEND(process, READ, 21, .offset = (uint64_t)((char *)last - base));
    SEND(process, CLOSE);
    /* The import by a token of another address of the segment returns that address. */
    SEND(process, IMPORT, .token = export_segment(last));
    SEND(process, READ, 21, .offset = 0);
    SEND(process, CLOSE);
    env_free(allocator, last);
    end_process(&process);
}

TEST(paused_pool_has_no_importers)
{
    struct process process = {0};

    if (!start_process(&process))
        return;
    struct xseg_pool *pool = create_pool();
    void *block = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL);
    const struct xseg_export_token token = export_segment(block);
    SEND(process, IMPORT, .token = token);
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY, "1 importers");
    assert_true(is_equal(token, export_segment(block)));
    SEND(process, CLOSE);
    assert_ok(pause_after_disconnect(pool));
    env_expect_error(xseg_export_segment(allocator, block, &(struct xseg_export_token){{0}}),
                     XSEG_ERR_PAUSED, "");
    SEND(process, IMPORT_FAILS, .token = token);
    /* After the resume the pool has other pages, and so another token. */
    assert_ok(xseg_pool_resume(pool));
    assert_false(is_equal(token, export_segment(block)));
    SEND(process, IMPORT_FAILS, .token = token);
    SEND(process, IMPORT, .token = export_segment(block));
    SEND(process, CLOSE);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    end_process(&process);
}

TEST(killed_importer_is_no_longer_counted)
{
    struct process process = {0};
    struct xseg_sim_settings unshared_settings = sim_settings;

    if (!start_process(&process))
        return;
    struct xseg_pool *pool = create_pool();
    void *block = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL);
    SEND(process, IMPORT, .token = export_segment(block));
    assert_int_equal(kill(process.pid, SIGKILL), 0);
    assert_ok(pause_after_disconnect(pool));
    assert_int_equal(waitpid(process.pid, NULL, 0), process.pid);
    (void)close(process.socket);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    unshared_settings.real_bytes = false;
    assert_int_equal(xseg_sim_reset(&unshared_settings), XSEG_OK);
}

/* --- One process on both sides. --- */

static int open_exporter(void **state)
{
    (void)state;
    allocator = env_open_on(&sim_settings, "exportable:True");
    return 0;
}

static int close_exporter(void **state)
{
    (void)state;
    env_close(allocator);
    return 0;
}

TEST_WITH(same_pages_have_the_same_token, open_exporter, close_exporter)
{
    void *block = env_alloc(allocator, BLOCK_BYTES, NULL);
    const char *base = segment_base(block);
    const struct xseg_export_token first_token = export_segment(base);

    /* The export retains the pages of a block that is freed, trimmed and allocated again. */
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_true(is_equal(first_token, export_segment(base)));
    assert_ptr_equal(env_alloc(allocator, BLOCK_BYTES, NULL), block);
    assert_true(is_equal(first_token, export_segment(base)));
    /* A growth adds pages.  The first token still imports the first pages only. */
    void *second = env_alloc(allocator, BLOCK_BYTES, NULL);
    assert_ptr_equal(segment_base(second), base);
    const struct xseg_export_token second_token = export_segment(base);
    assert_false(is_equal(first_token, second_token));
    char *first_import = import(first_token), *second_import = import(second_token);
    fill(block, 31);
    fill(second, 32);
    assert_true(holds(first_import + ((char *)block - base), 31));
    assert_true(holds(second_import + ((char *)block - base), 31));
    assert_true(holds(second_import + ((char *)second - base), 32));
    assert_ok(xseg_import_close(allocator, first_import));
    assert_ok(xseg_import_close(allocator, second_import));
    env_free(allocator, block);
    env_free(allocator, second);
}

TEST_WITH(second_import_returns_the_same_memory, open_exporter, close_exporter)
{
    char *block = env_alloc(allocator, BLOCK_BYTES, NULL);
    char *first = import(export_segment(segment_base(block)));

    assert_int_equal(imported_bytes(), BLOCK_BYTES);
    /* The token of another address imports the same memory. */
    char *second = import(export_segment(block));
    assert_ptr_equal(second, first + (block - (char *)segment_base(block)));
    assert_int_equal(imported_bytes(), BLOCK_BYTES);
    fill(block, 41);
    assert_ok(xseg_import_close(allocator, first));
    assert_true(holds(second, 41));
    assert_ok(xseg_import_close(allocator, second));
    assert_int_equal(xseg_import_close(allocator, second), XSEG_ERR_NOT_ALLOCATED);
    env_free(allocator, block);
}

static void *import_in_thread(void *token)
{
    return import(*(const struct xseg_export_token *)token);
}

TEST_WITH(concurrent_imports_return_the_same_memory, open_exporter, close_exporter)
{
    enum { THREADS = 8, ROUNDS = 20 };
    void *block = env_alloc(allocator, BLOCK_BYTES, NULL);
    struct xseg_export_token token = export_segment(block);

    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_t thread[THREADS];
        void *base[THREADS];

        for (unsigned i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, import_in_thread, &token), 0);
        for (unsigned i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(thread[i], &base[i]), 0);
        assert_int_equal(imported_bytes(), BLOCK_BYTES);
        for (unsigned i = 0; i < THREADS; i++) {
            assert_ptr_equal(base[i], base[0]);
            assert_ok(xseg_import_close(allocator, base[i]));
        }
    }
    env_free(allocator, block);
}

TEST_WITH(child_of_an_importer_is_not_counted, open_exporter, close_exporter)
{
    struct xseg_pool *pool = create_pool();
    void *block = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL),
         *base = import(export_segment(block));
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(60);
        (void)pause();
        _exit(0);
    }
    assert_ok(xseg_import_close(allocator, base));
    assert_ok(pause_after_disconnect(pool));
    assert_int_equal(kill(child, SIGKILL), 0);
    (void)env_wait(child);
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

TEST_WITH(exported_segment_keeps_its_pages_until_the_pool_is_released, open_exporter,
          close_exporter)
{
    struct xseg_pool *pool = create_pool();
    void *block = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL);
    struct xseg_export_token token = export_segment(block);

    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), BLOCK_BYTES);
    char *imported = import(token);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 0);
    fill(imported, 51);
    assert_true(holds(imported, 51));
    assert_ok(xseg_import_close(allocator, imported));
    env_expect_error(xseg_import(allocator, 0, &token, (void **)&imported), XSEG_ERR_NOT_ALLOCATED,
                     "closed");
}

TEST_WITH(block_of_an_exported_segment_can_be_exported, open_exporter, close_exporter)
{
    struct xseg_pool *pool = create_pool();
    void *block = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL);
    struct xseg_export_token token;

    (void)export_segment(block);
    assert_ok(xseg_export(allocator, block, &token, NULL));
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY,
                     "41943040 bytes of pool");
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

TEST_WITH(memory_that_cannot_be_exported_is_rejected, open_exporter, close_exporter)
{
    struct xseg_export_token token;
    char *block = env_alloc(allocator, BLOCK_BYTES, NULL),
         *end = (char *)segment_base(block) + BLOCK_BYTES;
    int local = 0;

    env_expect_error(xseg_export_segment(allocator, &local, &token), XSEG_ERR_NOT_ALLOCATED, "");
    env_expect_error(xseg_export_segment(allocator, end, &token), XSEG_ERR_NOT_ALLOCATED,
                     "address is after the last mapped page of its segment");
    env_expect_error(xseg_export_segment(allocator, NULL, &token), XSEG_ERR_ARGUMENT,
                     "address is NULL");
    env_expect_error(xseg_export_segment(allocator, block, NULL), XSEG_ERR_ARGUMENT,
                     "token is NULL");
    struct xseg_pool *pool = create_pool();
    void *allocated = env_alloc_in(allocator, pool, BLOCK_BYTES, NULL);
    assert_ok(xseg_pool_release(pool));
    env_expect_error(xseg_export_segment(allocator, allocated, &token), XSEG_ERR_UNSUPPORTED,
                     "pool has been released");
    env_free(allocator, allocated);
    env_free(allocator, block);
    env_close(allocator);

    allocator = env_open("expandable_segments:False");
    void *classic = env_alloc(allocator, BLOCK_BYTES, NULL);
    env_expect_error(xseg_export_segment(allocator, classic, &token), XSEG_ERR_UNSUPPORTED,
                     "classic segment");
    env_free(allocator, classic);
    env_close(allocator);

    allocator = env_open(NULL);
    void *not_exportable = env_alloc(allocator, BLOCK_BYTES, NULL);
    env_expect_error(xseg_export_segment(allocator, not_exportable, &token), XSEG_ERR_UNSUPPORTED,
                     "exportable:True");
    env_free(allocator, not_exportable);
}

TEST_WITH(altered_tokens_are_rejected, open_exporter, close_exporter)
{
    /* Offsets of the fields of a token. */
    enum { OFFSET = 32, SIZE = 40, GENERATION = 48, KIND = 60 };
    char *block = env_alloc(allocator, BLOCK_BYTES, NULL);
    const struct xseg_export_token token = export_segment(block);
    static const struct {
        size_t index; /* of the byte of which a bit is inverted */
        xseg_status status;
    } cases[] = {
        {OFFSET + 7, XSEG_ERR_ARGUMENT},
        {SIZE + 3, XSEG_ERR_NOT_ALLOCATED},
        {SIZE, XSEG_ERR_ARGUMENT},
        {GENERATION, XSEG_ERR_NOT_ALLOCATED},
        {GENERATION + 7, XSEG_ERR_NOT_ALLOCATED},
        {KIND, XSEG_ERR_NOT_ALLOCATED},
        {KIND + 1, XSEG_ERR_ARGUMENT},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct xseg_export_token altered = token;
        void *base = NULL;

        altered.byte[cases[i].index] ^= 1;
        assert_int_equal(xseg_import(allocator, 0, &altered, &base), cases[i].status);
        assert_null(base);
    }
    env_free(allocator, block);
}

TEST(close_ends_exports_of_segments)
{
    const unsigned open_files = env_open_fds();

    (void)open_exporter(NULL);
    void *block = env_alloc(allocator, BLOCK_BYTES, NULL);
    (void)export_segment(block);
    env_free(allocator, block);
    env_close(allocator);
    assert_int_equal(env_open_fds(), open_files);
}

/* A thread of the exporter handles importers that disconnect, while the close frees the exported segments. */
TEST(close_waits_for_importers_that_disconnect)
{
    enum { ROUNDS = 20, POOLS = 32 };

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct xseg_pool *pool[POOLS];
        void *block[POOLS], *base[POOLS];

        (void)open_exporter(NULL);
        for (unsigned i = 0; i < POOLS; i++) {
            pool[i] = env_pool(allocator);
            block[i] = env_alloc_in(allocator, pool[i], 2 * MIB, NULL);
            base[i] = import(export_segment(block[i]));
        }
        for (unsigned i = 0; i < POOLS; i++)
            env_free(allocator, block[i]);
        for (unsigned i = 0; i < POOLS; i++)
            assert_ok(xseg_import_close(allocator, base[i]));
        env_close(allocator);
    }
}
