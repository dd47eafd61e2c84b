/* SPDX-License-Identifier: MIT */
#include "src/tools/output/amount.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    double of; /* how much of what it is counted in */
    int decimals;
    double from; /* the least that it is used for */
};

static const struct unit units_of_bytes[] = {{"bytes", 1, 0, 0},         {"KiB", 0x1p10, 2, 0x1p10},
                                             {"MiB", 0x1p20, 2, 0x1p20}, {"GiB", 0x1p30, 2, 0x1p30},
                                             {"TiB", 0x1p40, 2, 0x1p40}, {NULL, 0, 0, 0}};
static const struct unit units_of_time[] = {
    {"ns", 1, 1, 0}, {"us", 1e3, 1, 1e4}, {"ms", 1e6, 1, 1e7}, {NULL, 0, 0, 0}};

static const struct unit *unit_for(const struct unit *units, double largest)
{
    const struct unit *unit = units;

    while (unit[1].name && largest >= unit[1].from)
        unit++;
    return unit;
}

static struct amount in_unit(const struct unit *unit, double value)
{
    const double shown = value / unit->of;
    struct amount out;

    if (value > 0 && unit->decimals > 0 && shown < 0.01)
        (void)snprintf(out.text, sizeof(out.text), "< 0.01 %s", unit->name);
    else
        (void)snprintf(out.text, sizeof(out.text), "%.*f %s", unit->decimals, shown, unit->name);
    return out;
}

struct amount amount_bytes(uint64_t number)
{
    return amount_bytes_beside(number, (double)number);
}

struct amount amount_time(double nanoseconds)
{
    return amount_time_beside(nanoseconds, nanoseconds);
}

struct amount amount_bytes_beside(uint64_t number, double largest)
{
    return in_unit(unit_for(units_of_bytes, largest), (double)number);
}

struct amount amount_time_beside(double nanoseconds, double largest)
{
    return in_unit(unit_for(units_of_time, largest), nanoseconds);
}

struct amount amount_bytes_about(uint64_t number)
{
    struct unit unit = *unit_for(units_of_bytes, (double)number);

    unit.decimals = unit.decimals > 0;
    return in_unit(&unit, (double)number);
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

struct amount amount_count(uint64_t number)
{
    char digits[24];
    const size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
    struct amount out;
    size_t at = 0;

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out.text[at++] = ',';
        out.text[at++] = digits[i];
    }
    out.text[at] = '\0';
    return out;
}

struct amount_noun amount_of(uint64_t number, const char *noun)
{
    const size_t length = strlen(noun);
    const bool is_y = length > 1 && noun[length - 1] == 'y' && !strchr("aeiou", noun[length - 2]);
    struct amount_noun out;

    (void)snprintf(out.text, sizeof(out.text), "%.27s %.*s%s", amount_count(number).text,
                   (int)(is_y && number != 1 ? length - 1 : length), noun,
                   number == 1               ? ""
                   : is_y                    ? "ies"
                   : noun[length - 1] == 's' ? "es"
                                             : "s");
    return out;
}

struct amount amount_share(double part, double whole)
{
    struct amount out;

    (void)snprintf(out.text, sizeof(out.text), "%6.2f %%", whole > 0 ? 100 * part / whole : 0);
    return out;
}

bool amount_is_alike(uint64_t a, uint64_t b)
{
    return strcmp(amount_bytes(a).text, amount_bytes(b).text) == 0;
}
