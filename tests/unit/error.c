/* SPDX-License-Identifier: MIT */
/* The error message of a thread: its operation and detail, and how it is kept while other functions fail. */
#include <string.h>

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

TEST(an_empty_message_is_kept)
{
    struct xseg_fail_saved kept;

    xseg_fail_save(&kept);
    assert_int_equal(xseg_fail(XSEG_ERR_DRIVER, "another"), XSEG_ERR_DRIVER);
    expect_message("another");
    xseg_fail_restore(&kept);
    expect_message("");
}

TEST(a_message_is_kept)
{
    struct xseg_fail_saved kept;

    (void)xseg_fail(XSEG_ERR_DRIVER, "of %d%% \x01", 7);
    xseg_fail_save(&kept);
    (void)xseg_fail(XSEG_ERR_DRIVER, "another");
    xseg_fail_restore(&kept);
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
    struct xseg_fail_saved kept;

    {
        XSEG_OPERATION("xseg_outer");
        (void)xseg_fail(XSEG_ERR_BUSY, "pool is paused");
        xseg_fail_save(&kept);
        call_inner();
        xseg_fail_restore(&kept);
        expect_message("xseg_outer: pool is paused");
        call_inner();
        (void)xseg_fail(XSEG_ERR_DRIVER, "cuMemMap failed");
    }
    expect_message("xseg_outer: cuMemMap failed");
    (void)xseg_fail(XSEG_ERR_DRIVER, "no operation");
    expect_message("no operation");
}
