/* SPDX-License-Identifier: MIT */
/*
 * Sharing: blocks that two processes map.
 *
 *     share                                              peer, the same program
 *     write, wait, export, send tokens ----------->      import, check, write again, wait
 *     check, free, close the export    <-----------      notify
 *     trim, notify                     ----------->      check again: the importer retains the memory
 *                                      <-----------      close the import, notify
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

enum kind { SHARED, WRITTEN_ANEW, LET_GO, CLOSED, OVER, COUNTS };

struct message {
    enum kind kind;
    struct piece piece[BLOCKS]; /* addresses are invalid in the other process */
    struct xseg_export_token token[BLOCKS];
    uint64_t offset[BLOCKS]; /* of the block in its run */
    uint64_t counts[COUNT_KINDS];
};

static pid_t peer; /* 0 in the other process */

/* End the section without a message of the other process, which has printed the reason unless it crashed. */
__attribute__((noreturn)) static void report_end(void)
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
        report_end();
}

static void receive_message(int socket, enum kind kind, struct message *message)
{
    const ssize_t got = recv(socket, message, sizeof(*message), MSG_WAITALL);

    if (got == 0 || (got < 0 && errno == ECONNRESET))
        report_end();
    if (got != (ssize_t)sizeof(*message))
        journal_stop("no message of the other process within %d s: %s", TIMEOUT, strerror(errno));
    if (message->kind != kind)
        journal_stop("the other process is at step %d, expected %d", (int)message->kind, (int)kind);
}

static void set_patience(int socket)
{
    const struct timeval patience = {.tv_sec = TIMEOUT};

    if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0 ||
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) != 0)
        journal_stop("cannot set the timeout of the socket: %s", strerror(errno));
}

static void *pointer_of(const struct piece *piece)
{
    return (void *)(uintptr_t)piece->address;
}

/* --- The exporter. --- */

static int start_peer(const struct stage *stage)
{
    int ends[2];
    char socket[16], unit[16], length[32], seed[32], memory[32];

    (void)fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        journal_stop("cannot create a socket: %s", strerror(errno));
    (void)snprintf(socket, sizeof(socket), "%d", ends[1]);
    (void)snprintf(unit, sizeof(unit), "--%s", stage_unit(stage));
    (void)snprintf(length, sizeof(length), "%" PRIu64, stage_length(stage));
    (void)snprintf(seed, sizeof(seed), "%" PRIu64, stage->seed);
    (void)snprintf(memory, sizeof(memory), "%zu", stage->memory / MIB);
    const char *arguments[] = {"gpu-contents", "peer", "--socket",    socket, unit, length,
                               "--seed",       seed,   "--memory-mb", memory, NULL};
    char *argument[sizeof(arguments) / sizeof(arguments[0])];
    memcpy(argument, arguments, sizeof(argument)); /* posix_spawn() does not modify the arguments */
    const int error = posix_spawn(&peer, "/proc/self/exe", NULL, NULL, argument, environ);
    if (error != 0)
        journal_stop("cannot start the other process: %s", strerror(error));
    (void)close(ends[1]);
    set_patience(ends[0]);
    return ends[0];
}

static void export_block(struct xseg_allocator *allocator, const struct piece *piece,
                         struct xseg_export_token *token, uint64_t *offset)
{
    journal_operation("export %" PRIu64, piece->block);
    XSEG(export, allocator, pointer_of(piece), token, offset);
}

static struct piece make_block(struct stage *stage, struct xseg_allocator *allocator,
                               struct xseg_pool *pool)
{
    const size_t max = stage->memory / 16 < MAX_BLOCK ? stage->memory / 16 : MAX_BLOCK;
    const size_t bytes = 1 + draw(&stage->draws, draw(&stage->draws, 3) == 0 ? 100000 : max);
    const struct piece piece = stage_block(stage, allocator, pool, 0, bytes);

    kernel_write(stage->stream[0], &piece);
    return piece;
}

/* Releases all references of the exporter to the blocks. */
static void let_go(struct stage *stage, struct xseg_allocator *allocator, const struct piece *piece)
{
    struct xseg_trim_options options = {sizeof(options)};

    for (unsigned i = 0; i < BLOCKS; i++) {
        kernel_check(stage->checks[0], stage->stream[0], &piece[i]);
        journal_operation("free %" PRIu64 " and close its export", piece[i].block);
        XSEG(free, allocator, pointer_of(&piece[i]));
        XSEG(export_close, allocator, pointer_of(&piece[i]));
    }
    stage_rest(stage);
    options.wait = true;
    XSEG(trim, allocator, NULL, &options, NULL);
}

static void share_round(struct stage *stage, struct xseg_allocator *allocator,
                        struct xseg_pool *pool, int socket)
{
    struct message message = {.kind = SHARED};
    struct piece own[BLOCKS];

    for (unsigned i = 0; i < BLOCKS; i++)
        message.piece[i] = make_block(stage, allocator, pool);
    memcpy(own, message.piece, sizeof(own));
    stage_rest(stage);
    for (unsigned i = 0; i < BLOCKS; i++)
        export_block(allocator, &own[i], &message.token[i], &message.offset[i]);
    send_message(socket, SHARED, &message);
    receive_message(socket, WRITTEN_ANEW, &message);
    for (unsigned i = 0; i < BLOCKS; i++)
        own[i].seed = message.piece[i].seed;
    let_go(stage, allocator, own);
    send_message(socket, LET_GO, &message);
    receive_message(socket, CLOSED, &message);
}

static void end_peer(int socket)
{
    struct message message = {.kind = OVER};
    int status = 0;

    send_message(socket, OVER, &message);
    receive_message(socket, COUNTS, &message);
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        journal_count((enum journal_count)kind, message.counts[kind]);
    if (waitpid(peer, &status, 0) != peer || status != 0)
        journal_wrong("the other process ended with status %d", status);
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

void play_share(struct stage *stage)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    uint64_t rounds = 0;
    char text[300];

    need_second_context();
    struct xseg_allocator *allocator = stage_open("expandable_segments:True");
    options.exportable = true;
    const xseg_status status = xseg_pool_create(allocator, 0, &options, &pool);
    if (status == XSEG_ERR_UNSUPPORTED) {
        (void)xseg_error_message(text, sizeof(text));
        journal_skip("%s", text);
    }
    journal_status(status, "xseg_pool_create");
    const int socket = start_peer(stage);
    do {
        share_round(stage, allocator, pool, socket);
        rounds++;
    } while (stage_has_time(stage));
    end_peer(socket);
    journal_note("shared", rounds * BLOCKS, "ok", "blocks, to the other process and back");
    XSEG(pool_release, pool);
    stage_close(allocator);
}

/* --- The importer. --- */

static void import_blocks(struct xseg_allocator *allocator, const struct message *message,
                          struct piece *piece, void **base)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        journal_operation("peer: import %" PRIu64, piece[i].block);
        XSEG(import, allocator, 0, &message->token[i], &base[i]);
        piece[i].address = (CUdeviceptr)(uintptr_t)base[i] + message->offset[i];
    }
}

static void peer_round(struct stage *stage, struct xseg_allocator *allocator,
                       struct message *message)
{
    const CUstream stream = stage->stream[0];
    struct piece own[BLOCKS];
    void *base[BLOCKS];

    memcpy(own, message->piece, sizeof(own));
    import_blocks(allocator, message, own, base);
    for (unsigned i = 0; i < BLOCKS; i++) {
        kernel_check(stage->checks[0], stream, &own[i]);
        own[i].seed = message->piece[i].seed = ~own[i].seed;
        kernel_write(stream, &own[i]);
    }
    stage_rest(stage);
    send_message(stage->socket, WRITTEN_ANEW, message);
    receive_message(stage->socket, LET_GO, message);
    for (unsigned i = 0; i < BLOCKS; i++)
        kernel_check(stage->checks[0], stream, &own[i]);
    stage_rest(stage);
    for (unsigned i = 0; i < BLOCKS; i++) {
        journal_operation("peer: close the import of %" PRIu64, own[i].block);
        XSEG(import_close, allocator, base[i]);
    }
    send_message(stage->socket, CLOSED, message);
}

void play_peer(struct stage *stage)
{
    struct xseg_allocator *allocator = stage_open("expandable_segments:True");
    struct message message;
    ssize_t got;

    set_patience(stage->socket);
    for (;;) {
        got = recv(stage->socket, &message, sizeof(message), MSG_WAITALL);
        if (got != (ssize_t)sizeof(message))
            journal_stop("the exporter has ended");
        if (message.kind != SHARED)
            break;
        peer_round(stage, allocator, &message);
    }
    stage_close(allocator);
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        message.counts[kind] = journal_counts[kind];
    send_message(stage->socket, COUNTS, &message);
}
