/* SPDX-License-Identifier: MIT */
/*
 * The assumption of all other sections: kernels and the host compute the same pattern, and a check detects a difference
 * of a single byte.
 *
 * The host compares the pattern with known outputs of splitmix64, and the data of kernels with the pattern; a kernel
 * checks data of the host.  Then single bytes are overwritten without calls of the allocator.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define GUARD 16u /* guard bytes after a piece, which must not change */
#define FILL  0xa5

static const size_t sizes[] = {1,    2,    7,    8,     9,     15,    511,     512,        513,
                               1023, 2047, 4095, 65535, 65536, 65537, 1000003, 9 * MIB + 5};

struct test {
    struct stage *stage;
    struct xseg_allocator *allocator;
    CUstream stream;
    struct piece piece, copy;
    unsigned char *host; /* of the size of the piece and its guard */
};

static void check_known_outputs(void)
{
    static const uint64_t known[] = {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};

    for (uint64_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (pattern_word(1234567, 0, i) != known[i])
            journal_wrong("word %" PRIu64 " of the pattern is %" PRIu64
                          ", and that of splitmix64 is %" PRIu64,
                          i, pattern_word(1234567, 0, i), known[i]);
    journal_note("known_words", sizeof(known) / sizeof(known[0]), "ok", "of splitmix64");
}

static void copy_back(const struct test *test, CUdeviceptr from)
{
    CU(MemcpyDtoHAsync, test->host, from, test->piece.bytes + GUARD, test->stream);
    CU(StreamSynchronize, test->stream);
}

static void compare_by_host(const struct test *test, const struct piece *piece, const char *text)
{
    copy_back(test, piece->address);
    const struct pattern_report report =
        pattern_check(test->host, piece->bytes, piece->seed, piece->mask);
    kernel_report(piece, &report);
    for (unsigned i = 0; i < GUARD; i++)
        if (test->host[piece->bytes + i] != FILL)
            journal_wrong("%s of %zu bytes: a kernel wrote to byte %u past the end", text,
                          piece->bytes, i);
}

static void expect_report(const struct test *test, const char *text, uint64_t count,
                          uint64_t lowest)
{
    const struct piece *piece = &test->piece;
    const struct pattern_report report =
        kernel_check_now(test->stage->checks[0], test->stream, piece);

    if (report.count != count || report.lowest != lowest ||
        report.compared != pattern_words(piece->bytes))
        journal_wrong("%s, %zu bytes: a check found %" PRIu64
                      " words that differ, the lowest number %" PRIu64 ", of %" PRIu64
                      " words; expected %" PRIu64 ", number %" PRIu64 ", of %" PRIu64,
                      text, piece->bytes, report.count, report.lowest, report.compared, count,
                      lowest, pattern_words(piece->bytes));
    if (count != 1)
        return;
    const uint64_t actual = pattern_at(test->host, piece->bytes, lowest);
    if (report.index != lowest || report.got != actual)
        journal_wrong("%s, %zu bytes: a check found %016" PRIx64 " in word %" PRIu64
                      ", and %016" PRIx64 " is in word %" PRIu64,
                      text, piece->bytes, report.got, report.index, actual, lowest);
}

/* Bypasses the allocator; ordered with the kernels of the stream. */
static void overwrite(const struct test *test, size_t offset, unsigned char byte)
{
    journal_operation("overwrite byte %zu of %zu", offset, test->piece.bytes);
    test->host[offset] = byte;
    CU(MemcpyHtoDAsync, test->piece.address + offset, &test->host[offset], 1, test->stream);
    CU(StreamSynchronize, test->stream);
}

static void find_byte(const struct test *test, size_t offset)
{
    const unsigned char byte = test->host[offset];

    overwrite(test, offset, byte ^ 0x40);
    expect_report(test, "one byte was overwritten", 1, offset / sizeof(uint64_t));
    overwrite(test, offset, byte);
    expect_report(test, "the byte was restored", 0, UINT64_MAX);
}

static void find_two(const struct test *test)
{
    const size_t last = test->piece.bytes - 1;
    const unsigned char first_byte = test->host[0], last_byte = test->host[last];

    overwrite(test, last, (unsigned char)~last_byte);
    overwrite(test, 0, (unsigned char)~first_byte);
    expect_report(test, "the first and the last byte were overwritten",
                  last < sizeof(uint64_t) ? 1 : 2, 0);
    overwrite(test, 0, first_byte);
    overwrite(test, last, last_byte);
}

static void test_size(struct test *test)
{
    const size_t bytes = test->piece.bytes;

    CU(MemsetD8Async, test->piece.address, FILL, bytes + GUARD, test->stream);
    CU(MemsetD8Async, test->copy.address, FILL, bytes + GUARD, test->stream);
    kernel_write(test->stream, &test->piece);
    kernel_copy(test->stream, test->copy.address, &test->piece, test->copy.mask ^ test->piece.mask);
    compare_by_host(test, &test->copy, "a copy");
    compare_by_host(test, &test->piece, "a write");
    expect_report(test, "written by a kernel", 0, UINT64_MAX);
    find_byte(test, 0);
    find_byte(test, bytes / 2);
    find_byte(test, bytes - 1);
    find_two(test);
    test->piece.seed++;
    pattern_write(test->host, bytes, test->piece.seed, test->piece.mask);
    CU(MemcpyHtoDAsync, test->piece.address, test->host, bytes, test->stream);
    CU(StreamSynchronize, test->stream);
    expect_report(test, "written by the host", 0, UINT64_MAX);
}

static CUdeviceptr allocate(const struct test *test, size_t bytes)
{
    void *address = NULL;

    journal_operation("allocate %zu bytes", bytes);
    XSEG(alloc, test->allocator, 0, bytes, test->stream, &address);
    journal_count(COUNT_BLOCKS, 1);
    return (CUdeviceptr)(uintptr_t)address;
}

static void play_size(struct test *test, size_t bytes, uint64_t seed)
{
    test->host = malloc(bytes + GUARD);
    if (test->host == NULL)
        journal_stop("out of host memory");
    test->piece = (struct piece){.address = allocate(test, bytes + GUARD),
                                 .bytes = bytes,
                                 .seed = seed,
                                 .mask = 0x0123456789abcdef,
                                 .block = 1};
    test->copy = test->piece;
    test->copy.address = allocate(test, bytes + GUARD);
    test->copy.mask = 0xfedcba9876543210;
    test->copy.block = 2;
    test_size(test);
    XSEG(free, test->allocator, (void *)(uintptr_t)test->piece.address);
    XSEG(free, test->allocator, (void *)(uintptr_t)test->copy.address);
    free(test->host);
}

void play_selftest(struct stage *stage)
{
    struct test test = {.stage = stage, .stream = stage->stream[0]};

    check_known_outputs();
    test.allocator =
        stage_open(stage->is_classic ? "expandable_segments:False" : "expandable_segments:True");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        play_size(&test, sizes[i], stage->seed + i);
    journal_note("sizes", sizeof(sizes) / sizeof(sizes[0]), "ok",
                 "written, copied, compared, and overwritten bytes found");
    stage_close(test.allocator);
}
