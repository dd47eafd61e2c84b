/* SPDX-License-Identifier: MIT */
/*
 * Amounts as people read them: bytes and nanoseconds in a unit that fits, counts with commas, shares, changes.
 *
 * Each is a text by value, to be printed at once:
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

/* "1.50 GiB"; what is too little to be seen is not none: "< 0.01 MiB". */
struct amount amount_bytes(uint64_t number);
struct amount amount_time(double nanoseconds);

/* In the unit of another amount, such as the largest of a row. */
struct amount amount_bytes_beside(uint64_t number, double largest);
struct amount amount_time_beside(double nanoseconds, double largest);

/* With one digit behind the point, and none of bytes: "23.9 GiB". */
struct amount amount_bytes_about(uint64_t number);

/* "+1.50 MiB"; "=" for no difference. */
struct amount amount_change(int64_t bytes);

/* 1234567 as 1,234,567. */
struct amount amount_count(uint64_t number);

/* A count with its noun, given in the singular: "1 entry", "1,234 entries", "2 processes". */
struct amount_noun amount_of(uint64_t number, const char *noun);

/* "12.34 %", as wide as "100.00 %"; a share of nothing is 0. */
struct amount amount_share(double part, double whole);

/* Whether two numbers of bytes are printed alike. */
bool amount_is_alike(uint64_t a, uint64_t b);

#endif
