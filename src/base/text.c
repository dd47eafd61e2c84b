/* SPDX-License-Identifier: MIT */
#include "src/base/text.h"

#include <inttypes.h>
#include <stdbool.h>
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

static bool is_printable(char c)
{
    return c >= ' ' && c <= '~';
}

/* Backwards, so that nothing is overwritten before it has moved; what finds no room is cut. */
void xseg_text_escape(struct xseg_text *text, size_t from)
{
    static const char digit[] = "0123456789abcdef";
    const size_t room = text->bytes > 0 ? text->bytes - 1 : 0;
    const size_t end = text->length < room ? text->length : room;
    size_t more = 0;

    for (size_t i = from; i < end; i++)
        more += is_printable(text->buffer[i]) ? 0 : 3;
    if (more == 0)
        return;
    text->length += more;
    text->buffer[text->length < room ? text->length : room] = '\0';
    for (size_t i = end, to = end + more; i-- > from;) {
        const unsigned char byte = (unsigned char)text->buffer[i];
        const char shown[] = {'\\', 'x', digit[byte >> 4], digit[byte & 15]};
        const size_t bytes = is_printable((char)byte) ? 1 : sizeof(shown);

        to -= bytes;
        for (size_t j = 0; j < bytes && to + j < room; j++)
            text->buffer[to + j] = bytes == 1 ? (char)byte : shown[j];
    }
}

void xseg_text_add_mib(struct xseg_text *text, uint64_t bytes)
{
    if (bytes != 0 && bytes < XSEG_MIB / 200 + 1)
        xseg_text_add(text, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    else
        xseg_text_add(text, "%.2f MiB", (double)bytes / (double)XSEG_MIB);
}
