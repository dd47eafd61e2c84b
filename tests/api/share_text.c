/* SPDX-License-Identifier: MIT */
/*
 * Memory that is shared by a text: between two processes on one simulated device, where the system lets descriptors be
 * taken out of a process, and where it does not; texts of exporters that are gone; and texts that are none.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/emulated.h"
#include "tests/support/process.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define STRIDE (64 * KIB)

static struct xseg_sim_settings machine(void)
{
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;

    settings.memory_bytes = 1 * GIB;
    settings.real_bytes = true;
    return settings;
}

static struct xseg_allocator *open_exporter(const char *config)
{
    const struct xseg_sim_settings settings = machine();

    return scene_open_with_clock(&settings, config);
}

static void fill(void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += STRIDE)
        ((volatile unsigned char *)ptr)[at] = value;
}

static bool holds(const void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += STRIDE)
        if (((const volatile unsigned char *)ptr)[at] != value)
            return false;
    return true;
}

static void write_text(struct xseg_allocator *allocator, void *ptr,
                       char text[XSEG_SHARE_TEXT_BYTES])
{
    size_t needed = 0;

    assert_int_equal(xseg_export_text(allocator, ptr, text, XSEG_SHARE_TEXT_BYTES, &needed),
                     XSEG_OK);
    assert_int_equal(needed, strlen(text) + 1);
    for (size_t i = 0; i + 1 < needed; i++)
        assert_true(text[i] > ' ' && text[i] < 127);
}

/* How many threads this process has. */
static unsigned threads(void)
{
    char line[256];
    unsigned count = 0;
    FILE *file = fopen("/proc/self/status", "re");

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "Threads: %u", &count) == 1)
            break;
    (void)fclose(file);
    return count;
}

/* --- Another process, which does what it is told: an order and a text; it answers y or n. --- */

struct order {
    char what;
    unsigned char value;
    char text[XSEG_SHARE_TEXT_BYTES];
};

/* From here on the process gets an error from a system call. */
static bool refuse_call(unsigned number, unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {COUNT_OF(code), code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

static bool refuse_getfd(void)
{
    const int own = (int)syscall(SYS_pidfd_open, getpid(), 0);

    return refuse_call(SYS_pidfd_getfd, EPERM) && syscall(SYS_pidfd_getfd, own, 0, 0) < 0 &&
           errno == EPERM;
}

static bool refuse_open(void)
{
    return refuse_call(SYS_pidfd_open, ENOSYS) && syscall(SYS_pidfd_open, getpid(), 0) < 0 &&
           errno == ENOSYS;
}

static bool import_fails(struct xseg_allocator *allocator, const char *text, xseg_status status,
                         const char *word)
{
    char said[1024] = "";
    void *block = NULL;
    const unsigned files = scene_open_files();
    const xseg_status got = xseg_import_text(allocator, 0, text, &block);

    (void)xseg_error_text(said, sizeof(said));
    /* Fewer is no fault: the exporter's thread may close the connection of an import before. */
    if (got == status && strstr(said, word) != NULL && block == NULL && scene_open_files() <= files)
        return true;
    print_message("# status %d, %s\n", (int)got, said);
    return false;
}

static bool obey_order(struct xseg_allocator *allocator, const struct order *order,
                       unsigned char **block)
{
    struct xseg_statistics stats = XSEG_STATISTICS_INIT;
    struct xseg_where where = XSEG_WHERE_ANY;
    void *imported = NULL;

    where.device = 0;
    switch (order->what) {
    case 'i':
        if (xseg_import_text(allocator, 0, order->text, &imported) != XSEG_OK)
            return false;
        *block = imported;
        return xseg_stats(allocator, &where, &stats) == XSEG_OK && stats.imported_bytes != 0;
    case 'g':
        return import_fails(allocator, order->text, XSEG_ERR_FILE, "cannot be reached");
    case 'r':
        return holds(*block, 50 * MIB, order->value);
    case 'w':
        fill(*block, 50 * MIB, order->value);
        return true;
    case 'c':
        return xseg_import_close(allocator, *block) == XSEG_OK;
    case 'f':
        return refuse_getfd();
    case 'o':
        return refuse_open();
    case 'u':
        return setuid(65534) == 0;
    default:
        return xseg_close(allocator) == XSEG_OK && xseg_sim_leaks(NULL, 0) == 0;
    }
}

static void obey(int socket, const struct xseg_sim_settings *settings)
{
    struct xseg_allocator *allocator = NULL;
    unsigned char *block = NULL;
    struct order order;

    if (xseg_sim_reset(settings) != XSEG_OK || scene_try_open(NULL, &allocator) != XSEG_OK)
        _exit(1);
    while (read(socket, &order, sizeof(order)) == (ssize_t)sizeof(order)) {
        const bool is_fine = obey_order(allocator, &order, &block);

        if (write(socket, is_fine ? "y" : "n", 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static bool tell(const struct process *process, char what, unsigned char value, const char *text)
{
    struct order order = {what, value, ""};

    (void)snprintf(order.text, sizeof(order.text), "%s", text);
    assert_int_equal(write(process->socket, &order, sizeof(order)), sizeof(order));
    return process_answer(process);
}

/* NULL where processes cannot share a machine. */
static struct xseg_allocator *start_process(struct process *process)
{
    const struct xseg_sim_settings settings = machine();
    struct xseg_allocator *own = NULL;

    if (!process_start(process, &settings, obey))
        return NULL;
    assert_int_equal(scene_try_open("exportable:True", &own), XSEG_OK);
    return own;
}

static void end_process(const struct process *process, struct xseg_allocator *own)
{
    struct xseg_sim_settings alone = machine();

    alone.real_bytes = false;
    assert_true(tell(process, 'e', 0, ""));
    process_end(process, own, &alone);
}

/* Import what is exported, write on both sides, and end it. */
static void share_with(const struct process *process, struct xseg_allocator *own)
{
    char text[XSEG_SHARE_TEXT_BYTES];
    unsigned char *block = scene_alloc(own, 50 * MIB, NULL);

    fill(block, 50 * MIB, 11);
    write_text(own, block, text);
    assert_true(tell(process, 'i', 0, text));
    assert_true(tell(process, 'r', 11, ""));
    assert_true(tell(process, 'w', 12, ""));
    assert_true(holds(block, 50 * MIB, 12));
    assert_true(tell(process, 'c', 0, ""));
    /* It may be imported again until it is closed. */
    assert_true(tell(process, 'i', 0, text));
    assert_true(tell(process, 'c', 0, ""));
    assert_int_equal(xseg_export_close(own, block), XSEG_OK);
    assert_true(tell(process, 'g', 0, text));
    scene_free(own, block);
}

static void a_text_is_all_that_is_needed(void **state)
{
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    (void)state;
    if (own == NULL)
        return;
    share_with(&process, own);
    end_process(&process, own);
}

/* `refusal`: an order of the importer's, after which the system refuses it a way into the exporter. */
static void share_by_socket(char refusal)
{
    struct process process = {0};
    struct xseg_allocator *own = start_process(&process);

    if (own == NULL)
        return;
    if (tell(&process, refusal, 0, ""))
        share_with(&process, own);
    else
        print_message("# this system has no seccomp filters: nothing was tried\n");
    end_process(&process, own);
}

static void the_socket_serves_where_descriptors_cannot_be_taken(void **state)
{
    (void)state;
    share_by_socket('f');
    share_by_socket('o');
}

static void another_user_gets_nothing(void **state)
{
    struct process process = {0};
    char text[XSEG_SHARE_TEXT_BYTES];

    (void)state;
    if (geteuid() != 0) {
        print_message("# only root can be another user: nothing was tried\n");
        return;
    }
    struct xseg_allocator *own = start_process(&process);
    if (own == NULL)
        return;
    void *block = scene_alloc(own, 50 * MIB, NULL);
    write_text(own, block, text);
    assert_true(tell(&process, 'i', 0, text) && tell(&process, 'c', 0, ""));
    assert_true(tell(&process, 'u', 0, ""));
    assert_true(tell(&process, 'g', 0, text));
    assert_int_equal(xseg_export_close(own, block), XSEG_OK);
    scene_free(own, block);
    end_process(&process, own);
}

/* An exporter that is killed with its export open. */
static void a_dead_exporter_is_a_sentence(void **state)
{
    char text[XSEG_SHARE_TEXT_BYTES] = "";
    int ends[2];

    (void)state;
    if (is_emulated_and_said("processes show no time of their start"))
        return;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct xseg_allocator *own = open_exporter("exportable:True");

        write_text(own, scene_alloc(own, 3 * MIB, NULL), text);
        _exit(write(ends[1], text, sizeof(text)) == (ssize_t)sizeof(text) ? 0 : 1);
    }
    assert_int_equal(read(ends[0], text, sizeof(text)), sizeof(text));
    assert_int_equal(waitpid(child, NULL, 0), child);
    struct xseg_allocator *allocator = open_exporter(NULL);
    scene_free(allocator, scene_alloc(allocator, 1000, NULL)); /* the machine opens its files */
    assert_true(import_fails(allocator, text, XSEG_ERR_FILE, "cannot be reached"));
    /* Another process has the number by now: this one. */
    char *end = NULL;
    char other[2 * XSEG_SHARE_TEXT_BYTES];
    (void)strtol(text + strlen("xseg1:"), &end, 10);
    (void)snprintf(other, sizeof(other), "xseg1:%d%s", (int)getpid(), end);
    other[XSEG_SHARE_TEXT_BYTES - 1] = '\0';
    assert_true(import_fails(allocator, other, XSEG_ERR_FILE, "is not the one that exported"));
    scene_close(allocator);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* --- One process on both sides. --- */

static void the_same_process_can_import(void **state)
{
    const unsigned before = threads(), files = scene_open_files();
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES], again[XSEG_SHARE_TEXT_BYTES], third[XSEG_SHARE_TEXT_BYTES];
    unsigned char *block = scene_alloc(allocator, 50 * MIB, NULL);
    void *seen = NULL;
    size_t needed = 0;

    (void)state;
    /* To ask for the size exports nothing, and starts nothing. */
    assert_int_equal(xseg_export_text(allocator, block, NULL, 0, &needed), XSEG_OK);
    assert_int_equal(needed, XSEG_SHARE_TEXT_BYTES);
    needed = 0;
    scene_expect_error(xseg_export_text(allocator, block, text, 20, &needed), XSEG_ERR_ARGUMENT,
                       "room for 20");
    assert_int_equal(needed, XSEG_SHARE_TEXT_BYTES);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
    assert_int_equal(threads(), before);
    /* One thread serves all; the same block has the same text, and takes descriptors once. */
    write_text(allocator, block, text);
    assert_int_equal(threads(), before + 1);
    const unsigned open = scene_open_files();
    write_text(allocator, block, again);
    assert_string_equal(text, again);
    assert_int_equal(scene_open_files(), open);
    assert_int_equal(threads(), before + 1);
    assert_int_equal(xseg_import_text(allocator, 0, text, &seen), XSEG_OK);
    fill(seen, 50 * MIB, 5);
    assert_true(holds(block, 50 * MIB, 5));
    /* The export is counted. */
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    assert_int_equal(xseg_import_text(allocator, 0, text, &seen), XSEG_OK);
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    assert_int_equal(scene_open_files(), open);
    scene_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "live block");
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_true(import_fails(allocator, text, XSEG_ERR_FILE, "cannot be"));
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
    /* A later export of the block is another one. */
    write_text(allocator, block, third);
    assert_string_not_equal(text, third);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    scene_close(allocator);
    assert_int_equal(threads(), before);
    /* The machine's own files, which it keeps. */
    assert_true(scene_open_files() <= files + 1);
}

/* Another block at the same address, while the first one's export is open still. */
/* The successor takes fewer pages, or as many. */
static void follow_a_block(size_t bytes, uint64_t imported)
{
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES], other[XSEG_SHARE_TEXT_BYTES];
    unsigned char *block = scene_alloc(allocator, 40 * MIB, NULL);
    void *seen = NULL;

    write_text(allocator, block, text);
    scene_free(allocator, block);
    assert_ptr_equal(scene_alloc(allocator, bytes, NULL), block);
    write_text(allocator, block, other);
    assert_string_not_equal(text, other);
    assert_int_equal(xseg_import_text(allocator, 0, other, &seen), XSEG_OK);
    assert_int_equal(scene_stats(allocator).imported_bytes, imported);
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    /* The older export ends first. */
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    assert_true(import_fails(allocator, text, XSEG_ERR_FILE, "cannot be"));
    assert_int_equal(xseg_import_text(allocator, 0, other, &seen), XSEG_OK);
    assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    scene_close(allocator);
}

static void a_block_is_not_taken_for_its_successor(void **state)
{
    (void)state;
    follow_a_block(15 * MIB, 20 * MIB);
    follow_a_block(39 * MIB, 40 * MIB);
}

/* A plain export and a text of one block: to close the one leaves the other, whichever was first. */
static void a_plain_export_ends_apart(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct xseg_allocator *allocator = open_exporter("exportable:True");
        unsigned char *block = scene_alloc(allocator, 40 * MIB, NULL);
        char text[XSEG_SHARE_TEXT_BYTES];
        struct xseg_share share = XSEG_SHARE_INIT;
        void *seen = NULL;

        if (i % 2 == 0)
            write_text(allocator, block, text);
        assert_int_equal(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_OK);
        xseg_share_end(&share);
        if (i % 2 == 1)
            write_text(allocator, block, text);
        if (i >= 2)
            write_text(allocator, block, text); /* once more, which is the same text */
        for (unsigned exports = i < 2 ? 1 : 2; exports != 0; exports--) {
            assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
            assert_int_equal(xseg_import_text(allocator, 0, text, &seen), XSEG_OK);
            assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
        }
        assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
        assert_true(import_fails(allocator, text, XSEG_ERR_FILE, "cannot be"));
        assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
        scene_free(allocator, block);
        scene_close(allocator);
    }
}

struct exporting {
    struct xseg_allocator *allocator;
    void *block;
    pthread_t thread;
    bool is_fine;
};

/* As long as this thread's text is open, it is good, whatever the others close. */
static void *export_and_close(void *self)
{
    struct exporting *own = self;
    struct xseg_share share = XSEG_SHARE_INIT;
    char text[XSEG_SHARE_TEXT_BYTES];
    void *seen = NULL;

    own->is_fine = true;
    for (unsigned i = 0; i < 50 && own->is_fine; i++) {
        own->is_fine =
            xseg_export(own->allocator, own->block, XSEG_SHARE_FD, &share) == XSEG_OK &&
            xseg_export_text(own->allocator, own->block, text, sizeof(text), NULL) == XSEG_OK;
        xseg_share_end(&share);
        own->is_fine = own->is_fine &&
                       xseg_import_text(own->allocator, 0, text, &seen) == XSEG_OK &&
                       xseg_import_close(own->allocator, seen) == XSEG_OK &&
                       xseg_export_close(own->allocator, own->block) == XSEG_OK &&
                       xseg_export_close(own->allocator, own->block) == XSEG_OK;
    }
    return NULL;
}

static void threads_export_one_block_at_once(void **state)
{
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    struct exporting threads[3];
    void *block = scene_alloc(allocator, 3 * MIB, NULL);

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(threads); i++) {
        threads[i] = (struct exporting){.allocator = allocator, .block = block};
        assert_int_equal(pthread_create(&threads[i].thread, NULL, export_and_close, &threads[i]),
                         0);
    }
    for (unsigned i = 0; i < COUNT_OF(threads); i++) {
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
        assert_true(threads[i].is_fine);
    }
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
    scene_free(allocator, block);
    scene_close(allocator);
}

/* From here on the process may open one descriptor more. */
static struct rlimit allow_one_file(void)
{
    const int lowest = dup(STDOUT_FILENO);
    struct rlimit limit, before;

    assert_true(lowest >= 0 && close(lowest) == 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)lowest + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

/* A text that fails takes its own export back, and not an older one at the same address, which holds more pages. */
static void a_failed_text_takes_its_own_back(void **state)
{
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    unsigned char *block = scene_alloc(allocator, 40 * MIB, NULL);
    struct xseg_share share = XSEG_SHARE_INIT;
    char text[XSEG_SHARE_TEXT_BYTES];

    (void)state;
    assert_int_equal(xseg_export(allocator, block, XSEG_SHARE_FD, &share), XSEG_OK);
    xseg_share_end(&share);
    scene_free(allocator, block);
    assert_ptr_equal(scene_alloc(allocator, 15 * MIB, NULL), block);
    const struct rlimit before = allow_one_file(); /* for the page, and none for a socket */
    const xseg_status status = xseg_export_text(allocator, block, text, sizeof(text), NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    scene_expect_error(status, XSEG_ERR_FILE, "gives no socket");
    scene_free(allocator, block);
    scene_empty_cache(allocator);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_empty_cache(allocator);
    assert_int_equal(scene_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_LIVE);
    scene_close(allocator);
}

/* --- Bad texts. --- */

static void what_is_no_text_is_refused(void **state)
{
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"", "does not begin"},
        {"xseg", "does not begin"},
        {"xseg2:1:1:1:0:0", "does not begin"},
        {"xseg1:", "number of a process at its character 7"},
        {"xseg1::1:1:0123456789abcdef:0123456789abcdef0123456789abcdef", "number of a process"},
        {"xseg1:0:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef", "number of a process"},
        {"xseg1:-1:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef", "number of a process"},
        {"xseg1: 1:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef", "number of a process"},
        {"xseg1:2147483648:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef",
         "number of a process"},
        {"xseg1:1:x:1:0123456789abcdef:0123456789abcdef0123456789abcdef", "start of the process"},
        {"xseg1:1:18446744073709551616:1:0123456789abcdef:0123456789abcdef0123456789abcdef",
         "start of the process"},
        {"xseg1:1:1:-1:0123456789abcdef:0123456789abcdef0123456789abcdef", "descriptor"},
        {"xseg1:1:1:99999999999:0123456789abcdef:0123456789abcdef0123456789abcdef", "descriptor"},
        {"xseg1:1:1:1:0123456789abcde:0123456789abcdef0123456789abcdef", "number of the socket"},
        {"xseg1:1:1:1:0123456789ABCDEF:0123456789abcdef0123456789abcdef", "number of the socket"},
        {"xseg1:1:1:1:0123456789abcdef0:0123456789abcdef0123456789abcdef", "number of the socket"},
        {"xseg1:1:1:1:0123456789abcdef:0123456789abcdef0123456789abcde", "token"},
        {"xseg1:1:1:1:0123456789abcdef:0123456789abcdefx123456789abcdef", "token"},
        {"xseg1:1:1:1:0123456789abcdef:", "token"},
        {"xseg1:1:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef0", "end"},
        {"xseg1:1:1:1:0123456789abcdef:0123456789abcdef0123456789abcdef\n", "end"},
    };
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES], bad[XSEG_SHARE_TEXT_BYTES];
    unsigned char *block = scene_alloc(allocator, 3 * MIB, NULL);
    void *seen = NULL;

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(rows); i++)
        if (!import_fails(allocator, rows[i].text, XSEG_ERR_ARGUMENT, rows[i].word))
            fail_msg("%s", rows[i].text);
    scene_expect_error(xseg_import_text(allocator, 0, NULL, &seen), XSEG_ERR_ARGUMENT, "text");
    scene_expect_error(xseg_import_text(allocator, 0, "", NULL), XSEG_ERR_ARGUMENT, "out");
    scene_expect_error(xseg_import_text(allocator, 1, "", &seen), XSEG_ERR_ARGUMENT, "device 1");
    scene_expect_error(xseg_export_text(allocator, NULL, text, sizeof(text), NULL),
                       XSEG_ERR_ARGUMENT, "ptr is NULL");
    scene_expect_error(xseg_export_text(allocator, block, NULL, 128, NULL), XSEG_ERR_ARGUMENT,
                       "text is NULL");
    scene_expect_error(xseg_export_text(allocator, block + 512, text, sizeof(text), NULL),
                       XSEG_ERR_NOT_LIVE, "no live block");
    /* One that is real, cut short, and with each of its characters changed. */
    write_text(allocator, block, text);
    for (size_t length = 0; length < strlen(text); length++) {
        (void)snprintf(bad, sizeof(bad), "%.*s", (int)length, text);
        assert_true(import_fails(allocator, bad, XSEG_ERR_ARGUMENT, ""));
        for (unsigned way = 0; way < 3; way++) {
            (void)snprintf(bad, sizeof(bad), "%s", text);
            bad[length] = way == 0 ? 'g' : way == 1 ? ':' : bad[length] == '7' ? '8' : '7';
            if (bad[length] == text[length])
                continue;
            assert_true(xseg_import_text(allocator, 0, bad, &seen) != XSEG_OK || way == 2);
            if (seen == NULL)
                continue;
            /* The socket has the block where the way into the process leads nowhere, and the other way round. */
            assert_true(length < strlen(text) - 32);
            assert_int_equal(xseg_import_close(allocator, seen), XSEG_OK);
            seen = NULL;
        }
    }
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    scene_close(allocator);
}

/* --- The socket, asked by strangers. --- */

static int connect_by(const char *text)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned long long start;
    int process = 0, file = 0;
    char number[17] = "";

    assert_int_equal(sscanf(text, "xseg1:%d:%llu:%d:%16[0-9a-f]:", &process, &start, &file, number),
                     4);
    const int length =
        snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "xseg-%d-%s", process, number);
    const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        connect(client, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
        0);
    return client;
}

/* What is not asked right gets no answer, and the thread serves those who come after. */
static void strangers_get_no_answer(void **state)
{
    static const char wrong[][24] = {"xsegask", "garbage", ""};
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES], byte;
    void *block = scene_alloc(allocator, 3 * MIB, NULL);

    (void)state;
    write_text(allocator, block, text);
    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        const int client = connect_by(text);

        assert_int_equal(send(client, wrong[i], sizeof(wrong[i]), MSG_NOSIGNAL), sizeof(wrong[i]));
        assert_int_equal(recv(client, &byte, 1, 0), 0);
        (void)close(client);
    }
    /* Those who say nothing are waited for two seconds; one of them is there as the allocator closes. */
    const int silent = connect_by(text), late = connect_by(text);
    assert_int_equal(recv(silent, &byte, 1, 0), 0);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    struct timespec before = {0}, after = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &before);
    scene_close(allocator);
    (void)clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(after.tv_sec - before.tv_sec <= 30);
    (void)close(silent);
    (void)close(late);
}

static ssize_t recv_soon(int socket, char *byte)
{
    const struct timeval patience = {.tv_sec = 20};

    assert_int_equal(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    return recv(socket, byte, 1, 0);
}

/* A forked child has the exporter's descriptors.  It answers nobody at the socket: who asks after the close is refused at
 * once, and does not wait for the child. */
static void a_child_does_not_keep_the_socket(void **state)
{
    struct xseg_allocator *allocator = open_exporter("exportable:True"), *other = NULL;
    char text[XSEG_SHARE_TEXT_BYTES], byte;
    void *block = scene_alloc(allocator, 3 * MIB, NULL);

    (void)state;
    write_text(allocator, block, text);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            (void)pause();
    /* The second of them is not accepted by the time of the close. */
    const int silent = connect_by(text), late = connect_by(text);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    assert_int_equal(recv_soon(silent, &byte), 0);
    assert_int_equal(recv_soon(late, &byte), 0);
    assert_int_equal(scene_try_open(NULL, &other), XSEG_OK);
    assert_true(
        import_fails(other, text, XSEG_ERR_FILE, "socket cannot be reached: Connection refused"));
    (void)close(silent);
    (void)close(late);
    /* Its descriptor of the page keeps that, until it ends. */
    assert_int_equal(xseg_sim_used(0), 20 * MIB);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(xseg_sim_used(0), 0);
    scene_close(other);
}

static void refuse_in_a_child(const void *argument)
{
    struct xseg_allocator *allocator = *(struct xseg_allocator *const *)argument;
    char text[XSEG_SHARE_TEXT_BYTES];
    void *out = NULL;

    _exit(xseg_export_text(allocator, text, text, sizeof(text), NULL) == XSEG_ERR_FORKED &&
                  xseg_import_text(allocator, 0, "xseg1:", &out) == XSEG_ERR_FORKED
              ? 0
              : 1);
}

static void a_child_refuses(void **state)
{
    struct xseg_allocator *allocator = open_exporter("exportable:True");
    char text[XSEG_SHARE_TEXT_BYTES];
    void *block = scene_alloc(allocator, 3 * MIB, NULL);

    (void)state;
    write_text(allocator, block, text);
    assert_int_equal(child_run(refuse_in_a_child, &allocator, text, sizeof(text)), 0);
    assert_int_equal(xseg_export_close(allocator, block), XSEG_OK);
    scene_free(allocator, block);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_all_that_is_needed),
        cmocka_unit_test(the_socket_serves_where_descriptors_cannot_be_taken),
        cmocka_unit_test(another_user_gets_nothing),
        cmocka_unit_test(a_dead_exporter_is_a_sentence),
        cmocka_unit_test(the_same_process_can_import),
        cmocka_unit_test(a_plain_export_ends_apart),
        cmocka_unit_test(threads_export_one_block_at_once),
        cmocka_unit_test(a_failed_text_takes_its_own_back),
        cmocka_unit_test(a_block_is_not_taken_for_its_successor),
        cmocka_unit_test(what_is_no_text_is_refused),
        cmocka_unit_test(strangers_get_no_answer),
        cmocka_unit_test(a_child_does_not_keep_the_socket),
        cmocka_unit_test(a_child_refuses),
    };

    return cmocka_run_group_tests_name("share_text", tests, NULL, NULL);
}
