/* SPDX-License-Identifier: MIT */
/*
 * An array of numbers as LEB128, written as base64.
 *
 * After a host allocation failure, further calls have no effect, and nothing is written.
 *
 * Locking: none.
 */
#ifndef TOOLS_VIEW_COLUMNS_H
#define TOOLS_VIEW_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct view_columns {
    unsigned char *bytes; /* [count] */
    size_t count, capacity;
    bool failed; /* host allocation failure */
};

void view_columns_add(struct view_columns *columns, uint64_t number);

/* Add the difference of a number from the previous one, which can be negative. */
void view_columns_add_step(struct view_columns *columns, uint64_t number, uint64_t previous);

/* Write the bytes as base64.  Returns false after a failure. */
bool view_columns_write(const struct view_columns *columns, FILE *out);

void view_columns_fini(struct view_columns *columns);

#endif
