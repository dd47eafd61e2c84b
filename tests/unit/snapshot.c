/* SPDX-License-Identifier: MIT */
/* Conversion of a memory snapshot to a trace, compared with an equivalent trace in text form. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/trace/xtrace.h"
#include "tests/support/test.h"

#define BASE UINT64_C(0x7f0000000000)

/* --- Writing pickles. --- */

struct pen {
    unsigned char bytes[16384];
    size_t count;
};

static void put(struct pen *pen, const void *bytes, size_t count)
{
    assert_true(count <= sizeof(pen->bytes) - pen->count);
    memcpy(pen->bytes + pen->count, bytes, count);
    pen->count += count;
}

static void text_of(struct pen *pen, const char *string, size_t length)
{
    put(pen, (const unsigned char[]){'X', (unsigned char)length, 0, 0, 0}, 5);
    put(pen, string, length);
}

static void text(struct pen *pen, const char *string)
{
    text_of(pen, string, strlen(string));
}

/* Opcodes, and strings in single quotes. */
static void op(struct pen *pen, const char *opcodes)
{
    for (; *opcodes != '\0'; opcodes++)
        if (*opcodes == '\'') {
            const size_t length = strcspn(opcodes + 1, "'");

            text_of(pen, opcodes + 1, length);
            opcodes += length + 1;
        } else {
            put(pen, opcodes, 1);
        }
}

static void number(struct pen *pen, uint64_t value)
{
    put(pen, (const unsigned char[]){0x8a, 9}, 2);
    for (int i = 0; i < 9; i++)
        put(pen, (const unsigned char[]){(unsigned char)(i < 8 ? value >> 8 * i : 0)}, 1);
}

static void field(struct pen *pen, const char *key, uint64_t value)
{
    text(pen, key);
    number(pen, value);
}

static void pair(struct pen *pen, const char *key, uint64_t first, uint64_t second)
{
    text(pen, key);
    number(pen, first);
    number(pen, second);
    op(pen, "\x86");
}

/* A dictionary of an action, to which more fields can be added before close(). */
static void open_entry(struct pen *pen, const char *action, uint64_t address, uint64_t bytes)
{
    op(pen, "}('action'");
    text(pen, action);
    field(pen, strcmp(action, "oom") == 0 ? "device_free" : "addr",
          strcmp(action, "oom") == 0 ? address : BASE + address);
    field(pen, "size", bytes);
}

static void done(struct pen *pen)
{
    op(pen, "u");
}

static void entry(struct pen *pen, const char *action, uint64_t address, uint64_t bytes)
{
    open_entry(pen, action, address, bytes);
    done(pen);
}

struct entry {
    const char *action;
    uint64_t address, bytes;
};

static void write_entries(struct pen *pen, const struct entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        entry(pen, entries[i].action, entries[i].address, entries[i].bytes);
}

/* ENTRIES(pen, {action, address, bytes}...) */
#define ENTRIES(pen, ...)                                     \
    write_entries((pen), (const struct entry[]){__VA_ARGS__}, \
                  COUNT_OF(((const struct entry[]){__VA_ARGS__})))

static void pool_entry(struct pen *pen, const char *action, uint64_t address, uint64_t bytes,
                       uint64_t pool)
{
    open_entry(pen, action, address, bytes);
    pair(pen, "pool_id", 0, pool);
    done(pen);
}

static void free_of(struct pen *pen, uint64_t address, uint64_t bytes)
{
    entry(pen, "free_requested", address, bytes);
    entry(pen, "free_completed", address, bytes);
}

static void open_segment(struct pen *pen, uint64_t device, uint64_t address, uint64_t bytes)
{
    op(pen, "}(");
    field(pen, "device", device);
    field(pen, "address", BASE + address);
    field(pen, "total_size", bytes);
    field(pen, "stream", 0);
}

static void block(struct pen *pen, uint64_t address, uint64_t bytes, const char *state)
{
    op(pen, "}(");
    field(pen, "address", BASE + address);
    field(pen, "size", bytes);
    field(pen, "requested_size", bytes - 12);
    text(pen, "state");
    text(pen, state);
    done(pen);
}

static void open_blocks(struct pen *pen, uint64_t device, uint64_t address, uint64_t bytes)
{
    open_segment(pen, device, address, bytes);
    op(pen, "'blocks'](");
}

/* --- A snapshot of one device. --- */

static struct pen begin(void)
{
    struct pen pen = {.count = 0};

    op(&pen, "\x80\x02}('device_traces'](](");
    return pen;
}

static void begin_segments(struct pen *pen)
{
    op(pen, "ee'segments'](");
}

static void end(struct pen *pen)
{
    op(pen, "eu.");
}

static void end_without_segments(struct pen *pen)
{
    begin_segments(pen);
    end(pen);
}

/* --- Reading them. --- */

static bool read_pen(const struct pen *pen, int device, struct xtrace *trace,
                     struct xtrace_fault *fault)
{
    FILE *file = tmpfile();

    assert_non_null(file);
    assert_int_equal(fwrite(pen->bytes, 1, pen->count, file), pen->count);
    rewind(file);
    bool fine = xtrace_read(file, device, trace, fault);
    fclose(file);
    return fine;
}

static void print_op(FILE *out, const struct xtrace *trace, const struct xtrace_op *at)
{
    switch (at->kind) {
    case XTRACE_ALLOC:
        (void)fprintf(out, "a %" PRIu32 " %" PRIu64 " %" PRIu64, at->slot, at->value,
                      trace->stream_name[at->stream]);
        if (at->pool)
            (void)fprintf(out, " %d", at->pool);
        (void)fputs(at->failed ? "!" : "", out);
        break;
    case XTRACE_FREE:
        (void)fprintf(out, "f %" PRIu32, at->slot);
        break;
    case XTRACE_EMPTY:
        (void)fputc('e', out);
        break;
    case XTRACE_POOL_RELEASE:
        (void)fprintf(out, "pr %d", at->pool);
        break;
    case XTRACE_CLOCK:
        (void)fprintf(out, "@ %" PRIu64, at->value);
        break;
    default:
        (void)fprintf(out, "kind %d", at->kind);
    }
    (void)fputc('\n', out);
}

/* Slots represent blocks, and are reused. */
static void expect_from(const struct pen *pen, int device, const char *lines, const char *note)
{
    struct xtrace_fault fault = {0, ""};
    struct xtrace trace;
    char *got = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&got, &bytes);

    assert_non_null(out);
    if (!read_pen(pen, device, &trace, &fault))
        fail_msg("%lu: %s", (unsigned long)fault.line, fault.text);
    for (size_t i = 0; i < trace.op_count; i++)
        print_op(out, &trace, &trace.ops[i]);
    (void)fclose(out);
    assert_string_equal(got, lines);
    assert_string_equal(trace.summary, note);
    free(got);
    xtrace_fini(&trace);
}

static void expect(const struct pen *pen, const char *lines, const char *note)
{
    expect_from(pen, -1, lines, note);
}

static void expect_bad(const struct pen *pen, uint64_t line, const char *words)
{
    struct xtrace_fault fault = {99, ""};
    struct xtrace trace;

    if (read_pen(pen, -1, &trace, &fault))
        fail_msg("accepted, expected the error: %s", words);
    if (fault.line != line || !strstr(fault.text, words))
        fail_msg("expected %lu: %s, got %lu: %s", (unsigned long)line, words,
                 (unsigned long)fault.line, fault.text);
}

/* --- Tests. --- */

TEST(allocations_and_frees_are_converted)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"segment_map", 0, 2 << 20}, {"alloc", 0, 1000});
    open_entry(&pen, "alloc", 1024, 700);
    field(&pen, "stream", 94399785010032);
    done(&pen);
    free_of(&pen, 0, 1000);
    ENTRIES(&pen, {"alloc", 0, 12}, {"snapshot", 0, 0}, {"annotate", 0, 0});
    end_without_segments(&pen);
    expect(&pen, "a 0 1000 0\na 1 700 94399785010032\nf 0\na 0 12 0\n", "device 0, 8 entries");
}

TEST(block_is_freed_at_free_completed)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"alloc", 0, 1000}, {"free_requested", 0, 1000}, {"alloc", 1024, 2000},
            {"free_completed", 0, 1000}, {"alloc", 4096, 3000}, {"free_requested", 1024, 2000});
    end_without_segments(&pen);
    expect(&pen, "a 0 1000 0\na 1 2000 0\nf 0\na 0 3000 0\n", "device 0, 6 entries");
}

TEST(without_completed_frees_requested_ones_count)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"alloc", 0, 1000}, {"free_requested", 0, 1000}, {"alloc", 0, 2000});
    end_without_segments(&pen);
    expect(&pen, "a 0 1000 0\nf 0\na 0 2000 0\n", "device 0, 3 entries");
}

/* The history is a ring: blocks of overwritten events are allocated first, in order of addresses. */
TEST(blocks_allocated_before_the_history_come_first)
{
    struct pen pen = begin();

    free_of(&pen, 8192, 4000);
    ENTRIES(&pen, {"alloc", 8192, 77}, {"free_completed", 0, 333});
    begin_segments(&pen);
    open_blocks(&pen, 0, 0, 2 << 20);
    block(&pen, 0, 512, "inactive");
    block(&pen, 512, 1024, "active_allocated");
    block(&pen, 8192, 512, "active_allocated");
    block(&pen, 16384, 2048, "active_pending_free");
    op(&pen, "eu");
    /* of another device */
    open_blocks(&pen, 1, 1 << 30, 2 << 20);
    block(&pen, 1 << 30, 512, "active_allocated");
    op(&pen, "eu");
    end(&pen);
    expect(&pen, "a 0 333 0\na 1 1012 0\na 2 4000 0\na 3 2036 0\nf 2\na 2 77 0\nf 0\n",
           "device 0, 4 entries; allocated before the first: 4 blocks, 7.21 KiB");
}

TEST(missing_frees_are_added)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"alloc", 0, 1000}, {"alloc", 0, 2000});
    free_of(&pen, 0, 2000);
    ENTRIES(&pen, {"free_completed", 0, 2000}, {"dance", 0, 2000});
    end_without_segments(&pen);
    expect(&pen, "a 0 1000 0\nf 0\na 0 2000 0\nf 0\n",
           "device 0, 6 entries; 1 free missing, added where an address is allocated again; "
           "omitted: 2 of the entries");
}

TEST(failed_request_is_replayed)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"alloc", 0, 1000}, {"segment_free", 2 << 20, 2 << 20},
            {"oom", 5 << 20, 1 << 30});
    end_without_segments(&pen);
    /* The earlier flush was the allocator's own. */
    expect(&pen, "a 0 1000 0\na 1 1073741824 0!\n", "device 0, 3 entries");
}

TEST(released_memory_becomes_one_empty_cache)
{
    struct pen pen = begin();

    ENTRIES(&pen, {"segment_alloc", 0, 2 << 20}, {"segment_alloc", 4 << 20, 2 << 20},
            {"segment_free", 0, 2 << 20}, {"segment_free", 4 << 20, 2 << 20},
            {"segment_alloc", 8 << 20, 2 << 20}, {"alloc", 8 << 20, 1000});
    free_of(&pen, 8 << 20, 1000);
    entry(&pen, "segment_unmap", 8 << 20, 2 << 20);
    end_without_segments(&pen);
    expect(&pen, "e\na 0 1000 0\nf 0\ne\n", "device 0, 9 entries");
}

/* Growth that exceeds the free memory at a failed request reveals the purpose of the flush. */
TEST(flush_under_memory_pressure_is_skipped)
{
    for (uint64_t more = 0; more < 2; more++) {
        struct pen pen = begin();

        ENTRIES(&pen, {"segment_free", 0, 20 << 20}, {"segment_alloc", 0, (60 << 20) + more},
                {"alloc", 0, 1000}, {"segment_free", 0, (60 << 20) + more});
        /* 20 MiB were still reserved, and 80 were free; 40 were reserved at the start. */
        entry(&pen, "oom", 80 << 20, 1 << 30);
        begin_segments(&pen);
        open_segment(&pen, 0, 1 << 30, 20 << 20);
        done(&pen);
        end(&pen);
        expect(&pen,
               more ? "a 0 1000 0\na 1 1073741824 0!\n" : "e\na 0 1000 0\na 1 1073741824 0!\n",
               "device 0, 5 entries");
    }
}

/* With garbage collection any growth may have released old memory first. */
TEST(garbage_collection_is_skipped)
{
    static const char *const configs[] = {"garbage_collection_threshold:0.8",
                                          "expandable_segments:True"};

    for (int i = 0; i < 2; i++) {
        struct pen pen = begin();

        ENTRIES(&pen, {"segment_free", 0, 2 << 20}, {"segment_alloc", 0, 2 << 20},
                {"alloc", 0, 1000});
        op(&pen, "ee'allocator_settings'}'PYTORCH_CUDA_ALLOC_CONF'");
        text(&pen, configs[i]);
        op(&pen, "s'segments'](");
        end(&pen);
        expect(&pen, i == 0 ? "a 0 1000 0\n" : "e\na 0 1000 0\n", "device 0, 3 entries");
    }
}

TEST(stack_identifies_the_cause_of_a_release)
{
    static const char *const names[] = {"empty_cache", "c10::cuda::emptyCache()", "forward"};

    for (size_t i = 0; i < 3; i++) {
        struct pen pen = begin();

        open_entry(&pen, "segment_unmap", 0, 2 << 20);
        op(&pen, "'frames'](}('name'");
        text(&pen, names[i]);
        op(&pen, "ueu");
        entry(&pen, "oom", 0, 4096);
        end_without_segments(&pen);
        expect(&pen, i < 2 ? "e\na 0 4096 0!\n" : "a 0 4096 0!\n", "device 0, 2 entries");
    }
}

TEST(private_pools_are_released_with_their_memory)
{
    struct pen pen = begin();

    pool_entry(&pen, "alloc", 0, 1000, 3);
    pool_entry(&pen, "segment_free", 2 << 20, 2 << 20, 3);
    pool_entry(&pen, "alloc", 4096, 2000, 3);
    pool_entry(&pen, "free_completed", 0, 1000, 3);
    pool_entry(&pen, "segment_free", 0, 2 << 20, 3);
    pool_entry(&pen, "alloc", 8192, 5000, 9);
    end_without_segments(&pen);
    expect(&pen, "a 0 1000 0 1\ne\na 1 2000 0 1\nf 0\npr 1\ne\na 0 5000 0 2\n",
           "device 0, 6 entries");
}

/* Older releases do not name the pool of an entry; the segment does while it exists. */
TEST(segments_identify_the_pool_of_older_entries)
{
    struct pen pen = begin();

    entry(&pen, "alloc", 0, 1000);
    free_of(&pen, 0, 1000);
    ENTRIES(&pen, {"segment_free", 0, 4 << 20}, {"segment_alloc", 0, 2 << 20}, {"alloc", 0, 2000},
            {"alloc", 2 << 20, 3000}, {"alloc", 8 << 20, 4000});
    begin_segments(&pen);
    open_segment(&pen, 0, 8 << 20, 2 << 20);
    pair(&pen, "segment_pool_id", 5, 0);
    done(&pen);
    open_segment(&pen, 0, 0, 2 << 20);
    pair(&pen, "segment_pool_id", 0, 1);
    done(&pen);
    end(&pen);
    expect(&pen, "a 0 1000 0\nf 0\ne\na 0 2000 0 1\na 1 3000 0\na 2 4000 0 2\n",
           "device 0, 8 entries");
}

TEST(times_advance_the_clock_in_milliseconds)
{
    static const uint64_t times[] = {1795328907892187, 1795328907892180, 1795328907893186,
                                     1795328907893187, 1795328907893190};
    struct pen pen = begin();

    for (uint64_t i = 0; i < 5; i++) {
        open_entry(&pen, "alloc", 512 * i, i + 1);
        field(&pen, "time_us", times[i]);
        done(&pen);
    }
    end_without_segments(&pen);
    expect(&pen,
           "@ 1795328907892187\na 0 1 0\na 1 2 0\na 2 3 0\n"
           "@ 1795328907893187\na 3 4 0\na 4 5 0\n@ 1795328907893190\n",
           "device 0, 5 entries");
}

static void write_devices(struct pen *pen)
{
    pen->count = 0;
    op(pen, "\x80\x02}('device_traces'](](");
    entry(pen, "alloc", 0, 111);
    op(pen, "e](");
    entry(pen, "alloc", 0, 222);
    entry(pen, "alloc", 512, 333);
    begin_segments(pen);
    open_blocks(pen, 7, 0, 2 << 20);
    block(pen, 0, 512, "active_allocated");
    op(pen, "eu");
    end(pen);
}

TEST(device_with_the_most_entries_is_selected)
{
    struct pen pen;
    struct xtrace trace;
    struct xtrace_fault fault = {0, ""};

    write_devices(&pen);
    expect(&pen, "a 0 222 0\na 1 333 0\n", "device 1 of 2, 2 entries");
    expect_from(&pen, 0, "a 0 111 0\n", "device 0 of 2, 1 entry");
    expect_from(&pen, 7, "a 0 500 0\n",
                "device 7 of 2, 0 entries; allocated before the first: 1 block, 500 bytes");
    assert_false(read_pen(&pen, 5, &trace, &fault));
    assert_non_null(strstr(fault.text, "nothing to replay, device 5"));
}

TEST(snapshot_without_history_keeps_allocated_blocks)
{
    struct pen pen = {.count = 0};

    op(&pen, "\x80\x02](");
    open_blocks(&pen, 3, 0, 2 << 20);
    block(&pen, 512, 1024, "active_allocated");
    op(&pen, "eue.");
    expect(&pen, "a 0 1012 0\n",
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
        struct pen pen = begin();

        entry(&pen, "alloc", 0, 1);
        op(&pen, "ee'allocator_settings'}(");
        if (rows[i].text) {
            text(&pen, "PYTORCH_CUDA_ALLOC_CONF");
            text(&pen, rows[i].text);
        }
        text(&pen, "expandable_segments");
        op(&pen, rows[i].expandable);
        op(&pen, "u'segments'](");
        end(&pen);
        assert_true(read_pen(&pen, -1, &trace, &fault));
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
        {"alloc", "addr", UINT64_MAX, 0, "device 0, entry 2: it exceeds the address space"},
        {"alloc", "time_us", UINT64_MAX, 2, "time exceeds 2^64 nanoseconds"},
        {"alloc", "pool_id", 5, 0, "device 0, entry 2: `pool_id` is not a pair of numbers"},
    };
    struct pen pen;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        pen = begin();
        entry(&pen, "alloc", 0, 1);
        open_entry(&pen, rows[i].action, 512, 1000);
        field(&pen, rows[i].key, rows[i].value);
        done(&pen);
        end_without_segments(&pen);
        expect_bad(&pen, rows[i].line, rows[i].words);
    }
    pen = begin();
    op(&pen, "}('action''alloc'u}");
    end_without_segments(&pen);
    expect_bad(&pen, 0, "device 0, entry 1: `addr` is missing or not a number");
    pen = begin();
    open_entry(&pen, "alloc", 0, 1);
    op(&pen, "'stream'N");
    done(&pen);
    end_without_segments(&pen);
    expect_bad(&pen, 0, "device 0, entry 1: `stream` is not a number");
    pen = begin();
    op(&pen, "}");
    end_without_segments(&pen);
    expect_bad(&pen, 0, "device 0, entry 1: it has no `action`");
}

TEST(errors_outside_entries_name_their_place)
{
    struct pen pen = begin();

    begin_segments(&pen);
    op(&pen, "}");
    end(&pen);
    expect_bad(&pen, 0, "segment 1: `device` is missing");
    pen = begin();
    begin_segments(&pen);
    open_segment(&pen, 0, UINT64_MAX - BASE, 2);
    done(&pen);
    end(&pen);
    expect_bad(&pen, 0, "segment 1: it exceeds the address space");
    pen = begin();
    begin_segments(&pen);
    open_segment(&pen, 0, 0, 2);
    op(&pen, "'blocks'](}eu");
    end(&pen);
    expect_bad(&pen, 0, "segment 1: a block has no `state`");
    pen = begin();
    begin_segments(&pen);
    open_blocks(&pen, 0, 0, 2);
    block(&pen, 0, 512, "active_allocated");
    for (int i = 0; i < 100; i++)
        op(&pen, "2");
    op(&pen, "eu");
    end(&pen);
    expect_bad(&pen, 0, "segments share lists of blocks");
    pen = begin();
    end_without_segments(&pen);
    expect_bad(&pen, 0, "nothing to replay, device 0");
    pen.count = 0;
    op(&pen, "\x80\x02}.");
    expect_bad(&pen, 0, "no memory snapshot");
    pen.count = 0;
    op(&pen, "\x80\x02}s.");
    expect_bad(&pen, 0, "byte 3: stack underflow");
}
