/* SPDX-License-Identifier: MIT */
#include "src/tools/text/amount.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct amount_unit amount_units_of_bytes[] = {
    {"bytes", 1, 0, 0},         {"KiB", 0x1p10, 2, 0x1p10}, {"MiB", 0x1p20, 2, 0x1p20},
    {"GiB", 0x1p30, 2, 0x1p30}, {"TiB", 0x1p40, 2, 0x1p40}, {NULL, 0, 0, 0}};
const struct amount_unit amount_units_of_time[] = {
    {"ns", 1, 1, 0}, {"us", 1e3, 1, 1e4}, {"ms", 1e6, 1, 1e7}, {NULL, 0, 0, 0}};

const struct amount_unit *amount_unit_for(const struct amount_unit *units, double largest)
{
    const struct amount_unit *unit = units;

    while (unit[1].name && largest >= unit[1].from)
        unit++;
    return unit;
}

void amount_in_unit(const struct amount_unit *unit, double value, char *text, size_t bytes)
{
    const double shown = value / unit->of;

    if (value > 0 && unit->decimals > 0 && shown < 0.01)
        (void)snprintf(text, bytes, "< 0.01 %s", unit->name);
    else
        (void)snprintf(text, bytes, "%.*f %s", unit->decimals, shown, unit->name);
}

void amount_bytes(uint64_t number, char *text, size_t bytes)
{
    amount_in_unit(amount_unit_for(amount_units_of_bytes, (double)number), (double)number, text,
                   bytes);
}

void amount_print_bytes(FILE *out, uint64_t number)
{
    char text[32];

    amount_bytes(number, text, sizeof(text));
    (void)fputs(text, out);
}

bool amount_is_alike(uint64_t a, uint64_t b)
{
    char first[32], second[32];

    amount_bytes(a, first, sizeof(first));
    amount_bytes(b, second, sizeof(second));
    return strcmp(first, second) == 0;
}

void amount_count(uint64_t number, char *text, size_t bytes)
{
    char digits[24];
    const size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
    size_t at = 0;

    for (size_t i = 0; i < length && at + 2 < bytes; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
}
