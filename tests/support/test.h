/* SPDX-License-Identifier: MIT */
/*
 * A test program as a list of TEST() blocks: each one registers itself, and the main() of test_main.c runs them in the order
 * of the source.  An argument of the program selects tests by name, with the wildcards * and ?.  A program with other
 * arguments has its own main().
 */
#ifndef XSEG_TESTS_TEST_H
#define XSEG_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
              CMFixtureFunction teardown);

/* Functions that run once, before and after all tests of the program; either may be NULL. */
void test_set_group_fixture(CMFixtureFunction setup, CMFixtureFunction teardown);

/* Select the tests whose names match a pattern with the wildcards * and ?.  Exits with status 2 if no test matches. */
void test_select(const char *pattern);

/* Run the selected tests, by default all; returns the number of tests that failed. */
int test_run(void);

/* A function for TEST_WITH() and TEST_GROUP_FIXTURE(); it fails by an assertion. */
#define FIXTURE(name)                      \
    static inline void name##_steps(void); \
    static inline int name(void **state)   \
    {                                      \
        (void)state;                       \
        name##_steps();                    \
        return 0;                          \
    }                                      \
    static inline void name##_steps(void)

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* A test with functions that run before and after it; the teardown function runs after a failure as well. */
#define TEST_WITH(name, setup, teardown)                           \
    static void name(void **state);                                \
    __attribute__((constructor)) static void name##_register(void) \
    {                                                              \
        test_add(#name, name, setup, teardown);                    \
    }                                                              \
    static void name(__attribute__((unused)) void **state)

#define TEST_GROUP_FIXTURE(setup, teardown)                     \
    __attribute__((constructor)) static void test_fixture(void) \
    {                                                           \
        test_set_group_fixture(setup, teardown);                \
    }

#endif
