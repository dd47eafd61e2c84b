/* SPDX-License-Identifier: MIT */
/* Amounts in reports. */
#include "src/tools/output/amount.h"
#include "tests/support/test.h"

TEST(bytes_have_a_unit_that_fits)
{
    assert_string_equal(amount_bytes(0).text, "0 bytes");
    assert_string_equal(amount_bytes(KIB - 1).text, "1,023 bytes");
    assert_string_equal(amount_bytes(KIB).text, "1.00 KiB");
    assert_string_equal(amount_bytes(3 * GIB / 2).text, "1.50 GiB");
    assert_string_equal(amount_bytes(UINT64_MAX).text, "16,777,216.00 TiB");
    assert_string_equal(amount_bytes(GIB - KIB).text, "1,024.00 MiB");
    assert_true(amount_bytes_equal(GIB, GIB + KIB));
    assert_false(amount_bytes_equal(GIB, GIB + GIB / 100));
}

TEST(amounts_below_the_last_digit_differ_from_zero)
{
    assert_string_equal(amount_bytes_in_row(KIB, (double)GIB).text, "< 0.01 GiB");
    assert_string_equal(amount_bytes_in_row(0, (double)GIB).text, "0.00 GiB");
    assert_string_equal(amount_time_in_row(99e3, 2e7).text, "< 0.1 ms");
    assert_string_equal(amount_time_in_row(1e5, 2e7).text, "0.1 ms");
    assert_string_equal(amount_time(0.04).text, "< 0.1 ns");
    assert_string_equal(amount_time(0).text, "0.0 ns");
}

TEST(times_have_a_unit_that_fits)
{
    assert_string_equal(amount_time(9999.4).text, "9,999.4 ns");
    assert_string_equal(amount_time(1e4).text, "10.0 us");
    assert_string_equal(amount_time(12e9).text, "12.00 s");
    assert_string_equal(amount_time_in_row(5e5, 2e7).text, "0.5 ms");
}

TEST(changes_have_a_sign)
{
    assert_string_equal(amount_change(0).text, "=");
    assert_string_equal(amount_change((int64_t)KIB).text, "+1.00 KiB");
    assert_string_equal(amount_change(-(int64_t)GIB).text, "-1.00 GiB");
    assert_string_equal(amount_change(INT64_MIN).text, "-8,388,608.00 TiB");
}

TEST(counts_have_commas_and_percentages_have_a_fixed_width)
{
    assert_string_equal(amount_count(999).text, "999");
    assert_string_equal(amount_count(1234567).text, "1,234,567");
    assert_string_equal(amount_count(UINT64_MAX).text, "18,446,744,073,709,551,615");
    assert_string_equal(amount_share(1, 8).text, " 12.50 %");
    assert_string_equal(amount_share(8, 8).text, "100.00 %");
    assert_string_equal(amount_share(1, 0).text, "  0.00 %");
}
