/* SPDX-License-Identifier: MIT */
#include "src/tools/output/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/text.h"

#define LINE_MAX_COLUMNS 1024u
#define DEFAULT_COLUMNS  80u
#define BAR_MAX          40u
#define BAR_MIN          10u
#define BAR_FRAME        3u  /* "[", "] " */
#define TEXT_MIN         16u /* columns of text for which the bar gets shorter */
#define INTERVAL_NS      50000000u

static struct {
    const char *name;  /* NULL: nothing is displayed */
    uint64_t drawn_ns; /* time of the last line; 0: none */
} operation;

/* --- Lines, at most as wide as the terminal. --- */

/* Get the maximum number of columns of a line: all but the last column of the terminal, which would wrap. */
static size_t get_line_columns(void)
{
    const char *variable = secure_getenv("COLUMNS");
    struct winsize size;
    unsigned long columns = 0;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0)
        columns = size.ws_col;
    if (columns == 0 && variable)
        columns = strtoul(variable, NULL, 10);
    if (columns == 0)
        columns = DEFAULT_COLUMNS;
    return (columns < LINE_MAX_COLUMNS ? columns : LINE_MAX_COLUMNS) - 1;
}

/* Replace the middle of a text that has more than `columns` characters by "...". */
static void shorten_text(char *text, size_t columns)
{
    const size_t length = strlen(text), dots = columns < 3 ? columns : 3;
    const size_t head = (columns - dots) / 2, tail = columns - dots - head;

    if (length <= columns)
        return;
    memset(text + head, '.', dots);
    memmove(text + head + dots, text + length - tail, tail + 1);
}

static void format_text(char *text, size_t bytes, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

static void format_text(char *text, size_t bytes, const char *format, va_list arguments)
{
    char *plain;

    text[0] = '\0';
    if (vasprintf(&plain, format, arguments) < 0)
        return;
    (void)text_escape(plain, text, bytes);
    free(plain);
}

/* Divide `columns` between a bar and a text.  Returns the columns of the bar; 0: there is no bar. */
static size_t compute_bar_columns(size_t columns, size_t text)
{
    const size_t shown = text < TEXT_MIN ? text : TEXT_MIN;
    size_t bar = BAR_MAX;

    if (columns < BAR_MIN + BAR_FRAME + shown)
        return 0;
    if (columns < BAR_MAX + BAR_FRAME + text)
        bar = columns > BAR_MIN + BAR_FRAME + text ? columns - BAR_FRAME - text : BAR_MIN;
    return bar;
}

void progress_print(const char *format, ...)
{
    char text[LINE_MAX_COLUMNS];
    va_list arguments;

    va_start(arguments, format);
    format_text(text, sizeof(text), format, arguments);
    va_end(arguments);
    shorten_text(text, get_line_columns());
    (void)fprintf(stderr, "\r%s\033[K", text);
    (void)fflush(stderr);
}

void progress_print_bar(uint64_t done, uint64_t all, const char *format, ...)
{
    const size_t columns = get_line_columns();
    char text[LINE_MAX_COLUMNS], bar[BAR_MAX + 1];
    va_list arguments;
    size_t width;

    va_start(arguments, format);
    format_text(text, sizeof(text), format, arguments);
    va_end(arguments);
    width = compute_bar_columns(columns, strlen(text));
    if (width == 0) {
        progress_print("%s", text);
        return;
    }
    shorten_text(text, columns - BAR_FRAME - width);
    memset(bar, ' ', width);
    memset(bar, '#', done < all ? (size_t)(done * width / all) : width);
    bar[width] = '\0';
    (void)fprintf(stderr, "\r[%s] %s\033[K", bar, text);
    (void)fflush(stderr);
}

void progress_clear(void)
{
    (void)fputs("\r\033[K", stderr);
}

/* --- Operations. --- */

static uint64_t get_time_ns(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void progress_begin(const char *name)
{
    operation.name = isatty(STDERR_FILENO) ? name : NULL;
    operation.drawn_ns = 0;
}

void progress_end(void)
{
    if (operation.name && operation.drawn_ns > 0)
        progress_clear();
    operation.name = NULL;
}

void progress_update(uint64_t done, uint64_t all)
{
    if (!operation.name || get_time_ns() < operation.drawn_ns + INTERVAL_NS)
        return;
    operation.drawn_ns = get_time_ns();
    if (all > 0)
        progress_print_bar(done, all, "%s", operation.name);
    else
        progress_print("%s of %s", amount_bytes(done).text, operation.name);
}
