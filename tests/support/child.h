/* SPDX-License-Identifier: MIT */
/* Functions and whole tests that run in a forked child, because an assertion or a report may end the process. */
#ifndef XSEG_TESTS_CHILD_H
#define XSEG_TESTS_CHILD_H

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"

/* Run a function in a child, without a core file.  Returns the wait status; `text` receives the child's standard
 * error. */
static inline int child_run(void (*function)(const void *), const void *argument, char *text,
                            size_t bytes)
{
    const struct rlimit no_core_file = {0, 0};
    int ends[2], status = 0;
    size_t used = 0;

    assert_int_equal(pipe(ends), 0);
    (void)fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &no_core_file);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(ends[1], STDERR_FILENO);
        function(argument);
        _exit(0);
    }
    (void)close(ends[1]);
    for (ssize_t count = 1; count > 0; used += (size_t)count) {
        count = read(ends[0], text + used, bytes - 1 - used);
        assert_true(count >= 0);
    }
    text[used] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static inline void child_call(const void *function)
{
    (*(void (*const *)(void))function)();
}

/* As child_run(), for a function without an argument. */
static inline int child_run_without_argument(void (*function)(void), char *text, size_t bytes)
{
    return child_run(child_call, &function, text, bytes);
}

static inline bool child_aborted(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Wait for a child that must exit with 0. */
static inline void child_expect_success(pid_t child)
{
    int status = -1;

    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Fork a process that has the other end of a socket.  Returns the process ID, or 0 in the child. */
static inline pid_t child_fork_with_socket(int *socket)
{
    int ends[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    (void)close(ends[child == 0 ? 0 : 1]);
    *socket = ends[child == 0 ? 1 : 0];
    return child;
}

/* --- Programs that run each test in a child process, because a defect may end the process or block it. --- */

/*
 *     test-api-NAME              runs all tests
 *     test-api-NAME --only TEST  runs one test
 *
 * A child whose threads all sleep for CHILD_CASE_SLEEP_MS has a deadlock, since no test sleeps or waits for time.  A
 * thread that waits for a CPU on a loaded host does not count as asleep.
 */
struct child_case {
    const char *name;
    void (*run)(const void *argument);
    const void *argument;
};

enum { CHILD_CASE_SLEEP_MS = 3000, CHILD_CASE_MAX_S = 200, CHILD_CASE_SETUP_FAILED = 99 };

/* A flag in shared memory, which the child sets after its setup. */
static atomic_bool *child_case_has_begun;

/* End of the setup: a later failure is a defect of the library. */
static inline void child_case_begin(void)
{
    atomic_store(child_case_has_begun, true);
}

static inline void child_case_pause_ms(long milliseconds)
{
    const struct timespec time = {0, milliseconds * 1000000};

    (void)nanosleep(&time, NULL);
}

/* Whether a thread of a process is asleep or has ended. */
static inline bool child_case_thread_sleeps(pid_t process, const char *thread)
{
    char path[320], text[512] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)process, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return true;
    (void)!fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    /* The state follows the name of the thread: "12 (name) S".  S is interruptible sleep. */
    const char *end = strrchr(text, ')');
    return end == NULL || end[2] == 'S';
}

/* A thread that a callback starts.  The thread sets `number` first and `has_returned` last. */
struct child_case_thread {
    atomic_int number; /* the result of gettid() */
    atomic_bool has_returned;
};

/* Wait until a thread has returned, or sleeps for 100 ms because it waits for the callback. */
static inline void child_case_wait_for_thread(struct child_case_thread *thread)
{
    char name[16];

    for (int asleep = 0; !atomic_load(&thread->has_returned) && asleep < 100;) {
        const int number = atomic_load(&thread->number);

        child_case_pause_ms(1);
        (void)snprintf(name, sizeof(name), "%d", number);
        asleep = number != 0 && child_case_thread_sleeps(getpid(), name) ? asleep + 1 : 0;
    }
}

static inline bool child_case_process_sleeps(pid_t process)
{
    struct dirent *entry;
    bool sleeps = true;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
    DIR *folder = opendir(path);
    while (folder != NULL && sleeps && (entry = readdir(folder)) != NULL)
        sleeps = entry->d_name[0] == '.' || child_case_thread_sleeps(process, entry->d_name);
    if (folder != NULL)
        (void)closedir(folder);
    return sleeps;
}

/* Wait for a child.  Returns the error, or NULL if the child exits with 0. */
static inline const char *child_case_wait(pid_t child)
{
    enum { POLL_MS = 10 };
    static char text[64];
    int status = 0, asleep_ms = 0;
    const time_t deadline = time(NULL) + CHILD_CASE_MAX_S;

    while (waitpid(child, &status, WNOHANG) == 0) {
        child_case_pause_ms(POLL_MS);
        asleep_ms = child_case_process_sleeps(child) ? asleep_ms + POLL_MS : 0;
        if (asleep_ms < CHILD_CASE_SLEEP_MS && time(NULL) < deadline)
            continue;
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        return asleep_ms < CHILD_CASE_SLEEP_MS ? "did not end" : "deadlock: all threads sleep";
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NULL;
    (void)snprintf(text, sizeof(text),
                   WIFSIGNALED(status) ? "ended by signal %d" : "exited with %d",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return text;
}

static inline void child_case_run_in_child(void **state)
{
    const struct child_case *test = *state;

    test->run(test->argument);
}

/* Run a test in a child.  Returns the error, or NULL; `output` receives the output of the child. */
static inline const char *child_case_run(const struct child_case *test, FILE *output)
{
    const struct rlimit no_core_file = {0, 0};
    const struct CMUnitTest unit_test = {test->name, child_case_run_in_child, NULL, NULL,
                                         (void *)(uintptr_t)test};

    atomic_store(child_case_has_begun, false);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &no_core_file);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(fileno(output), STDOUT_FILENO);
        (void)dup2(fileno(output), STDERR_FILENO);
        const int failed = _cmocka_run_group_tests("case", &unit_test, 1, NULL, NULL);
        (void)fflush(NULL);
        exit(failed != 0); /* not _exit(): sanitizers report leaks at exit */
    }
    return child < 0 ? "fork" : child_case_wait(child);
}

static inline void child_case_test(void **state)
{
    const struct child_case *test = *state;
    FILE *output = tmpfile();
    char line[512];

    assert_non_null(output);
    const char *error = child_case_run(test, output);
    rewind(output);
    while (error != NULL && fgets(line, sizeof(line), output) != NULL)
        print_error("%s", line);
    (void)fclose(output);
    if (error != NULL)
        fail_msg("%s: %s%s", test->name, error,
                 atomic_load(child_case_has_begun) ? "" : ", during the setup");
}

/* The main function of a program that runs each test in a child. */
static inline int child_case_main(int argc, char **argv, const struct child_case *cases,
                                  size_t count)
{
    const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : NULL;
    struct CMUnitTest *tests = calloc(count, sizeof(*tests));
    size_t selected = 0;

    child_case_has_begun =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tests == NULL || child_case_has_begun == MAP_FAILED)
        return CHILD_CASE_SETUP_FAILED;
    for (size_t i = 0; i < count; i++)
        if (only == NULL || strcmp(cases[i].name, only) == 0)
            tests[selected++] = (struct CMUnitTest){cases[i].name, child_case_test, NULL, NULL,
                                                    (void *)(uintptr_t)&cases[i]};
    if (selected == 0 || (argc > 1 && only == NULL))
        return CHILD_CASE_SETUP_FAILED;
    const int failed = _cmocka_run_group_tests("cases", tests, selected, NULL, NULL);
    free(tests);
    return failed;
}

#endif
