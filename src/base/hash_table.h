/* SPDX-License-Identifier: MIT */
/* Hashes of words, for tables in memory; not for what an adversary chooses. */
#ifndef XSEG_BASE_HASH_TABLE_H
#define XSEG_BASE_HASH_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Both halves of a product, so that every bit of each factor counts. */
static inline uint64_t xseg_hash_fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    const wide product = (wide)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The hash of one word, or of two. */
static inline uint64_t xseg_hash_word(uint64_t word, uint64_t seed)
{
    return xseg_hash_fold(word ^ 0x9e3779b97f4a7c15u, seed ^ 0xa0761d6478bd642fu);
}

/* The hash of `count` words, two at a time in two lanes that do not wait for each other. */
static inline uint64_t xseg_hash_words(const void *words, size_t count, uint64_t seed)
{
    const unsigned char *at = words;
    uint64_t word[4], one = seed ^ count, other = one;

    for (; count >= 4; count -= 4, at += sizeof(word)) {
        memcpy(word, at, sizeof(word));
        one = xseg_hash_fold(word[0] ^ one ^ 0xe7037ed1a0b428dbu, word[1] ^ 0x8ebc6af09c88c6e3u);
        other =
            xseg_hash_fold(word[2] ^ other ^ 0x589965cc75374cc3u, word[3] ^ 0x1d8e4e27c47d124fu);
    }
    for (; count > 0; count--, at += sizeof(word[0])) {
        memcpy(word, at, sizeof(word[0]));
        one = xseg_hash_word(word[0], one);
    }
    return xseg_hash_word(one, other);
}

/*
 * A hash table of records by key, for one thread; intern.h has the one that is read without a lock.
 *
 * A record begins with its key, a uint64_t that is not 0.  The rest of a new record is zeros.  No record is taken out,
 * and records move when another one is added.
 *
 * Linear probing, at most half full.
 *
 * Locking: the owner's.
 */

struct xseg_hash_table {
    unsigned char *records; /* [capacity]; NULL before the first */
    size_t record_bytes;
    size_t capacity; /* a power of two, or 0 */
    size_t used;
};

/* record_bytes: a multiple of 8 */
void xseg_hash_table_init(struct xseg_hash_table *table, size_t record_bytes);
void xseg_hash_table_fini(struct xseg_hash_table *table);

/* The record of a key; NULL if there is none. */
void *xseg_hash_table_find(const struct xseg_hash_table *table, uint64_t key);

/* The record of a key, which is added if it is new; NULL without host memory. */
void *xseg_hash_table_find_or_add(struct xseg_hash_table *table, uint64_t key);

/* The record behind another one, in no order; of NULL the first.  NULL: that was the last. */
void *xseg_hash_table_next(const struct xseg_hash_table *table, const void *record);

#endif
