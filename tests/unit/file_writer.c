/* SPDX-License-Identifier: MIT */
/* Files that are written sequentially, and whose end can be truncated. */
#include "src/base/file_writer.h"
#include "tests/support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BIG (3 * XSEG_FILE_WRITER_BUFFER + 17)

static struct xseg_file_writer output;

static int make_file(void)
{
    char name[] = P_tmpdir "/xseg-output-XXXXXX";
    const int file = mkstemp(name);

    assert_true(file >= 0);
    assert_int_equal(unlink(name), 0);
    return file;
}

/* The byte that belongs at an offset. */
static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 7 + offset / 251);
}

/* Write up to an offset, in pieces of many sizes. */
static void write_up_to(uint64_t end)
{
    static unsigned char bytes[2 * XSEG_FILE_WRITER_BUFFER];
    static const size_t sizes[] = {
        1, 3, 4096, XSEG_FILE_WRITER_BUFFER - 1, XSEG_FILE_WRITER_BUFFER, 100000};
    unsigned piece = 0;

    while (xseg_file_writer_offset(&output) < end) {
        const uint64_t offset = xseg_file_writer_offset(&output);
        size_t count = sizes[piece++ % COUNT_OF(sizes)];

        count = count < end - offset ? count : (size_t)(end - offset);
        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_at(offset + i);
        if (count == 1)
            xseg_file_writer_write_byte(&output, bytes[0]);
        else
            xseg_file_writer_write(&output, bytes, count);
    }
}

/* The file has exactly these bytes from an offset on. */
static void expect_bytes(int file, uint64_t origin, uint64_t count)
{
    static unsigned char bytes[BIG + 100];

    assert_true(count < sizeof(bytes));
    assert_int_equal(pread(file, bytes, sizeof(bytes), (off_t)origin), count);
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(bytes[i], byte_at(i));
}

TEST(all_bytes_arrive_in_order)
{
    static const uint64_t sizes[] = {
        0,  1, XSEG_FILE_WRITER_BUFFER - 1, XSEG_FILE_WRITER_BUFFER, XSEG_FILE_WRITER_BUFFER + 1,
        BIG};

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const int file = make_file();

        xseg_file_writer_init(&output, file);
        write_up_to(sizes[i]);
        assert_int_equal(xseg_file_writer_offset(&output), sizes[i]);
        assert_true(xseg_file_writer_flush(&output));
        expect_bytes(file, 0, sizes[i]);
        assert_int_equal(close(file), 0);
    }
}

/* Truncate to offsets inside and at the boundaries of buffers, each time after two buffers of other bytes; then continue. */
TEST(truncated_bytes_are_not_written)
{
    enum { BUFFER = XSEG_FILE_WRITER_BUFFER };
    static const uint64_t offsets[] = {BIG, BIG - 1, 2 * BUFFER + 1, 2 * BUFFER, BUFFER - 1, 1, 0};

    for (uint64_t origin = 0; origin <= 5; origin += 5) {
        const int file = make_file();

        assert_int_equal(write(file, "front", origin), origin);
        xseg_file_writer_init(&output, file);
        for (size_t i = 0; i < COUNT_OF(offsets); i++) {
            write_up_to(offsets[i]);
            xseg_file_writer_write(&output, "wrong", 5);
            for (unsigned k = 0; k < 30000; k++)
                xseg_file_writer_write(&output, "wrong", 5);
            assert_true(xseg_file_writer_truncate(&output, offsets[i]));
            assert_int_equal(xseg_file_writer_offset(&output), offsets[i]);
            write_up_to(BIG);
        }
        assert_true(xseg_file_writer_flush(&output));
        expect_bytes(file, origin, BIG);
        assert_int_equal(close(file), 0);
    }
}

/* Buffered bytes of a pipe can be truncated, written bytes cannot. */
TEST(unseekable_file_keeps_its_bytes)
{
    static unsigned char bytes[200]; /* more than the pipe has */
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    xseg_file_writer_init(&output, ends[1]);
    write_up_to(100);
    assert_true(xseg_file_writer_flush(&output));
    xseg_file_writer_write(&output, "wrong", 5);
    assert_true(xseg_file_writer_truncate(&output, 100));
    write_up_to(150);
    assert_false(xseg_file_writer_truncate(&output, 99));
    assert_int_equal(xseg_file_writer_offset(&output), 150);
    assert_true(xseg_file_writer_flush(&output));
    assert_int_equal(read(ends[0], bytes, sizeof(bytes)), 150);
    for (unsigned i = 0; i < 150; i++)
        assert_int_equal(bytes[i], byte_at(i));
    assert_int_equal(close(ends[0]) + close(ends[1]), 0);
}

TEST(first_error_is_kept)
{
    const int file = open("/dev/full", O_WRONLY | O_CLOEXEC);

    assert_true(file >= 0);
    xseg_file_writer_init(&output, file);
    write_up_to(10);
    assert_false(xseg_file_writer_flush(&output));
    assert_int_equal(output.error, ENOSPC);
    assert_int_equal(close(file), 0);
    for (unsigned i = 0; i < 30000; i++)
        xseg_file_writer_write(&output, "wrong", 5);
    assert_false(xseg_file_writer_flush(&output));
    assert_int_equal(output.error, ENOSPC);
    /* Offsets never decrease, so a caller may compare them. */
    assert_int_equal(xseg_file_writer_offset(&output), 10 + 30000 * 5);
}
