/* SPDX-License-Identifier: MIT */
#include "src/base/error.h"

#include <string.h>

static _Thread_local const char *operation;        /* of the public function in progress */
static _Thread_local const char *failed_operation; /* of the message */
static _Thread_local char buffer[1024];
static _Thread_local struct xseg_text detail;

_Static_assert(sizeof(((struct xseg_fail_kept *)NULL)->detail) == sizeof(buffer),
               "a kept message is complete");

const char *xseg_operation_set(const char *name)
{
    const char *outer = operation;

    operation = name;
    return outer;
}

static void append_detail(const char *format, va_list arguments)
{
    const size_t from = detail.length;

    xseg_text_add_list(&detail, format, arguments);
    xseg_text_escape(&detail, from);
}

__attribute__((noinline)) xseg_status xseg_fail(xseg_status status, const char *format, ...)
{
    va_list arguments;

    failed_operation = operation;
    xseg_text_init(&detail, buffer, sizeof(buffer));
    va_start(arguments, format);
    append_detail(format, arguments);
    va_end(arguments);
    return status;
}

void xseg_fail_add(const char *format, ...)
{
    va_list arguments;

    if (detail.buffer == NULL)
        xseg_text_init(&detail, buffer, sizeof(buffer));
    va_start(arguments, format);
    append_detail(format, arguments);
    va_end(arguments);
}

const char *xseg_fail_detail(void)
{
    return buffer;
}

void xseg_fail_print(struct xseg_text *text)
{
    if (detail.length > 0 && failed_operation != NULL)
        xseg_text_add(text, "%s: ", failed_operation);
    if (detail.length > 0)
        xseg_text_add(text, "%s", buffer);
}

void xseg_fail_keep(struct xseg_fail_kept *kept)
{
    kept->operation = failed_operation;
    memcpy(kept->detail, buffer, sizeof(kept->detail));
}

void xseg_fail_restore(const struct xseg_fail_kept *kept)
{
    failed_operation = kept->operation;
    xseg_text_init(&detail, buffer, sizeof(buffer));
    xseg_text_add(&detail, "%s", kept->detail);
}
