/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_columns.h"

#include <stdlib.h>

#define MOST_GROUPS 10 /* of 7 bits */

void view_columns_add(struct view_columns *columns, uint64_t number)
{
    if (columns->failed)
        return;
    if (columns->room - columns->count < MOST_GROUPS) {
        const size_t room = columns->room ? 2 * columns->room : 4096;
        unsigned char *bigger = realloc(columns->bytes, room);

        if (!bigger) {
            columns->failed = true;
            return;
        }
        columns->bytes = bigger;
        columns->room = room;
    }
    for (; number >= 0x80; number >>= 7)
        columns->bytes[columns->count++] = (unsigned char)(number | 0x80);
    columns->bytes[columns->count++] = (unsigned char)number;
}

void view_columns_add_step(struct view_columns *columns, uint64_t number, uint64_t before)
{
    const uint64_t step = number - before;

    view_columns_add(columns, number >= before ? step << 1 : ~step << 1 | 1);
}

bool view_columns_write(const struct view_columns *columns, FILE *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    if (columns->failed)
        return false;
    for (size_t at = 0; at < columns->count; at += 3) {
        const size_t left = columns->count - at;
        const uint32_t three = (uint32_t)columns->bytes[at] << 16 |
                               (left > 1 ? (uint32_t)columns->bytes[at + 1] << 8 : 0) |
                               (left > 2 ? columns->bytes[at + 2] : 0);
        const char four[4] = {
            digits[three >> 18],
            digits[three >> 12 & 63],
            left > 1 ? digits[three >> 6 & 63] : '=',
            left > 2 ? digits[three & 63] : '=',
        };

        (void)fwrite(four, 1, sizeof(four), out);
    }
    return true;
}

void view_columns_fini(struct view_columns *columns)
{
    free(columns->bytes);
    *columns = (struct view_columns){0};
}
