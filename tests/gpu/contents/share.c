/* SPDX-License-Identifier: MIT */
/*
 * Sharing: blocks that two processes map.
 *
 *     share                                              peer, the same program
 *     write, wait, export, send tokens ----------->      import, check, write again, wait
 *     check, free, close the export    <-----------      notify (REWRITTEN)
 *     trim, notify (RELEASED)          ----------->      check again: the importer retains the memory
 *                                      <-----------      close the import, notify (CLOSED)
 *
 * Streams of different processes do not wait for each other: each process waits for its own work before it notifies the
 * other.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define BLOCKS    4u
#define MAX_BLOCK (64 * MIB)
#define TIMEOUT   60 /* seconds for a message of the other process */

extern char **environ;

enum kind { SHARED, REWRITTEN, RELEASED, CLOSED, END, COUNTS };

struct message {
    enum kind kind;
    struct buffer buffer[BLOCKS]; /* addresses are invalid in the other process */
    struct xseg_export_token token[BLOCKS];
    uint64_t offset[BLOCKS]; /* of the block in its run */
    uint64_t counts[COUNT_KINDS];
};

static pid_t peer; /* 0 in the other process */

/* End the section after the end of the other process, which has printed the reason unless it crashed. */
__attribute__((noreturn)) static void stop_without_peer(void)
{
    int status = 0;

    if (peer != 0 && waitpid(peer, &status, 0) == peer && WIFEXITED(status) &&
        WEXITSTATUS(status) == JOURNAL_SKIPPED)
        journal_skip("the other process cannot run on this host; see its message above");
    journal_stop("the other process has ended with wait status %d", status);
}

static void send_message(int socket, enum kind kind, struct message *message)
{
    message->kind = kind;
    if (send(socket, message, sizeof(*message), MSG_NOSIGNAL) != (ssize_t)sizeof(*message))
        stop_without_peer();
}

static void receive_message(int socket, enum kind kind, struct message *message)
{
    const ssize_t received_bytes = recv(socket, message, sizeof(*message), MSG_WAITALL);

    if (received_bytes == 0 || (received_bytes < 0 && errno == ECONNRESET))
        stop_without_peer();
    if (received_bytes != (ssize_t)sizeof(*message))
        journal_stop("no message of the other process within %d s: %s", TIMEOUT, strerror(errno));
    if (message->kind != kind)
        journal_stop("the other process is at step %d, expected %d", (int)message->kind, (int)kind);
}

static void set_timeouts(int socket)
{
    const struct timeval timeout = {.tv_sec = TIMEOUT};

    if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0 ||
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0)
        journal_stop("cannot set the timeout of the socket: %s", strerror(errno));
}

static void *pointer_of(const struct buffer *buffer)
{
    return (void *)(uintptr_t)buffer->address;
}

/* --- The exporter. --- */

static int start_peer(const struct section_env *env)
{
    int sockets[2];
    char socket[16], unit[16], length[32], seed[32], memory[32];

    (void)fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        journal_stop("cannot create a socket: %s", strerror(errno));
    (void)snprintf(socket, sizeof(socket), "%d", sockets[1]);
    (void)snprintf(unit, sizeof(unit), "--%s", section_unit(env));
    (void)snprintf(length, sizeof(length), "%" PRIu64, section_length(env));
    (void)snprintf(seed, sizeof(seed), "%" PRIu64, env->seed);
    (void)snprintf(memory, sizeof(memory), "%zu", env->memory / MIB);
    const char *arguments[] = {"gpu-contents", "peer", "--socket",    socket, unit, length,
                               "--seed",       seed,   "--memory-mb", memory, NULL};
    char *argument[sizeof(arguments) / sizeof(arguments[0])];
    memcpy(argument, arguments, sizeof(argument)); /* posix_spawn() does not modify the arguments */
    const int error = posix_spawn(&peer, "/proc/self/exe", NULL, NULL, argument, environ);
    if (error != 0)
        journal_stop("cannot start the other process: %s", strerror(error));
    (void)close(sockets[1]);
    set_timeouts(sockets[0]);
    return sockets[0];
}

static void export_block(struct xseg_allocator *allocator, const struct buffer *buffer,
                         struct xseg_export_token *token, uint64_t *offset)
{
    journal_operation("export %" PRIu64, buffer->block);
    XSEG(export, allocator, pointer_of(buffer), token, offset);
}

static struct buffer allocate_block(struct section_env *env, struct xseg_allocator *allocator,
                                    struct xseg_pool *pool)
{
    const size_t max = env->memory / 16 < MAX_BLOCK ? env->memory / 16 : MAX_BLOCK;
    const size_t bytes = 1 + random_below(&env->random_state,
                                          random_below(&env->random_state, 3) == 0 ? 100000 : max);
    const struct buffer buffer = section_alloc(env, allocator, pool, 0, bytes);

    kernel_write(env->stream[0], &buffer);
    return buffer;
}

/* Releases all references of the exporter to the blocks. */
static void release_blocks(struct section_env *env, struct xseg_allocator *allocator,
                           const struct buffer *buffers)
{
    struct xseg_trim_options options = {sizeof(options)};

    for (unsigned i = 0; i < BLOCKS; i++) {
        kernel_check(env->checks[0], env->stream[0], &buffers[i]);
        journal_operation("free %" PRIu64 " and close its export", buffers[i].block);
        XSEG(free, allocator, pointer_of(&buffers[i]));
        XSEG(export_close, allocator, pointer_of(&buffers[i]));
    }
    section_synchronize(env);
    options.wait = true;
    XSEG(trim, allocator, NULL, &options, NULL);
}

static void share_round(struct section_env *env, struct xseg_allocator *allocator,
                        struct xseg_pool *pool, int socket)
{
    struct message message = {.kind = SHARED};
    struct buffer buffers[BLOCKS];

    for (unsigned i = 0; i < BLOCKS; i++)
        message.buffer[i] = allocate_block(env, allocator, pool);
    memcpy(buffers, message.buffer, sizeof(buffers));
    section_synchronize(env);
    for (unsigned i = 0; i < BLOCKS; i++)
        export_block(allocator, &buffers[i], &message.token[i], &message.offset[i]);
    send_message(socket, SHARED, &message);
    receive_message(socket, REWRITTEN, &message);
    for (unsigned i = 0; i < BLOCKS; i++)
        buffers[i].seed = message.buffer[i].seed;
    release_blocks(env, allocator, buffers);
    send_message(socket, RELEASED, &message);
    receive_message(socket, CLOSED, &message);
}

static void end_peer(int socket)
{
    struct message message = {.kind = END};
    int status = 0;

    send_message(socket, END, &message);
    receive_message(socket, COUNTS, &message);
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        journal_count((enum journal_count)kind, message.counts[kind]);
    if (waitpid(peer, &status, 0) != peer || status != 0)
        journal_error("the other process ended with status %d", status);
    (void)close(socket);
}

/* A second process needs its own context. */
static void need_second_context(void)
{
    const int mode = device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);

    if (mode != CU_COMPUTEMODE_DEFAULT)
        journal_skip("the device permits one process only (compute mode %d): run nvidia-smi -c 0",
                     mode);
}

void run_share(struct section_env *env)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    uint64_t rounds = 0;
    char text[300];

    need_second_context();
    struct xseg_allocator *allocator = section_open_allocator("expandable_segments:True");
    options.exportable = true;
    const xseg_status status = xseg_pool_create(allocator, 0, &options, &pool);
    if (status == XSEG_ERR_UNSUPPORTED) {
        (void)xseg_error_message(text, sizeof(text));
        journal_skip("%s", text);
    }
    journal_status(status, "xseg_pool_create");
    const int socket = start_peer(env);
    do {
        share_round(env, allocator, pool, socket);
        rounds++;
    } while (section_has_time(env));
    end_peer(socket);
    journal_result("shared", rounds * BLOCKS, "ok", "blocks, to the other process and back");
    XSEG(pool_release, pool);
    section_close_allocator(allocator);
}

/* --- The importer. --- */

static void import_blocks(struct xseg_allocator *allocator, const struct message *message,
                          struct buffer *buffers, void **base)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        journal_operation("peer: import %" PRIu64, buffers[i].block);
        XSEG(import, allocator, 0, &message->token[i], &base[i]);
        buffers[i].address = (CUdeviceptr)(uintptr_t)base[i] + message->offset[i];
    }
}

static void peer_round(struct section_env *env, struct xseg_allocator *allocator,
                       struct message *message)
{
    const CUstream stream = env->stream[0];
    struct buffer buffers[BLOCKS];
    void *base[BLOCKS];

    memcpy(buffers, message->buffer, sizeof(buffers));
    import_blocks(allocator, message, buffers, base);
    for (unsigned i = 0; i < BLOCKS; i++) {
        kernel_check(env->checks[0], stream, &buffers[i]);
        buffers[i].seed = message->buffer[i].seed = ~buffers[i].seed;
        kernel_write(stream, &buffers[i]);
    }
    section_synchronize(env);
    send_message(env->socket, REWRITTEN, message);
    receive_message(env->socket, RELEASED, message);
    for (unsigned i = 0; i < BLOCKS; i++)
        kernel_check(env->checks[0], stream, &buffers[i]);
    section_synchronize(env);
    for (unsigned i = 0; i < BLOCKS; i++) {
        journal_operation("peer: close the import of %" PRIu64, buffers[i].block);
        XSEG(import_close, allocator, base[i]);
    }
    send_message(env->socket, CLOSED, message);
}

void run_peer(struct section_env *env)
{
    struct xseg_allocator *allocator = section_open_allocator("expandable_segments:True");
    struct message message;
    ssize_t received_bytes;

    set_timeouts(env->socket);
    for (;;) {
        received_bytes = recv(env->socket, &message, sizeof(message), MSG_WAITALL);
        if (received_bytes != (ssize_t)sizeof(message))
            journal_stop("the exporter has ended");
        if (message.kind != SHARED)
            break;
        peer_round(env, allocator, &message);
    }
    section_close_allocator(allocator);
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        message.counts[kind] = journal_counts[kind];
    send_message(env->socket, COUNTS, &message);
}
