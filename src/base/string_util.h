/* SPDX-License-Identifier: MIT */
/*
 * A bounded text builder: writes into the caller's buffer, cuts what does not fit, never allocates.
 * The buffer is always terminated; `length` goes on counting what would have been written.
 */
#ifndef XSEG_BASE_STRING_UTIL_H
#define XSEG_BASE_STRING_UTIL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct xseg_strbuf {
    char *buffer;
    size_t bytes;  /* size of buffer; may be 0 */
    size_t length; /* of the whole text, without its terminator */
};

void xseg_strbuf_init(struct xseg_strbuf *text, char *buffer, size_t bytes);
void xseg_strbuf_printf(struct xseg_strbuf *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void xseg_strbuf_vprintf(struct xseg_strbuf *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Show what has been added from `from` on with its bytes that are not printable ASCII as \xNN, since
 * text of others may be in it. */
void xseg_strbuf_escape(struct xseg_strbuf *text, size_t from);

/* A number of bytes in MiB, "81920.00 MiB", for sentences whose numbers are compared.  A number that is not 0
 * but would round to 0 is written in bytes. */
void xseg_strbuf_add_mib(struct xseg_strbuf *text, uint64_t bytes);

/* Texts of others: which bytes of them are UTF-8. */

/* How many bytes of UTF-8 one character has at `text`; 0: it is none.  RFC 3629, section 4. */
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

/*
 * The known name that is nearest to a word, for "did you mean ...?".
 *
 * Near is: few characters inserted, left out, replaced, or swapped with their neighbour (the optimal
 * string alignment distance), at most one in three.  Upper and lower case are the same, and so are
 * '-' and '_'.  A word that a name begins with is two edits away at most.  Of names equally near, the
 * shortest wins, then the one offered first.
 */

/* Longer words and names are near nothing. */
enum { XSEG_CLOSEST_MATCH_MAX = 64 };

struct xseg_closest_match {
    const char *word; /* the caller's; need not be terminated */
    size_t word_length;
    const char *name; /* the nearest that was offered; NULL while none was near */
    size_t name_length;
    unsigned distance; /* of name */
};

void xseg_closest_match_init(struct xseg_closest_match *closest, const char *word,
                             size_t word_length);

/* Offer a name, which has to live as long as the answer is used. */
void xseg_closest_match_consider(struct xseg_closest_match *closest, const char *name);

#endif
