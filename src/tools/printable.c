/* SPDX-License-Identifier: MIT */
#include "src/tools/printable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPED 4 /* bytes of \xNN */

void printable_copy(const char *text, char *out, size_t bytes)
{
    for (; *text && bytes > ESCAPED; text++) {
        const int is_printable = *text >= ' ' && *text <= '~';
        const int length = snprintf(out, bytes, is_printable ? "%c" : "\\x%02x",
                                    is_printable ? *text : (unsigned char)*text);

        out += length;
        bytes -= (size_t)length;
    }
    *out = '\0';
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
    printable_copy(text, clean, bytes);
    string = json_string(clean);
    free(clean);
    return string;
}
