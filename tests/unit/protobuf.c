/* SPDX-License-Identifier: MIT */
/* The wire format of Protocol Buffers: examples of its specification, and lengths of all sizes. */
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/export/protobuf.h"
#include "tests/support/test.h"

#define BYTES(literal) (literal), sizeof(literal) - 1

static void expect_bytes(struct protobuf *message, const char *bytes, size_t count)
{
    assert_false(message->failed);
    assert_int_equal(message->count, count);
    assert_memory_equal(message->bytes, bytes, count);
    protobuf_fini(message);
}

/* The examples of https://protobuf.dev/programming-guides/encoding/. */
TEST(fields_match_the_specification)
{
    struct protobuf message = {0};

    protobuf_number(&message, 1, 150);
    expect_bytes(&message, BYTES("\x08\x96\x01"));
    protobuf_text(&message, 2, "testing");
    expect_bytes(&message, BYTES("\x12\x07testing"));
    size_t position = protobuf_begin(&message, 3);
    protobuf_number(&message, 1, 150);
    protobuf_end(&message, position);
    expect_bytes(&message, BYTES("\x1a\x03\x08\x96\x01"));
    protobuf_number(&message, 16, (uint64_t)INT64_C(-2));
    expect_bytes(&message, BYTES("\x80\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"));
    protobuf_number(&message, 1, 0);
    expect_bytes(&message, BYTES("\x08\x00"));
}

static uint64_t read_varint(const unsigned char **at)
{
    uint64_t number = 0;

    for (unsigned shift = 0;; shift += 7) {
        number |= (uint64_t)(**at & 0x7f) << shift;
        if (*(*at)++ < 0x80)
            return number;
    }
}

TEST(lengths_of_all_sizes_are_in_front)
{
    for (size_t bytes = 0; bytes < 40000; bytes = bytes * 3 / 2 + 1) {
        struct protobuf message = {0};
        char *text = malloc(bytes + 1);

        assert_non_null(text);
        memset(text, 'x', bytes);
        text[bytes] = '\0';
        size_t outer = protobuf_begin(&message, 1), inner = protobuf_begin(&message, 2);
        protobuf_text(&message, 3, text);
        protobuf_end(&message, inner);
        protobuf_number(&message, 4, 5);
        protobuf_end(&message, outer);
        const unsigned char *at = message.bytes;
        assert_int_equal(*at++, 1 << 3 | 2);
        uint64_t length = read_varint(&at);
        assert_int_equal(length, message.bytes + message.count - at);
        assert_int_equal(*at++, 2 << 3 | 2);
        length = read_varint(&at);
        assert_int_equal(length, message.bytes + message.count - 2 - at);
        assert_int_equal(*at++, 3 << 3 | 2);
        assert_int_equal(read_varint(&at), bytes);
        assert_memory_equal(at, text, bytes);
        assert_memory_equal(at + bytes, "\x20\x05", 2);
        protobuf_fini(&message);
        free(text);
    }
}

TEST(a_message_is_written_once)
{
    struct protobuf message = {0};
    char text[16] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    assert_non_null(out);
    protobuf_number(&message, 1, 2);
    protobuf_write(&message, out);
    protobuf_number(&message, 3, 4);
    protobuf_write(&message, out);
    protobuf_write(&message, out);
    assert_int_equal(ftell(out), 4);
    (void)fclose(out);
    assert_memory_equal(text, "\x08\x02\x18\x04", 4);
    protobuf_fini(&message);
}
