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

/* Seconds after its alarm at which a process is abandoned; seconds to wait for its exit. */
#define SECONDS_LATE   3u
#define SECONDS_TO_END 5u

/* --- The child: prints lines of fields that are separated by tabs.  The first field is the kind of the line, or an ID. --- */

#define PROBLEM "problem"
#define BEGUN   "begun"
#define LEAKED  "leaked"

int verify_in_child(const struct verify_options *options)
{
    size_t number;
    bool is_clean = true;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    child_begin(options->open);
    const char *problem = driver_open();
    if (problem == NULL)
        problem = driver_enter();
    if (problem != NULL)
        (void)printf(PROBLEM "\t%s\n", problem);
    for (number = options->first; number < fact_count() && is_clean; number++) {
        const struct fact *fact = fact_at(number);
        struct outcome outcome;

        if (options->until > 0 && microseconds() > options->until)
            break;
        (void)printf(BEGUN "\t%s\n", fact->id);
        (void)alarm(options->limit);
        fact_verify(fact, &outcome);
        (void)printf("%s\t%d\t%s\t%.2f\t%s\n", fact->id, (int)outcome.verdict, outcome.answer,
                     outcome.milliseconds, outcome.where);
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
    pid_t id;
    int output;
    char text[4096]; /* output that has been read, but not parsed */
    size_t bytes;
};

static bool start(struct process *process, const struct verify_options *options, size_t first)
{
    extern char **environ;
    char self[] = "/proc/self/exe", verify[] = "--verify", id[32], limit[16], open[16], until[32];
    char *arguments[] = {self, verify, id, limit, open, until, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];

    (void)snprintf(id, sizeof(id), "%s", fact_at(first)->id);
    (void)snprintf(limit, sizeof(limit), "%u", options->limit);
    (void)snprintf(open, sizeof(open), "%u", options->open);
    (void)snprintf(until, sizeof(until), "%.0f", options->until);
    process->bytes = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const bool is_started =
        posix_spawn_file_actions_init(&actions) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO) == 0 &&
        posix_spawn(&process->id, self, &actions, NULL, arguments, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    process->output = ends[0];
    return is_started;
}

/* Returns 1 for a zero-terminated line, 0 at the end of the output, or -1 after a timeout. */
static int next_line(struct process *process, char *line, size_t bytes, unsigned seconds)
{
    struct pollfd wait = {.fd = process->output, .events = POLLIN};
    ssize_t count;
    char *end;

    for (;;) {
        end = memchr(process->text, '\n', process->bytes);
        if (end != NULL) {
            *end++ = '\0';
            (void)snprintf(line, bytes, "%.*s", (int)bytes - 1, process->text);
            process->bytes -= (size_t)(end - process->text);
            memmove(process->text, end, process->bytes);
            return 1;
        }
        if (process->bytes == sizeof(process->text))
            return 0;
        if (poll(&wait, 1, (int)seconds * 1000) == 0)
            return -1;
        count = read(process->output, process->text + process->bytes,
                     sizeof(process->text) - process->bytes);
        if (count <= 0)
            return 0;
        process->bytes += (size_t)count;
    }
}

/* Returns the status from waitpid(), or -1 if the process does not exit even after SIGKILL, and is abandoned. */
static int end_of(struct process *process, bool is_late)
{
    int status = 0;

    (void)close(process->output);
    if (is_late)
        (void)kill(process->id, SIGKILL);
    for (unsigned i = 0; i < SECONDS_TO_END * 100; i++) {
        if (waitpid(process->id, &status, WNOHANG) == process->id)
            return status;
        (void)usleep(10000);
    }
    (void)kill(process->id, SIGKILL);
    return -1;
}

/* The outcome of the fact during which a process ended. */
static void judge(struct outcome *outcome, int status, bool is_late, unsigned limit)
{
    const bool is_signal = status >= 0 && WIFSIGNALED(status);

    *outcome = (struct outcome){.verdict = CRASHED};
    if (is_late || status < 0 || (is_signal && WTERMSIG(status) == SIGALRM)) {
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

/* Parse the fields of an outcome after the ID. */
static bool read_outcome(char *fields, struct outcome *outcome)
{
    const char *verdict = strsep(&fields, "\t"), *answer = strsep(&fields, "\t");
    const char *milliseconds = strsep(&fields, "\t");

    if (milliseconds == NULL || fields == NULL)
        return false;
    *outcome = (struct outcome){.verdict = (enum verdict)atoi(verdict),
                                .milliseconds = strtod(milliseconds, NULL)};
    (void)snprintf(outcome->answer, sizeof(outcome->answer), "%s", answer);
    (void)snprintf(outcome->where, sizeof(outcome->where), "%s", fields);
    return true;
}

/* Read the output of one process. Returns the index of the next fact; unchanged if the process began no check. */
static size_t read_outcomes(const struct verify_options *options, struct process *process,
                            size_t number, struct verify_result *result)
{
    char line[1024], *fields;
    bool has_begun = false;
    struct outcome outcome;
    unsigned wait = options->open + SECONDS_LATE;
    int has_line;

    while ((has_line = next_line(process, line, sizeof(line), wait)) == 1) {
        fields = line;
        const char *kind = strsep(&fields, "\t");

        wait = options->limit + SECONDS_LATE;
        if (strcmp(kind, PROBLEM) == 0 && fields != NULL) {
            (void)snprintf(result->problem, sizeof(result->problem), "%s", fields);
        } else if (strcmp(kind, BEGUN) == 0) {
            has_begun = true;
        } else if (strcmp(kind, LEAKED) == 0) {
            result->has_leaked = true;
        } else if (has_begun && fields != NULL && read_outcome(fields, &outcome)) {
            options->report(number++, &outcome);
            has_begun = false;
        }
    }
    const int status = end_of(process, has_line < 0);
    if (has_begun) {
        judge(&outcome, status, has_line < 0, options->limit);
        options->report(number++, &outcome);
    } else if (status != 0 && result->problem[0] == '\0') {
        judge(&outcome, status, has_line < 0, options->open);
        (void)snprintf(result->problem, sizeof(result->problem),
                       "the driver cannot be opened: %.300s", outcome.answer);
    }
    return number;
}

static void skip_from(const struct verify_options *options, size_t number, const char *reason)
{
    struct outcome outcome = {.verdict = SKIPPED};

    (void)snprintf(outcome.answer, sizeof(outcome.answer), "%s", reason);
    for (; number < fact_count(); number++)
        options->report(number, &outcome);
}

void verify_all(const struct verify_options *options, struct verify_result *result)
{
    size_t number = options->first;
    char reason[100];

    *result = (struct verify_result){.problem = ""};
    while (number < fact_count()) {
        struct process process;
        const size_t before = number;

        if (options->until > 0 && microseconds() > options->until) {
            (void)snprintf(reason, sizeof(reason), "no time left: three quarters of %u s",
                           options->seconds);
            skip_from(options, number, reason);
            return;
        }
        if (start(&process, options, number))
            number = read_outcomes(options, &process, number, result);
        else
            (void)snprintf(result->problem, sizeof(result->problem), "cannot start a process");
        if (number == before && (options->until == 0 || microseconds() <= options->until)) {
            skip_from(options, number,
                      result->problem[0] != '\0' ? result->problem : "the checking process ended");
            return;
        }
    }
}
