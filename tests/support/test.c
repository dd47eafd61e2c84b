/* SPDX-License-Identifier: MIT */
#include "tests/support/test.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#define TESTS_MAX 256

static struct CMUnitTest tests[TESTS_MAX];
static size_t test_count;
static CMFixtureFunction group_setup, group_teardown;

void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup,
              CMFixtureFunction teardown)
{
    if (test_count == TESTS_MAX)
        abort();
    tests[test_count++] = (struct CMUnitTest){name, run, setup, teardown, NULL};
}

void test_set_group_fixture(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    group_setup = setup;
    group_teardown = teardown;
}

void test_select(const char *pattern)
{
    bool is_matched = false;

    for (size_t i = 0; i < test_count && !is_matched; i++)
        is_matched = fnmatch(pattern, tests[i].name, 0) == 0;
    if (!is_matched) {
        (void)fprintf(stderr, "%s: no test matches the pattern, %s\n",
                      program_invocation_short_name, pattern);
        exit(2);
    }
    cmocka_set_test_filter(pattern);
}

int test_run(void)
{
    return _cmocka_run_group_tests(program_invocation_short_name, tests, test_count, group_setup,
                                   group_teardown);
}
