/* SPDX-License-Identifier: MIT */
/* Export tokens: two processes that exchange only the token, invalid tokens, exited exporters, and invalid clients. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "tests/support/exported_blocks.h"
#include "tests/support/process.h"

#define BLOCK   (50 * MIB)
#define NEW_NET 0x40000000 /* CLONE_NEWNET */

/* Offsets in a token. */
enum { VERSION_AT = 4, EXPORTER_AT = 8, SIZE_AT = 40, KIND_AT = 60 };

static struct xseg_sim_settings sim_settings(void)
{
    return (struct xseg_sim_settings){sizeof(struct xseg_sim_settings), .memory_bytes = 1 * GIB,
                                      .real_bytes = true};
}

/* The allocator of a test, or of the other process. */
static struct xseg_allocator *allocator;

static void open_with(const char *config)
{
    const struct xseg_sim_settings settings = sim_settings();

    allocator = env_open_with_clock(&settings, config);
}

static int open_exporter(void **state)
{
    (void)state;
    open_with("exportable:True");
    return 0;
}

static int close_exporter(void **state)
{
    (void)state;
    env_close(allocator);
    return 0;
}

static struct xseg_export_token export_block(void *ptr, uint64_t *offset)
{
    struct xseg_export_token token;

    assert_ok(xseg_export(allocator, ptr, &token, offset));
    return token;
}

static bool is_equal(struct xseg_export_token a, struct xseg_export_token b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

/* Expect that an import succeeds, and close it. */
static void expect_valid(const struct xseg_export_token *token)
{
    void *base = NULL;

    assert_ok(xseg_import(allocator, 0, token, &base));
    assert_ok(xseg_import_close(allocator, base));
}

/* Wait until the server has closed its connection.  Returns whether no additional descriptor is open. */
static bool files_are_closed(unsigned files)
{
    for (unsigned i = 0; i < 500 && env_open_fds() > files; i++)
        (void)usleep(10000);
    return env_open_fds() <= files;
}

static bool import_fails(const struct xseg_export_token *token, xseg_status status,
                         const char *word)
{
    const unsigned files = env_open_fds();
    char message[1024] = "";
    void *base = NULL;
    const xseg_status actual = xseg_import(allocator, 0, token, &base);

    (void)xseg_error_message(message, sizeof(message));
    if (actual == status && strstr(message, word) != NULL && base == NULL &&
        files_are_closed(files))
        return true;
    print_message("# status %d, %s\n", (int)actual, message);
    return false;
}

/* Limit the process to this many additional descriptors. */
static struct rlimit allow_files(unsigned count)
{
    const int lowest = dup(STDOUT_FILENO);
    struct rlimit before;

    assert_true(lowest >= 0 && close(lowest) == 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit limit = before;
    limit.rlim_cur = (rlim_t)lowest + count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

/* --- Another process, which executes commands, and responds with y or n. --- */

struct command {
    char name;
    unsigned char value;
    struct xseg_export_token token;
    uint64_t offset;
};

struct importer {
    void *base, *block;
};

static bool import(struct importer *importer, const struct command *command)
{
    if (xseg_import(allocator, 0, &command->token, &importer->base) != XSEG_OK)
        return false;
    importer->block = (char *)importer->base + command->offset;
    return true;
}

static bool execute_command(struct importer *importer, const struct command *command)
{
    switch (command->name) {
    case 'i':
        return import(importer, command);
    case 'r':
        return is_filled(importer->block, BLOCK, command->value);
    case 'w':
        fill(importer->block, BLOCK, command->value);
        return true;
    case 'c':
        return xseg_import_close(allocator, importer->base) == XSEG_OK;
    case 'g': /* the export is closed */
        return import_fails(&command->token, XSEG_ERR_NOT_ALLOCATED, "closed");
    case 'u': /* become another user */
        return setuid(65534) == 0 && import_fails(&command->token, XSEG_ERR_FILE, "user");
    case 'n': /* enter another network namespace */
        return import_fails(&command->token, XSEG_ERR_FILE, "network namespace");
    case 'N':
        return syscall(SYS_unshare, NEW_NET) == 0;
    case 'l': /* run out of descriptors: the socket needs one, and the pages three */
        (void)allow_files(3);
        return import_fails(&command->token, XSEG_ERR_FILE, "ulimit -n");
    default:
        return xseg_close(allocator) == XSEG_OK && xseg_sim_leaks(NULL, 0) == 0;
    }
}

static void run_importer(int socket, const struct xseg_sim_settings *settings)
{
    struct importer importer = {NULL};
    struct command command;

    if (xseg_sim_reset(settings) != XSEG_OK || env_try_open(NULL, &allocator) != XSEG_OK)
        _exit(1);
    while (read(socket, &command, sizeof(command)) == (ssize_t)sizeof(command)) {
        const bool succeeds = execute_command(&importer, &command);

        if (write(socket, succeeds ? "y" : "n", 1) != 1)
            _exit(2);
    }
    _exit(0);
}

static bool send_command(const struct process *process, const struct command *command)
{
    assert_int_equal(write(process->socket, command, sizeof(*command)), sizeof(*command));
    return process_responds_yes(process);
}

static bool call_importer(const struct process *process, char name, unsigned char value)
{
    return send_command(process, &(struct command){.name = name, .value = value});
}

/* Returns false if processes cannot share a simulated device. */
static bool start_process(struct process *process)
{
    const struct xseg_sim_settings settings = sim_settings();

    if (!process_start(process, &settings, run_importer))
        return false;
    assert_ok(env_try_open("exportable:True", &allocator));
    return true;
}

static void end_process(const struct process *process)
{
    struct xseg_sim_settings unshared = sim_settings();

    unshared.real_bytes = false;
    assert_true(call_importer(process, 'e', 0));
    process_end(process, allocator, &unshared);
}

TEST(token_is_sufficient_for_an_import)
{
    struct process process = {0};
    struct command command = {0};

    if (!start_process(&process))
        return;
    void *before = env_alloc(allocator, 3 * MIB, NULL);
    unsigned char *block = env_alloc(allocator, BLOCK, NULL);
    fill(block, BLOCK, 11);
    command.token = export_block(block, &command.offset);
    assert_true(command.offset != 0);
    command.name = 'i';
    assert_true(send_command(&process, &command));
    assert_true(call_importer(&process, 'r', 11));
    assert_true(call_importer(&process, 'w', 12));
    assert_true(is_filled(block, BLOCK, 12));
    assert_true(call_importer(&process, 'c', 0));
    /* A block can be imported again until its export is closed. */
    assert_true(send_command(&process, &command));
    export_close_and_free(allocator, block);
    env_empty_cache(allocator);
    assert_true(call_importer(&process, 'r', 12));
    assert_true(call_importer(&process, 'c', 0));
    command.name = 'g';
    assert_true(send_command(&process, &command));
    env_free(allocator, before);
    end_process(&process);
}

/* Expect that an import fails although the export is open: `failing` is a command that expects the failure, and `first` a
 * command before it, or 0. */
static void expect_failing_import(char first, char failing)
{
    struct process process = {0};
    struct command command = {0};

    if (!start_process(&process))
        return;
    void *block = env_alloc(allocator, BLOCK, NULL);
    command.token = export_block(block, NULL);
    /* The simulator opens its files with the first import. */
    command.name = 'i';
    assert_true(send_command(&process, &command) && call_importer(&process, 'c', 0));
    command.name = failing;
    if (first == 0 || call_importer(&process, first, 0))
        assert_true(send_command(&process, &command));
    else
        print_message("# this system has no network namespaces for the test: nothing was tried\n");
    /* The exporter serves other importers. */
    expect_valid(&command.token);
    export_close_and_free(allocator, block);
    end_process(&process);
}

TEST(import_by_another_user_fails)
{
    if (geteuid() == 0)
        expect_failing_import(0, 'u');
    else
        print_message("# only root can be another user: nothing was tried\n");
}

TEST(import_from_another_network_namespace_fails)
{
    expect_failing_import('N', 'n');
}

TEST(importer_without_descriptors_gets_an_error)
{
    expect_failing_import(0, 'l');
}

/* Keep the copies of all descriptors until this child is killed, or for a minute if the test fails. */
static void wait_to_be_killed(void)
{
    (void)alarm(60);
    for (;;)
        (void)pause();
}

/* An exporter that exits with its export open, after it has forked a child if requested. */
static void export_and_exit(int socket, bool has_child)
{
    pid_t child = 0;

    open_with("exportable:True");
    const struct xseg_export_token token = export_block(env_alloc(allocator, 3 * MIB, NULL), NULL);

    if (has_child && (child = fork()) == 0)
        wait_to_be_killed();
    _exit(write(socket, &token, sizeof(token)) == (ssize_t)sizeof(token) &&
                  write(socket, &child, sizeof(child)) == (ssize_t)sizeof(child)
              ? 0
              : 1);
}

TEST(import_from_an_exited_exporter_fails)
{
    for (int has_child = 0; has_child < 2; has_child++) {
        struct xseg_export_token token;
        int ends[2], status = 0;
        pid_t grandchild = 0;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            export_and_exit(ends[1], has_child != 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(read(ends[0], &token, sizeof(token)), sizeof(token));
        assert_int_equal(read(ends[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
        open_with(NULL);
        env_free(allocator, env_alloc(allocator, 1000, NULL)); /* the simulator opens its files */
        assert_true(
            import_fails(&token, XSEG_ERR_FILE,
                         has_child != 0 ? "exporter has ended" : "exporter cannot be reached"));
        env_close(allocator);
        if (has_child != 0)
            (void)kill(grandchild, SIGKILL);
        (void)close(ends[0]);
        (void)close(ends[1]);
    }
}

/* --- One process on both sides. --- */

TEST(exporter_can_import_its_own_export)
{
    const unsigned before = env_threads();

    open_with("exportable:True");
    unsigned char *block = env_alloc(allocator, BLOCK, NULL);
    void *base = NULL;
    uint64_t offset = 0;

    /* Raw handles start no thread. */
    assert_ok(export_and_close_handles(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(env_threads(), before);
    /* One thread with a socket and an eventfd serves all exports of a device.  No descriptor of a page stays open. */
    const unsigned files = env_open_fds();
    const struct xseg_export_token token = export_block(block, &offset);
    assert_int_equal(env_threads(), before + 1);
    assert_int_equal(env_open_fds(), files + 2);
    assert_true(is_equal(token, export_block(block, NULL)));
    assert_int_equal(env_open_fds(), files + 2);
    assert_int_equal(env_threads(), before + 1);
    assert_ok(xseg_import(allocator, 0, &token, &base));
    fill((char *)base + offset, BLOCK, 5);
    assert_true(is_filled(block, BLOCK, 5));
    /* Exports are counted. */
    assert_ok(xseg_export_close(allocator, block));
    assert_ok(xseg_import_close(allocator, base));
    expect_valid(&token);
    assert_error(xseg_close(allocator), BUSY, "blocks are allocated");
    assert_ok(xseg_export_close(allocator, block));
    assert_true(import_fails(&token, XSEG_ERR_NOT_ALLOCATED, "closed"));
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED);
    env_free(allocator, block);
    env_close(allocator);
    assert_int_equal(env_threads(), before);
}

/* A cache of an importer can use the token as its key. */
TEST_WITH(token_identifies_the_run_and_its_generation, open_exporter, close_exporter)
{
    char *first = env_alloc(allocator, 2 * MIB, NULL);
    char *second = env_alloc(allocator, 3 * MIB, NULL);
    char *third = env_alloc(allocator, 20 * MIB, NULL);
    uint64_t offset[2];

    /* Two blocks on one page have the same token. */
    const struct xseg_export_token token = export_block(first, &offset[0]);
    assert_true(is_equal(token, export_block(second, &offset[1])));
    assert_int_equal(offset[1] - offset[0], second - first);
    assert_ok(xseg_export_close(allocator, first));
    expect_valid(&token);
    /* Another run has another token, and the same one after the export was closed. */
    const struct xseg_export_token third_token = export_block(third, NULL);
    assert_false(is_equal(token, third_token));
    assert_ok(xseg_export_close(allocator, third));
    assert_true(is_equal(third_token, export_block(third, NULL)));
    assert_ok(xseg_export_close(allocator, third));
    /* Other pages at the same address have another token. */
    env_free(allocator, third);
    env_empty_cache(allocator);
    assert_ptr_equal(env_alloc(allocator, 20 * MIB, NULL), third);
    const struct xseg_export_token new_token = export_block(third, NULL);
    assert_false(is_equal(third_token, new_token));
    assert_true(import_fails(&third_token, XSEG_ERR_NOT_ALLOCATED, "closed"));
    expect_valid(&new_token);
    assert_ok(xseg_export_close(allocator, third));
    assert_ok(xseg_export_close(allocator, second));
    env_free(allocator, first, second, third);
}

/* Two blocks of different sizes were exported at one address; a close ends the older export. */
TEST_WITH(exports_of_an_address_are_closed_in_order, open_exporter, close_exporter)
{
    unsigned char *block = env_alloc(allocator, 40 * MIB, NULL);

    const struct xseg_export_token first_token = export_block(block, NULL);
    env_free(allocator, block);
    assert_ptr_equal(env_alloc(allocator, 15 * MIB, NULL), block);
    const struct xseg_export_token second_token = export_block(block, NULL);
    assert_false(is_equal(first_token, second_token));
    expect_valid(&first_token);
    assert_ok(xseg_export_close(allocator, block));
    assert_true(import_fails(&first_token, XSEG_ERR_NOT_ALLOCATED, "closed"));
    expect_valid(&second_token);
    /* Raw handles are exports as well, and a token is valid while its run is exported. */
    assert_ok(export_and_close_handles(allocator, block));
    assert_ok(xseg_export_close(allocator, block));
    expect_valid(&second_token);
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED);
    env_free(allocator, block);
}

/* 300 pages, but a message carries at most 253 descriptors (SCM_MAX_FD). */
TEST_WITH(run_may_have_many_pages, NULL, close_exporter)
{
    open_with("exportable:True,page_size:small");
    void *block = env_alloc(allocator, 600 * MIB, NULL);
    const struct xseg_export_token token = export_block(block, NULL);
    const unsigned files = env_open_fds();
    void *base = NULL;

    assert_ok(xseg_import(allocator, 0, &token, &base));
    assert_int_equal(env_stats(allocator).imported_bytes, 600 * MIB);
    assert_ok(xseg_import_close(allocator, base));
    assert_true(files_are_closed(files));
    /* The process may open fewer descriptors than there are pages. */
    struct rlimit before = allow_files(100);
    assert_true(import_fails(&token, XSEG_ERR_DRIVER, "ulimit -n"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    expect_valid(&token);
    export_close_and_free(allocator, block);
}

struct exporting {
    void *block;
    pthread_t thread;
    atomic_bool stops;
    bool succeeds;
};

/* The token of this thread's export is valid until this thread closes the export. */
static void *export_and_close(void *context)
{
    struct exporting *exporting = context;
    struct xseg_export_token token;
    void *base = NULL;

    exporting->succeeds = true;
    for (unsigned i = 0; i < 50 && exporting->succeeds; i++)
        exporting->succeeds = export_and_close_handles(allocator, exporting->block) == XSEG_OK &&
                              xseg_export(allocator, exporting->block, &token, NULL) == XSEG_OK &&
                              xseg_import(allocator, 0, &token, &base) == XSEG_OK &&
                              xseg_import_close(allocator, base) == XSEG_OK &&
                              xseg_export_close(allocator, exporting->block) == XSEG_OK &&
                              xseg_export_close(allocator, exporting->block) == XSEG_OK;
    return NULL;
}

TEST_WITH(threads_export_one_block_concurrently, open_exporter, close_exporter)
{
    struct exporting exporters[3];
    void *block = env_alloc(allocator, 3 * MIB, NULL);

    for (unsigned i = 0; i < COUNT_OF(exporters); i++) {
        exporters[i].block = block;
        assert_int_equal(
            pthread_create(&exporters[i].thread, NULL, export_and_close, &exporters[i]), 0);
    }
    for (unsigned i = 0; i < COUNT_OF(exporters); i++) {
        assert_int_equal(pthread_join(exporters[i].thread, NULL), 0);
        assert_true(exporters[i].succeeds);
    }
    assert_int_equal(xseg_export_close(allocator, block), XSEG_ERR_NOT_ALLOCATED);
    env_free(allocator, block);
}

/* Open and close the export of a block until the other thread stops this thread. */
static void *open_and_close(void *context)
{
    struct exporting *exporting = context;
    struct xseg_export_token token;

    exporting->succeeds = true;
    while (!atomic_load(&exporting->stops) && exporting->succeeds) {
        exporting->succeeds = xseg_export(allocator, exporting->block, &token, NULL) == XSEG_OK;
        (void)sched_yield();
        exporting->succeeds &= xseg_export_close(allocator, exporting->block) == XSEG_OK;
    }
    return NULL;
}

TEST_WITH(export_may_be_closed_during_an_import, NULL, close_exporter)
{
    void *base = NULL;

    open_with("exportable:True,page_size:small");
    struct exporting exporter = {.block = env_alloc(allocator, 600 * MIB, NULL)};
    const struct xseg_export_token token = export_block(exporter.block, NULL);
    assert_ok(xseg_export_close(allocator, exporter.block));
    assert_int_equal(pthread_create(&exporter.thread, NULL, open_and_close, &exporter), 0);
    for (unsigned i = 0; i < 30; i++) {
        const xseg_status status = xseg_import(allocator, 0, &token, &base);

        assert_true(status == XSEG_OK || status == XSEG_ERR_NOT_ALLOCATED);
        if (status == XSEG_OK)
            assert_ok(xseg_import_close(allocator, base));
    }
    atomic_store(&exporter.stops, true);
    assert_int_equal(pthread_join(exporter.thread, NULL), 0);
    assert_true(exporter.succeeds);
    env_free(allocator, exporter.block);
}

/* An older export of the same address retains its pages. */
TEST_WITH(export_without_a_socket_is_rolled_back, open_exporter, close_exporter)
{
    unsigned char *block = env_alloc(allocator, 40 * MIB, NULL);
    struct xseg_export_token token;

    assert_ok(export_and_close_handles(allocator, block));
    env_free(allocator, block);
    assert_ptr_equal(env_alloc(allocator, 15 * MIB, NULL), block);
    for (unsigned count = 0; count < 2; count++) {
        const struct rlimit before = allow_files(count);
        const xseg_status status = xseg_export(allocator, block, &token, NULL);

        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_error(status, FILE, "socket for importers failed");
    }
    env_free(allocator, block);
    assert_int_equal(env_reserved_without_cache(allocator), 40 * MIB);
    assert_ok(xseg_export_close(allocator, block));
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_WITH(import_from_another_device_is_rejected, NULL, close_exporter)
{
    struct xseg_sim_settings settings = sim_settings();
    void *base = NULL;

    settings.devices = 2;
    allocator = env_open_on(&settings, "exportable:True");
    void *block = env_alloc(allocator, 3 * MIB, NULL);
    const struct xseg_export_token token = export_block(block, NULL);
    assert_error(xseg_import(allocator, 1, &token, &base), ARGUMENT,
                 "memory is on another device, UUID");
    assert_error(xseg_import(allocator, 2, &token, &base), ARGUMENT, "device 2 does not exist");
    export_close_and_free(allocator, block);
}

static void expect_rejected(struct xseg_export_token token, size_t offset, uint64_t value,
                            const char *word)
{
    memcpy(token.byte + offset, &value, offset == SIZE_AT ? 8 : 4);
    assert_true(import_fails(&token, XSEG_ERR_ARGUMENT, word));
}

TEST_WITH(modified_token_is_rejected, open_exporter, close_exporter)
{
    static const uint64_t sizes[] = {0, 4097, UINT64_C(1) << 50};
    void *block = env_alloc(allocator, 3 * MIB, NULL), *base = NULL;
    const struct xseg_export_token token = export_block(block, NULL);

    expect_rejected(token, 0, 0, "token is not an export token, first byte 0x00");
    expect_rejected(token, VERSION_AT, 2,
                    "version of the export token is not supported, 2 instead of 1");
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        expect_rejected(token, SIZE_AT, sizes[i], "malformed");
    expect_rejected(token, KIND_AT, 2, "malformed");
    assert_error(xseg_import(allocator, 0, NULL, &base), ARGUMENT, "token is NULL");
    assert_error(xseg_import(allocator, 0, &token, NULL), ARGUMENT, "base is NULL");
    /* A modification of any bit. */
    for (size_t bit = 0; bit < 8 * sizeof(token); bit++) {
        struct xseg_export_token modified = token;

        modified.byte[bit / 8] ^= (uint8_t)(1u << bit % 8);
        const xseg_status status = xseg_import(allocator, 0, &modified, &base);
        assert_true(status == XSEG_ERR_ARGUMENT || status == XSEG_ERR_FILE ||
                    status == XSEG_ERR_NOT_ALLOCATED);
        assert_null(base);
    }
    expect_valid(&token);
    export_close_and_free(allocator, block);
}

static int connect_to_exporter(const struct xseg_export_token *token)
{
    const struct timeval timeout = {.tv_sec = 20};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t exporter;

    memcpy(&exporter, token->byte + EXPORTER_AT, sizeof(exporter));
    const int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                "xseg-export-%016llx", (unsigned long long)exporter);
    const int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
    assert_int_equal(
        connect(client, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
        0);
    return client;
}

/* A client that violates the protocol gets no answer, and later clients are served. */
TEST(other_clients_get_no_answer)
{
    static const size_t sizes[] = {1, XSEG_EXPORT_TOKEN_SIZE - 1, XSEG_EXPORT_TOKEN_SIZE + 1, 5000};
    open_with("exportable:True");
    void *block = env_alloc(allocator, 3 * MIB, NULL);
    const struct xseg_export_token token = export_block(block, NULL);
    char bytes[5000] = "xseg", reply[64];

    for (unsigned i = 0; i < COUNT_OF(sizes); i++) {
        const int client = connect_to_exporter(&token);

        assert_int_equal(send(client, bytes, sizes[i], MSG_NOSIGNAL), sizes[i]);
        assert_int_equal(recv(client, reply, sizeof(reply), 0), 0);
        (void)close(client);
    }
    /* A client that closes the connection before the response. */
    const int disconnected = connect_to_exporter(&token);
    assert_int_equal(send(disconnected, &token, sizeof(token), MSG_NOSIGNAL), sizeof(token));
    (void)close(disconnected);
    /* A silent client delays the next client by two seconds, and does not delay the close. */
    const int silent = connect_to_exporter(&token), second = connect_to_exporter(&token);
    expect_valid(&token);
    assert_int_equal(recv(silent, reply, sizeof(reply), 0), 0);
    const int third = connect_to_exporter(&token);
    export_close_and_free(allocator, block);
    const time_t start = time(NULL);
    env_close(allocator);
    assert_true(time(NULL) - start <= 30);
    assert_int_equal(recv(third, reply, sizeof(reply), 0), 0);
    (void)close(silent);
    (void)close(second);
    (void)close(third);
}

/* After the close, connections fail although a forked child has the socket, and the child retains no memory. */
TEST_WITH(child_does_not_retain_the_socket, open_exporter, close_exporter)
{
    void *block = env_alloc(allocator, 3 * MIB, NULL);
    const struct xseg_export_token token = export_block(block, NULL);
    const unsigned files = env_open_fds();
    char byte;

    expect_valid(&token);
    assert_true(files_are_closed(files)); /* a child would inherit an open connection */
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        wait_to_be_killed();
    /* The server has not accepted the second connection at the close. */
    const int silent = connect_to_exporter(&token), second = connect_to_exporter(&token);
    export_close_and_free(allocator, block);
    assert_ok(xseg_close(allocator));
    assert_int_equal(recv(silent, &byte, 1, 0), 0);
    assert_int_equal(recv(second, &byte, 1, 0), 0);
    assert_ok(env_try_open(NULL, &allocator));
    assert_true(import_fails(&token, XSEG_ERR_FILE, "Connection refused"));
    (void)close(silent);
    (void)close(second);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}
