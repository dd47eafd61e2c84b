/* SPDX-License-Identifier: MIT */
/*
 * Error messages of the calling thread, and log lines.
 *
 * A message has the form `<operation>: <what failed>, <value>; <what to do>`.  The operation is the public function that
 * the thread executes; its entry point sets it once by XSEG_OPERATION().  xseg_fail() stores the *detail*, which is the text
 * after the operation.  A caller that composes a message or a log line from another message uses its detail, so the operation
 * occurs once.
 *
 * Message and operation are thread-local, in fixed buffers: setting a message needs neither a lock nor host memory.  A
 * log line is passed to the caller's sink; no lock of the library is held.  In messages and log lines, bytes that are not
 * printable ASCII, which only strings of the user contain, are replaced by \xNN.
 */
#ifndef XSEG_BASE_ERROR_H
#define XSEG_BASE_ERROR_H

#include "src/base/string_util.h"
#include "xseg/allocator.h"
#include "xseg/status.h"

/*
 * Set the error message, and return the status: `return xseg_fail(XSEG_ERR_..., "...")`.
 * All failures pass through this function, so it is the place for a breakpoint.
 */
xseg_status xseg_fail(xseg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Append to the detail. */
void xseg_fail_append(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The detail, terminated. */
const char *xseg_fail_detail(void);

enum { XSEG_FAIL_BYTES = 1024 + 48 }; /* of a message: a detail and the name of a public function */

/* Append the whole message; nothing if no call of this thread has failed. */
void xseg_fail_print(struct xseg_strbuf *text);

/* A message that is saved while functions are called that can fail. */
struct xseg_fail_saved {
    const char *operation;
    char detail[1024];
};

void xseg_fail_save(struct xseg_fail_saved *saved);
void xseg_fail_restore(const struct xseg_fail_saved *saved);

/* Set the operation of the calling thread; NULL: none.  Returns the previous operation. */
const char *xseg_operation_set(const char *name);

static inline void xseg_operation_restore(const char *const *outer)
{
    (void)xseg_operation_set(*outer);
}

/* Set the operation until the end of the scope.  A callback can call a public function, so operations nest. */
#define XSEG_OPERATION(name)               \
    const char *const xseg_outer_operation \
        __attribute__((cleanup(xseg_operation_restore), unused)) = xseg_operation_set(name)

/* The user's sink for log lines; NULL writes warnings and errors to standard error. */
struct xseg_log {
    void (*sink)(void *context, enum xseg_log_level level, const char *line);
    void *context;
};

/* Log a line: errors and warnings for each event, information once per allocator or device.  The caller holds no lock. */
void xseg_log_line(const struct xseg_log *log, enum xseg_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
