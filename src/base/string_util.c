/* SPDX-License-Identifier: MIT */
#include "src/base/string_util.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "src/base/align.h"

void xseg_strbuf_init(struct xseg_strbuf *text, char *buffer, size_t bytes)
{
    text->buffer = buffer;
    text->bytes = bytes;
    text->length = 0;
    if (bytes > 0)
        buffer[0] = '\0';
}

void xseg_strbuf_vprintf(struct xseg_strbuf *text, const char *format, va_list arguments)
{
    const size_t used = text->length < text->bytes ? text->length : text->bytes;
    const int count = vsnprintf(text->bytes > used ? text->buffer + used : NULL, text->bytes - used,
                                format, arguments);

    if (count > 0)
        text->length += (size_t)count;
}

void xseg_strbuf_printf(struct xseg_strbuf *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    xseg_strbuf_vprintf(text, format, arguments);
    va_end(arguments);
}

static bool is_printable(char c)
{
    return c >= ' ' && c <= '~';
}

/* Works backward, so that each byte is moved before it is overwritten; bytes that do not fit are truncated. */
void xseg_strbuf_escape(struct xseg_strbuf *text, size_t from)
{
    static const char digit[] = "0123456789abcdef";
    const size_t capacity = text->bytes > 0 ? text->bytes - 1 : 0;
    const size_t end = text->length < capacity ? text->length : capacity;
    size_t growth = 0;

    for (size_t i = from; i < end; i++)
        growth += is_printable(text->buffer[i]) ? 0 : 3;
    if (growth == 0)
        return;
    text->length += growth;
    text->buffer[text->length < capacity ? text->length : capacity] = '\0';
    for (size_t i = end, to = end + growth; i-- > from;) {
        const unsigned char byte = (unsigned char)text->buffer[i];
        const char escape[] = {'\\', 'x', digit[byte >> 4], digit[byte & 15]};
        const size_t bytes = is_printable((char)byte) ? 1 : sizeof(escape);

        to -= bytes;
        for (size_t j = 0; j < bytes && to + j < capacity; j++)
            text->buffer[to + j] = bytes == 1 ? (char)byte : escape[j];
    }
}

void xseg_strbuf_add_mib(struct xseg_strbuf *text, uint64_t bytes)
{
    if (bytes != 0 && bytes < XSEG_MIB / 200 + 1)
        xseg_strbuf_printf(text, "%" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    else
        xseg_strbuf_printf(text, "%.2f MiB", (double)bytes / (double)XSEG_MIB);
}

enum { COMPLETION_COST = 2 };

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Fold case and hyphens.  tolower() would depend on the locale. */
static char fold_char(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '-' ? '_' : c;
}

static bool has_prefix(const char *name, const char *word, size_t word_length)
{
    size_t i = 0;

    while (i < word_length && fold_char(name[i]) == fold_char(word[i]))
        i++;
    return i == word_length;
}

/* row[i % 3][j] is the distance between the first i characters of `a` and the first j of `b`.  A transposition reads the
 * row before the previous one. */
static unsigned edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    unsigned row[3][XSEG_CLOSEST_MATCH_MAX + 1];

    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_length; i++) {
        const unsigned *previous = row[(i - 1) % 3], *second_previous = row[(i + 1) % 3];
        unsigned *current = row[i % 3];

        current[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            const char x = fold_char(a[i - 1]), y = fold_char(b[j - 1]);

            current[j] = min_unsigned(previous[j] + 1, current[j - 1] + 1);
            current[j] = min_unsigned(current[j], previous[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold_char(b[j - 2]) && y == fold_char(a[i - 2]))
                current[j] = min_unsigned(current[j], second_previous[j - 2] + 1);
        }
    }
    return row[a_length % 3][b_length];
}

void xseg_closest_match_init(struct xseg_closest_match *closest, const char *word,
                             size_t word_length)
{
    *closest = (struct xseg_closest_match){.word = word, .word_length = word_length};
}

void xseg_closest_match_consider(struct xseg_closest_match *closest, const char *name)
{
    const size_t length = strlen(name);
    const size_t word_length = closest->word_length;

    if (word_length == 0 || word_length > XSEG_CLOSEST_MATCH_MAX || length > XSEG_CLOSEST_MATCH_MAX)
        return;
    unsigned distance = edit_distance(closest->word, word_length, name, length);
    size_t allowed = (word_length > length ? word_length : length) / 3;
    if (word_length >= 3 && length >= word_length && has_prefix(name, closest->word, word_length)) {
        distance = min_unsigned(distance, COMPLETION_COST);
        allowed = COMPLETION_COST;
    }
    if (distance > allowed)
        return;
    if (closest->name != NULL && (distance > closest->distance || (distance == closest->distance &&
                                                                   length >= closest->name_length)))
        return;
    closest->name = name;
    closest->name_length = length;
    closest->distance = distance;
}
