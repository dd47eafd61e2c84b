/* SPDX-License-Identifier: MIT */
#include "vmm/sim/cost.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

/* clang-format off */
#define EVENTS .event_create = 1000, .event_record = 300, .event_query = 200, .stream_wait = 300, .synchronize = 5000
#define CLASSIC .alloc = {40000, 180, 60000}, .free = {20000, 0, 0}
#define ACCESS .access = {36000, 1300, 0}, .access_wide = {200000, 0, 0}

static const struct sim_costs preset[] = {
    {.name = "a100", .reserve = 2000, .address_free = 1000, .create = {7000, 150, 0}, .map = {2000, 0, 0}, .release = {23000, 0, 0},
     .unmap_mapping = {34000, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "a100_cold", .reserve = 19000, .address_free = 1000, .create = {193000, 0, 0}, .map = {1500, 0, 0}, .release = {23000, 0, 0},
     .unmap_mapping = {25600, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "consumer", .reserve = 9000, .address_free = 1000, .create = {7600, 150, 0}, .map = {1000, 0, 0}, .release = {10000, 0, 0},
     .unmap_mapping = {11500, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "rocm_slow", .reserve = 10000, .address_free = 5000, .create = {60000, 1000, 0}, .map = {20000, 0, 0}, .release = {30000, 0, 0},
     .unmap = 1000000, .unmap_mapping = {50000, 0, 0}, ACCESS, CLASSIC, EVENTS},
    {.name = "none"},
};
/* clang-format on */

const struct sim_costs *sim_costs_find_preset(const char *name)
{
    if (name == NULL)
        return &preset[0];
    for (size_t i = 0; i < sizeof(preset) / sizeof(preset[0]); i++)
        if (strcmp(preset[i].name, name) == 0)
            return &preset[i];
    return NULL;
}

uint64_t sim_cost_for_size(struct sim_cost_sized cost, uint64_t bytes)
{
    uint64_t time;

    /* The size of a failing call is arbitrary, and latency tails multiply the result. */
    if (__builtin_mul_overflow(bytes / MIB, cost.per_mib, &time) ||
        time > SIM_COST_MAX_SIZED - cost.base)
        return SIM_COST_MAX_SIZED;
    time += cost.base;
    return time < cost.min ? cost.min : time;
}

uint64_t sim_cost_set_access(const struct sim_costs *costs, uint64_t bytes)
{
    return sim_cost_for_size(bytes > 128 * MIB ? costs->access_wide : costs->access, bytes);
}

/* Draw a number between 0 and 1, both excluded, with SplitMix64. */
static double draw_uniform(uint64_t *state)
{
    uint64_t bits = *state += 0x9e3779b97f4a7c15u;

    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return ((double)((bits ^ bits >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

uint64_t sim_cost_with_tail(uint64_t nanoseconds, uint64_t *state)
{
    /* The 99th percentile, 2.326 standard deviations, is 1.4 times the median, as measured for driver calls. */
    const double sigma = log(1.4) / 2.326;
    const double angle = 2 * acos(-1.0) * draw_uniform(state),
                 radius = sqrt(-2 * log(draw_uniform(state)));
    double factor = exp(sigma * radius * cos(angle));

    /* Spike of 5 to 80 times the median, log-uniform. */
    if (draw_uniform(state) < 0.001)
        factor = 5 * pow(16, draw_uniform(state));
    return (uint64_t)((double)nanoseconds * factor);
}

#define QUOTED_MAX 32 /* characters of the file that an error message quotes */

/* Key, offset of its numbers, and their maximum count. */
#define CONSTANT(member)                               \
    {                                                  \
#member, offsetof(struct sim_costs, member), 1 \
    }
#define SIZED(member)                                  \
    {                                                  \
#member, offsetof(struct sim_costs, member), 3 \
    }

static const struct field {
    const char *key;
    size_t offset;
    unsigned numbers;
} fields[] = {
    CONSTANT(reserve),      CONSTANT(address_free), SIZED(create),         SIZED(map),
    SIZED(release),         CONSTANT(unmap),        SIZED(unmap_mapping),  CONSTANT(access_call),
    SIZED(access),          SIZED(access_wide),     SIZED(alloc),          SIZED(free),
    CONSTANT(event_create), CONSTANT(event_record), CONSTANT(event_query), CONSTANT(stream_wait),
    CONSTANT(synchronize),
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

_Static_assert(sizeof(struct sim_costs) == SIM_COSTS_NAME_MAX + (9 + 8 * 3) * sizeof(uint64_t),
               "a member of struct sim_costs has no key");
_Static_assert(sizeof(struct sim_cost_sized) == 3 * sizeof(uint64_t), "three numbers");

struct parser {
    struct sim_costs costs;
    bool has_name, has[FIELDS];
    unsigned line;
    char *message;
    size_t message_bytes;
};

__attribute__((format(printf, 2, 3))) static bool parse_error(struct parser *parser,
                                                              const char *format, ...)
{
    const int length = snprintf(parser->message, parser->message_bytes, "line %u: ", parser->line);
    va_list arguments;

    va_start(arguments, format);
    if (length > 0 && (size_t)length < parser->message_bytes)
        (void)vsnprintf(parser->message + length, parser->message_bytes - (size_t)length, format,
                        arguments);
    va_end(arguments);
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Part of a line, not terminated. */
struct token {
    const char *text;
    size_t length;
};

static struct token trim_blanks(const char *text, const char *end)
{
    while (text < end && is_blank(*text))
        text++;
    while (end > text && is_blank(end[-1]))
        end--;
    return (struct token){text, (size_t)(end - text)};
}

static int quoted_length(struct token token)
{
    return token.length < QUOTED_MAX ? (int)token.length : QUOTED_MAX;
}

static bool parse_name(struct parser *parser, struct token value)
{
    if (parser->has_name)
        return parse_error(parser, "duplicate key, name; remove one of its lines");
    if (value.length == 0 || value.length >= SIM_COSTS_NAME_MAX)
        return parse_error(parser, "invalid length of name, %zu characters; use 1 to %d",
                           value.length, SIM_COSTS_NAME_MAX - 1);
    for (size_t i = 0; i < value.length; i++)
        if (value.text[i] < ' ' || value.text[i] > '~')
            return parse_error(
                parser, "name has a character that is not printable ASCII, code %u; remove it",
                (unsigned)(unsigned char)value.text[i]);
    memcpy(parser->costs.name, value.text, value.length);
    parser->costs.name[value.length] = '\0';
    parser->has_name = true;
    return true;
}

static bool parse_number(struct parser *parser, const struct field *field, struct token value,
                         uint64_t *out)
{
    uint64_t number = 0;

    for (size_t i = 0; i < value.length; i++) {
        if (value.text[i] < '0' || value.text[i] > '9')
            return parse_error(parser, "%s is not a whole number of ns, '%.*s'; use digits only",
                               field->key, quoted_length(value), value.text);
        number = number * 10 + (uint64_t)(value.text[i] - '0');
        if (number > SIM_COST_MAX)
            return parse_error(parser, "%s is too large, %.*s ns; use at most %" PRIu64 " ns",
                               field->key, quoted_length(value), value.text, SIM_COST_MAX);
    }
    *out = number;
    return true;
}

static bool parse_numbers(struct parser *parser, const struct field *field, struct token value)
{
    const char *const end = value.text + value.length, *at = value.text;
    uint64_t number[3] = {0};
    unsigned count = 0;

    while (at < end) {
        const char *stop = at;

        while (stop < end && !is_blank(*stop))
            stop++;
        if (count == field->numbers)
            return parse_error(parser, "too many numbers for %s; set %s", field->key,
                               field->numbers == 1
                                   ? "one number of ns"
                                   : "up to three numbers of ns: base, per MiB, minimum");
        if (!parse_number(parser, field, (struct token){at, (size_t)(stop - at)}, &number[count++]))
            return false;
        for (at = stop; at < end && is_blank(*at);)
            at++;
    }
    if (count == 0)
        return parse_error(parser, "no number for %s; set %s", field->key,
                           field->numbers == 1
                               ? "one number of ns"
                               : "up to three numbers of ns: base, per MiB, minimum");
    memcpy((char *)&parser->costs + field->offset, number, field->numbers * sizeof(number[0]));
    return true;
}

static bool parse_line(struct parser *parser, const char *text, const char *end)
{
    const char *comment = memchr(text, '#', (size_t)(end - text));
    const struct token line = trim_blanks(text, comment != NULL ? comment : end);
    const char *equals;
    struct token key, value;

    if (line.length == 0)
        return true;
    equals = memchr(line.text, '=', line.length);
    if (equals == NULL)
        return parse_error(parser, "no '=' in the line, '%.*s'; write KEY = NUMBER",
                           quoted_length(line), line.text);
    key = trim_blanks(line.text, equals);
    value = trim_blanks(equals + 1, line.text + line.length);
    if (key.length == 4 && memcmp(key.text, "name", 4) == 0)
        return parse_name(parser, value);
    for (size_t i = 0; i < FIELDS; i++) {
        if (key.length != strlen(fields[i].key) || memcmp(key.text, fields[i].key, key.length) != 0)
            continue;
        if (parser->has[i])
            return parse_error(parser, "duplicate key, %s; remove one of its lines", fields[i].key);
        parser->has[i] = true;
        return parse_numbers(parser, &fields[i], value);
    }
    return parse_error(parser, "unknown key, '%.*s'; docs/simulator.md lists the keys",
                       quoted_length(key), key.text);
}

static bool check_complete(const struct parser *parser)
{
    const char *missing = parser->has_name ? NULL : "name";

    for (size_t i = 0; i < FIELDS && missing == NULL; i++)
        if (!parser->has[i])
            missing = fields[i].key;
    if (missing != NULL)
        (void)snprintf(parser->message, parser->message_bytes,
                       "missing key, %s; set every key, 0 for a call without cost", missing);
    return missing == NULL;
}

bool sim_costs_parse(const char *text, size_t length, struct sim_costs *costs, char *message,
                     size_t message_bytes)
{
    struct parser parser = {.message = message, .message_bytes = message_bytes};
    const char *const end = text + length;

    if (length > 0 && memchr(text, '\0', length) != NULL) {
        (void)snprintf(message, message_bytes,
                       "not a text file; give a cost file, format: docs/simulator.md");
        return false;
    }
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));

        parser.line++;
        stop = stop != NULL ? stop : end;
        if (!parse_line(&parser, text, stop))
            return false;
        text = stop < end ? stop + 1 : end;
    }
    if (!check_complete(&parser))
        return false;
    *costs = parser.costs;
    return true;
}

bool sim_cost_is_path(const char *name)
{
    return strpbrk(name, "/.") != NULL;
}

/* Read up to SIM_COST_FILE_MAX + 1 bytes.  Returns the length, or -1 with errno. */
static ssize_t read_text(int file, char *text)
{
    size_t length = 0;

    while (length <= SIM_COST_FILE_MAX) {
        const ssize_t count = read(file, text + length, SIM_COST_FILE_MAX + 1 - length);

        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        length += (size_t)count;
    }
    return (ssize_t)length;
}

static bool read_cost_file(int file, struct sim_costs *costs, char *message, size_t message_bytes)
{
    struct stat status;
    bool is_valid = false;

    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        (void)snprintf(message, message_bytes,
                       "not a regular file; give a cost file, format: docs/simulator.md");
        return false;
    }
    char *text = malloc(SIM_COST_FILE_MAX + 1);
    const ssize_t length = text != NULL ? read_text(file, text) : -1;
    if (length < 0)
        (void)snprintf(message, message_bytes, "cannot read the file, %s", strerror(errno));
    else if ((size_t)length > SIM_COST_FILE_MAX)
        (void)snprintf(
            message, message_bytes,
            "file exceeds the limit, %zu KiB; give a cost file, format: docs/simulator.md",
            SIM_COST_FILE_MAX >> 10);
    else
        is_valid = sim_costs_parse(text, (size_t)length, costs, message, message_bytes);
    free(text);
    return is_valid;
}

bool sim_costs_read(const char *path, struct sim_costs *costs, char *message, size_t message_bytes)
{
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool is_valid;

    if (file < 0) {
        (void)snprintf(message, message_bytes, "cannot open the file, %s", strerror(errno));
        return false;
    }
    is_valid = read_cost_file(file, costs, message, message_bytes);
    (void)close(file);
    return is_valid;
}
