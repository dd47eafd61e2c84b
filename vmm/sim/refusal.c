/* SPDX-License-Identifier: MIT */
#include "vmm/sim/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SENTENCE_BYTES 512

static _Thread_local char sentence[SENTENCE_BYTES];

/* Write a sentence in which everything can be printed; what finds no room is cut. */
static void format_printable(char *out, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

static void format_printable(char *out, const char *format, va_list arguments)
{
    char plain[SENTENCE_BYTES];
    size_t length = 0;

    (void)vsnprintf(plain, sizeof(plain), format, arguments);
    for (const char *at = plain; *at != '\0' && length + 4 < SENTENCE_BYTES; at++)
        if (*at >= ' ' && *at <= '~')
            out[length++] = *at;
        else
            length += (size_t)snprintf(out + length, 5, "\\x%02x", (unsigned)(unsigned char)*at);
    out[length] = '\0';
}

xseg_status sim_refuse(xseg_status status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    format_printable(sentence, format, arguments);
    va_end(arguments);
    return status;
}

void sim_say(const char *format, ...)
{
    char line[SENTENCE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    format_printable(line, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "xseg-sim: %s\n", line);
}

size_t xseg_sim_error_message(char *text, size_t bytes)
{
    if (bytes > 0)
        (void)snprintf(text, bytes, "%s", sentence);
    return strlen(sentence);
}
