/* SPDX-License-Identifier: MIT */
#include "src/base/log.h"

#include <stdio.h>

#include "src/base/text.h"

void xseg_log_line(const struct xseg_log *log, enum xseg_log_level level, const char *format, ...)
{
    char buffer[1024];
    struct xseg_text text;
    va_list arguments;

    xseg_text_init(&text, buffer, sizeof(buffer));
    va_start(arguments, format);
    xseg_text_add_list(&text, format, arguments);
    va_end(arguments);
    xseg_text_escape(&text, 0);
    if (log->sink != NULL)
        log->sink(log->context, level, buffer);
    else if (level != XSEG_LOG_INFO)
        (void)fprintf(stderr, "xseg: %s\n", buffer);
}
