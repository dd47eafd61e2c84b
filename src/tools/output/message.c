/* SPDX-License-Identifier: MIT */
#include "src/tools/output/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/text.h"

static const char *program = "xseg";

static void print_escaped(const char *format, va_list arguments)
    __attribute__((format(printf, 1, 0)));

static void print_escaped(const char *format, va_list arguments)
{
    char *text;

    if (vasprintf(&text, format, arguments) < 0) {
        (void)fputs("out of host memory", stderr);
        return;
    }
    text_print(stderr, text);
    free(text);
}

void message_print(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    print_escaped(format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

void message_set_program(const char *name)
{
    program = name;
}

const char *message_program(void)
{
    return program;
}

void message_error(const char *format, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "%s%s:%s ", text_style_on(stderr, TEXT_BAD), program,
                  text_style_off(stderr));
    va_start(arguments, format);
    print_escaped(format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

bool message_out_of_memory(void)
{
    message_error("out of host memory");
    return false;
}

void message_lines(const char *text)
{
    while (*text) {
        const size_t length = strcspn(text, "\n");

        message_print("%.*s", (int)length, text);
        text += length + (text[length] == '\n');
    }
}
