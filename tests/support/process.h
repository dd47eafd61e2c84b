/* SPDX-License-Identifier: MIT */
/* Another process on the same simulated machine, which does what it is told through a socket. */
#ifndef XSEG_TESTS_PROCESS_H
#define XSEG_TESTS_PROCESS_H

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scene.h"
#include "tests/support/shared.h"

struct process {
    pid_t pid;
    int socket;
};

/* Start another process, on a machine that both share: `obey` runs there, with its end of the socket,
 * and does not return.  False where that cannot be had. */
static inline bool process_start(struct process *process, const struct xseg_sim_settings *machine,
                                 void (*obey)(int socket, const struct xseg_sim_settings *settings))
{
    struct xseg_sim_settings settings = *machine;
    char name[64];
    int sockets[2];

    if (!name_shared_machine(name, sizeof(name)))
        return false;
    settings.shared = name;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        (void)close(sockets[0]);
        obey(sockets[1], &settings);
    }
    (void)close(sockets[1]);
    process->socket = sockets[0];
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    return true;
}

/* The process has been told to end: wait until it has, close what is here, and leave the machine for
 * `alone`. */
static inline void process_end(const struct process *process, struct xseg_allocator *own,
                               const struct xseg_sim_settings *alone)
{
    int result = 0;

    (void)close(process->socket);
    assert_int_equal(waitpid(process->pid, &result, 0), process->pid);
    assert_int_equal(result, 0);
    scene_close(own);
    assert_int_equal(xseg_sim_reset(alone), XSEG_OK);
}

/* The answer of the process: y for yes. */
static inline bool process_answer(const struct process *process)
{
    char answer = '?';

    return read(process->socket, &answer, 1) == 1 && answer == 'y';
}

#endif
