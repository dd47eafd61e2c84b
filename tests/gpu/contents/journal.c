/* SPDX-License-Identifier: MIT */
#include "tests/gpu/contents/journal.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPERATIONS      20u
#define OPERATION_BYTES 120
#define MAX_ERRORS      10

atomic_uint_fast64_t journal_counts[COUNT_KINDS];

static const char *const count_names[] = {
#define X(name, text) text,
    JOURNAL_COUNTS(X)
#undef X
};

static struct {
    pthread_mutex_t lock; /* guards the operations, the errors, and standard output */
    const char *section, *repeat;
    char operation[OPERATIONS][OPERATION_BYTES]; /* operation n at n % OPERATIONS */
    unsigned operations;
    unsigned errors;
} journal = {.lock = PTHREAD_MUTEX_INITIALIZER, .section = "", .repeat = ""};

/* The output of a signal handler. It is written by one call, because other threads print lines as well. */
static struct {
    char text[4000]; /* less than PIPE_BUF */
    size_t length;
} signal_output;

/* A signal may interrupt any code, so only async-signal-safe functions are used. */
static void add_text(const char *text)
{
    while (*text != '\0' && signal_output.length < sizeof(signal_output.text))
        signal_output.text[signal_output.length++] = *text++;
}

static void write_signal_output(void)
{
    size_t written = 0;

    while (written < signal_output.length) {
        const ssize_t done =
            write(STDOUT_FILENO, signal_output.text + written, signal_output.length - written);

        if (done <= 0)
            return;
        written += (size_t)done;
    }
}

/* A second signal, such as that of timeout(1), can interrupt only another thread, which then waits for the output of the
 * first handler. */
static void handle_fatal_signal(int signal_number)
{
    static atomic_flag is_handled = ATOMIC_FLAG_INIT;

    while (atomic_flag_test_and_set(&is_handled))
        (void)pause();
    add_text(journal.section);
    add_text(signal_number == SIGALRM ? "\thangs\t1\twrong\ttimeout of the section"
                                      : "\tcrashes\t1\twrong\tthe process crashed");
    add_text("; last operations:");
    for (unsigned i = 0; i < OPERATIONS; i++) {
        const char *operation = journal.operation[(journal.operations + i) % OPERATIONS];

        if (*operation != '\0') {
            add_text(" ");
            add_text(operation);
            add_text(";");
        }
    }
    add_text(" repeat with: ");
    add_text(journal.repeat);
    add_text("\n");
    write_signal_output();
    if (signal_number == SIGALRM)
        _exit(1);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number); /* ends the process when the handler returns */
}

/* Keeps the handler of a sanitizer, which prints more. */
static void install_handler(int signal_number)
{
    struct sigaction previous, action = {.sa_handler = handle_fatal_signal};

    (void)sigfillset(&action.sa_mask);
    if (sigaction(signal_number, NULL, &previous) == 0 && previous.sa_handler == SIG_DFL)
        (void)sigaction(signal_number, &action, NULL);
}

void journal_open(const char *section, const char *repeat, unsigned timeout_seconds)
{
    journal.section = section;
    journal.repeat = repeat;
    install_handler(SIGALRM);
    install_handler(SIGABRT);
    install_handler(SIGBUS);
    install_handler(SIGSEGV);
    (void)alarm(timeout_seconds);
}

static void print_field(const char *text)
{
    for (; *text != '\0'; text++)
        (void)putchar(*text == '\t' || *text == '\n' ? ' ' : *text);
}

/* The caller holds the lock. */
static void print_line(const char *subject, uint64_t count, const char *status, const char *detail)
{
    (void)printf("%s\t%s\t%" PRIu64 "\t%s\t", journal.section, subject, count, status);
    print_field(detail);
}

static void end_line(void)
{
    (void)putchar('\n');
    (void)fflush(stdout);
}

void journal_operation(const char *format, ...)
{
    char text[OPERATION_BYTES];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    journal_count(COUNT_OPERATIONS, 1);
    (void)pthread_mutex_lock(&journal.lock);
    memcpy(journal.operation[journal.operations % OPERATIONS], text, sizeof(text));
    journal.operations++;
    (void)pthread_mutex_unlock(&journal.lock);
}

void journal_result(const char *subject, uint64_t count, const char *status, const char *format,
                    ...)
{
    char detail[512];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(detail, sizeof(detail), format, arguments);
    va_end(arguments);
    (void)pthread_mutex_lock(&journal.lock);
    print_line(subject, count, status, detail);
    end_line();
    (void)pthread_mutex_unlock(&journal.lock);
}

static unsigned report_error(const char *subject, const char *format, va_list arguments)
{
    char detail[1024];
    unsigned errors;

    (void)vsnprintf(detail, sizeof(detail), format, arguments);
    (void)pthread_mutex_lock(&journal.lock);
    errors = ++journal.errors;
    print_line(subject, 1, "wrong", detail);
    (void)printf("; last operations:");
    for (unsigned i = 0; i < OPERATIONS; i++) {
        const char *operation = journal.operation[(journal.operations + i) % OPERATIONS];

        if (*operation != '\0') {
            (void)putchar(' ');
            print_field(operation);
            (void)putchar(';');
        }
    }
    (void)printf(" repeat with: %s", journal.repeat);
    end_line();
    (void)pthread_mutex_unlock(&journal.lock);
    return errors;
}

void journal_error(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    const unsigned errors = report_error("wrong", format, arguments);
    va_end(arguments);
    if (errors == MAX_ERRORS)
        journal_stop("%d errors: the section ends", MAX_ERRORS);
}

/* Other threads may be inside the driver, so nothing is released. */
void journal_stop(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)report_error("stopped", format, arguments);
    va_end(arguments);
    _exit(1);
}

void journal_skip(const char *format, ...)
{
    char detail[512];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(detail, sizeof(detail), format, arguments);
    va_end(arguments);
    journal_result("end", 0, "skipped", "%s", detail);
    _exit(JOURNAL_SKIPPED);
}

int journal_close(void)
{
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        journal_result(count_names[kind], journal_counts[kind], "note", "%s", "");
    journal_result("end", journal.errors, journal.errors == 0 ? "ok" : "wrong", "%s",
                   journal.errors == 0 ? "" : "errors were found");
    return journal_exit();
}

int journal_exit(void)
{
    return journal.errors == 0 ? 0 : 1;
}

void journal_status(xseg_status status, const char *call)
{
    char text[400];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    journal_stop("%s returned %d: %s", call, (int)status, text);
}
