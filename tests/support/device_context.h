/* SPDX-License-Identifier: MIT */
/* The context of device 0 on the simulated driver, without an allocator. */
#ifndef XSEG_TESTS_DEVICE_CONTEXT_H
#define XSEG_TESTS_DEVICE_CONTEXT_H

#include <string.h>

#include "tests/support/env.h"
#include "vmm/context.h"

static struct xseg_driver *driver;
static struct xseg_context context;
static struct xseg_unreleased_list unreleased;

static inline void context_open(const struct xseg_sim_settings *settings)
{
    char error[128];

    memset(&context, 0, sizeof(context));
    assert_ok(xseg_sim_reset(settings));
    assert_ok(xseg_driver_open(env_driver(), &driver));
    assert_ok(xseg_unreleased_init(&unreleased, &context));
    assert_ok(xseg_context_open(&context, driver, 0, &unreleased, error, sizeof(error)));
}

/* Expect that everything can be released. */
static inline void context_close(void)
{
    assert_ok(xseg_unreleased_retry(&unreleased));
    assert_ok(xseg_driver_release_context(&context));
    xseg_unreleased_fini(&unreleased);
    xseg_driver_close(driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

#endif
