/* SPDX-License-Identifier: MIT */
/*
 * A number of live blocks of random sizes, which are exchanged one after the other in random order:
 * the churn that several questions are about.
 *
 * Sizes and order are drawn before anything is timed, and are the same for every subject.
 */
#ifndef BENCHMARKS_LIVE_H
#define BENCHMARKS_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIVE_DRAWN 4096u /* a power of two */

struct live {
    void **blocks;
    uint32_t count;   /* of blocks */
    uint32_t streams; /* that take turns, from number `stream` on; 1 at least */
    uint32_t stream;
    uint32_t turn; /* goes round the blocks, so that all are reached whatever was drawn */
    uint32_t step;
    uint32_t order[LIVE_DRAWN];
    size_t bytes[LIVE_DRAWN]; /* 1 to `most` */
};

/* Allocate `count` blocks of 1 to `most` bytes: with several streams, in turn, so that each has its
 * share.  `seed` is not 0. */
void live_start(struct live *live, uint32_t count, size_t most, uint32_t stream, uint32_t streams,
                uint64_t seed);

/* Whether the device has memory for so many blocks, and an eighth more for the gaps between them; as measure_fits(). */
bool live_fits(const char *question, const char *name, uint32_t count, size_t most);

/* Exchange so many blocks, one by one; as measure.steps. */
uint64_t live_churn(void *self, uint64_t count);

/* Free all. */
void live_end(struct live *live);

#endif
