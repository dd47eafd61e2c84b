/* SPDX-License-Identifier: MIT */
#include "vmm/sim/origin.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "vmm/sim/machine.h"

#if defined(__GLIBC__)
#include <execinfo.h>
#endif

struct sim_origin sim_origin_here(void)
{
    return (struct sim_origin){
        .call = sim_machine.current,
        .number = sim_machine.entered,
        .thread = sim_machine.strict ? sim_thread()->number : 0,
        .time = sim_machine.now,
    };
}

#define LABEL "%-14s" /* as long as "registration:" and a blank */

static void print_origin(const struct sim_origin *origin)
{
    (void)fprintf(stderr, "%s, call %" PRIu64 ", thread %" PRIu64 ", time %" PRIu64 " ns\n",
                  origin->call, origin->number, origin->thread, origin->time);
}

void sim_report_begin(const char *what)
{
    const struct sim_origin here = sim_origin_here();

    (void)fflush(NULL);
    (void)fprintf(stderr, "xseg-sim: %s: undefined behavior, %s\n  " LABEL, here.call, what,
                  "call:");
    print_origin(&here);
}

void sim_report_line(const char *kind, const struct sim_origin *origin, const char *form, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "  " LABEL, kind);
    va_start(arguments, form);
    (void)vfprintf(stderr, form, arguments);
    va_end(arguments);
    if (origin == NULL || origin->call == NULL) {
        (void)fputs("\n", stderr);
        return;
    }
    (void)fputs(" by ", stderr);
    print_origin(origin);
}

noreturn void sim_report_end(void)
{
#if defined(__GLIBC__)
    void *frame[32];
    const int count = backtrace(frame, 32);

    (void)fputs("  stack:\n", stderr);
    (void)fflush(stderr);
    backtrace_symbols_fd(frame, count, STDERR_FILENO);
#endif
    (void)fflush(stderr);
    abort();
}
