/* SPDX-License-Identifier: MIT */
/* What is logged as an allocator opens, about the build and the process. */
#include "tests/support/env.h"

#include <stdio.h>
#include <string.h>

struct heard {
    unsigned count;
    enum xseg_log_level level;
    char line[256];
};

/* Lines about self-checks. */
static void hear(void *context, enum xseg_log_level level, const char *line)
{
    struct heard *heard = context;

    if (strstr(line, "self-checks: ") == NULL)
        return;
    heard->count++;
    heard->level = level;
    (void)snprintf(heard->line, sizeof(heard->line), "%s", line);
}

/* A slow build that was installed by mistake is noticed, and does not fill logs. */
TEST(self_checks_are_logged_once)
{
    struct heard heard = {0};
    struct xseg_options options = {sizeof(options)};

    assert_ok(xseg_sim_reset(NULL));
    options.driver = env_driver();
    options.log = hear;
    options.log_context = &heard;
    for (int i = 0; i < 3; i++) {
        struct xseg_allocator *allocator = NULL;

        assert_ok(xseg_open(NULL, &options, &allocator));
        env_close(allocator);
    }
    if (XSEG_CHECKS > 0) {
        assert_int_equal(heard.count, 1);
        assert_int_equal(heard.level, XSEG_LOG_WARNING);
        assert_non_null(strstr(heard.line, "--buildtype=release"));
    } else
        assert_int_equal(heard.count, 0);
}
