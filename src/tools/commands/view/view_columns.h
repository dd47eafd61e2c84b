/* SPDX-License-Identifier: MIT */
/*
 * Numbers as bytes in groups of seven bits, and those bytes as base64.
 *
 * A failure stays: without host memory all that follows does nothing, and the bytes are not written.
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
    size_t count, room;
    bool failed; /* no host memory was left */
};

void view_columns_add(struct view_columns *columns, uint64_t number);

/* The difference of two numbers, which may be negative. */
void view_columns_add_step(struct view_columns *columns, uint64_t number, uint64_t before);

/* Write all bytes as base64.  Returns false where something failed. */
bool view_columns_write(const struct view_columns *columns, FILE *out);

void view_columns_fini(struct view_columns *columns);

#endif
