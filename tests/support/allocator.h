/* SPDX-License-Identifier: MIT */
/* An allocator with expandable segments that is opened before each test and closed after it. */
#ifndef XSEG_TESTS_ALLOCATOR_H
#define XSEG_TESTS_ALLOCATOR_H

#include "tests/support/env.h"

static struct xseg_allocator *allocator;

FIXTURE(open_allocator)
{
    allocator = env_open("expandable_segments:True");
}

FIXTURE(close_allocator)
{
    env_close(allocator);
}

#define ALLOCATOR_TEST(name) TEST_WITH(name, open_allocator, close_allocator)

#endif
