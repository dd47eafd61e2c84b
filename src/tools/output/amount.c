/* SPDX-License-Identifier: MIT */
#include "src/tools/output/amount.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Copy a decimal number with commas between thousands. */
static struct amount add_separators(const char *digits)
{
    const size_t length = strcspn(digits, ".");
    struct amount out;
    size_t at = 0;

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out.text[at++] = ',';
        out.text[at++] = digits[i];
    }
    (void)snprintf(out.text + at, sizeof(out.text) - at, "%s", digits + length);
    return out;
}

struct amount amount_count(uint64_t count)
{
    char digits[24];

    (void)snprintf(digits, sizeof(digits), "%" PRIu64, count);
    return add_separators(digits);
}

struct amount amount_decimal(double number, int decimals)
{
    char digits[24]; /* with separators, they fit into an amount */

    (void)snprintf(digits, sizeof(digits), "%.*f", decimals, number);
    return add_separators(digits);
}

struct unit {
    const char *name;
    double size;
    int decimals;
    double min; /* the smallest amount in this unit */
};

static const struct unit byte_units[] = {{"bytes", 1, 0, 0},         {"KiB", 0x1p10, 2, 0x1p10},
                                         {"MiB", 0x1p20, 2, 0x1p20}, {"GiB", 0x1p30, 2, 0x1p30},
                                         {"TiB", 0x1p40, 2, 0x1p40}, {NULL, 0, 0, 0}};
static const struct unit time_units[] = {
    {"ns", 1, 1, 0}, {"us", 1e3, 1, 1e4}, {"ms", 1e6, 1, 1e7}, {"s", 1e9, 2, 1e9}, {NULL, 0, 0, 0}};

static const struct unit *select_unit(const struct unit *units, double largest)
{
    const struct unit *unit = units;

    while (unit[1].name && largest >= unit[1].min)
        unit++;
    return unit;
}

static struct amount format_in_unit(const struct unit *unit, double value)
{
    const double scaled = value / unit->size;
    struct amount out;

    if (unit->decimals == 0)
        (void)snprintf(out.text, sizeof(out.text), "%.24s %s", amount_count((uint64_t)value).text,
                       unit->name);
    else if (value > 0 && scaled < (unit->decimals == 1 ? 0.1 : 0.01))
        (void)snprintf(out.text, sizeof(out.text), "< %s %s", unit->decimals == 1 ? "0.1" : "0.01",
                       unit->name);
    else
        (void)snprintf(out.text, sizeof(out.text), "%.25s %s",
                       amount_decimal(scaled, unit->decimals).text, unit->name);
    return out;
}

struct amount amount_bytes(uint64_t bytes)
{
    return amount_bytes_in_row(bytes, (double)bytes);
}

struct amount amount_time(double nanoseconds)
{
    return amount_time_in_row(nanoseconds, nanoseconds);
}

struct amount amount_bytes_in_row(uint64_t bytes, double largest)
{
    return format_in_unit(select_unit(byte_units, largest), (double)bytes);
}

struct amount amount_time_in_row(double nanoseconds, double largest)
{
    return format_in_unit(select_unit(time_units, largest), nanoseconds);
}

struct amount amount_change(int64_t bytes)
{
    const uint64_t magnitude = bytes < 0 ? -(uint64_t)bytes : (uint64_t)bytes;
    struct amount out = {"="};

    if (bytes != 0)
        (void)snprintf(out.text, sizeof(out.text), "%c%.30s", bytes < 0 ? '-' : '+',
                       amount_bytes(magnitude).text);
    return out;
}

struct amount_noun amount_of(uint64_t count, const char *noun)
{
    const size_t length = strlen(noun);
    const bool is_y = length > 1 && noun[length - 1] == 'y' && !strchr("aeiou", noun[length - 2]);
    struct amount_noun out;

    (void)snprintf(out.text, sizeof(out.text), "%.27s %.*s%s", amount_count(count).text,
                   (int)(is_y && count != 1 ? length - 1 : length), noun,
                   count == 1                ? ""
                   : is_y                    ? "ies"
                   : noun[length - 1] == 's' ? "es"
                                             : "s");
    return out;
}

struct amount amount_share(double part, double total)
{
    struct amount out;

    (void)snprintf(out.text, sizeof(out.text), "%6.2f %%", total > 0 ? 100 * part / total : 0);
    return out;
}

bool amount_bytes_equal(uint64_t a, uint64_t b)
{
    return strcmp(amount_bytes(a).text, amount_bytes(b).text) == 0;
}
