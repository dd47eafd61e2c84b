/* SPDX-License-Identifier: MIT */
/* A second process on the same simulated device, which executes commands from a socket. */
#ifndef XSEG_TESTS_PROCESS_H
#define XSEG_TESTS_PROCESS_H

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/env.h"
#include "tests/support/sim_shared.h"

struct process {
    pid_t pid;
    int socket;
};

/* Start a second process that shares the simulated device.  It calls `run`, which does not return, with its end of the
 * socket.  Returns false if the host has no named shared memory. */
static inline bool process_start(struct process *process,
                                 const struct xseg_sim_settings *sim_settings,
                                 void (*run)(int socket, const struct xseg_sim_settings *settings))
{
    struct xseg_sim_settings settings = *sim_settings;
    char name[64];

    if (!sim_shared_name(name, sizeof(name)))
        return false;
    settings.shared = name;
    process->pid = child_fork_with_socket(&process->socket);
    if (process->pid == 0)
        run(process->socket, &settings);
    assert_int_equal(xseg_sim_reset(&settings), XSEG_OK);
    return true;
}

/* After the command to exit: wait for the process, close the allocator of this process, and leave the shared device: reset
 * the simulator to settings without `shared`. */
static inline void process_end(const struct process *process, struct xseg_allocator *allocator,
                               const struct xseg_sim_settings *unshared)
{
    (void)close(process->socket);
    child_expect_success(process->pid);
    env_close(allocator);
    assert_int_equal(xseg_sim_reset(unshared), XSEG_OK);
}

/* Whether the next response of the process is 'y'. */
static inline bool process_responds_yes(const struct process *process)
{
    char response = '?';

    return read(process->socket, &response, 1) == 1 && response == 'y';
}

#endif
