/* SPDX-License-Identifier: MIT */
#include "src/tools/command/suggestion.h"

#include <stdbool.h>
#include <string.h>

#define LENGTH_MAX      32u /* longer words and names never match */
#define PREFIX_LENGTH   3u  /* shorter words do not match by prefix */
#define PREFIX_DISTANCE 2u

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static char fold(char letter)
{
    if (letter >= 'A' && letter <= 'Z')
        return (char)(letter - 'A' + 'a');
    return letter == '_' ? '-' : letter;
}

/* Get whether a name begins with a word; strncasecmp() depends on the locale, and does not fold '_'. */
static bool has_prefix(const char *name, const char *word, size_t word_length)
{
    size_t i = 0;

    while (i < word_length && fold(name[i]) == fold(word[i]))
        i++;
    return i == word_length;
}

/* Compute the edit distance; row[i % 3][j] is the distance between the first i characters of `a` and the first j of `b`. */
static unsigned edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    unsigned row[3][LENGTH_MAX + 1];

    for (size_t j = 0; j <= b_length; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_length; i++) {
        const unsigned *previous = row[(i - 1) % 3], *second_previous = row[(i + 1) % 3];
        unsigned *current = row[i % 3];

        current[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            const char x = fold(a[i - 1]), y = fold(b[j - 1]);

            current[j] = min_unsigned(previous[j] + 1, current[j - 1] + 1);
            current[j] = min_unsigned(current[j], previous[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && y == fold(a[i - 2]))
                current[j] = min_unsigned(current[j], second_previous[j - 2] + 1);
        }
    }
    return row[a_length % 3][b_length];
}

void suggestion_init(struct suggestion *suggestion, const char *word, size_t length)
{
    *suggestion = (struct suggestion){.word = word, .length = length};
}

void suggestion_consider(struct suggestion *suggestion, const char *name)
{
    const size_t length = strlen(name), word_length = suggestion->length;
    size_t limit = (word_length > length ? word_length : length) / 3;
    unsigned distance;

    if (word_length == 0 || word_length > LENGTH_MAX || length > LENGTH_MAX)
        return;
    distance = edit_distance(suggestion->word, word_length, name, length);
    if (word_length >= PREFIX_LENGTH && length >= word_length &&
        has_prefix(name, suggestion->word, word_length)) {
        distance = min_unsigned(distance, PREFIX_DISTANCE);
        limit = PREFIX_DISTANCE;
    }
    if (distance > limit)
        return;
    if (suggestion->name &&
        (distance > suggestion->distance ||
         (distance == suggestion->distance && length >= strlen(suggestion->name))))
        return;
    suggestion->name = name;
    suggestion->distance = distance;
}
