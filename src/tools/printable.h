/* SPDX-License-Identifier: MIT */
/*
 * Text from outside, which may hold any byte, as it can be shown: what is not printable ASCII is \xNN.
 *
 * Locking: none.
 */
#ifndef TOOLS_PRINTABLE_H
#define TOOLS_PRINTABLE_H

#include <jansson.h>
#include <stddef.h>

/* Cut to fit, and always terminated. */
void printable_copy(const char *text, char *out, size_t bytes);

/* A string of JSON; text in UTF-8 stays as it is.  Returns NULL without host memory. */
json_t *printable_json(const char *text);

#endif
