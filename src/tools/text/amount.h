/* SPDX-License-Identifier: MIT */
/*
 * Amounts as people read them: bytes and nanoseconds in a unit that fits, counts with commas.
 *
 * Locking: none.
 */
#ifndef TOOLS_AMOUNT_H
#define TOOLS_AMOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct amount_unit {
    const char *name;
    double of; /* how much of what it is counted in */
    int decimals;
    double from; /* the least that it is used for */
};

extern const struct amount_unit amount_units_of_bytes[], amount_units_of_time[];

/* The unit in which this much is told. */
const struct amount_unit *amount_unit_for(const struct amount_unit *units, double largest);

/* What is too little to be seen in a unit is not none: "< 0.01 MiB". */
void amount_in_unit(const struct amount_unit *unit, double value, char *text, size_t bytes);

/* "1.50 GiB" */
void amount_bytes(uint64_t number, char *text, size_t bytes);
void amount_print_bytes(FILE *out, uint64_t number);

/* Whether two numbers of bytes are printed alike. */
bool amount_is_alike(uint64_t a, uint64_t b);

/* 1234567 as 1,234,567. */
void amount_count(uint64_t number, char *text, size_t bytes);

#endif
