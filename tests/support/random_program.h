/* SPDX-License-Identifier: MIT */
/*
 * Random programs, each determined by its seed.  A failed assertion or an abort prints seed and step.  Variables of the
 * environment: XSEG_TEST_SEED (the first seed), XSEG_TEST_SEEDS (the number of programs), XSEG_TEST_STEPS (of each
 * program), XSEG_TEST_TRACE (print the name of each step).
 */
#ifndef XSEG_TESTS_RANDOM_PROGRAM_H
#define XSEG_TESTS_RANDOM_PROGRAM_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/rng.h"
#include "tests/support/test.h"

/* The program that is running, for the message of a failure; seed 0: none. */
static struct {
    uint64_t seed;
    unsigned step;
} program;

static inline unsigned long program_number(const char *variable, unsigned long default_value)
{
    const char *value = getenv(variable);

    return value != NULL ? strtoul(value, NULL, 10) : default_value;
}

/* The initial state of a program's random numbers. */
static inline uint64_t program_random_state(uint64_t seed)
{
    return seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
}

/*
 * Draw the index of a choice in proportion to the weights of all choices.
 *
 * @param number  a random number
 * @param weight  the weight of the first choice
 * @param size    bytes from the weight of a choice to that of the next choice
 * @param count   number of choices
 */
static inline unsigned program_draw(uint64_t number, const unsigned *weight, size_t size,
                                    size_t count)
{
    uint64_t sum = 0;
    unsigned i = 0;

    for (size_t k = 0; k < count; k++)
        sum += *(const unsigned *)(const void *)((const char *)weight + k * size);
    for (number %= sum; number >= *weight; i++) {
        number -= *weight;
        weight = (const void *)((const char *)weight + size);
    }
    return i;
}

static inline void program_trace(const char *step)
{
    if (getenv("XSEG_TEST_TRACE") != NULL)
        print_message("# %u %s\n", program.step, step);
}

static inline void program_print(int signal)
{
    char text[128];

    (void)signal;
    if (program.seed == 0)
        return;
    (void)snprintf(text, sizeof(text),
                   "in step %u of the program XSEG_TEST_SEED=%llu XSEG_TEST_SEEDS=1\n",
                   program.step, (unsigned long long)program.seed);
    (void)!write(STDERR_FILENO, text, strlen(text));
    program.seed = 0;
}

/* The simulator, the audits and failures in other threads abort the process: print the program then. */
FIXTURE(program_begin)
{
    (void)signal(SIGABRT, program_print);
}

FIXTURE(program_end)
{
    program_print(0);
}

/* A test that executes random programs. */
#define TEST_PROGRAM(name) TEST_WITH(name, program_begin, program_end)

#endif
