/* SPDX-License-Identifier: MIT */
/* The bounded text builder: cuts, terminates and counts, whatever the buffer's size. */
#include <string.h>

#include "src/base/align.h"
#include "src/base/string_util.h"
#include "tests/support/test.h"

TEST(a_new_text_is_empty)
{
    char buffer[4] = "abc";
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    assert_string_equal(buffer, "");
    assert_int_equal(text.length, 0);
}

TEST(pieces_are_joined)
{
    char buffer[32];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_strbuf_printf(&text, "%s=%d", "a", 1);
    xseg_strbuf_printf(&text, "%s", "");
    xseg_strbuf_printf(&text, ", %c", 'b');
    assert_string_equal(buffer, "a=1, b");
    assert_int_equal(text.length, strlen(buffer));
}

/* Buffers of every size up to more than enough: the text is cut, and nothing behind is written. */
TEST(no_buffer_size_is_exceeded)
{
    static const char *const whole = "0123456789abcdef";

    for (size_t bytes = 0; bytes < 24; bytes++) {
        char buffer[32];
        struct xseg_strbuf text;

        memset(buffer, '#', sizeof(buffer));
        xseg_strbuf_init(&text, bytes > 0 ? buffer : NULL, bytes);
        xseg_strbuf_printf(&text, "%s", "0123");
        xseg_strbuf_printf(&text, "%s", "456789");
        xseg_strbuf_printf(&text, "%s", "abcdef");
        assert_int_equal(text.length, strlen(whole));
        for (size_t i = bytes; i < sizeof(buffer); i++)
            assert_int_equal(buffer[i], '#');
        if (bytes > 0) {
            assert_non_null(memchr(buffer, '\0', bytes));
            assert_memory_equal(buffer, whole, strlen(buffer));
            assert_int_equal(strlen(buffer), bytes - 1 < strlen(whole) ? bytes - 1 : strlen(whole));
        }
    }
}

TEST(text_after_truncation_is_counted_and_omitted)
{
    char buffer[5];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_strbuf_printf(&text, "123456");
    xseg_strbuf_printf(&text, "7");
    assert_string_equal(buffer, "1234");
    assert_int_equal(text.length, 7);
}

/* In buffers of every size, and only what comes behind a place. */
TEST(unprintable_bytes_are_escaped)
{
    static const char *const whole = "ab\tc\\xff~\\x7f \\x00";

    for (size_t bytes = 0; bytes < 40; bytes++) {
        char buffer[48];
        struct xseg_strbuf text;

        memset(buffer, '#', sizeof(buffer));
        xseg_strbuf_init(&text, buffer, bytes);
        xseg_strbuf_printf(&text, "ab\tc");
        const size_t from = text.length;
        xseg_strbuf_printf(&text, "\xff~\x7f \\x00");
        xseg_strbuf_escape(&text, from);
        for (size_t i = bytes; i < sizeof(buffer); i++)
            assert_int_equal(buffer[i], '#');
        if (bytes > 0)
            assert_memory_equal(buffer, whole, strlen(buffer));
        if (bytes > 0)
            assert_int_equal(strlen(buffer), bytes - 1 < strlen(whole) ? bytes - 1 : strlen(whole));
        if (bytes > strlen(whole))
            assert_int_equal(text.length, strlen(whole));
    }
}

TEST(mebibytes_are_one_unit)
{
    static const struct {
        uint64_t bytes;
        const char *want;
    } row[] = {
        {0, "0.00 MiB"},
        {1, "1 byte"},
        {512, "512 bytes"},
        {XSEG_MIB / 200, "5242 bytes"},
        {XSEG_MIB / 200 + 1, "0.01 MiB"},
        {XSEG_MIB / 2, "0.50 MiB"},
        {81 * XSEG_GIB, "82944.00 MiB"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(row); i++) {
        char buffer[40];
        struct xseg_strbuf text;

        xseg_strbuf_init(&text, buffer, sizeof(buffer));
        xseg_strbuf_add_mib(&text, row[i].bytes);
        assert_string_equal(buffer, row[i].want);
    }
}
