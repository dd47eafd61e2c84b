/* SPDX-License-Identifier: MIT */
/* Variables of the environment: unknown names, and processes that may not read it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/environment.h"
#include "tests/support/env.h"

/* --- Unknown variables are reported with the closest known name. --- */

struct logged {
    unsigned count;
    char line[12][512];
};

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    struct logged *logged = context;

    assert_int_equal(level, XSEG_LOG_WARNING);
    assert_true(logged->count < XSEG_COUNT_OF(logged->line));
    (void)snprintf(logged->line[logged->count++], sizeof(logged->line[0]), "%s", line);
}

static struct logged check_environment(void)
{
    struct logged logged = {0};
    const struct xseg_log log = {record_line, &logged};

    xseg_environment_check(&log);
    return logged;
}

/* Clear all variables except cmocka's. */
static void clear_environment(void)
{
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    char saved[32] = "";

    if (output != NULL)
        (void)snprintf(saved, sizeof(saved), "%s", output);
    assert_int_equal(clearenv(), 0);
    if (saved[0] != '\0')
        assert_int_equal(setenv("CMOCKA_MESSAGE_OUTPUT", saved, 1), 0);
}

TEST(names_of_the_table_are_known)
{
    static const char *const name[] = {
#define X(name, reader, meaning) "XSEG_" name,
        XSEG_ENVIRONMENT(X)
#undef X
    };

    clear_environment();
    for (size_t i = 0; i < XSEG_COUNT_OF(name); i++)
        assert_int_equal(setenv(name[i], "1", 1), 0);
    /* Variables with another prefix belong to other programs. */
    assert_int_equal(setenv("XSEGDRIVER", "1", 1), 0);
    assert_int_equal(setenv("PYTORCH_XSEG_ALLOC", "1", 1), 0);
    assert_int_equal(check_environment().count, 0);
    clear_environment();
    assert_int_equal(check_environment().count, 0);
}

TEST(mistyped_names_are_reported_with_the_closest_match)
{
    static const struct {
        const char *name, *expected;
    } row[] = {
        {"XSEG_DRIVR", "environment: unknown variable, XSEG_DRIVR; did you mean XSEG_DRIVER?"},
        {"XSEG_driver", "environment: unknown variable, XSEG_driver; did you mean XSEG_DRIVER?"},
        {"XSEG_ALLOC_CONFIG",
         "environment: unknown variable, XSEG_ALLOC_CONFIG; did you mean XSEG_ALLOC_CONF?"},
        {"XSEG_SIM_MEMORY",
         "environment: unknown variable, XSEG_SIM_MEMORY; did you mean XSEG_SIM_MEMORY_MB?"},
        {"XSEG_SIM_DEVICE",
         "environment: unknown variable, XSEG_SIM_DEVICE; did you mean XSEG_SIM_DEVICES?"},
        {"XSEG_COLOUR_OF_THE_SKY", "environment: unknown variable, XSEG_COLOUR_OF_THE_SKY; "
                                   "see docs/environment.md for all names"},
        {"XSEG_", "environment: unknown variable, XSEG_; see docs/environment.md for all names"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(row); i++) {
        clear_environment();
        assert_int_equal(setenv(row[i].name, "value=1", 1), 0);
        assert_int_equal(setenv("XSEG_DRIVER", "x", 1), 0);
        const struct logged logged = check_environment();
        assert_int_equal(logged.count, 1);
        assert_string_equal(logged.line[0], row[i].expected);
    }
    clear_environment();
}

TEST(many_unknown_names_are_summarized)
{
    char name[32];

    clear_environment();
    for (unsigned i = 0; i < 11; i++) {
        (void)snprintf(name, sizeof(name), "XSEG_UNHEARD_OF_%u", i);
        assert_int_equal(setenv(name, "", 1), 0);
    }
    const struct logged logged = check_environment();
    /* Eight names, and the number of the others. */
    assert_int_equal(logged.count, 9);
    assert_string_equal(logged.line[8],
                        "environment: more unknown variables, 3 with the prefix XSEG_; see "
                        "docs/environment.md for all names");
    clear_environment();
}

/* --- A set-user-ID process reads nothing from its environment. The wrapped secure_getenv() simulates such a process. --- */

static const char *const variable[] = {
    "XSEG_DRIVER",
    "XSEG_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
};

static bool is_privileged; /* the process is a set-user-ID process */

char *__real_secure_getenv(const char *name);
char *__wrap_secure_getenv(const char *name);

char *__wrap_secure_getenv(const char *name)
{
    return is_privileged ? NULL : __real_secure_getenv(name);
}

static void record_warning(void *context, enum xseg_log_level level, const char *line)
{
    if (level == XSEG_LOG_WARNING && strstr(line, "set-user-ID") != NULL)
        record_line(context, level, line);
}

static xseg_status try_open(const char *driver, struct logged *logged, struct xseg_allocator **out)
{
    struct xseg_options options = {sizeof(options), .driver = driver, .log = record_warning,
                                   .log_context = logged};

    return xseg_open(NULL, &options, out);
}

static void set_variables(const char *config)
{
    for (unsigned i = 0; i < COUNT_OF(variable); i++)
        assert_int_equal(setenv(variable[i], i == 0 ? "/no/such/driver" : config, 1), 0);
}

TEST(defaults_apply_and_are_logged_once)
{
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {0};

    is_privileged = true;
    set_variables("no_such_key:1");
    assert_ok(xseg_sim_reset(NULL));
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(try_open(env_driver(), &logged, &allocator));
        assert_string_equal(xseg_config_source(allocator), "default");
        env_close(allocator);
        assert_int_equal(logged.count, 1);
    }
    for (unsigned i = 0; i < COUNT_OF(variable); i++)
        assert_non_null(strstr(logged.line[0], variable[i]));
}

TEST(driver_variable_is_ignored)
{
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {0};
    char text[512] = "";

    is_privileged = true;
    set_variables("");
    if (try_open(NULL, &logged, &allocator) == XSEG_OK) {
        env_close(allocator); /* this host has a CUDA driver */
        return;
    }
    (void)xseg_error_message(text, sizeof(text));
    assert_null(strstr(text, "/no/such/driver"));
    assert_non_null(strstr(text, "libcuda.so.1"));
}

TEST(environment_applies_without_privileges)
{
    struct xseg_allocator *allocator = NULL;
    struct logged logged = {0};

    is_privileged = false;
    set_variables("no_such_key:1");
    assert_error(try_open(env_driver(), &logged, &allocator), CONFIG, "XSEG_ALLOC_CONF");
    set_variables("");
    assert_error(try_open(NULL, &logged, &allocator), NO_DRIVER, "/no/such/driver");
    assert_int_equal(logged.count, 0);
}
