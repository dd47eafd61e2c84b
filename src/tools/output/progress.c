/* SPDX-License-Identifier: MIT */
#include "src/tools/output/progress.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "src/tools/output/complain.h"

#define WIDTH    40u
#define PAUSE_NS 50000000u /* between two pictures */

static struct {
    const char *name; /* NULL: nothing is shown */
    uint64_t drawn;   /* when, in nanoseconds; 0: not yet */
} work;

static uint64_t now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void progress_begin(const char *name)
{
    work.name = isatty(STDERR_FILENO) ? name : NULL;
    work.drawn = 0;
}

void progress_end(void)
{
    if (work.name && work.drawn > 0)
        complain_progress_end();
    work.name = NULL;
}

void progress_reach(uint64_t done, uint64_t all)
{
    if (!work.name || now() < work.drawn + PAUSE_NS)
        return;
    work.drawn = now();
    if (all > 0)
        progress_draw(done, all, "%s", work.name);
    else
        complain_progress("%" PRIu64 " MB of %s", done / 1000000, work.name);
}

void progress_draw(uint64_t done, uint64_t all, const char *format, ...)
{
    const uint64_t filled = done < all ? done * WIDTH / all : WIDTH;
    char bar[WIDTH + 1], *text;
    va_list arguments;

    memset(bar, ' ', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = '\0';
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) >= 0) {
        complain_progress("[%s] %s", bar, text);
        free(text);
    }
    va_end(arguments);
}
