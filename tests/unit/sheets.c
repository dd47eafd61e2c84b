/* SPDX-License-Identifier: MIT */
/* Sheets: nothing is shared or made ahead, and what is put back is used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/cache/small/sheets.h"

#define MANY 2000u

static struct xseg_sheet *sheet[MANY];

static int by_address(const void *a, const void *b)
{
    const struct xseg_sheet *const *left = a, *const *right = b;

    return *left < *right ? -1 : *left > *right;
}

static void expect_empty(const struct xseg_sheet *at)
{
    static const uint64_t nothing[XSEG_CELLS_WIDE];

    assert_int_equal((uintptr_t)at->word % 64, 0);
    assert_int_equal(at->starts, 0);
    assert_memory_equal(at->bin, nothing, sizeof(nothing));
    for (uint32_t i = 0; i < XSEG_CELLS_WORDS; i++)
        assert_int_equal(at->word[i].start | at->word[i].free | at->filled[i], 0);
}

static void each_is_memory_of_its_own(void **state)
{
    struct xseg_sheets sheets = {0};

    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        sheet[i] = xseg_sheets_take(&sheets, NULL, i);
        assert_non_null(sheet[i]);
        assert_int_equal(sheet[i]->number, i);
        expect_empty(sheet[i]);
        memset(sheet[i], 0xA5, sizeof(struct xseg_sheet));
        /* What is not used yet is not memory yet. */
        assert_int_equal(sheets.made, i + 1);
        assert_int_equal(sheets.host_bytes, (i + 1) * sizeof(struct xseg_sheet));
    }
    qsort(sheet, MANY, sizeof(sheet[0]), by_address);
    for (uint32_t i = 1; i < MANY; i++)
        assert_true(sheet[i - 1] + 1 <= sheet[i]);
    xseg_sheets_fini(&sheets);
    assert_int_equal(sheets.host_bytes, 0);
}

static void what_is_put_back_is_used_again(void **state)
{
    struct xseg_sheets sheets = {0};

    (void)state;
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 100; i++) {
            sheet[i] = xseg_sheets_take(&sheets, NULL, i);
            expect_empty(sheet[i]);
            memset(sheet[i], 0x5A, sizeof(struct xseg_sheet));
        }
        const uint32_t made = sheets.made;
        assert_int_equal(made, 100);
        for (uint32_t i = 0; i < 100; i++)
            xseg_sheets_put(&sheets, sheet[i]);
        assert_int_equal(sheets.made, made);
    }
    xseg_sheets_fini(&sheets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_memory_of_its_own),
        cmocka_unit_test(what_is_put_back_is_used_again),
    };

    return cmocka_run_group_tests_name("sheets", tests, NULL, NULL);
}
