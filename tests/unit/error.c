/* SPDX-License-Identifier: MIT */
/* Error messages, and log lines. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "tests/support/test.h"

static void expect_message(const char *expected)
{
    char buffer[XSEG_FAIL_BYTES];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_fail_print(&text);
    assert_string_equal(buffer, expected);
    assert_int_equal(text.length, strlen(expected));
}

TEST(a_message_is_kept)
{
    struct xseg_fail_saved saved;

    xseg_fail_save(&saved); /* the empty message */
    assert_int_equal(xseg_fail(XSEG_ERR_DRIVER, "another"), XSEG_ERR_DRIVER);
    expect_message("another");
    xseg_fail_restore(&saved);
    expect_message("");
    (void)xseg_fail(XSEG_ERR_DRIVER, "of %d%% \x01", 7);
    xseg_fail_save(&saved);
    (void)xseg_fail(XSEG_ERR_DRIVER, "another");
    xseg_fail_restore(&saved);
    assert_string_equal(xseg_fail_detail(), "of 7% \\x01");
    xseg_fail_append(", and more");
    assert_string_equal(xseg_fail_detail(), "of 7% \\x01, and more");
}

/* A callback of xseg_outer() calls xseg_inner(). */
static void call_inner(void)
{
    XSEG_OPERATION("xseg_inner");
    (void)xseg_fail(XSEG_ERR_ARGUMENT, "out is NULL");
    expect_message("xseg_inner: out is NULL");
}

TEST(operations_nest)
{
    struct xseg_fail_saved saved;

    {
        XSEG_OPERATION("xseg_outer");
        (void)xseg_fail(XSEG_ERR_BUSY, "pool is paused");
        xseg_fail_save(&saved);
        call_inner();
        xseg_fail_restore(&saved);
        expect_message("xseg_outer: pool is paused");
        call_inner();
        (void)xseg_fail(XSEG_ERR_DRIVER, "cuMemMap failed");
    }
    expect_message("xseg_outer: cuMemMap failed");
    (void)xseg_fail(XSEG_ERR_DRIVER, "no operation");
    expect_message("no operation");
}

/* --- Log lines. --- */

struct logged {
    unsigned count;
    enum xseg_log_level level;
    char line[2048];
};

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    struct logged *logged = context;

    logged->count++;
    logged->level = level;
    (void)snprintf(logged->line, sizeof(logged->line), "%s", line);
}

TEST(sink_receives_printable_lines_of_every_level)
{
    static const enum xseg_log_level level[] = {XSEG_LOG_ERROR, XSEG_LOG_WARNING, XSEG_LOG_INFO};
    struct logged logged = {0};
    const struct xseg_log log = {record_line, &logged};
    char text[4000];

    for (unsigned i = 0; i < 3; i++) {
        xseg_log_line(&log, level[i], "%s %u", "line", i);
        assert_int_equal(logged.count, i + 1);
        assert_int_equal(logged.level, level[i]);
    }
    assert_string_equal(logged.line, "line 2");
    xseg_log_line(&log, XSEG_LOG_INFO, "%s and %s", "\033[2J", "\xc3\xa9\n");
    assert_string_equal(logged.line, "\\x1b[2J and \\xc3\\xa9\\x0a");
    /* A line is truncated to 1023 bytes. */
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    xseg_log_line(&log, XSEG_LOG_INFO, "%s", text);
    assert_int_equal(logged.count, 5);
    assert_int_equal(strlen(logged.line), 1023);
}

/* Write the three levels without a sink, with standard error redirected to a file. */
static void write_each_level(FILE *file)
{
    const struct xseg_log log = {NULL, NULL};
    const int saved_stderr = dup(STDERR_FILENO);

    assert_true(saved_stderr >= 0);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    xseg_log_line(&log, XSEG_LOG_ERROR, "one %d", 1);
    xseg_log_line(&log, XSEG_LOG_INFO, "two %d", 2);
    xseg_log_line(&log, XSEG_LOG_WARNING, "three %d", 3);
    assert_true(dup2(saved_stderr, STDERR_FILENO) >= 0);
    assert_int_equal(close(saved_stderr), 0);
}

TEST(without_a_sink_warnings_and_errors_are_written)
{
    char text[256] = "";
    FILE *file = tmpfile();

    assert_non_null(file);
    write_each_level(file);
    rewind(file);
    assert_int_not_equal(fread(text, 1, sizeof(text) - 1, file), 0);
    assert_string_equal(text, "xseg: one 1\nxseg: three 3\n");
    assert_int_equal(fclose(file), 0);
}
