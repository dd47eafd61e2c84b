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

static void spawn(const char *const *arguments, int file, int output, pid_t *process)
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
    if (file >= 0)
        ASSERT_EQUAL(posix_spawn_file_actions_adddup2(&actions, file, CHILD_FILE), 0);
    ASSERT_EQUAL(posix_spawn(process, self, &actions, NULL, list, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
}

void child_run(const char *const *arguments, int file, struct child_end *end)
{
    int ends[2];
    pid_t process = 0;
    ssize_t count = 1;

    memset(end, 0, sizeof(*end));
    ASSERT_EQUAL(pipe2(ends, O_CLOEXEC), 0);
    spawn(arguments, file, ends[1], &process);
    (void)close(ends[1]);
    while (count > 0 && end->bytes < sizeof(end->output) - 1) {
        count = read(ends[0], end->output + end->bytes, sizeof(end->output) - 1 - end->bytes);
        end->bytes += count > 0 ? (size_t)count : 0;
    }
    (void)close(ends[0]);
    ASSERT_EQUAL(waitpid(process, &end->status, 0), process);
}

void child_begin(unsigned seconds)
{
    const struct rlimit none = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(seconds);
}
