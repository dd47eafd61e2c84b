/* SPDX-License-Identifier: MIT */
#include "src/tools/output/complain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/printable.h"
#include "src/tools/output/style.h"

static const char *name = "xseg";

static void put(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));

static void put(const char *format, va_list arguments)
{
    char *text;

    if (vasprintf(&text, format, arguments) < 0) {
        (void)fputs("no host memory is left", stderr);
        return;
    }
    printable_print(stderr, text);
    free(text);
}

void complain(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    put(format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

void complain_as(const char *who)
{
    name = who;
}

const char *complain_name(void)
{
    return name;
}

void complain_named(const char *format, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "%s%s:%s ", style_on(stderr, STYLE_BAD), name, style_off(stderr));
    va_start(arguments, format);
    put(format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

bool complain_of_memory(void)
{
    complain_named("no host memory is left");
    return false;
}

void complain_lines(const char *text)
{
    while (*text) {
        const size_t length = strcspn(text, "\n");

        complain("%.*s", (int)length, text);
        text += length + (text[length] == '\n');
    }
}
