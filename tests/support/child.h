/* SPDX-License-Identifier: MIT */
/* A part of a test that runs in a forked child, because an assertion or a report may end the process. */
#ifndef XSEG_TESTS_CHILD_H
#define XSEG_TESTS_CHILD_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Run a part in a child, which leaves no core file; returns its wait status.  The text is what the child says on
 * standard error until it ends. */
static inline int child_run(void (*part)(const void *), const void *argument, char *text,
                            size_t bytes)
{
    const struct rlimit none = {0, 0};
    int ends[2], status = 0;
    size_t used = 0;

    assert_int_equal(pipe(ends), 0);
    (void)fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(ends[1], STDERR_FILENO);
        part(argument);
        _exit(0);
    }
    (void)close(ends[1]);
    for (ssize_t got = 1; got > 0; used += (size_t)got) {
        got = read(ends[0], text + used, bytes - 1 - used);
        assert_true(got >= 0);
    }
    text[used] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static inline void child_call(const void *part)
{
    (*(void (*const *)(void))part)();
}

/* As child_run(), of a part without an argument. */
static inline int child_run_part(void (*part)(void), char *text, size_t bytes)
{
    return child_run(child_call, &part, text, bytes);
}

/* Whether a wait status is that of a child that aborted. */
static inline bool child_aborted(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

#endif /* XSEG_TESTS_CHILD_H */
