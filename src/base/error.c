/* SPDX-License-Identifier: MIT */
#include "src/base/error.h"

#include <string.h>

static _Thread_local char buffer[1024];
static _Thread_local struct xseg_text text;

_Static_assert(sizeof(((struct xseg_fail_kept *)NULL)->text) == sizeof(buffer), "it is kept whole");

__attribute__((noinline)) xseg_status xseg_fail(xseg_status status, const char *format, ...)
{
    va_list arguments;

    xseg_text_init(&text, buffer, sizeof(buffer));
    va_start(arguments, format);
    xseg_text_add_list(&text, format, arguments);
    va_end(arguments);
    xseg_text_escape(&text, 0);
    return status;
}

void xseg_fail_add(const char *format, ...)
{
    va_list arguments;

    if (text.buffer == NULL)
        xseg_text_init(&text, buffer, sizeof(buffer));
    const size_t from = text.length;
    va_start(arguments, format);
    xseg_text_add_list(&text, format, arguments);
    va_end(arguments);
    xseg_text_escape(&text, from);
}

void xseg_fail_keep(struct xseg_fail_kept *kept)
{
    memcpy(kept->text, buffer, sizeof(kept->text));
}

void xseg_fail_restore(const struct xseg_fail_kept *kept)
{
    xseg_text_init(&text, buffer, sizeof(buffer));
    xseg_text_add(&text, "%s", kept->text);
}

const struct xseg_text *xseg_fail_text(void)
{
    return &text;
}
