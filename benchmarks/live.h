/* SPDX-License-Identifier: MIT */
/*
 * Churn: a constant number of allocated blocks of random sizes.  Each step frees one block, in random order, and allocates
 * another one.
 *
 * Sizes and order are drawn before the measurement, and are the same for every allocator.
 */
#ifndef BENCHMARKS_LIVE_H
#define BENCHMARKS_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIVE_SEQUENCE 4096u /* a power of two */

struct live {
    void **blocks;
    uint32_t count;   /* of blocks */
    uint32_t streams; /* number of streams, which are used in turn; at least 1 */
    uint32_t stream;  /* index of the first stream */
    uint32_t offset;  /* is added to the random order, so that every block is freed in some step */
    uint32_t step;
    uint32_t order[LIVE_SEQUENCE];
    size_t bytes[LIVE_SEQUENCE]; /* 1 to max_bytes */
};

/* Allocate `count` blocks of 1 to max_bytes bytes, on the streams in turn.  seed is not 0. */
void live_init(struct live *live, uint32_t count, size_t max_bytes, uint32_t stream,
               uint32_t streams, uint64_t seed);

/* Like measure_fits(), for `count` blocks and an additional eighth for fragmentation. */
bool live_fits(const char *benchmark, const char *name, uint32_t count, size_t max_bytes);

/* Free and allocate `count` blocks, one after the other; a function for measure.steps. */
uint64_t live_churn(void *self, uint64_t count);

/* Free all blocks. */
void live_fini(struct live *live);

#endif
