/* SPDX-License-Identifier: MIT */
#include "src/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"

static _Thread_local const char *operation;        /* of the public function in progress */
static _Thread_local const char *failed_operation; /* of the message */
static _Thread_local char detail_bytes[1024];
static _Thread_local struct xseg_strbuf detail;

_Static_assert(sizeof(((struct xseg_fail_saved *)NULL)->detail) == sizeof(detail_bytes),
               "a saved message is complete");

const char *xseg_operation_set(const char *name)
{
    const char *outer = operation;

    operation = name;
    return outer;
}

static void append_detail(const char *format, va_list arguments)
{
    const size_t offset = detail.length;

    xseg_strbuf_vprintf(&detail, format, arguments);
    xseg_strbuf_escape(&detail, offset);
}

__attribute__((noinline)) xseg_status xseg_fail(xseg_status status, const char *format, ...)
{
    va_list arguments;

    failed_operation = operation;
    xseg_strbuf_init(&detail, detail_bytes, sizeof(detail_bytes));
    va_start(arguments, format);
    append_detail(format, arguments);
    va_end(arguments);
    return status;
}

void xseg_fail_append(const char *format, ...)
{
    va_list arguments;

    if (detail.buffer == NULL)
        xseg_strbuf_init(&detail, detail_bytes, sizeof(detail_bytes));
    va_start(arguments, format);
    append_detail(format, arguments);
    va_end(arguments);
}

const char *xseg_fail_detail(void)
{
    return detail_bytes;
}

void xseg_fail_print(struct xseg_strbuf *text)
{
    if (detail.length > 0 && failed_operation != NULL)
        xseg_strbuf_printf(text, "%s: ", failed_operation);
    if (detail.length > 0)
        xseg_strbuf_printf(text, "%s", detail_bytes);
}

void xseg_fail_save(struct xseg_fail_saved *saved)
{
    saved->operation = failed_operation;
    memcpy(saved->detail, detail_bytes, sizeof(saved->detail));
}

void xseg_fail_restore(const struct xseg_fail_saved *saved)
{
    failed_operation = saved->operation;
    xseg_strbuf_init(&detail, detail_bytes, sizeof(detail_bytes));
    xseg_strbuf_printf(&detail, "%s", saved->detail);
}

void xseg_log_line(const struct xseg_log *log, enum xseg_log_level level, const char *format, ...)
{
    char buffer[1024];
    struct xseg_strbuf line;
    va_list arguments;

    xseg_strbuf_init(&line, buffer, sizeof(buffer));
    va_start(arguments, format);
    xseg_strbuf_vprintf(&line, format, arguments);
    va_end(arguments);
    xseg_strbuf_escape(&line, 0);
    if (log->sink != NULL)
        log->sink(log->context, level, buffer);
    else if (level != XSEG_LOG_INFO)
        (void)fprintf(stderr, "xseg: %s\n", buffer);
}

_Noreturn void xseg_panic(const char *file, int line, const char *check, const char *message)
{
    (void)fprintf(stderr, "xseg: %s:%d: check failed: %s %s\n", file, line, check, message);
    abort();
}
