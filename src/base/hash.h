/* SPDX-License-Identifier: MIT */
/* Hashes of words, for tables in memory; not for what an adversary chooses. */
#ifndef XSEG_BASE_HASH_H
#define XSEG_BASE_HASH_H

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

#endif
