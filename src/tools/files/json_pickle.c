/* SPDX-License-Identifier: MIT */
#include "src/tools/files/json_pickle.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/files/unpickle.h"

#define BATCH      1000u /* items that one opcode takes, as in Python's pickles */
#define DEPTH_MOST 64u   /* how deep values may lie in each other; xseg's lie 8 deep */
#define DIGITS     18    /* every number of so many fits into 63 bits */
#define TOO_MUCH   "it needs more than 1 GiB of host memory"
#define NO_MEMORY  "no host memory is left to read it"

/* Where a value stands, as far as that has a meaning. */
enum place { PLACE_TOP, PLACE_OWN, PLACE_STACKS, PLACE_FRAMES, PLACE_ELSE };

struct json {
    const char *text; /* followed by a NUL byte */
    size_t bytes, at;
    FILE *out; /* the pickle; NULL: none is written, as on the first walk */
    size_t written;
    size_t stacks; /* where the list of stacks begins; 0: there is none */
    uint64_t stack_count;
    unsigned depth;
    char problem[160]; /* what is wrong at `at` */
};

static bool value(struct json *json, enum place place);

static bool bad(struct json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool bad(struct json *json, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(json->problem, sizeof(json->problem), format, arguments);
    va_end(arguments);
    return false;
}

/* --- Opcodes. --- */

/* The text and the pickle are held together. */
static bool is_too_much(const struct json *json)
{
    return json->written > PICKLE_MEMORY - json->bytes;
}

static void put(struct json *json, const void *bytes, size_t count)
{
    if (!json->out)
        return;
    json->written += count;
    if (!is_too_much(json))
        (void)fwrite_unlocked(bytes, 1, count, json->out);
}

static void put_opcode(struct json *json, char opcode)
{
    put(json, &opcode, 1);
}

/* An opcode and a little-endian number behind it. */
static void put_number(struct json *json, char opcode, uint64_t number, unsigned bytes)
{
    char all[9] = {opcode};

    for (unsigned i = 0; i < bytes; i++)
        all[1 + i] = (char)(number >> 8 * i);
    put(json, all, 1 + bytes);
}

static void put_integer(struct json *json, int64_t number)
{
    if (number >= 0 && number < 1 << 8) {
        put_number(json, 'K', (uint64_t)number, 1);
    } else {
        put(json, "\x8a\x08", 2);
        put_number(json, (char)number, (uint64_t)number >> 8, 7);
    }
}

static void put_real(struct json *json, double real)
{
    uint64_t bits;

    memcpy(&bits, &real, sizeof(bits));
    put_number(json, 'G', __builtin_bswap64(bits), 8);
}

static void put_text(struct json *json, const char *text, size_t bytes)
{
    put_number(json, 'X', bytes, 4);
    put(json, text, bytes);
}

/* --- Scalars. --- */

static void skip_space(struct json *json)
{
    while (json->at < json->bytes && strchr(" \t\r\n", json->text[json->at]) &&
           json->text[json->at])
        json->at++;
}

/* Take a byte that is not in a scalar, if it comes next. */
static bool take(struct json *json, char byte)
{
    skip_space(json);
    if (json->at == json->bytes || json->text[json->at] != byte)
        return false;
    json->at++;
    return true;
}

/* What jansson makes of the scalar that comes next; NULL: it is none.  The caller ends it. */
static json_t *parse(struct json *json)
{
    json_error_t error;
    json_t *scalar = json_loadb(json->text + json->at, json->bytes - json->at,
                                JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &error);

    if (scalar)
        json->at += (size_t)error.position;
    else
        (void)bad(json, "%s", json->at == json->bytes ? "the file was cut" : error.text);
    return scalar;
}

/* Take text of plain ASCII, as nearly all is; false: it is none, and nothing was taken. */
static bool take_plain_text(struct json *json, const char **text, size_t *bytes)
{
    const char *begin = json->text + json->at + 1, *end = begin;

    if (json->at == json->bytes || json->text[json->at] != '"')
        return false;
    while (*end >= ' ' && *end <= '~' && *end != '"' && *end != '\\')
        end++;
    if (*end != '"')
        return false;
    *text = begin;
    *bytes = (size_t)(end - begin);
    json->at = (size_t)(end + 1 - json->text);
    return true;
}

/* Take an integer without ado; false: it is none, and nothing was taken. */
static bool take_plain_integer(struct json *json, int64_t *out)
{
    const char *const begin = json->text + json->at;
    const char *digit = begin + (*begin == '-');
    const char *const first = digit;
    int64_t number = 0;

    for (; *digit >= '0' && *digit <= '9' && digit - first < DIGITS; digit++)
        number = 10 * number + (*digit - '0');
    if (digit == first || (*first == '0' && digit - first > 1) ||
        (*digit && strchr("0123456789.eE", *digit)))
        return false;
    *out = *begin == '-' ? -number : number;
    json->at += (size_t)(digit - begin);
    return true;
}

static void put_scalar(struct json *json, const json_t *scalar)
{
    switch (json_typeof(scalar)) {
    case JSON_STRING:
        put_text(json, json_string_value(scalar), json_string_length(scalar));
        break;
    case JSON_INTEGER:
        put_integer(json, json_integer_value(scalar));
        break;
    case JSON_REAL:
        put_real(json, json_real_value(scalar));
        break;
    case JSON_TRUE:
        put_opcode(json, '\x88');
        break;
    case JSON_FALSE:
        put_opcode(json, '\x89');
        break;
    default:
        put_opcode(json, 'N');
        break;
    }
}

static bool scalar(struct json *json)
{
    const char *text;
    size_t bytes;
    int64_t number;
    json_t *parsed;

    if (take_plain_text(json, &text, &bytes)) {
        put_text(json, text, bytes);
        return true;
    }
    if (take_plain_integer(json, &number)) {
        put_integer(json, number);
        return true;
    }
    parsed = parse(json);
    if (parsed)
        put_scalar(json, parsed);
    json_decref(parsed);
    return parsed;
}

/* The place of a stack, for which its list is put. */
static bool stack(struct json *json)
{
    const size_t begin = json->at;
    int64_t number;

    if (!take_plain_integer(json, &number))
        return value(json, PLACE_ELSE);
    if (number == -1) {
        put_opcode(json, ']');
        return true;
    }
    if (json->out && (number < 0 || (uint64_t)number >= json->stack_count)) {
        json->at = begin;
        return bad(json, "there is no stack %" PRId64 " in `xseg.stacks`", number);
    }
    put_number(json, 'j', (uint64_t)number, 4);
    return true;
}

/* --- Containers. --- */

static bool is_text(const char *text, size_t bytes, const char *other)
{
    return bytes == strlen(other) && memcmp(text, other, bytes) == 0;
}

/* A key, and what the place of its value means. */
static bool key(struct json *json, enum place *place)
{
    const enum place around = *place;
    const char *text;
    size_t bytes;

    *place = PLACE_ELSE;
    skip_space(json);
    if (json->at == json->bytes || json->text[json->at] != '"')
        return bad(json, json->at == json->bytes ? "the file was cut" : "a key is no text");
    if (!take_plain_text(json, &text, &bytes))
        return scalar(json);
    put_text(json, text, bytes);
    if (around == PLACE_TOP && is_text(text, bytes, "xseg"))
        *place = PLACE_OWN;
    else if (around == PLACE_OWN && is_text(text, bytes, "stacks"))
        *place = PLACE_STACKS;
    else if (is_text(text, bytes, "frames"))
        *place = PLACE_FRAMES;
    return true;
}

/* One item: a value, with a key in a dictionary. */
static bool item(struct json *json, bool is_dict, enum place around)
{
    enum place place = around;

    if (!is_dict)
        return value(json, PLACE_ELSE);
    if (!key(json, &place))
        return false;
    return take(json, ':') ? value(json, place) : bad(json, "a `:` is missing behind a key");
}

/* A list or a dictionary, whose first byte was taken. */
static bool container(struct json *json, bool is_dict, enum place place)
{
    const char end = is_dict ? '}' : ']', puts = is_dict ? 'u' : 'e';

    if (++json->depth > DEPTH_MOST)
        return bad(json, "values lie more than %u deep in each other", DEPTH_MOST);
    put_opcode(json, is_dict ? '}' : ']');
    put_opcode(json, '(');
    for (uint64_t items = 0; !take(json, end); items++) {
        if (items > 0 && !take(json, ','))
            return bad(json, "%s",
                       json->at == json->bytes ? "the file was cut"
                       : is_dict               ? "a `,` or `}` is missing"
                                               : "a `,` or `]` is missing");
        if (items > 0 && items % BATCH == 0) {
            put_opcode(json, puts);
            put_opcode(json, '(');
        }
        if (!item(json, is_dict, place))
            return false;
    }
    put_opcode(json, puts);
    json->depth--;
    return true;
}

/* The list of stacks, which stand where they are named. */
static bool stacks(struct json *json)
{
    FILE *const out = json->out;
    bool fine;

    json->stacks = json->at;
    put_opcode(json, 'N');
    json->out = NULL;
    fine = value(json, PLACE_ELSE);
    json->out = out;
    return fine;
}

static bool value(struct json *json, enum place place)
{
    skip_space(json);
    if (place == PLACE_STACKS)
        return stacks(json);
    if (place == PLACE_FRAMES)
        return stack(json);
    if (take(json, '{'))
        return container(json, true, place);
    return take(json, '[') ? container(json, false, place) : scalar(json);
}

/* --- All of it. --- */

/* Number each stack in the memo. */
static bool name_stacks(struct json *json)
{
    json->at = json->stacks;
    if (json->stacks == 0 || !take(json, '['))
        return true;
    while (!take(json, ']')) {
        (void)take(json, ',');
        if (!value(json, PLACE_ELSE))
            return false;
        put(json, "\x94\x30", 2); /* MEMOIZE, POP */
        json->stack_count++;
    }
    return true;
}

static bool translate(struct json *json, FILE *out)
{
    if (!value(json, PLACE_TOP))
        return false;
    skip_space(json);
    if (json->at < json->bytes)
        return bad(json, "something stands behind the end of the JSON");
    json->out = out;
    put(json, "\x80\x04", 2);
    if (!name_stacks(json))
        return false;
    json->at = 0;
    if (!value(json, PLACE_TOP))
        return false;
    put_opcode(json, '.');
    return true;
}

/* All of an input, with a NUL byte behind it; NULL with a problem. */
static char *load(struct input *input, size_t *bytes, char *problem, size_t room)
{
    size_t capacity = (size_t)1 << 16, count = 0, some = 0;
    char *text = malloc(capacity);

    while (text && (some = input_read(input, text + count, capacity - count - 1)) > 0) {
        count += some;
        if (count + 1 < capacity)
            continue;
        char *bigger = capacity < PICKLE_MEMORY ? realloc(text, capacity *= 2) : NULL;

        if (!bigger)
            free(text);
        text = bigger;
    }
    if (text && !input_problem(input)) {
        text[count] = '\0';
        *bytes = count;
        return text;
    }
    (void)snprintf(problem, room, "%s",
                   input_problem(input)        ? input_problem(input)
                   : capacity >= PICKLE_MEMORY ? TOO_MUCH
                                               : NO_MEMORY);
    free(text);
    return NULL;
}

/* Turn all of it into a pickle; `problem` as json_pickle_read() has it. */
static bool turn(struct json *json, FILE *pickle, char *problem, size_t room)
{
    uint64_t line = 1, column = 1;

    if (translate(json, pickle)) {
        const bool is_whole = fflush(pickle) == 0 && !ferror(pickle);

        if (!is_whole || is_too_much(json))
            (void)snprintf(problem, room, "%s", is_whole ? TOO_MUCH : NO_MEMORY);
        return is_whole && !is_too_much(json);
    }

    for (size_t i = 0; i < json->at; i++) {
        column = json->text[i] == '\n' ? 1 : column + 1;
        line += json->text[i] == '\n';
    }
    (void)snprintf(problem, room, "line %" PRIu64 ", column %" PRIu64 ": %s", line, column,
                   json->problem);
    return false;
}

static bool read_pickle(struct input *input, const struct pickle_taker *taker, struct pickle *out,
                        char *problem, size_t room)
{
    struct pickle_fault fault;

    if (pickle_read(input, taker, out, &fault))
        return true;
    if (fault.text[0])
        (void)snprintf(problem, room, "byte %" PRIu64 ": %s", fault.byte, fault.text);
    return false;
}

/* A pickle that lies in memory. */
static bool read_bytes(char *bytes, size_t count, const struct pickle_taker *taker,
                       struct pickle *out, char *problem, size_t room)
{
    FILE *file = fmemopen(bytes, count, "rb");
    struct input *input = file ? input_open(file) : NULL;
    const bool fine = input && read_pickle(input, taker, out, problem, room);

    if (!input)
        (void)snprintf(problem, room, NO_MEMORY);
    input_close(input);
    if (file)
        (void)fclose(file);
    return fine;
}

static bool read_json(struct input *input, const struct pickle_taker *taker, struct pickle *out,
                      char *problem, size_t room)
{
    struct json json = {.at = 0};
    char *const text = load(input, &json.bytes, problem, room);
    char *bytes = NULL;
    size_t count = 0;
    FILE *pickle = text ? open_memstream(&bytes, &count) : NULL;
    bool fine = pickle;

    if (text && !pickle)
        (void)snprintf(problem, room, NO_MEMORY);
    json.text = text;
    fine = fine && turn(&json, pickle, problem, room);
    if (pickle)
        (void)fclose(pickle);
    free(text);
    fine = fine && read_bytes(bytes, count, taker, out, problem, room);
    free(bytes);
    return fine;
}

bool json_pickle_read(struct input *input, const struct pickle_taker *taker, struct pickle *out,
                      char *problem, size_t room)
{
    const int first = input_peek(input);

    problem[0] = '\0';
    if (first == JSON_FIRST)
        return read_json(input, taker, out, problem, room);
    if (first == PICKLE_PROTO || first < 0)
        return read_pickle(input, taker, out, problem, room);
    (void)snprintf(problem, room, "byte 0: neither a pickle of protocol 2 or later, nor JSON");
    return false;
}
