/* SPDX-License-Identifier: MIT */
/* The error message of a thread: its operation and detail, and how it is kept while other functions fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/error.h"

static void expect_message(const char *expected)
{
    char buffer[XSEG_FAIL_BYTES];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_fail_print(&text);
    assert_string_equal(buffer, expected);
    assert_int_equal(text.length, strlen(expected));
}

static void an_empty_message_is_kept(void **state)
{
    struct xseg_fail_saved kept;

    (void)state;
    xseg_fail_save(&kept);
    assert_int_equal(xseg_fail(XSEG_ERR_DRIVER, "another"), XSEG_ERR_DRIVER);
    expect_message("another");
    xseg_fail_restore(&kept);
    expect_message("");
}

static void a_message_is_kept(void **state)
{
    struct xseg_fail_saved kept;

    (void)state;
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

static void operations_nest(void **state)
{
    struct xseg_fail_saved kept;

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_message_is_kept),
        cmocka_unit_test(a_message_is_kept),
        cmocka_unit_test(operations_nest),
    };

    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
