/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/verify.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/facts/child.h"
#include "tests/gpu/facts/driver.h"

/* Seconds after its alarm at which a process is killed, and seconds to wait for its exit. */
#define GRACE_SECONDS 3u
#define EXIT_SECONDS  5u

/* --- The child: prints lines of fields that are separated by tabs.  The first field is the kind of the line, or an ID. --- */

#define PROBLEM "problem"
#define BEGUN   "begun"
#define LEAKED  "leaked"

int verify_in_child(const struct verify_options *options)
{
    size_t index;
    bool is_clean = true;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    child_begin(options->open_limit);
    const char *problem = driver_open();
    if (problem == NULL)
        problem = driver_enter();
    if (problem != NULL)
        (void)printf(PROBLEM "\t%s\n", problem);
    for (index = options->first; index < fact_count() && is_clean; index++) {
        const struct fact *fact = fact_at(index);
        struct outcome outcome;

        if (options->deadline > 0 && microseconds() > options->deadline)
            break;
        (void)printf(BEGUN "\t%s\n", fact->id);
        (void)alarm(options->limit);
        fact_verify(fact, &outcome);
        (void)printf("%s\t%d\t%s\t%.2f\t%s\n", fact->id, (int)outcome.verdict, outcome.answer,
                     outcome.milliseconds, outcome.position);
        is_clean = outcome.is_clean;
    }
    (void)alarm(options->limit);
    if (is_clean && problem == NULL && !driver_leave())
        (void)printf(LEAKED "\n");
    /* The driver's exit handlers may hang after an error. */
    _exit(0);
}

/* --- The parent. --- */

struct process {
    pid_t pid;
    int output;
    char buffer[4096]; /* output that has been read, but not parsed */
    size_t bytes;
};

static bool start_child(struct process *process, const struct verify_options *options, size_t first)
{
    extern char **environ;
    char self[] = "/proc/self/exe", verify[] = "--verify", id[32], limit[16], open_limit[16],
         deadline[32];
    char *arguments[] = {self, verify, id, limit, open_limit, deadline, NULL};
    posix_spawn_file_actions_t actions;
    int pipe_fds[2];

    (void)snprintf(id, sizeof(id), "%s", fact_at(first)->id);
    (void)snprintf(limit, sizeof(limit), "%u", options->limit);
    (void)snprintf(open_limit, sizeof(open_limit), "%u", options->open_limit);
    (void)snprintf(deadline, sizeof(deadline), "%.0f", options->deadline);
    process->bytes = 0;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return false;
    const bool is_started =
        posix_spawn_file_actions_init(&actions) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO) == 0 &&
        posix_spawn(&process->pid, self, &actions, NULL, arguments, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(pipe_fds[1]);
    process->output = pipe_fds[0];
    return is_started;
}

/* Returns 1 for a zero-terminated line, 0 at the end of the output, or -1 after a timeout. */
static int next_line(struct process *process, char *line, size_t bytes, unsigned timeout)
{
    struct pollfd poll_fd = {.fd = process->output, .events = POLLIN};
    ssize_t count;
    char *end;

    for (;;) {
        end = memchr(process->buffer, '\n', process->bytes);
        if (end != NULL) {
            *end++ = '\0';
            (void)snprintf(line, bytes, "%.*s", (int)bytes - 1, process->buffer);
            process->bytes -= (size_t)(end - process->buffer);
            memmove(process->buffer, end, process->bytes);
            return 1;
        }
        if (process->bytes == sizeof(process->buffer))
            return 0;
        if (poll(&poll_fd, 1, (int)timeout * 1000) == 0)
            return -1;
        count = read(process->output, process->buffer + process->bytes,
                     sizeof(process->buffer) - process->bytes);
        if (count <= 0)
            return 0;
        process->bytes += (size_t)count;
    }
}

/* Returns the status from waitpid(), or -1 if the process does not exit even after SIGKILL, and is abandoned. */
static int wait_for_exit(struct process *process, bool has_timed_out)
{
    int status = 0;

    (void)close(process->output);
    if (has_timed_out)
        (void)kill(process->pid, SIGKILL);
    for (unsigned i = 0; i < EXIT_SECONDS * 100; i++) {
        if (waitpid(process->pid, &status, WNOHANG) == process->pid)
            return status;
        (void)usleep(10000);
    }
    (void)kill(process->pid, SIGKILL);
    return -1;
}

/* Sets the outcome of the fact during which a process ended. */
static void set_failure(struct outcome *outcome, int status, bool has_timed_out, unsigned limit)
{
    const bool is_signal = status >= 0 && WIFSIGNALED(status);

    *outcome = (struct outcome){.verdict = CRASHED};
    if (has_timed_out || status < 0 || (is_signal && WTERMSIG(status) == SIGALRM)) {
        outcome->verdict = HUNG;
        outcome->milliseconds = limit * 1e3;
        (void)snprintf(outcome->answer, sizeof(outcome->answer), "no result within %u s%s", limit,
                       status < 0 ? ", and the process cannot be killed" : "");
    } else if (is_signal) {
        (void)snprintf(outcome->answer, sizeof(outcome->answer), "signal %d ended the process, %s",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        (void)snprintf(outcome->answer, sizeof(outcome->answer),
                       "the process exited with status %d", WEXITSTATUS(status));
    }
}

/* Parses the fields of an outcome after the ID. */
static bool read_outcome(char *fields, struct outcome *outcome)
{
    const char *verdict = strsep(&fields, "\t"), *answer = strsep(&fields, "\t");
    const char *milliseconds = strsep(&fields, "\t");

    if (milliseconds == NULL || fields == NULL)
        return false;
    *outcome = (struct outcome){.verdict = (enum verdict)atoi(verdict),
                                .milliseconds = strtod(milliseconds, NULL)};
    (void)snprintf(outcome->answer, sizeof(outcome->answer), "%s", answer);
    (void)snprintf(outcome->position, sizeof(outcome->position), "%s", fields);
    return true;
}

/* Reads the output of a process. Returns the index of the next fact; it is unchanged if the process began no check. */
static size_t read_outcomes(const struct verify_options *options, struct process *process,
                            size_t index, struct verify_result *result)
{
    char line[1024], *fields;
    bool has_begun = false;
    struct outcome outcome;
    unsigned timeout = options->open_limit + GRACE_SECONDS;
    int has_line;

    while ((has_line = next_line(process, line, sizeof(line), timeout)) == 1) {
        fields = line;
        const char *kind = strsep(&fields, "\t");

        timeout = options->limit + GRACE_SECONDS;
        if (strcmp(kind, PROBLEM) == 0 && fields != NULL) {
            (void)snprintf(result->problem, sizeof(result->problem), "%s", fields);
        } else if (strcmp(kind, BEGUN) == 0) {
            has_begun = true;
        } else if (strcmp(kind, LEAKED) == 0) {
            result->has_leaked = true;
        } else if (has_begun && fields != NULL && read_outcome(fields, &outcome)) {
            options->report(index++, &outcome);
            has_begun = false;
        }
    }
    const int status = wait_for_exit(process, has_line < 0);
    if (has_begun) {
        set_failure(&outcome, status, has_line < 0, options->limit);
        options->report(index++, &outcome);
    } else if (status != 0 && result->problem[0] == '\0') {
        set_failure(&outcome, status, has_line < 0, options->open_limit);
        (void)snprintf(result->problem, sizeof(result->problem),
                       "the driver cannot be opened: %.300s", outcome.answer);
    }
    return index;
}

static void skip_remaining(const struct verify_options *options, size_t index, const char *reason)
{
    struct outcome outcome = {.verdict = SKIPPED};

    (void)snprintf(outcome.answer, sizeof(outcome.answer), "%s", reason);
    for (; index < fact_count(); index++)
        options->report(index, &outcome);
}

void verify_all(const struct verify_options *options, struct verify_result *result)
{
    size_t index = options->first;
    char reason[100];

    *result = (struct verify_result){.problem = ""};
    while (index < fact_count()) {
        struct process process;
        const size_t first_index = index;

        if (options->deadline > 0 && microseconds() > options->deadline) {
            (void)snprintf(reason, sizeof(reason), "no time left: three quarters of %u s",
                           options->seconds);
            skip_remaining(options, index, reason);
            return;
        }
        if (start_child(&process, options, index))
            index = read_outcomes(options, &process, index, result);
        else
            (void)snprintf(result->problem, sizeof(result->problem), "cannot start a process");
        if (index == first_index &&
            (options->deadline == 0 || microseconds() <= options->deadline)) {
            skip_remaining(options, index,
                           result->problem[0] != '\0' ? result->problem
                                                      : "the checking process ended");
            return;
        }
    }
}
