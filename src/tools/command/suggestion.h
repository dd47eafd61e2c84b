/* SPDX-License-Identifier: MIT */
/*
 * The closest match for a misspelled word: "did you mean ...?".
 *
 * The closest match is the known name with the smallest edit distance (optimal string alignment: insertion, deletion,
 * substitution, and transposition of neighbors), if that is at most a third of the length.  Case is ignored, and '-' equals
 * '_'.  A word of three characters or more also matches the names that it is a prefix of, with a distance of at most 2.
 * Among equal distances, the shortest name is the match, then the first name.  The library has the same rules for keys and
 * environment variables (src/base/string_util.h), which the tool does not link.
 *
 * Locking: none.
 */
#ifndef TOOLS_SUGGESTION_H
#define TOOLS_SUGGESTION_H

#include <stddef.h>

struct suggestion {
    const char *word; /* need not be terminated */
    size_t length;
    const char *name; /* the closest match so far; NULL: none */
    unsigned distance;
};

void suggestion_init(struct suggestion *suggestion, const char *word, size_t length);

/* Consider a name, which must outlive the suggestion. */
void suggestion_consider(struct suggestion *suggestion, const char *name);

#endif
