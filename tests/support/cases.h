/* SPDX-License-Identifier: MIT */
/*
 * Cases that run in a child process each, because a broken promise may end the process or block it.
 *
 *     test-api-NAME              runs all cases
 *     test-api-NAME --only CASE  runs one
 *
 * A child whose threads all sleep for SLEEP_MS has a deadlock: no case sleeps or waits for time.  That holds on a
 * loaded machine as well, where a thread that waits for a processor is not asleep.
 */
#ifndef XSEG_TESTS_CASES_H
#define XSEG_TESTS_CASES_H

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

struct cases_case {
    const char *name;
    void (*run)(const void *argument);
    const void *argument;
};

enum { CASES_SLEEP_MS = 3000, CASES_MOST_S = 200, CASES_SETUP_FAILED = 99 };

/* Shared with the child: whether its set-up is over. */
static atomic_bool *cases_has_begun;

/* The set-up is over: what fails from here on breaks a promise. */
static inline void cases_begin(void)
{
    atomic_store(cases_has_begun, true);
}

static inline void cases_pause_ms(long milliseconds)
{
    const struct timespec time = {0, milliseconds * 1000000};

    (void)nanosleep(&time, NULL);
}

/* Whether a thread of a process is asleep; a thread that has ended is. */
static inline bool cases_thread_sleeps(pid_t process, const char *thread)
{
    char path[320], text[512] = "";
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)process, thread);
    file = fopen(path, "re");
    if (file == NULL)
        return true;
    (void)!fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    const char *end = strrchr(text, ')');
    return end == NULL || end[2] == 'S';
}

/* A thread that a callback starts.  It sets `number` first and `has_returned` last. */
struct cases_thread {
    atomic_int number; /* of gettid() */
    atomic_bool has_returned;
};

/* Wait until a thread has returned, or sleeps, so waits for the callback. */
static inline void cases_wait_for(struct cases_thread *thread)
{
    char name[16];

    for (int asleep = 0; !atomic_load(&thread->has_returned) && asleep < 100;) {
        const int number = atomic_load(&thread->number);

        cases_pause_ms(1);
        (void)snprintf(name, sizeof(name), "%d", number);
        asleep = number != 0 && cases_thread_sleeps(getpid(), name) ? asleep + 1 : 0;
    }
}

static inline bool cases_process_sleeps(pid_t process)
{
    struct dirent *entry;
    bool sleeps = true;
    char path[64];
    DIR *folder;

    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
    folder = opendir(path);
    while (folder != NULL && sleeps && (entry = readdir(folder)) != NULL)
        sleeps = entry->d_name[0] == '.' || cases_thread_sleeps(process, entry->d_name);
    if (folder != NULL)
        (void)closedir(folder);
    return sleeps;
}

/* Wait for a child.  Returns: what is wrong with its end; NULL: nothing is */
static inline const char *cases_wait(pid_t child)
{
    static char text[64];
    int status = 0, asleep = 0;
    const time_t last = time(NULL) + CASES_MOST_S;

    while (waitpid(child, &status, WNOHANG) == 0) {
        cases_pause_ms(10);
        asleep = cases_process_sleeps(child) ? asleep + 1 : 0;
        if (asleep * 10 < CASES_SLEEP_MS && time(NULL) < last)
            continue;
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        return asleep * 10 < CASES_SLEEP_MS ? "did not end" : "deadlock: all threads sleep";
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return NULL;
    (void)snprintf(text, sizeof(text),
                   WIFSIGNALED(status) ? "ended by signal %d" : "exited with %d",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return text;
}

static inline void cases_run_here(void **state)
{
    const struct cases_case *one = *state;

    one->run(one->argument);
}

/* Run a case in a child.  Returns: what is wrong, or NULL; what the child says is in `said` */
static inline const char *cases_run_apart(const struct cases_case *one, FILE *said)
{
    const struct rlimit none = {0, 0};
    const struct CMUnitTest test = {one->name, cases_run_here, NULL, NULL, (void *)(uintptr_t)one};

    atomic_store(cases_has_begun, false);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(fileno(said), STDOUT_FILENO);
        (void)dup2(fileno(said), STDERR_FILENO);
        const int failed = _cmocka_run_group_tests("case", &test, 1, NULL, NULL);
        (void)fflush(NULL);
        exit(failed != 0); /* which sanitizers have a part in */
    }
    return child < 0 ? "fork" : cases_wait(child);
}

static inline void cases_test(void **state)
{
    const struct cases_case *one = *state;
    FILE *said = tmpfile();
    char line[512];

    assert_non_null(said);
    const char *wrong = cases_run_apart(one, said);
    rewind(said);
    while (wrong != NULL && fgets(line, sizeof(line), said) != NULL)
        print_error("%s", line);
    (void)fclose(said);
    if (wrong != NULL)
        fail_msg("%s: %s%s", one->name, wrong,
                 atomic_load(cases_has_begun) ? "" : ", before the promise was tried");
}

/* The main function of such a program. */
static inline int cases_main(int argc, char **argv, const struct cases_case *cases, size_t count)
{
    const char *only = argc == 3 && strcmp(argv[1], "--only") == 0 ? argv[2] : NULL;
    struct CMUnitTest *tests = calloc(count, sizeof(*tests));
    size_t chosen = 0;

    cases_has_begun = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tests == NULL || cases_has_begun == MAP_FAILED)
        return CASES_SETUP_FAILED;
    for (size_t i = 0; i < count; i++)
        if (only == NULL || strcmp(cases[i].name, only) == 0)
            tests[chosen++] = (struct CMUnitTest){cases[i].name, cases_test, NULL, NULL,
                                                  (void *)(uintptr_t)&cases[i]};
    if (chosen == 0 || (argc > 1 && only == NULL))
        return CASES_SETUP_FAILED;
    const int failed = _cmocka_run_group_tests("cases", tests, chosen, NULL, NULL);
    free(tests);
    return failed;
}

#endif
