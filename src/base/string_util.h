/* SPDX-License-Identifier: MIT */
/*
 * Strings: a bounded string buffer, validation of UTF-8, and the closest match for "did you mean ...?".
 *
 * A string buffer writes to the caller's memory, truncates what does not fit, and never allocates.
 *
 * The closest match is the known name with the smallest edit distance to a misspelled word (optimal string alignment:
 * insertion, deletion, substitution, and transposition of neighbors), if that is at most a third of the length.  Case is
 * ignored, and '-' equals '_'.  If the word is a prefix of a name, the distance is at most 2.  Among equal distances, the
 * shortest name wins, then the first one.
 */
#ifndef XSEG_BASE_STRING_UTIL_H
#define XSEG_BASE_STRING_UTIL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* --- The string buffer. --- */

struct xseg_strbuf {
    char *buffer;  /* always terminated, unless `bytes` is 0 */
    size_t bytes;  /* size of the buffer; may be 0 */
    size_t length; /* of the untruncated string, without the terminator */
};

void xseg_strbuf_init(struct xseg_strbuf *text, char *buffer, size_t bytes);

/* Append formatted text. */
void xseg_strbuf_printf(struct xseg_strbuf *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void xseg_strbuf_vprintf(struct xseg_strbuf *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Replace the bytes from the offset `from` on that are not printable ASCII by \xNN. */
void xseg_strbuf_escape(struct xseg_strbuf *text, size_t from);

/* Append a size in MiB, "81920.00 MiB"; a nonzero size that would be rounded to 0 in bytes. */
void xseg_strbuf_add_mib(struct xseg_strbuf *text, uint64_t bytes);

/* --- UTF-8. --- */

/* The length of the UTF-8 character at `text`, in bytes (RFC 3629, section 4); 0: the bytes are not a valid character. */
static inline size_t xseg_utf8_measure(const unsigned char *text, size_t length)
{
    const unsigned char first = text[0];
    const size_t bytes = first < 0x80                    ? 1
                         : first >= 0xc2 && first < 0xe0 ? 2
                         : first >= 0xe0 && first < 0xf0 ? 3
                                                         : 4;
    const unsigned char min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;

    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || bytes > length)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if (text[i] < (i == 1 ? min : 0x80) || text[i] > (i == 1 ? max : 0xbf))
            return 0;
    return bytes;
}

/* --- The closest match. --- */

enum { XSEG_CLOSEST_MATCH_MAX = 64 }; /* longer words and names never match */

struct xseg_closest_match {
    const char *word; /* the caller's; need not be terminated */
    size_t word_length;
    const char *name; /* the closest match so far; NULL: none */
    size_t name_length;
    unsigned distance; /* of `name` */
};

void xseg_closest_match_init(struct xseg_closest_match *closest, const char *word,
                             size_t word_length);

/* Consider a name, which must outlive the result. */
void xseg_closest_match_consider(struct xseg_closest_match *closest, const char *name);

#endif
