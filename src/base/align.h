/* SPDX-License-Identifier: MIT */
/* Arithmetic on sizes, and small helpers that every module uses. */
#ifndef XSEG_BASE_ALIGN_H
#define XSEG_BASE_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XSEG_CACHE_LINE 64

#define XSEG_KIB ((uint64_t)1 << 10)
#define XSEG_MIB ((uint64_t)1 << 20)
#define XSEG_GIB ((uint64_t)1 << 30)

static inline bool xseg_is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static inline uint64_t xseg_round_down(uint64_t value, uint64_t step)
{
    return value - value % step;
}

/* The next multiple of step; value must be at most UINT64_MAX - step. */
static inline uint64_t xseg_round_up(uint64_t value, uint64_t step)
{
    return xseg_round_down(value + step - 1, step);
}

/* Index of the highest bit set; value must not be 0. */
static inline unsigned xseg_log2_floor(uint64_t value)
{
    return 63u - (unsigned)__builtin_clzll(value);
}

static inline uint64_t xseg_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t xseg_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* a + b, or UINT64_MAX on overflow. */
static inline uint64_t xseg_add_saturate(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* The structure of type `type` whose member `member` is at `pointer`. */
#define XSEG_CONTAINER(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#define XSEG_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
