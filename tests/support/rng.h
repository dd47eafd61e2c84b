/* SPDX-License-Identifier: MIT */
/* Random numbers that are the same everywhere: xorshift64*.  The state is not 0. */
#ifndef XSEG_TESTS_RNG_H
#define XSEG_TESTS_RNG_H

#include <stdint.h>

static inline uint64_t rng_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

#endif
