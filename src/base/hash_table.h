/* SPDX-License-Identifier: MIT */
/*
 * Hash functions of 64-bit words, and a hash table of records for one thread.
 *
 * The hashes are those of wyhash: the two halves of a 128-bit product, combined by XOR.  They are fast and well distributed,
 * but not resistant to keys that an adversary chooses.
 *
 * The table uses open addressing with linear probing, and is at most half full.  A record starts with its key, a nonzero
 * uint64_t; the rest of a new record is zeroed.  Records are never removed, and they move when a record is added.  intern.h
 * has the table that threads read without a lock, and whose records do not move.
 *
 * Locking: the owner's lock.
 */
#ifndef XSEG_BASE_HASH_TABLE_H
#define XSEG_BASE_HASH_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Both halves of a product, so that every bit of both factors has an effect. */
static inline uint64_t xseg_hash_fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    const wide product = (wide)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The hash of a word, with a seed. */
static inline uint64_t xseg_hash_word(uint64_t word, uint64_t seed)
{
    return xseg_hash_fold(word ^ 0x9e3779b97f4a7c15u, seed ^ 0xa0761d6478bd642fu);
}

/* The hash of `count` words, in two independent lanes. */
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

struct xseg_hash_table {
    unsigned char *records; /* [capacity]; NULL before the first insertion */
    size_t record_bytes;
    size_t capacity; /* a power of two, or 0 */
    size_t used;
};

/* record_bytes: a multiple of 8 */
void xseg_hash_table_init(struct xseg_hash_table *table, size_t record_bytes);
void xseg_hash_table_fini(struct xseg_hash_table *table);

/* Find the record of a key; NULL if there is none. */
void *xseg_hash_table_find(const struct xseg_hash_table *table, uint64_t key);

/* Find the record of a key, or add one; NULL if out of host memory. */
void *xseg_hash_table_find_or_add(struct xseg_hash_table *table, uint64_t key);

/* Iterate in unspecified order: the record after `record`, or the first one if it is NULL.  NULL: there are no more. */
void *xseg_hash_table_next(const struct xseg_hash_table *table, const void *record);

#endif
