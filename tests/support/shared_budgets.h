/* SPDX-License-Identifier: MIT */
/* A shared budget file for one test, and child processes that have it open and execute commands from a socket. */
#ifndef XSEG_TESTS_SHARED_BUDGETS_H
#define XSEG_TESTS_SHARED_BUDGETS_H

#include <fcntl.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/shared_budget.h"
#include "tests/support/child.h"
#include "tests/support/env.h"

/* The layout of the file. */
#define BUDGET_FILE_SLOTS_AT  4096
#define BUDGET_FILE_SLOT      8192
#define BUDGET_FILE_BYTES     (BUDGET_FILE_SLOTS_AT + 64 * BUDGET_FILE_SLOT)
#define BUDGET_FILE_RECORD_AT 8 /* in a slot, after the checksum */

static char budget_file_folder[64], budget_file_path[128];

/* A directory for the files of a test: in /dev/shm, where named files are, or in the working directory. */
static inline int budget_files_begin(void **state)
{
    (void)state;
    (void)snprintf(budget_file_folder, sizeof(budget_file_folder), "/dev/shm/xseg-test-XXXXXX");
    if (mkdtemp(budget_file_folder) == NULL) {
        (void)snprintf(budget_file_folder, sizeof(budget_file_folder), "./xseg-test-XXXXXX");
        if (mkdtemp(budget_file_folder) == NULL)
            return -1;
    }
    (void)snprintf(budget_file_path, sizeof(budget_file_path), "%s/budget", budget_file_folder);
    return 0;
}

static inline int budget_files_end(void **state)
{
    (void)state;
    (void)unlink(budget_file_path);
    return rmdir(budget_file_folder);
}

/* Statistics of one device, derived from a number. */
static inline struct xseg_shared_budget_device budget_file_statistics(uint64_t number)
{
    return (struct xseg_shared_budget_device){
        .uuid = {'G', 'P', 'U'},
        .physical = 1000 + number,
        .idle = number,
        .demand = number,
        .demand_since = number,
        .share = 500000,
        .min_bytes = number,
        .released = number,
    };
}

static inline bool budget_file_matches(const struct xseg_shared_budget_record *record,
                                       uint64_t number)
{
    const struct xseg_shared_budget_device expected = budget_file_statistics(number);

    return record->device_count == 1 &&
           memcmp(&record->devices[0], &expected, sizeof(expected)) == 0;
}

static inline xseg_status budget_file_write(struct xseg_shared_budget *budget, uint64_t number)
{
    const struct xseg_shared_budget_device statistics = budget_file_statistics(number);

    return xseg_shared_budget_write(budget, &statistics, 1);
}

/* Open the budget file: this process becomes a member. */
static inline void budget_file_join(struct xseg_shared_budget *budget)
{
    assert_ok(xseg_shared_budget_open(budget, budget_file_path));
}

static inline void budget_file_write_ok(struct xseg_shared_budget *budget, uint64_t number)
{
    assert_ok(budget_file_write(budget, number));
}

static inline void budget_file_overwrite(off_t at, const void *bytes, size_t count)
{
    const int file = open(budget_file_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0660);

    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, count, at), count);
    assert_int_equal(close(file), 0);
}

/* The number of slots in use. */
static inline unsigned budget_file_count(const struct xseg_shared_budget *budget)
{
    unsigned count = 0;

    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        count += budget->entries[i].state != XSEG_SHARED_BUDGET_FREE;
    return count;
}

/* Read the file, and expect this number of members. */
static inline void budget_file_expect(struct xseg_shared_budget *budget, unsigned count)
{
    assert_ok(xseg_shared_budget_read(budget));
    assert_int_equal(budget_file_count(budget), count);
}

/* Expect a string in the last error message. */
static inline void assert_error_message(const char *words)
{
    char text[2048];

    (void)xseg_error_message(text, sizeof(text));
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, words);
}

/* A member in a child process; each of its responses is one byte. */
struct peer {
    pid_t pid;
    int socket;
    unsigned slot;
};

/* Commands: 'w' and a byte writes statistics; 'r' reads and returns the number of slots in use; 'f' forks a child
 * that runs until the socket is closed; 'c' closes the file and exits. */
static inline void peer_run(int socket)
{
    static struct xseg_shared_budget budget;
    unsigned char command[2] = {0}, response = 255;

    if (xseg_shared_budget_open(&budget, budget_file_path) == XSEG_OK &&
        budget_file_write(&budget, 0) == XSEG_OK)
        response = (unsigned char)budget.slot;
    while (write(socket, &response, 1) == 1 && read(socket, command, 2) == 2) {
        response = 255;
        if (command[0] == 'w' && budget_file_write(&budget, command[1]) == XSEG_OK)
            response = 0;
        if (command[0] == 'r' && xseg_shared_budget_read(&budget) == XSEG_OK)
            response = (unsigned char)budget_file_count(&budget);
        if (command[0] == 'f') {
            if (fork() == 0) {
                response = xseg_shared_budget_is_own(&budget);
                (void)!write(socket, &response, 1);
                (void)!read(socket, command, 1);
                _exit(0);
            }
            for (;;)
                (void)pause();
        }
        if (command[0] == 'c') {
            xseg_shared_budget_close(&budget);
            _exit(0);
        }
    }
    _exit(1);
}

static inline unsigned peer_receive(const struct peer *peer)
{
    unsigned char response = 255;

    assert_int_equal(read(peer->socket, &response, 1), 1);
    return response;
}

static inline unsigned peer_call(const struct peer *peer, char command, unsigned argument)
{
    const unsigned char commands[2] = {(unsigned char)command, (unsigned char)argument};

    assert_int_equal(send(peer->socket, commands, 2, MSG_NOSIGNAL), 2);
    return peer_receive(peer);
}

static inline struct peer peer_start(void)
{
    struct peer peer;

    peer.pid = child_fork_with_socket(&peer.socket);
    if (peer.pid == 0)
        peer_run(peer.socket);
    peer.slot = peer_receive(&peer);
    assert_true(peer.slot < XSEG_SHARED_BUDGET_SLOTS);
    return peer;
}

static inline void peer_kill(const struct peer *peer)
{
    assert_int_equal(kill(peer->pid, SIGKILL), 0);
    assert_int_equal(waitpid(peer->pid, NULL, 0), peer->pid);
    (void)close(peer->socket);
}

/* Command a peer to close the shared budget file and to exit. */
static inline void peer_end(const struct peer *peer)
{
    int status = 1;

    assert_int_equal(send(peer->socket, "c", 2, MSG_NOSIGNAL), 2);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    assert_int_equal(status, 0);
    (void)close(peer->socket);
}

#endif
