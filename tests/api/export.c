/* SPDX-License-Identifier: MIT */
/* Exports by raw handles: two processes on one device with real contents, retained memory, and failing calls. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/exported_blocks.h"
#include "tests/support/process.h"

/* Numbers of CUresult. */
#define OPERATING_SYSTEM 304
#define ILLEGAL_ADDRESS  700
#define NOT_PERMITTED    800
#define NOT_SUPPORTED    801
#define UNKNOWN          999

/* The allocator of a test, its exportable pool, and its log. */
static struct xseg_allocator *allocator;
static struct xseg_pool *pool;
static struct env_log warnings;

static struct xseg_sim_settings sim_settings(bool real_bytes, uint64_t memory)
{
    return (struct xseg_sim_settings){sizeof(struct xseg_sim_settings), .memory_bytes = memory,
                                      .real_bytes = real_bytes};
}

static xseg_status try_pool(struct xseg_pool **out)
{
    const struct xseg_pool_options options = {sizeof(options), .exportable = true};

    return xseg_pool_create(allocator, 0, &options, out);
}

static struct xseg_pool *make_pool(void)
{
    struct xseg_pool *created = NULL;

    assert_ok(try_pool(&created));
    return created;
}

static struct xseg_allocator *open_on(bool real_bytes, uint64_t memory, const char *config)
{
    const struct xseg_sim_settings settings = sim_settings(real_bytes, memory);

    return env_open_with_clock(&settings, config);
}

static int close_allocator(void **state)
{
    (void)state;
    env_close(allocator);
    return 0;
}

/* A test of an exportable pool. */
#define TEST_OF_POOL(name, open)            \
    static void name##_of(void);            \
    TEST(name)                              \
    {                                       \
        allocator = (open);                 \
        pool = make_pool();                 \
        name##_of();                        \
        assert_ok(xseg_pool_release(pool)); \
        env_close(allocator);               \
    }                                       \
    static void name##_of(void)

static struct exported_handles export_of(void *ptr)
{
    struct exported_handles exported;

    assert_ok(export_handles(allocator, ptr, XSEG_HANDLE_FD, &exported));
    return exported;
}

/* Export, and close the descriptors; the export stays open. */
static void open_export(void *ptr)
{
    assert_ok(export_and_close_handles(allocator, ptr));
}

/* Export by handles of a type, and close the descriptors and the export. */
static void export_once(void *ptr, enum xseg_handle_type type)
{
    struct exported_handles exported;

    assert_ok(export_handles(allocator, ptr, type, &exported));
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, ptr));
}

/* Query the pages of a block, which must be exportable; nothing is exported. */
static xseg_status query_pages(void *ptr)
{
    size_t count = 0;

    return xseg_export_handles(allocator, ptr, XSEG_HANDLE_FD, NULL, 0, &count, NULL);
}

/* --- Another process, which executes commands, a letter and a value, and responds with y or n. --- */

struct importer {
    struct xseg_allocator *allocator;
    void *base; /* of the run */
    unsigned char *block;
    size_t bytes;
};

/* The message that sends the handles of a block to another process. */
struct export_message {
    uint64_t offset, bytes; /* of the block */
    size_t count;
    struct xseg_page_handle handle[8]; /* whose descriptors the message carries */
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
};

static struct msghdr header_of(struct export_message *message, struct iovec *data)
{
    *data = (struct iovec){message, offsetof(struct export_message, control)};
    return (struct msghdr){.msg_iov = data,
                           .msg_iovlen = 1,
                           .msg_control = message->control,
                           .msg_controllen = sizeof(message->control)};
}

static void send_export(int socket, const struct exported_handles *exported, uint64_t bytes)
{
    struct export_message message = {exported->offset, bytes, exported->count, {{0}}, {0}};
    struct iovec data;
    struct msghdr header = header_of(&message, &data);

    assert_true(exported->count <= COUNT_OF(message.handle));
    memcpy(message.handle, exported->handle, exported->count * sizeof(message.handle[0]));
    header.msg_controllen = CMSG_SPACE(exported->count * sizeof(int));
    struct cmsghdr *control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(exported->count * sizeof(int));
    for (size_t i = 0; i < exported->count; i++)
        memcpy(CMSG_DATA(control) + i * sizeof(int), &exported->handle[i].fd, sizeof(int));
    assert_int_equal(sendmsg(socket, &header, 0), data.iov_len);
}

static bool receive_and_import(struct importer *importer, int socket)
{
    struct export_message message;
    struct iovec data;
    struct msghdr header = header_of(&message, &data);

    if (recvmsg(socket, &header, MSG_WAITALL) != (ssize_t)data.iov_len)
        return false;
    for (size_t i = 0; i < message.count; i++)
        memcpy(&message.handle[i].fd, CMSG_DATA(CMSG_FIRSTHDR(&header)) + i * sizeof(int),
               sizeof(int));
    const xseg_status status = xseg_import_handles(importer->allocator, 0, XSEG_HANDLE_FD,
                                                   message.handle, message.count, &importer->base);
    for (size_t i = 0; i < message.count; i++)
        (void)close(message.handle[i].fd);
    importer->block = (unsigned char *)importer->base + message.offset;
    importer->bytes = message.bytes;
    return status == XSEG_OK;
}

/* Whether only the run is mapped, up to a page of 20 MiB longer at both ends, and counts only as imported. */
static bool is_only_imported(const struct importer *importer)
{
    struct xseg_statistics stats = {sizeof(stats)};

    return xseg_stats_get(importer->allocator, env_scope(.device = 0), &stats) == XSEG_OK &&
           stats.imported_bytes >= importer->bytes &&
           stats.imported_bytes < importer->bytes + 2 * 20 * MIB &&
           stats.reserved_bytes[XSEG_STAT_ALL].current == 0 && stats.physical_bytes == 0 &&
           stats.address_bytes == 0 && xseg_sim_used(0) == 0;
}

static bool execute_command(struct importer *importer, int socket, char command,
                            unsigned char value)
{
    switch (command) {
    case 'i':
        return receive_and_import(importer, socket) && is_only_imported(importer);
    case 'r':
        return is_filled(importer->block, importer->bytes, value);
    case 'w':
        fill(importer->block, importer->bytes, value);
        return true;
    case 'c':
        return xseg_import_close(importer->allocator, importer->base) == XSEG_OK &&
               xseg_sim_leaks(NULL, 0) == 1; /* the context */
    default:
        return xseg_close(importer->allocator) == XSEG_OK && xseg_sim_leaks(NULL, 0) == 0;
    }
}

static void run_importer(int socket, const struct xseg_sim_settings *settings)
{
    struct importer importer = {0};
    char command[2];

    if (xseg_sim_reset(settings) != XSEG_OK || env_try_open(NULL, &importer.allocator) != XSEG_OK)
        _exit(1);
    while (read(socket, command, 2) == 2) {
        const bool succeeds =
            execute_command(&importer, socket, command[0], (unsigned char)command[1]);

        if (write(socket, succeeds ? "y" : "n", 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static void send_command(const struct process *process, char command, unsigned char value)
{
    assert_int_equal(write(process->socket, (const char[]){command, (char)value}, 2), 2);
}

static bool call_importer(const struct process *process, char command, unsigned char value)
{
    send_command(process, command, value);
    return process_responds_yes(process);
}

/* Returns false if processes cannot share a simulated device. */
static bool start_process(struct process *process)
{
    const struct xseg_sim_settings settings = sim_settings(true, 1 * GIB);

    *process = (struct process){.pid = 0};
    if (!process_start(process, &settings, run_importer))
        return false;
    assert_ok(env_try_open(NULL, &allocator));
    pool = make_pool();
    return true;
}

static void end_process(const struct process *process)
{
    const struct xseg_sim_settings unshared = sim_settings(false, 1 * GIB);

    assert_true(call_importer(process, 'e', 0));
    process_end(process, allocator, &unshared);
}

/* Export a block and send it to the other process, which imports it; no descriptor remains open here. */
static void send_block(const struct process *process, void *block)
{
    const unsigned before = env_open_fds();
    struct exported_handles exported = export_of(block);

    send_command(process, 'i', 0);
    send_export(process->socket, &exported, env_block(allocator, block).bytes);
    export_handles_close(&exported);
    assert_true(process_responds_yes(process));
    assert_int_equal(env_open_fds(), before);
}

TEST(importer_reads_the_exporters_data)
{
    static const size_t sizes[] = {1000, 700 * KIB, 3 * MIB, 20 * MIB, 70 * MIB};
    struct process process;

    if (!start_process(&process))
        return;
    /* Because of these blocks no exported block begins at the start of a page. */
    void *first = env_alloc_in(allocator, pool, 3000, NULL);
    void *large = env_alloc_in(allocator, pool, 15 * MIB, NULL);

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *block = env_alloc_in(allocator, pool, sizes[i], NULL);
        /* The importer maps the whole block, which may be longer than the request. */
        const size_t bytes = env_block(allocator, block).bytes;

        fill(block, bytes, (unsigned char)(10 + i));
        send_block(&process, block);
        assert_true(call_importer(&process, 'r', (unsigned char)(10 + i)));
        fill(block, bytes, 99);
        assert_true(call_importer(&process, 'r', 99));
        assert_true(call_importer(&process, 'w', (unsigned char)(100 + i)));
        assert_true(is_filled(block, bytes, (unsigned char)(100 + i)));
        assert_true(call_importer(&process, 'c', 0));
        export_close_and_free(allocator, block);
    }
    env_free(allocator, first, large);
    end_process(&process);
}

/* The exporter frees the block, closes the export and releases the pages; the importer still has them. */
TEST(importers_outlive_the_exporter)
{
    struct process process;

    if (!start_process(&process))
        return;
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    fill(block, 40 * MIB, 7);
    send_block(&process, block);
    env_free(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_trim(allocator).released, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
    /* The memory of the device is in use until the importer closes. */
    assert_int_equal(xseg_sim_used(0), 40 * MIB);
    void *ptr = env_alloc(allocator, 100 * MIB, NULL);
    fill(ptr, 100 * MIB, 8);
    assert_true(call_importer(&process, 'r', 7));
    assert_true(call_importer(&process, 'c', 0));
    assert_int_equal(xseg_sim_used(0), 100 * MIB);
    env_free(allocator, ptr);
    end_process(&process);
}

/* The importer exits without closing its import. */
TEST(importer_that_exits_releases_its_memory)
{
    const struct xseg_sim_settings unshared = sim_settings(false, 1 * GIB);
    struct process process;
    int status = 0;

    if (!start_process(&process))
        return;
    void *block = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    send_block(&process, block);
    env_free(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(env_trim_pool(allocator, pool).released, 20 * MIB);
    assert_int_equal(xseg_sim_used(0), 20 * MIB);
    (void)close(process.socket);
    assert_int_equal(waitpid(process.pid, &status, 0), process.pid);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    assert_ok(xseg_sim_reset(&unshared));
}

/* --- One process on both sides. --- */

TEST_OF_POOL(exporter_can_import_its_own_export, open_on(true, GIB, NULL))
{
    void *before = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    unsigned char *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct exported_handles exported = export_of(block);
    void *first_base = NULL, *second_base = NULL, *first_block = NULL, *second_block = NULL;

    assert_int_equal(exported.count, 3); /* 3 + 50 MiB on pages of 20 MiB */
    for (size_t i = 0; i < exported.count; i++) {
        assert_int_equal(fcntl(exported.handle[i].fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(exported.handle[i].offset, i * 20 * MIB);
        assert_int_equal(exported.handle[i].size, 20 * MIB);
    }
    assert_int_equal(exported.offset, (size_t)(block - (unsigned char *)before));
    assert_ok(import_handles(allocator, &exported, &first_block, &first_base));
    assert_ok(import_handles(allocator, &exported, &second_block, &second_base));
    export_handles_close(&exported);
    assert_int_equal(env_stats(allocator).imported_bytes, 2 * 60 * MIB);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 60 * MIB);
    fill(first_block, 50 * MIB, 5);
    assert_true(is_filled(block, 50 * MIB, 5));
    assert_true(is_filled(second_block, 50 * MIB, 5));
    assert_ok(xseg_import_close(allocator, first_base));
    assert_error(xseg_import_close(allocator, first_base), NOT_ALLOCATED, "imported");
    assert_true(is_filled(second_block, 50 * MIB, 5));
    /* An import is not a block. */
    assert_error(xseg_free(allocator, second_base), NOT_ALLOCATED, "");
    assert_error(xseg_close(allocator), BUSY, "blocks are allocated");
    env_free(allocator, before, block);
    assert_error(xseg_close(allocator), BUSY, "xseg_export_close");
    assert_ok(xseg_export_close(allocator, block));
    assert_error(xseg_export_close(allocator, block), NOT_ALLOCATED, "exported");
    assert_error(xseg_close(allocator), BUSY, "xseg_import_close");
    assert_ok(xseg_import_close(allocator, second_base));
    assert_int_equal(env_stats(allocator).imported_bytes, 0);
}

TEST_OF_POOL(exports_and_imports_have_the_documented_cost, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    struct xseg_export_token token;
    uint64_t calls = xseg_sim_calls(NULL);

    assert_ok(query_pages(block));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    struct exported_handles exported = export_of(block);
    assert_int_equal(xseg_sim_calls(NULL) - calls, 3); /* one for each page */
    calls = xseg_sim_calls(NULL);
    assert_ok(import_handles(allocator, &exported, NULL, &base));
    /* Reserve; import, map and release each page; set access. */
    assert_int_equal(xseg_sim_calls(NULL) - calls, 1 + 3 * 3 + 1);
    export_handles_close(&exported);
    assert_ok(xseg_import_close(allocator, base));
    /* The close and the probe at the opening of the device made one call of each. */
    assert_int_equal(xseg_sim_calls("cuMemUnmap") + xseg_sim_calls("cuMemAddressFree"), 1 + 1 + 2);
    /* The first export by a token queries the UUID of the device, and the import exports each page. */
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_export(allocator, block, &token, NULL));
    assert_int_equal(xseg_sim_calls(NULL) - calls, 1);
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_import(allocator, 0, &token, &base));
    assert_int_equal(xseg_sim_calls(NULL) - calls, 3 + 1 + 3 * 3 + 1);
    assert_ok(xseg_import_close(allocator, base));
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    env_free(allocator, block);
}

TEST_OF_POOL(exported_pool_is_not_paused, open_on(true, GIB, NULL))
{
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    fill(block, 30 * MIB, 3);
    open_export(block);
    open_export(block);
    for (unsigned exports = 2; exports > 0; exports--) {
        assert_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), BUSY, "memory is exported");
        assert_true(is_filled(block, 30 * MIB, 3));
        assert_ok(xseg_export_close(allocator, block));
    }
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    assert_error(query_pages(block), PAUSED, "");
    assert_ok(xseg_pool_resume(pool));
    assert_true(is_filled(block, 30 * MIB, 3));
    /* The pages created by the resume can be exported as well. */
    open_export(block);
    export_close_and_free(allocator, block);
}

static bool add_exported_bytes(void *context, const struct xseg_reason *reason)
{
    uint64_t *bytes = context;

    if (reason->kind == XSEG_REASON_EXPORTED)
        *bytes += reason->bytes;
    return true;
}

/* Idle exported bytes according to xseg_explain(). */
static uint64_t idle_exported_bytes(void)
{
    struct xseg_explain_result sums = {sizeof(sums)};
    uint64_t bytes = 0;

    assert_ok(xseg_explain(allocator, NULL, add_exported_bytes, &bytes, &sums));
    assert_int_equal(sums.exported, bytes);
    assert_int_equal(sums.reserved, sums.allocated + sums.pending + sums.claimed + sums.pool +
                                        sums.pinned + sums.capture + sums.stream + sums.keep +
                                        sums.decay + sums.policy + sums.exported + sums.registered);
    return bytes;
}

static bool add_exported_mapping(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *bytes = context;

    *bytes += mapping->is_exported ? mapping->bytes : 0;
    return true;
}

TEST_OF_POOL(trim_keeps_exported_pages, env_open(NULL))
{
    const struct xseg_trim_options by_age = {sizeof(by_age), .idle_ms = 1};
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    uint64_t mapped = 0;

    open_export(block);
    env_free(allocator, block, env_alloc_in(allocator, pool, 20 * MIB, NULL));
    struct xseg_trim_result result = env_trim_pool(allocator, pool);
    assert_int_equal(result.kept_exported, 40 * MIB);
    assert_int_equal(result.kept_pinned, 0);
    assert_int_equal(result.released, 20 * MIB);
    assert_int_equal(result.remaining, 40 * MIB);
    assert_int_equal(idle_exported_bytes(), 40 * MIB);
    assert_string_equal(xseg_reason_message(XSEG_REASON_EXPORTED), "idle, but exported");
    assert_ok(xseg_for_each_mapping(allocator, NULL, add_exported_mapping, &mapped));
    assert_int_equal(mapped, 40 * MIB);
    result = (struct xseg_trim_result){sizeof(result)};
    assert_ok(xseg_trim(allocator, env_scope(.device = -1, .pool = pool), &by_age, &result));
    assert_int_equal(result.kept_exported, 40 * MIB);
    /* A user's pin is reported first. */
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    assert_ok(xseg_pin(allocator, block, 1));
    env_free(allocator, block);
    result = env_trim_pool(allocator, pool);
    assert_int_equal(result.kept_pinned, 20 * MIB);
    assert_int_equal(result.kept_exported, 20 * MIB);
    assert_ok(xseg_unpin(allocator, block, 1));
    assert_error(xseg_unpin(allocator, block, 1), ARGUMENT, "pinned");
    assert_int_equal(env_trim_pool(allocator, pool).kept_exported, 40 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(env_trim_pool(allocator, pool).released, 40 * MIB);
}

TEST_WITH(decay_keeps_exported_pages, NULL, close_allocator)
{
    allocator = open_on(false, 1 * GIB, "idle_ms:100");
    pool = make_pool();
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);

    open_export(block);
    env_free(allocator, block, env_alloc_in(allocator, pool, 20 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    env_advance_and_trim(allocator, 20, 100);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    env_advance_and_trim(allocator, 20, 100);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_WITH(fallback_chain_keeps_exported_pages, NULL, close_allocator)
{
    allocator = open_on(false, 200 * MIB, NULL);
    pool = make_pool();
    void *block = env_alloc_in(allocator, pool, 120 * MIB, NULL), *ptr = NULL;

    open_export(block);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_error(xseg_alloc(allocator, 0, 150 * MIB, NULL, &ptr), NO_MEMORY,
                 "120.00 MiB cached and exported");
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, env_alloc(allocator, 150 * MIB, NULL));
}

/* Exportable pages that have not been exported are remapped to exportable pools; pages for other pools are created. */
TEST_OF_POOL(pages_are_remapped_to_pools_of_their_kind, open_on(false, 200 * MIB, NULL))
{
    env_free(allocator, env_alloc_in(allocator, pool, 160 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    pool = make_pool();
    uint64_t created = xseg_sim_calls("cuMemCreate");
    void *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    /* 2 of 5 pages are created, since 40 of 200 MiB were free; 3 pages are remapped. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 2);
    export_once(block, XSEG_HANDLE_FD);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    created = xseg_sim_calls("cuMemCreate");
    block = env_alloc(allocator, 180 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 9); /* 180 MiB / 20 MiB */
    /* Only the necessary pages were released. */
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    env_free(allocator, block);
    /* Pages that are not exportable are not remapped to an exportable pool. */
    pool = make_pool();
    block = env_alloc_in(allocator, pool, 180 * MIB, NULL);
    export_once(block, XSEG_HANDLE_FD);
    env_free(allocator, block);
}

/* The importer of a page has it mapped until the import is closed, so no other pool may use the page. */
TEST_OF_POOL(exported_pages_are_not_reused_by_other_pools,
             open_on(true, 200 * MIB, "page_cache_mb:200"))
{
    struct xseg_pool *first = make_pool();
    void *block = env_alloc_in(allocator, first, 120 * MIB, NULL), *imported = NULL, *ptr = NULL;
    struct exported_handles exported = export_of(block);

    assert_ok(import_handles(allocator, &exported, NULL, &imported));
    export_handles_close(&exported);
    fill(imported, 120 * MIB, 9);
    export_close_and_free(allocator, block);
    assert_ok(xseg_pool_release(first));
    /* Pages of the first pool are released, but the importer retains their memory. */
    assert_error(env_try_alloc_in(allocator, pool, 100 * MIB, &ptr), NO_MEMORY, "");
    assert_true(env_reserved(allocator) < 120 * MIB);
    ptr = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    fill(ptr, 60 * MIB, 200);
    assert_true(is_filled(imported, 120 * MIB, 9));
    assert_ok(xseg_import_close(allocator, imported));
    env_free(allocator, ptr);
    env_free(allocator, env_alloc_in(allocator, pool, 150 * MIB, NULL));
}

static struct xseg_statistics run_random_requests(bool exportable)
{
    const struct xseg_sim_settings settings = sim_settings(false, 400 * MIB);
    void *ptr[40] = {NULL};
    uint64_t random = 12345;

    allocator = env_open_with_clock(&settings, "page_cache_mb:100");
    pool = env_pool_of(allocator, .exportable = exportable);

    for (unsigned i = 0; i < 2000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const unsigned slot = (unsigned)(random >> 33) % 40;
        const size_t bytes = (size_t)1 << (6 + (random >> 40) % 20);

        env_free(allocator, ptr[slot]);
        ptr[slot] = NULL;
        if (env_try_alloc_in(allocator, pool, bytes, &ptr[slot]) != XSEG_OK)
            ptr[slot] = NULL;
        if (i % 100 == 99)
            (void)env_trim_pool(allocator, pool);
    }
    const struct xseg_statistics stats = env_stats(allocator);
    env_free_all(allocator, ptr, sizeof(ptr));
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    return stats;
}

TEST(exportable_pool_has_the_statistics_of_any_pool)
{
    struct xseg_statistics plain = run_random_requests(false),
                           exportable = run_random_requests(true);

    /* Resident host memory depends on the offsets of records in host pages. */
    plain.host_bytes = exportable.host_bytes = 0;
    assert_memory_equal(&plain, &exportable, sizeof(plain));
    assert_true(plain.num_device_alloc > 10 && plain.num_device_free > 10);
}

TEST(missing_handle_support_is_probed_once)
{
    static const struct {
        const char *call;
        int error;
    } failures[] = {
        {"cuMemCreate", NOT_SUPPORTED},
        {"cuMemCreate", NOT_PERMITTED},
        {"cuMemExportToShareableHandle", NOT_SUPPORTED},
    };
    struct xseg_pool *out = NULL;

    for (unsigned i = 0; i < COUNT_OF(failures); i++) {
        allocator = env_open(NULL);
        env_free(allocator, env_alloc(allocator, 1000, NULL));
        env_fail_every(failures[i].call, failures[i].error);
        assert_error(try_pool(&out), UNSUPPORTED, failures[i].call);
        assert_ok(xseg_sim_fault_set(0, NULL));
        const uint64_t calls = xseg_sim_calls(NULL);
        assert_error(try_pool(&out), UNSUPPORTED, failures[i].call);
        assert_int_equal(xseg_sim_calls(NULL), calls);
        assert_null(out);
        /* Other pools can be created. */
        assert_ok(xseg_pool_release(env_pool(allocator)));
        env_close(allocator);
    }
}

/* A full device, and a driver error that may be temporary. */
TEST_WITH(failed_probe_runs_again_for_the_next_pool, NULL, close_allocator)
{
    struct xseg_pool *out = NULL;
    void *block = NULL;

    allocator = env_open_mib(200, NULL);
    void *device_memory = env_alloc(allocator, 200 * MIB, NULL);
    pool = make_pool();
    assert_error(env_try_alloc_in(allocator, pool, 1000, &block), NO_MEMORY, "");
    env_free(allocator, device_memory);
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", 1, UNKNOWN));
    assert_error(try_pool(&out), DRIVER, "cuMemExport");
    assert_ok(xseg_pool_release(make_pool()));
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ok(xseg_pool_release(make_pool()));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    /* A later failure is retried; api/vmm_fallback has a driver that always fails. */
    assert_ok(xseg_sim_fail("cuMemCreate", 1, NOT_SUPPORTED));
    env_free(allocator, env_alloc_in(allocator, pool, 1000, NULL));
    assert_true(xseg_sim_failed());
    assert_ok(xseg_pool_release(pool));
}

TEST_WITH(invalid_options_are_rejected, NULL, close_allocator)
{
    const struct xseg_pool_options with_functions = {sizeof(with_functions),
                                                     .memory = env_no_memory, .exportable = true};
    /* A caller whose header ends before the member. */
    const struct xseg_pool_options older = {offsetof(struct xseg_pool_options, exportable),
                                            .exportable = true};

    allocator = env_open(NULL);
    assert_error(xseg_pool_create(allocator, 0, &with_functions, &pool), ARGUMENT, "exportable");
    pool = env_pool_with(allocator, &older);
    void *block = env_alloc_in(allocator, pool, 1000, NULL);
    assert_error(query_pages(block), UNSUPPORTED, "exportable pool");
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    allocator = env_open_sim(NULL, .without_vmm = true);
    assert_error(try_pool(&pool), UNSUPPORTED, "virtual memory");
}

TEST_OF_POOL(only_allocated_exportable_blocks_are_exported, env_open(NULL))
{
    struct xseg_page_handle handle[2];
    struct xseg_export_token token;
    char *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    char *plain = env_alloc(allocator, 1000, NULL);
    const unsigned files = env_open_fds();
    size_t count = 0;

    assert_error(xseg_export(NULL, block, &token, NULL), ARGUMENT, "NULL");
    assert_error(xseg_export(allocator, NULL, &token, NULL), ARGUMENT, "ptr");
    assert_error(xseg_export(allocator, block, NULL, NULL), ARGUMENT, "token");
    assert_error(xseg_export_handles(allocator, NULL, XSEG_HANDLE_FD, handle, 2, &count, NULL),
                 ARGUMENT, "ptr");
    assert_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, handle, 2, NULL, NULL),
                 ARGUMENT, "count");
    assert_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, NULL, 2, &count, NULL),
                 ARGUMENT, "handles is NULL");
    assert_error(
        xseg_export_handles(allocator, block, (enum xseg_handle_type)7, handle, 2, &count, NULL),
        ARGUMENT, "xseg_handle_type, 7");
    assert_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, handle, 1, &count, NULL),
                 ARGUMENT, "1 handles; the block has 2 pages");
    assert_int_equal(count, 2);
    assert_error(xseg_export_close(allocator, block), NOT_ALLOCATED, "exported");
    assert_error(query_pages(&token), NOT_ALLOCATED, "not in memory of this allocator");
    assert_error(query_pages(block + 512), NOT_ALLOCATED, "not the start of an allocated block");
    assert_error(xseg_export(allocator, block + 512, &token, NULL), NOT_ALLOCATED,
                 "not the start of an allocated block");
    assert_error(query_pages(plain), UNSUPPORTED, "exportable pool");
    env_free(allocator, block);
    assert_error(query_pages(block), NOT_ALLOCATED, "not the start of an allocated block");
    assert_error(xseg_export_close(allocator, block), NOT_ALLOCATED, "exported");
    assert_error(xseg_export_close(allocator, NULL), ARGUMENT, "NULL");
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    block = env_alloc_in(allocator, pool, 90 * MIB, NULL);
    assert_error(query_pages(block), UNSUPPORTED, "classic");
    env_free(allocator, block, plain);
    assert_int_equal(env_open_fds(), files);
}

/* Expect that an import with one replaced handle fails. */
static void expect_rejected(const struct exported_handles *exported, size_t index,
                            struct xseg_page_handle replacement, xseg_status status,
                            const char *word)
{
    struct xseg_page_handle handle[3];
    void *base = NULL;

    assert_int_equal(exported->count, COUNT_OF(handle));
    memcpy(handle, exported->handle, sizeof(handle));
    handle[index] = replacement;
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, handle, 3, &base), status,
                     word);
    assert_null(base);
}

#define EXPECT_REJECTED(index, member, value, status, word)         \
    do {                                                            \
        struct xseg_page_handle changed = exported.handle[index];   \
        changed.member = (value);                                   \
        expect_rejected(&exported, (index), changed, status, word); \
    } while (0)

TEST_OF_POOL(invalid_handles_are_rejected, env_open(NULL))
{
    void *ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    const struct xseg_statistics before = env_stats(allocator);
    struct exported_handles exported = export_of(ptr);
    const unsigned files = env_open_fds();
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    EXPECT_REJECTED(0, offset, 20 * MIB, XSEG_ERR_ARGUMENT,
                    "page 0 is invalid, 20971520 bytes at offset 20971520");
    EXPECT_REJECTED(2, offset, 20 * MIB, XSEG_ERR_ARGUMENT, "page 2");
    EXPECT_REJECTED(2, offset, UINT64_MAX, XSEG_ERR_ARGUMENT, "page 2");
    EXPECT_REJECTED(1, size, 0, XSEG_ERR_ARGUMENT, "page 1 is invalid, 0 bytes");
    EXPECT_REJECTED(2, size, 11 * MIB, XSEG_ERR_ARGUMENT, "multiples of 2097152 bytes");
    EXPECT_REJECTED(2, size, UINT64_MAX, XSEG_ERR_ARGUMENT, "page 2");
    EXPECT_REJECTED(2, size, (uint64_t)1 << 48, XSEG_ERR_ARGUMENT, "page 2");
    EXPECT_REJECTED(1, fd, 987, XSEG_ERR_ARGUMENT, "descriptor of page 1 is not open, 987");
    /* A size that exceeds the memory, and the descriptor of a pipe. */
    EXPECT_REJECTED(2, size, 22 * MIB, XSEG_ERR_DRIVER, "cuMemMap");
    EXPECT_REJECTED(2, fd, pipes[0], XSEG_ERR_DRIVER, "cuMemImportFromShareableHandle");
    assert_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 0, &base),
                 ARGUMENT, "number of pages is out of range, 0");
    assert_error(
        xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, SIZE_MAX, &base),
        ARGUMENT, "number of pages");
    assert_error(
        xseg_import_handles(allocator, 0, (enum xseg_handle_type)3, exported.handle, 3, &base),
        ARGUMENT, "xseg_handle_type, 3");
    assert_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, NULL, 3, &base), ARGUMENT,
                 "handles is NULL");
    assert_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 3, NULL),
                 ARGUMENT, "base is NULL");
    assert_error(xseg_import_handles(allocator, 2, XSEG_HANDLE_FD, exported.handle, 3, &base),
                 ARGUMENT, "device");
    assert_error(xseg_import_close(allocator, NULL), ARGUMENT, "NULL");
    assert_error(xseg_import_close(allocator, ptr), NOT_ALLOCATED, "imported");
    assert_null(base);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    assert_int_equal(env_open_fds(), files);
    export_handles_close(&exported);
    struct xseg_statistics after = env_stats(allocator);
    after.host_bytes = before.host_bytes; /* the export has a record */
    assert_memory_equal(&before, &after, sizeof(before));
    export_close_and_free(allocator, ptr);
}

TEST_WITH(import_without_virtual_memory_management_is_rejected, NULL, close_allocator)
{
    allocator = env_open(NULL);
    pool = make_pool();
    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    struct exported_handles exported = export_of(block);

    export_close_and_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_close(allocator));
    allocator = env_open_sim(NULL, .without_vmm = true);
    assert_error(import_handles(allocator, &exported, NULL, &base), UNSUPPORTED, "virtual memory");
    export_handles_close(&exported);
}

/* The driver fails at one of the 10 pages: the descriptors of the previous pages are closed. */
TEST_OF_POOL(failed_export_is_rolled_back, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, 200 * MIB, NULL);
    struct exported_handles exported;
    const unsigned files = env_open_fds();

    for (uint64_t n = 1; n <= 10; n++) {
        assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", n, OPERATING_SYSTEM));
        assert_error(export_handles(allocator, block, XSEG_HANDLE_FD, &exported), DRIVER,
                     "ulimit -n");
        assert_int_equal(env_open_fds(), files);
        assert_int_equal(idle_exported_bytes(), 0);
    }
    env_free(allocator, block);
    assert_int_equal(env_trim_pool(allocator, pool).released, 200 * MIB);
}

TEST_OF_POOL(capture_unmaps_nothing, env_open(NULL))
{
    struct xseg_pool *graph_pool = env_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base[2] = {NULL};
    xseg_stream stream = env_stream();
    struct xseg_export_token token;

    env_capture_begin(graph_pool, stream);
    struct exported_handles exported = export_of(block);
    assert_ok(import_handles(allocator, &exported, NULL, &base[0]));
    export_handles_close(&exported);
    assert_ok(xseg_export(allocator, block, &token, NULL));
    assert_ok(xseg_import(allocator, 0, &token, &base[1]));
    assert_error(xseg_import_close(allocator, base[0]), BUSY, "capture");
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    env_capture_end(graph_pool, stream);
    assert_ok(xseg_import_close(allocator, base[0]));
    assert_ok(xseg_import_close(allocator, base[1]));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(graph_pool));
    env_stream_destroy(stream);
}

/* An import and two exports are open at the close. */
TEST(lost_device_releases_its_exports)
{
    allocator = env_open(NULL);
    pool = make_pool();
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base = NULL, *second_base = NULL;
    struct exported_handles exported = export_of(block), failed;
    struct xseg_export_token token;

    assert_ok(xseg_export(allocator, block, &token, NULL));
    assert_ok(import_handles(allocator, &exported, NULL, &base));
    assert_ok(import_handles(allocator, &exported, NULL, &second_base));
    assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", 1, ILLEGAL_ADDRESS));
    for (unsigned i = 0; i < 2; i++)
        assert_error(export_handles(allocator, block, XSEG_HANDLE_FD, &failed), DEVICE_LOST,
                     i == 0 ? "cuMemExport" : "lost");
    assert_error(import_handles(allocator, &exported, NULL, &base), DEVICE_LOST, "lost");
    assert_error(xseg_import(allocator, 0, &token, &base), DRIVER, "exporter failed");
    export_handles_close(&exported);
    assert_ok(xseg_import_close(allocator, base));
    env_free(allocator, block);
    assert_ok(xseg_close(allocator));
}

/* Exportable memory has descriptors only while it is exported. */
TEST_OF_POOL(exportable_memory_is_not_limited_by_descriptors, open_on(false, 8 * GIB, NULL))
{
    const struct xseg_range_options options = {sizeof(options), .pool = pool};
    const unsigned files = env_open_fds();
    struct xseg_range *range = NULL;
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit low = limit;
    low.rlim_cur = files + 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_ok(xseg_range_reserve(allocator, 0, 2 * GIB, &options, &range));
    assert_ok(xseg_range_commit(range, 0, 2 * GIB, NULL));
    void *block = env_alloc_in(allocator, pool, 4 * GIB, NULL);
    for (unsigned i = 0; i < 2; i++) {
        const unsigned before = env_open_fds();

        assert_error(export_and_close_handles(allocator, block), DRIVER, "ulimit -n");
        assert_int_equal(env_open_fds(), before);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    export_once(block, XSEG_HANDLE_FD);
    env_free(allocator, block);
    assert_ok(xseg_range_decommit(range, 0, 2 * GIB, NULL));
    assert_ok(xseg_range_release(range));
}

TEST_OF_POOL(calls_of_a_forked_child_fail, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base = NULL;
    struct exported_handles exported = export_of(block);
    struct xseg_export_token token = {{0}};

    env_expect_forked(true, xseg_export(allocator, block, &token, NULL), query_pages(block),
                      xseg_export_close(allocator, block), xseg_import(allocator, 0, &token, &base),
                      xseg_import_close(allocator, block),
                      import_handles(allocator, &exported, NULL, &base));
    export_handles_close(&exported);
    export_close_and_free(allocator, block);
}

TEST_WITH(configuration_makes_memory_exportable, NULL, close_allocator)
{
    allocator = env_open("exportable:True");
    pool = env_pool(allocator);
    void *blocks[] = {
        env_alloc(allocator, 30 * MIB, NULL),
        env_alloc(allocator, 1000, NULL),
        env_alloc_in(allocator, pool, 3 * MIB, NULL),
    };
    for (unsigned i = 0; i < COUNT_OF(blocks); i++)
        export_once(blocks[i], XSEG_HANDLE_FD);
    /* The key does not apply to a pool with memory functions. */
    struct xseg_pool *with_functions = env_pool_of(allocator, .memory = env_no_memory);
    /* A change applies to later pools only. */
    assert_ok(xseg_config_set(allocator, "exportable:False"));
    struct xseg_pool *plain_pool = env_pool(allocator);
    void *block = env_alloc_in(allocator, plain_pool, 3 * MIB, NULL);
    assert_error(query_pages(block), UNSUPPORTED, "exportable:True");
    export_once(blocks[0], XSEG_HANDLE_FD);
    env_free_all(allocator, blocks, sizeof(blocks));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(with_functions));
    assert_ok(xseg_pool_release(plain_pool));
    assert_ok(xseg_pool_release(pool));
}

TEST_WITH(missing_export_support_is_logged_once, NULL, close_allocator)
{
    const struct xseg_sim_settings settings = sim_settings(false, 1 * GIB);

    assert_ok(xseg_sim_reset(&settings));
    env_fail_every("cuMemExportToShareableHandle", NOT_SUPPORTED);
    allocator = env_open_logged("exportable:True", &warnings);
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    env_expect_warnings(&warnings, warnings.lines, "exportable has no effect");
    env_expect_warnings(&warnings, warnings.lines, "CUDA_ERROR_NOT_SUPPORTED");
    const unsigned lines = warnings.lines;
    /* Pools are created and are not exportable, unless their options require it. */
    pool = env_pool(allocator);
    assert_error(query_pages(block), UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED");
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(try_pool(&pool), XSEG_ERR_UNSUPPORTED);
    assert_int_equal(warnings.lines, lines);
    assert_int_equal(xseg_sim_fault_count(0), 1);
    env_free(allocator, block);
    assert_ok(xseg_sim_fault_set(0, NULL));
}

/* A temporary failure of the probe fails the call that opens the device; the next call probes again. */
TEST_WITH(failed_probe_runs_again_for_the_next_call, NULL, close_allocator)
{
    void *block = NULL;

    allocator = env_open("exportable:True");
    assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", 1, UNKNOWN));
    assert_error(xseg_alloc(allocator, 0, 30 * MIB, NULL, &block), DRIVER,
                 "cuMemExportToShareableHandle");
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    block = env_alloc(allocator, 30 * MIB, NULL);
    export_once(block, XSEG_HANDLE_FD);
    env_free(allocator, block);
}

TEST_OF_POOL(fabric_handles_are_bytes,
             env_open_sim(NULL, .memory_bytes = GIB, .real_bytes = true, .fabric = true))
{
    unsigned char *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct exported_handles exported;
    void *imported = NULL, *base = NULL, *out = NULL;
    const unsigned files = env_open_fds();
    assert_ok(export_handles(allocator, block, XSEG_HANDLE_FABRIC, &exported));
    assert_int_equal(env_open_fds(), files);
    assert_int_equal(exported.count, 3);
    for (size_t i = 0; i < exported.count; i++)
        assert_int_equal(exported.handle[i].fd, -1);
    assert_ok(import_handles(allocator, &exported, &imported, &base));
    fill(imported, 50 * MIB, 9);
    assert_true(is_filled(block, 50 * MIB, 9));
    /* The pages can be exported by both types of handles. */
    export_once(block, XSEG_HANDLE_FD);
    assert_ok(xseg_import_close(allocator, base));
    /* A handle of no memory, and handles of another type. */
    exported.handle[0].fabric[0] ^= 1;
    assert_int_equal(import_handles(allocator, &exported, NULL, &out), XSEG_ERR_DRIVER);
    exported.handle[0].fabric[0] ^= 1;
    assert_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 3, &out),
                 ARGUMENT, "not open, -1");
    /* A fabric handle does not retain the memory. */
    export_close_and_free(allocator, block);
    assert_int_equal(env_trim_pool(allocator, pool).released, 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(import_handles(allocator, &exported, NULL, &out), XSEG_ERR_DRIVER);
    export_handles_close(&exported);
    assert_null(out);
}

TEST_OF_POOL(missing_fabric_support_is_explained, env_open(NULL))
{
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    struct exported_handles exported;

    assert_error(export_handles(allocator, block, XSEG_HANDLE_FABRIC, &exported), UNSUPPORTED,
                 "CUDA_ERROR_NOT_SUPPORTED");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED);
    open_export(block);
    export_close_and_free(allocator, block);
}

/* --- Without memory for the probe of exports the next growth runs the probe.  Until then no pool counts as exportable. --- */

/* A second allocator, which has allocated all memory of the device. */
static struct xseg_allocator *holder;
static void *device_memory;

static void open_on_full_device(const char *config)
{
    holder = env_open_sim(NULL, .memory_bytes = 200 * MIB, .fabric = true);
    device_memory = env_alloc(holder, 200 * MIB, NULL);
    allocator = env_open_logged(config, &warnings);
}

static void free_device_memory(void)
{
    env_free(holder, device_memory);
    env_empty_cache(holder);
}

static int close_both_allocators(void **state)
{
    assert_ok(xseg_close(holder));
    return close_allocator(state);
}

static void expect_export_error(void *block, enum xseg_handle_type type, const char *words)
{
    struct exported_handles exported;

    assert_error(export_handles(allocator, block, type, &exported), UNSUPPORTED, words);
}

/* The default pool is exportable from its first memory on. */
TEST_WITH(probe_runs_when_memory_is_free, NULL, close_both_allocators)
{
    void *block = NULL;

    open_on_full_device("exportable:True");
    assert_int_equal(xseg_alloc(allocator, 0, 1000, NULL, &block), XSEG_ERR_NO_MEMORY);
    env_expect_warnings(&warnings, warnings.lines, "too little free memory for the driver test");
    free_device_memory();
    block = env_alloc(allocator, 1000, NULL);
    export_once(block, XSEG_HANDLE_FD);
    export_once(block, XSEG_HANDLE_FABRIC);
    const uint64_t exports = xseg_sim_calls("cuMemExportToShareableHandle");
    void *second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemExportToShareableHandle"), exports);
    env_free(allocator, second, block);
}

/* If the deferred probe fails, the default pool allocates memory that is not exportable. */
TEST_WITH(failed_probe_leaves_the_default_pool_not_exportable, NULL, close_both_allocators)
{
    open_on_full_device("exportable:True");
    pool = env_pool(allocator);
    free_device_memory();
    /* Both pages of the probe: with fabric handles, and without. */
    for (unsigned i = 0; i < 2; i++)
        env_fault(i, .call = "cuMemCreate", .nth = i + 1, .error = NOT_SUPPORTED);
    void *block = env_alloc(allocator, 1000, NULL);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    env_expect_warnings(&warnings, warnings.lines, "exportable has no effect, ");
    env_expect_warnings(&warnings, warnings.lines, "CUDA_ERROR_NOT_SUPPORTED");
    expect_export_error(block, XSEG_HANDLE_FD, "cannot be exported");
    env_free(allocator, block, env_alloc_in(allocator, pool, 1000, NULL));
    assert_ok(xseg_pool_release(pool));
}

/* A pool that is exportable by its options is created under memory pressure, and has fabric handles after the probe. */
TEST_WITH(deferred_probe_finds_fabric_handles, NULL, close_both_allocators)
{
    open_on_full_device(NULL);
    pool = make_pool();
    free_device_memory();
    void *block = env_alloc_in(allocator, pool, 1000, NULL);
    export_once(block, XSEG_HANDLE_FABRIC);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    (void)close_both_allocators(NULL);

    /* The pages were created before the probe could run: they have no fabric handles. */
    open_on_full_device(NULL);
    pool = make_pool();
    free_device_memory();
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2)); /* CUDA_ERROR_OUT_OF_MEMORY */
    block = env_alloc_in(allocator, pool, 1000, NULL);
    expect_export_error(block, XSEG_HANDLE_FABRIC, "before the probe of fabric handles");
    export_once(block, XSEG_HANDLE_FD);
    env_free(allocator, block);
    (void)env_trim_pool(allocator, pool);
    block = env_alloc_in(allocator, pool, 1000, NULL);
    export_once(block, XSEG_HANDLE_FABRIC);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}

TEST_WITH(export_error_reports_a_probe_without_memory, NULL, close_both_allocators)
{
    open_on_full_device(NULL);
    pool = make_pool();
    free_device_memory();
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2)); /* CUDA_ERROR_OUT_OF_MEMORY */
    void *block = env_alloc_in(allocator, pool, 1000, NULL);
    /* All memory except a page of 2 MiB. */
    device_memory = env_alloc(holder, 198 * MIB, NULL);
    expect_export_error(block, XSEG_HANDLE_FABRIC, "out of memory for a probe");
    free_device_memory();
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
}
