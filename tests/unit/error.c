/* SPDX-License-Identifier: MIT */
/* The error text of a thread, and how it is kept while something else fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/error.h"

static void an_empty_text_is_kept(void **state)
{
    struct xseg_fail_kept kept;

    (void)state;
    xseg_fail_keep(&kept);
    assert_int_equal(xseg_fail(XSEG_ERR_DRIVER, "another"), XSEG_ERR_DRIVER);
    assert_string_equal(xseg_fail_text()->buffer, "another");
    xseg_fail_restore(&kept);
    assert_string_equal(xseg_fail_text()->buffer, "");
    assert_int_equal(xseg_fail_text()->length, 0);
}

static void a_text_is_kept(void **state)
{
    struct xseg_fail_kept kept;

    (void)state;
    (void)xseg_fail(XSEG_ERR_DRIVER, "of %d%% \x01", 7);
    xseg_fail_keep(&kept);
    (void)xseg_fail(XSEG_ERR_DRIVER, "another");
    xseg_fail_restore(&kept);
    assert_string_equal(xseg_fail_text()->buffer, "of 7% \\x01");
    assert_int_equal(xseg_fail_text()->length, strlen("of 7% \\x01"));
    xseg_fail_add(", and more");
    assert_string_equal(xseg_fail_text()->buffer, "of 7% \\x01, and more");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_text_is_kept),
        cmocka_unit_test(a_text_is_kept),
    };

    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
