/* SPDX-License-Identifier: MIT */
/*
 * Memory that is shared by file descriptor: two processes on one simulated device, with real bytes; what
 * an export holds; and what is refused, which leaves nothing behind.
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

#include "tests/support/process.h"

#define STRIDE (64 * KIB)

static struct xseg_sim_settings machine(bool real_bytes, uint64_t memory)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

    settings.memory_bytes = memory;
    settings.real_bytes = real_bytes;
    return settings;
}

static struct xseg_allocator *open_on(bool real_bytes, uint64_t memory, const char *config)
{
    const struct xseg_sim_settings settings = machine(real_bytes, memory);

    return scene_open_with_clock(&settings, config);
}

static xseg_status try_pool(struct xseg_allocator *allocator, struct xseg_pool **pool)
{
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;

    options.exportable = true;
    return xseg_pool_create(allocator, 0, &options, pool);
}

static struct xseg_pool *make_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool *pool = NULL;

    assert_int_equal(try_pool(allocator, &pool), XSEG_OK);
    return pool;
}

static struct xseg_share export_of(struct xseg_allocator *allocator, void *ptr)
{
    struct xseg_share share = XSEG_SHARE_INIT;

    assert_int_equal(xseg_export(allocator, ptr, XSEG_SHARE_FD, &share), XSEG_OK);
    return share;
}

static struct xseg_share_header header_of(const struct xseg_share *share)
{
    assert_true(share->header_bytes >= sizeof(*share->header));
    return *share->header;
}

/* Export, and let go of the descriptors. */
static void hold(struct xseg_allocator *allocator, void *ptr)
{
    struct xseg_share share = export_of(allocator, ptr);

    xseg_share_end(&share);
}

/* Take the last export back, and close. */
static void close_with(struct xseg_allocator *allocator, struct xseg_pool *pool, void *block)
{
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static struct xseg_trimmed trim(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;

    where.pool = pool;
    assert_int_equal(xseg_trim(allocator, &where, NULL, &done), XSEG_OK);
    return done;
}

static uint64_t reserved(struct xseg_allocator *allocator)
{
    return scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
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

/* --- Another process, which does what it is told: an order and a value; it answers y or n. --- */

struct importer {
    struct xseg_allocator *allocator;
    unsigned char *block;
    size_t bytes;
};

static bool receive_and_import(struct importer *importer, int socket)
{
    struct xseg_share share = XSEG_SHARE_INIT;
    void *block = NULL;

    if (xseg_share_receive(socket, &share) != XSEG_OK ||
        xseg_import(importer->allocator, 0, &share, &block) != XSEG_OK)
        return false;
    importer->block = block;
    importer->bytes = share.header->block_bytes;
    const bool is_parents = share.header->process == getppid();
    xseg_share_end(&share);
    return is_parents;
}

/* Exactly the pages are mapped, and only that is counted. */
static bool is_counted(const struct importer *importer)
{
    struct xseg_statistics stats = XSEG_STATISTICS_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;

    where.device = 0;
    return xseg_stats(importer->allocator, &where, &stats) == XSEG_OK &&
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
        return xseg_import_close(importer->allocator, importer->block) == XSEG_OK &&
               xseg_sim_leaks(NULL, 0) == 1; /* the context */
    default:
        return xseg_close(importer->allocator) == XSEG_OK && xseg_sim_leaks(NULL, 0) == 0;
    }
}

static void obey(int socket, const struct xseg_sim_settings *settings)
{
    struct importer importer = {0};
    char order[2];

    if (xseg_sim_reset(settings) != XSEG_OK || scene_try_open(NULL, &importer.allocator) != XSEG_OK)
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
    const char told[2] = {order, (char)value};

    assert_int_equal(write(process->socket, told, 2), 2);
}

static bool tell(const struct process *process, char order, unsigned char value)
{
    order_only(process, order, value);
    return process_answer(process);
}

/* NULL where processes cannot share a machine. */
static struct xseg_allocator *start_process(struct process *process)
{
    const struct xseg_sim_settings settings = machine(true, 1 * GIB);
    struct xseg_allocator *own = NULL;

    if (!process_start(process, &settings, obey))
        return NULL;
    assert_int_equal(scene_try_open(NULL, &own), XSEG_OK);
    return own;
}

static void end_process(const struct process *process, struct xseg_allocator *own)
{
    const struct xseg_sim_settings alone = machine(false, 1 * GIB);

    assert_true(tell(process, 'e', 0));
    process_end(process, own, &alone);
}

/* Export, send, and have the other import; nothing stays open here. */
static void send_block(const struct process *process, struct xseg_allocator *own, void *block)
{
    const unsigned before = scene_open_files();
    struct xseg_share share = export_of(own, block);

    order_only(process, 'i', 0);
    assert_int_equal(xseg_share_send(process->socket, &share), XSEG_OK);
    xseg_share_end(&share);
    assert_null(share.header);
    assert_true(process_answer(process));
    assert_int_equal(scene_open_files(), before);
}

static void what_one_process_writes_the_other_reads(void **state)
{
    static const size_t sizes[] = {1000, 700 * KIB, 3 * MIB, 20 * MIB, 70 * MIB};
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    (void)state;
    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    /* So that no block starts with its page. */
    void *first = scene_alloc_in(own, pool, 3000, NULL),
         *large = scene_alloc_in(own, pool, 15 * MIB, NULL);

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *block = scene_alloc_in(own, pool, sizes[i], NULL);
        /* The importer sees all of the block, which may be longer than what was asked for. */
        const size_t bytes = scene_block(own, block).bytes;

        fill(block, bytes, (unsigned char)(10 + i));
        send_block(&process, own, block);
        assert_true(tell(&process, 'r', (unsigned char)(10 + i)));
        fill(block, bytes, 99);
        assert_true(tell(&process, 'r', 99));
        assert_true(tell(&process, 'w', (unsigned char)(100 + i)));
        assert_true(holds(block, bytes, (unsigned char)(100 + i)));
        assert_true(tell(&process, 'c', 0));
        assert_int_equal(xseg_export_close(own, block), XSEG_OK);
        scene_free(own, block);
    }
    scene_free(own, first);
    scene_free(own, large);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    end_process(&process, own);
}

/* The exporter frees, closes and gives its pages back; the importer has them still. */
static void importers_outlive_the_exporter(void **state)
{
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    (void)state;
    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    void *block = scene_alloc_in(own, pool, 40 * MIB, NULL);
    fill(block, 40 * MIB, 7);
    send_block(&process, own, block);
    scene_free(own, block);
    assert_int_equal(xseg_export_close(own, block), XSEG_OK);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(trim(own, NULL).returned, 40 * MIB);
    assert_int_equal(reserved(own), 0);
    /* The device is without that memory until the importer is done. */
    assert_int_equal(xseg_sim_used(0), 40 * MIB);
    void *other = scene_alloc(own, 100 * MIB, NULL);
    fill(other, 100 * MIB, 8);
    assert_true(tell(&process, 'r', 7));
    assert_true(tell(&process, 'c', 0));
    assert_int_equal(xseg_sim_used(0), 100 * MIB);
    scene_free(own, other);
    end_process(&process, own);
}

static void a_process_that_dies_lets_go(void **state)
{
    const struct xseg_sim_settings alone = machine(false, 1 * GIB);
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);
    int result = 0;

    (void)state;
    if (own == NULL)
        return;
    struct xseg_pool *pool = make_pool(own);
    void *block = scene_alloc_in(own, pool, 20 * MIB, NULL);
    send_block(&process, own, block);
    scene_free(own, block);
    assert_int_equal(xseg_export_close(own, block), XSEG_OK);
    assert_int_equal(trim(own, pool).returned, 20 * MIB);
    assert_int_equal(xseg_sim_used(0), 20 * MIB);
    (void)close(process.socket);
    assert_int_equal(waitpid(process.pid, &result, 0), process.pid);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(own);
    assert_int_equal(xseg_sim_reset(&alone), XSEG_OK);
}

/* --- One process on both sides. --- */

static void the_same_process_can_import(void **state)
{
    struct xseg_allocator *allocator = open_on(true, 1 * GIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    unsigned char *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block);
    const struct xseg_share_header header = header_of(&share);
    void *again = NULL, *twice = NULL;

    (void)state;
    assert_int_equal(share.fd_count, 3);
    assert_int_equal(header.page_count, 3);
    assert_int_equal(header.requested_bytes, 50 * MIB);
    assert_int_equal(header.process, getpid());
    for (size_t i = 0; i < share.fd_count; i++)
        assert_int_equal(fcntl(share.fd[i], F_GETFD), FD_CLOEXEC);
    assert_int_equal(xseg_import(allocator, 0, &share, &again), XSEG_OK);
    assert_int_equal(xseg_import(allocator, 0, &share, &twice), XSEG_OK);
    xseg_share_end(&share);
    assert_int_equal(scene_stats(allocator).imported_bytes, 120 * MIB);
    assert_int_equal(reserved(allocator), 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 60 * MIB);
    fill(again, 50 * MIB, 5);
    assert_true(holds(block, 50 * MIB, 5));
    assert_true(holds(twice, 50 * MIB, 5));
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    scene_expect_error(xseg_import_close(allocator, again), XSEG_ERR_NOT_LIVE, "imported");
    assert_true(holds(twice, 50 * MIB, 5));
    /* An import is no block. */
    scene_expect_error(xseg_free(allocator, twice), XSEG_ERR_NOT_LIVE, "");
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "live block");
    scene_free(allocator, block);
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "xseg_export_close");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_expect_error(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE, "exported");
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "xseg_import_close");
    assert_int_equal(xseg_import_close(allocator, twice), XSEG_OK);
    assert_int_equal(scene_stats(allocator).imported_bytes, 0);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static void exports_and_imports_cost_what_is_said(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL), *again = NULL;
    uint64_t calls;

    (void)state;
    hold(allocator, block); /* asks for the device's UUID */
    calls = xseg_sim_calls(NULL);
    struct xseg_share share = export_of(allocator, block);
    assert_int_equal(xseg_sim_calls(NULL) - calls, 3);
    calls = xseg_sim_calls(NULL);
    assert_int_equal(xseg_import(allocator, 0, &share, &again), XSEG_OK);
    assert_int_equal(xseg_sim_calls(NULL) - calls, 1 + 3 * 3 + 1);
    xseg_share_end(&share);
    calls = xseg_sim_calls(NULL);
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") + xseg_sim_calls("cuMemAddressFree"), 1 + 1 + 2);
    calls = xseg_sim_calls(NULL);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_sim_calls(NULL), calls);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* What a receiver may remember a segment by. */
static void a_segment_is_known_by_its_number(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator), *other = make_pool(allocator);
    void *keeper = scene_alloc_in(allocator, pool, 20 * MIB, NULL),
         *block = scene_alloc_in(allocator, pool, 40 * MIB, NULL),
         *elsewhere = scene_alloc_in(allocator, other, 20 * MIB, NULL);
    struct xseg_share share[4];
    struct xseg_share_header header[4];

    (void)state;
    share[0] = export_of(allocator, keeper);
    share[1] = export_of(allocator, block);
    share[2] = export_of(allocator, block);
    share[3] = export_of(allocator, elsewhere);
    for (unsigned i = 0; i < 4; i++) {
        header[i] = header_of(&share[i]);
        assert_int_equal(header[i].exporter, header[0].exporter);
        assert_memory_equal(header[i].device, header[0].device, sizeof(header[i].device));
        assert_int_equal(header[i].segment == header[0].segment, i < 3);
        xseg_share_end(&share[i]);
    }
    /* Of one block all is the same but the descriptors. */
    assert_memory_equal(&header[1], &header[2], sizeof(header[1]));
    assert_int_equal(header[0].page_offset + header[0].block_offset, 0);
    assert_int_equal(header[1].page_offset + header[1].block_offset,
                     (size_t)((char *)block - (char *)keeper));
    /* Other memory at the same place: the segment stays, the generation does not. */
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(trim(allocator, pool).returned, 40 * MIB);
    assert_ptr_equal(scene_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    share[1] = export_of(allocator, block);
    header[2] = header_of(&share[1]);
    xseg_share_end(&share[1]);
    assert_int_equal(header[2].segment, header[1].segment);
    assert_true(header[2].generation > header[1].generation);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, keeper), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, elsewhere), XSEG_OK);
    scene_free(allocator, keeper);
    scene_free(allocator, block);
    scene_free(allocator, elsewhere);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_pool_release(other), XSEG_OK);
    scene_close(allocator);
}

/* --- What an export holds. --- */

static void a_pool_is_not_paused_while_it_is_exported(void **state)
{
    struct xseg_allocator *allocator = open_on(true, 1 * GIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 30 * MIB, NULL);
    struct xseg_share share = XSEG_SHARE_INIT;

    (void)state;
    fill(block, 30 * MIB, 3);
    hold(allocator, block);
    hold(allocator, block);
    scene_expect_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY, "are exported");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_expect_error(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), XSEG_ERR_BUSY, "are exported");
    assert_true(holds(block, 30 * MIB, 3));
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_HOST, NULL), XSEG_OK);
    assert_int_equal(xseg_sim_used(0), 0);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_PAUSED, "");
    assert_int_equal(xseg_pool_resume(pool), XSEG_OK);
    assert_true(holds(block, 30 * MIB, 3));
    /* The pages that came can be exported as well. */
    share = export_of(allocator, block);
    xseg_share_end(&share);
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
    struct xseg_explained sums = XSEG_EXPLAINED_INIT;
    uint64_t bytes = 0;

    assert_int_equal(xseg_explain(allocator, NULL, find_exported, &bytes, &sums), XSEG_OK);
    assert_int_equal(sums.exported, bytes);
    assert_int_equal(sums.reserved, sums.live + sums.pending + sums.busy + sums.pool + sums.pinned +
                                        sums.capture + sums.stream + sums.floor + sums.decay +
                                        sums.policy + sums.exported + sums.registered);
    return bytes;
}

static bool find_mapping(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *bytes = context;

    *bytes += mapping->is_exported ? mapping->bytes : 0;
    return true;
}

static void a_trim_leaves_exported_pages(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 40 * MIB, NULL),
         *other = scene_alloc_in(allocator, pool, 20 * MIB, NULL);
    uint64_t mapped = 0;

    (void)state;
    hold(allocator, block);
    scene_free(allocator, block);
    scene_free(allocator, other);
    struct xseg_trimmed done = trim(allocator, pool);
    assert_int_equal(done.kept_exported, 40 * MIB);
    assert_int_equal(done.kept_pinned, 0);
    assert_int_equal(done.returned, 20 * MIB);
    assert_int_equal(done.left, 40 * MIB);
    assert_int_equal(explained(allocator), 40 * MIB);
    assert_string_equal(xseg_reason_text(XSEG_REASON_EXPORTED), "idle, but exported");
    assert_int_equal(xseg_mappings(allocator, NULL, find_mapping, &mapped), XSEG_OK);
    assert_int_equal(mapped, 40 * MIB);
    /* By age as well. */
    struct xseg_trim_options how = XSEG_TRIM_OPTIONS_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;
    where.pool = pool;
    how.idle_ms = 1;
    done = (struct xseg_trimmed)XSEG_TRIMMED_INIT;
    assert_int_equal(xseg_trim(allocator, &where, &how, &done), XSEG_OK);
    assert_int_equal(done.kept_exported, 40 * MIB);
    /* A pin of the user's is another matter, and is told first. */
    assert_ptr_equal(scene_alloc_in(allocator, pool, 40 * MIB, NULL), block);
    assert_int_equal(xseg_pin(allocator, block, 1), XSEG_OK);
    scene_free(allocator, block);
    done = trim(allocator, pool);
    assert_int_equal(done.kept_pinned, 20 * MIB);
    assert_int_equal(done.kept_exported, 20 * MIB);
    assert_int_equal(xseg_unpin(allocator, block, 1), XSEG_OK);
    scene_expect_error(xseg_unpin(allocator, block, 1), XSEG_ERR_ARGUMENT, "pinned");
    assert_int_equal(trim(allocator, pool).kept_exported, 40 * MIB);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(trim(allocator, pool).returned, 40 * MIB);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static void decay_leaves_exported_pages(void **state)
{
    struct xseg_allocator *allocator = open_on(false, 1 * GIB, "idle_ms:100");
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 40 * MIB, NULL),
         *other = scene_alloc_in(allocator, pool, 20 * MIB, NULL);

    (void)state;
    hold(allocator, block);
    scene_free(allocator, block);
    scene_free(allocator, other);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    for (unsigned i = 0; i < 20; i++) {
        xseg_sim_advance(UINT64_C(100000000));
        assert_int_equal(xseg_tick(allocator, 1000000), XSEG_OK);
    }
    assert_int_equal(reserved(allocator), 40 * MIB);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    for (unsigned i = 0; i < 20; i++) {
        xseg_sim_advance(UINT64_C(100000000));
        assert_int_equal(xseg_tick(allocator, 1000000), XSEG_OK);
    }
    assert_int_equal(reserved(allocator), 0);
    scene_close(allocator);
}

static void a_shortage_leaves_exported_pages(void **state)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 120 * MIB, NULL), *big = NULL;

    (void)state;
    hold(allocator, block);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_expect_error(xseg_alloc(allocator, 0, 150 * MIB, NULL, &big), XSEG_ERR_NO_MEMORY,
                       "cached but exported 120.00 MiB");
    assert_int_equal(reserved(allocator), 120 * MIB);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, scene_alloc(allocator, 150 * MIB, NULL));
    scene_close(allocator);
}

/* Pages that nobody was shown move between exportable pools; those of others go through the driver. */
static void pages_are_stolen_from_their_own_kind(void **state)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *first = make_pool(allocator), *second;
    void *block = scene_alloc_in(allocator, first, 160 * MIB, NULL);
    uint64_t created;

    (void)state;
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(first), XSEG_OK);
    second = make_pool(allocator);
    created = xseg_sim_calls("cuMemCreate");
    block = scene_alloc_in(allocator, second, 100 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 2); /* the rest is stolen */
    hold(allocator, block);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(second), XSEG_OK);
    /* A plain request gets all of it, in pages of its own kind. */
    created = xseg_sim_calls("cuMemCreate");
    block = scene_alloc(allocator, 180 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - created, 9);
    assert_int_equal(reserved(allocator), 200 * MIB); /* no more was taken than was missing */
    scene_free(allocator, block);
    /* And an exportable pool of plain pages, none of which could be exported. */
    first = make_pool(allocator);
    block = scene_alloc_in(allocator, first, 180 * MIB, NULL);
    hold(allocator, block);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(first), XSEG_OK);
    scene_close(allocator);
}

/* An importer of a page sees it until it unmaps the page: another pool's contents must not be on it. */
static void what_was_shown_goes_to_no_other_pool(void **state)
{
    struct xseg_allocator *allocator = open_on(true, 200 * MIB, "page_cache_mb:200");
    struct xseg_pool *first = make_pool(allocator), *second = make_pool(allocator);
    void *block = scene_alloc_in(allocator, first, 120 * MIB, NULL), *seen = NULL, *other = NULL;
    struct xseg_share share = export_of(allocator, block);

    (void)state;
    assert_int_equal(xseg_import(allocator, 0, &share, &seen), XSEG_OK);
    xseg_share_end(&share);
    fill(seen, 120 * MIB, 9);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(first), XSEG_OK);
    /* Pages are taken from the first pool, but the importer has them, so the device has not. */
    scene_expect_error(scene_try_alloc_in(allocator, second, 100 * MIB, &other), XSEG_ERR_NO_MEMORY,
                       "");
    assert_true(reserved(allocator) < 120 * MIB);
    assert_int_equal(scene_try_alloc_in(allocator, second, 60 * MIB, &other), XSEG_OK);
    fill(other, 60 * MIB, 200);
    assert_true(holds(seen, 120 * MIB, 9));
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    scene_free(allocator, other);
    scene_free(allocator, scene_alloc_in(allocator, second, 150 * MIB, NULL));
    assert_int_equal(xseg_pool_release(second), XSEG_OK);
    scene_close(allocator);
}

/* --- As any other pool. --- */

static struct xseg_statistics play(bool exportable)
{
    struct xseg_allocator *allocator = open_on(false, 400 * MIB, "page_cache_mb:100");
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;
    struct xseg_pool *pool = NULL;
    void *ptr[40] = {NULL};
    uint64_t random = 12345;

    options.exportable = exportable;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    for (unsigned i = 0; i < 2000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        const unsigned at = (unsigned)(random >> 33) % 40;
        const size_t bytes = (size_t)1 << (6 + (random >> 40) % 20);

        if (ptr[at] != NULL)
            scene_free(allocator, ptr[at]);
        ptr[at] = NULL;
        if (scene_try_alloc_in(allocator, pool, bytes, &ptr[at]) != XSEG_OK)
            ptr[at] = NULL;
        if (i % 100 == 99)
            (void)trim(allocator, pool);
    }
    const struct xseg_statistics stats = scene_stats(allocator);
    for (unsigned i = 0; i < 40; i++)
        scene_free(allocator, ptr[i]);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
    return stats;
}

static void statistics_are_those_of_any_pool(void **state)
{
    struct xseg_statistics plain = play(false), exportable = play(true);

    (void)state;
    /* Pages of the host that are touched: they depend on where in a page the records begin. */
    plain.host_bytes = exportable.host_bytes = 0;
    assert_memory_equal(&plain, &exportable, sizeof(plain));
    assert_true(plain.num_device_alloc > 10 && plain.num_device_free > 10);
}

/* --- What is refused. --- */

static void a_driver_without_such_memory_is_asked_once(void **state)
{
    static const struct {
        const char *call;
        int error;
    } refusals[] = {
        {"cuMemCreate", 801},
        {"cuMemCreate", 800},
        {"cuMemExportToShareableHandle", 801},
    };
    struct xseg_pool *pool = NULL;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(refusals); i++) {
        struct xseg_allocator *allocator = scene_open(NULL);
        struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

        scene_free(allocator, scene_alloc(allocator, 1000, NULL));
        fault.call = refusals[i].call;
        fault.error = refusals[i].error;
        fault.every = 1;
        assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
        scene_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, refusals[i].call);
        assert_int_equal(xseg_sim_fault_set(0, NULL), XSEG_OK);
        const uint64_t calls = xseg_sim_calls(NULL);
        scene_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, refusals[i].call);
        assert_int_equal(xseg_sim_calls(NULL), calls);
        assert_null(pool);
        /* Any other pool is not concerned. */
        assert_int_equal(xseg_pool_release(scene_pool(allocator)), XSEG_OK);
        scene_close(allocator);
    }
}

static void a_trial_that_fails_says_nothing(void **state)
{
    struct xseg_allocator *allocator = open_on(false, 200 * MIB, NULL);
    struct xseg_pool *pool = NULL, *other = NULL;
    void *all = scene_alloc(allocator, 200 * MIB, NULL), *block = NULL;

    (void)state;
    /* While the device is full nothing can be tried. */
    pool = make_pool(allocator);
    scene_expect_error(scene_try_alloc_in(allocator, pool, 1000, &block), XSEG_ERR_NO_MEMORY, "");
    scene_free(allocator, all);
    scene_empty_cache(allocator);
    assert_int_equal(xseg_sim_fail("cuMemExportToShareableHandle", 1, 999), XSEG_OK);
    scene_expect_error(try_pool(allocator, &other), XSEG_ERR_DRIVER, "cuMemExport");
    assert_int_equal(xseg_pool_release(make_pool(allocator)), XSEG_OK);
    const uint64_t calls = xseg_sim_calls(NULL);
    assert_int_equal(xseg_pool_release(make_pool(allocator)), XSEG_OK);
    assert_int_equal(xseg_sim_calls(NULL), calls);
    /* A driver that refuses later is asked again; api/boards has one that goes on refusing. */
    assert_int_equal(xseg_sim_fail("cuMemCreate", 1, 801), XSEG_OK);
    scene_free(allocator, scene_alloc_in(allocator, pool, 1000, NULL));
    assert_true(xseg_sim_failed());
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
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

static void options_are_checked(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool_options options = XSEG_POOL_OPTIONS_INIT;
    struct xseg_pool *pool = NULL;

    (void)state;
    options.exportable = true;
    options.memory.alloc = own_memory;
    options.memory.free = no_memory;
    scene_expect_error(xseg_pool_create(allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
                       "exportable");
    /* A caller that was built before there was such a thing. */
    options = (struct xseg_pool_options)XSEG_POOL_OPTIONS_INIT;
    options.struct_bytes = offsetof(struct xseg_pool_options, exportable);
    options.exportable = true;
    assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
    void *block = scene_alloc_in(allocator, pool, 1000, NULL);
    struct xseg_share share = XSEG_SHARE_INIT;
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_UNSUPPORTED,
                       "exportable pool");
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
    settings.without_vmm = true;
    allocator = scene_open_on(&settings, NULL);
    scene_expect_error(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED, "virtual memory");
    scene_close(allocator);
}

static void only_live_exportable_blocks_are_exported(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    struct xseg_share share = XSEG_SHARE_INIT, small = {.struct_bytes = 8};
    char *block = scene_alloc_in(allocator, pool, 30 * MIB, NULL),
         *plain = scene_alloc(allocator, 1000, NULL);
    const unsigned files = scene_open_files();

    (void)state;
    scene_expect_error(xseg_export(NULL, block, XSEG_SHARE_FD, &share), XSEG_ERR_ARGUMENT, "NULL");
    scene_expect_error(xseg_export(allocator, NULL, XSEG_SHARE_FD, &share), XSEG_ERR_ARGUMENT,
                       "ptr");
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, NULL), XSEG_ERR_ARGUMENT,
                       "out");
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &small), XSEG_ERR_ARGUMENT,
                       "struct_bytes is 8");
    scene_expect_error(xseg_export(allocator, block, (enum xseg_share_kind)7, &share),
                       XSEG_ERR_ARGUMENT, "7");
    scene_expect_error(xseg_export(allocator, &share, XSEG_SHARE_FD, &share), XSEG_ERR_NOT_LIVE,
                       "not memory of this allocator");
    scene_expect_error(xseg_export(allocator, block + 512, XSEG_SHARE_FD, &share),
                       XSEG_ERR_NOT_LIVE, "no live block starts");
    scene_expect_error(xseg_export(allocator, plain, XSEG_SHARE_FD, &share), XSEG_ERR_UNSUPPORTED,
                       "exportable pool");
    scene_free(allocator, block);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_NOT_LIVE,
                       "no live block starts");
    scene_expect_error(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE, "exported");
    scene_expect_error(xseg_export_close(allocator, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_int_equal(xseg_configure(allocator, "expandable_segments:False"), XSEG_OK);
    block = scene_alloc_in(allocator, pool, 90 * MIB, NULL);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_UNSUPPORTED,
                       "classic");
    scene_free(allocator, block);
    scene_free(allocator, plain);
    assert_null(share.header);
    assert_int_equal(scene_open_files(), files);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* Try to import with one thing changed in the header. */
static void expect_header_refused(struct xseg_allocator *allocator, const struct xseg_share *share,
                                  const struct xseg_share_header *changed, const char *word)
{
    _Alignas(struct xseg_share_header) char copy[1024];
    struct xseg_share wrong = *share;
    void *block = NULL;

    assert_true(share->header_bytes < sizeof(copy));
    memcpy(copy, share->header, share->header_bytes);
    memcpy(copy, changed, sizeof(*changed));
    wrong.header = (const void *)copy;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, word);
    assert_null(block);
}

#define REFUSED(member, value, word)                                \
    do {                                                            \
        struct xseg_share_header changed = header_of(&share);       \
        changed.member = (value);                                   \
        expect_header_refused(allocator, &share, &changed, (word)); \
    } while (0)

static void bad_headers_are_refused(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *ptr = scene_alloc_in(allocator, pool, 50 * MIB, NULL), *block = NULL;
    struct xseg_share share = export_of(allocator, ptr), wrong = share;
    const struct xseg_statistics before = scene_stats(allocator);
    uint64_t sizes[3];
    _Alignas(uint64_t) char header[sizeof(struct xseg_share_header) + sizeof(sizes)];

    (void)state;
    REFUSED(magic[0], 'y', "xsegshr");
    REFUSED(version, 2, "version 2");
    REFUSED(kind, 9, "kind 9");
    REFUSED(page_count, 2, "2 pages");
    REFUSED(page_count, UINT64_MAX / 8, "pages");
    REFUSED(header_bytes, 3, "3 bytes");
    REFUSED(device[3], (uint8_t)(header_of(&share).device[3] + 1), "device 0 is");
    REFUSED(block_offset, 20 * MIB, "does not lie");
    REFUSED(block_bytes, 60 * MIB + 1, "does not lie");
    REFUSED(block_bytes, 0, "has 0 bytes");
    REFUSED(requested_bytes, 50 * MIB + 512, "requested");
    REFUSED(block_offset, 513, "aligned to 512");
    REFUSED(block_offset, 1, "aligned to 512");
    /* A header with one page too many. */
    struct xseg_share_header shorter = header_of(&share);
    shorter.block_bytes = shorter.requested_bytes = 40 * MIB;
    expect_header_refused(allocator, &share, &shorter, "does not lie on its 3 pages");
    wrong.header_bytes = sizeof(struct xseg_share_header) + 8;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, "120 of the");
    wrong.header_bytes = 7;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, "7 bytes");
    wrong.header = NULL;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, "header");
    /* Sizes of pages that no driver maps. */
    static const uint64_t bad[] = {0, 11 * MIB, UINT64_MAX, (uint64_t)1 << 48};
    for (unsigned i = 0; i < COUNT_OF(bad); i++) {
        memcpy(header, share.header, sizeof(header));
        memcpy(header + sizeof(header) - sizeof(uint64_t), &bad[i], sizeof(bad[i]));
        wrong = share;
        wrong.header = (const void *)header;
        scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, "bytes");
    }
    /* Sizes that the driver does not map, as the memory has less. */
    sizes[0] = sizes[1] = sizes[2] = 22 * MIB;
    memcpy(header + sizeof(struct xseg_share_header), sizes, sizeof(sizes));
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_DRIVER, "cuMemMap");
    assert_null(block);
    xseg_share_end(&share);
    const struct xseg_statistics after = scene_stats(allocator);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_int_equal(xseg_export_close(allocator, ptr), XSEG_OK);
    scene_free(allocator, ptr);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static void bad_descriptors_are_refused(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_allocator *allocator;
    struct xseg_share wrong, none = XSEG_SHARE_INIT;
    void *block = NULL;
    int fd[3], pipes[2];

    (void)state;
    settings.devices = 2;
    allocator = scene_open_on(&settings, NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *ptr = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, ptr);
    const unsigned files = scene_open_files();
    assert_int_equal(pipe(pipes), 0);
    memcpy(fd, share.fd, sizeof(fd));
    wrong = share;
    wrong.fd = fd;
    wrong.fd_count = 2;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT,
                       "pages: 3, and descriptors: 2");
    wrong.fd_count = 3;
    fd[2] = 987;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT,
                       "share->fd[2] is 987");
    fd[2] = pipes[0];
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_DRIVER,
                       "cuMemImportFromShareableHandle");
    wrong.fd = NULL;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT, "fd is NULL");
    wrong.struct_bytes = 4;
    scene_expect_error(xseg_import(allocator, 0, &wrong, &block), XSEG_ERR_ARGUMENT,
                       "struct_bytes is 4");
    scene_expect_error(xseg_import(allocator, 0, &none, &block), XSEG_ERR_ARGUMENT, "header");
    scene_expect_error(xseg_import(allocator, 0, NULL, &block), XSEG_ERR_ARGUMENT, "share");
    scene_expect_error(xseg_import(allocator, 0, &share, NULL), XSEG_ERR_ARGUMENT, "out");
    scene_expect_error(xseg_import(allocator, 2, &share, &block), XSEG_ERR_ARGUMENT, "device");
    /* Memory of another device. */
    scene_expect_error(xseg_import(allocator, 1, &share, &block), XSEG_ERR_ARGUMENT, "device 1 is");
    scene_expect_error(xseg_import_close(allocator, NULL), XSEG_ERR_ARGUMENT, "NULL");
    scene_expect_error(xseg_import_close(allocator, ptr), XSEG_ERR_NOT_LIVE, "imported");
    assert_null(block);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
    assert_int_equal(scene_open_files(), files);
    xseg_share_end(&share);
    xseg_share_end(&share);
    xseg_share_end(NULL);
    assert_int_equal(xseg_export_close(allocator, ptr), XSEG_OK);
    scene_free(allocator, ptr);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* The one who has the share may have no use for it. */
static void a_device_without_mappings_imports_nothing(void **state)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL), *again = NULL;
    struct xseg_share share = export_of(allocator, block);

    (void)state;
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    settings.without_vmm = true;
    allocator = scene_open_on(&settings, NULL);
    scene_expect_error(xseg_import(allocator, 0, &share, &again), XSEG_ERR_UNSUPPORTED,
                       "virtual memory");
    xseg_share_end(&share);
    scene_close(allocator);
}

/* The driver gives no more descriptors half-way: those that it gave are closed again. */
static void an_export_is_whole_or_nothing(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 200 * MIB, NULL);
    struct xseg_share share = XSEG_SHARE_INIT;
    const unsigned files = scene_open_files();

    (void)state;
    for (uint64_t n = 1; n <= 10; n++) {
        assert_int_equal(xseg_sim_fail("cuMemExportToShareableHandle", n, 304), XSEG_OK);
        scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_DRIVER,
                           "ulimit -n");
        assert_int_equal(scene_open_files(), files);
        assert_null(share.header);
        assert_int_equal(explained(allocator), 0);
    }
    scene_free(allocator, block);
    assert_int_equal(trim(allocator, pool).returned, 200 * MIB);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static void nothing_is_unmapped_in_a_capture(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator), *graph = scene_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 3 * MIB, NULL), *again = NULL;
    xseg_stream stream = scene_stream();

    (void)state;
    scene_capture_begin(graph, stream);
    struct xseg_share share = export_of(allocator, block);
    assert_int_equal(xseg_import(allocator, 0, &share, &again), XSEG_OK);
    xseg_share_end(&share);
    scene_expect_error(xseg_import_close(allocator, again), XSEG_ERR_BUSY, "capture");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_graph_destroy(scene_capture_end(graph, stream));
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_pool_release(graph), XSEG_OK);
    scene_stream_destroy(stream);
    scene_close(allocator);
}

/* After an error that does not pass, only the host side works; nothing is left behind of it. */
static void a_lost_device_lets_go(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 3 * MIB, NULL), *again = NULL, *more = NULL;
    struct xseg_share share = export_of(allocator, block), other = XSEG_SHARE_INIT;

    (void)state;
    assert_int_equal(xseg_import(allocator, 0, &share, &again), XSEG_OK);
    assert_int_equal(xseg_import(allocator, 0, &share, &more), XSEG_OK);
    assert_int_equal(xseg_sim_fail("cuMemExportToShareableHandle", 1, 700), XSEG_OK);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &other), XSEG_ERR_DEVICE_LOST,
                       "cuMemExport");
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &other), XSEG_ERR_DEVICE_LOST,
                       "lost");
    scene_expect_error(xseg_import(allocator, 0, &share, &again), XSEG_ERR_DEVICE_LOST, "lost");
    xseg_share_end(&share);
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    scene_free(allocator, block);
    /* An import and the export are open still. */
    assert_int_equal(xseg_close(allocator), XSEG_OK);
}

/* --- Over a socket. --- */

static void a_share_has_more_pages_than_a_message_takes(void **state)
{
    struct xseg_allocator *allocator = scene_open("page_mb:small");
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 600 * MIB, NULL), *again = NULL;
    struct xseg_share share = export_of(allocator, block), came = XSEG_SHARE_INIT;
    const unsigned files = scene_open_files();
    int sockets[2];

    (void)state;
    assert_int_equal(share.fd_count, 300);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_int_equal(xseg_share_send(sockets[0], &share), XSEG_OK);
    assert_int_equal(xseg_share_receive(sockets[1], &came), XSEG_OK);
    assert_int_equal(came.fd_count, 300);
    assert_int_equal(came.header_bytes, share.header_bytes);
    assert_memory_equal(came.header, share.header, share.header_bytes);
    for (size_t i = 0; i < came.fd_count; i++)
        assert_int_equal(fcntl(came.fd[i], F_GETFD), FD_CLOEXEC);
    xseg_share_end(&share);
    assert_int_equal(xseg_import(allocator, 0, &came, &again), XSEG_OK);
    xseg_share_end(&came);
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    assert_int_equal(scene_open_files(), files - 300 + 2);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    (void)close(sockets[0]);
    (void)close(sockets[1]);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

/* As much of a share as `bytes`, without descriptors, then the end. */
static void expect_broken(const struct xseg_share *share, size_t bytes, xseg_status status,
                          const char *word)
{
    struct xseg_share came = XSEG_SHARE_INIT;
    int sockets[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_int_equal(write(sockets[0], share->header, bytes), bytes);
    (void)close(sockets[0]);
    scene_expect_error(xseg_share_receive(sockets[1], &came), status, word);
    assert_null(came.header);
    (void)close(sockets[1]);
}

static void what_comes_is_checked(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block), came = XSEG_SHARE_INIT, wrong = share;
    const unsigned files = scene_open_files();
    struct rlimit limit, low;
    _Alignas(uint64_t) char noise[512];
    int sockets[2];

    (void)state;
    memset(noise, 'n', sizeof(noise));
    expect_broken(&share, 0, XSEG_ERR_FILE, "ended");
    expect_broken(&share, 20, XSEG_ERR_FILE, "ended");
    expect_broken(&share, sizeof(struct xseg_share_header) + 3, XSEG_ERR_FILE, "ended");
    expect_broken(&share, share.header_bytes, XSEG_ERR_FILE, "ended");
    wrong.header = (const void *)noise;
    wrong.header_bytes = sizeof(noise);
    expect_broken(&wrong, sizeof(noise), XSEG_ERR_ARGUMENT, "no header of a share");
    scene_expect_error(xseg_share_send(-1, &wrong), XSEG_ERR_ARGUMENT, "no header of a share");
    scene_expect_error(xseg_share_send(-1, &share), XSEG_ERR_FILE, "sent");
    scene_expect_error(xseg_share_send(-1, NULL), XSEG_ERR_ARGUMENT, "NULL");
    scene_expect_error(xseg_share_receive(-1, &came), XSEG_ERR_FILE, "received");
    scene_expect_error(xseg_share_receive(-1, NULL), XSEG_ERR_ARGUMENT, "NULL");
    wrong = share;
    wrong.fd_count = 1;
    scene_expect_error(xseg_share_send(-1, &wrong), XSEG_ERR_ARGUMENT, "descriptors: 1");

    /* A receiver that may have only one descriptor more. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_int_equal(xseg_share_send(sockets[0], &share), XSEG_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)sockets[1] + 2;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    scene_expect_error(xseg_share_receive(sockets[1], &came), XSEG_ERR_FILE, "ulimit -n");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    (void)close(sockets[0]);
    scene_expect_error(xseg_share_send(sockets[1], &share), XSEG_ERR_FILE, "sent");
    (void)close(sockets[1]);
    assert_int_equal(scene_open_files(), files);
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

/* The beginning of a header, and nothing more for as long as the receiver waits. */
static void expect_refused_at_once(const struct xseg_share_header *header, xseg_status status,
                                   const char *word)
{
    struct xseg_share came = XSEG_SHARE_INIT;
    int sockets[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_int_equal(write(sockets[0], header, sizeof(*header)), sizeof(*header));
    scene_expect_error(xseg_share_receive(sockets[1], &came), status, word);
    assert_null(came.header);
    (void)close(sockets[0]);
    (void)close(sockets[1]);
}

static struct xseg_share_header with_pages(const struct xseg_share *share, uint64_t pages)
{
    struct xseg_share_header header = header_of(share);

    header.page_count = pages;
    header.header_bytes = sizeof(header) + pages * sizeof(uint64_t);
    return header;
}

/* No room is made for pages that the block does not need, or whose descriptors cannot come. */
static void more_pages_than_a_block_needs_are_refused(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block);
    struct xseg_share_header header = with_pages(&share, 1 << 20);
    struct rlimit limit, low;

    (void)state;
    expect_refused_at_once(&header, XSEG_ERR_ARGUMENT, "does not lie on as many");
    header = with_pages(&share, 50 * MIB / 4096 + 3);
    expect_refused_at_once(&header, XSEG_ERR_ARGUMENT, "does not lie on as many");
    header = with_pages(&share, ((uint64_t)1 << 20) + 1);
    header.block_bytes = (uint64_t)1 << 47;
    expect_refused_at_once(&header, XSEG_ERR_ARGUMENT, "1048577 pages");
    header.block_bytes++;
    expect_refused_at_once(&header, XSEG_ERR_ARGUMENT, "pages");

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = 500;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    header = with_pages(&share, 501);
    expect_refused_at_once(&header, XSEG_ERR_FILE, "ulimit -n");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

/* On the simulator, too: memory that may be exported takes descriptors only while it is exported. */
static void exportable_memory_is_not_limited_by_descriptors(void **state)
{
    struct xseg_range_options options = XSEG_RANGE_OPTIONS_INIT;
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_allocator *allocator = open_on(false, 8 * GIB, NULL);
    const unsigned files = scene_open_files();
    struct xseg_range *range = NULL;
    struct rlimit limit, low;
    void *block;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = files + 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    options.pool = make_pool(allocator);
    assert_int_equal(xseg_range_reserve(allocator, 0, 2 * GIB, &options, &range), XSEG_OK);
    assert_int_equal(xseg_range_commit(range, 0, 2 * GIB, NULL), XSEG_OK);
    block = scene_alloc_in(allocator, options.pool, 4 * GIB, NULL);
    for (unsigned times = 0; times < 2; times++) {
        const unsigned before = scene_open_files();

        scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_DRIVER,
                           "ulimit -n");
        assert_int_equal(scene_open_files(), before);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    share = export_of(allocator, block);
    xseg_share_end(&share);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_range_decommit(range, 0, 2 * GIB, NULL), XSEG_OK);
    assert_int_equal(xseg_range_release(range), XSEG_OK);
    assert_int_equal(xseg_pool_release(options.pool), XSEG_OK);
    scene_close(allocator);
}

/* A peer that sends less than it said is not waited for without end; the socket says how long. */
static void a_silent_peer_is_given_up(void **state)
{
    const struct timeval soon = {0, 30000};
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block), came = XSEG_SHARE_INIT;
    const size_t parts[] = {0, 20, sizeof(struct xseg_share_header) + 3, share.header_bytes};
    int sockets[2];

    (void)state;
    for (unsigned i = 0; i < 2 * COUNT_OF(parts); i++) {
        const int flags = i % 2 == 0 ? 0 : SOCK_NONBLOCK;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | flags, 0, sockets), 0);
        assert_int_equal(setsockopt(sockets[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
        assert_int_equal(write(sockets[0], share.header, parts[i / 2]), parts[i / 2]);
        scene_expect_error(xseg_share_receive(sockets[1], &came), XSEG_ERR_FILE, "SO_RCVTIMEO");
        assert_null(came.header);
        assert_int_equal(came.struct_bytes, sizeof(came));
        (void)close(sockets[0]);
        (void)close(sockets[1]);
    }
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

/* A header by hand, and then a message with that many descriptors. */
static void send_by_hand(int socket, const struct xseg_share *share, const int *file, size_t count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control};

    assert_int_equal(write(socket, share->header, share->header_bytes), share->header_bytes);
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), file, count * sizeof(int));
    assert_int_equal(sendmsg(socket, &message, 0), 1);
}

static void as_many_descriptors_come_as_there_are_pages(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block), came = XSEG_SHARE_INIT;
    const int file[5] = {share.fd[0], share.fd[1], share.fd[2], share.fd[0], share.fd[0]};
    const unsigned files = scene_open_files();
    int sockets[2];

    (void)state;
    for (size_t count = 1; count <= 5; count++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
        send_by_hand(sockets[0], &share, file, count);
        if (count == 3)
            assert_int_equal(xseg_share_receive(sockets[1], &came), XSEG_OK);
        else
            scene_expect_error(xseg_share_receive(sockets[1], &came), XSEG_ERR_FILE,
                               "descriptors came where 3");
        assert_int_equal(came.fd_count, count == 3 ? 3 : 0);
        xseg_share_end(&came);
        (void)close(sockets[0]);
        (void)close(sockets[1]);
        assert_int_equal(scene_open_files(), files);
    }
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

/* A socket that does not block: both sides wait for each other. */
static void a_full_socket_is_waited_for(void **state)
{
    struct xseg_allocator *allocator = scene_open("page_mb:small");
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 800 * MIB, NULL);
    struct xseg_share share = export_of(allocator, block), came = XSEG_SHARE_INIT;
    int sockets[2], result = 0, room = 1;
    pid_t child;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    assert_int_equal(setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
    child = fork();
    if (child == 0)
        _exit(xseg_share_receive(sockets[1], &came) != XSEG_OK || came.fd_count != 400);
    assert_int_equal(xseg_share_send(sockets[0], &share), XSEG_OK);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    (void)close(sockets[0]);
    (void)close(sockets[1]);
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

static void a_forked_child_is_refused(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 3 * MIB, NULL), *again = NULL;
    struct xseg_share share = export_of(allocator, block), other = XSEG_SHARE_INIT;
    int result = 0;
    pid_t child;

    (void)state;
    child = fork();
    if (child == 0) {
        const xseg_status got[] = {
            xseg_export(allocator, block, XSEG_SHARE_FD, &other),
            xseg_export_close(allocator, block),
            xseg_import(allocator, 0, &share, &again),
            xseg_import_close(allocator, block),
        };

        for (unsigned i = 0; i < COUNT_OF(got); i++)
            if (got[i] != XSEG_ERR_FORKED)
                _exit(1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    xseg_share_end(&share);
    close_with(allocator, pool, block);
}

/* --- The key of the configuration. --- */

static void a_configuration_makes_memory_exportable(void **state)
{
    struct xseg_allocator *allocator = scene_open("exportable:True");
    struct xseg_pool_options own = XSEG_POOL_OPTIONS_INIT;
    struct xseg_pool *pool = NULL, *other = NULL, *later = NULL;
    struct xseg_share share = XSEG_SHARE_INIT;
    void *blocks[3];

    (void)state;
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
    blocks[0] = scene_alloc(allocator, 30 * MIB, NULL);
    blocks[1] = scene_alloc(allocator, 1000, NULL);
    blocks[2] = scene_alloc_in(allocator, pool, 3 * MIB, NULL);
    for (unsigned i = 0; i < COUNT_OF(blocks); i++) {
        hold(allocator, blocks[i]);
        assert_int_equal(xseg_export_close(allocator, blocks[i]), XSEG_OK);
    }
    /* Memory of a pool's own functions is as before. */
    own.memory.alloc = own_memory;
    own.memory.free = no_memory;
    assert_int_equal(xseg_pool_create(allocator, 0, &own, &other), XSEG_OK);
    /* Pools that are made from then on follow; what is there does not change. */
    assert_int_equal(xseg_configure(allocator, "exportable:False"), XSEG_OK);
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &later), XSEG_OK);
    void *block = scene_alloc_in(allocator, later, 3 * MIB, NULL);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_UNSUPPORTED,
                       "exportable:True");
    hold(allocator, blocks[0]);
    assert_int_equal(xseg_export_close(allocator, blocks[0]), XSEG_OK);
    for (unsigned i = 0; i < COUNT_OF(blocks); i++)
        scene_free(allocator, blocks[i]);
    scene_free(allocator, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_pool_release(other), XSEG_OK);
    assert_int_equal(xseg_pool_release(later), XSEG_OK);
    scene_close(allocator);
}

static void find_line(void *context, enum xseg_log_level level, const char *line)
{
    if (level == XSEG_LOG_WARNING && strstr(line, "exportable has no effect") != NULL)
        (void)snprintf(context, 512, "%s", line);
}

static void a_device_that_cannot_says_so_once(void **state)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_options options = XSEG_OPTIONS_INIT;
    struct xseg_allocator *allocator = NULL;
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_pool *pool = NULL;
    char line[512] = "";
    const struct xseg_sim_settings settings = machine(false, 1 * GIB);

    (void)state;
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    fault.call = "cuMemExportToShareableHandle";
    fault.every = 1;
    fault.error = 801; /* not supported */
    assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
    options.driver = scene_driver();
    options.log = find_line;
    options.log_context = line;
    assert_int_equal(xseg_open("exportable:True", &options, &allocator), XSEG_OK);
    void *block = scene_alloc(allocator, 30 * MIB, NULL);
    assert_non_null(strstr(line, "CUDA_ERROR_NOT_SUPPORTED"));
    line[0] = '\0';
    /* Pools are made, without it; who asks for it himself is refused. */
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_ERR_UNSUPPORTED,
                       "CUDA_ERROR_NOT_SUPPORTED");
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(try_pool(allocator, &pool), XSEG_ERR_UNSUPPORTED);
    assert_string_equal(line, "");
    assert_int_equal(xseg_sim_fault_struck(0), 1);
    scene_free(allocator, block);
    scene_close(allocator);
    assert_int_equal(xseg_sim_fault_set(0, NULL), XSEG_OK);
}

/* A trial that fails for another reason fails the call that opens the device; the next one tries again. */
static void a_trial_that_fails_is_made_again(void **state)
{
    struct xseg_allocator *allocator = scene_open("exportable:True");
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    void *block = NULL;

    (void)state;
    fault.call = "cuMemExportToShareableHandle";
    fault.error = 999;
    assert_int_equal(xseg_sim_fault_set(0, &fault), XSEG_OK);
    scene_expect_error(xseg_alloc(allocator, 0, 30 * MIB, NULL, &block), XSEG_ERR_DRIVER,
                       "cuMemExportToShareableHandle");
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    block = scene_alloc(allocator, 30 * MIB, NULL);
    hold(allocator, block);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    scene_close(allocator);
}

/* --- Fabric handles. --- */

static struct xseg_allocator *open_with_fabric(void)
{
    struct xseg_sim_settings settings = machine(true, 1 * GIB);

    settings.fabric = true;
    return scene_open_with_clock(&settings, NULL);
}

static void a_header_is_all_of_a_fabric_share(void **state)
{
    struct xseg_allocator *allocator = open_with_fabric();
    struct xseg_pool *pool = make_pool(allocator);
    unsigned char *block = scene_alloc_in(allocator, pool, 50 * MIB, NULL);
    struct xseg_share share = XSEG_SHARE_INIT, copy = XSEG_SHARE_INIT, came = XSEG_SHARE_INIT;
    void *seen = NULL, *again = NULL;
    int sockets[2];

    (void)state;
    const unsigned files = scene_open_files();
    assert_int_equal(xseg_export(allocator, block, XSEG_SHARE_FABRIC, &share), XSEG_OK);
    assert_int_equal(scene_open_files(), files);
    assert_int_equal(share.fd_count, 0);
    assert_null(share.fd);
    assert_int_equal(share.header->kind, XSEG_SHARE_FABRIC);
    assert_int_equal(share.header->page_count, 3);
    assert_int_equal(share.header_bytes,
                     sizeof(*share.header) + (8 + XSEG_SHARE_FABRIC_BYTES) * 3u);
    assert_int_equal(share.header->header_bytes, share.header_bytes);
    /* By any way: as bytes, or over a socket. */
    char *bytes = malloc(share.header_bytes);
    assert_non_null(bytes);
    memcpy(bytes, share.header, share.header_bytes);
    copy.header = (const struct xseg_share_header *)(const void *)bytes;
    copy.header_bytes = share.header_bytes;
    assert_int_equal(xseg_import(allocator, 0, &copy, &seen), XSEG_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    assert_int_equal(xseg_share_send(sockets[0], &share), XSEG_OK);
    assert_int_equal(xseg_share_receive(sockets[1], &came), XSEG_OK);
    assert_int_equal(came.fd_count, 0);
    assert_memory_equal(came.header, share.header, share.header_bytes);
    assert_int_equal(xseg_import(allocator, 0, &came, &again), XSEG_OK);
    fill(seen, 50 * MIB, 9);
    assert_true(holds(block, 50 * MIB, 9) && holds(again, 50 * MIB, 9));
    /* Pages of both kinds of handle. */
    hold(allocator, block);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    assert_int_equal(xseg_import_close(allocator, again), XSEG_OK);
    /* What contradicts itself, and a handle that names nothing. */
    int one = sockets[0];
    copy.fd = &one;
    copy.fd_count = 1;
    scene_expect_error(xseg_import(allocator, 0, &copy, &seen), XSEG_ERR_ARGUMENT, "to have none");
    copy.fd_count = 0;
    bytes[sizeof(*share.header) + 8 * 3] ^= 1;
    assert_int_equal(xseg_import(allocator, 0, &copy, &seen), XSEG_ERR_DRIVER);
    copy.header_bytes--;
    scene_expect_error(xseg_import(allocator, 0, &copy, &seen), XSEG_ERR_ARGUMENT, "bytes");
    free(bytes);
    (void)close(sockets[0]);
    (void)close(sockets[1]);
    /* A fabric handle holds no memory. */
    xseg_share_end(&came);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(trim(allocator, pool).returned, 60 * MIB);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(xseg_import(allocator, 0, &share, &seen), XSEG_ERR_DRIVER);
    xseg_share_end(&share);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    scene_close(allocator);
}

static void without_fabric_there_is_a_sentence(void **state)
{
    struct xseg_allocator *allocator = scene_open(NULL);
    struct xseg_pool *pool = make_pool(allocator);
    void *block = scene_alloc_in(allocator, pool, 3 * MIB, NULL);
    struct xseg_share share = XSEG_SHARE_INIT;

    (void)state;
    scene_expect_error(xseg_export(allocator, block, XSEG_SHARE_FABRIC, &share),
                       XSEG_ERR_UNSUPPORTED, "CUDA_ERROR_NOT_SUPPORTED");
    scene_expect_error(xseg_export(allocator, block, (enum xseg_share_kind)3, &share),
                       XSEG_ERR_ARGUMENT, "3 is no value");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
    hold(allocator, block);
    close_with(allocator, pool, block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_process_writes_the_other_reads),
        cmocka_unit_test(importers_outlive_the_exporter),
        cmocka_unit_test(a_process_that_dies_lets_go),
        cmocka_unit_test(the_same_process_can_import),
        cmocka_unit_test(exports_and_imports_cost_what_is_said),
        cmocka_unit_test(a_segment_is_known_by_its_number),
        cmocka_unit_test(a_pool_is_not_paused_while_it_is_exported),
        cmocka_unit_test(a_trim_leaves_exported_pages),
        cmocka_unit_test(decay_leaves_exported_pages),
        cmocka_unit_test(a_shortage_leaves_exported_pages),
        cmocka_unit_test(pages_are_stolen_from_their_own_kind),
        cmocka_unit_test(what_was_shown_goes_to_no_other_pool),
        cmocka_unit_test(statistics_are_those_of_any_pool),
        cmocka_unit_test(a_driver_without_such_memory_is_asked_once),
        cmocka_unit_test(a_trial_that_fails_says_nothing),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(only_live_exportable_blocks_are_exported),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(bad_descriptors_are_refused),
        cmocka_unit_test(a_device_without_mappings_imports_nothing),
        cmocka_unit_test(an_export_is_whole_or_nothing),
        cmocka_unit_test(nothing_is_unmapped_in_a_capture),
        cmocka_unit_test(a_lost_device_lets_go),
        cmocka_unit_test(a_share_has_more_pages_than_a_message_takes),
        cmocka_unit_test(what_comes_is_checked),
        cmocka_unit_test(more_pages_than_a_block_needs_are_refused),
        cmocka_unit_test(exportable_memory_is_not_limited_by_descriptors),
        cmocka_unit_test(a_silent_peer_is_given_up),
        cmocka_unit_test(as_many_descriptors_come_as_there_are_pages),
        cmocka_unit_test(a_full_socket_is_waited_for),
        cmocka_unit_test(a_forked_child_is_refused),
        cmocka_unit_test(a_configuration_makes_memory_exportable),
        cmocka_unit_test(a_device_that_cannot_says_so_once),
        cmocka_unit_test(a_trial_that_fails_is_made_again),
        cmocka_unit_test(a_header_is_all_of_a_fabric_share),
        cmocka_unit_test(without_fabric_there_is_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
