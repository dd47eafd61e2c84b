/* SPDX-License-Identifier: MIT */
/*
 * The journal of a section: results, counts and the last operations.
 *
 * A result is a line of section, subject, count, status and detail, separated by tabs.  It is written immediately, so
 * it is not lost if the process ends.  Status:
 *     ok        as expected
 *     note      a value without an expectation
 *     wrong     an error, which the step lists
 *     skipped   the reason why a property could not be verified
 *
 * A ring keeps the last twenty operations of all threads; errors are printed with them.
 *
 * Thread safety: any thread.
 */
#ifndef XSEG_TESTS_GPU_CONTENTS_JOURNAL_H
#define XSEG_TESTS_GPU_CONTENTS_JOURNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "xseg/status.h"

/* The enumerator, and the subject of a line. */
#define JOURNAL_COUNTS(X)                        \
    X(OPERATIONS, "operations")                  \
    X(BLOCKS, "blocks")                          \
    X(WRITTEN, "bytes_written")                  \
    X(CHECKED, "bytes_checked")                  \
    X(KERNELS, "kernels")                        \
    X(MISMATCHES, "mismatches")                  \
    X(REJECTED, "requests_refused_at_the_limit") \
    X(BUSY_FREES, "frees_under_running_work")    \
    X(BUSY_TRIMS, "trims_under_running_work")

/* The exit status of a section that cannot run on this host. */
#define JOURNAL_SKIPPED 77

enum journal_count {
#define X(name, text) COUNT_##name,
    JOURNAL_COUNTS(X)
#undef X
        COUNT_KINDS
};

extern atomic_uint_fast64_t journal_counts[COUNT_KINDS];

static inline void journal_count(enum journal_count kind, uint64_t amount)
{
    atomic_fetch_add_explicit(&journal_counts[kind], amount, memory_order_relaxed);
}

/* Begin a section: its name, the command that repeats it, and its timeout in seconds. */
void journal_open(const char *section, const char *repeat, unsigned timeout_seconds);

/* End the section. Prints the counts. Returns the exit status. */
int journal_close(void);

/* 0 if no error was found so far, else 1. */
int journal_exit(void);

__attribute__((format(printf, 1, 2))) void journal_operation(const char *format, ...);

/* A result other than an error. */
__attribute__((format(printf, 4, 5))) void
journal_result(const char *subject, uint64_t count, const char *status, const char *format, ...);

/* An error: printed with the last operations and the command that repeats the run. The tenth error ends the section. */
__attribute__((format(printf, 1, 2))) void journal_error(const char *format, ...);

/* As journal_error() for an error after which the section cannot continue: the process ends. */
__attribute__((format(printf, 1, 2), noreturn)) void journal_stop(const char *format, ...);

/* The section cannot run on this host: the process ends. */
__attribute__((format(printf, 1, 2), noreturn)) void journal_skip(const char *format, ...);

/* End the process unless a call of the library succeeded. */
void journal_status(xseg_status status, const char *call);
#define XSEG(name, ...) journal_status(xseg_##name(__VA_ARGS__), "xseg_" #name)

#endif
