/* SPDX-License-Identifier: MIT */
/* Sheets: batches that grow up to a huge page, nothing shared, and what is put back is used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/sheets.h"

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

static void batches_grow_up_to_a_huge_page(void **state)
{
    struct xseg_sheets sheets = {0};
    bool was_huge = false;

    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t made = sheets.made;
        const size_t before = sheets.host_bytes;

        sheet[i] = xseg_sheets_take(&sheets, NULL, i);
        assert_non_null(sheet[i]);
        assert_int_equal(sheet[i]->number, i);
        expect_empty(sheet[i]);
        memset(sheet[i], 0xA5, sizeof(struct xseg_sheet));
        const size_t grown = sheets.host_bytes - before;
        assert_true(sheets.made == made || sheets.made - made <= made / 4 + 1);
        assert_true(grown <= 2 * XSEG_MIB && grown >= (sheets.made - made) * sizeof(*sheet[i]));
        was_huge = was_huge || grown == 2 * XSEG_MIB;
    }
    assert_true(was_huge);
    /* Made ahead is at most a quarter more than was asked for. */
    assert_in_range(sheets.made, MANY, MANY + MANY / 4);
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
        assert_in_range(made, 100, 125);
        for (uint32_t i = 0; i < 100; i++)
            xseg_sheets_put(&sheets, sheet[i]);
        assert_int_equal(sheets.made, made);
    }
    xseg_sheets_fini(&sheets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_grow_up_to_a_huge_page),
        cmocka_unit_test(what_is_put_back_is_used_again),
    };

    return cmocka_run_group_tests_name("sheets", tests, NULL, NULL);
}
