/* SPDX-License-Identifier: MIT */
/*
 * Text from outside, which may hold any byte, as it can be shown: what is not printable ASCII is \xNN.
 * complain.h does so with all that goes to standard error; reports print such text with printable_print().
 *
 * Locking: none.
 */
#ifndef TOOLS_PRINTABLE_H
#define TOOLS_PRINTABLE_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* Cut to fit, and always terminated.  Returns how many bytes of the text found room. */
size_t printable_copy(const char *text, char *out, size_t bytes);

/* All of it. */
void printable_print(FILE *out, const char *text);

/* A string of JSON; text in UTF-8 stays as it is.  Returns NULL without host memory. */
json_t *printable_json(const char *text);

#endif
