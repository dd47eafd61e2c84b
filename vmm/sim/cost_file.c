/* SPDX-License-Identifier: MIT */
#include "vmm/sim/cost_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Characters of a key, a value or a line that a message shows. */
#define KEY_SHOWN 32

/* Name, where its numbers go, and how many it may have. */
#define ONE(member)                                    \
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
    ONE(reserve),      ONE(address_free),  SIZED(create),        SIZED(map),
    SIZED(release),    ONE(unmap),         SIZED(unmap_mapping), ONE(access_call),
    SIZED(access),     SIZED(access_wide), SIZED(alloc),         SIZED(free),
    ONE(event_create), ONE(event_record),  ONE(event_query),     ONE(stream_wait),
    ONE(synchronize),
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

/* Every member but the name is in the table. */
_Static_assert(sizeof(struct sim_costs) == SIM_COSTS_NAME + (9 + 8 * 3) * sizeof(uint64_t),
               "a member of struct sim_costs has no key");
_Static_assert(sizeof(struct sim_cost_sized) == 3 * sizeof(uint64_t), "three numbers");

struct reading {
    struct sim_costs costs;
    bool has_name, has[FIELDS];
    unsigned line;
    char *why;
    size_t why_bytes;
};

__attribute__((format(printf, 2, 3))) static bool parse_error(struct reading *reading,
                                                              const char *format, ...)
{
    const int length = snprintf(reading->why, reading->why_bytes, "line %u: ", reading->line);
    va_list arguments;

    va_start(arguments, format);
    if (length > 0 && (size_t)length < reading->why_bytes)
        (void)vsnprintf(reading->why + length, reading->why_bytes - (size_t)length, format,
                        arguments);
    va_end(arguments);
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Text without the blanks around it. */
struct piece {
    const char *text;
    size_t length;
};

static struct piece trim_blanks(const char *text, const char *end)
{
    while (text < end && is_blank(*text))
        text++;
    while (end > text && is_blank(end[-1]))
        end--;
    return (struct piece){text, (size_t)(end - text)};
}

static int shown_length(struct piece piece)
{
    return piece.length < KEY_SHOWN ? (int)piece.length : KEY_SHOWN;
}

static bool parse_name(struct reading *reading, struct piece value)
{
    if (reading->has_name)
        return parse_error(reading, "duplicate key, name; remove one of its lines");
    if (value.length == 0 || value.length >= SIM_COSTS_NAME)
        return parse_error(reading, "invalid length of name, %zu characters; use 1 to %d",
                           value.length, SIM_COSTS_NAME - 1);
    for (size_t i = 0; i < value.length; i++)
        if (value.text[i] < ' ' || value.text[i] > '~')
            return parse_error(
                reading, "name has a character that is not printable ASCII, code %u; remove it",
                (unsigned)(unsigned char)value.text[i]);
    memcpy(reading->costs.name, value.text, value.length);
    reading->costs.name[value.length] = '\0';
    reading->has_name = true;
    return true;
}

/* A decimal number, up to a blank or the end. */
static bool parse_number(struct reading *reading, const struct field *field, struct piece value,
                         uint64_t *out)
{
    uint64_t number = 0;

    for (size_t i = 0; i < value.length; i++) {
        if (value.text[i] < '0' || value.text[i] > '9')
            return parse_error(reading, "%s is not a whole number of ns, '%.*s'; use digits only",
                               field->key, shown_length(value), value.text);
        number = number * 10 + (uint64_t)(value.text[i] - '0');
        if (number > SIM_COST_MOST)
            return parse_error(reading, "%s is too large, %.*s ns; use at most %" PRIu64 " ns",
                               field->key, shown_length(value), value.text, SIM_COST_MOST);
    }
    *out = number;
    return true;
}

static bool parse_numbers(struct reading *reading, const struct field *field, struct piece value)
{
    const char *const end = value.text + value.length, *at = value.text;
    uint64_t number[3] = {0};
    unsigned count = 0;

    while (at < end) {
        const char *stop = at;

        while (stop < end && !is_blank(*stop))
            stop++;
        if (count == field->numbers)
            return parse_error(reading, "too many numbers for %s; set %s", field->key,
                               field->numbers == 1
                                   ? "one number of ns"
                                   : "up to three numbers of ns: base, per MiB, minimum");
        if (!parse_number(reading, field, (struct piece){at, (size_t)(stop - at)},
                          &number[count++]))
            return false;
        for (at = stop; at < end && is_blank(*at);)
            at++;
    }
    if (count == 0)
        return parse_error(reading, "no number for %s; set %s", field->key,
                           field->numbers == 1
                               ? "one number of ns"
                               : "up to three numbers of ns: base, per MiB, minimum");
    memcpy((char *)&reading->costs + field->offset, number, field->numbers * sizeof(number[0]));
    return true;
}

static bool parse_line(struct reading *reading, const char *text, const char *end)
{
    const char *comment = memchr(text, '#', (size_t)(end - text));
    const struct piece line = trim_blanks(text, comment != NULL ? comment : end);
    const char *equals;
    struct piece key, value;

    if (line.length == 0)
        return true;
    equals = memchr(line.text, '=', line.length);
    if (equals == NULL)
        return parse_error(reading, "no '=' in the line, '%.*s'; write KEY = NUMBER",
                           shown_length(line), line.text);
    key = trim_blanks(line.text, equals);
    value = trim_blanks(equals + 1, line.text + line.length);
    if (key.length == 4 && memcmp(key.text, "name", 4) == 0)
        return parse_name(reading, value);
    for (size_t i = 0; i < FIELDS; i++) {
        if (key.length != strlen(fields[i].key) || memcmp(key.text, fields[i].key, key.length) != 0)
            continue;
        if (reading->has[i])
            return parse_error(reading, "duplicate key, %s; remove one of its lines",
                               fields[i].key);
        reading->has[i] = true;
        return parse_numbers(reading, &fields[i], value);
    }
    return parse_error(reading, "unknown key, '%.*s'; docs/simulator.md lists the keys",
                       shown_length(key), key.text);
}

static bool check_complete(const struct reading *reading)
{
    const char *missing = reading->has_name ? NULL : "name";

    for (size_t i = 0; i < FIELDS && missing == NULL; i++)
        if (!reading->has[i])
            missing = fields[i].key;
    if (missing != NULL)
        (void)snprintf(reading->why, reading->why_bytes,
                       "missing key, %s; set every key, 0 for a call without cost", missing);
    return missing == NULL;
}

bool sim_cost_file_parse(const char *text, size_t length, struct sim_costs *costs, char *why,
                         size_t why_bytes)
{
    struct reading reading = {.why = why, .why_bytes = why_bytes};
    const char *const end = text + length;

    if (length > 0 && memchr(text, '\0', length) != NULL) {
        (void)snprintf(why, why_bytes,
                       "not a text file; give a cost file, format: docs/simulator.md");
        return false;
    }
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));

        reading.line++;
        stop = stop != NULL ? stop : end;
        if (!parse_line(&reading, text, stop))
            return false;
        text = stop < end ? stop + 1 : end;
    }
    if (!check_complete(&reading))
        return false;
    *costs = reading.costs;
    return true;
}

bool sim_cost_file_is(const char *name)
{
    return strpbrk(name, "/.") != NULL;
}

/* Up to a byte more than a file may have, so that a longer one is seen.  Returns: -1 with errno. */
static ssize_t read_text(int file, char *text)
{
    size_t length = 0;

    while (length <= SIM_COST_FILE_BYTES) {
        const ssize_t got = read(file, text + length, SIM_COST_FILE_BYTES + 1 - length);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    return (ssize_t)length;
}

static bool read_cost_file(int file, struct sim_costs *costs, char *why, size_t why_bytes)
{
    struct stat about;
    bool fine = false;

    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        (void)snprintf(why, why_bytes,
                       "not a regular file; give a cost file, format: docs/simulator.md");
        return false;
    }
    char *text = malloc(SIM_COST_FILE_BYTES + 1);
    const ssize_t length = text != NULL ? read_text(file, text) : -1;
    if (length < 0)
        (void)snprintf(why, why_bytes, "cannot read the file, %s", strerror(errno));
    else if ((size_t)length > SIM_COST_FILE_BYTES)
        (void)snprintf(
            why, why_bytes,
            "file exceeds the limit, %zu KiB; give a cost file, format: docs/simulator.md",
            SIM_COST_FILE_BYTES >> 10);
    else
        fine = sim_cost_file_parse(text, (size_t)length, costs, why, why_bytes);
    free(text);
    return fine;
}

bool sim_cost_file_read(const char *path, struct sim_costs *costs, char *why, size_t why_bytes)
{
    /* Without waiting: a pipe without a writer is no regular file either. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool fine;

    if (file < 0) {
        (void)snprintf(why, why_bytes, "cannot open the file, %s", strerror(errno));
        return false;
    }
    fine = read_cost_file(file, costs, why, why_bytes);
    (void)close(file);
    return fine;
}
