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

#define GUARD 16u /* guard bytes after a buffer, which must not change */
#define FILL  0xa5

static const size_t sizes[] = {1,    2,    7,    8,     9,     15,    511,     512,        513,
                               1023, 2047, 4095, 65535, 65536, 65537, 1000003, 9 * MIB + 5};

struct test {
    struct section_env *env;
    struct xseg_allocator *allocator;
    CUstream stream;
    struct buffer buffer, copy;
    unsigned char *host; /* of the size of the buffer and its guard */
};

static void check_known_outputs(void)
{
    static const uint64_t known_words[] = {6457827717110365317u, 3203168211198807973u,
                                           9817491932198370423u, 4593380528125082431u,
                                           16408922859458223821u};

    for (uint64_t i = 0; i < sizeof(known_words) / sizeof(known_words[0]); i++)
        if (pattern_word(1234567, 0, i) != known_words[i])
            journal_error("word %" PRIu64 " of the pattern is %" PRIu64
                          ", and that of splitmix64 is %" PRIu64,
                          i, pattern_word(1234567, 0, i), known_words[i]);
    journal_result("known_words", sizeof(known_words) / sizeof(known_words[0]), "ok",
                   "of splitmix64");
}

static void copy_to_host(const struct test *test, CUdeviceptr from)
{
    CU(MemcpyDtoHAsync, test->host, from, test->buffer.bytes + GUARD, test->stream);
    CU(StreamSynchronize, test->stream);
}

static void compare_by_host(const struct test *test, const struct buffer *buffer,
                            const char *subject)
{
    copy_to_host(test, buffer->address);
    const struct pattern_report report =
        pattern_check(test->host, buffer->bytes, buffer->seed, buffer->mask);
    kernel_report(buffer, &report);
    for (unsigned i = 0; i < GUARD; i++)
        if (test->host[buffer->bytes + i] != FILL)
            journal_error("%s of %zu bytes: a kernel wrote to byte %u past the end", subject,
                          buffer->bytes, i);
}

static void expect_report(const struct test *test, const char *subject, uint64_t count,
                          uint64_t lowest)
{
    const struct buffer *buffer = &test->buffer;
    const struct pattern_report report =
        kernel_check_now(test->env->checks[0], test->stream, buffer);

    if (report.count != count || report.lowest != lowest ||
        report.compared != pattern_words(buffer->bytes))
        journal_error("%s, %zu bytes: a check found %" PRIu64
                      " words that differ, the lowest number %" PRIu64 ", of %" PRIu64
                      " words; expected %" PRIu64 ", number %" PRIu64 ", of %" PRIu64,
                      subject, buffer->bytes, report.count, report.lowest, report.compared, count,
                      lowest, pattern_words(buffer->bytes));
    if (count != 1)
        return;
    const uint64_t actual = pattern_load(test->host, buffer->bytes, lowest);
    if (report.index != lowest || report.actual != actual)
        journal_error("%s, %zu bytes: a check found %016" PRIx64 " in word %" PRIu64
                      ", and %016" PRIx64 " is in word %" PRIu64,
                      subject, buffer->bytes, report.actual, report.index, actual, lowest);
}

/* Overwrites a byte in stream order, without a call of the allocator. */
static void overwrite(const struct test *test, size_t offset, unsigned char byte)
{
    journal_operation("overwrite byte %zu of %zu", offset, test->buffer.bytes);
    test->host[offset] = byte;
    CU(MemcpyHtoDAsync, test->buffer.address + offset, &test->host[offset], 1, test->stream);
    CU(StreamSynchronize, test->stream);
}

static void expect_byte_detected(const struct test *test, size_t offset)
{
    const unsigned char byte = test->host[offset];

    overwrite(test, offset, byte ^ 0x40);
    expect_report(test, "one byte was overwritten", 1, offset / sizeof(uint64_t));
    overwrite(test, offset, byte);
    expect_report(test, "the byte was restored", 0, UINT64_MAX);
}

static void expect_two_bytes_detected(const struct test *test)
{
    const size_t last = test->buffer.bytes - 1;
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
    const size_t bytes = test->buffer.bytes;

    CU(MemsetD8Async, test->buffer.address, FILL, bytes + GUARD, test->stream);
    CU(MemsetD8Async, test->copy.address, FILL, bytes + GUARD, test->stream);
    kernel_write(test->stream, &test->buffer);
    kernel_copy(test->stream, test->copy.address, &test->buffer,
                test->copy.mask ^ test->buffer.mask);
    compare_by_host(test, &test->copy, "a copy");
    compare_by_host(test, &test->buffer, "a write");
    expect_report(test, "written by a kernel", 0, UINT64_MAX);
    expect_byte_detected(test, 0);
    expect_byte_detected(test, bytes / 2);
    expect_byte_detected(test, bytes - 1);
    expect_two_bytes_detected(test);
    test->buffer.seed++;
    pattern_write(test->host, bytes, test->buffer.seed, test->buffer.mask);
    CU(MemcpyHtoDAsync, test->buffer.address, test->host, bytes, test->stream);
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

static void run_size(struct test *test, size_t bytes, uint64_t seed)
{
    test->host = malloc(bytes + GUARD);
    if (test->host == NULL)
        journal_stop("out of host memory");
    test->buffer = (struct buffer){.address = allocate(test, bytes + GUARD),
                                   .bytes = bytes,
                                   .seed = seed,
                                   .mask = 0x0123456789abcdef,
                                   .block = 1};
    test->copy = test->buffer;
    test->copy.address = allocate(test, bytes + GUARD);
    test->copy.mask = 0xfedcba9876543210;
    test->copy.block = 2;
    test_size(test);
    XSEG(free, test->allocator, (void *)(uintptr_t)test->buffer.address);
    XSEG(free, test->allocator, (void *)(uintptr_t)test->copy.address);
    free(test->host);
}

void run_selftest(struct section_env *env)
{
    struct test test = {.env = env, .stream = env->stream[0]};

    check_known_outputs();
    test.allocator = section_open_allocator(env->is_classic ? "expandable_segments:False"
                                                            : "expandable_segments:True");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        run_size(&test, sizes[i], env->seed + i);
    journal_result("sizes", sizeof(sizes) / sizeof(sizes[0]), "ok",
                   "written, copied, compared, and overwritten bytes found");
    section_close_allocator(test.allocator);
}
