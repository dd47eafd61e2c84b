/* SPDX-License-Identifier: MIT */
#include "src/base/closest_match.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { COMPLETION_COST = 2 };

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Fold case and hyphens, so that spellings compare equal.  tolower() would depend on the locale. */
static char folded(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '-' ? '_' : c;
}

static bool begins_with(const char *name, const char *word, size_t word_length)
{
    size_t i = 0;

    while (i < word_length && folded(name[i]) == folded(word[i]))
        i++;
    return i == word_length;
}

/* Row by row: row[i % 3][j] is the distance between the first i characters of one and the first j of
   the other.  A swap looks two rows back. */
static unsigned edits(const char *a, size_t a_length, const char *b, size_t b_length)
{
    unsigned row[3][XSEG_CLOSEST_MATCH_MAX + 1];

    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_length; i++) {
        const unsigned *before = row[(i - 1) % 3], *two_before = row[(i + 1) % 3];
        unsigned *current = row[i % 3];

        current[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            const char x = folded(a[i - 1]), y = folded(b[j - 1]);

            current[j] = smaller(before[j] + 1, current[j - 1] + 1);
            current[j] = smaller(current[j], before[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == folded(b[j - 2]) && y == folded(a[i - 2]))
                current[j] = smaller(current[j], two_before[j - 2] + 1);
        }
    }
    return row[a_length % 3][b_length];
}

void xseg_closest_match_init(struct xseg_closest_match *closest, const char *word,
                             size_t word_length)
{
    *closest = (struct xseg_closest_match){.word = word, .word_length = word_length};
}

void xseg_closest_match_consider(struct xseg_closest_match *closest, const char *name)
{
    const size_t length = strlen(name);
    const size_t word_length = closest->word_length;

    if (word_length == 0 || word_length > XSEG_CLOSEST_MATCH_MAX || length > XSEG_CLOSEST_MATCH_MAX)
        return;
    unsigned distance = edits(closest->word, word_length, name, length);
    size_t allowed = (word_length > length ? word_length : length) / 3;
    if (word_length >= 3 && length >= word_length &&
        begins_with(name, closest->word, word_length)) {
        distance = smaller(distance, COMPLETION_COST);
        allowed = COMPLETION_COST;
    }
    if (distance > allowed)
        return;
    if (closest->name != NULL && (distance > closest->distance || (distance == closest->distance &&
                                                                   length >= closest->name_length)))
        return;
    closest->name = name;
    closest->name_length = length;
    closest->distance = distance;
}
