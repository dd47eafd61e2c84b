/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/xtrace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/file_kind.h"
#include "src/tools/reading/input.h"
#include "src/tools/reading/pickle.h"
#include "src/tools/trace/reader.h"
#include "src/tools/trace/snapshot.h"

/* Rows of answers in the order of enum xtrace_row. */
static const struct {
    const char *name;
    unsigned numbers;
} rows[XTRACE_ROW_COUNT] = {
    [XTRACE_ROW_NOW] = {"=", 9},
    [XTRACE_ROW_PLACE] = {"p", 2},
    [XTRACE_ROW_ALLOCATION] = {"allocation", 12},
    [XTRACE_ROW_SEGMENT] = {"segment", 12},
    [XTRACE_ROW_ACTIVE] = {"active", 12},
    [XTRACE_ROW_INACTIVE_SPLIT] = {"inactive_split", 12},
    [XTRACE_ROW_ALLOCATED_BYTES] = {"allocated_bytes", 12},
    [XTRACE_ROW_RESERVED_BYTES] = {"reserved_bytes", 12},
    [XTRACE_ROW_ACTIVE_BYTES] = {"active_bytes", 12},
    [XTRACE_ROW_INACTIVE_SPLIT_BYTES] = {"inactive_split_bytes", 12},
    [XTRACE_ROW_REQUESTED_BYTES] = {"requested_bytes", 12},
    [XTRACE_ROW_OVERSIZE_ALLOCATIONS] = {"oversize_allocations", 4},
    [XTRACE_ROW_OVERSIZE_SEGMENTS] = {"oversize_segments", 4},
    [XTRACE_ROW_NUM_ALLOC_RETRIES] = {"num_alloc_retries", 1},
    [XTRACE_ROW_NUM_OOMS] = {"num_ooms", 1},
    [XTRACE_ROW_NUM_SYNC_ALL_STREAMS] = {"num_sync_all_streams", 1},
    [XTRACE_ROW_NUM_DEVICE_ALLOC] = {"num_device_alloc", 1},
    [XTRACE_ROW_NUM_DEVICE_FREE] = {"num_device_free", 1},
};

const char *xtrace_row_name(enum xtrace_row row)
{
    return rows[row].name;
}

unsigned xtrace_row_numbers(enum xtrace_row row)
{
    return rows[row].numbers;
}

bool xtrace_names_key(const char *config, const char *key)
{
    for (const char *at = strstr(config, key); at; at = strstr(at + 1, key)) {
        const char *next = at + strlen(key);

        next += strspn(next, " ");
        if (*next == ':' && (at == config || at[-1] == ',' || at[-1] == ' '))
            return true;
    }
    return false;
}

bool xtrace_names_expandable(const char *config)
{
    return xtrace_names_key(config, "expandable_segments");
}

void xtrace_fini(struct xtrace *trace)
{
    free(trace->ops);
    free(trace->answers);
    free(trace->labels);
    free(trace->config);
    free(trace->pool_name);
    memset(trace, 0, sizeof(*trace));
}

#define LABEL_MAX  80 /* bytes of the label of a mark; further bytes are discarded */
#define DEVICE_MAX ((uint64_t)1 << 40) /* MiB; exceeds all address spaces */

/* The grammar: words, names of fields, and number of fields. */
static const struct form {
    const char *word;
    const char *fields;
    unsigned min_fields, max_fields; /* including the word */
    bool (*read)(struct reader *reader, const struct fields *fields);
} forms[] = {
    {"a", "ID BYTES STREAM [POOL]", 4, 5, reader_alloc},
    {"f", "ID", 2, 2, reader_free},
    {"u", "ID STREAM", 3, 3, reader_use},
    {"k", "STREAM", 2, 2, reader_work},
    {"y", "STREAM, or *", 2, 2, reader_finish},
    {"w", "STREAM STREAM", 3, 3, reader_wait},
    {"e", "nothing", 1, 1, reader_empty},
    {"cb", "POOL STREAM", 3, 3, reader_capture_begin},
    {"ce", "POOL", 2, 2, reader_capture_end},
    {"pb", "POOL STREAM", 3, 3, reader_route_begin},
    {"pe", "POOL", 2, 2, reader_route_end},
    {"pr", "POOL", 2, 2, reader_pool_release},
    {"@", "MICROSECONDS", 2, 2, reader_clock},
};

static bool parse_number(struct reader *reader, const char *text, uint64_t *out)
{
    uint64_t number = 0;

    if (!*text)
        return reader_fail(reader, "a number is missing; fields are separated by one space");
    for (const char *digit = text; *digit; digit++) {
        unsigned value = (unsigned)(*digit - '0');

        if (*digit < '0' || *digit > '9')
            return reader_fail(reader, "'%s' is not a decimal number", reader_quote(text).text);
        if (number > (UINT64_MAX - value) / 10)
            return reader_fail(reader, "%s does not fit into 64 bits", reader_quote(text).text);
        number = number * 10 + value;
    }
    *out = number;
    return true;
}

static bool parse_numbers(struct reader *reader, struct fields *fields, unsigned first)
{
    for (unsigned i = first; i < fields->count; i++)
        if (!parse_number(reader, fields->text[i], &fields->number[i]))
            return false;
    return true;
}

/* Split a line at its spaces.  Excess fields remain in the last field. */
static void split_fields(char *text, struct fields *fields)
{
    fields->count = 0;
    for (;;) {
        char *space = fields->count < FIELDS_MAX - 1 ? strchr(text, ' ') : NULL;

        fields->text[fields->count++] = text;
        if (!space)
            return;
        *space = '\0';
        text = space + 1;
    }
}

static bool add_answer(struct reader *reader, enum xtrace_row row, const uint64_t *number)
{
    struct xtrace *trace = &reader->trace;
    struct xtrace_answer *answers = reader_reserve(reader, trace->answers, &reader->answer_capacity,
                                                   trace->answer_count, sizeof(*answers));

    if (!answers)
        return false;
    trace->answers = answers;
    answers += trace->answer_count++;
    *answers = (struct xtrace_answer){
        .after = (uint32_t)trace->op_count, .line = reader->line, .row = row};
    memcpy(answers->number, number, xtrace_row_numbers(row) * sizeof(*number));
    return true;
}

/* `= A B C D E F G H I` */
static bool read_current(struct reader *reader, struct fields *fields)
{
    unsigned numbers = xtrace_row_numbers(XTRACE_ROW_NOW);

    if (fields->count != numbers + 1)
        return reader_fail(reader, "`=` takes %u numbers", numbers);
    return parse_numbers(reader, fields, 1) &&
           add_answer(reader, XTRACE_ROW_NOW, fields->number + 1);
}

/* `p ID OFFSET` */
static bool read_place(struct reader *reader, struct fields *fields)
{
    uint32_t segment = 0;

    if (fields->count != 3)
        return reader_fail(reader, "`p` takes ID OFFSET");
    if (!parse_numbers(reader, fields, 1) || !reader_place(reader, fields, &segment))
        return false;
    return add_answer(reader, XTRACE_ROW_PLACE, (const uint64_t[]){segment, fields->number[2]});
}

/* `s NAME ...` */
static bool read_statistic(struct reader *reader, struct fields *fields)
{
    if (fields->count < 2)
        return reader_fail(reader, "`s` takes the name of a statistic and its numbers");
    for (unsigned row = XTRACE_ROW_PLACE + 1; row < XTRACE_ROW_COUNT; row++) {
        const char *name = xtrace_row_name(row);
        const unsigned numbers = xtrace_row_numbers(row);

        if (strcmp(fields->text[1], name) != 0)
            continue;
        if (fields->count != numbers + 2)
            return reader_fail(reader, "`s %s` takes %u number%s", name, numbers,
                               numbers == 1 ? "" : "s");
        return parse_numbers(reader, fields, 2) &&
               add_answer(reader, (enum xtrace_row)row, fields->number + 2);
    }
    return reader_fail(reader, "unknown statistic, '%s'", reader_quote(fields->text[1]).text);
}

/* Read the order of addresses of the driver. */
static bool read_order(struct reader *reader, const char *word)
{
    static const char *const words[] = {
        [XSEG_SIM_ADDRESSES_RISING] = "rising",
        [XSEG_SIM_ADDRESSES_FALLING] = "falling",
        [XSEG_SIM_ADDRESSES_SHUFFLED] = "shuffled",
    };

    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i]) == 0) {
            reader->trace.address_order = (enum xseg_sim_address_order)i;
            return true;
        }
    return reader_fail(reader, "addresses are rising, falling or shuffled, not '%s'",
                       reader_quote(word).text);
}

/* `d MIB [ORDER]` */
static bool read_device(struct reader *reader, struct fields *fields)
{
    if (fields->count < 2 || fields->count > 3)
        return reader_fail(reader, "`d` takes MIB [ORDER]");
    if (!parse_number(reader, fields->text[1], &fields->number[1]) ||
        (fields->count == 3 && !read_order(reader, fields->text[2])))
        return false;
    if (reader->trace.device_bytes)
        return reader_fail(reader, "duplicate `d` line");
    if (fields->number[1] < 2 || fields->number[1] >= DEVICE_MAX)
        return reader_fail(reader, "device memory out of range, %" PRIu64 " MiB",
                           fields->number[1]);
    reader->trace.device_bytes = fields->number[1] << 20;
    return true;
}

/* `m LABEL` */
static bool read_mark(struct reader *reader, const char *label)
{
    struct xtrace *trace = &reader->trace;
    struct xtrace_op *op = reader_add_op(reader, XTRACE_MARK);

    if (!op)
        return false;
    op->value = trace->label_bytes;
    for (size_t i = 0; i <= LABEL_MAX; i++) {
        char *labels = reader_reserve(reader, trace->labels, &reader->label_capacity,
                                      trace->label_bytes, sizeof(*labels));
        char byte = (char)(i < LABEL_MAX ? label[i] : '\0');

        if (!labels)
            return false;
        trace->labels = labels;
        labels[trace->label_bytes++] = byte;
        if (!byte)
            break;
    }
    return true;
}

/* Read a line with a word and numbers. */
static bool read_operation(struct reader *reader, struct fields *fields)
{
    const char *word = fields->text[0];

    if (strcmp(word, "y") == 0 && fields->count == 2 && strcmp(fields->text[1], "*") == 0)
        return reader_add_op(reader, XTRACE_FINISH_ALL);
    if (strcmp(word, "!") == 0)
        return fields->count == 2 ? reader_failure(reader, fields)
                                  : reader_fail(reader, "`!` takes oom");
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        const struct form *form = &forms[i];

        if (strcmp(word, form->word) != 0)
            continue;
        if (fields->count < form->min_fields || fields->count > form->max_fields)
            return reader_fail(reader, "`%s` takes %s", word, form->fields);
        return parse_numbers(reader, fields, 1) && form->read(reader, fields);
    }
    return reader_fail(reader, "unknown operation, '%s'", reader_quote(word).text);
}

static bool read_line(struct reader *reader, char *text)
{
    struct fields fields;

    /* Marks, configurations and comments contain text with spaces. */
    if (text[0] == '\0' || text[0] == '#')
        return true;
    if (text[0] == 'm' && (text[1] == ' ' || text[1] == '\0'))
        return read_mark(reader, text[1] ? text + 2 : "");
    if (text[0] == 'c' && (text[1] == ' ' || text[1] == '\0'))
        return reader_config(reader, text[1] ? text + 2 : "");

    split_fields(text, &fields);
    if (strcmp(fields.text[0], "=") == 0)
        return read_current(reader, &fields);
    if (strcmp(fields.text[0], "p") == 0)
        return read_place(reader, &fields);
    if (strcmp(fields.text[0], "s") == 0)
        return read_statistic(reader, &fields);
    if (strcmp(fields.text[0], "d") == 0)
        return read_device(reader, &fields);
    return read_operation(reader, &fields);
}

static bool read_header(struct reader *reader, const char *text)
{
    if (strcmp(text, "xtrace 1") == 0)
        return true;
    if (strncmp(text, "xtrace ", 7) == 0)
        return reader_fail(reader, "unsupported version of the format, '%s'; use version 1",
                           reader_quote(text + 7).text);
    return reader_fail(reader, "the first line must be `xtrace 1`");
}

/* Check the state at the end of the file. */
static bool read_end(struct reader *reader)
{
    const struct xtrace *trace = &reader->trace;

    if (reader->line == 1)
        return reader_fail(reader, "the file is empty; the first line must be `xtrace 1`");
    for (uint32_t i = 1; trace->answer_count > 0 && i < trace->pool_count; i++)
        if (reader->pool_states[i].open_line)
            return reader_fail(reader, "the tape ends within the capture or route of line %" PRIu32,
                               reader->pool_states[i].open_line);
    return true;
}

static bool read_all_lines(struct reader *reader, struct lines *lines)
{
    for (;;) {
        char *text = NULL;
        enum lines_state state = lines_next(lines, &text);
        uint64_t number = lines_number(lines);

        if (number > UINT32_MAX)
            return reader_fail(reader, "the file has more than 2^32 lines");
        reader->line = (uint32_t)number;
        if (state == LINES_BAD)
            return reader_fail(reader, "%s", lines_error(lines));
        if (state == LINES_END)
            return read_end(reader);
        if (!(number == 1 ? read_header(reader, text) : read_line(reader, text)))
            return false;
    }
}

/* Get whether the file begins as a trace of any version. */
static bool is_trace(struct input *input)
{
    static const char signature[] = "xtrace ";
    const unsigned char *begin;

    return input_begin(input, &begin) >= sizeof(signature) - 1 &&
           memcmp(begin, signature, sizeof(signature) - 1) == 0;
}

static bool read_lines(struct reader *reader, struct input *input)
{
    struct lines *lines = lines_open(input);
    const bool success = lines ? read_all_lines(reader, lines) : reader_out_of_memory(reader);

    lines_close(lines);
    if (!success && !is_trace(input) &&
        file_kind_describe(input, reader->fault->text, sizeof(reader->fault->text)))
        reader->fault->line = 0;
    return success;
}

bool xtrace_read(FILE *file, int device, struct xtrace *out, struct xtrace_fault *fault)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    struct input *input = reader ? input_open(file) : NULL;
    bool success = false;

    if (input) {
        reader->fault = fault;
        reader->trace.stream_count = 1;
        reader->trace.pool_count = 1;
        reader->trace.is_snapshot = input_peek(input) == PICKLE_PROTO;
        success = reader->trace.is_snapshot ? snapshot_read(reader, input, device)
                                            : read_lines(reader, input);
    } else {
        *fault = (struct xtrace_fault){1, "out of host memory"};
    }
    if (success)
        *out = reader->trace;
    else if (reader)
        xtrace_fini(&reader->trace);
    if (reader) {
        id_map_fini(&reader->blocks);
        id_map_fini(&reader->streams);
        id_map_fini(&reader->pools);
        id_map_fini(&reader->places);
        free(reader->pool_states);
        free(reader->free_slots);
    }
    free(reader);
    input_close(input);
    return success;
}
