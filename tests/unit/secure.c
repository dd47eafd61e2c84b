/* SPDX-License-Identifier: MIT */
/*
 * A set-user-ID process takes nothing from its environment.  Here secure_getenv() answers as in one;
 * tests/tool/secure.py starts a real one.
 */
#include "tests/support/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const variable[] = {
    "XSEG_DRIVER",
    "XSEG_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
};

static bool has_rights; /* more than its user */

char *__real_secure_getenv(const char *name);
char *__wrap_secure_getenv(const char *name);

char *__wrap_secure_getenv(const char *name)
{
    return has_rights ? NULL : __real_secure_getenv(name);
}

struct heard {
    unsigned count;
    char line[512];
};

static void hear(void *context, enum xseg_log_level level, const char *line)
{
    struct heard *heard = context;

    if (level != XSEG_LOG_WARNING || strstr(line, "set-user-ID") == NULL)
        return;
    heard->count++;
    (void)snprintf(heard->line, sizeof(heard->line), "%s", line);
}

static xseg_status try_open(const char *driver, struct heard *heard, struct xseg_allocator **out)
{
    struct xseg_options options = {sizeof(options)};

    options.driver = driver;
    options.log = hear;
    options.log_context = heard;
    return xseg_open(NULL, &options, out);
}

static void set_all(const char *config)
{
    for (unsigned i = 0; i < COUNT_OF(variable); i++)
        assert_int_equal(setenv(variable[i], i == 0 ? "/no/such/driver" : config, 1), 0);
}

TEST(defaults_apply_and_are_logged_once)
{
    struct xseg_allocator *allocator = NULL;
    struct heard heard = {0};

    has_rights = true;
    set_all("no_such_key:1");
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(try_open(env_driver(), &heard, &allocator), XSEG_OK);
        assert_string_equal(xseg_config_source(allocator), "default");
        env_close(allocator);
        assert_int_equal(heard.count, 1);
    }
    for (unsigned i = 0; i < COUNT_OF(variable); i++)
        assert_non_null(strstr(heard.line, variable[i]));
}

TEST(driver_variable_is_ignored)
{
    struct xseg_allocator *allocator = NULL;
    struct heard heard = {0};
    char text[512] = "";

    has_rights = true;
    set_all("");
    if (try_open(NULL, &heard, &allocator) == XSEG_OK) {
        env_close(allocator); /* this machine has it */
        return;
    }
    (void)xseg_error_message(text, sizeof(text));
    assert_null(strstr(text, "/no/such/driver"));
    assert_non_null(strstr(text, "libcuda.so.1"));
}

TEST(environment_applies_without_privileges)
{
    struct xseg_allocator *allocator = NULL;
    struct heard heard = {0};

    has_rights = false;
    set_all("no_such_key:1");
    env_expect_error(try_open(env_driver(), &heard, &allocator), XSEG_ERR_CONFIG,
                     "XSEG_ALLOC_CONF");
    set_all("");
    env_expect_error(try_open(NULL, &heard, &allocator), XSEG_ERR_NO_DRIVER, "/no/such/driver");
    assert_int_equal(heard.count, 0);
}
