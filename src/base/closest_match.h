/* SPDX-License-Identifier: MIT */
/*
 * The known name that is nearest to a word, for "did you mean ...?".
 *
 * Near is: few characters inserted, left out, replaced, or swapped with their neighbour (the optimal
 * string alignment distance), at most one in three.  Upper and lower case are the same, and so are
 * '-' and '_'.  A word that a name begins with is two edits away at most.  Of names equally near, the
 * shortest wins, then the one offered first.
 */
#ifndef XSEG_BASE_CLOSEST_MATCH_H
#define XSEG_BASE_CLOSEST_MATCH_H

#include <stddef.h>

/* Longer words and names are near nothing. */
enum { XSEG_CLOSEST_MATCH_MAX = 64 };

struct xseg_closest_match {
    const char *word; /* the caller's; need not be terminated */
    size_t word_length;
    const char *name; /* the nearest that was offered; NULL while none was near */
    size_t name_length;
    unsigned distance; /* of name */
};

void xseg_closest_match_init(struct xseg_closest_match *closest, const char *word,
                             size_t word_length);

/* Offer a name, which has to live as long as the answer is used. */
void xseg_closest_match_consider(struct xseg_closest_match *closest, const char *name);

#endif
