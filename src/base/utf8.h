/* SPDX-License-Identifier: MIT */
/* Texts of others: which bytes of them are UTF-8. */
#ifndef XSEG_BASE_UTF8_H
#define XSEG_BASE_UTF8_H

#include <stddef.h>

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

#endif
