/* SPDX-License-Identifier: MIT */
/* Fails on purpose: a harness that cannot fail passes everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void one_is_one(void **state)
{
    (void)state;
    assert_int_equal(1, 1);
}

static void one_is_two(void **state)
{
    (void)state;
    assert_int_equal(1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_is_one),
        cmocka_unit_test(one_is_two),
    };

    return cmocka_run_group_tests_name("fails", tests, NULL, NULL);
}
