/* SPDX-License-Identifier: MIT */
/* Conversion of a memory snapshot to a trace, compared with an equivalent trace in text form. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/trace/xtrace.h"
#include "tests/support/test.h"

#define BASE UINT64_C(0x7f0000000000)

/* --- Writing pickles. --- */

/* A pickle in memory. */
struct writer {
    unsigned char bytes[16384];
    size_t count;
};

static void write_bytes(struct writer *writer, const void *bytes, size_t count)
{
    assert_true(count <= sizeof(writer->bytes) - writer->count);
    memcpy(writer->bytes + writer->count, bytes, count);
    writer->count += count;
}

static void write_string_of(struct writer *writer, const char *string, size_t length)
{
    write_bytes(writer, (const unsigned char[]){'X', (unsigned char)length, 0, 0, 0}, 5);
    write_bytes(writer, string, length);
}

static void write_string(struct writer *writer, const char *string)
{
    write_string_of(writer, string, strlen(string));
}

/* Write opcodes, and the strings between single quotes. */
static void write_opcodes(struct writer *writer, const char *opcodes)
{
    for (; *opcodes != '\0'; opcodes++)
        if (*opcodes == '\'') {
            const size_t length = strcspn(opcodes + 1, "'");

            write_string_of(writer, opcodes + 1, length);
            opcodes += length + 1;
        } else {
            write_bytes(writer, opcodes, 1);
        }
}

static void write_number(struct writer *writer, uint64_t value)
{
    write_bytes(writer, (const unsigned char[]){0x8a, 9}, 2);
    for (int i = 0; i < 9; i++)
        write_bytes(writer, (const unsigned char[]){(unsigned char)(i < 8 ? value >> 8 * i : 0)},
                    1);
}

static void write_field(struct writer *writer, const char *key, uint64_t value)
{
    write_string(writer, key);
    write_number(writer, value);
}

static void write_pair(struct writer *writer, const char *key, uint64_t first, uint64_t second)
{
    write_string(writer, key);
    write_number(writer, first);
    write_number(writer, second);
    write_opcodes(writer, "\x86");
}

/* A dictionary of an action, to which more fields can be added before close_dict(). */
static void open_entry(struct writer *writer, const char *action, uint64_t address, uint64_t bytes)
{
    write_opcodes(writer, "}('action'");
    write_string(writer, action);
    write_field(writer, strcmp(action, "oom") == 0 ? "device_free" : "addr",
                strcmp(action, "oom") == 0 ? address : BASE + address);
    write_field(writer, "size", bytes);
}

static void close_dict(struct writer *writer)
{
    write_opcodes(writer, "u");
}

static void write_entry(struct writer *writer, const char *action, uint64_t address, uint64_t bytes)
{
    open_entry(writer, action, address, bytes);
    close_dict(writer);
}

struct entry {
    const char *action;
    uint64_t address, bytes;
};

static void write_entries(struct writer *writer, const struct entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        write_entry(writer, entries[i].action, entries[i].address, entries[i].bytes);
}

/* ENTRIES(writer, {action, address, bytes}...) */
#define ENTRIES(writer, ...)                                     \
    write_entries((writer), (const struct entry[]){__VA_ARGS__}, \
                  COUNT_OF(((const struct entry[]){__VA_ARGS__})))

static void write_pool_entry(struct writer *writer, const char *action, uint64_t address,
                             uint64_t bytes, uint64_t pool)
{
    open_entry(writer, action, address, bytes);
    write_pair(writer, "pool_id", 0, pool);
    close_dict(writer);
}

static void write_free(struct writer *writer, uint64_t address, uint64_t bytes)
{
    write_entry(writer, "free_requested", address, bytes);
    write_entry(writer, "free_completed", address, bytes);
}

static void open_segment(struct writer *writer, uint64_t device, uint64_t address, uint64_t bytes)
{
    write_opcodes(writer, "}(");
    write_field(writer, "device", device);
    write_field(writer, "address", BASE + address);
    write_field(writer, "total_size", bytes);
    write_field(writer, "stream", 0);
}

/* A block whose requested size is 12 bytes less than its size. */
static void write_block(struct writer *writer, uint64_t address, uint64_t bytes, const char *state)
{
    write_opcodes(writer, "}(");
    write_field(writer, "address", BASE + address);
    write_field(writer, "size", bytes);
    write_field(writer, "requested_size", bytes - 12);
    write_string(writer, "state");
    write_string(writer, state);
    close_dict(writer);
}

static void open_blocks(struct writer *writer, uint64_t device, uint64_t address, uint64_t bytes)
{
    open_segment(writer, device, address, bytes);
    write_opcodes(writer, "'blocks'](");
}

/* --- A snapshot of one device. --- */

static struct writer begin_snapshot(void)
{
    struct writer writer = {.count = 0};

    write_opcodes(&writer, "\x80\x02}('device_traces'](](");
    return writer;
}

static void begin_segments(struct writer *writer)
{
    write_opcodes(writer, "ee'segments'](");
}

static void end_snapshot(struct writer *writer)
{
    write_opcodes(writer, "eu.");
}

static void end_without_segments(struct writer *writer)
{
    begin_segments(writer);
    end_snapshot(writer);
}

/* --- Reading snapshots. --- */

static bool read_trace(const struct writer *writer, int device, struct xtrace *trace,
                       struct xtrace_fault *fault)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(writer->bytes, 1, writer->count, file), writer->count);
    rewind(file);
    bool succeeded = xtrace_read(file, device, trace, fault);
    fclose(file);
    return succeeded;
}

static void print_op(FILE *out, const struct xtrace *trace, const struct xtrace_op *op)
{
    switch (op->kind) {
    case XTRACE_ALLOC:
        (void)fprintf(out, "a %" PRIu32 " %" PRIu64 " %" PRIu64, op->slot, op->value,
                      trace->stream_name[op->stream]);
        if (op->pool)
            (void)fprintf(out, " %d", op->pool);
        (void)fputs(op->failed ? "!" : "", out);
        break;
    case XTRACE_FREE:
        (void)fprintf(out, "f %" PRIu32, op->slot);
        break;
    case XTRACE_EMPTY:
        (void)fputc('e', out);
        break;
    case XTRACE_POOL_RELEASE:
        (void)fprintf(out, "pr %d", op->pool);
        break;
    case XTRACE_CLOCK:
        (void)fprintf(out, "@ %" PRIu64, op->value);
        break;
    default:
        (void)fprintf(out, "kind %d", op->kind);
    }
    (void)fputc('\n', out);
}

/* Expect the operations of the trace, and its summary. */
static void expect_trace_of(const struct writer *writer, int device, const char *lines,
                            const char *summary)
{
    struct xtrace_fault fault = {0, ""};
    struct xtrace trace;
    char *output = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&output, &bytes);

    assert_non_null(out);
    if (!read_trace(writer, device, &trace, &fault))
        fail_msg("%lu: %s", (unsigned long)fault.line, fault.text);
    for (size_t i = 0; i < trace.op_count; i++)
        print_op(out, &trace, &trace.ops[i]);
    (void)fclose(out);
    assert_string_equal(output, lines);
    assert_string_equal(trace.summary, summary);
    free(output);
    xtrace_fini(&trace);
}

static void expect_trace(const struct writer *writer, const char *lines, const char *summary)
{
    expect_trace_of(writer, -1, lines, summary);
}

static void expect_error(const struct writer *writer, uint64_t line, const char *words)
{
    struct xtrace_fault fault = {99, ""};
    struct xtrace trace;

    if (read_trace(writer, -1, &trace, &fault))
        fail_msg("accepted, expected the error: %s", words);
    if (fault.line != line || !strstr(fault.text, words))
        fail_msg("expected %lu: %s, got %lu: %s", (unsigned long)line, words,
                 (unsigned long)fault.line, fault.text);
}

/* --- Tests. --- */

TEST(allocations_and_frees_are_converted)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"segment_map", 0, 2 << 20}, {"alloc", 0, 1000});
    open_entry(&writer, "alloc", 1024, 700);
    write_field(&writer, "stream", 94399785010032);
    close_dict(&writer);
    write_free(&writer, 0, 1000);
    ENTRIES(&writer, {"alloc", 0, 12}, {"snapshot", 0, 0}, {"annotate", 0, 0});
    end_without_segments(&writer);
    expect_trace(&writer, "a 0 1000 0\na 1 700 94399785010032\nf 0\na 0 12 0\n",
                 "device 0, 8 entries");
}

TEST(block_is_freed_at_free_completed)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"alloc", 0, 1000}, {"free_requested", 0, 1000}, {"alloc", 1024, 2000},
            {"free_completed", 0, 1000}, {"alloc", 4096, 3000}, {"free_requested", 1024, 2000});
    end_without_segments(&writer);
    expect_trace(&writer, "a 0 1000 0\na 1 2000 0\nf 0\na 0 3000 0\n", "device 0, 6 entries");
}

TEST(without_completed_frees_requested_ones_count)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"alloc", 0, 1000}, {"free_requested", 0, 1000}, {"alloc", 0, 2000});
    end_without_segments(&writer);
    expect_trace(&writer, "a 0 1000 0\nf 0\na 0 2000 0\n", "device 0, 3 entries");
}

/* The history is a ring: blocks of overwritten events are allocated first, in order of addresses. */
TEST(blocks_allocated_before_the_history_come_first)
{
    struct writer writer = begin_snapshot();

    write_free(&writer, 8192, 4000);
    ENTRIES(&writer, {"alloc", 8192, 77}, {"free_completed", 0, 333});
    begin_segments(&writer);
    open_blocks(&writer, 0, 0, 2 << 20);
    write_block(&writer, 0, 512, "inactive");
    write_block(&writer, 512, 1024, "active_allocated");
    write_block(&writer, 8192, 512, "active_allocated");
    write_block(&writer, 16384, 2048, "active_pending_free");
    write_opcodes(&writer, "eu");
    /* Blocks of another device. */
    open_blocks(&writer, 1, 1 << 30, 2 << 20);
    write_block(&writer, 1 << 30, 512, "active_allocated");
    write_opcodes(&writer, "eu");
    end_snapshot(&writer);
    /* 333 + 1012 + 4000 + 2036 bytes = 7.21 KiB */
    expect_trace(&writer, "a 0 333 0\na 1 1012 0\na 2 4000 0\na 3 2036 0\nf 2\na 2 77 0\nf 0\n",
                 "device 0, 4 entries; allocated before the first: 4 blocks, 7.21 KiB");
}

TEST(missing_frees_are_added)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"alloc", 0, 1000}, {"alloc", 0, 2000});
    write_free(&writer, 0, 2000);
    ENTRIES(&writer, {"free_completed", 0, 2000}, {"dance", 0, 2000});
    end_without_segments(&writer);
    expect_trace(&writer, "a 0 1000 0\nf 0\na 0 2000 0\nf 0\n",
                 "device 0, 6 entries; 1 free missing, added where an address is allocated again; "
                 "omitted: 2 of the entries");
}

TEST(failed_request_is_replayed)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"alloc", 0, 1000}, {"segment_free", 2 << 20, 2 << 20},
            {"oom", 5 << 20, 1 << 30});
    end_without_segments(&writer);
    /* The release before it belongs to the failed request. */
    expect_trace(&writer, "a 0 1000 0\na 1 1073741824 0!\n", "device 0, 3 entries");
}

TEST(released_memory_becomes_one_empty_cache)
{
    struct writer writer = begin_snapshot();

    ENTRIES(&writer, {"segment_alloc", 0, 2 << 20}, {"segment_alloc", 4 << 20, 2 << 20},
            {"segment_free", 0, 2 << 20}, {"segment_free", 4 << 20, 2 << 20},
            {"segment_alloc", 8 << 20, 2 << 20}, {"alloc", 8 << 20, 1000});
    write_free(&writer, 8 << 20, 1000);
    write_entry(&writer, "segment_unmap", 8 << 20, 2 << 20);
    end_without_segments(&writer);
    expect_trace(&writer, "e\na 0 1000 0\nf 0\ne\n", "device 0, 9 entries");
}

/* The allocator released the memory itself if it needed the memory for the next growth: the free memory at a later failed
 * request shows that the growth did not fit otherwise. */
TEST(flush_under_memory_pressure_is_skipped)
{
    for (uint64_t extra = 0; extra < 2; extra++) {
        struct writer writer = begin_snapshot();

        ENTRIES(&writer, {"segment_free", 0, 20 << 20}, {"segment_alloc", 0, (60 << 20) + extra},
                {"alloc", 0, 1000}, {"segment_free", 0, (60 << 20) + extra});
        /* At the failed request 20 MiB are reserved and 80 are free.  So 40 MiB were reserved at the start, and 60 free: a
         * growth of more than 60 MiB needed the release. */
        write_entry(&writer, "oom", 80 << 20, 1 << 30);
        begin_segments(&writer);
        open_segment(&writer, 0, 1 << 30, 20 << 20);
        close_dict(&writer);
        end_snapshot(&writer);
        expect_trace(&writer,
                     extra ? "a 0 1000 0\na 1 1073741824 0!\n"
                           : "e\na 0 1000 0\na 1 1073741824 0!\n",
                     "device 0, 5 entries");
    }
}

/* With garbage collection any growth may have released old memory first. */
TEST(garbage_collection_is_skipped)
{
    static const char *const configs[] = {"garbage_collection_threshold:0.8",
                                          "expandable_segments:True"};

    for (int i = 0; i < 2; i++) {
        struct writer writer = begin_snapshot();

        ENTRIES(&writer, {"segment_free", 0, 2 << 20}, {"segment_alloc", 0, 2 << 20},
                {"alloc", 0, 1000});
        write_opcodes(&writer, "ee'allocator_settings'}'PYTORCH_CUDA_ALLOC_CONF'");
        write_string(&writer, configs[i]);
        write_opcodes(&writer, "s'segments'](");
        end_snapshot(&writer);
        expect_trace(&writer, i == 0 ? "a 0 1000 0\n" : "e\na 0 1000 0\n", "device 0, 3 entries");
    }
}

TEST(stack_identifies_the_cause_of_a_release)
{
    static const char *const names[] = {"empty_cache", "c10::cuda::emptyCache()", "forward"};

    for (size_t i = 0; i < 3; i++) {
        struct writer writer = begin_snapshot();

        open_entry(&writer, "segment_unmap", 0, 2 << 20);
        write_opcodes(&writer, "'frames'](}('name'");
        write_string(&writer, names[i]);
        write_opcodes(&writer, "ueu");
        write_entry(&writer, "oom", 0, 4096);
        end_without_segments(&writer);
        expect_trace(&writer, i < 2 ? "e\na 0 4096 0!\n" : "a 0 4096 0!\n", "device 0, 2 entries");
    }
}

TEST(private_pools_are_released_with_their_memory)
{
    struct writer writer = begin_snapshot();

    write_pool_entry(&writer, "alloc", 0, 1000, 3);
    write_pool_entry(&writer, "segment_free", 2 << 20, 2 << 20, 3);
    write_pool_entry(&writer, "alloc", 4096, 2000, 3);
    write_pool_entry(&writer, "free_completed", 0, 1000, 3);
    write_pool_entry(&writer, "segment_free", 0, 2 << 20, 3);
    write_pool_entry(&writer, "alloc", 8192, 5000, 9);
    end_without_segments(&writer);
    expect_trace(&writer, "a 0 1000 0 1\ne\na 1 2000 0 1\nf 0\npr 1\ne\na 0 5000 0 2\n",
                 "device 0, 6 entries");
}

/* Older releases do not name the pool of an entry; the segment does while it exists. */
TEST(segments_identify_the_pool_of_older_entries)
{
    struct writer writer = begin_snapshot();

    write_entry(&writer, "alloc", 0, 1000);
    write_free(&writer, 0, 1000);
    ENTRIES(&writer, {"segment_free", 0, 4 << 20}, {"segment_alloc", 0, 2 << 20},
            {"alloc", 0, 2000}, {"alloc", 2 << 20, 3000}, {"alloc", 8 << 20, 4000});
    begin_segments(&writer);
    open_segment(&writer, 0, 8 << 20, 2 << 20);
    write_pair(&writer, "segment_pool_id", 5, 0);
    close_dict(&writer);
    open_segment(&writer, 0, 0, 2 << 20);
    write_pair(&writer, "segment_pool_id", 0, 1);
    close_dict(&writer);
    end_snapshot(&writer);
    expect_trace(&writer, "a 0 1000 0\nf 0\ne\na 0 2000 0 1\na 1 3000 0\na 2 4000 0 2\n",
                 "device 0, 8 entries");
}

TEST(times_advance_the_clock_in_milliseconds)
{
    static const uint64_t times[] = {1795328907892187, 1795328907892180, 1795328907893186,
                                     1795328907893187, 1795328907893190};
    struct writer writer = begin_snapshot();

    for (uint64_t i = 0; i < 5; i++) {
        open_entry(&writer, "alloc", 512 * i, i + 1);
        write_field(&writer, "time_us", times[i]);
        close_dict(&writer);
    }
    end_without_segments(&writer);
    expect_trace(&writer,
                 "@ 1795328907892187\na 0 1 0\na 1 2 0\na 2 3 0\n"
                 "@ 1795328907893187\na 3 4 0\na 4 5 0\n@ 1795328907893190\n",
                 "device 0, 5 entries");
}

static void write_devices(struct writer *writer)
{
    writer->count = 0;
    write_opcodes(writer, "\x80\x02}('device_traces'](](");
    write_entry(writer, "alloc", 0, 111);
    write_opcodes(writer, "e](");
    write_entry(writer, "alloc", 0, 222);
    write_entry(writer, "alloc", 512, 333);
    begin_segments(writer);
    open_blocks(writer, 7, 0, 2 << 20);
    write_block(writer, 0, 512, "active_allocated");
    write_opcodes(writer, "eu");
    end_snapshot(writer);
}

TEST(device_with_the_most_entries_is_selected)
{
    struct writer writer;
    struct xtrace trace;
    struct xtrace_fault fault = {0, ""};

    write_devices(&writer);
    expect_trace(&writer, "a 0 222 0\na 1 333 0\n", "device 1 of 2, 2 entries");
    expect_trace_of(&writer, 0, "a 0 111 0\n", "device 0 of 2, 1 entry");
    expect_trace_of(&writer, 7, "a 0 500 0\n",
                    "device 7 of 2, 0 entries; allocated before the first: 1 block, 500 bytes");
    assert_false(read_trace(&writer, 5, &trace, &fault));
    assert_non_null(strstr(fault.text, "nothing to replay, device 5"));
}

TEST(snapshot_without_history_keeps_allocated_blocks)
{
    struct writer writer = {.count = 0};

    write_opcodes(&writer, "\x80\x02](");
    open_blocks(&writer, 3, 0, 2 << 20);
    write_block(&writer, 512, 1024, "active_allocated");
    write_opcodes(&writer, "eue.");
    expect_trace(&writer, "a 0 1012 0\n",
                 "device 3, 0 entries; allocated before the first: 1 block, 1,012 bytes");
}

TEST(settings_become_the_configuration)
{
    static const struct {
        const char *text, *expandable, *config;
    } rows[] = {
        {"max_split_size_mb:64", "\x89", "max_split_size_mb:64"},
        {"max_split_size_mb:64", "\x88", "max_split_size_mb:64,expandable_segments:True"},
        {"expandable_segments:True", "\x88", "expandable_segments:True"},
        {"", "\x88", "expandable_segments:True"},
        {"", "\x89", ""},
        {NULL, "\x88", "expandable_segments:True"},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct xtrace trace;
        struct xtrace_fault fault;
        struct writer writer = begin_snapshot();

        write_entry(&writer, "alloc", 0, 1);
        write_opcodes(&writer, "ee'allocator_settings'}(");
        if (rows[i].text) {
            write_string(&writer, "PYTORCH_CUDA_ALLOC_CONF");
            write_string(&writer, rows[i].text);
        }
        write_string(&writer, "expandable_segments");
        write_opcodes(&writer, rows[i].expandable);
        write_opcodes(&writer, "u'segments'](");
        end_snapshot(&writer);
        assert_true(read_trace(&writer, -1, &trace, &fault));
        assert_string_equal(trace.config, rows[i].config);
        assert_int_equal(trace.device_bytes, 0);
        xtrace_fini(&trace);
    }
}

TEST(errors_name_their_entry)
{
    static const struct {
        const char *action, *key;
        uint64_t value, line;
        const char *words;
    } rows[] = {
        {"alloc", "addr", UINT64_MAX, 0, "device 0, entry 2: range exceeds the address space"},
        {"alloc", "time_us", UINT64_MAX, 2, "time exceeds 2^64 nanoseconds"},
        {"alloc", "pool_id", 5, 0, "device 0, entry 2: `pool_id` is not a pair of numbers"},
    };
    struct writer writer;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        writer = begin_snapshot();
        write_entry(&writer, "alloc", 0, 1);
        open_entry(&writer, rows[i].action, 512, 1000);
        write_field(&writer, rows[i].key, rows[i].value);
        close_dict(&writer);
        end_without_segments(&writer);
        expect_error(&writer, rows[i].line, rows[i].words);
    }
    writer = begin_snapshot();
    write_opcodes(&writer, "}('action''alloc'u}");
    end_without_segments(&writer);
    expect_error(&writer, 0, "device 0, entry 1: `addr` is missing or not a number");
    writer = begin_snapshot();
    open_entry(&writer, "alloc", 0, 1);
    write_opcodes(&writer, "'stream'N");
    close_dict(&writer);
    end_without_segments(&writer);
    expect_error(&writer, 0, "device 0, entry 1: `stream` is not a number");
    writer = begin_snapshot();
    write_opcodes(&writer, "}");
    end_without_segments(&writer);
    expect_error(&writer, 0, "device 0, entry 1: no `action`");
}

TEST(errors_outside_entries_name_their_place)
{
    struct writer writer = begin_snapshot();

    begin_segments(&writer);
    write_opcodes(&writer, "}");
    end_snapshot(&writer);
    expect_error(&writer, 0, "segment 1: `device` is missing");
    writer = begin_snapshot();
    begin_segments(&writer);
    open_segment(&writer, 0, UINT64_MAX - BASE, 2);
    close_dict(&writer);
    end_snapshot(&writer);
    expect_error(&writer, 0, "segment 1: range exceeds the address space");
    writer = begin_snapshot();
    begin_segments(&writer);
    open_segment(&writer, 0, 0, 2);
    write_opcodes(&writer, "'blocks'](}eu");
    end_snapshot(&writer);
    expect_error(&writer, 0, "segment 1: a block has no `state`");
    writer = begin_snapshot();
    begin_segments(&writer);
    open_blocks(&writer, 0, 0, 2);
    write_block(&writer, 0, 512, "active_allocated");
    for (int i = 0; i < 100; i++)
        write_opcodes(&writer, "2");
    write_opcodes(&writer, "eu");
    end_snapshot(&writer);
    expect_error(&writer, 0, "segments share lists of blocks");
    writer = begin_snapshot();
    end_without_segments(&writer);
    expect_error(&writer, 0, "nothing to replay, device 0");
    writer.count = 0;
    write_opcodes(&writer, "\x80\x02}.");
    expect_error(&writer, 0, "no memory snapshot");
    writer.count = 0;
    write_opcodes(&writer, "\x80\x02}s.");
    expect_error(&writer, 0, "byte 3: stack underflow");
}
