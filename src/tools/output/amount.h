/* SPDX-License-Identifier: MIT */
/*
 * Numbers in reports and messages.  The format is the same in every command and in the page of `xseg view`:
 *
 *     3,804            a count; a comma separates thousands, in all numbers.
 *     1.25 GiB         bytes, in the largest unit of which there is at least one; 1,023 bytes below 1 KiB.
 *     12.5 ms          time.
 *
 * IDs, line numbers, addresses, and numbers that a program reads (JSON, tables of --table and --timeline) are plain
 * digits.  Each function returns the string by value:
 *
 *     fprintf(out, "%12s  %12s  %s\n", amount_bytes(live).text, amount_bytes(cached).text, name);
 *
 * Locking: none.
 */
#ifndef TOOLS_AMOUNT_H
#define TOOLS_AMOUNT_H

#include <stdbool.h>
#include <stdint.h>

struct amount {
    char text[32];
};

struct amount_noun {
    char text[64];
};

struct amount amount_bytes(uint64_t bytes);
struct amount amount_time(double nanoseconds);

/* Use the unit of `largest`, such as the largest amount of a row.  A small amount other than 0 is "< 0.01 MiB" or
 * "< 0.1 ms". */
struct amount amount_bytes_in_row(uint64_t bytes, double largest);
struct amount amount_time_in_row(double nanoseconds, double largest);

/* "+1.50 MiB"; "=" for no difference. */
struct amount amount_change(int64_t bytes);

struct amount amount_count(uint64_t count);

/* A number of at least 0 without a unit: "1,234.5". */
struct amount amount_decimal(double number, int decimals);

/* A count with its noun, given in the singular: "1 entry", "1,234 entries", "2 processes". */
struct amount_noun amount_of(uint64_t count, const char *noun);

/* "12.34 %", as wide as "100.00 %"; a share of nothing is 0. */
struct amount amount_share(double part, double total);

/* Get whether amount_bytes() returns the same string for both amounts. */
bool amount_bytes_equal(uint64_t a, uint64_t b);

#endif
