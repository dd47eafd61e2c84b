/* SPDX-License-Identifier: MIT */
/* An allocator with expandable segments that is opened before each test and closed after it. */
#ifndef XSEG_TESTS_ALLOCATOR_H
#define XSEG_TESTS_ALLOCATOR_H

#include "tests/support/env.h"

static struct xseg_allocator *allocator;

static inline int open_allocator(void **state)
{
    (void)state;
    allocator = env_open("expandable_segments:True");
    return 0;
}

static inline int close_allocator(void **state)
{
    (void)state;
    env_close(allocator);
    return 0;
}

#define ALLOCATOR_TEST(name) TEST_WITH(name, open_allocator, close_allocator)

#endif
