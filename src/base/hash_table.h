/* SPDX-License-Identifier: MIT */
/*
 * Hash functions of 64-bit words, and a hash table of records for one thread.
 *
 * The hashes are those of wyhash: the two halves of a 128-bit product, combined by XOR.  They are fast and well distributed,
 * but not resistant to keys that an adversary chooses.
 *
 * The table uses open addressing with linear probing, and is at most half full.  A record starts with its key, a nonzero
 * uint64_t; the other members of a new record are zeroed.  Records are never removed, and they move when a record is added.
 * intern.h has the table that threads read without a lock, and whose records do not move.
 *
 * Locking: the owner's lock.
 */
#ifndef XSEG_BASE_HASH_TABLE_H
#define XSEG_BASE_HASH_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Combine both halves of a 128-bit product, so that every bit of both factors affects the result. */
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
    const unsigned char *next = words;
    uint64_t word[4], lane_a = seed ^ count, lane_b = lane_a;

    for (; count >= 4; count -= 4, next += sizeof(word)) {
        memcpy(word, next, sizeof(word));
        lane_a =
            xseg_hash_fold(word[0] ^ lane_a ^ 0xe7037ed1a0b428dbu, word[1] ^ 0x8ebc6af09c88c6e3u);
        lane_b =
            xseg_hash_fold(word[2] ^ lane_b ^ 0x589965cc75374cc3u, word[3] ^ 0x1d8e4e27c47d124fu);
    }
    for (; count > 0; count--, next += sizeof(word[0])) {
        memcpy(word, next, sizeof(word[0]));
        lane_a = xseg_hash_word(word[0], lane_a);
    }
    return xseg_hash_word(lane_a, lane_b);
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

/* Iterate in unspecified order.  Returns the record after `record`, or the first one if `record` is NULL; NULL at the end. */
void *xseg_hash_table_next(const struct xseg_hash_table *table, const void *record);

#endif
