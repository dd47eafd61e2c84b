/* SPDX-License-Identifier: MIT */
#include "src/base/text.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/align.h"

void xseg_text_init(struct xseg_text *text, char *buffer, size_t bytes)
{
    text->buffer = buffer;
    text->bytes = bytes;
    text->length = 0;
    if (bytes > 0)
        buffer[0] = '\0';
}

void xseg_text_add_list(struct xseg_text *text, const char *format, va_list arguments)
{
    const size_t used = text->length < text->bytes ? text->length : text->bytes;
    const int count = vsnprintf(text->bytes > used ? text->buffer + used : NULL, text->bytes - used,
                                format, arguments);

    if (count > 0)
        text->length += (size_t)count;
}

void xseg_text_add(struct xseg_text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    xseg_text_add_list(text, format, arguments);
    va_end(arguments);
}

void xseg_text_add_mib(struct xseg_text *text, uint64_t bytes)
{
    if (bytes != 0 && bytes < XSEG_MIB / 200 + 1)
        xseg_text_add(text, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    else
        xseg_text_add(text, "%.2f MiB", (double)bytes / (double)XSEG_MIB);
}

void xseg_text_add_bytes(struct xseg_text *text, uint64_t bytes)
{
    if (bytes < XSEG_KIB)
        xseg_text_add(text, "%" PRIu64 " bytes", bytes);
    else if (bytes < XSEG_MIB)
        xseg_text_add(text, "%.2f KiB", (double)bytes / (double)XSEG_KIB);
    else if (bytes < XSEG_GIB)
        xseg_text_add(text, "%.2f MiB", (double)bytes / (double)XSEG_MIB);
    else
        xseg_text_add(text, "%.2f GiB", (double)bytes / (double)XSEG_GIB);
}
