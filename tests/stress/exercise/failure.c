/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/failure.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 8u
#define LINES   40u
#define LENGTH  160u

static char command[512];
static struct {
    char line[LINES][LENGTH];
    unsigned next;
} ring[THREADS];

/* Defined by the runtime of the sanitizers, if it is linked. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

void failure_set_program(const char *text)
{
    (void)snprintf(command, sizeof(command), "%s", text);
}

void failure_record(unsigned thread, const char *form, ...)
{
    va_list arguments;

    va_start(arguments, form);
    (void)vsnprintf(ring[thread].line[ring[thread].next++ % LINES], LENGTH, form, arguments);
    va_end(arguments);
}

void failure_clear(void)
{
    memset(ring, 0, sizeof(ring));
}

static void put(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

/* Async-signal-safe functions only. */
static void print_program(void)
{
    if (command[0] == 0)
        return;
    for (unsigned thread = 0; thread < THREADS; thread++) {
        if (ring[thread].next == 0)
            continue;
        put("the last operations of a thread:\n");
        for (unsigned i = 0; i < LINES; i++) {
            const char *line = ring[thread].line[(ring[thread].next + i) % LINES];

            if (line[0] != 0) {
                put("  ");
                put(line);
                put("\n");
            }
        }
    }
    put("repeat: ");
    put(command);
    put("\n");
    command[0] = 0;
}

static void print_and_raise(int number)
{
    if (number == SIGSEGV)
        put("segmentation fault\n");
    print_program();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

void failure_install(void)
{
    (void)signal(SIGABRT, print_and_raise);
    /* A sanitizer reports the fault itself, and then calls this callback. */
    if (&__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(print_program);
    else
        (void)signal(SIGSEGV, print_and_raise);
}

_Noreturn void failure(const char *form, ...)
{
    va_list arguments;

    (void)fflush(stdout);
    va_start(arguments, form);
    (void)vfprintf(stderr, form, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "\n");
    abort();
}
