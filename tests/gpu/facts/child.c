/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/facts/fact.h"

#define ARGUMENTS_MAX 4u

static void spawn(const char *const *arguments, int fd, int output, pid_t *pid)
{
    extern char **environ;
    char self[] = "/proc/self/exe";
    char copies[ARGUMENTS_MAX][32], *list[ARGUMENTS_MAX + 2] = {self};
    posix_spawn_file_actions_t actions;

    for (size_t i = 0; arguments[i] != NULL && i < ARGUMENTS_MAX; i++) {
        (void)snprintf(copies[i], sizeof(copies[i]), "%s", arguments[i]);
        list[i + 1] = copies[i];
    }
    ASSERT_EQUAL(posix_spawn_file_actions_init(&actions), 0);
    ASSERT_EQUAL(posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO), 0);
    ASSERT_EQUAL(
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0), 0);
    if (fd >= 0)
        ASSERT_EQUAL(posix_spawn_file_actions_adddup2(&actions, fd, CHILD_FD), 0);
    ASSERT_EQUAL(posix_spawn(pid, self, &actions, NULL, list, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
}

void child_run(const char *const *arguments, int fd, struct child_result *result)
{
    int pipe_fds[2];
    pid_t pid = 0;
    ssize_t count = 1;

    memset(result, 0, sizeof(*result));
    ASSERT_EQUAL(pipe2(pipe_fds, O_CLOEXEC), 0);
    spawn(arguments, fd, pipe_fds[1], &pid);
    (void)close(pipe_fds[1]);
    while (count > 0 && result->bytes < sizeof(result->output) - 1) {
        count = read(pipe_fds[0], result->output + result->bytes,
                     sizeof(result->output) - 1 - result->bytes);
        result->bytes += count > 0 ? (size_t)count : 0;
    }
    (void)close(pipe_fds[0]);
    ASSERT_EQUAL(waitpid(pid, &result->status, 0), pid);
}

void child_begin(unsigned seconds)
{
    const struct rlimit none = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(seconds);
}
