/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/ask.h"

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

/* --- The process that asks: lines of fields with tabs between, the first of which says what it is. --- */

#define PROBLEM "problem"
#define ASKING  "asking"
#define LEFT    "left"

int ask_here(const struct asking *asking)
{
    size_t number;
    bool is_clean = true;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    child_begin(asking->open);
    const char *problem = driver_open();
    if (problem == NULL)
        problem = driver_enter();
    if (problem != NULL)
        (void)printf(PROBLEM "\t%s\n", problem);
    for (number = asking->first; number < fact_count() && is_clean; number++) {
        const struct fact *fact = fact_at(number);
        struct outcome outcome;

        if (asking->until > 0 && microseconds() > asking->until)
            break;
        (void)printf(ASKING "\t%s\n", fact->id);
        (void)alarm(asking->limit);
        fact_ask(fact, &outcome);
        (void)printf("%s\t%d\t%s\t%.2f\t%s\n", fact->id, (int)outcome.verdict, outcome.answer,
                     outcome.milliseconds, outcome.where);
        /* A fact that was not begun has left nothing either. */
        is_clean = outcome.is_clean;
    }
    (void)alarm(asking->limit);
    if (is_clean && problem == NULL && !driver_leave())
        (void)printf(LEFT "\n");
    /* The driver's exit handlers may hang after an error. */
    _exit(0);
}

/* --- The process that waits. --- */

struct process {
    pid_t id;
    int said;
    char text[4096]; /* output that was not read yet */
    size_t held;
};

static bool start(struct process *process, const struct asking *asking, size_t first)
{
    extern char **environ;
    char self[] = "/proc/self/exe", ask[] = "--ask", id[32], limit[16], open[16], until[32];
    char *arguments[] = {self, ask, id, limit, open, until, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];

    (void)snprintf(id, sizeof(id), "%s", fact_at(first)->id);
    (void)snprintf(limit, sizeof(limit), "%u", asking->limit);
    (void)snprintf(open, sizeof(open), "%u", asking->open);
    (void)snprintf(until, sizeof(until), "%.0f", asking->until);
    process->held = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const bool is_started =
        posix_spawn_file_actions_init(&actions) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO) == 0 &&
        posix_spawn(&process->id, self, &actions, NULL, arguments, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    process->said = ends[0];
    return is_started;
}

/* Returns 1 with a line, which is terminated by a zero; 0 at the end of all lines; -1: no line in time. */
static int next_line(struct process *process, char *line, size_t bytes, unsigned seconds)
{
    struct pollfd wait = {.fd = process->said, .events = POLLIN};
    ssize_t got;
    char *end;

    for (;;) {
        end = memchr(process->text, '\n', process->held);
        if (end != NULL) {
            *end++ = '\0';
            (void)snprintf(line, bytes, "%.*s", (int)bytes - 1, process->text);
            process->held -= (size_t)(end - process->text);
            memmove(process->text, end, process->held);
            return 1;
        }
        if (process->held == sizeof(process->text))
            return 0;
        if (poll(&wait, 1, (int)seconds * 1000) == 0)
            return -1;
        got = read(process->said, process->text + process->held,
                   sizeof(process->text) - process->held);
        if (got <= 0)
            return 0;
        process->held += (size_t)got;
    }
}

/* Returns its status from waitpid(); -1 if it does not exit even when killed, and is abandoned. */
static int end_of(struct process *process, bool is_late)
{
    int status = 0;

    (void)close(process->said);
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
        (void)snprintf(outcome->answer, sizeof(outcome->answer), "it did not end within %u s%s",
                       limit, status < 0 ? ", and its process cannot be ended" : "");
    } else if (is_signal) {
        (void)snprintf(outcome->answer, sizeof(outcome->answer),
                       "the process was ended by signal %d, %s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    } else {
        (void)snprintf(outcome->answer, sizeof(outcome->answer),
                       "the process ended itself with status %d", WEXITSTATUS(status));
    }
}

/* Parse the fields of an outcome, after its id. */
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

/* Read the output of one process. Returns the index of the fact to continue with; unchanged if it never began one. */
static size_t hear(const struct asking *asking, struct process *process, size_t number,
                   struct asked *asked)
{
    char line[1024], *rest;
    bool is_asking = false;
    struct outcome outcome;
    unsigned wait = asking->open + SECONDS_LATE;
    int got;

    while ((got = next_line(process, line, sizeof(line), wait)) == 1) {
        rest = line;
        const char *what = strsep(&rest, "\t");

        wait = asking->limit + SECONDS_LATE;
        if (strcmp(what, PROBLEM) == 0 && rest != NULL) {
            (void)snprintf(asked->problem, sizeof(asked->problem), "%s", rest);
        } else if (strcmp(what, ASKING) == 0) {
            is_asking = true;
        } else if (strcmp(what, LEFT) == 0) {
            asked->leaves_nothing = false;
        } else if (is_asking && rest != NULL && read_outcome(rest, &outcome)) {
            asking->report(number++, &outcome);
            is_asking = false;
        }
    }
    const int status = end_of(process, got < 0);
    if (is_asking) {
        judge(&outcome, status, got < 0, asking->limit);
        asking->report(number++, &outcome);
    } else if (status != 0 && asked->problem[0] == '\0') {
        judge(&outcome, status, got < 0, asking->open);
        (void)snprintf(asked->problem, sizeof(asked->problem),
                       "the driver cannot be opened: %.300s", outcome.answer);
    }
    return number;
}

static void skip_rest(const struct asking *asking, size_t number, const char *why)
{
    struct outcome outcome = {.verdict = SKIPPED};

    (void)snprintf(outcome.answer, sizeof(outcome.answer), "%s", why);
    for (; number < fact_count(); number++)
        asking->report(number, &outcome);
}

void ask_all(const struct asking *asking, struct asked *asked)
{
    size_t number = asking->first;
    char why[100];

    *asked = (struct asked){.leaves_nothing = true};
    while (number < fact_count()) {
        struct process process;
        const size_t before = number;

        if (asking->until > 0 && microseconds() > asking->until) {
            (void)snprintf(why, sizeof(why), "there was no time left: three quarters of %u s",
                           asking->seconds);
            skip_rest(asking, number, why);
            return;
        }
        if (start(&process, asking, number))
            number = hear(asking, &process, number, asked);
        else
            (void)snprintf(asked->problem, sizeof(asked->problem), "no process can be started");
        if (number == before && (asking->until == 0 || microseconds() <= asking->until)) {
            skip_rest(asking, number,
                      asked->problem[0] != '\0' ? asked->problem : "the process that asks ended");
            return;
        }
    }
}
