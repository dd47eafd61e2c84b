/* SPDX-License-Identifier: MIT */
/*
 * Exports by raw handles: two processes on one simulated device, with real contents; what an export retains; and calls
 * that fail, which leak nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"
#include "tests/support/process.h"
#include "tests/support/trim_due.h"

#define STRIDE (64 * KIB)

static struct xseg_sim_settings sim_settings(bool real_bytes, uint64_t memory)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = memory,
                                         .real_bytes = real_bytes};

    return settings;
}

static struct xseg_allocator *open_on(bool real_bytes, uint64_t memory, const char *config)
{
    const struct xseg_sim_settings settings = sim_settings(real_bytes, memory);

    return env_open_with_clock(&settings, config);
}

static xseg_status try_pool(struct xseg_allocator *allocator, struct xseg_pool **pool)
{
    struct xseg_pool_options options = {sizeof(options), .exportable = true};

    return xseg_pool_create(allocator, 0, &options, pool);
}

static struct xseg_pool *make_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool *pool = NULL;

    assert_ok(try_pool(allocator, &pool));
    return pool;
}

static struct exported_handles export_of(struct xseg_allocator *allocator, void *ptr)
{
    struct exported_handles exported;

    assert_ok(export_handles(allocator, ptr, XSEG_HANDLE_FD, &exported));
    return exported;
}

/* Export, and close the descriptors. */
static void hold(struct xseg_allocator *allocator, void *ptr)
{
    assert_ok(export_and_close_handles(allocator, ptr));
}

/* Query the pages of a block, which has to be exportable for that; nothing is exported. */
static xseg_status query(struct xseg_allocator *allocator, void *ptr)
{
    size_t count = 0;

    return xseg_export_handles(allocator, ptr, XSEG_HANDLE_FD, NULL, 0, &count, NULL);
}

/* Take the last export back, and close. */
static void close_with(struct xseg_allocator *allocator, struct xseg_pool *pool, void *block)
{
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

static struct xseg_trim_result trim(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = pool};

    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    return done;
}

/* Real bytes: the test reads and writes device memory as a kernel would. */
static void fill(void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += STRIDE)
        ((volatile unsigned char *)ptr)[at] = value;
    ((volatile unsigned char *)ptr)[bytes - 1] = value;
}

static bool holds(const void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += STRIDE)
        if (((const volatile unsigned char *)ptr)[at] != value)
            return false;
    return ((const volatile unsigned char *)ptr)[bytes - 1] == value;
}

/* --- Another process, which follows orders: a letter and a value; it answers y or n. --- */

struct importer {
    struct xseg_allocator *allocator;
    void *base; /* of the run */
    unsigned char *block;
    size_t bytes;
};

/* A block on its way to another process. */
struct parcel {
    uint64_t offset, bytes; /* of the block */
    size_t count;
    struct xseg_page_handle handle[8]; /* whose descriptors the message carries */
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
};

/* The message of a parcel. */
static struct msghdr message_of(struct parcel *parcel, struct iovec *data)
{
    *data = (struct iovec){parcel, offsetof(struct parcel, control)};
    return (struct msghdr){.msg_iov = data,
                           .msg_iovlen = 1,
                           .msg_control = parcel->control,
                           .msg_controllen = sizeof(parcel->control)};
}

static void send_parcel(int socket, const struct exported_handles *exported, uint64_t bytes)
{
    struct parcel parcel = {exported->offset, bytes, exported->count, {{0}}, {0}};
    struct iovec data;
    struct msghdr message = message_of(&parcel, &data);

    assert_true(exported->count <= COUNT_OF(parcel.handle));
    memcpy(parcel.handle, exported->handle, exported->count * sizeof(parcel.handle[0]));
    message.msg_controllen = CMSG_SPACE(exported->count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(exported->count * sizeof(int));
    for (size_t i = 0; i < exported->count; i++)
        memcpy(CMSG_DATA(header) + i * sizeof(int), &exported->handle[i].fd, sizeof(int));
    assert_int_equal(sendmsg(socket, &message, 0), data.iov_len);
}

static bool receive_and_import(struct importer *importer, int socket)
{
    struct parcel parcel;
    struct iovec data;
    struct msghdr message = message_of(&parcel, &data);

    if (recvmsg(socket, &message, MSG_WAITALL) != (ssize_t)data.iov_len)
        return false;
    for (size_t i = 0; i < parcel.count; i++)
        memcpy(&parcel.handle[i].fd, CMSG_DATA(CMSG_FIRSTHDR(&message)) + i * sizeof(int),
               sizeof(int));
    const xseg_status status = xseg_import_handles(importer->allocator, 0, XSEG_HANDLE_FD,
                                                   parcel.handle, parcel.count, &importer->base);
    for (size_t i = 0; i < parcel.count; i++)
        (void)close(parcel.handle[i].fd);
    importer->block = (unsigned char *)importer->base + parcel.offset;
    importer->bytes = parcel.bytes;
    return status == XSEG_OK;
}

/* Exactly the pages are mapped, and only that is counted. */
static bool is_counted(const struct importer *importer)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = {sizeof(where), .device = 0};

    return xseg_stats_get(importer->allocator, &where, &stats) == XSEG_OK &&
           stats.imported_bytes >= importer->bytes &&
           stats.imported_bytes < importer->bytes + 40 * MIB &&
           stats.reserved_bytes[XSEG_STAT_ALL].current == 0 && stats.physical_bytes == 0 &&
           stats.address_bytes == 0 && xseg_sim_used(0) == 0;
}

static bool obey_order(struct importer *importer, int socket, char order, unsigned char value)
{
    switch (order) {
    case 'i':
        return receive_and_import(importer, socket) && is_counted(importer);
    case 'r':
        return holds(importer->block, importer->bytes, value);
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

static void run(int socket, const struct xseg_sim_settings *settings)
{
    struct importer importer = {0};
    char order[2];

    if (xseg_sim_reset(settings) != XSEG_OK || env_try_open(NULL, &importer.allocator) != XSEG_OK)
        _exit(1);
    while (read(socket, order, 2) == 2) {
        const bool is_fine = obey_order(&importer, socket, order[0], (unsigned char)order[1]);

        if (write(socket, is_fine ? "y" : "n", 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static void order_only(const struct process *process, char order, unsigned char value)
{
    const char notified[2] = {order, (char)value};

    assert_int_equal(write(process->socket, notified, 2), 2);
}

static bool notify(const struct process *process, char order, unsigned char value)
{
    order_only(process, order, value);
    return process_answer(process);
}

/* NULL where processes cannot share a machine. */
static struct xseg_allocator *start_process(struct process *process)
{
    const struct xseg_sim_settings settings = sim_settings(true, 1 * GIB);
    struct xseg_allocator *own = NULL;

    if (!process_start(process, &settings, run))
        return NULL;
    assert_ok(env_try_open(NULL, &own));
    return own;
}

static void end_process(const struct process *process, struct xseg_allocator *own)
{
    const struct xseg_sim_settings alone = sim_settings(false, 1 * GIB);

    assert_true(notify(process, 'e', 0));
    process_end(process, own, &alone);
}

/* Export, send, and have the other import; nothing stays open here. */
static void send_block(const struct process *process, struct xseg_allocator *own, void *block)
{
    const unsigned before = env_open_fds();
    struct exported_handles exported = export_of(own, block);

    order_only(process, 'i', 0);
    send_parcel(process->socket, &exported, env_block(own, block).bytes);
    export_handles_close(&exported);
    assert_true(process_answer(process));
    assert_int_equal(env_open_fds(), before);
}

TEST(importer_reads_the_exporters_data)
{
    static const size_t sizes[] = {1000, 700 * KIB, 3 * MIB, 20 * MIB, 70 * MIB};
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    /* So that no block starts with its page. */
    void *first = env_alloc_in(own, pool, 3000, NULL),
         *large = env_alloc_in(own, pool, 15 * MIB, NULL);

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *block = env_alloc_in(own, pool, sizes[i], NULL);
        /* The importer sees all of the block, which may be longer than what was asked for. */
        const size_t bytes = env_block(own, block).bytes;

        fill(block, bytes, (unsigned char)(10 + i));
        send_block(&process, own, block);
        assert_true(notify(&process, 'r', (unsigned char)(10 + i)));
        fill(block, bytes, 99);
        assert_true(notify(&process, 'r', 99));
        assert_true(notify(&process, 'w', (unsigned char)(100 + i)));
        assert_true(holds(block, bytes, (unsigned char)(100 + i)));
        assert_true(notify(&process, 'c', 0));
        assert_ok(xseg_export_close(own, block));
        env_free(own, block);
    }
    env_free(own, first, large);
    assert_ok(xseg_pool_release(pool));
    end_process(&process, own);
}

/* The exporter frees, closes and gives its pages back; the importer has them still. */
TEST(importers_outlive_the_exporter)
{
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    void *block = env_alloc_in(own, pool, 40 * MIB, NULL);
    fill(block, 40 * MIB, 7);
    send_block(&process, own, block);
    env_free(own, block);
    assert_ok(xseg_export_close(own, block));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(trim(own, NULL).released, 40 * MIB);
    assert_int_equal(env_reserved(own), 0);
    /* The device is without that memory until the importer is done. */
    assert_int_equal(xseg_sim_used(0), 40 * MIB);
    void *other = env_alloc(own, 100 * MIB, NULL);
    fill(other, 100 * MIB, 8);
    assert_true(notify(&process, 'r', 7));
    assert_true(notify(&process, 'c', 0));
    assert_int_equal(xseg_sim_used(0), 100 * MIB);
    env_free(own, other);
    end_process(&process, own);
}

TEST(killed_importer_releases_its_memory)
{
    const struct xseg_sim_settings alone = sim_settings(false, 1 * GIB);
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);
    int result = 0;

    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    void *block = env_alloc_in(own, pool, 20 * MIB, NULL);
    send_block(&process, own, block);
    env_free(own, block);
    assert_ok(xseg_export_close(own, block));
    assert_int_equal(trim(own, pool).released, 20 * MIB);
    assert_int_equal(xseg_sim_used(0), 20 * MIB);
    (void)close(process.socket);
    assert_int_equal(waitpid(process.pid, &result, 0), process.pid);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_pool_release(pool));
    env_close(own);
    assert_ok(xseg_sim_reset(&alone));
}

/* --- One process on both sides. --- */

TEST(the_same_process_can_import)
{
    struct xseg_allocator *allocator = open_on(true, 1 * GIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *before = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    unsigned char *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct exported_handles exported = export_of(allocator, block);
    void *first = NULL, *second = NULL, *again = NULL, *twice = NULL;

    assert_int_equal(exported.count, 3);
    for (size_t i = 0; i < exported.count; i++) {
        assert_int_equal(fcntl(exported.handle[i].fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(exported.handle[i].offset, i * 20 * MIB);
        assert_int_equal(exported.handle[i].size, 20 * MIB);
    }
    assert_int_equal(exported.offset, (size_t)(block - (unsigned char *)before));
    assert_ok(import_handles(allocator, &exported, &again, &first));
    assert_ok(import_handles(allocator, &exported, &twice, &second));
    export_handles_close(&exported);
    assert_int_equal(env_stats(allocator).imported_bytes, 120 * MIB);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 60 * MIB);
    fill(again, 50 * MIB, 5);
    assert_true(holds(block, 50 * MIB, 5));
    assert_true(holds(twice, 50 * MIB, 5));
    assert_ok(xseg_import_close(allocator, first));
    env_expect_error(xseg_import_close(allocator, first), XSEG_ERR_NOT_ALLOCATED, "imported");
    assert_true(holds(twice, 50 * MIB, 5));
    /* An import is no block. */
    env_expect_error(xseg_free(allocator, second), XSEG_ERR_NOT_ALLOCATED, "");
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "blocks are allocated");
    env_free(allocator, before, block);
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "xseg_export_close");
    assert_ok(xseg_export_close(allocator, block));
    env_expect_error(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED, "exported");
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "xseg_import_close");
    assert_ok(xseg_import_close(allocator, second));
    assert_int_equal(env_stats(allocator).imported_bytes, 0);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(exports_and_imports_have_the_documented_cost)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    struct xseg_export_token token;
    uint64_t calls = xseg_sim_calls(NULL);

    assert_ok(query(allocator, block));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    struct exported_handles exported = export_of(allocator, block);
    assert_int_equal(xseg_sim_calls(NULL) - calls, 3);
    calls = xseg_sim_calls(NULL);
    assert_ok(import_handles(allocator, &exported, NULL, &base));
    assert_int_equal(xseg_sim_calls(NULL) - calls, 1 + 3 * 3 + 1);
    export_handles_close(&exported);
    assert_ok(xseg_import_close(allocator, base));
    assert_int_equal(xseg_sim_calls("cuMemUnmap") + xseg_sim_calls("cuMemAddressFree"), 1 + 1 + 2);
    /* By a token: the first one queries the UUID of the device, and the import exports each page. */
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
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* --- What an export holds. --- */

TEST(a_pool_is_not_paused_while_it_is_exported)
{
    struct xseg_allocator *allocator = open_on(true, 1 * GIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 30 * MIB, NULL);

    fill(block, 30 * MIB, 3);
    hold(allocator, block);
    hold(allocator, block);
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY,
                     "memory is exported");
    assert_ok(xseg_export_close(allocator, block));
    env_expect_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY,
                     "memory is exported");
    assert_true(holds(block, 30 * MIB, 3));
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(xseg_sim_used(0), 0);
    env_expect_error(query(allocator, block), XSEG_ERR_PAUSED, "");
    assert_ok(xseg_pool_resume(pool));
    assert_true(holds(block, 30 * MIB, 3));
    /* The pages that came can be exported as well. */
    hold(allocator, block);
    close_with(allocator, pool, block);
}

static bool find_exported(void *context, const struct xseg_reason *reason)
{
    uint64_t *bytes = context;

    if (reason->kind == XSEG_REASON_EXPORTED)
        *bytes += reason->bytes;
    return true;
}

static uint64_t explained(struct xseg_allocator *allocator)
{
    struct xseg_explain_result sums = {sizeof(sums)};
    uint64_t bytes = 0;

    assert_ok(xseg_explain(allocator, NULL, find_exported, &bytes, &sums));
    assert_int_equal(sums.exported, bytes);
    assert_int_equal(sums.reserved, sums.allocated + sums.pending + sums.claimed + sums.pool +
                                        sums.pinned + sums.capture + sums.stream + sums.keep +
                                        sums.decay + sums.policy + sums.exported + sums.registered);
    return bytes;
}

static bool find_mapping(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *bytes = context;

    *bytes += mapping->is_exported ? mapping->bytes : 0;
    return true;
}

TEST(trim_keeps_exported_pages)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL),
         *other = env_alloc_in(allocator, pool, 20 * MIB, NULL);
    uint64_t mapped = 0;

    hold(allocator, block);
    env_free(allocator, block, other);
    struct xseg_trim_result done = trim(allocator, pool);
    assert_int_equal(done.kept_exported, 40 * MIB);
    assert_int_equal(done.kept_pinned, 0);
    assert_int_equal(done.released, 20 * MIB);
    assert_int_equal(done.remaining, 40 * MIB);
    assert_int_equal(explained(allocator), 40 * MIB);
    assert_string_equal(xseg_reason_message(XSEG_REASON_EXPORTED), "idle, but exported");
    assert_ok(xseg_for_each_mapping(allocator, NULL, find_mapping, &mapped));
    assert_int_equal(mapped, 40 * MIB);
    /* By age as well. */
    struct xseg_trim_options how = {sizeof(how), .idle_ms = 1};
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = pool};
    done = (struct xseg_trim_result){.struct_size = sizeof(struct xseg_trim_result)};
    assert_ok(xseg_trim(allocator, &where, &how, &done));
    assert_int_equal(done.kept_exported, 40 * MIB);
    /* A user's pin is reported first. */
    assert_ptr_equal(env_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    assert_ok(xseg_pin(allocator, block, 1));
    env_free(allocator, block);
    done = trim(allocator, pool);
    assert_int_equal(done.kept_pinned, 20 * MIB);
    assert_int_equal(done.kept_exported, 20 * MIB);
    assert_ok(xseg_unpin(allocator, block, 1));
    env_expect_error(xseg_unpin(allocator, block, 1), XSEG_ERR_ARGUMENT, "pinned");
    assert_int_equal(trim(allocator, pool).kept_exported, 40 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(trim(allocator, pool).released, 40 * MIB);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(decay_keeps_exported_pages)
{
    struct xseg_allocator *allocator = open_on(false, 1 * GIB, "idle_ms:100");
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL),
         *other = env_alloc_in(allocator, pool, 20 * MIB, NULL);

    hold(allocator, block);
    env_free(allocator, block, other);
    assert_ok(xseg_pool_release(pool));
    for (unsigned i = 0; i < 20; i++) {
        xseg_sim_advance(UINT64_C(100000000));
        assert_ok(trim_due(allocator, 1000000));
    }
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    for (unsigned i = 0; i < 20; i++) {
        xseg_sim_advance(UINT64_C(100000000));
        assert_ok(trim_due(allocator, 1000000));
    }
    assert_int_equal(env_reserved(allocator), 0);
    env_close(allocator);
}

TEST(fallback_chain_keeps_exported_pages)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 120 * MIB, NULL), *big = NULL;

    hold(allocator, block);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_expect_error(xseg_alloc(allocator, 0, 150 * MIB, NULL, &big), XSEG_ERR_NO_MEMORY,
                     "120.00 MiB cached and exported");
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, env_alloc(allocator, 150 * MIB, NULL));
    env_close(allocator);
}

/* Pages that nobody was shown move between exportable pools; those of others go through the driver. */
TEST(pages_are_stolen_from_their_own_kind)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *first = make_pool(allocator);
    void *block = env_alloc_in(allocator, first, 160 * MIB, NULL);

    env_free(allocator, block);
    assert_ok(xseg_pool_release(first));
    struct xseg_pool *second = make_pool(allocator);
    uint64_t created = xseg_sim_calls("cuMemCreate");
    block = env_alloc_in(allocator, second, 100 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 2); /* the rest is remapped */
    hold(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(second));
    /* A plain request is served by pages of its own kind. */
    created = xseg_sim_calls("cuMemCreate");
    block = env_alloc(allocator, 180 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 9);
    assert_int_equal(env_reserved(allocator), 200 * MIB); /* no more was taken than was missing */
    env_free(allocator, block);
    /* And an exportable pool of plain pages, none of which could be exported. */
    first = make_pool(allocator);
    block = env_alloc_in(allocator, first, 180 * MIB, NULL);
    hold(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(first));
    env_close(allocator);
}

/* An importer of a page sees it until it unmaps the page: another pool's contents must not be on it. */
TEST(exported_pages_are_not_reused_by_other_pools)
{
    struct xseg_allocator *allocator = open_on(true, 200 * MIB, "page_cache_mb:200");
    struct xseg_pool *first = make_pool(allocator), *second = make_pool(allocator);
    void *block = env_alloc_in(allocator, first, 120 * MIB, NULL), *seen = NULL, *other = NULL;
    struct exported_handles exported = export_of(allocator, block);

    assert_ok(import_handles(allocator, &exported, NULL, &seen));
    export_handles_close(&exported);
    fill(seen, 120 * MIB, 9);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(first));
    /* Pages are taken from the first pool, but the importer has them, so the device has not. */
    env_expect_error(env_try_alloc_in(allocator, second, 100 * MIB, &other), XSEG_ERR_NO_MEMORY,
                     "");
    assert_true(env_reserved(allocator) < 120 * MIB);
    assert_ok(env_try_alloc_in(allocator, second, 60 * MIB, &other));
    fill(other, 60 * MIB, 200);
    assert_true(holds(seen, 120 * MIB, 9));
    assert_ok(xseg_import_close(allocator, seen));
    env_free(allocator, other);
    env_free(allocator, env_alloc_in(allocator, second, 150 * MIB, NULL));
    assert_ok(xseg_pool_release(second));
    env_close(allocator);
}

/* --- As any other pool. --- */

static struct xseg_statistics play(bool exportable)
{
    struct xseg_allocator *allocator = open_on(false, 400 * MIB, "page_cache_mb:100");
    struct xseg_pool_options options = {sizeof(options), .exportable = exportable};
    void *ptr[40] = {NULL};
    uint64_t random = 12345;
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    for (unsigned i = 0; i < 2000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const unsigned at = (unsigned)(random >> 33) % 40;
        const size_t bytes = (size_t)1 << (6 + (random >> 40) % 20);

        if (ptr[at] != NULL)
            env_free(allocator, ptr[at]);
        ptr[at] = NULL;
        if (env_try_alloc_in(allocator, pool, bytes, &ptr[at]) != XSEG_OK)
            ptr[at] = NULL;
        if (i % 100 == 99)
            (void)trim(allocator, pool);
    }
    const struct xseg_statistics stats = env_stats(allocator);
    for (unsigned i = 0; i < 40; i++)
        env_free(allocator, ptr[i]);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    return stats;
}

TEST(statistics_are_those_of_any_pool)
{
    struct xseg_statistics plain = play(false), exportable = play(true);

    /* Pages of the host that are touched: they depend on where in a page the records begin. */
    plain.host_bytes = exportable.host_bytes = 0;
    assert_memory_equal(&plain, &exportable, sizeof(plain));
    assert_true(plain.num_device_alloc > 10 && plain.num_device_free > 10);
}

/* --- What is refused. --- */

TEST(missing_handle_support_is_probed_once)
{
    static const struct {
        const char *call;
        int error;
    } failures[] = {
        {"cuMemCreate", 801},
        {"cuMemCreate", 800},
        {"cuMemExportToShareableHandle", 801},
    };
    struct xseg_pool *pool = NULL;

    for (unsigned i = 0; i < COUNT_OF(failures); i++) {
        struct xseg_allocator *allocator = env_open(NULL);
        struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

        env_free(allocator, env_alloc(allocator, 1000, NULL));
        fault.call = failures[i].call;
        fault.error = failures[i].error;
        fault.every = 1;
        assert_ok(xseg_sim_fault_set(0, &fault));
        env_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, failures[i].call);
        assert_ok(xseg_sim_fault_set(0, NULL));
        const uint64_t calls = xseg_sim_calls(NULL);
        env_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, failures[i].call);
        assert_int_equal(xseg_sim_calls(NULL), calls);
        assert_null(pool);
        /* Any other pool is not concerned. */
        assert_ok(xseg_pool_release(env_pool(allocator)));
        env_close(allocator);
    }
}

TEST(failed_probe_logs_nothing)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *pool = NULL, *other = NULL;
    void *all = env_alloc(allocator, 200 * MIB, NULL), *block = NULL;

    /* While the device is full nothing can be tried. */
    pool = make_pool(allocator);
    env_expect_error(env_try_alloc_in(allocator, pool, 1000, &block), XSEG_ERR_NO_MEMORY, "");
    env_free(allocator, all);
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", 1, 999));
    env_expect_error(try_pool(allocator, &other), XSEG_ERR_DRIVER, "cuMemExport");
    assert_ok(xseg_pool_release(make_pool(allocator)));
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ok(xseg_pool_release(make_pool(allocator)));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    /* A driver that refuses later is asked again; api/vmm_fallback has one that always fails. */
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 801));
    env_free(allocator, env_alloc_in(allocator, pool, 1000, NULL));
    assert_true(xseg_sim_failed());
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

static void *own_memory(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context;
    (void)bytes;
    (void)device;
    (void)stream;
    return NULL;
}

static void no_memory(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)own_memory(context, bytes, device, stream);
    (void)ptr;
}

TEST(options_are_checked)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool_options options = {sizeof(options), .exportable = true};
    struct xseg_pool *pool = NULL;

    options.memory.alloc = own_memory;
    options.memory.free = no_memory;
    env_expect_error(xseg_pool_create(allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
                     "exportable");
    /* A caller that was built before there was such a thing. */
    options = (struct xseg_pool_options){.struct_size = sizeof(struct xseg_pool_options)};
    options.struct_size = offsetof(struct xseg_pool_options, exportable);
    options.exportable = true;
    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    void *block = env_alloc_in(allocator, pool, 1000, NULL);
    env_expect_error(query(allocator, block), XSEG_ERR_UNSUPPORTED, "exportable pool");
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
    settings.without_vmm = true;
    allocator = env_open_on(&settings, NULL);
    env_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, "virtual memory");
    env_close(allocator);
}

TEST(only_allocated_exportable_blocks_are_exported)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    struct xseg_page_handle handle[2];
    struct xseg_export_token token;
    char *block = env_alloc_in(allocator, pool, 30 * MIB, NULL),
         *plain = env_alloc(allocator, 1000, NULL);
    const unsigned files = env_open_fds();
    size_t count = 0;

    env_expect_error(xseg_export(NULL, block, &token, NULL), XSEG_ERR_ARGUMENT, "NULL");
    env_expect_error(xseg_export(allocator, NULL, &token, NULL), XSEG_ERR_ARGUMENT, "ptr");
    env_expect_error(xseg_export(allocator, block, NULL, NULL), XSEG_ERR_ARGUMENT, "token");
    env_expect_error(xseg_export_handles(allocator, NULL, XSEG_HANDLE_FD, handle, 2, &count, NULL),
                     XSEG_ERR_ARGUMENT, "ptr");
    env_expect_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, handle, 2, NULL, NULL),
                     XSEG_ERR_ARGUMENT, "count");
    env_expect_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, NULL, 2, &count, NULL),
                     XSEG_ERR_ARGUMENT, "handles is NULL");
    env_expect_error(
        xseg_export_handles(allocator, block, (enum xseg_handle_type)7, handle, 2, &count, NULL),
        XSEG_ERR_ARGUMENT, "xseg_handle_type, 7");
    env_expect_error(xseg_export_handles(allocator, block, XSEG_HANDLE_FD, handle, 1, &count, NULL),
                     XSEG_ERR_ARGUMENT, "1 handles; the block has 2 pages");
    assert_int_equal(count, 2);
    env_expect_error(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED, "exported");
    env_expect_error(query(allocator, &token), XSEG_ERR_NOT_ALLOCATED,
                     "not in memory of this allocator");
    env_expect_error(query(allocator, block + 512), XSEG_ERR_NOT_ALLOCATED,
                     "not the start of an allocated block");
    env_expect_error(xseg_export(allocator, block + 512, &token, NULL), XSEG_ERR_NOT_ALLOCATED,
                     "not the start of an allocated block");
    env_expect_error(query(allocator, plain), XSEG_ERR_UNSUPPORTED, "exportable pool");
    env_free(allocator, block);
    env_expect_error(query(allocator, block), XSEG_ERR_NOT_ALLOCATED,
                     "not the start of an allocated block");
    env_expect_error(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED, "exported");
    env_expect_error(xseg_export_close(allocator, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    block = env_alloc_in(allocator, pool, 90 * MIB, NULL);
    env_expect_error(query(allocator, block), XSEG_ERR_UNSUPPORTED, "classic");
    env_free(allocator, block, plain);
    assert_int_equal(env_open_fds(), files);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* Import with one handle replaced. */
static void expect_rejected(struct xseg_allocator *allocator,
                            const struct exported_handles *exported, size_t at,
                            struct xseg_page_handle wrong, xseg_status status, const char *word)
{
    struct xseg_page_handle handle[3];
    void *base = NULL;

    assert_int_equal(exported->count, COUNT_OF(handle));
    memcpy(handle, exported->handle, sizeof(handle));
    handle[at] = wrong;
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, handle, 3, &base), status,
                     word);
    assert_null(base);
}

#define REFUSED(at, member, value, status, word)                            \
    do {                                                                    \
        struct xseg_page_handle changed = exported.handle[at];              \
        changed.member = (value);                                           \
        expect_rejected(allocator, &exported, (at), changed, status, word); \
    } while (0)

TEST(invalid_handles_are_rejected)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    const struct xseg_statistics before = env_stats(allocator);
    struct exported_handles exported = export_of(allocator, ptr);
    const unsigned files = env_open_fds();
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    REFUSED(0, offset, 20 * MIB, XSEG_ERR_ARGUMENT,
            "page 0 is invalid, 20971520 bytes at offset 20971520");
    REFUSED(2, offset, 20 * MIB, XSEG_ERR_ARGUMENT, "page 2");
    REFUSED(2, offset, UINT64_MAX, XSEG_ERR_ARGUMENT, "page 2");
    REFUSED(1, size, 0, XSEG_ERR_ARGUMENT, "page 1 is invalid, 0 bytes");
    REFUSED(2, size, 11 * MIB, XSEG_ERR_ARGUMENT, "multiples of 2097152 bytes");
    REFUSED(2, size, UINT64_MAX, XSEG_ERR_ARGUMENT, "page 2");
    REFUSED(2, size, (uint64_t)1 << 48, XSEG_ERR_ARGUMENT, "page 2");
    REFUSED(1, fd, 987, XSEG_ERR_ARGUMENT, "descriptor of page 1 is not open, 987");
    /* Sizes that the driver does not map, as the memory has less; and a descriptor of something else. */
    REFUSED(2, size, 22 * MIB, XSEG_ERR_DRIVER, "cuMemMap");
    REFUSED(2, fd, pipes[0], XSEG_ERR_DRIVER, "cuMemImportFromShareableHandle");
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 0, &base),
                     XSEG_ERR_ARGUMENT, "number of pages is out of range, 0");
    env_expect_error(
        xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, SIZE_MAX, &base),
        XSEG_ERR_ARGUMENT, "number of pages");
    env_expect_error(
        xseg_import_handles(allocator, 0, (enum xseg_handle_type)3, exported.handle, 3, &base),
        XSEG_ERR_ARGUMENT, "xseg_handle_type, 3");
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, NULL, 3, &base),
                     XSEG_ERR_ARGUMENT, "handles is NULL");
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 3, NULL),
                     XSEG_ERR_ARGUMENT, "base is NULL");
    env_expect_error(xseg_import_handles(allocator, 2, XSEG_HANDLE_FD, exported.handle, 3, &base),
                     XSEG_ERR_ARGUMENT, "device");
    env_expect_error(xseg_import_close(allocator, NULL), XSEG_ERR_ARGUMENT, "NULL");
    env_expect_error(xseg_import_close(allocator, ptr), XSEG_ERR_NOT_ALLOCATED, "imported");
    assert_null(base);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    assert_int_equal(env_open_fds(), files);
    export_handles_close(&exported);
    struct xseg_statistics after = env_stats(allocator);
    after.host_bytes = before.host_bytes; /* the export's record */
    assert_memory_equal(&before, &after, sizeof(before));
    close_with(allocator, pool, ptr);
}

/* A device may be unable to map what another process exports. */
TEST(a_device_without_mappings_imports_nothing)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL), *base = NULL;
    struct exported_handles exported = export_of(allocator, block);

    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_close(allocator));
    settings.without_vmm = true;
    allocator = env_open_on(&settings, NULL);
    env_expect_error(import_handles(allocator, &exported, NULL, &base), XSEG_ERR_UNSUPPORTED,
                     "virtual memory");
    export_handles_close(&exported);
    env_close(allocator);
}

/* The driver fails half-way: the descriptors that it made are closed again. */
TEST(an_export_is_whole_or_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 200 * MIB, NULL);
    struct exported_handles exported;
    const unsigned files = env_open_fds();

    for (uint64_t n = 1; n <= 10; n++) {
        assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", n, 304));
        env_expect_error(export_handles(allocator, block, XSEG_HANDLE_FD, &exported),
                         XSEG_ERR_DRIVER, "ulimit -n");
        assert_int_equal(env_open_fds(), files);
        assert_int_equal(explained(allocator), 0);
    }
    env_free(allocator, block);
    assert_int_equal(trim(allocator, pool).released, 200 * MIB);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(capture_unmaps_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator), *graph = env_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base[2] = {NULL};
    xseg_stream stream = env_stream();
    struct xseg_export_token token;

    env_capture_begin(graph, stream);
    struct exported_handles exported = export_of(allocator, block);
    assert_ok(import_handles(allocator, &exported, NULL, &base[0]));
    export_handles_close(&exported);
    assert_ok(xseg_export(allocator, block, &token, NULL));
    assert_ok(xseg_import(allocator, 0, &token, &base[1]));
    env_expect_error(xseg_import_close(allocator, base[0]), XSEG_ERR_BUSY, "capture");
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    env_capture_end(graph, stream);
    assert_ok(xseg_import_close(allocator, base[0]));
    assert_ok(xseg_import_close(allocator, base[1]));
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(graph));
    env_stream_destroy(stream);
    env_close(allocator);
}

/* After an error that does not pass, only the host side works; nothing is left behind of it. */
TEST(lost_device_releases_its_exports)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base = NULL, *more = NULL;
    struct exported_handles exported = export_of(allocator, block), other;
    struct xseg_export_token token;

    assert_ok(xseg_export(allocator, block, &token, NULL));
    assert_ok(import_handles(allocator, &exported, NULL, &base));
    assert_ok(import_handles(allocator, &exported, NULL, &more));
    assert_ok(xseg_sim_fail("cuMemExportToShareableHandle", 1, 700));
    env_expect_error(export_handles(allocator, block, XSEG_HANDLE_FD, &other), XSEG_ERR_DEVICE_LOST,
                     "cuMemExport");
    env_expect_error(export_handles(allocator, block, XSEG_HANDLE_FD, &other), XSEG_ERR_DEVICE_LOST,
                     "lost");
    env_expect_error(import_handles(allocator, &exported, NULL, &base), XSEG_ERR_DEVICE_LOST,
                     "lost");
    env_expect_error(xseg_import(allocator, 0, &token, &base), XSEG_ERR_DRIVER, "exporter failed");
    export_handles_close(&exported);
    assert_ok(xseg_import_close(allocator, base));
    env_free(allocator, block);
    /* An import and the exports are open still. */
    assert_ok(xseg_close(allocator));
}

/* On the simulator, too: memory that may be exported takes descriptors only while it is exported. */
TEST(exportable_memory_is_not_limited_by_descriptors)
{
    struct xseg_range_options options = {sizeof(options)};
    struct xseg_allocator *allocator = open_on(false, 8 * GIB, NULL);
    const unsigned files = env_open_fds();
    struct xseg_range *range = NULL;
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit low = limit;
    low.rlim_cur = files + 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    options.pool = make_pool(allocator);
    assert_ok(xseg_range_reserve(allocator, 0, 2 * GIB, &options, &range));
    assert_ok(xseg_range_commit(range, 0, 2 * GIB, NULL));
    void *block = env_alloc_in(allocator, options.pool, 4 * GIB, NULL);
    for (unsigned times = 0; times < 2; times++) {
        const unsigned before = env_open_fds();

        env_expect_error(export_and_close_handles(allocator, block), XSEG_ERR_DRIVER, "ulimit -n");
        assert_int_equal(env_open_fds(), before);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    hold(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_ok(xseg_range_decommit(range, 0, 2 * GIB, NULL));
    assert_ok(xseg_range_release(range));
    assert_ok(xseg_pool_release(options.pool));
    env_close(allocator);
}

TEST(calls_of_a_forked_child_fail)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL), *base = NULL;
    struct exported_handles exported = export_of(allocator, block);
    struct xseg_export_token token = {{0}};
    int result = 0;
    pid_t child;

    child = fork();
    if (child == 0) {
        const xseg_status got[] = {
            xseg_export(allocator, block, &token, NULL),
            query(allocator, block),
            xseg_export_close(allocator, block),
            xseg_import(allocator, 0, &token, &base),
            xseg_import_close(allocator, block),
            import_handles(allocator, &exported, NULL, &base),
        };

        for (unsigned i = 0; i < COUNT_OF(got); i++)
            if (got[i] != XSEG_ERR_FORKED)
                _exit(1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    export_handles_close(&exported);
    close_with(allocator, pool, block);
}

/* --- The key of the configuration. --- */

TEST(a_configuration_makes_memory_exportable)
{
    struct xseg_allocator *allocator = env_open("exportable:True");
    struct xseg_pool_options own = {sizeof(own)};
    struct xseg_pool *pool = NULL, *other = NULL, *later = NULL;
    void *blocks[3];

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    blocks[0] = env_alloc(allocator, 30 * MIB, NULL);
    blocks[1] = env_alloc(allocator, 1000, NULL);
    blocks[2] = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(blocks); i++) {
        hold(allocator, blocks[i]);
        assert_ok(xseg_export_close(allocator, blocks[i]));
    }
    /* Memory of a pool's own functions is as before. */
    own.memory.alloc = own_memory;
    own.memory.free = no_memory;
    assert_ok(xseg_pool_create(allocator, 0, &own, &other));
    /* Pools that are made from then on follow; what is there does not change. */
    assert_ok(xseg_config_set(allocator, "exportable:False"));
    assert_ok(xseg_pool_create(allocator, 0, NULL, &later));
    void *block = env_alloc_in(allocator, later, 3 * MIB, NULL);
    env_expect_error(query(allocator, block), XSEG_ERR_UNSUPPORTED, "exportable:True");
    hold(allocator, blocks[0]);
    assert_ok(xseg_export_close(allocator, blocks[0]));
    for (unsigned i = 0; i < COUNT_OF(blocks); i++)
        env_free(allocator, blocks[i]);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(other));
    assert_ok(xseg_pool_release(later));
    env_close(allocator);
}

static void find_line(void *context, enum xseg_log_level level, const char *line)
{
    if (level == XSEG_LOG_WARNING && strstr(line, "exportable has no effect") != NULL)
        (void)snprintf(context, 512, "%s", line);
}

TEST(missing_export_support_is_logged_once)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    struct xseg_pool *pool = NULL;
    char line[512] = "";
    const struct xseg_sim_settings settings = sim_settings(false, 1 * GIB);

    assert_ok(xseg_sim_reset(&settings));
    fault.call = "cuMemExportToShareableHandle";
    fault.every = 1;
    fault.error = 801; /* not supported */
    assert_ok(xseg_sim_fault_set(0, &fault));
    options.driver = env_driver();
    options.log = find_line;
    options.log_context = line;
    assert_ok(xseg_open("exportable:True", &options, &allocator));
    void *block = env_alloc(allocator, 30 * MIB, NULL);
    assert_non_null(strstr(line, "CUDA_ERROR_NOT_SUPPORTED"));
    line[0] = '\0';
    /* Pools are made, without it; who asks for it himself is refused. */
    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    env_expect_error(query(allocator, block), XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED");
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED);
    assert_string_equal(line, "");
    assert_int_equal(xseg_sim_fault_count(0), 1);
    env_free(allocator, block);
    env_close(allocator);
    assert_ok(xseg_sim_fault_set(0, NULL));
}

/* A probe that fails for another reason fails the call that opens the device; the next call probes
 * again. */
TEST(a_probe_that_fails_runs_again)
{
    struct xseg_allocator *allocator = env_open("exportable:True");
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    void *block = NULL;

    fault.call = "cuMemExportToShareableHandle";
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    env_expect_error(xseg_alloc(allocator, 0, 30 * MIB, NULL, &block), XSEG_ERR_DRIVER,
                     "cuMemExportToShareableHandle");
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    block = env_alloc(allocator, 30 * MIB, NULL);
    hold(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    env_close(allocator);
}

/* --- Fabric handles. --- */

static struct xseg_allocator *open_with_fabric(void)
{
    struct xseg_sim_settings settings = sim_settings(true, 1 * GIB);

    settings.fabric = true;
    return env_open_with_clock(&settings, NULL);
}

TEST(fabric_handles_are_bytes)
{
    struct xseg_allocator *allocator = open_with_fabric();
    struct xseg_pool *pool = make_pool(allocator);
    unsigned char *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct exported_handles exported;
    void *seen = NULL, *base = NULL, *again = NULL;

    const unsigned files = env_open_fds();
    assert_ok(export_handles(allocator, block, XSEG_HANDLE_FABRIC, &exported));
    assert_int_equal(env_open_fds(), files);
    assert_int_equal(exported.count, 3);
    for (size_t i = 0; i < exported.count; i++)
        assert_int_equal(exported.handle[i].fd, -1);
    assert_ok(import_handles(allocator, &exported, &seen, &base));
    fill(seen, 50 * MIB, 9);
    assert_true(holds(block, 50 * MIB, 9));
    /* Pages of both types of handle. */
    hold(allocator, block);
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_import_close(allocator, base));
    /* A handle that names nothing, and the wrong type. */
    exported.handle[0].fabric[0] ^= 1;
    assert_int_equal(import_handles(allocator, &exported, NULL, &again), XSEG_ERR_DRIVER);
    exported.handle[0].fabric[0] ^= 1;
    env_expect_error(xseg_import_handles(allocator, 0, XSEG_HANDLE_FD, exported.handle, 3, &again),
                     XSEG_ERR_ARGUMENT, "not open, -1");
    /* A fabric handle does not keep the memory. */
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
    assert_int_equal(trim(allocator, pool).released, 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(import_handles(allocator, &exported, NULL, &again), XSEG_ERR_DRIVER);
    export_handles_close(&exported);
    assert_null(again);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(missing_fabric_support_is_explained)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = env_alloc_in(allocator, pool, 3 * MIB, NULL);
    struct exported_handles exported;

    env_expect_error(export_handles(allocator, block, XSEG_HANDLE_FABRIC, &exported),
                     XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED);
    hold(allocator, block);
    close_with(allocator, pool, block);
}

/* --- * The probe of exports is deferred while the device has too little memory for it: no pool counts as
 * exportable before the probe, and the next growth runs the probe. --- */

#define NOT_SUPPORTED 801

static struct xseg_sim_settings low_memory_settings(void)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 200 * MIB,
                                         .fabric = true};

    return settings;
}

/* Two allocators on one device; the first one has allocated all of its memory. */
struct full {
    struct xseg_allocator *holder, *allocator;
    void *all;
    char log[512]; /* the last warning of `allocator` */
};

static void find_probe_line(void *context, enum xseg_log_level level, const char *line)
{
    if (level == XSEG_LOG_WARNING)
        (void)snprintf(context, 512, "%s", line);
}

static void open_full(struct full *full, const char *config)
{
    const struct xseg_sim_settings settings = low_memory_settings();
    struct xseg_options options = {sizeof(options)};

    *full = (struct full){.holder = env_open_on(&settings, NULL)};
    full->all = env_alloc(full->holder, 200 * MIB, NULL);
    options.driver = env_driver();
    options.log = find_probe_line;
    options.log_context = full->log;
    assert_ok(xseg_open(config, &options, &full->allocator));
}

static void free_device_memory(struct full *full)
{
    env_free(full->holder, full->all);
    env_empty_cache(full->holder);
}

static void close_full(const struct full *full)
{
    assert_ok(xseg_close(full->holder));
    env_close(full->allocator);
}

static struct xseg_pool *exportable_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool_options options = {sizeof(options), .exportable = true};
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    return pool;
}

static void export_and_close(struct xseg_allocator *allocator, void *block,
                             enum xseg_handle_type type)
{
    struct exported_handles exported;

    assert_ok(export_handles(allocator, block, type, &exported));
    export_handles_close(&exported);
    assert_ok(xseg_export_close(allocator, block));
}

TEST(the_probe_runs_when_memory_is_free)
{
    struct full full;
    void *block = NULL;

    open_full(&full, "exportable:True");
    assert_int_equal(xseg_alloc(full.allocator, 0, 1000, NULL, &block), XSEG_ERR_NO_MEMORY);
    assert_non_null(strstr(full.log, "too little free memory for the driver test"));
    free_device_memory(&full);
    /* The default pool is exportable from its first memory on. */
    block = env_alloc(full.allocator, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    const uint64_t exports = xseg_sim_calls("cuMemExportToShareableHandle");
    void *other = env_alloc(full.allocator, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemExportToShareableHandle"), exports);
    env_free(full.allocator, other, block);
    close_full(&full);
}

/* If the deferred probe fails, the default pool still gets memory that is not exportable. */
TEST(a_failed_probe_leaves_the_default_pool_not_exportable)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct exported_handles exported;
    struct xseg_pool *pool = NULL;
    struct full full;
    void *block = NULL;

    open_full(&full, "exportable:True");
    assert_ok(xseg_pool_create(full.allocator, 0, NULL, &pool));
    free_device_memory(&full);
    /* Both pages of the probe: with fabric handles, and without. */
    fault.call = "cuMemCreate";
    fault.error = NOT_SUPPORTED;
    for (unsigned i = 0; i < 2; i++) {
        fault.nth = i + 1;
        assert_ok(xseg_sim_fault_set(i, &fault));
    }
    block = env_alloc(full.allocator, 1000, NULL);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    assert_non_null(strstr(full.log, "exportable has no effect, "));
    assert_non_null(strstr(full.log, "CUDA_ERROR_NOT_SUPPORTED"));
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FD, &exported),
                     XSEG_ERR_UNSUPPORTED, "cannot be exported");
    env_free(full.allocator, block);
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}

/* A pool that is exportable by its options is created under memory pressure, and gets fabric
 * handles later. */
TEST(a_deferred_probe_finds_fabric_handles)
{
    struct exported_handles exported;
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct full full;

    open_full(&full, NULL);
    struct xseg_pool *pool = exportable_pool(full.allocator);
    free_device_memory(&full);
    void *block = env_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);

    /* The pages were created before the probe could run: they have no fabric handles. */
    open_full(&full, NULL);
    pool = exportable_pool(full.allocator);
    free_device_memory(&full);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2));
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                     XSEG_ERR_UNSUPPORTED, "before the probe of fabric handles");
    export_and_close(full.allocator, block, XSEG_HANDLE_FD);
    env_free(full.allocator, block);
    scope.pool = pool;
    assert_ok(xseg_trim(full.allocator, &scope, NULL, NULL));
    block = env_alloc_in(full.allocator, pool, 1000, NULL);
    export_and_close(full.allocator, block, XSEG_HANDLE_FABRIC);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}

/* If memory is too low for the probe at the export itself, the error message contains that. */
TEST(the_error_reports_a_probe_without_memory)
{
    struct exported_handles exported;
    struct full full;

    open_full(&full, NULL);
    struct xseg_pool *pool = exportable_pool(full.allocator);
    free_device_memory(&full);
    assert_ok(xseg_sim_fail("cuMemCreate", 1, 2));
    void *block = env_alloc_in(full.allocator, pool, 1000, NULL);
    full.all = env_alloc(full.holder, 198 * MIB, NULL);
    env_expect_error(export_handles(full.allocator, block, XSEG_HANDLE_FABRIC, &exported),
                     XSEG_ERR_UNSUPPORTED, "out of memory for a probe");
    free_device_memory(&full);
    env_free(full.allocator, block);
    assert_ok(xseg_pool_release(pool));
    close_full(&full);
}
