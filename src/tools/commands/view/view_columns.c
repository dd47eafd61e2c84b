/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_columns.h"

#include <stdlib.h>

#define VARINT_MAX 10 /* bytes of a 64-bit number */

void view_columns_add(struct view_columns *columns, uint64_t number)
{
    if (columns->failed)
        return;
    if (columns->capacity - columns->count < VARINT_MAX) {
        const size_t capacity = columns->capacity ? 2 * columns->capacity : 4096;
        unsigned char *grown = realloc(columns->bytes, capacity);

        if (!grown) {
            columns->failed = true;
            return;
        }
        columns->bytes = grown;
        columns->capacity = capacity;
    }
    for (; number >= 0x80; number >>= 7)
        columns->bytes[columns->count++] = (unsigned char)(number | 0x80);
    columns->bytes[columns->count++] = (unsigned char)number;
}

void view_columns_add_step(struct view_columns *columns, uint64_t number, uint64_t previous)
{
    const uint64_t step = number - previous;

    view_columns_add(columns, number >= previous ? step << 1 : ~step << 1 | 1);
}

bool view_columns_write(const struct view_columns *columns, FILE *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    if (columns->failed)
        return false;
    for (size_t at = 0; at < columns->count; at += 3) {
        const size_t remaining = columns->count - at;
        const uint32_t group = (uint32_t)columns->bytes[at] << 16 |
                               (remaining > 1 ? (uint32_t)columns->bytes[at + 1] << 8 : 0) |
                               (remaining > 2 ? columns->bytes[at + 2] : 0);
        const char encoded[4] = {
            digits[group >> 18],
            digits[group >> 12 & 63],
            remaining > 1 ? digits[group >> 6 & 63] : '=',
            remaining > 2 ? digits[group & 63] : '=',
        };

        (void)fwrite(encoded, 1, sizeof(encoded), out);
    }
    return true;
}

void view_columns_fini(struct view_columns *columns)
{
    free(columns->bytes);
    *columns = (struct view_columns){0};
}
