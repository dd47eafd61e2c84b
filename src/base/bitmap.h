/* SPDX-License-Identifier: MIT */
/*
 * A hierarchical bitmap: a set of small numbers in which the next or previous member is found in O(1).
 *
 * There are three levels.  The lowest has one bit per number.  Each bit of `summary` indicates whether a word of the lowest
 * level has a bit set, and each bit of `top` the same for a word of `summary`.  So a search reads at most three words
 * on the way up and two on the way down.  One word of `top` covers 64^3 = 262,144 numbers.  The caller provides the
 * storage, xseg_bitmap_words() words.
 *
 * Invariants:
 *   BITS-1  a summary bit is set if and only if the word below it is not zero.
 *
 * Locking: the owner's lock.
 */
#ifndef XSEG_BASE_BITMAP_H
#define XSEG_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XSEG_BITMAP_MAX  262144u /* 64^3 */
#define XSEG_BITMAP_NONE UINT32_MAX

struct xseg_bitmap {
    uint64_t *word;    /* a bit per number */
    uint64_t *summary; /* a bit per word */
    uint64_t top;      /* a bit per word of the summary */
    uint32_t count;    /* all numbers are below this */
};

/* The words of storage that `count` numbers require. */
static inline size_t xseg_bitmap_words(uint32_t count)
{
    const size_t words = ((size_t)count + 63) / 64;

    return words + (words + 63) / 64;
}

/* `storage` is zeroed and has xseg_bitmap_words(count) words. */
static inline void xseg_bitmap_init(struct xseg_bitmap *bits, uint64_t *storage, uint32_t count)
{
    bits->word = storage;
    bits->summary = storage + ((size_t)count + 63) / 64;
    bits->top = 0;
    bits->count = count;
}

static inline bool xseg_bitmap_test(const struct xseg_bitmap *bits, uint32_t number)
{
    return (bits->word[number / 64] >> (number % 64) & 1) != 0;
}

static inline void xseg_bitmap_set(struct xseg_bitmap *bits, uint32_t number)
{
    bits->word[number / 64] |= (uint64_t)1 << (number % 64);
    bits->summary[number / 4096] |= (uint64_t)1 << (number / 64 % 64);
    bits->top |= (uint64_t)1 << (number / 4096);
}

/* Without a branch: whether a word becomes zero is unpredictable. */
static inline void xseg_bitmap_clear(struct xseg_bitmap *bits, uint32_t number)
{
    uint64_t *word = &bits->word[number / 64], *summary = &bits->summary[number / 4096];

    *word &= ~((uint64_t)1 << (number % 64));
    *summary &= ~((uint64_t)(*word == 0) << (number / 64 % 64));
    bits->top &= ~((uint64_t)(*summary == 0) << (number / 4096));
}

/* The bits of `word` at position `from` (0 to 64) and above. */
static inline uint64_t xseg_bitmap_from(uint64_t word, uint32_t from)
{
    return from >= 64 ? 0 : word >> from << from;
}

/* The bits of `word` below position `below` (0 to 64). */
static inline uint64_t xseg_bitmap_below(uint64_t word, uint32_t below)
{
    return below >= 64 ? word : word & (((uint64_t)1 << below) - 1);
}

/* Find the smallest member that is at least `from`; XSEG_BITMAP_NONE if there is none. */
static inline uint32_t xseg_bitmap_next(const struct xseg_bitmap *bits, uint32_t from)
{
    if (from >= bits->count)
        return XSEG_BITMAP_NONE;
    uint32_t word = from / 64, summary = word / 64;
    uint64_t candidates = xseg_bitmap_from(bits->word[word], from % 64);

    if (candidates != 0)
        return word * 64 + (uint32_t)__builtin_ctzll(candidates);
    candidates = xseg_bitmap_from(bits->summary[summary], word % 64 + 1);
    if (candidates == 0) {
        candidates = xseg_bitmap_from(bits->top, summary + 1);
        if (candidates == 0)
            return XSEG_BITMAP_NONE;
        summary = (uint32_t)__builtin_ctzll(candidates);
        candidates = bits->summary[summary];
    }
    word = summary * 64 + (uint32_t)__builtin_ctzll(candidates);
    return word * 64 + (uint32_t)__builtin_ctzll(bits->word[word]);
}

/* Find the largest member below `below`; XSEG_BITMAP_NONE if there is none. */
static inline uint32_t xseg_bitmap_prev(const struct xseg_bitmap *bits, uint32_t below)
{
    if (below == 0)
        return XSEG_BITMAP_NONE;
    const uint32_t last = (below > bits->count ? bits->count : below) - 1;
    uint32_t word = last / 64, summary = word / 64;
    uint64_t candidates = xseg_bitmap_below(bits->word[word], last % 64 + 1);

    if (candidates != 0)
        return word * 64 + 63 - (uint32_t)__builtin_clzll(candidates);
    candidates = xseg_bitmap_below(bits->summary[summary], word % 64);
    if (candidates == 0) {
        candidates = xseg_bitmap_below(bits->top, summary);
        if (candidates == 0)
            return XSEG_BITMAP_NONE;
        summary = 63 - (uint32_t)__builtin_clzll(candidates);
        candidates = bits->summary[summary];
    }
    word = summary * 64 + 63 - (uint32_t)__builtin_clzll(candidates);
    return word * 64 + 63 - (uint32_t)__builtin_clzll(bits->word[word]);
}

#endif
