/* SPDX-License-Identifier: MIT */
/* The reader of traces: valid files, and errors of invalid ones. */
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "src/tools/containers/containers.h"
#include "src/tools/reading/input.h"
#include "src/tools/trace/xtrace.h"
#include "tests/support/test.h"

#define HEAD "xtrace 1\n"

static bool read_bytes(const void *bytes, size_t size, struct xtrace *trace,
                       struct xtrace_fault *fault)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    rewind(file);
    bool succeeded = xtrace_read(file, -1, trace, fault);
    fclose(file);
    return succeeded;
}

static struct xtrace read_valid(const char *text)
{
    struct xtrace trace;
    struct xtrace_fault fault;

    if (!read_bytes(text, strlen(text), &trace, &fault))
        fail_msg("line %lu: %s", (unsigned long)fault.line, fault.text);
    return trace;
}

static void expect_error(const void *bytes, size_t size, uint64_t line, const char *words)
{
    struct xtrace trace;
    struct xtrace_fault fault = {0, ""};

    if (read_bytes(bytes, size, &trace, &fault)) {
        xtrace_fini(&trace);
        fail_msg("accepted: %.40s", (const char *)bytes);
    }
    if (!strstr(fault.text, words) || fault.line != line)
        fail_msg("expected %lu: %s, got %lu: %s", (unsigned long)line, words,
                 (unsigned long)fault.line, fault.text);
}

TEST(every_operation_is_read)
{
    struct xtrace trace = read_valid(HEAD "# text\nc max_split_size_mb:64\nd 950\n"
                                          "a 7 512 0\na 18446744073709551615 1024 9 3\nu 7 9\nk 9\n"
                                          "y 9\ny *\nw 0 9\ne\ncb 4 9\nce 4\npb 3 0\npe 3\npr 3\n"
                                          "m a label\n@ 5\n@ 5\nf 7\n");
    static const enum xtrace_kind kinds[] = {
        XTRACE_ALLOC,         XTRACE_ALLOC,       XTRACE_USE,         XTRACE_WORK,
        XTRACE_FINISH,        XTRACE_FINISH_ALL,  XTRACE_WAIT,        XTRACE_EMPTY,
        XTRACE_CAPTURE_BEGIN, XTRACE_CAPTURE_END, XTRACE_ROUTE_BEGIN, XTRACE_ROUTE_END,
        XTRACE_POOL_RELEASE,  XTRACE_MARK,        XTRACE_CLOCK,       XTRACE_CLOCK,
        XTRACE_FREE,
    };

    assert_int_equal(trace.op_count, COUNT_OF(kinds));
    for (size_t i = 0; i < trace.op_count; i++) {
        assert_int_equal(trace.ops[i].kind, kinds[i]);
        assert_int_equal(trace.ops[i].line, i + 5); /* after four other lines */
    }
    assert_string_equal(trace.config, "max_split_size_mb:64");
    assert_int_equal(trace.device_bytes, (uint64_t)950 << 20);
    assert_int_equal(trace.events, 3);
    assert_int_equal(trace.stream_count, 2);
    assert_int_equal(trace.pool_count, 3);
    assert_int_equal(trace.ops[1].value, 1024);
    assert_int_equal(trace.ops[1].stream, 1);
    assert_int_equal(trace.ops[1].pool, 1);
    assert_int_equal(trace.ops[6].awaited, 1);
    assert_int_equal(trace.ops[8].pool, 2);
    assert_string_equal(trace.labels + trace.ops[13].value, "a label");
    xtrace_fini(&trace);
}

TEST(slots_of_freed_blocks_are_reused)
{
    struct xtrace trace = read_valid(HEAD "a 1 1 0\na 2 2 0\nf 1\na 3 3 0\nf 3\nf 2\n");

    assert_int_equal(trace.slot_count, 2);
    assert_int_equal(trace.ops[3].slot, trace.ops[0].slot);
    assert_int_not_equal(trace.ops[1].slot, trace.ops[0].slot);
    assert_null(trace.config);
    xtrace_fini(&trace);
    /* A failed allocation releases its slot.  An empty configuration differs from none. */
    trace = read_valid(HEAD "c \na 1 1 0\n# between\n! oom\na 2 2 0\nf 2\n");
    assert_true(trace.ops[0].failed);
    assert_false(trace.ops[1].failed);
    assert_int_equal(trace.slot_count, 1);
    assert_string_equal(trace.config, "");
    xtrace_fini(&trace);
}

TEST(answers_have_their_position)
{
    struct xtrace trace = read_valid(HEAD "= 0 0 0 0 0 0 0 0 0\na 1 1 0\n"
                                          "= 1 2 3 4 5 6 7 8 18446744073709551615\n"
                                          "s allocation 1 2 3 4 5 6 7 8 9 10 11 12\n"
                                          "s oversize_segments 1 2 3 4\ns num_ooms 77\n");

    assert_int_equal(trace.answer_count, 5);
    assert_int_equal(trace.answers[0].after, 0);
    assert_int_equal(trace.answers[1].after, 1);
    assert_int_equal(trace.answers[1].line, 4);
    assert_int_equal(trace.answers[1].row, XTRACE_ROW_NOW);
    assert_true(trace.answers[1].number[8] == UINT64_MAX);
    assert_int_equal(trace.answers[2].row, XTRACE_ROW_ALLOCATION);
    assert_int_equal(trace.answers[2].number[11], 12);
    assert_int_equal(trace.answers[3].row, XTRACE_ROW_OVERSIZE_SEGMENTS);
    assert_int_equal(trace.answers[4].number[0], 77);
    xtrace_fini(&trace);
}

static const struct {
    const char *text;
    uint64_t line;
    const char *words;
} invalid_files[] = {
    {"", 0, "the file is empty"},
    {"xtrace 2\n", 1, "unsupported version of the format, '2'"},
    {"xtrace 1 \n", 1, "unsupported version of the format, '1 '"},
    {"hello\n", 0, "a text file that begins with 'hello'"},
    {HEAD "a 1 512 0", 2, "in the middle of a line"},
    {HEAD "q\n", 2, "unknown operation, 'q'"},
    {HEAD "\001\377\n", 2, "unknown operation, '\001\377"},
    {HEAD "a\n", 2, "takes ID BYTES STREAM"},
    {HEAD "a 1 512\n", 2, "takes ID BYTES STREAM"},
    {HEAD "a 1 512 0 1 1\n", 2, "takes ID BYTES STREAM"},
    {HEAD "a 1  512 0\n", 2, "one space"},
    {HEAD "a 1 512 0 \n", 2, "one space"},
    {HEAD "a 1 -5 0\n", 2, "not a decimal number"},
    {HEAD "a 1 0x5 0\n", 2, "not a decimal number"},
    {HEAD "a 1 512 0\r\n", 2, "not a decimal number"},
    {HEAD "a 1 18446744073709551616 0\n", 2, "64 bits"},
    {HEAD "a 99999999999999999999999 1 0\n", 2, "64 bits"},
    {HEAD "a 1 512 0\na 1 512 0\n", 3, "never used twice"},
    {HEAD "a 1 512 0\nf 1\na 1 512 0\n", 4, "never used twice"},
    {HEAD "f 1\n", 2, "never allocated"},
    {HEAD "a 1 512 0\nf 1\nf 1\n", 4, "freed on line 3"},
    {HEAD "a 1 512 0\nf 1\nu 1 0\n", 4, "freed on line 3"},
    {HEAD "a 1 512 0\n! oom\nf 1\n", 4, "its allocation on line 2 failed"},
    {HEAD "a 1 512 0\n! oom\n! oom\n", 4, "must follow an allocation"},
    {HEAD "a 1 512 0\nk 0\n! oom\n", 4, "must follow an allocation"},
    {HEAD "a 1 512 0\n! fire\n", 3, "not by 'fire'"},
    {HEAD "y\n", 2, "takes STREAM, or *"},
    {HEAD "y * *\n", 2, "takes STREAM, or *"},
    {HEAD "e 1\n", 2, "takes nothing"},
    {HEAD "cb 1 0\n", 2, "default stream"},
    {HEAD "cb 0 1\n", 2, "default pool"},
    {HEAD "cb 1 1\ncb 1 2\n", 3, "begun on line 2"},
    {HEAD "cb 1 1\ncb 2 1\n", 3, "captured already"},
    {HEAD "ce 1\n", 2, "no capture"},
    {HEAD "pb 1 1\nce 1\n", 3, "no capture"},
    {HEAD "pe 1\n", 2, "no routing"},
    {HEAD "pr 1\n", 2, "never begun"},
    {HEAD "pb 1 1\npr 1\n", 3, "has not ended"},
    {HEAD "pb 1 1\npe 1\npr 1\npr 1\n", 5, "released before"},
    {HEAD "pb 1 1\npe 1\npr 1\na 1 512 0 1\n", 5, "released before"},
    {HEAD "cb 1 1\n= 0 0 0 0 0 0 0 0 0\n", 4, "capture or route of line 2"},
    {HEAD "@ 6\n@ 5\n", 3, "the clock decreases from 6 to 5 microseconds"},
    {HEAD "@ 18446744073709551615\n", 2, "the time exceeds 2^64 nanoseconds"},
    {HEAD "d 0\n", 2, "device memory out of range, 0 MiB"},
    {HEAD "d 18446744073709551615\n", 2, "MiB"},
    {HEAD "d 2\nd 2\n", 3, "duplicate `d` line"},
    {HEAD "d 2 down\n", 2, "rising, falling or shuffled, not 'down'"},
    {HEAD "d 2 falling 1\n", 2, "`d` takes MIB [ORDER]"},
    {HEAD "p 1 0\n", 2, "must follow an allocation"},
    {HEAD "a 1 9 0\np 2 0\n", 3, "no segment began with block 2"},
    {HEAD "a 1 9 0\np 1\n", 3, "`p` takes ID OFFSET"},
    {HEAD "a 1 9 0\n! oom\np 1 0\n", 4, "must follow an allocation"},
    {HEAD "a 1 9 0\na 2 9 0\np 1 0\n", 4, "no segment began with block 1"},
    {HEAD "c a\nc a\n", 3, "duplicate `c` line"},
    {HEAD "c a\tb\n", 2, "not printable"},
    {HEAD "= 1 2 3\n", 2, "takes 9 numbers"},
    {HEAD "= 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18\n", 2, "takes 9 numbers"},
    {HEAD "s\n", 2, "name of a statistic"},
    {HEAD "s nothing 1\n", 2, "unknown statistic, 'nothing'"},
    {HEAD "s num_ooms\n", 2, "takes 1 number"},
    {HEAD "s active 1\n", 2, "takes 12 numbers"},
};

TEST(invalid_files_are_rejected)
{
    for (size_t i = 0; i < COUNT_OF(invalid_files); i++)
        expect_error(invalid_files[i].text, strlen(invalid_files[i].text), invalid_files[i].line,
                     invalid_files[i].words);
    expect_error(HEAD "a 1\0 512 0\n", sizeof(HEAD "a 1\0 512 0\n") - 1, 2, "NUL");
}

TEST(long_lines_are_rejected)
{
    size_t size = (size_t)1 << 20;
    char *text = malloc(size);

    memset(text, 'x', size);
    memcpy(text, HEAD "#", sizeof(HEAD));
    expect_error(text, size, 2, "longer than 16384");
    /* The maximum length. */
    text[strlen(HEAD) + LINES_MAX] = '\n';
    text[strlen(HEAD) + LINES_MAX + 1] = '\0';
    struct xtrace trace = read_valid(text);
    assert_int_equal(trace.op_count, 0);
    xtrace_fini(&trace);
    free(text);
}

TEST(excess_streams_are_rejected)
{
    char *text = malloc(32 * XTRACE_STREAMS);
    size_t length = (size_t)sprintf(text, HEAD);

    for (unsigned i = 1; i <= XTRACE_STREAMS; i++)
        length += (size_t)sprintf(text + length, "k %u\n", i * 1000003);
    expect_error(text, length, XTRACE_STREAMS + 1, "streams");
    free(text);
}

/* A text that is larger than every buffer of the reader. */
static char *long_text(size_t *length)
{
    char *text = malloc(40 * 100000);

    *length = (size_t)sprintf(text, HEAD);
    for (unsigned i = 0; i < 50000; i++)
        *length += (size_t)sprintf(text + *length, "a %llu %u 0\nf %llu\n", i * 0x1000000000001ull,
                                   i, i * 0x1000000000001ull);
    return text;
}

TEST(compressed_files_are_equal_to_plain_ones)
{
    size_t length;
    char *text = long_text(&length);
    struct xtrace plain = read_valid(text), decompressed;
    struct xtrace_fault fault;

    size_t capacity = ZSTD_compressBound(length);
    char *compressed = malloc(2 * capacity);
    /* Two consecutive frames form one text. */
    size_t first = ZSTD_compress(compressed, capacity, text, length / 3, 1);
    size_t size = first + ZSTD_compress(compressed + first, capacity, text + length / 3,
                                        length - length / 3, 19);

    assert_true(read_bytes(compressed, size, &decompressed, &fault));
    assert_int_equal(decompressed.op_count, 100000);
    assert_int_equal(decompressed.op_count, plain.op_count);
    assert_memory_equal(decompressed.ops, plain.ops, plain.op_count * sizeof(*plain.ops));
    xtrace_fini(&decompressed);
    xtrace_fini(&plain);
    free(compressed);
    free(text);
}

TEST(damaged_compression_is_rejected)
{
    size_t length;
    char *text = long_text(&length);
    size_t capacity = ZSTD_compressBound(length);
    char *compressed = malloc(capacity);
    size_t size = ZSTD_compress(compressed, capacity, text, length, 3);
    struct xtrace trace;
    struct xtrace_fault fault;

    for (size_t truncated = 4; truncated < size; truncated += size / 50 + 1) {
        assert_false(read_bytes(compressed, truncated, &trace, &fault));
        assert_non_null(strstr(fault.text, "is truncated"));
    }
    memset(compressed + size / 2, 0x55, 16);
    assert_false(read_bytes(compressed, size, &trace, &fault));
    free(compressed);
    free(text);
}

/* 160 MiB of text are 80 Mi operations, which exceed 1 GiB. */
TEST(memory_is_bounded)
{
    const size_t block = (size_t)1 << 20, blocks = 160;
    size_t capacity = ZSTD_compressBound(block) * 2;
    char *text = malloc(block), *compressed = malloc(capacity * 2);
    size_t size = ZSTD_compress(compressed, capacity, HEAD, strlen(HEAD), 1);
    FILE *file = tmpfile();
    struct xtrace trace;
    struct xtrace_fault fault;

    assert_non_null(file);
    for (size_t i = 0; i < block; i += 2)
        memcpy(text + i, "e\n", 2);
    fwrite(compressed, 1, size, file);
    size = ZSTD_compress(compressed, capacity, text, block, 1);
    for (size_t i = 0; i < blocks; i++)
        fwrite(compressed, 1, size, file);
    rewind(file);
    assert_false(xtrace_read(file, -1, &trace, &fault));
    assert_non_null(strstr(fault.text, "1 GiB of host memory"));
    fclose(file);
    free(compressed);
    free(text);
}

TEST(names_are_found_again)
{
    struct id_map map = {NULL, 0, 0};

    assert_null(id_map_find(&map, 0));
    for (uint64_t i = 0; i < 10000; i++) {
        assert_null(id_map_find(&map, i << 32));
        assert_non_null(id_map_add(&map, i << 32, (uint32_t)i, 1));
    }
    for (uint64_t i = 0; i < 10000; i++)
        assert_int_equal(id_map_find(&map, i << 32)->number, i);
    assert_null(id_map_find(&map, 1));
    id_map_fini(&map);
}
