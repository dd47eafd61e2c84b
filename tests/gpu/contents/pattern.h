/* SPDX-License-Identifier: MIT */
/*
 * The pattern of blocks, which kernels write and check, and its comparison on the host.
 *
 * Word i of 64 bits is output i of the generator splitmix64 with a seed, XOR a mask.  The formula and its constants are
 * those of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), figure 16, with the
 * finalizer known as Mix13.  Outputs differ between words and between seeds, so data of another block or of another
 * offset is detected.
 *
 * Words are little-endian.  A truncated last word has its low bytes.
 *
 * tests/gpu/kernels.ptx has the same formula for the GPU.
 */
#ifndef XSEG_TESTS_GPU_CONTENTS_PATTERN_H
#define XSEG_TESTS_GPU_CONTENTS_PATTERN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t pattern_word(uint64_t seed, uint64_t mask, uint64_t index)
{
    uint64_t word = seed + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);

    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31) ^ mask;
}

/* The bytes of a word that are in a block that ends `remaining` bytes after the start of the word. */
static inline uint64_t pattern_truncate(uint64_t word, size_t remaining)
{
    return remaining >= sizeof(word) ? word : word & ((UINT64_C(1) << (8 * remaining)) - 1);
}

/* The word at an index of a block, or only its bytes that are in the block; on a little-endian host. */
static inline uint64_t pattern_load(const unsigned char *block, size_t bytes, uint64_t index)
{
    const size_t offset = (size_t)index * sizeof(uint64_t), remaining = bytes - offset;
    uint64_t word = 0;

    memcpy(&word, block + offset, remaining < sizeof(word) ? remaining : sizeof(word));
    return word;
}

static inline void pattern_store(unsigned char *block, size_t bytes, uint64_t index, uint64_t word)
{
    const size_t offset = (size_t)index * sizeof(word), remaining = bytes - offset;

    memcpy(block + offset, &word, remaining < sizeof(word) ? remaining : sizeof(word));
}

static inline uint64_t pattern_words(size_t bytes)
{
    return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

/* The result of a comparison. A kernel fills in the same five words. */
struct pattern_report {
    uint64_t count;    /* words that differ */
    uint64_t lowest;   /* lowest index of a differing word; UINT64_MAX: none */
    uint64_t index;    /* index of the difference that was found first */
    uint64_t actual;   /* the value at that index */
    uint64_t compared; /* words that were compared; reveals a kernel that did not complete */
};

/* clang-format off */
#define PATTERN_REPORT_NONE {0, UINT64_MAX, 0, 0, 0}
/* clang-format on */

static inline void pattern_write(unsigned char *block, size_t bytes, uint64_t seed, uint64_t mask)
{
    for (uint64_t index = 0; index < pattern_words(bytes); index++)
        pattern_store(block, bytes, index, pattern_word(seed, mask, index));
}

static inline struct pattern_report pattern_check(const unsigned char *block, size_t bytes,
                                                  uint64_t seed, uint64_t mask)
{
    struct pattern_report report = PATTERN_REPORT_NONE;

    for (uint64_t index = 0; index < pattern_words(bytes); index++) {
        const uint64_t actual = pattern_load(block, bytes, index);

        report.compared++;
        if (actual == pattern_truncate(pattern_word(seed, mask, index),
                                       bytes - (size_t)index * sizeof(actual)))
            continue;
        if (report.count++ == 0) {
            report.lowest = report.index = index;
            report.actual = actual;
        }
    }
    return report;
}

#endif
