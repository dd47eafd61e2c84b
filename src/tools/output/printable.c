/* SPDX-License-Identifier: MIT */
#include "src/tools/output/printable.h"

#include <stdlib.h>
#include <string.h>

#define ESCAPED 4 /* bytes of \xNN */

size_t printable_copy(const char *text, char *out, size_t bytes)
{
    size_t at = 0;

    for (; text[at] && bytes > ESCAPED; at++) {
        const char byte = text[at];
        const int is_printable = byte >= ' ' && byte <= '~';
        const int length = snprintf(out, bytes, is_printable ? "%c" : "\\x%02x",
                                    is_printable ? byte : (unsigned char)byte);

        out += length;
        bytes -= (size_t)length;
    }
    *out = '\0';
    return at;
}

void printable_print(FILE *out, const char *text)
{
    char piece[1024];

    while (*text) {
        text += printable_copy(text, piece, sizeof(piece));
        (void)fputs(piece, out);
    }
}

json_t *printable_json(const char *text)
{
    json_t *string = json_string(text);
    const size_t bytes = (strlen(text) + 1) * ESCAPED + 1;
    char *clean;

    if (string)
        return string;
    clean = malloc(bytes);
    if (!clean)
        return NULL;
    (void)printable_copy(text, clean, bytes);
    string = json_string(clean);
    free(clean);
    return string;
}
